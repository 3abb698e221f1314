/* A deadlock through the GPU. MainThread holds a mutex and waits for a stream; the stream waits for a host callback, which HSA's
 * event thread runs, and that wants the mutex. */
#include "../rocm/hip.h"

static pthread_mutex_t results_mutex = PTHREAD_MUTEX_INITIALIZER;

static void on_results(void *stream, int status, void *unused)
{
    (void)stream;
    (void)status;
    (void)unused;
    ready_name("callback");
    ready_at(&results_mutex, sizeof results_mutex);
    pthread_mutex_lock(&results_mutex);
    pthread_mutex_unlock(&results_mutex);
}

int main(int argc, char **argv)
{
    void *stream;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    ready_begin(2);
    pthread_mutex_lock(&results_mutex);
    rocm_launch(kernel, stream);
    MUST(hipStreamAddCallback(stream, on_results, NULL, 0));
    rocm_launch(kernel, stream);
    ready_gpu();
    return hipStreamSynchronize(stream);
}
