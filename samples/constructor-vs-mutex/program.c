/* A constructor under dlopen wants a mutex whose holder calls dlopen. */
#include "../ready.h"
#include <dlfcn.h>

static pthread_mutex_t plugins = PTHREAD_MUTEX_INITIALIZER;
enum { IN_CONSTRUCTOR, TAKEN };

__attribute__((visibility("default"))) void register_plugin(const char *name)
{
    (void)name;
    ready_gate_open(IN_CONSTRUCTOR);
    ready_gate_pass(TAKEN);
    ready_at(&plugins, sizeof plugins);
    pthread_mutex_lock(&plugins);
    pthread_mutex_unlock(&plugins);
}

static void *loads(void *program)
{
    char path[PATH_MAX];
    ready_name("loads");
    char *slash = strrchr(program, '/');
    snprintf(path, sizeof path, "%.*slibplugin.so", slash ? (int)(slash + 1 - (char *)program) : 0, (char *)program);
    if (dlopen(path, RTLD_NOW) == NULL)
        abort();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    (void)argc;
    ready_begin(2);
    pthread_create(&thread, NULL, loads, argv[0]);
    ready_gate_pass(IN_CONSTRUCTOR);
    pthread_mutex_lock(&plugins);
    ready_gate_open(TAKEN);
    ready_beyond_gates();
    dlopen("libBrokenLocale.so.1", RTLD_NOW);
    pthread_mutex_unlock(&plugins);
    pthread_join(thread, NULL);
    return 0;
}
