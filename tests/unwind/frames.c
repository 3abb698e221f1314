// One thread for each shape of stack; each ends in a wait that never ends. Prints "ready" when all are there.
#define _GNU_SOURCE
#include <alloca.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

static pthread_mutex_t never = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t nobody = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t started;
static volatile int sink;

static void wait_for_ever(void) { pthread_mutex_lock(&never); }

__attribute__((noinline)) static int recurse(int n)
{
    if (n == 0)
        wait_for_ever();
    else
        sink += recurse(n - 1);
    return sink + n;
}

__attribute__((noinline)) static int with_alloca(int n)
{
    volatile char *room = alloca(16 + n * 37);
    room[n] = 1;
    if (n == 0)
        wait_for_ever();
    else
        sink += with_alloca(n - 1);
    return room[n];
}

__attribute__((noinline)) static void many_registers(long a, long b, long c, long d, long e, long f)
{
    long g = a * b, h = c * d, i = e * f;
    for (long k = 0; k < 3; k++)
        g += h * k ^ i;
    wait_for_ever();
    sink = (int)(a + b + c + d + e + f + g + h + i);
}

static int compare(const void *a, const void *b)
{
    if (sink >= 0)
        wait_for_ever();
    return *(const int *)a - *(const int *)b;
}

static void handler(int sig)
{
    (void)sig;
    pthread_barrier_wait(&started);
    wait_for_ever();
}

static void *in_recursion(void *x) { pthread_barrier_wait(&started); recurse(1000); return x; }
static void *in_alloca(void *x) { pthread_barrier_wait(&started); with_alloca(50); return x; }
static void *in_registers(void *x) { pthread_barrier_wait(&started); many_registers(1, 2, 3, 4, 5, sink + 6); return x; }

static void *in_callback(void *x)
{
    int numbers[64];
    for (int i = 0; i < 64; i++)
        numbers[i] = rand();
    pthread_barrier_wait(&started);
    qsort(numbers, 64, sizeof *numbers, compare);
    return x;
}

static void *in_search(void *x)
{
    int numbers[4] = {1, 2, 3, 4};
    pthread_barrier_wait(&started);
    return bsearch(&numbers[2], numbers, 4, sizeof *numbers, compare) ? x : NULL;
}

static void *in_condition(void *x)
{
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&own);
    pthread_barrier_wait(&started);
    pthread_cond_wait(&nobody, &own);
    return x;
}

// a signal on top of a blocked wait
static void *in_signal(void *x)
{
    pthread_mutex_t own = PTHREAD_MUTEX_INITIALIZER;
    signal(SIGUSR1, handler);
    pthread_mutex_lock(&own);
    pthread_cond_wait(&nobody, &own);
    return x;
}

// the same on another stack
static void *in_signal_stack(void *x)
{
    stack_t other = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&other, NULL);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
    sigaction(SIGUSR2, &action, NULL);
    for (;;)
        pause();
    return x;
}

// a signal that interrupts an instruction that is no call
static void *in_fault(void *x)
{
    signal(SIGILL, handler);
    __asm__ volatile("ud2");
    return x;
}

static void coroutine(void)
{
    pthread_barrier_wait(&started);
    recurse(3);
}

static void *in_coroutine(void *x)
{
    static ucontext_t here, there;
    getcontext(&there);
    there.uc_stack.ss_sp = malloc(1 << 16);
    there.uc_stack.ss_size = 1 << 16;
    there.uc_link = &here;
    makecontext(&there, coroutine, 0);
    swapcontext(&here, &there);
    return x;
}

static void *in_sleep(void *x)
{
    struct timespec long_time = {1000, 0};
    pthread_barrier_wait(&started);
    nanosleep(&long_time, NULL);
    return x;
}

int main(void)
{
    void *(*bodies[])(void *) = {in_recursion, in_alloca, in_registers, in_callback, in_search, in_condition,
        in_signal, in_signal_stack, in_fault, in_coroutine, in_sleep};
    enum { N = sizeof bodies / sizeof *bodies };
    pthread_t threads[N];
    alarm(60);
    pthread_mutex_lock(&never);
    pthread_barrier_init(&started, NULL, N + 1);
    for (int i = 0; i < N; i++)
        pthread_create(&threads[i], NULL, bodies[i], NULL);
    usleep(100000);
    pthread_kill(threads[6], SIGUSR1);
    pthread_kill(threads[7], SIGUSR2);
    pthread_barrier_wait(&started);
    puts("ready");
    fflush(stdout);
    pthread_join(threads[0], NULL);
}
