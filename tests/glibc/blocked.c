/* Blocks a thread named "waiter" on the thing named by the first argument, held by a thread named "holder" where it can be
 * held. Prints `ready PID` once the waiter sleeps there; ends by itself after a minute. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/futex.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

pthread_mutex_t the_mutex = PTHREAD_MUTEX_INITIALIZER;
pthread_rwlock_t the_rwlock = PTHREAD_RWLOCK_INITIALIZER;
pthread_cond_t the_condition = PTHREAD_COND_INITIALIZER;
pthread_barrier_t the_barrier;
pthread_once_t the_once = PTHREAD_ONCE_INIT;
sem_t the_semaphore;
static pthread_mutex_t *shared_mutex;
static FILE *stream;
static pthread_t holder_thread;
void *volatile kept;
static volatile int waiter_tid, holds, go;

static const char *mode;
static int is(const char *name) { return !strcmp(mode, name); }
static int begins(const char *name) { return !strncmp(mode, name, strlen(name)); }
static void die(const char *what) { perror(what); exit(1); }

/* Sleeps for ever in something that is none of the things under test. */
static void stay(void) { for (;;) pause(); }

static void soon(struct timespec *t, int clock)
{
    clock_gettime(clock, t);
    t->tv_sec += 1000;
}

static void stay_once(void) { holds = 1; stay(); }

static int stay_in_callback(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info, (void)size, (void)data;
    holds = 1;
    stay();
    return 0;
}

static int nothing(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)info, (void)size, (void)data;
    return 1;
}

static void stay_in_fault(int signal) { (void)signal; holds = 1; stay(); }

static void init_mutex(void)
{
    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    if (is("mutex-recursive")) pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_RECURSIVE);
    if (is("mutex-errorcheck")) pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ERRORCHECK);
    if (is("mutex-adaptive")) pthread_mutexattr_settype(&attr, PTHREAD_MUTEX_ADAPTIVE_NP);
    if (strstr(mode, "robust")) pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    if (strstr(mode, "pi")) pthread_mutexattr_setprotocol(&attr, PTHREAD_PRIO_INHERIT);
    if (strstr(mode, "shared")) pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    shared_mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutex_init(shared_mutex, &attr);
    pthread_mutex_init(&the_mutex, &attr);
}

static pthread_mutex_t *mutex(void) { return strstr(mode, "shared") ? shared_mutex : &the_mutex; }

static void *holder(void *unused)
{
    prctl(PR_SET_NAME, "holder");
    if (begins("mutex") || begins("dead-owner") || is("fork")) {
        pthread_mutex_lock(mutex());
        if (is("mutex-recursive")) pthread_mutex_lock(mutex());
        if (begins("dead-owner")) { holds = 1; return unused; }
    } else if (is("rwlock-read") || is("rwlock-write-write")) pthread_rwlock_wrlock(&the_rwlock);
    else if (is("rwlock-write")) pthread_rwlock_rdlock(&the_rwlock);
    else if (is("once")) pthread_once(&the_once, stay_once);
    else if (begins("stdio")) flockfile(stream);
    else if (begins("loader")) dl_iterate_phdr(stay_in_callback, NULL);
    else if (is("malloc")) {
        /* malloc splits the top chunk and faults on the page where the rest begins, inside the arena's lock */
        char *top = (char *)(((uintptr_t)malloc(24) + 4095) & ~(uintptr_t)4095);
        mprotect(top, 4096, PROT_NONE);
        for (int i = 0; i < 1000; i++) kept = malloc(2000);
    } else if (is("setenv")) {
        extern char **environ;
        environ = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        setenv("A", "B", 1);
    }
    holds = 1;
    stay();
    return unused;
}

