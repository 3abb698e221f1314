/* Two processes lock two files in opposite order. */
#include "../ready.h"
#include <signal.h>
#include <sys/file.h>

static int file(const char *name)
{
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        abort();
    return fd;
}

/* Does the process sleep in this system call? */
static int sleeps_in(pid_t pid, long number)
{
    char path[64], text[128] = "";
    snprintf(path, sizeof path, "/proc/%d/syscall", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    if (fd >= 0)
        close(fd);
    return n > 0 && text[0] != 'r' && strtol(text, NULL, 10) == number;
}

int main(void)
{
    char index[64], journal[64];
    snprintf(index, sizeof index, "/tmp/hangscope-%d.index", (int)getpid());
    snprintf(journal, sizeof journal, "/tmp/hangscope-%d.journal", (int)getpid());
    int mine = file(index), theirs = file(journal);
    flock(mine, LOCK_EX);
    pid_t child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
        ready_name("compactor");
        int first = file(journal), second = file(index);
        unlink(journal);
        unlink(index);
        flock(first, LOCK_EX);
        flock(second, LOCK_EX);
        return 0;
    }
    struct timespec moment = { 0, 1000000 };
    while (!sleeps_in(child, SYS_flock))
        nanosleep(&moment, NULL);
    ready_begin(1);
    ready_name("writer");
    ready_in_call(SYS_flock);
    flock(theirs, LOCK_EX);
    return 0;
}
