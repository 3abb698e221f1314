/* Threads that use one kind of glibc's locks, for ever: `program KIND LEDGER`. */
#include "ledger.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>

enum { THREADS = 4, LOCKS = 3 };

static pthread_mutex_t mutexes[LOCKS];
static pthread_rwlock_t rwlocks[LOCKS];
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER, other_cond = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static pthread_spinlock_t spin;
static sem_t sems[LOCKS], full, empty;
static volatile int count, sink;
static const char *kind;

static int is(const char *name) { return strncmp(kind, name, strlen(name)) == 0; }

static void work(int n)
{
    for (int i = 0; i < n; i++)
        sink += i;
}

static struct timespec soon(clockid_t clock, long ns)
{
    struct timespec t;
    clock_gettime(clock, &t);
    t.tv_nsec += ns;
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static void moment(long ns)
{
    struct timespec t = { 0, ns };
    nanosleep(&t, NULL);
}

/* Takes a mutex in one of the ways there are. */
static void lock(pthread_mutex_t *m, int n)
{
    ledger_tell(m, TAKING, 0);
    int r;
    if (is("mutex-timed")) {
        do {
            struct timespec t = soon(CLOCK_REALTIME, 200000 + n % 7 * 1000000);
            r = pthread_mutex_timedlock(m, &t);
        } while (r == ETIMEDOUT);
    } else if (is("mutex-try")) {
        while ((r = pthread_mutex_trylock(m)) == EBUSY)
            sched_yield();
    } else {
        r = pthread_mutex_lock(m);
    }
    if (r == EOWNERDEAD)
        pthread_mutex_consistent(m);
    else if (r)
        abort();
    ledger_tell(m, HELD, 0);
}

static void unlock(pthread_mutex_t *m) { GIVE(m, pthread_mutex_unlock(m)); }

static void *mutex_user(void *x)
{
    int id = (int)(intptr_t)x;
    for (int n = id;; n++) {
        int a = n % LOCKS, b = (n / LOCKS) % LOCKS;
        lock(&mutexes[a], n);
        if (is("mutex-recursive"))
            pthread_mutex_lock(&mutexes[a]);
        work(n % 50);
        if (n % 3 == 0 && b > a) {
            lock(&mutexes[b], n);
            work(30);
            if (n % 16 == 0)
                moment(50000);
            unlock(&mutexes[b]);
        }
        if (is("mutex-recursive"))
            pthread_mutex_unlock(&mutexes[a]);
        if (n % 64 == 0)
            moment(100000);
        unlock(&mutexes[a]);
        ledger_beat();
    }
    return x;
}

static void mutex_init(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (strstr(kind, "recursive"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    if (strstr(kind, "errorcheck"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    if (strstr(kind, "adaptive"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    if (strstr(kind, "robust"))
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (strstr(kind, "-pi"))
        pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    if (strstr(kind, "pshared"))
        pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    for (int i = 0; i < LOCKS; i++)
        if (pthread_mutex_init(&mutexes[i], &attr))
            abort();
}

static void *rwlock_user(void *x)
{
    int id = (int)(intptr_t)x;
    for (int n = id;; n++) {
        pthread_rwlock_t *l = &rwlocks[n % LOCKS];
        if ((n / LOCKS + id) % 4 == 0)
            TAKE(l, while (pthread_rwlock_wrlock(l)));
        else
            TAKE_SHARED(l, while (pthread_rwlock_rdlock(l)));
        work(n % 60);
        if (n % 50 == 0)
            moment(50000);
        GIVE(l, pthread_rwlock_unlock(l));
        ledger_beat();
    }
    return x;
}

/* A queue of one place between producers and consumers; `cond-timed` waits with a time-out. */
static void cond_wait(pthread_cond_t *c, pthread_mutex_t *m, int n)
{
    ledger_tell(m, TAKING, 0);
    if (is("cond-timed")) {
        struct timespec t = soon(CLOCK_REALTIME, 300000 + n % 5 * 1000000);
        pthread_cond_timedwait(c, m, &t);
    } else {
        pthread_cond_wait(c, m);
    }
    ledger_tell(m, HELD, 0);
}

static void *cond_user(void *x)
{
    int id = (int)(intptr_t)x;
    for (int n = 0;; n++) {
        lock(&mutexes[0], n);
        if (id % 2) {
            while (count == 0)
                cond_wait(&cond, &mutexes[0], n);
            count--;
            if (n % 2)
                pthread_cond_signal(&other_cond);
        } else {
            while (count > 2)
                cond_wait(&other_cond, &mutexes[0], n);
            count++;
            if (n % 3)
                pthread_cond_broadcast(&cond);
        }
        unlock(&mutexes[0]);
        if (id % 2 && n % 2 == 0)
            pthread_cond_signal(&other_cond);
        if (id % 2 == 0 && n % 3 == 0)
            pthread_cond_broadcast(&cond);
        ledger_beat();
        if (n % 100 == 0)
            moment(30000);
    }
    return x;
}

static void *sem_user(void *x)
{
    int id = (int)(intptr_t)x;
    for (int n = 0;; n++) {
        if (is("sem-queue")) {
            sem_wait(id % 2 ? &full : &empty);
            work(n % 40);
            sem_post(id % 2 ? &empty : &full);
        } else {
            sem_t *s = &sems[n % LOCKS];
            if (is("sem-timed")) {
                struct timespec t = soon(CLOCK_REALTIME, 100000 + n % 3 * 1000000);
                while (sem_timedwait(s, &t))
                    t = soon(CLOCK_REALTIME, 100000);
            } else {
                while (sem_wait(s))
                    ;
            }
            work(n % 40);
            if (n % 64 == 0)
                moment(50000);
            sem_post(s);
        }
        ledger_beat();
    }
    return x;
}

static void on_alarm(int signal)
{
    (void)signal;
    sem_post(&full);
}

static void *handler_waiter(void *x)
{
    for (;;) {
        while (sem_wait(&full))
            ;
        work(200);
        ledger_beat();
    }
    return x;
}

static void *barrier_user(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        work(n % 90);
        pthread_barrier_wait(&barrier);
        ledger_beat();
    }
    return x;
}

static pthread_once_t onces[4096];
static volatile int once_at;

static void once_run(void) { work(300); }

static void *once_user(void *x)
{
    for (;;) {
        int at = once_at;
        pthread_once(&onces[at % 4096], once_run);
        pthread_barrier_wait(&barrier);
        if (x == NULL) {
            static const pthread_once_t fresh = PTHREAD_ONCE_INIT;
            onces[(at + 4095) % 4096] = fresh;
            once_at = at + 1;
            ledger_beat();
        }
        pthread_barrier_wait(&barrier);
    }
    return x;
}

static void *spin_user(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        pthread_spin_lock(&spin);
        work(n % 20);
        pthread_spin_unlock(&spin);
        ledger_beat();
        if (n % 20 == 0)
            sched_yield();
    }
    return x;
}

/* A thread ends with a robust mutex in its hand; the next one makes it consistent. */
static void *dies_with_it(void *x)
{
    lock(&mutexes[0], 1);
    if (x)
        unlock(&mutexes[0]);
    ledger_gone();
    return x;
}

static void *robust_maker(void *x)
{
    for (int n = (int)(intptr_t)x;; n++) {
        pthread_t t;
        if (pthread_create(&t, NULL, dies_with_it, (void *)(intptr_t)(n % 2)))
            abort();
        lock(&mutexes[0], n);
        unlock(&mutexes[0]);
        pthread_join(t, NULL);
        ledger_beat();
    }
    return x;
}

int main(int argc, char **argv)
{
    ledger_open(argc, argv);
    kind = argv[1];
    mutex_init();
    for (int i = 0; i < LOCKS; i++) {
        pthread_rwlockattr_t attr;
        pthread_rwlockattr_init(&attr);
        if (is("rwlock-writers"))
            pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
        pthread_rwlock_init(&rwlocks[i], &attr);
        sem_init(&sems[i], 0, 1);
    }
    sem_init(&full, 0, 0);
    sem_init(&empty, 0, 2);
    pthread_barrier_init(&barrier, NULL, THREADS);
    pthread_spin_init(&spin, PTHREAD_PROCESS_PRIVATE);
    void *(*user)(void *) = is("mutex-dies") ? robust_maker : is("mutex") ? mutex_user : is("rwlock") ? rwlock_user
        : is("cond") ? cond_user : is("sem-handler") ? handler_waiter : is("sem") ? sem_user : is("barrier") ? barrier_user
        : is("once") ? once_user : is("spin") ? spin_user : NULL;
    if (!user)
        return 64;
    for (int i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pthread_create(&t, NULL, user, (void *)(intptr_t)i))
            abort();
    }
    if (is("sem-handler")) {
        struct sigaction action;
        memset(&action, 0, sizeof action);
        action.sa_handler = on_alarm;
        action.sa_flags = SA_RESTART;
        sigaction(SIGVTALRM, &action, NULL);
        sigaction(SIGUSR1, &action, NULL);
        ledger_ready();
        for (;;) {
            kill(getpid(), SIGUSR1);
            moment(200000);
        }
    }
    ledger_ready();
    for (;;)
        pause();
}
