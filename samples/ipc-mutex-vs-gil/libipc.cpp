// Imports a buffer of another process once, and keeps what it imported in a cache under a mutex. The guard that lets go of the
// GIL is declared after the one that locks: at the end of the scope the GIL is taken back while the mutex is still held.
#define READY_EXPORT
#include "../ready.h"
#include <mutex>

// The interpreter's own, resolved when this is loaded: no headers, so that one build serves every CPython.
extern "C" void *PyEval_SaveThread(void);
extern "C" void PyEval_RestoreThread(void *);

namespace {
struct GilRelease {
    void *state = PyEval_SaveThread();
    ~GilRelease() { PyEval_RestoreThread(state); }
};
} // namespace

std::mutex ipc_import_mutex;

enum { INSIDE, IMPORTED };

extern "C" __attribute__((visibility("default"))) int import_ipc_buffer(int first)
{
    ready_beyond_gates();
    if (!first)
        ready_gate_open(IMPORTED); // the first import comes back, and finds the GIL taken
    std::lock_guard<std::mutex> lock(ipc_import_mutex);
    GilRelease no_gil;
    ready_gate_open(INSIDE);
    ready_gate_pass(IMPORTED);
    return first;
}
