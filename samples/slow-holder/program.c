/* Healthy: one thread computes for long under a mutex that three others wait for. */
#include "../ready.h"

static pthread_mutex_t results = PTHREAD_MUTEX_INITIALIZER;
static volatile unsigned long sum;
enum { TAKEN };

static void *computes(void *unused)
{
    ready_name("computes");
    pthread_mutex_lock(&results);
    ready_gate_open(TAKEN);
    for (unsigned long i = 0;; i++)
        sum += i * i;
    return unused;
}

static void *wants(void *name)
{
    ready_name(name);
    ready_gate_pass(TAKEN);
    ready_at(&results, sizeof results);
    pthread_mutex_lock(&results);
    return NULL;
}

int main(void)
{
    pthread_t threads[4];
    ready_begin(4);
    pthread_create(&threads[0], NULL, computes, NULL);
    pthread_create(&threads[1], NULL, wants, "wants-0");
    pthread_create(&threads[2], NULL, wants, "wants-1");
    pthread_create(&threads[3], NULL, wants, "wants-2");
    ready_beyond_gates();
    pthread_join(threads[0], NULL);
    return 0;
}
