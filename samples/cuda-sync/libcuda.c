/* Stands in for CUDA's driver, of which only the names are public: it sleeps in poll, as the driver does where blocking
 * synchronisation was asked for. */
#include <poll.h>
#include <unistd.h>

static int nothing_comes[2];

__attribute__((visibility("default"))) int cuInit(unsigned flags)
{
    (void)flags;
    return pipe(nothing_comes);
}

static __attribute__((noinline)) int wait_for_interrupt(void)
{
    struct pollfd interrupt = { .fd = nothing_comes[0], .events = POLLIN };
    return poll(&interrupt, 1, -1) < 0;
}

__attribute__((visibility("default"))) int cuStreamSynchronize(void *stream)
{
    (void)stream;
    int failed = wait_for_interrupt();
    __asm__ volatile("" ::: "memory"); /* no jump: CUDA's exported names are on the stack */
    return failed;
}
