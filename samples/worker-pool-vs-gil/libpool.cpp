// A pool of native threads that verify nested operations; each calls back into Python. The caller waits for all of them,
// and was called with the GIL held.
#define READY_EXPORT
#include "../ready.h"
#include <condition_variable>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

extern "C" int PyGILState_Ensure(void);
extern "C" void PyGILState_Release(int);
extern "C" int PyRun_SimpleString(const char *);

namespace {
struct Pool {
    std::mutex mutex;
    std::condition_variable idle;
    int running = 0;
    std::vector<std::thread> threads;

    void run(const char *callback, int worker)
    {
        ready_name(("pool-worker-" + std::to_string(worker)).c_str());
        ready_beyond_gates();
        int gil = PyGILState_Ensure();
        PyRun_SimpleString(callback);
        PyGILState_Release(gil);
        std::lock_guard<std::mutex> lock(mutex);
        if (--running == 0)
            idle.notify_all();
    }

    void wait()
    {
        std::unique_lock<std::mutex> lock(mutex);
        ready_at(&idle, sizeof idle);
        idle.wait(lock, [this] { return running == 0; });
    }
};
} // namespace

extern "C" __attribute__((visibility("default"))) int verify_nested(const char *callback, int workers)
{
    static Pool pool;
    pool.running = workers;
    for (int i = 0; i < workers; i++)
        pool.threads.emplace_back(&Pool::run, &pool, callback, i);
    pool.wait();
    return 0;
}
