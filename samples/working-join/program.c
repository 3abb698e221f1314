/* Healthy: the main thread joins workers that work. */
#include "../ready.h"

static volatile unsigned long sums[2];

static void *works(void *arg)
{
    int me = (int)(intptr_t)arg;
    char name[16];
    snprintf(name, sizeof name, "works-%d", me);
    ready_name(name);
    for (unsigned long i = 0;; i++)
        sums[me] += i * i;
    return NULL;
}

int main(void)
{
    pthread_t threads[2];
    ready_begin(1);
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], NULL, works, (void *)(intptr_t)i);
    ready_beyond_gates();
    pthread_join(threads[0], NULL);
    return 0;
}
