/* The GPU no longer completes what it is given, but nobody waits for it: to wait for an event that was never recorded is to
 * return at once, and then the thread waits for a signal as any idle program does. */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    void *stream, *event;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipEventCreate(&event));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(1);
    MUST(hipEventSynchronize(event));
    ready_in_call(SYS_pause);
    pause();
    return 0;
}
