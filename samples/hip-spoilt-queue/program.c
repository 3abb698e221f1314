/* As in hip-sync, a thread waits for a stream; but another has scribbled over the queue, its ring, or the list of code objects,
 * as a wild pointer does. What can still be told is told, the rest is not believed.
 * usage: program indices|backwards|size|base|packets|doorbell|list|hints|undumped; hints: the low bits of the signals' handles,
 * which are 0, are not; undumped: a core lacks the ring, as it lacks memory of the device */
#include "../rocm/hip.h"

struct queue {
    uint32_t type, features;
    uint64_t base, doorbell;
    uint32_t size, reserved;
    uint64_t id, more[2], write_index, others[8], read_index;
};
struct link {
    uint64_t address;
    char *name;
    struct link *next, *previous;
};

static void *stream;
static const char *how;

static void spoil(struct queue *q)
{
    static unsigned char junk[64];
    _Static_assert(offsetof(struct queue, write_index) == 56 && offsetof(struct queue, read_index) == 128, "amd_queue_t");
    if (!strcmp(how, "indices"))
        q->write_index = 1ull << 63;
    if (!strcmp(how, "backwards"))
        q->read_index = q->write_index + 1000;
    if (!strcmp(how, "size"))
        q->size = 0;
    if (!strcmp(how, "base"))
        q->base = 0xfffffffffff0ull;
    if (!strcmp(how, "packets"))
        for (uint64_t i = 0; i < q->size * 64ull; i++)
            ((unsigned char *)q->base)[i] = (unsigned char)(junk[i % 64] += (unsigned char)(i * 7 + 2));
    if (!strcmp(how, "hints"))
        for (uint64_t i = q->read_index; i < q->write_index; i++) {
            uint64_t *packet = (uint64_t *)(q->base + i % q->size * 64);
            packet[7] |= 1 + i % 3; /* completion_signal */
            for (int n = 1; n <= 5 && (packet[0] & 0xff) == 3; n++)
                packet[n] |= 2; /* dep_signal of a barrier */
        }
    if (!strcmp(how, "doorbell"))
        *(uint64_t *)(q->doorbell + 48) = 0x4141414141414141ull;
    if (!strcmp(how, "undumped"))
        MUST(madvise((void *)q->base, q->size * 64ul, MADV_DONTDUMP));
    if (!strcmp(how, "list")) {
        struct { int version; struct link *first; } *debug = dlsym(RTLD_DEFAULT, "_amdgpu_r_debug");
        for (struct link *link = debug->first; link; link = link->next == debug->first ? NULL : link->next) {
            link->name = (char *)"memory://1#offset=0xffffffffffffffff&size=18446744073709551615";
            if (!link->next)
                link->next = debug->first; /* round and round */
        }
    }
}

static void *scribble(void *unused)
{
    (void)unused;
    ready_behind(0);
    struct queue *q = fakekfd_pending_queue(0);
    if (!q)
        _exit(71);
    spoil(q);
    ready_gone();
    return NULL;
}

int main(int argc, char **argv)
{
    pthread_t thread;
    how = argc > 1 ? argv[1] : "indices";
    rocm_begin(argv);
    rocm_open(true);
    MUST(hipInit(0));
    void *kernel = rocm_kernel("vector_add");
    MUST(hipStreamCreate(&stream));
    rocm_launch(kernel, stream);
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    for (int i = 0; i < 3; i++)
        rocm_launch(kernel, stream);
    ready_begin(2);
    MUST(pthread_create(&thread, NULL, scribble, NULL));
    ready_gpu();
    return hipStreamSynchronize(stream);
}
