// Threads whose stacks go through many libraries, in a process that also maps whatever large libraries are named:
// large DIRECTORY COUNT THREADS LIBRARY...
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void (*step_t)(int);
typedef void (*plug_t)(step_t, int);

static plug_t plugs[1000];
static int count;
static pthread_mutex_t never = PTHREAD_MUTEX_INITIALIZER;
static volatile int waiting;

static void step(int left)
{
    volatile int keep = left;
    if (left > 0) {
        plugs[(left * 7) % count](step, left);
    } else {
        __atomic_add_fetch(&waiting, 1, __ATOMIC_SEQ_CST);
        pthread_mutex_lock(&never);
    }
    waiting += keep;
}

static void *body(void *depth)
{
    step((int)(long)depth);
    return NULL;
}

int main(int argc, char **argv)
{
    alarm(120);
    count = atoi(argv[2]);
    int threads = atoi(argv[3]);
    for (int i = 4; i < argc; i++)
        if (!dlopen(argv[i], RTLD_NOW | RTLD_LOCAL))
            fprintf(stderr, "%s\n", dlerror());
    for (int i = 1; i <= count; i++) {
        char name[512];
        snprintf(name, sizeof name, "%s/libplug%d.so", argv[1], i);
        void *library = dlopen(name, RTLD_NOW);
        snprintf(name, sizeof name, "plug%d", i);
        plugs[i - 1] = (plug_t)dlsym(library, name);
    }
    pthread_mutex_lock(&never);
    pthread_t thread;
    for (int i = 0; i < threads; i++)
        pthread_create(&thread, NULL, body, (void *)(long)(20 + i % 80));
    while (waiting < threads)
        usleep(1000);
    puts("ready");
    fflush(stdout);
    pthread_join(thread, NULL);
}
