/* A thread ends without giving its mutex back; two others wait for it. */
#include "../ready.h"

static pthread_mutex_t table = PTHREAD_MUTEX_INITIALIZER;

static void *leaver(void *unused)
{
    ready_name("leaver");
    pthread_mutex_lock(&table);
    ready_gone();
    return unused;
}

static void *waiter(void *name)
{
    ready_name(name);
    ready_at(&table, sizeof table);
    pthread_mutex_lock(&table);
    pthread_mutex_unlock(&table);
    return NULL;
}

int main(void)
{
    pthread_t left, waits[2];
    ready_begin(4);
    pthread_create(&left, NULL, leaver, NULL);
    pthread_join(left, NULL);
    pthread_create(&waits[0], NULL, waiter, "waiter-0");
    pthread_create(&waits[1], NULL, waiter, "waiter-1");
    ready_beyond_gates();
    pthread_join(waits[0], NULL);
    pthread_join(waits[1], NULL);
    return 0;
}
