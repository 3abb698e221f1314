/* Threads that are often inside glibc's own locks, for ever: `program KIND LEDGER`. */
#include "ledger.h"
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <malloc.h>
#include <netdb.h>
#include <pthread.h>
#include <sched.h>
#include <sys/wait.h>
#include <time.h>

enum { THREADS = 4 };

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static const char *kind;
static volatile int sink;

static int is(const char *name) { return strcmp(kind, name) == 0; }

static void moment(long ns)
{
    struct timespec t = { 0, ns };
    nanosleep(&t, NULL);
}

static void lock(void) { TAKE(&mutex, pthread_mutex_lock(&mutex)); }
static void unlock(void) { GIVE(&mutex, pthread_mutex_unlock(&mutex)); }

/* Arenas: fewer than threads, and blocks given back by other threads than took them. */
static void *volatile shelf[64];

static void *allocates(void *x)
{
    for (unsigned n = (unsigned)(intptr_t)x;; n++) {
        void *p[6];
        for (unsigned i = 0; i < 6; i++)
            p[i] = malloc(i == 5 ? 200000 : 1500 + 700 * i + n % 97);
        void *mine = malloc(2000 + n % 3000);
        void *theirs = __atomic_exchange_n(&shelf[n % 64], mine, __ATOMIC_ACQ_REL);
        free(theirs);
        for (unsigned i = 0; i < 6; i++)
            free(p[i]);
        if (n % 256 == 0)
            malloc_trim(0);
        ledger_beat();
    }
    return x;
}

static void before_fork(void) { lock(); }
static void after_fork(void) { unlock(); }

static void in_child(void)
{
    ledger_child();
    pthread_mutex_unlock(&mutex);
}

static void *forks(void *x)
{
    for (;;) {
        int pid = fork();
        if (pid == 0) {
            free(malloc(100));
            if (is("atfork")) {
                pthread_mutex_lock(&mutex);
                pthread_mutex_unlock(&mutex);
            }
            _exit(0);
        }
        if (pid > 0)
            waitpid(pid, NULL, 0);
        ledger_beat();
        moment(300000);
    }
    return x;
}

static void *locks_and_allocates(void *x)
{
    for (unsigned n = 0;; n++) {
        lock();
        void *p = malloc(3000);
        sink++;
        unlock();
        free(p);
        ledger_beat();
        if (n % 32 == 0)
            moment(50000);
    }
    return x;
}

static FILE *shared_out;

static void *prints(void *x)
{
    char line[128];
    for (int n = (int)(intptr_t)x;; n++) {
        switch (n % 4) {
        case 0:
            fprintf(shared_out, "%d of %d, in a line that is a little longer\n", n, n % 7);
            break;
        case 1:
            flockfile(shared_out);
            fputs("one ", shared_out);
            fputs("two\n", shared_out);
            funlockfile(shared_out);
            break;
        case 2: {
            FILE *f = fopen("/proc/self/comm", "r");
            if (f && fgets(line, sizeof line, f))
                sink++;
            if (f)
                fclose(f);
            break;
        }
        default:
            fflush(n % 16 == 3 ? NULL : shared_out);
        }
        ledger_beat();
    }
    return x;
}

static int each_object(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size;
    *(int *)data += info->dlpi_phnum;
    return 0;
}

static void *loads(void *x)
{
    static const char *const files[] = { "libm.so.6", "libresolv.so.2", "libutil.so.1", "libcrypt.so.1", "libnsl.so.1" };
    for (int n = (int)(intptr_t)x;; n++) {
        int count = 0;
        void *h = dlopen(files[n % 5], n % 2 ? RTLD_NOW : RTLD_LAZY);
        sink += dlsym(RTLD_DEFAULT, "cos") != NULL;
        dl_iterate_phdr(each_object, &count);
        Dl_info info;
        dladdr((void *)loads, &info);
        if (h)
            dlclose(h);
        ledger_beat();
    }
    return x;
}

