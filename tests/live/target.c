// A program to be looked at while it runs. Its first argument names what it does; it writes "ready" when it is there
// and ends by itself after two minutes.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
static atomic_int arrived;

static void ready(void) {
    if (write(1, "ready\n", 6) != 6) _exit(3);
}

// Waits for the mutex that main holds; its stack is `deep` KiB.
static void *waiter(void *deep) {
    size_t bytes = (size_t)deep * 1024;
    volatile char *room = bytes ? __builtin_alloca(bytes) : 0;
    for (size_t i = 0; i < bytes; i += 512) room[i] = (char)i;
    arrived++;
    pthread_mutex_lock(&held);
    if (bytes) room[0]++;
    return 0;
}

static void threads(int count, size_t deep) {
    pthread_mutex_lock(&held);
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 * 1024 + deep * 1024);
    for (int i = 0; i < count; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, waiter, (void *)deep)) _exit(4);
    }
    while (arrived < count) usleep(1000);
    usleep(50000);
}

static void *leaves_leader(void *unused) {
    usleep(50000);
    ready();
    for (;;) pause();
    return unused;
}

static void *nothing(void *p) { return p; }

// Makes and ends threads as fast as it can.
static void *churner(void *unused) {
    for (;;) {
        pthread_t t;
        if (pthread_create(&t, 0, nothing, 0) == 0) pthread_join(t, 0);
    }
    return unused;
}

static atomic_long counted;
static void count(int s) {
    (void)s;
    counted++;
}

int main(int argc, char **argv) {
    const char *what = argc > 1 ? argv[1] : "";
    alarm(120);
    if (!strcmp(what, "threads")) {
        threads(atoi(argv[2]), argc > 3 ? (size_t)atoi(argv[3]) : 0);
        ready();
        for (;;) pause();
    }
    if (!strcmp(what, "vfork")) {
        // the parent sleeps where nothing interrupts it until the child's exec or end
        if (vfork() == 0) {
            ready();
            usleep(20 * 1000 * 1000);
            _exit(0);
        }
        for (;;) pause();
    }
    if (!strcmp(what, "zombie-leader")) {
        pthread_t t;
        pthread_create(&t, 0, leaves_leader, 0);
        pthread_exit(0);
    }
    if (!strcmp(what, "zombie")) {
        pid_t child = fork();
        if (child == 0) _exit(0);
        siginfo_t info;
        waitid(P_PID, child, &info, WEXITED | WNOWAIT);
        printf("%d\n", child);
        fflush(stdout);
        ready();
        for (;;) pause();
    }
    if (!strcmp(what, "churn")) {
        for (int i = 0; i < 3; i++) {
            pthread_t t;
            pthread_create(&t, 0, churner, 0);
        }
        ready();
        for (;;) pause();
    }
    if (!strcmp(what, "undumpable")) {
        prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
        ready();
        for (;;) pause();
    }
    if (!strcmp(what, "spin")) {
        ready();
        for (volatile long i = 0;; i++) {
        }
    }
    if (!strcmp(what, "count")) {
        // counts real-time signals, which queue; a line on stdin asks for the count
        struct sigaction sa = {.sa_handler = count, .sa_flags = SA_RESTART};
        sigaction(SIGRTMIN + 1, &sa, 0);
        ready();
        char line[16];
        while (fgets(line, sizeof line, stdin)) {
            printf("%ld\n", (long)counted);
            fflush(stdout);
        }
        return 0;
    }
    if (!strcmp(what, "without-ptrace")) {
        // runs a command that may neither ptrace nor read another's memory by system call, as some containers have it
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ptrace, 1, 0),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 6;
        alarm(0);
        execvp(argv[2], argv + 2);
        return 7;
    }
    if (!strcmp(what, "send")) {
        // sends that many real-time signals to another program
        for (int i = 0; i < atoi(argv[3]); i++) {
            if (kill(atoi(argv[2]), SIGRTMIN + 1)) return 5;
            if (i % 10 == 0) usleep(200);
        }
        return 0;
    }
    return 2;
}
