/* A GPU that needs a tenth of a second for each packet, and a thread that waits for many of them. The thread stands in the same
 * call at every look, but the queue gets on.
 * usage: program stream|free|launch|query; launch: it never waits, but for room in the queue */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "stream";
    void *stream;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_slow(100);
    ready_begin(0);
    for (;;) {
        void *more;
        MUST(hipMalloc(&more, 4096));
        for (int i = 0; i < 50; i++)
            rocm_launch(kernel, stream);
        if (!strcmp(how, "stream"))
            MUST(hipStreamSynchronize(stream));
        if (!strcmp(how, "free"))
            MUST(hipFree(more));
        while (!strcmp(how, "query") && hipStreamQuery(stream))
            ;
    }
}
