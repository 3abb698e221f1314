/* Two processes take two mutexes in shared memory in opposite order. */
#include "../ready.h"
#include <signal.h>
#include <sys/mman.h>

struct shared {
    pthread_mutex_t accounts, journal;
};

/* Does the process sleep on a futex in this object? */
static int sleeps_on(pid_t pid, const void *object, size_t size)
{
    char path[64], text[128], *rest;
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = 0;
    if (strtol(text, &rest, 10) != SYS_futex)
        return 0;
    uintptr_t word = strtoull(rest, NULL, 16);
    return (uintptr_t)object <= word && word < (uintptr_t)object + size;
}

int main(void)
{
    struct shared *both = mmap(NULL, sizeof *both, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&both->accounts, &attr);
    pthread_mutex_init(&both->journal, &attr);
    pthread_mutex_lock(&both->accounts);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        ready_name("audit");
        pthread_mutex_lock(&both->journal);
        pthread_mutex_lock(&both->accounts);
        return 0;
    }
    struct timespec moment = { 0, 1000000 };
    while (!sleeps_on(child, &both->accounts, sizeof both->accounts))
        nanosleep(&moment, NULL);
    ready_begin(1);
    ready_name("transfer");
    ready_at(&both->journal, sizeof both->journal);
    pthread_mutex_lock(&both->journal);
    return 0;
}
