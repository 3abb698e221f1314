/* Two threads take two mutexes in opposite order. usage: program [normal|recursive|errorcheck|adaptive|robust] */
#include "../ready.h"

static pthread_mutex_t accounts, journal;

static void init(pthread_mutex_t *mutex, const char *kind)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (!strcmp(kind, "recursive"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    else if (!strcmp(kind, "errorcheck"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    else if (!strcmp(kind, "adaptive"))
        pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    else if (!strcmp(kind, "robust"))
        pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attr);
    pthread_mutexattr_destroy(&attr);
}

static void take_both(const char *name, pthread_mutex_t *first, pthread_mutex_t *second, int mine, int theirs)
{
    ready_name(name);
    pthread_mutex_lock(first);
    ready_gate_open(mine);
    ready_gate_pass(theirs);
    ready_at(second, sizeof *second);
    pthread_mutex_lock(second);
    pthread_mutex_unlock(second);
    pthread_mutex_unlock(first);
}

static void *transfer(void *unused)
{
    take_both("transfer", &accounts, &journal, 0, 1);
    return unused;
}

static void *audit(void *unused)
{
    take_both("audit", &journal, &accounts, 1, 0);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t threads[2];
    init(&accounts, argc > 1 ? argv[1] : "normal");
    init(&journal, argc > 1 ? argv[1] : "normal");
    ready_begin(3);
    pthread_create(&threads[0], NULL, transfer, NULL);
    pthread_create(&threads[1], NULL, audit, NULL);
    ready_beyond_gates();
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}
