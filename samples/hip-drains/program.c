/* A GPU that does its work: again and again a few launches, a copy and a wait for them. Nothing is stuck at any moment. */
#include "../rocm/hip.h"

static char host[1 << 16];

int main(int argc, char **argv)
{
    void *stream, *memory;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    MUST(hipMalloc(&memory, sizeof host));
    ready_begin(0);
    for (;;) {
        for (int i = 0; i < 4; i++)
            rocm_launch(kernel, stream);
        MUST(hipStreamSynchronize(stream));
        MUST(hipMemcpy(memory, host, sizeof host, 1));
    }
}
