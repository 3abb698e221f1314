/* Three threads, three mutexes, each wants its neighbour's. */
#include "../ready.h"

enum { RING = 3 };
static pthread_mutex_t forks[RING] = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER };

static void *dine(void *arg)
{
    int me = (int)(intptr_t)arg;
    char name[16];
    snprintf(name, sizeof name, "philosopher-%d", me);
    ready_name(name);
    pthread_mutex_lock(&forks[me]);
    ready_gate_open(me);
    for (int i = 0; i < RING; i++)
        ready_gate_pass(i);
    ready_at(&forks[(me + 1) % RING], sizeof forks[0]);
    pthread_mutex_lock(&forks[(me + 1) % RING]);
    pthread_mutex_unlock(&forks[(me + 1) % RING]);
    pthread_mutex_unlock(&forks[me]);
    return NULL;
}

int main(void)
{
    pthread_t threads[RING];
    ready_begin(RING + 1);
    for (int i = 0; i < RING; i++)
        pthread_create(&threads[i], NULL, dine, (void *)(intptr_t)i);
    ready_beyond_gates();
    for (int i = 0; i < RING; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