static __thread char room[300];

static void *resolves(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        struct addrinfo hints, *found = NULL;
        memset(&hints, 0, sizeof hints);
        hints.ai_flags = n % 2 ? AI_NUMERICHOST : 0;
        if (getaddrinfo(n % 2 ? "127.0.0.1" : "localhost", "80", &hints, &found) == 0)
            freeaddrinfo(found);
        time_t now = n;
        struct tm tm;
        localtime_r(&now, &tm);
        setenv("HANGSCOPE_SOMETHING", n % 3 ? "a" : "bb", 1);
        room[n % 300] = (char)n;
        ledger_beat();
    }
    return x;
}

static void *short_lived(void *x)
{
    char *p = malloc(500 + (size_t)(intptr_t)x % 100);
    room[1] = p ? 1 : 0;
    lock();
    sink++;
    unlock();
    free(p);
    ledger_gone();
    return x;
}

static void *makes_threads(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        pthread_t t;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        if (n % 3 == 0)
            pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
        int failed = pthread_create(&t, &attr, short_lived, (void *)(intptr_t)n);
        pthread_attr_destroy(&attr);
        if (failed)
            moment(1000000);
        else if (n % 3 == 1)
            pthread_join(t, NULL);
        else if (n % 3 == 2)
            pthread_detach(t);
        ledger_beat();
    }
    return x;
}

static void gives_back(void *x)
{
    (void)x;
    unlock();
    ledger_gone();
}

/* Cancelled in the wait for the condition, which takes the mutex again before the handlers run. */
static void *cancelled(void *x)
{
    lock();
    pthread_cleanup_push(gives_back, NULL);
    for (;;)
        LEND(&mutex, pthread_cond_wait(&cond, &mutex));
    pthread_cleanup_pop(1);
    return x;
}

static void *cancels(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        pthread_t t;
        if (pthread_create(&t, NULL, cancelled, NULL)) {
            moment(1000000);
            continue;
        }
        if (n % 2)
            sched_yield();
        pthread_cancel(t);
        pthread_cond_broadcast(&cond);
        pthread_join(t, NULL);
        ledger_beat();
    }
    return x;
}

/* All threads change their identity: glibc signals each of them and waits until they have. */
static void *sets_ids(void *x)
{
    for (;;) {
        if (setuid(getuid()))
            abort();
        ledger_beat();
        moment(100000);
    }
    return x;
}

int main(int argc, char **argv)
{
    ledger_open(argc, argv);
    kind = argv[1];
    shared_out = fopen("/dev/null", "w");
    int own = strstr(kind, "-own") != NULL; /* each thread has an arena of its own, and there are two beside the first */
    if (!own)
        mallopt(M_ARENA_MAX, 2);
    void *(*one)(void *) = NULL, *(*others)(void *) = NULL;
    if (is("malloc") || is("malloc-own"))
        one = others = allocates;
    else if (is("fork") || is("fork-own"))
        one = forks, others = allocates;
    else if (is("atfork"))
        one = forks, others = locks_and_allocates;
    else if (is("stdio"))
        one = others = prints;
    else if (is("stdio-fork"))
        one = forks, others = prints;
    else if (is("loader"))
        one = others = loads;
    else if (is("loader-fork"))
        one = forks, others = loads;
    else if (is("resolver"))
        one = others = resolves;
    else if (is("churn"))
        one = others = makes_threads;
    else if (is("churn-fork"))
        one = forks, others = makes_threads;
    else if (is("cancel"))
        one = others = cancels;
    else if (is("setxid"))
        one = sets_ids, others = makes_threads;
    else
        return 64;
    if (is("atfork"))
        pthread_atfork(before_fork, after_fork, in_child);
    for (int i = 0; i < (own ? 3 : THREADS); i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, i == 0 ? one : others, (void *)(intptr_t)i))
            abort();
    }
    ledger_ready();
    for (;;)
        pause();
}
