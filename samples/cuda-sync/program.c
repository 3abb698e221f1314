/* A mutex held across the wait for a CUDA stream; two threads want it. */
#include "../ready.h"
#include <dlfcn.h>
#include <sys/syscall.h>

static pthread_mutex_t batch = PTHREAD_MUTEX_INITIALIZER;
enum { TAKEN };

static void *wants(void *name)
{
    ready_name(name);
    ready_gate_pass(TAKEN);
    ready_at(&batch, sizeof batch);
    pthread_mutex_lock(&batch);
    pthread_mutex_unlock(&batch);
    return NULL;
}

int main(int argc, char **argv)
{
    char path[PATH_MAX];
    pthread_t threads[2];
    char *slash = strrchr(argv[0], '/');
    (void)argc;
    snprintf(path, sizeof path, "%.*slibcuda.so", slash ? (int)(slash + 1 - argv[0]) : 0, argv[0]);
    void *cuda = dlopen(path, RTLD_NOW);
    if (cuda == NULL)
        abort();
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
    int (*synchronize)(void *) = (int (*)(void *))dlsym(cuda, "cuStreamSynchronize");
    if (init(0))
        abort();
    ready_begin(3);
    pthread_create(&threads[0], NULL, wants, "wants-0");
    pthread_create(&threads[1], NULL, wants, "wants-1");
    pthread_mutex_lock(&batch);
    ready_gate_open(TAKEN);
    ready_in_call(SYS_poll);
    int failed = synchronize(NULL);
    pthread_mutex_unlock(&batch);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    return failed;
}
