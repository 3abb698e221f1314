/* HIP and HSA lie beside the program and have a hash in their names, as in a Python wheel that brings its own libraries. A thread
 * waits for a stream that does not get on. */
#include "../rocm/hip.h"
#include <glob.h>

/* Copies the library and loads the copy: whoever needs it by its soname gets it. */
static void bundle(const char *pattern, const char *as)
{
    glob_t found;
    char name[PATH_MAX], buffer[1 << 16];
    if (glob(pattern, 0, NULL, &found) || !realpath(found.gl_pathv[found.gl_pathc - 1], name))
        _exit(71);
    int from = open(name, O_RDONLY | O_CLOEXEC), to = open(as, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0755);
    ssize_t n;
    while ((n = read(from, buffer, sizeof buffer)) > 0)
        if (write(to, buffer, (size_t)n) != n)
            _exit(71);
    if (n || close(from) || close(to) || !realpath(as, name))
        _exit(71);
    rocm_load(name, NULL);
    globfree(&found);
}

int main(int argc, char **argv)
{
    void *stream;
    (void)argc;
    rocm_begin(argv);
    bundle("/usr/lib/x86_64-linux-gnu/libhsa-runtime64.so.1", "libhsa-runtime64-fc1e5519.so.1");
    bundle("/usr/lib/x86_64-linux-gnu/libamdhip64.so.?", "libamdhip64-0d93ab1e.so.6.4.43484");
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(1);
    ready_gpu();
    return hipStreamSynchronize(stream);
}
