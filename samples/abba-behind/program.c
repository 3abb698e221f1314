/* Two threads in a cycle, and a queue behind it: three wait for a mutex of the cycle, two for a mutex that one of those holds. */
#include "../ready.h"

static pthread_mutex_t left = PTHREAD_MUTEX_INITIALIZER, right = PTHREAD_MUTEX_INITIALIZER, far_off = PTHREAD_MUTEX_INITIALIZER;
enum { LEFT_TAKEN, RIGHT_TAKEN, FAR_OFF_TAKEN };

static void take(pthread_mutex_t *mutex)
{
    ready_at(mutex, sizeof *mutex);
    pthread_mutex_lock(mutex);
    pthread_mutex_unlock(mutex);
}

static void *goes_right(void *unused)
{
    ready_name("goes-right");
    pthread_mutex_lock(&left);
    ready_gate_open(LEFT_TAKEN);
    ready_gate_pass(RIGHT_TAKEN);
    take(&right);
    return unused;
}

static void *goes_left(void *unused)
{
    ready_name("goes-left");
    pthread_mutex_lock(&right);
    ready_gate_open(RIGHT_TAKEN);
    ready_gate_pass(LEFT_TAKEN);
    take(&left);
    return unused;
}

static void *queues(void *name)
{
    ready_name(name);
    ready_gate_pass(LEFT_TAKEN);
    take(&left);
    return NULL;
}

static void *queues_holding(void *name)
{
    ready_name(name);
    ready_gate_pass(LEFT_TAKEN);
    pthread_mutex_lock(&far_off);
    ready_gate_open(FAR_OFF_TAKEN);
    take(&left);
    return NULL;
}

static void *queues_far_off(void *name)
{
    ready_name(name);
    ready_gate_pass(FAR_OFF_TAKEN);
    take(&far_off);
    return NULL;
}

int main(void)
{
    static const struct { void *(*run)(void *); char *name; } list[] = {
        { goes_right, NULL }, { goes_left, NULL }, { queues, "queue-0" }, { queues, "queue-1" },
        { queues_holding, "queue-holds" }, { queues_far_off, "far-off-0" }, { queues_far_off, "far-off-1" },
    };
    enum { THREADS = sizeof list / sizeof list[0] };
    pthread_t threads[THREADS];
    ready_begin(THREADS + 1);
    for (int i = 0; i < THREADS; i++)
        pthread_create(&threads[i], NULL, list[i].run, list[i].name);
    ready_beyond_gates();
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
