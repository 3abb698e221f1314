/* Healthy, if slow: two threads take two mutexes in opposite order, but each gives up after a while and begins again. */
#include "../ready.h"

static pthread_mutex_t first = PTHREAD_MUTEX_INITIALIZER, second = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t round_begins;

static void try_both(const char *name, pthread_mutex_t *mine, pthread_mutex_t *theirs, int milliseconds)
{
    ready_name(name);
    for (;;) {
        pthread_mutex_lock(mine);
        pthread_barrier_wait(&round_begins);
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += milliseconds * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        if (pthread_mutex_timedlock(theirs, &until) == 0)
            pthread_mutex_unlock(theirs);
        pthread_mutex_unlock(mine);
    }
}

static void *patient(void *unused)
{
    ready_at(&second, sizeof second);
    try_both("patient", &first, &second, 900);
    return unused;
}

static void *hasty(void *unused)
{
    ready_at(&first, sizeof first);
    try_both("hasty", &second, &first, 700);
    return unused;
}

int main(void)
{
    pthread_t thread;
    pthread_barrier_init(&round_begins, NULL, 2);
    ready_begin(2);
    pthread_create(&thread, NULL, patient, NULL);
    pthread_create(&thread, NULL, hasty, NULL);
    for (;;)
        pause();
}
