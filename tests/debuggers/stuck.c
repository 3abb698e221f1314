// Two threads wait for each other's mutex; the first thread ticks on, for a breakpoint to stop at.
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER, right = PTHREAD_MUTEX_INITIALIZER;
static pthread_barrier_t both;

static void *takes(void *reversed) {
    pthread_mutex_t *first = reversed ? &right : &left, *second = reversed ? &left : &right;
    pthread_mutex_lock(first);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(second);
    return NULL;
}

static void *idles(void *unused) {
    for (;;)
        pause();
    return unused;
}

__attribute__((noinline)) void tick(int count) {
    __asm__ volatile("" : : "r"(count) : "memory");
    usleep(20000);
}

int main(int argc, char **argv) {
    pthread_t a, b, c;
    alarm(900);
    pthread_barrier_init(&both, NULL, 3);
    pthread_create(&a, NULL, takes, NULL);
    pthread_create(&b, NULL, takes, argv);
    // as many more as are asked for
    for (int i = 1; i < argc; i++)
        for (int n = 0; n < 500; n++)
            pthread_create(&c, NULL, idles, NULL);
    pthread_barrier_wait(&both);
    printf("ready %d\n", (int)getpid());
    fflush(stdout);
    for (int i = 0;; i++)
        tick(i);
}
