/* HSA's event thread watches a signal that may still be completed: that is its rest. The program waits for a signal of Unix. */
#include "../rocm/hip.h"

static bool on_value(int64_t value, void *data)
{
    (void)value;
    (void)data;
    return true;
}

int main(int argc, char **argv)
{
    uint64_t signal;
    (void)argc;
    rocm_begin(argv);
    rocm_open(false);
    MUST(hsa_init());
    MUST(hsa_signal_create(1, 0, NULL, &signal));
    MUST(hsa_amd_signal_async_handler(signal, HSA_LT, 1, on_value, NULL));
    ready_begin(1);
    ready_in_call(SYS_pause);
    return pause();
}
