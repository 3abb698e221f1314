// Threads that use one part of C++'s library, for ever: `program KIND LEDGER`.
#include "ledger.h"
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <latch>
#include <memory>
#include <mutex>
#include <semaphore>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

using namespace std::chrono_literals;
namespace {
constexpr int threads = 4;
std::mutex mutexes[3], together[3];
std::recursive_mutex recursive;
std::timed_mutex timed;
std::recursive_timed_mutex recursive_timed;
std::shared_mutex shared;
std::shared_timed_mutex shared_timed;
std::condition_variable cond;
std::condition_variable_any cond_any;
std::counting_semaphore<8> semaphore{2};
std::atomic<int> word{0};
int count = 0;
volatile int sink;

void work(int n)
{
    for (int i = 0; i < n; i++)
        sink = sink + i;
}

template <class L> void take(L &l) { TAKE(&l, l.lock()); }
template <class L> void give(L &l) { GIVE(&l, l.unlock()); }

void mutex_user(int n)
{
    int a = n % 3;
    take(mutexes[a]);
    work(n % 40);
    if (n % 4 == 0 && a < 2) {
        take(mutexes[a + 1]);
        give(mutexes[a + 1]);
    }
    give(mutexes[a]);
    if (n % 5 == 0) {
        std::scoped_lock all(together[0], together[2], together[1]);
        work(5);
    }
    std::lock_guard<std::recursive_mutex> one(recursive);
    std::lock_guard<std::recursive_mutex> two(recursive);
    work(3);
}

void timed_user(int n)
{
    ledger_tell(&timed, TAKING, 0);
    while (!timed.try_lock_for(std::chrono::microseconds(50 + n % 2000)))
        ;
    ledger_tell(&timed, HELD, 0);
    work(n % 50);
    if (n % 100 == 0)
        std::this_thread::sleep_for(100us);
    give(timed);
    if (recursive_timed.try_lock_until(std::chrono::system_clock::now() + 300us)) {
        work(5);
        recursive_timed.unlock();
    }
}

void shared_user(int n)
{
    if (n % 5 == 0) {
        take(shared);
        work(n % 30);
        give(shared);
    } else {
        TAKE_SHARED(&shared, shared.lock_shared());
        work(n % 30);
        GIVE(&shared, shared.unlock_shared());
    }
    if (n % 3 == 0 ? shared_timed.try_lock_for(200us) : false)
        shared_timed.unlock();
    std::shared_lock<std::shared_timed_mutex> l(shared_timed, 200us);
}

void condition_user(int n, int id)
{
    std::unique_lock<std::mutex> l(mutexes[0]);
    if (id % 2) {
        if (n % 3)
            cond.wait(l, [] { return count > 0; });
        else
            cond.wait_for(l, 500us, [] { return count > 0; });
        count = std::max(0, count - 1);
    } else {
        count = std::min(count + 1, 1000);
    }
    if (n % 2)
        cond.notify_one();
    l.unlock();
    cond.notify_all();
    std::unique_lock<std::recursive_mutex> any(recursive);
    if (n % 7 == 0)
        cond_any.wait_for(any, 100us);
    else
        cond_any.notify_one();
}

struct Slow {
    explicit Slow(int n) { work(n); }
};

template <int N> void statics(int round)
{
    static Slow slow(100);
    if constexpr (N > 0)
        statics<N - 1>(round);
}

// Each round has flags of its own; the functions' statics come once in a program's life.
void once_user(int n, std::array<std::once_flag, 4096> &flags)
{
    std::call_once(flags[static_cast<size_t>(n) % 4096], [] { work(300); });
    statics<40>(n);
    if (n % 97 == 0) {
        try {
            std::once_flag failing;
            std::call_once(failing, [] { throw 1; });
        } catch (int) {
        }
    }
}

void future_user(int n)
{
    auto one = std::async(std::launch::async, [n] { work(n % 200); return n; });
    auto two = std::async(std::launch::deferred, [n] { return n; });
    std::promise<int> promise;
    auto three = promise.get_future().share();
    std::thread setter([&promise, n] { work(n % 90); promise.set_value(n); ledger_gone(); });
    sink = one.get() + two.get() + three.get();
    std::packaged_task<int()> task([] { return 1; });
    auto four = task.get_future();
    std::thread runner(std::move(task));
    sink = four.get();
    setter.join();
    runner.join();
}

void semaphore_user(int n)
{
    if (n % 3 == 0) {
        if (!semaphore.try_acquire_for(500us))
            return;
    } else {
        semaphore.acquire();
    }
    work(n % 60);
    if (n % 64 == 0)
        std::this_thread::sleep_for(50us);
    semaphore.release();
}

void latch_user(int n)
{
    auto latch = std::make_shared<std::latch>(2);
    std::thread other([latch] { work(50); latch->arrive_and_wait(); });
    work(n % 70);
    latch->arrive_and_wait();
    other.join();
}

void atomic_user(int, int id)
{
    if (id % 2) {
        int old = word.load();
        word.wait(old);
    } else {
        word.fetch_add(1);
        word.notify_all();
    }
}

std::barrier<> meeting{threads};
std::atomic_flag flag = ATOMIC_FLAG_INIT;

void barrier_user(int n)
{
    work(n % 80);
    meeting.arrive_and_wait();
    while (flag.test_and_set())
        flag.wait(true);
    work(5);
    flag.clear();
    flag.notify_one();
}
} // namespace

int main(int argc, char **argv)
{
    ledger_open(argc, argv);
    std::string kind = argv[1];
    static std::array<std::array<std::once_flag, 4096>, 16> flags;
    auto user = [&kind](int id) {
        for (int n = id;; n++) {
            if (kind == "mutex")
                mutex_user(n);
            else if (kind == "timed")
                timed_user(n);
            else if (kind == "shared")
                shared_user(n);
            else if (kind == "condition")
                condition_user(n, id);
            else if (kind == "once")
                once_user(n, flags[static_cast<size_t>(n / 4096) % 16]);
            else if (kind == "future")
                future_user(n);
            else if (kind == "semaphore")
                semaphore_user(n);
            else if (kind == "latch")
                latch_user(n);
            else if (kind == "atomic")
                atomic_user(n, id);
            else if (kind == "barrier")
                barrier_user(n);
            else
                _exit(64);
            ledger_beat();
        }
    };
    if (kind == "once")
        ledger_ready();
    std::vector<std::thread> all;
    for (int i = 0; i < threads; i++)
        all.emplace_back(user, i);
    if (kind != "once")
        ledger_ready();
    for (auto &t : all)
        t.join();
}
