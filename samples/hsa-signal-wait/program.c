/* A thread waits for an HSA signal that nobody completes: asleep in the kernel, spinning, looking at it every
 * 20 microseconds as HSA does without interrupts, or for any of two.
 * usage: program [asleep|spinning|looking|any] */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    const char *how = argc > 1 ? argv[1] : "asleep";
    uint64_t signals[3];
    rocm_begin(argv);
    rocm_open(false);
    if (!strcmp(how, "looking"))
        setenv("HSA_ENABLE_INTERRUPT", "0", 1);
    MUST(hsa_init());
    for (int i = 0; i < 3; i++)
        MUST(hsa_signal_create(i + 1, 0, NULL, &signals[i]));
    fakekfd_freeze();
    ready_begin(1);
    if (!strcmp(how, "any")) {
        int conditions[] = { HSA_EQ, HSA_LT };
        int64_t values[] = { 0, 1 }, value;
        ready_gpu_asleep();
        return (int)hsa_amd_signal_wait_any(2, &signals[1], conditions, values, UINT64_MAX, 0, &value);
    }
    bool spin = !strcmp(how, "spinning");
    if (spin)
        ready_gpu_spins();
    else if (!strcmp(how, "looking"))
        ready_gpu();
    else
        ready_gpu_asleep();
    return (int)hsa_signal_wait_scacquire(signals[1], HSA_LT, 1, UINT64_MAX, spin);
}
