/* A callback of dl_iterate_phdr wants a mutex whose holder enters the loader. usage: program [walk|dlopen] */
#include "../ready.h"
#include <dlfcn.h>
#include <link.h>

static pthread_mutex_t symbols = PTHREAD_MUTEX_INITIALIZER;
static int opens;
enum { IN_CALLBACK, TAKEN };

static int on_object(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)object;
    (void)size;
    ready_gate_open(IN_CALLBACK);
    ready_gate_pass(TAKEN);
    ready_at(&symbols, sizeof symbols);
    pthread_mutex_lock(&symbols);
    pthread_mutex_unlock(&symbols);
    return data != NULL;
}

static int count_object(struct dl_phdr_info *object, size_t size, void *data)
{
    (void)object;
    (void)size;
    ++*(int *)data;
    return 0;
}

static void *walks(void *unused)
{
    ready_name("walks");
    dl_iterate_phdr(on_object, NULL);
    return unused;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    int objects = 0;
    opens = argc > 1 && !strcmp(argv[1], "dlopen");
    ready_begin(2);
    pthread_create(&thread, NULL, walks, NULL);
    ready_gate_pass(IN_CALLBACK);
    pthread_mutex_lock(&symbols);
    ready_gate_open(TAKEN);
    ready_beyond_gates();
    if (opens)
        dlopen("libBrokenLocale.so.1", RTLD_NOW);
    else
        dl_iterate_phdr(count_object, &objects);
    pthread_mutex_unlock(&symbols);
    pthread_join(thread, NULL);
    return objects == 0;
}
