/* A callback takes the mutex its caller holds. usage: program [normal|adaptive|robust] */
#include "../ready.h"

static pthread_mutex_t registry;

static __attribute__((noinline)) void add(const char *name, void (*then)(void))
{
    if (then == NULL)
        ready_at(&registry, sizeof registry);
    pthread_mutex_lock(&registry);
    if (then)
        then();
    pthread_mutex_unlock(&registry);
    (void)name;
}

static void on_added(void)
{
    add("child", NULL);
}

static void *registrar(void *unused)
{
    ready_name("registrar");
    add("parent", on_added);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (argc > 1 && !strcmp(argv[1], "adaptive"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    else if (argc > 1 && !strcmp(argv[1], "robust"))
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&registry, &attr);
    ready_begin(2);
    pthread_create(&thread, NULL, registrar, NULL);
    ready_beyond_gates();
    pthread_join(thread, NULL);
    return 0;
}
