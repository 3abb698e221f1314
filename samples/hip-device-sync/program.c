/* The GPU no longer completes what it is given. A thread waits for all of the device, not for a stream of its own: hipFree and
 * hipMemcpy do so before they begin.
 * usage: program device|free|memcpy */
#include "../rocm/hip.h"

static char host[1 << 20];

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "device";
    void *stream, *memory;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipMalloc(&memory, sizeof host));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    MUST(hipMemcpy(memory, host, sizeof host, 1));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(1);
    ready_gpu();
    if (!strcmp(how, "memcpy"))
        return hipMemcpy(memory, host, sizeof host, 1);
    if (!strcmp(how, "free"))
        return hipFree(memory);
    return hipDeviceSynchronize();
}
