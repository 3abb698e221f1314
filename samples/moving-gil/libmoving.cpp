// A well-behaved extension: the GIL is let go of before the mutex is taken, and taken back after it was given back.
#define READY_EXPORT
#include "../ready.h"
#include <mutex>

extern "C" void *PyEval_SaveThread(void);
extern "C" void PyEval_RestoreThread(void *);

std::mutex cache_mutex;
static volatile unsigned long steps;

extern "C" __attribute__((visibility("default"))) unsigned long count_step(void)
{
    void *state = PyEval_SaveThread();
    {
        std::lock_guard<std::mutex> lock(cache_mutex);
        steps = steps + 1;
    }
    PyEval_RestoreThread(state);
    return steps;
}
