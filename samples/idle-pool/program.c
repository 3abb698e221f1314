/* Healthy: four workers wait for jobs, and the main thread for a signal. */
#include "../ready.h"

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER;
static int jobs;

static void *worker(void *arg)
{
    char name[16];
    snprintf(name, sizeof name, "worker-%d", (int)(intptr_t)arg);
    ready_name(name);
    ready_at(&work, sizeof work);
    pthread_mutex_lock(&mutex);
    while (jobs == 0)
        pthread_cond_wait(&work, &mutex);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

int main(void)
{
    enum { WORKERS = 4 };
    pthread_t thread;
    ready_begin(WORKERS);
    for (int i = 0; i < WORKERS; i++)
        pthread_create(&thread, NULL, worker, (void *)(intptr_t)i);
    for (;;)
        pause();
}
