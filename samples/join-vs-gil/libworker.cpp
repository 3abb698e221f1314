// A worker with a completion callback into Python, whose destructor joins it. Destroyed with the GIL held.
#define READY_EXPORT
#include "../ready.h"
#include <thread>

extern "C" int PyGILState_Ensure(void);
extern "C" void PyGILState_Release(int);
extern "C" int PyRun_SimpleString(const char *);

namespace {
enum { HANDED_OVER };

class Worker {
    std::thread thread;

    static void complete(const char *callback)
    {
        ready_name("worker");
        ready_gate_pass(HANDED_OVER);
        ready_beyond_gates();
        int gil = PyGILState_Ensure();
        PyRun_SimpleString(callback);
        PyGILState_Release(gil);
    }

public:
    explicit Worker(const char *callback) : thread(complete, callback) {}
    ~Worker()
    {
        ready_gate_open(HANDED_OVER);
        ready_beyond_gates();
        thread.join();
    }
};
} // namespace

extern "C" __attribute__((visibility("default"))) void *worker_new(const char *callback)
{
    return new Worker(callback);
}

extern "C" __attribute__((visibility("default"))) void worker_delete(void *worker)
{
    delete static_cast<Worker *>(worker);
}
