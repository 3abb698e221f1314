// Stands in for HIP 7, whose locks are recursive mutexes: hipEventSynchronize frees memory under the device's lock and wants
// the pool's; hipMallocAsync grows a pool under the pool's lock and wants the device's.
#define READY_EXPORT
#include "../ready.h"
#include <mutex>

namespace {
std::recursive_mutex device_lock, pool_lock;
}

extern "C" __attribute__((visibility("default"))) int hipEventSynchronize(void *)
{
    std::lock_guard<std::recursive_mutex> device(device_lock);
    std::lock_guard<std::recursive_mutex> again(device_lock);
    ready_gate_open(0);
    ready_gate_pass(1);
    ready_at(&pool_lock, sizeof pool_lock);
    std::lock_guard<std::recursive_mutex> pool(pool_lock);
    return 0;
}

extern "C" __attribute__((visibility("default"))) int hipMallocAsync(void **, size_t, void *)
{
    std::lock_guard<std::recursive_mutex> pool(pool_lock);
    ready_gate_open(1);
    ready_gate_pass(0);
    ready_at(&device_lock, sizeof device_lock);
    std::lock_guard<std::recursive_mutex> device(device_lock);
    return 0;
}
