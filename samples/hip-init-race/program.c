/* The first call of HIP initialises it, and the kernel's driver does not answer: three other threads that make a first call
 * wait for that one. The topology's file is a FIFO that nobody writes to. */
#include "../rocm/hip.h"

static void *use(void *name)
{
    ready_name(name);
    ready_behind(0);
    ready_somehow(); /* HIP 5.2 lets the first of them spin */
    hipDeviceSynchronize();
    return NULL;
}

int main(int argc, char **argv)
{
    static char names[3][16] = { "uses-1", "uses-2", "uses-3" };
    pthread_t thread;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    rocm_stall("topology/nodes/1/properties");
    ready_begin(4);
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(&thread, NULL, use, names[i]));
    ready_in_call(SYS_openat);
    return hipInit(0);
}
