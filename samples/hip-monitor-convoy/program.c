/* hipMemcpy waits for the GPU and keeps HIP's own lock of the stream's virtual device; three threads that only want to launch,
 * copy and record on that stream wait for it. HIP up to 5.7 is like that. */
#include "../rocm/hip.h"

static void *stream, *event, *memory, *kernel;
static char host[2][1 << 20];

static void *launches(void *unused)
{
    (void)unused;
    ready_name("launches");
    ready_behind(0);
    ready_beyond_gates();
    rocm_launch(kernel, stream);
    return NULL;
}

static void *copies(void *unused)
{
    (void)unused;
    ready_name("copies");
    ready_behind(0);
    ready_beyond_gates();
    hipMemcpyAsync(memory, host[1], sizeof host[1], 1, stream);
    return NULL;
}

static void *records(void *unused)
{
    (void)unused;
    ready_name("records");
    ready_behind(0);
    ready_beyond_gates();
    hipEventRecord(event, stream);
    return NULL;
}

int main(int argc, char **argv)
{
    void *(*const work[])(void *) = { launches, copies, records };
    pthread_t thread;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipEventCreate(&event));
    MUST(hipMalloc(&memory, sizeof host[0]));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    MUST(hipMemcpy(memory, host[0], sizeof host[0], 1));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(4);
    for (int i = 0; i < 3; i++)
        MUST(pthread_create(&thread, NULL, work[i], NULL));
    ready_gpu();
    return hipMemcpy(memory, host[0], sizeof host[0], 1);
}
