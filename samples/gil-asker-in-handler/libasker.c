/* A thread that asks for the GIL is caught by a signal whose handler never returns. */
#define READY_EXPORT
#include "../ready.h"
#include <signal.h>

extern void *PyEval_SaveThread(void);
extern void PyEval_RestoreThread(void *);

enum { ASKS };
static unsigned caught, never;

static void sleep_for_ever(int signal)
{
    (void)signal;
    __atomic_store_n(&caught, 1, __ATOMIC_RELEASE);
    for (;;)
        syscall(SYS_futex, &never, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
}

/* How often the thread has gone to sleep. */
static unsigned long sleeps(int tid)
{
    char path[64], line[128];
    unsigned long count = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/status", tid);
    FILE *status = fopen(path, "re");
    while (status && fgets(line, sizeof line, status))
        sscanf(line, "voluntary_ctxt_switches: %lu", &count);
    if (status)
        fclose(status);
    return count;
}

/* Lets the GIL go, and asks for it back. */
READY_API void ask(void)
{
    signal(SIGUSR1, sleep_for_ever);
    void *state = PyEval_SaveThread();
    ready_gate_pass(ASKS);
    ready_beyond_gates();
    PyEval_RestoreThread(state);
}

/* Keeps the GIL until the asker has told the interpreter to take it from whoever has it, and sleeps in its handler. */
READY_API void keep_from(int asker)
{
    struct timespec moment = { 0, 1000000 };
    ready_gate_open(ASKS);
    for (unsigned long before = sleeps(asker); sleeps(asker) < before + 5;)
        nanosleep(&moment, NULL);
    syscall(SYS_tgkill, getpid(), asker, SIGUSR1);
    while (!__atomic_load_n(&caught, __ATOMIC_ACQUIRE))
        nanosleep(&moment, NULL);
    ready_beyond_gates(); /* gives the GIL to the asker, and waits until that has it */
}
