/* ledger.h: a program tells in shared memory what each of its threads has taken.
 *
 * Each thread has a slot; each lock it uses has an entry there, which stays once it was used: `state` says what the thread has
 * to do with it. A lock is surely held by its thread while the state is HELD, and surely not while it is NONE; in between
 * the thread is inside the function that takes it or gives it back. The file is that of `argv[2]`; tests/instants/ledger.rs
 * reads it.
 */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LEDGER_SLOTS = 120, LEDGER_ENTRIES = 20, LEDGER_SIZE = 65536 };
enum ledger_state { NONE, TAKING, HELD, GIVING };

struct ledger_entry {
    uint64_t address;
    uint32_t state, shared;
    uint64_t seq;
};
struct ledger_slot {
    int32_t tid, pid;
    uint64_t unused;
    struct ledger_entry entries[LEDGER_ENTRIES];
    char padding[16];
};
struct ledger {
    uint64_t beats;
    char padding[4088];
    struct ledger_slot slots[LEDGER_SLOTS];
};

static struct ledger *ledger;
static __thread struct ledger_slot *ledger_mine;

/* The slot of the calling thread. A thread without one (they are all taken) tells nothing. */
static __attribute__((unused)) struct ledger_slot *ledger_here(void)
{
    int tid = (int)syscall(SYS_gettid);
    for (int i = 0; i < LEDGER_SLOTS; i++) {
        int nobody = 0;
        if (__atomic_compare_exchange_n(&ledger->slots[i].tid, &nobody, -1, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            struct ledger_slot *slot = &ledger->slots[i];
            memset(slot->entries, 0, sizeof slot->entries);
            slot->pid = getpid();
            __atomic_store_n(&slot->tid, tid, __ATOMIC_RELEASE);
            return ledger_mine = slot;
        }
    }
    return NULL;
}

/* The calling thread ends. */
static __attribute__((unused)) void ledger_gone(void)
{
    if (ledger_mine)
        __atomic_store_n(&ledger_mine->tid, 0, __ATOMIC_RELEASE);
    ledger_mine = NULL;
}

/* In a forked child: the slot inherited is the parent's. */
static __attribute__((unused)) void ledger_child(void)
{
    ledger_mine = NULL;
}

static __attribute__((unused)) void ledger_tell(const volatile void *lock, enum ledger_state state, int shared)
{
    struct ledger_slot *slot = ledger_mine ? ledger_mine : ledger_here();
    if (!slot)
        return;
    uint64_t address = (uint64_t)(uintptr_t)lock;
    for (int i = 0; i < LEDGER_ENTRIES; i++) {
        struct ledger_entry *e = &slot->entries[i];
        if (e->address == address || e->address == 0) {
            e->shared = (uint32_t)shared;
            e->seq++;
            __atomic_store_n(&e->state, (uint32_t)state, __ATOMIC_RELEASE);
            __atomic_store_n(&e->address, address, __ATOMIC_RELEASE);
            return;
        }
    }
    abort();
}

static __attribute__((unused)) void ledger_beat(void)
{
    __atomic_fetch_add(&ledger->beats, 1, __ATOMIC_RELAXED);
}

static __attribute__((unused)) void ledger_open(int argc, char **argv)
{
    int fd = argc > 2 ? open(argv[2], O_RDWR | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (fd < 0 || ftruncate(fd, LEDGER_SIZE) != 0)
        _exit(71);
    ledger = (struct ledger *)mmap(NULL, LEDGER_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (ledger == MAP_FAILED)
        _exit(71);
    close(fd);
    const char *seconds = getenv("HANGSCOPE_SAMPLE_SECONDS");
    alarm(seconds ? (unsigned)atoi(seconds) : 120);
}

static __attribute__((unused)) void ledger_ready(void)
{
    char line[32];
    int n = snprintf(line, sizeof line, "ready %d\n", (int)getpid());
    if (write(1, line, (size_t)n) != n)
        _exit(71);
}

#define TAKE(lock, call) do { ledger_tell(lock, TAKING, 0); call; ledger_tell(lock, HELD, 0); } while (0)
#define TAKE_SHARED(lock, call) do { ledger_tell(lock, TAKING, 1); call; ledger_tell(lock, HELD, 1); } while (0)
#define GIVE(lock, call) do { ledger_tell(lock, GIVING, 0); call; ledger_tell(lock, NONE, 0); } while (0)
/* Inside a call that gives a lock back and takes it again. */
#define LEND(lock, call) do { ledger_tell(lock, TAKING, 0); call; ledger_tell(lock, HELD, 0); } while (0)
