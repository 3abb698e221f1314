/* Healthy: one thread initialises a function-local static, which takes long; three others wait for it. */
#include "../ready.h"

static volatile unsigned long sum;
enum { STARTED };

struct Table {
    Table();
};

__attribute__((noinline)) Table::Table()
{
    ready_gate_open(STARTED);
    for (unsigned long i = 0;; i++)
        sum += i * i;
}

static Table &table()
{
    static Table table;
    return table;
}

static void *computes(void *unused)
{
    ready_name("computes");
    table();
    return unused;
}

static void *wants(void *name)
{
    ready_name(static_cast<const char *>(name));
    ready_gate_pass(STARTED);
    ready_beyond_gates();
    table();
    return NULL;
}

int main()
{
    static char names[3][8] = { "wants-0", "wants-1", "wants-2" };
    pthread_t threads[4];
    ready_begin(4);
    pthread_create(&threads[0], NULL, computes, NULL);
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i + 1], NULL, wants, names[i]);
    ready_beyond_gates();
    pthread_join(threads[0], NULL);
    return 0;
}
