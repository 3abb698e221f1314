/* Processes that wait for one another, for ever: `program KIND LEDGER`. */
#include "ledger.h"
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>

static const char *kind;
static volatile int sink;
static char bytes[1 << 18];

struct room {
    pthread_mutex_t mutex, other;
    pthread_cond_t cond;
    pthread_rwlock_t rwlock;
    pthread_barrier_t barrier;
    sem_t sem;
    int turn;
};
static struct room *room;

static int is(const char *name) { return strcmp(kind, name) == 0; }

static void all(int fd, size_t n, int writes)
{
    for (size_t done = 0; done < n;) {
        ssize_t k = writes ? write(fd, bytes + done, n - done) : read(fd, bytes + done, n - done);
        if (k <= 0 && errno != EINTR)
            _exit(0);
        if (k > 0)
            done += (size_t)k;
    }
}

/* One fills, the other drains and answers now and then. */
static void talk(int in, int out, int first)
{
    for (;;) {
        if (first) {
            all(out, sizeof bytes, 1);
            all(in, 1, 0);
        } else {
            all(in, sizeof bytes, 0);
            all(out, 1, 1);
        }
        ledger_beat();
    }
}

static void ping(int in, int out, int first)
{
    for (int begun = !first;; begun = 1) {
        if (begun)
            all(in, 1, 0);
        all(out, 1, 1);
        ledger_beat();
    }
}

static void shares(int who)
{
    for (int n = who;; n++) {
        if (is("pshared-cond")) {
            TAKE(&room->mutex, pthread_mutex_lock(&room->mutex));
            while (room->turn % 3 != who)
                LEND(&room->mutex, pthread_cond_wait(&room->cond, &room->mutex));
            room->turn++;
            pthread_cond_broadcast(&room->cond);
            GIVE(&room->mutex, pthread_mutex_unlock(&room->mutex));
        } else if (is("pshared-rwlock")) {
            if (n % 3 == 0)
                TAKE(&room->rwlock, pthread_rwlock_wrlock(&room->rwlock));
            else
                TAKE_SHARED(&room->rwlock, pthread_rwlock_rdlock(&room->rwlock));
            sink++;
            GIVE(&room->rwlock, pthread_rwlock_unlock(&room->rwlock));
        } else if (is("pshared-barrier")) {
            pthread_barrier_wait(&room->barrier);
        } else if (is("pshared-sem")) {
            while (sem_wait(&room->sem))
                ;
            sink++;
            sem_post(&room->sem);
        } else {
            TAKE(&room->mutex, pthread_mutex_lock(&room->mutex));
            if (n % 3 == 0) {
                TAKE(&room->other, pthread_mutex_lock(&room->other));
                sink++;
                GIVE(&room->other, pthread_mutex_unlock(&room->other));
            }
            GIVE(&room->mutex, pthread_mutex_unlock(&room->mutex));
        }
        ledger_beat();
    }
}

static void make_room(void)
{
    room = (struct room *)mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t m;
    pthread_condattr_t c;
    pthread_rwlockattr_t r;
    pthread_barrierattr_t b;
    pthread_mutexattr_init(&m);
    pthread_condattr_init(&c);
    pthread_rwlockattr_init(&r);
    pthread_barrierattr_init(&b);
    pthread_mutexattr_setpshared(&m, PTHREAD_PROCESS_SHARED);
    if (is("pshared-robust"))
        pthread_mutexattr_setrobust(&m, PTHREAD_MUTEX_ROBUST);
    if (is("pshared-pi"))
        pthread_mutexattr_setprotocol(&m, PTHREAD_PRIO_INHERIT);
    pthread_condattr_setpshared(&c, PTHREAD_PROCESS_SHARED);
    pthread_rwlockattr_setpshared(&r, PTHREAD_PROCESS_SHARED);
    pthread_barrierattr_setpshared(&b, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&room->mutex, &m);
    pthread_mutex_init(&room->other, &m);
    pthread_cond_init(&room->cond, &c);
    pthread_rwlock_init(&room->rwlock, &r);
    pthread_barrier_init(&room->barrier, &b, 3);
    sem_init(&room->sem, 1, 1);
}

/* Each opens its own description: flock excludes descriptions, fcntl processes. */
static void file_locks(const char *ledger_name)
{
    char name[4096];
    snprintf(name, sizeof name, "%s.lock", ledger_name);
    int fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    for (;;) {
        if (is("flock")) {
            while (flock(fd, LOCK_EX))
                ;
            sink++;
            flock(fd, LOCK_UN);
        } else {
            struct flock l;
            memset(&l, 0, sizeof l);
            l.l_type = F_WRLCK;
            l.l_len = 1;
            while (fcntl(fd, F_SETLKW, &l))
                ;
            sink++;
            l.l_type = F_UNLCK;
            fcntl(fd, F_SETLK, &l);
        }
        ledger_beat();
    }
}

static int fork_one(void)
{
    int pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        ledger_child();
    }
    return pid;
}

struct ends {
    int in, out, first;
};

static void *talks(void *x)
{
    struct ends *e = (struct ends *)x;
    if (is("threads-ping"))
        ping(e->in, e->out, e->first);
    talk(e->in, e->out, e->first);
    return x;
}

int main(int argc, char **argv)
{
    ledger_open(argc, argv);
    kind = argv[1];
    int a[2], b[2];
    if (pipe(a) || pipe(b))
        return 71;
    if (strstr(kind, "socket") && (socketpair(AF_UNIX, SOCK_STREAM, 0, a)))
        return 71;
    if (strncmp(kind, "pshared", 7) == 0) {
        make_room();
        for (int i = 1; i < 3; i++)
            if (fork_one() == 0)
                shares(i);
        ledger_ready();
        shares(0);
    }
    if (strcmp(kind, "flock") == 0 || strcmp(kind, "fcntl") == 0) {
        for (int i = 1; i < 3; i++)
            if (fork_one() == 0)
                file_locks(argv[2]);
        ledger_ready();
        file_locks(argv[2]);
    }
    if (is("children")) {
        ledger_ready();
        for (;;) {
            int pid = fork_one();
            if (pid == 0) {
                struct timespec t = { 0, 500000 };
                nanosleep(&t, NULL);
                _exit(0);
            }
            waitpid(pid, NULL, 0);
            ledger_beat();
        }
    }
    if (strncmp(kind, "threads", 7) == 0) {
        static struct ends ends[2];
        pthread_t t[2];
        ends[0] = (struct ends){ b[0], a[1], 1 };
        ends[1] = (struct ends){ a[0], b[1], 0 };
        for (int i = 0; i < 2; i++)
            if (pthread_create(&t[i], NULL, talks, &ends[i]))
                return 71;
        ledger_ready();
        for (int i = 0; i < 2; i++)
            pthread_join(t[i], NULL);
    }
    void (*speak)(int, int, int) = strstr(kind, "ping") ? ping : talk;
    int child = fork_one();
    if (strstr(kind, "socket")) {
        if (child == 0) {
            close(a[0]);
            speak(a[1], a[1], 0);
        }
        close(a[1]);
        ledger_ready();
        speak(a[0], a[0], 1);
    }
    if (!strstr(kind, "pipe"))
        return 64;
    if (child == 0) {
        close(a[1]);
        close(b[0]);
        speak(a[0], b[1], 0);
    }
    close(a[0]);
    close(b[1]);
    ledger_ready();
    speak(b[0], a[1], 1);
}
