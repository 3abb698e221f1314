// Stacks without call frame information: built without unwind tables, with or without frame pointers; generated code; calls
// through null; a signal trampoline of one's own. bare HOW waits for ever, and prints "ready" before.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

volatile int sink;

__attribute__((noinline)) void innermost(void)
{
    alarm(60);
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}

__attribute__((noinline)) int third(int n) { volatile int room[20] = {n}; innermost(); return room[3]; }
__attribute__((noinline)) int second(int n) { volatile int room[50] = {n}; sink += third(n + 1); return room[4]; }
__attribute__((noinline)) int first(int n) { volatile char room[300] = {0}; sink += second(n + 1); return room[n]; }

static void handler(int sig) { sink += sig; innermost(); }

__attribute__((noinline)) int through_null(void (*f)(void)) { f(); return sink++; }

// a function with a frame pointer, written by hand: push %rbp; mov %rsp,%rbp; sub $32,%rsp; call *%rdi; leave; ret
static const unsigned char generated[] = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20, 0xff, 0xd7, 0xc9, 0xc3};

static void call_second(void) { first(1); }

struct kernel_sigaction { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; };
__asm__(".globl own_restorer\n.type own_restorer,@function\nown_restorer: mov $15, %rax\n syscall\n.size own_restorer, .-own_restorer\n");
void own_restorer(void);

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "plain"))
        first(1);
    if (!strcmp(how, "null")) {
        signal(SIGSEGV, handler);
        through_null(NULL);
    }
    if (!strcmp(how, "generated")) {
        void *code = mmap(NULL, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memcpy(code, generated, sizeof generated);
        ((void (*)(void (*)(void)))code)(call_second);
    }
    if (!strcmp(how, "trampoline")) {
        struct kernel_sigaction action = {handler, 0x04000000, own_restorer, 0};
        syscall(SYS_rt_sigaction, SIGUSR1, &action, NULL, 8);
        raise(SIGUSR1);
    }
    return sink;
}
