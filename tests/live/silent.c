// A program with memory that never comes: pages that nobody brings though they are registered with userfaultfd. They hold
// parts of two threads' stacks and the command line. Writes "ready" when it is there, "refused" where
// the system has no userfaultfd for it, and ends by itself after two minutes.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define PAGE 4096ul

static atomic_int waits;
static char *volatile deep[2];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static int say(const char *what) { return write(1, what, strlen(what)) < 0; }

static void *waiter(void *unused) {
    volatile char room[16 * PAGE];
    for (size_t i = 0; i < sizeof room; i += 512) room[i] = 1;
    deep[waits++] = (char *)room;
    pthread_mutex_lock(&mutex);
    room[0] = 2;
    return unused;
}

static void *other(void *unused) {
    for (;;) pause();
    return unused;
}

// Takes the page of `at` away for good.
static int take(int fd, void *at) {
    uintptr_t page = (uintptr_t)at & ~(PAGE - 1);
    struct uffdio_register r = {.range = {page, PAGE}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    return ioctl(fd, UFFDIO_REGISTER, &r) || madvise((void *)page, PAGE, MADV_DONTNEED);
}

int main(int argc, char **argv) {
    (void)argc;
    alarm(120);
    // below here nothing of the command line's page is needed
    volatile char room[16 * PAGE];
    room[0] = 1;
    pthread_mutex_lock(&mutex);
    pthread_t t;
    for (int i = 0; i < 2; i++) {
        if (pthread_create(&t, 0, waiter, 0)) return 3;
        while (waits <= i) usleep(1000);
    }
    if (pthread_create(&t, 0, other, 0)) return 3;
    usleep(50000);
    int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    struct uffdio_api api = {.api = UFFD_API};
    if (fd < 0 || ioctl(fd, UFFDIO_API, &api)) {
        say("refused\n");
        for (;;) pause();
    }
    if (take(fd, deep[0] + 8 * PAGE) || take(fd, deep[1] + 8 * PAGE) || take(fd, argv[0])) return 4;
    say("ready\n");
    for (;;) pause();
    return room[0];
}