static void block(void)
{
    struct timespec t;
    int fds[2];
    if (is("mutex-timed")) soon(&t, CLOCK_REALTIME), pthread_mutex_timedlock(mutex(), &t);
    else if (begins("mutex") || begins("dead-owner") || is("fork")) pthread_mutex_lock(mutex());
    else if (is("rwlock-read")) pthread_rwlock_rdlock(&the_rwlock);
    else if (begins("rwlock-write")) pthread_rwlock_wrlock(&the_rwlock);
    else if (is("condition")) pthread_mutex_lock(&the_mutex), pthread_cond_wait(&the_condition, &the_mutex);
    else if (is("condition-timed")) {
        soon(&t, CLOCK_REALTIME), pthread_mutex_lock(&the_mutex), pthread_cond_timedwait(&the_condition, &the_mutex, &t);
    } else if (is("condition-relock")) pthread_mutex_lock(&the_mutex), pthread_cond_wait(&the_condition, &the_mutex);
    else if (is("semaphore")) sem_wait(&the_semaphore);
    else if (is("semaphore-timed")) soon(&t, CLOCK_REALTIME), sem_timedwait(&the_semaphore, &t);
    else if (is("barrier")) pthread_barrier_wait(&the_barrier);
    else if (is("join")) pthread_join(holder_thread, NULL);
    else if (is("once")) pthread_once(&the_once, stay_once);
    else if (begins("stdio")) fputc('x', stream);
    else if (is("loader-iterate")) dl_iterate_phdr(nothing, NULL);
    else if (is("loader-open")) dlopen("libm.so.6", RTLD_NOW), dlopen("libresolv.so.2", RTLD_NOW);
    else if (is("malloc")) kept = malloc(3000);
    else if (is("setenv")) setenv("C", "D", 1);
    else if (is("program-futex")) {
        /* a lock of the program's own, 2 when contended, followed by words that read as a mutex of a dead owner */
        static uint32_t words[10] = { 2, 0, 4711, 1, 0 };
        syscall(SYS_futex, words, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
    } else if (is("poll")) {
        if (pipe(fds)) die("pipe");
        struct pollfd p[2] = { { fds[0], POLLIN, 0 }, { -1, 0, 0 } };
        poll(p, 2, -1);
    } else if (is("select")) {
        if (pipe(fds)) die("pipe");
        fd_set set;
        FD_ZERO(&set);
        FD_SET(fds[0], &set);
        select(fds[0] + 1, &set, NULL, NULL, NULL);
    } else if (is("epoll")) {
        int e = epoll_create1(0);
        struct epoll_event event;
        while (epoll_wait(e, &event, 1, -1) < 0) {} /* being looked at is EINTR here */
    } else if (is("read")) {
        char c;
        if (pipe(fds)) die("pipe");
        if (read(fds[0], &c, 1) < 0) die("read");
    } else if (is("sleep")) {
        t = (struct timespec) { 1000, 500000000 };
        nanosleep(&t, NULL);
    } else if (is("child")) {
        int child = fork();
        if (!child) { prctl(PR_SET_NAME, "child"); prctl(PR_SET_PDEATHSIG, SIGKILL); stay(); }
        waitpid(child, NULL, 0);
    } else if (is("signal")) {
        sigset_t set;
        int got;
        sigemptyset(&set), sigaddset(&set, SIGUSR2);
        sigprocmask(SIG_BLOCK, &set, NULL);
        sigwait(&set, &got);
    } else if (is("accept")) {
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        struct sockaddr_un a = { .sun_family = AF_UNIX };
        if (bind(s, (struct sockaddr *)&a, sizeof(sa_family_t)) || listen(s, 1)) die("listen");
        accept(s, NULL, NULL);
    } else if (is("file-lock")) {
        char path[] = "/tmp/blocked-XXXXXX";
        int a = mkstemp(path), b = open(path, O_RDWR);
        unlink(path);
        flock(a, LOCK_EX), flock(b, LOCK_EX);
    }
    fprintf(stderr, "%s: not blocked\n", mode);
    exit(1);
}

static void *waiter(void *unused)
{
    prctl(PR_SET_NAME, "waiter");
    while (!go) usleep(200);
    waiter_tid = (int)syscall(SYS_gettid);
    block();
    return unused;
}

/* The thread's system call, once it has been the same on several looks in a row and is one that blocks. */
static int settled(int tid)
{
    char path[64], line[256], last[256] = "";
    int same = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", tid);
    for (int look = 0; look < 20000 && same < 20; look++) {
        int f = open(path, O_RDONLY);
        ssize_t n = f < 0 ? -1 : read(f, line, sizeof line - 1);
        close(f);
        if (n <= 0) return 0;
        line[n] = 0;
        same = strncmp(line, "running", 7) && !strcmp(line, last) ? same + 1 : 0;
        strcpy(last, line);
        usleep(500);
    }
    return same >= 20;
}

int main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "";
    alarm(60);
    init_mutex();
    sem_init(&the_semaphore, 0, 0);
    pthread_barrier_init(&the_barrier, NULL, 3);
    stream = is("stdio-stdout") ? stdout : fopen("/dev/null", "w");
    if (is("malloc") || is("setenv")) {
        mallopt(M_ARENA_MAX, 1);
        struct sigaction act = { .sa_handler = stay_in_fault, .sa_flags = SA_NODEFER };
        sigaction(SIGSEGV, &act, NULL);
    }
    int held = begins("mutex") || begins("rwlock") || is("once") || begins("stdio") || begins("loader") || is("malloc")
        || is("setenv") || begins("dead-owner") || is("fork") || is("join");
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 256 * 1024);
    pthread_t w, w2;
    /* made before anything is held: making a thread may need what is held */
    if (!is("fork")) pthread_create(&w, &small, waiter, NULL);
    if (is("rwlock-write-write")) pthread_create(&w2, &small, waiter, NULL);
    if (held) {
        pthread_create(&holder_thread, &small, holder, NULL);
        while (!holds) usleep(200);
        if (begins("dead-owner")) pthread_join(holder_thread, NULL);
    }
    int pid = (int)getpid();
    if (is("fork")) {
        if (fork()) stay();
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(60);
    }
    if (is("fork")) pthread_create(&w, &small, waiter, NULL);
    go = 1;
    while (!waiter_tid) usleep(200);
    if (is("condition-relock")) {
        if (!settled(waiter_tid)) return 1;
        prctl(PR_SET_NAME, "holder");
        pthread_mutex_lock(&the_mutex);
        pthread_cond_signal(&the_condition);
        usleep(20000);
    }
    if (!settled(waiter_tid)) return 1;
    char text[64];
    int n = snprintf(text, sizeof text, "ready %d\n", pid);
    if (write(1, text, n) != n) return 1;
    stay();
}
