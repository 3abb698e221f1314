/* Stands in for the HIP runtime, whose hipModuleLoadData walks the loaded objects (HSA's code-object reader asks
 * dl_iterate_phdr where its memory comes from). Called with the GIL held, as by a binding that does not release it. */
#define READY_EXPORT
#include "../ready.h"
#include <dlfcn.h>
#include <link.h>

static int look_at_object(struct dl_phdr_info *object, size_t size, void *count)
{
    (void)object;
    (void)size;
    ++*(int *)count;
    return 0;
}

/* `image` names a library to load; none: only the walk over what is loaded. */
__attribute__((visibility("default"))) int hipModuleLoadData(void **module, const char *image)
{
    int objects = 0;
    ready_beyond_gates();
    ready_gate_open(1); /* from here on nobody else gets the GIL */
    if (image)
        *module = dlopen(image, RTLD_NOW);
    else
        dl_iterate_phdr(look_at_object, &objects);
    return objects;
}
