/* hip.h: HIP and HSA for the samples, in whichever generation this place has, without their headers.
 *
 * rocm_begin() starts the program anew with libfakekfd.so preloaded, whose devices lie in the working directory; it returns in
 * the second life, with HIP loaded.
 */
#ifndef HANGSCOPE_HIP_H
#define HANGSCOPE_HIP_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "../ready.h"
#include "code_object.h"
#include <dlfcn.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* The calls that the samples make: result, name, parameters. hipError_t is an int; modules, streams and events are pointers. */
#define HIP_CALLS(CALL)                                                                                                \
    CALL(int, hipInit, (unsigned flags))                                                                               \
    CALL(int, hipSetDeviceFlags, (unsigned flags))                                                                     \
    CALL(int, hipModuleLoadData, (void **module, const void *image))                                                   \
    CALL(int, hipModuleUnload, (void *module))                                                                         \
    CALL(int, hipModuleGetFunction, (void **function, void *module, const char *name))                                 \
    CALL(int, hipModuleLaunchKernel, (void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, \
                                      unsigned bz, unsigned shared, void *stream, void **arguments, void **extra))     \
    CALL(int, hipStreamCreate, (void **stream))                                                                        \
    CALL(int, hipStreamCreateWithFlags, (void **stream, unsigned flags))                                               \
    CALL(int, hipStreamSynchronize, (void *stream))                                                                    \
    CALL(int, hipStreamQuery, (void *stream))                                                                          \
    CALL(int, hipStreamWaitEvent, (void *stream, void *event, unsigned flags))                                         \
    CALL(int, hipStreamDestroy, (void *stream))                                                                        \
    CALL(int, hipDeviceSynchronize, (void))                                                                            \
    CALL(int, hipEventCreate, (void **event))                                                                          \
    CALL(int, hipEventRecord, (void *event, void *stream))                                                             \
    CALL(int, hipEventSynchronize, (void *event))                                                                      \
    CALL(int, hipMalloc, (void **memory, size_t size))                                                                 \
    CALL(int, hipFree, (void *memory))                                                                                 \
    CALL(int, hipMemcpy, (void *to, const void *from, size_t size, int kind))                                          \
    CALL(int, hipMemcpyAsync, (void *to, const void *from, size_t size, int kind, void *stream))                       \
    CALL(int, hipStreamAddCallback, (void *stream, void (*function)(void *, int, void *), void *data, unsigned flags))   \
    CALL(int, hipLaunchHostFunc, (void *stream, void (*function)(void *), void *data))                                 \
    CALL(int, hipHostMalloc, (void **memory, size_t size, unsigned flags))                                             \
    CALL(int, hipStreamBeginCapture, (void *stream, int mode))                                                         \
    CALL(int, hipStreamEndCapture, (void *stream, void **graph))                                                       \
    CALL(int, hipGraphInstantiate, (void **exec, void *graph, void **node, char *log, size_t size))                    \
    CALL(int, hipGraphLaunch, (void *exec, void *stream))

/* The HSA calls. A signal is a 64-bit handle; a condition one of these. */
enum { HSA_EQ, HSA_NE, HSA_LT, HSA_GTE };
#define HSA_CALLS(CALL)                                                                                                \
    CALL(int, hsa_init, (void))                                                                                        \
    CALL(int, hsa_signal_create, (int64_t initial, uint32_t consumers, const void *agents, uint64_t *signal))          \
    CALL(int, hsa_signal_destroy, (uint64_t signal))                                                                   \
    CALL(int64_t, hsa_signal_wait_scacquire, (uint64_t signal, int condition, int64_t value, uint64_t timeout, int how)) \
    CALL(uint32_t, hsa_amd_signal_wait_any, (uint32_t count, const uint64_t *signals, const int *conditions,           \
                                             const int64_t *values, uint64_t timeout, int how, int64_t *value))        \
    CALL(void, hsa_signal_store_screlease, (uint64_t signal, int64_t value))                                           \
    CALL(int, hsa_amd_signal_async_handler, (uint64_t signal, int condition, int64_t value,                            \
                                             bool (*handler)(int64_t, void *), void *data))                            \
    CALL(int, hsa_iterate_agents, (int (*callback)(uint64_t, void *), void *data))                                     \
    CALL(int, hsa_agent_get_info, (uint64_t agent, int attribute, void *value))                                        \
    CALL(int, hsa_queue_create, (uint64_t agent, uint32_t size, uint32_t type, void *callback, void *data,             \
                                 uint32_t private_size, uint32_t group_size, void **queue))

