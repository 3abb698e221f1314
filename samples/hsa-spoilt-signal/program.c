/* As in hsa-signal-wait, a thread waits for a signal; then another thread makes the signal look freed, or scribbles over it.
 * usage: program freed|magic|kind|event|value */
#include "../rocm/hip.h"

/* amd_signal_t and what HSA keeps after it */
struct signal {
    int64_t kind, value;
    uint64_t mailbox;
    uint32_t event, reserved;
    uint64_t start, end, queue, more[2], object, magic;
};

static const char *how;
static uint64_t signal_handle;

static void *scribble(void *unused)
{
    struct signal *s = (struct signal *)signal_handle;
    (void)unused;
    _Static_assert(offsetof(struct signal, magic) == 80, "SharedSignal");
    ready_behind(0);
    if (!strcmp(how, "freed"))
        s->kind = 0; /* as in the pool of those that nobody uses */
    if (!strcmp(how, "magic"))
        s->magic = 0x7171717171717171ull;
    if (!strcmp(how, "kind"))
        s->kind = 0x7171;
    if (!strcmp(how, "event"))
        s->event = 0xffffffff;
    if (!strcmp(how, "value"))
        s->value = INT64_MAX;
    ready_gone();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    how = argc > 1 ? argv[1] : "freed";
    rocm_begin(argv);
    rocm_open(false);
    MUST(hsa_init());
    MUST(hsa_signal_create(1, 0, NULL, &signal_handle));
    fakekfd_freeze();
    ready_begin(2);
    MUST(pthread_create(&thread, NULL, scribble, NULL));
    ready_gpu_asleep();
    return (int)hsa_signal_wait_scacquire(signal_handle, HSA_LT, 1, UINT64_MAX, 0);
}
