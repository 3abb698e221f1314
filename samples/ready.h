/* ready.h: how a sample says that it hangs where it should.
 *
 * Every thread that matters first says where it is going to sleep (`ready_at` this object, `ready_beyond_gates`, `ready_gone`),
 * then goes there. An observer thread looks at /proc until all of them are there, on several looks in a row, writes the
 * line `ready PID` and ends. No sleep is taken for a proof. It takes no lock and allocates nothing, since the samples hold
 * the loader's locks and the GIL when it looks.
 *
 * Gates are the handshakes: a thread passes gate i once somebody has opened it, and waits on a word of its own until then, so
 * that waiting at a gate is never mistaken for the wait that is wanted.
 *
 * A sample ends by itself (SIGALRM) after two minutes, or HANGSCOPE_SAMPLE_SECONDS.
 *
 * Plain programs include this; an extension that a Python program calls defines READY_EXPORT first.
 */
#ifndef HANGSCOPE_READY_H
#define HANGSCOPE_READY_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(READY_EXPORT) && defined(__cplusplus)
#define READY_API extern "C" __attribute__((visibility("default"), used))
#elif defined(READY_EXPORT)
#define READY_API __attribute__((visibility("default"), used))
#else
#define READY_API static __attribute__((unused))
#endif

enum { READY_MOST = 64, READY_GATES = 8, READY_LOOKS = 5, READY_PATIENCE = 30000 };

enum ready_where { READY_AT, READY_BEYOND_GATES, READY_GONE, READY_IN_CALL, READY_GPU_ASLEEP, READY_GPU_SPINS, READY_GPU, READY_SOMEHOW };

struct ready_place {
    int filled; /* published last */
    int tid;
    enum ready_where where;
    uintptr_t from, to; /* READY_AT: the futex word lies in here; READY_IN_CALL: the system call's number */
    unsigned long long ran; /* ns on a CPU when the observer first saw it run */
};

static struct ready_place ready_places[READY_MOST];
static int ready_filled, ready_expected;
static unsigned ready_gates[READY_GATES];

static __attribute__((unused)) void ready_put(enum ready_where where, uintptr_t from, uintptr_t to)
{
    int i = __atomic_fetch_add(&ready_filled, 1, __ATOMIC_RELAXED);
    if (i >= READY_MOST)
        abort();
    struct ready_place *p = &ready_places[i];
    p->tid = (int)syscall(SYS_gettid);
    p->where = where;
    p->from = from;
    p->to = to;
    __atomic_store_n(&p->filled, 1, __ATOMIC_RELEASE);
}

/* The calling thread sleeps on `object` next (any of its words), and stays there. */
READY_API void ready_at(const volatile void *object, size_t size)
{
    ready_put(READY_AT, (uintptr_t)object, (uintptr_t)object + size);
}

/* The calling thread sleeps on some futex that is no gate next, and stays there. */
READY_API void ready_beyond_gates(void)
{
    ready_put(READY_BEYOND_GATES, 0, 0);
}

/* The calling thread ends next. */
READY_API void ready_gone(void)
{
    ready_put(READY_GONE, 0, 0);
}

/* The calling thread makes this system call next, and stays in it. */
READY_API void ready_in_call(int number)
{
    ready_put(READY_IN_CALL, (uintptr_t)number, 0);
}

/* The calling thread waits for a GPU next: asleep in the KFD's AMDKFD_IOC_WAIT_EVENTS, ... */
READY_API void ready_gpu_asleep(void)
{
    ready_put(READY_GPU_ASLEEP, 0, 0);
}

/* ... or spinning, which is to have run for 20 ms, ... */
READY_API void ready_gpu_spins(void)
{
    ready_put(READY_GPU_SPINS, 0, 0);
}

/* ... or whichever of them the runtime likes, or a moment's sleep between two looks. */
READY_API void ready_gpu(void)
{
    ready_put(READY_GPU, 0, 0);
}

/* The calling thread sleeps on a futex that is no gate next, or spins: a lock that does the one or the other. */
READY_API void ready_somehow(void)
{
    ready_put(READY_SOMEHOW, 0, 0);
}

/* The kernel's name of the calling thread, at most 15 characters. */
READY_API void ready_name(const char *name)
{
    prctl(PR_SET_NAME, name, 0, 0, 0);
}

