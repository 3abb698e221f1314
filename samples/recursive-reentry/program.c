/* Healthy: a recursive mutex is taken again by its owner, who then waits for work under it; an error-checking one refuses. */
#include "../ready.h"
#include <errno.h>

static pthread_mutex_t recursive, checking;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static int jobs;

static __attribute__((noinline)) void descend(int depth)
{
    pthread_mutex_lock(&recursive);
    if (depth)
        descend(depth - 1);
    else {
        pthread_mutex_lock(&mutex);
        ready_at(&work, sizeof work);
        while (jobs == 0)
            pthread_cond_wait(&work, &mutex);
        pthread_mutex_unlock(&mutex);
    }
    pthread_mutex_unlock(&recursive);
}

static void *reenters(void *unused)
{
    ready_name("re-enters");
    pthread_mutex_lock(&checking);
    if (pthread_mutex_lock(&checking) != EDEADLK)
        abort();
    descend(4);
    return unused;
}

int main(void)
{
    pthread_t thread;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&recursive, &attr);
    pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    pthread_mutex_init(&checking, &attr);
    ready_begin(1);
    pthread_create(&thread, NULL, reenters, NULL);
    for (;;)
        pause();
}
