/* A binding to HIP, as a Python extension has it: whoever calls it through ctypes.PyDLL keeps the GIL. */
#define READY_EXPORT
#include "../ready.h"
#include "../rocm/code_object.h"

int hipInit(unsigned flags);
int hipModuleLoadData(void **module, const void *image);

/* The first module: what HIP loads and starts at its first use is there after it. */
READY_API int prepare(void)
{
    void *module;
    int error = hipInit(0);
    return error ? error : hipModuleLoadData(&module, code_object("vector_add"));
}

READY_API int load_module(void)
{
    void *module = NULL;
    const void *image = code_object("vector_scale");
    ready_beyond_gates();
    ready_gate_open(1); /* from here on nobody else gets the GIL */
    return hipModuleLoadData(&module, image);
}
