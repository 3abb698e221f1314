/* Healthy: four threads take two mutexes in one order, again and again. */
#include "../ready.h"

static pthread_mutex_t outer = PTHREAD_MUTEX_INITIALIZER, inner = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long steps;

static void *mover(void *arg)
{
    char name[16];
    snprintf(name, sizeof name, "mover-%d", (int)(intptr_t)arg);
    ready_name(name);
    for (int i = 0;; i++) {
        pthread_mutex_lock(&outer);
        pthread_mutex_lock(&inner);
        steps++;
        pthread_mutex_unlock(&outer);
        for (volatile int k = 0; k < 200; k++)
            ;
        pthread_mutex_unlock(&inner);
    }
    return arg;
}

int main(void)
{
    enum { MOVERS = 4 };
    pthread_t thread;
    for (int i = 0; i < MOVERS; i++)
        pthread_create(&thread, NULL, mover, (void *)(intptr_t)i);
    while (steps < 1000)
        usleep(1000);
    ready_begin(0);
    for (;;)
        pause();
}
