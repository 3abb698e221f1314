/* The GPU no longer completes what it is given. hipFree waits for all of the device first. */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    void *stream, *memory;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipMalloc(&memory, 1 << 20));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(1);
    ready_gpu();
    return hipFree(memory);
}
