/* The GPU no longer completes what it is given. A thread waits for it in one of the calls of HIP that wait.
 * usage: program stream|event|taken|blocking; taken: the GPU has begun with the first of the packets;
 * blocking: HIP was told to sleep in its waits, and does so now and then */
#include "../rocm/hip.h"

static char host[1 << 20];

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "stream";
    void *stream, *event, *memory;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    if (!strcmp(how, "blocking"))
        MUST(hipSetDeviceFlags(4)); /* hipDeviceScheduleBlockingSync */
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipEventCreate(&event));
    MUST(hipMalloc(&memory, sizeof host));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream)); /* as long as the GPU is well, this ends */
    MUST(hipMemcpy(memory, host, sizeof host, 1));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    MUST(hipEventRecord(event, stream));
    if (!strcmp(how, "taken"))
        fakekfd_take();
    ready_begin(1);
    ready_gpu();
    if (!strcmp(how, "event"))
        return hipEventSynchronize(event);
    return hipStreamSynchronize(stream);
}
