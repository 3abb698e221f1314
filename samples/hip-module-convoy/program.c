/* A module's load waits for the GPU, which copies its segments no more; it keeps a lock, of HIP or of HSA, and three other
 * threads that load modules wait for that. */
#include "../rocm/hip.h"

static const void *image;

static void *load(void *name)
{
    void *module;
    ready_name(name);
    ready_behind(0);
    ready_beyond_gates();
    hipModuleLoadData(&module, image);
    return NULL;
}

int main(int argc, char **argv)
{
    static char names[3][16] = { "loads-1", "loads-2", "loads-3" };
    void *module;
    pthread_t thread;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    rocm_kernel("vector_add");
    image = code_object("vector_add");
    fakekfd_freeze();
    ready_begin(4);
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(&thread, NULL, load, names[i]));
    ready_gpu();
    return hipModuleLoadData(&module, image);
}
