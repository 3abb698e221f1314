/* A binding to HIP whose wait for a stream keeps the GIL of a caller that used ctypes.PyDLL. */
#define READY_EXPORT
#include "../ready.h"

int hipInit(unsigned flags);
int hipStreamCreate(void **stream);
int hipStreamAddCallback(void *stream, void (*function)(void *, int, void *), void *data, unsigned flags);
int hipStreamSynchronize(void *stream);

static void *stream;

READY_API int prepare(void)
{
    return hipInit(0) || hipStreamCreate(&stream) || hipStreamSynchronize(stream);
}

READY_API int synchronize_after(void (*callback)(void *, int, void *))
{
    int error = hipStreamAddCallback(stream, callback, NULL, 0);
    ready_gpu();
    return error ? error : hipStreamSynchronize(stream);
}