#define CALL(result, name, parameters) static __attribute__((unused)) result(*name) parameters;
HIP_CALLS(CALL)
HSA_CALLS(CALL)
#undef CALL
static void (*fakekfd_freeze)(void) __attribute__((unused));
static void (*fakekfd_take)(void) __attribute__((unused));
static void (*fakekfd_slow)(uint32_t ms) __attribute__((unused));
static void *(*fakekfd_pending_queue)(int n) __attribute__((unused));

/* No sample goes on after a call that failed. */
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        int error_ = call;                                                                                             \
        if (error_) {                                                                                                  \
            dprintf(2, "%s:%d: %s: error %d\n", __FILE__, __LINE__, #call, error_);                                    \
            _exit(71);                                                                                                 \
        }                                                                                                              \
    } while (0)

static __attribute__((unused)) void *rocm_load(const char *one, const char *other)
{
    void *library = dlopen(one, RTLD_NOW | RTLD_GLOBAL);
    if (!library && other)
        library = dlopen(other, RTLD_NOW | RTLD_GLOBAL);
    if (!library) {
        dprintf(2, "%s\n", dlerror());
        _exit(71);
    }
    return library;
}

/* Loads HSA, and HIP where wanted; neither is initialised. */
static __attribute__((unused)) void rocm_open(bool hip)
{
    void *hsa = rocm_load("libhsa-runtime64.so.1", NULL);
    void *library = hip ? dlopen("libamdhip64.so.7", RTLD_NOW | RTLD_GLOBAL) : NULL;
    if (hip && !library)
        library = rocm_load("libamdhip64.so.6", "libamdhip64.so.5");
#define CALL(result, name, parameters) *(void **)&name = library ? dlsym(library, #name) : NULL;
    HIP_CALLS(CALL)
#undef CALL
#define CALL(result, name, parameters) *(void **)&name = dlsym(hsa, #name);
    HSA_CALLS(CALL)
#undef CALL
    *(void **)&fakekfd_freeze = dlsym(RTLD_DEFAULT, "fakekfd_freeze");
    *(void **)&fakekfd_take = dlsym(RTLD_DEFAULT, "fakekfd_take");
    *(void **)&fakekfd_slow = dlsym(RTLD_DEFAULT, "fakekfd_slow");
    *(void **)&fakekfd_pending_queue = dlsym(RTLD_DEFAULT, "fakekfd_pending_queue");
    if (!fakekfd_freeze || !fakekfd_take || !fakekfd_pending_queue)
        _exit(71);
}

static __attribute__((unused)) void rocm_begin(char **argv)
{
    char self[PATH_MAX], preload[PATH_MAX + 32], devices[PATH_MAX];
    if (dlsym(RTLD_DEFAULT, "fakekfd_freeze"))
        return;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0 || !getcwd(devices, sizeof devices - 16))
        _exit(71);
    self[n] = 0;
    snprintf(preload, sizeof preload, "%.*s/libfakekfd.so", (int)(strrchr(self, '/') - self), self);
    strcat(devices, "/no-gpu");
    setenv("LD_PRELOAD", preload, 1);
    setenv("FAKEKFD_ROOT", devices, 1);
    setenv("HSA_ENABLE_SDMA", "0", 0); /* copies go through packets */
    execv(self, argv);
    _exit(71);
}

/* Whoever opens this file of the devices from now on waits for ever. */
static __attribute__((unused)) void rocm_stall(const char *file)
{
    char path[512];
    snprintf(path, sizeof path, "no-gpu/%s", file);
    if (unlink(path) || mkfifo(path, 0600))
        _exit(71);
}

/* The kernel of a module that is loaded now. */
static __attribute__((unused)) void *rocm_kernel(const char *name)
{
    void *module = NULL, *function = NULL;
    MUST(hipModuleLoadData(&module, code_object(name)));
    MUST(hipModuleGetFunction(&function, module, name));
    return function;
}

static __attribute__((unused)) void rocm_launch(void *kernel, void *stream)
{
    MUST(hipModuleLaunchKernel(kernel, 1, 1, 1, 64, 1, 1, 0, stream, NULL, NULL));
}

#endif