READY_API void ready_gate_open(int i)
{
    __atomic_store_n(&ready_gates[i], 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &ready_gates[i], FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

READY_API void ready_gate_pass(int i)
{
    while (!__atomic_load_n(&ready_gates[i], __ATOMIC_ACQUIRE))
        syscall(SYS_futex, &ready_gates[i], FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

/* Has the thread run for 20 ms since the observer first saw it run? */
static int ready_spins(struct ready_place *p)
{
    char path[64], text[128];
    snprintf(path, sizeof path, "/proc/self/task/%d/schedstat", p->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    unsigned long long ran = strtoull(text, NULL, 10);
    if (!p->ran)
        p->ran = ran;
    return ran - p->ran > 20000000;
}

/* Does the thread wait where it said it would? */
static int ready_is_there(struct ready_place *p)
{
    char path[64], text[128], *rest;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", p->tid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    if (p->where == READY_GONE)
        return n < 0;
    if (n <= 0)
        return 0;
    text[n] = 0; /* "running", "-1 SP PC", or "NUMBER ARG0 ... ARG5 SP PC" */
    int spins = p->where == READY_GPU_SPINS || p->where == READY_GPU || p->where == READY_SOMEHOW;
    if (!strncmp(text, "running", 7))
        return spins && ready_spins(p);
    long number = strtol(text, &rest, 10);
    if (spins && number == SYS_sched_yield)
        return ready_spins(p);
    if (p->where == READY_IN_CALL)
        return rest != text && number == (long)p->from;
    if (p->where == READY_GPU_ASLEEP || p->where == READY_GPU)
        return (number == SYS_ioctl && strstr(rest, " 0xc0184b0c ")) ||
               (p->where == READY_GPU && number == SYS_clock_nanosleep);
    if (rest == text || number != SYS_futex)
        return 0;
    uintptr_t word = strtoull(rest, NULL, 16);
    if (p->where == READY_AT)
        return p->from <= word && word < p->to;
    return word < (uintptr_t)ready_gates || word >= (uintptr_t)(ready_gates + READY_GATES);
}

/* Waits until whoever took place i is there, for threads that are to come behind it. Looks, since that one cannot tell. */
READY_API void ready_behind(int i)
{
    struct timespec moment = { 0, 1000000 };
    while (!__atomic_load_n(&ready_places[i].filled, __ATOMIC_ACQUIRE) || !ready_is_there(&ready_places[i]))
        nanosleep(&moment, NULL);
}

/* Says who is not there, and ends the process: a sample that does not hang as it should is broken. */
static void ready_never(void)
{
    for (int i = 0; i < ready_expected; i++) {
        struct ready_place *p = &ready_places[i];
        if (!__atomic_load_n(&p->filled, __ATOMIC_ACQUIRE) || !ready_is_there(p))
            dprintf(2, "never ready: place %d, thread %d\n", i, p->tid);
    }
    _exit(70);
}

static void *ready_observe(void *unused)
{
    (void)unused;
    prctl(PR_SET_NAME, "observer", 0, 0, 0);
    int patience = READY_PATIENCE;
    for (int looks = 0; looks < READY_LOOKS;) {
        struct timespec moment = { 0, 1000000 };
        nanosleep(&moment, NULL);
        if (--patience == 0)
            ready_never();
        int there = 0;
        for (int i = 0; i < ready_expected; i++)
            there += __atomic_load_n(&ready_places[i].filled, __ATOMIC_ACQUIRE) && ready_is_there(&ready_places[i]);
        looks = there == ready_expected ? looks + 1 : 0;
    }
    char line[32];
    int n = snprintf(line, sizeof line, "ready %d\n", (int)getpid());
    if (write(1, line, (size_t)n) != n)
        abort();
    return NULL;
}

/* Starts the observer, who waits for `threads` of them to be in their places. Call it before the first lock is taken. */
READY_API void ready_begin(int threads)
{
    const char *seconds = getenv("HANGSCOPE_SAMPLE_SECONDS");
    alarm(seconds ? (unsigned)atoi(seconds) : 120);
#ifdef PR_SET_PTRACER
    prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0); /* a sample is there to be looked at, Yama or not */
#endif
    ready_expected = threads;
    pthread_attr_t attr;
    pthread_t observer;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (threads > READY_MOST || pthread_create(&observer, &attr, ready_observe, NULL))
        abort();
    pthread_attr_destroy(&attr);
}

#endif
