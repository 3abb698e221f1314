/* Two function-local statics whose initialisers need each other: each thread runs one and waits for the other's. */
#include "../ready.h"

struct Table {
    explicit Table(int mine);
    int rows;
};

Table &users();
Table &groups();

/* Kept out of line, so that the initialiser is a call that an exception may pass through, as in any program of several files. */
__attribute__((noinline)) Table::Table(int mine)
{
    ready_gate_open(mine);
    ready_gate_pass(1 - mine);
    ready_beyond_gates();
    rows = (mine ? users() : groups()).rows + 1;
}

Table &users()
{
    static Table table(0);
    return table;
}

Table &groups()
{
    static Table table(1);
    return table;
}

static void *loads_users(void *unused)
{
    ready_name("loads-users");
    users();
    return unused;
}

static void *loads_groups(void *unused)
{
    ready_name("loads-groups");
    groups();
    return unused;
}

int main()
{
    pthread_t threads[2];
    ready_begin(3);
    pthread_create(&threads[0], NULL, loads_users, NULL);
    pthread_create(&threads[1], NULL, loads_groups, NULL);
    ready_beyond_gates();
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return 0;
}
