// Two threads take two recursive mutexes of the GPU runtime in opposite orders, through two calls of its API.
#include "../ready.h"
#include <dlfcn.h>
#include <string>
#include <thread>

template <class Function> static Function *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (!found)
        _exit(71);
    return reinterpret_cast<Function *>(found);
}

int main()
{
    char self[PATH_MAX + 1] = {};
    if (readlink("/proc/self/exe", self, PATH_MAX) <= 0)
        return 71;
    std::string path(self);
    void *hip = dlopen((path.substr(0, path.rfind('/')) + "/libamdhip64.so").c_str(), RTLD_NOW);
    if (!hip)
        return 71;
    auto *begin = find<void(int)>(hip, "ready_begin");
    auto *synchronize = find<int(void *)>(hip, "hipEventSynchronize");
    auto *allocate = find<int(void **, size_t, void *)>(hip, "hipMallocAsync");
    begin(2);
    std::thread synchronizes([=] { ready_name("synchronizes"), synchronize(nullptr); });
    std::thread allocates([=] { ready_name("allocates"), allocate(nullptr, 1, nullptr); });
    synchronizes.join();
    allocates.join();
}
