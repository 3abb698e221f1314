/* The GPU no longer completes what it is given. A stream waits for an event of a second one (hipStreamWaitEvent), that for one of
 * a third; a thread waits for the first. What it really waits for is the oldest kernel of the last. */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    void *stream[3], *event[3];
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    for (int i = 0; i < 3; i++) {
        MUST(hipStreamCreate(&stream[i]));
        MUST(hipEventCreate(&event[i]));
        rocm_launch(kernel, stream[i]);
    }
    MUST(hipDeviceSynchronize());
    fakekfd_freeze();
    for (int i = 0; i < 3; i++) {
        if (i)
            MUST(hipStreamWaitEvent(stream[i], event[i - 1], 0));
        for (int n = 0; n < 3 - i; n++)
            rocm_launch(kernel, stream[i]);
        MUST(hipEventRecord(event[i], stream[i]));
    }
    ready_begin(1);
    ready_gpu();
    return hipStreamSynchronize(stream[2]);
}
