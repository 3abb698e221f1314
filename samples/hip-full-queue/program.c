/* The GPU no longer completes what it is given, and a thread goes on launching kernels, without waiting for any: until the queue
 * is full. HIP then polls until there is room. */
#include "../rocm/hip.h"

struct queue { /* amd_queue_t */
    uint32_t more[6], size, others[7];
    uint64_t write_index, aside[8], read_index;
};

static void *watch(void *unused)
{
    (void)unused;
    _Static_assert(offsetof(struct queue, write_index) == 56 && offsetof(struct queue, read_index) == 128, "amd_queue_t");
    ready_behind(0);
    volatile struct queue *q;
    while (!(q = fakekfd_pending_queue(0)) || q->write_index - q->read_index < q->size)
        usleep(1000);
    ready_gone();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    void *stream;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    ready_begin(2);
    MUST(pthread_create(&thread, NULL, watch, NULL));
    ready_gpu();
    for (;;)
        rocm_launch(kernel, stream);
}
