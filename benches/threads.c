/* Threads that wait for one mutex which main holds. usage: threads COUNT */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *waiter(void *unused)
{
    pthread_mutex_lock(&mutex);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    alarm(120);
    pthread_mutex_lock(&mutex);
    for (int i = argc > 1 ? atoi(argv[1]) : 1; i > 1; i--)
        if (pthread_create(&thread, NULL, waiter, NULL))
            abort();
    sleep(1);
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
