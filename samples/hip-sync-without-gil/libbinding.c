/* A binding to HIP; its caller used ctypes.CDLL, which lets go of the GIL around each call. */
#define READY_EXPORT
#include "../ready.h"
#include "../rocm/code_object.h"

int hipInit(unsigned flags);
int hipModuleLoadData(void **module, const void *image);
int hipModuleGetFunction(void **function, void *module, const char *name);
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra);
int hipStreamCreate(void **stream);
int hipStreamSynchronize(void *stream);

static void *kernel, *stream;

READY_API int launch(void)
{
    return hipModuleLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, NULL, NULL);
}

READY_API int prepare(void)
{
    void *module;
    return hipInit(0) || hipModuleLoadData(&module, code_object("producer")) ||
           hipModuleGetFunction(&kernel, module, "producer") || hipStreamCreate(&stream) || launch() ||
           hipStreamSynchronize(stream);
}

READY_API int synchronize(void)
{
    ready_gpu();
    ready_gate_open(0);
    return hipStreamSynchronize(stream);
}
