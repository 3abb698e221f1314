// C++ shapes of stack, each in a wait that never ends: exceptions caught, destructors while unwinding, lambdas, std::function,
// virtual calls, call_once, a static's guard. Prints "ready" when all are there.
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

static std::mutex never;
static std::atomic<int> there;

static void wait_for_ever()
{
    there++;
    never.lock();
}

struct WaitsWhenDestroyed {
    ~WaitsWhenDestroyed() { wait_for_ever(); }
};

static void throws(int n)
{
    WaitsWhenDestroyed w;
    if (n)
        throw std::runtime_error("x" + std::to_string(n));
}

static void in_destructor()
{
    try {
        throws(3);
    } catch (const std::exception &) {
    }
}

static void in_catch()
{
    try {
        throw 5;
    } catch (int i) {
        auto f = [i] { if (i) wait_for_ever(); };
        f();
    }
}

static void in_algorithm()
{
    std::vector<std::string> words{"c", "a", "b"};
    std::sort(words.begin(), words.end(), [](const auto &a, const auto &b) {
        wait_for_ever();
        return a < b;
    });
}

static void in_function()
{
    std::function<void(int)> f = [&](int n) {
        if (n)
            f(n - 1);
        else
            wait_for_ever();
    };
    f(20);
}

static void in_once()
{
    static std::once_flag flag;
    std::call_once(flag, wait_for_ever);
}

struct Slow {
    Slow() { wait_for_ever(); }
};

static void in_static()
{
    static Slow slow;
}

struct Base {
    virtual ~Base() = default;
    virtual void call(int n) = 0;
};
template <int N> struct Derived : Base {
    void call(int n) override
    {
        char room[N * 100];
        room[n] = 0;
        if (n == 0)
            wait_for_ever();
        else
            std::unique_ptr<Base>(new Derived<N + 1>)->call(n - 1);
        there += room[n];
    }
};
template <> struct Derived<6> : Base {
    void call(int) override { wait_for_ever(); }
};

static void in_virtual() { Derived<1>().call(9); }

int main()
{
    alarm(60);
    never.lock();
    std::vector<std::thread> threads;
    for (auto body : {in_destructor, in_catch, in_algorithm, in_function, in_once, in_static, in_virtual})
        threads.emplace_back(body);
    while (there < 7)
        usleep(1000);
    std::puts("ready");
    std::fflush(stdout);
    threads[0].join();
}
