/* fakekfd.c: lets the unmodified HSA and HIP libraries run on a machine without a GPU.
 *
 * Preloaded, it answers what they ask of the kernel: /dev/kfd, the render node and the topology below /sys become files below
 * $FAKEKFD_ROOT, the ioctls of the KFD hand out numbers, and libdrm_amdgpu's few calls succeed. Without FAKEKFD_ROOT it does
 * nothing. Signals, queues, packets, code objects and locks are then the real libraries' own, in ordinary memory.
 *
 * The GPU is a child process: it completes packets (runs nothing) and answers AMDKFD_IOC_WAIT_EVENTS, which the process under
 * test really sleeps in, since a seccomp filter hands just that request to the child. So the process has only the threads
 * that the real libraries make. The child dies with its parent.
 *
 * fakekfd_freeze() wedges the GPU: from its return on no packet is completed and no event comes.
 * fakekfd_take() lets it read one more kernel packet of each queue, and never complete it: the read index leads.
 * fakekfd_slow(ms): from then on it needs that long for each packet, and is well.
 *
 * Numbers and layouts are those of the Linux uAPI header kfd_ioctl.h; only the size in a request's number grew since.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <asm/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define TOPOLOGY "/sys/devices/virtual/kfd/kfd/topology"
#define CPUS "/sys/devices/system/cpu"
#define WAIT_EVENTS 0xC0184B0Cu
#define API __attribute__((visibility("default")))
enum { QUEUES = 32, EVENTS = 4096, WAITS = 64, GPU_ID = 4660, COMPUTE_AQL = 2 };
enum { RUNNING, TAKING, FROZEN };

struct queue {
    uint64_t ring, write_index, read_index; /* addresses in the process under test */
    uint32_t bytes, aql;
};

/* Both processes see this. */
static struct shared {
    struct queue queues[QUEUES];
    volatile uint32_t count;
    volatile uint32_t wanted, reached; /* of RUNNING, TAKING, FROZEN */
    volatile uint32_t slow; /* ms for a packet */
} * shared;
static char root[256];
static int kfd = -1, to_gpu = -1;

/* ---- the GPU: a child process ---- */

static pid_t host;

static int get(uint64_t at, void *into, size_t n)
{
    struct iovec local = { into, n }, remote = { (void *)at, n };
    return process_vm_readv(host, &local, 1, &remote, 1, 0) == (ssize_t)n;
}

static void put(uint64_t at, const void *from, size_t n)
{
    struct iovec local = { (void *)from, n }, remote = { (void *)at, n };
    process_vm_writev(host, &local, 1, &remote, 1, 0); /* a host that dies just now cannot be written any more */
}

static uint64_t get64(uint64_t at)
{
    uint64_t value = 0;
    get(at, &value, sizeof value);
    return value;
}

/* struct kfd_ioctl_wait_events_args, and who waits */
struct wait {
    uint64_t notification, args, deadline; /* deadline in ms, 0: none */
    uint64_t events;
    uint32_t count;
};
static struct wait waits[WAITS];
static int waiting;
static uint8_t happened[EVENTS];
static uint64_t age[EVENTS]; /* how often it has happened, less one: runtimes since 6.0 tell which they have seen */

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

/* A thread that a signal or a tracer called away sleeps again with a new notification: the old ones are dropped. */
static void drop_stale(int listener)
{
    for (int i = 0; i < waiting;)
        if (syscall(SYS_ioctl, listener, SECCOMP_IOCTL_NOTIF_ID_VALID, &waits[i].notification))
            waits[i] = waits[--waiting];
        else
            i++;
}

static void hear(int listener)
{
    struct seccomp_notif said;
    memset(&said, 0, sizeof said);
    drop_stale(listener);
    if (syscall(SYS_ioctl, listener, SECCOMP_IOCTL_NOTIF_RECV, &said) || waiting == WAITS)
        return;
    struct { uint64_t events; uint32_t count, all, timeout, result; } args;
    if (!get(said.data.args[2], &args, sizeof args))
        return;
    uint64_t deadline = args.timeout < 0x7fffffff ? now() + args.timeout : 0;
    waits[waiting++] = (struct wait){ said.id, said.data.args[2], deadline, args.events, args.count };
}

/* Answers the waits whose event has come or whose time is over. */
static void answer(int listener)
{
    uint8_t used[EVENTS] = { 0 };
    drop_stale(listener);
    for (int i = 0; i < waiting;) {
        struct wait *w = &waits[i];
        int come = 0;
        for (uint32_t e = 0; e < w->count && e < 256; e++) {
            uint64_t event = w->events + 48 * e, seen = get64(event); /* kfd_event_data: last_event_age, event_id at 40 */
            uint32_t id = (uint32_t)get64(event + 40);
            if (!id || id >= EVENTS)
                continue;
            if (happened[id])
                come = used[id] = 1;
            if (seen && seen != age[id] + 1)
                come = 1;
            if (seen && come) {
                seen = age[id] + 1;
                put(event, &seen, sizeof seen);
            }
        }
        uint32_t result = come ? 0 : 1;
        if (!come && (!w->deadline || now() < w->deadline)) {
            i++;
            continue;
        }
        put(w->args + 20, &result, sizeof result);
        struct seccomp_notif_resp response = { .id = w->notification };
        syscall(SYS_ioctl, listener, SECCOMP_IOCTL_NOTIF_SEND, &response);
        *w = waits[--waiting];
    }
    for (int id = 0; id < EVENTS; id++)
        happened[id] &= (uint8_t)!used[id];
}

static void happen(uint32_t event)
{
    if (event && event < EVENTS) {
        happened[event] = 1;
        age[event]++;
    }
}

/* amd_signal_t: value at 8, event at 24 */
static void complete(uint64_t signal)
{
    uint64_t value = get64(signal + 8) - 1;
    uint32_t event = (uint32_t)get64(signal + 24);
    put(signal + 8, &value, sizeof value);
    happen(event);
}

/* May this packet begin? A barrier waits for its signals. */
static int may_begin(const unsigned char *packet)
{
    uint64_t word[8];
    memcpy(word, packet, sizeof word);
    if (packet[0] == 3) { /* barrier-and: all of five */
        for (int i = 1; i <= 5; i++)
            if (word[i] && get64(word[i] + 8))
                return 0;
    } else if (packet[0] == 5) { /* barrier-or: one of those that are there */
        int any = 0, given = 0;
        for (int i = 1; i <= 5; i++) {
            given += word[i] != 0;
            any += word[i] && !get64(word[i] + 8);
        }
        return any || !given;
    } else if (packet[0] == 0 && packet[2] == 2) { /* AMD's barrier-value: signal, value, mask, condition */
        int64_t seen = (int64_t)(get64(word[1] + 8) & word[3]), wanted = (int64_t)word[2];
        switch ((uint32_t)word[4]) {
        case 0: return seen == wanted;
        case 1: return seen != wanted;
        case 2: return seen < wanted;
        default: return seen >= wanted;
        }
    }
    return 1;
}

/* Completes what one queue holds, in order, so many packets at most. */
static void execute(const struct queue *q, int most)
{
    for (; q->aql && most; most--) {
        uint64_t read = get64(q->read_index), slot = q->ring + read % (q->bytes / 64) * 64;
        unsigned char packet[64];
        /* The header is written last and so is read first. */
        if (read >= get64(q->write_index) || !get(slot, packet, 2) || packet[0] == 1 || !get(slot, packet, sizeof packet))
            break;
        if (!may_begin(packet))
            break;
        uint64_t signal;
        memcpy(&signal, packet + 56, sizeof signal);
        uint16_t invalid = 1;
        read++;
        put(slot, &invalid, sizeof invalid);
        put(q->read_index, &read, sizeof read);
        if (signal)
            complete(signal);
    }
}

/* Reads a queue's kernel packet and is never done with it. */
static void take(const struct queue *q)
{
    uint64_t read = get64(q->read_index);
    unsigned char packet[64];
    if (q->aql && read < get64(q->write_index) && get(q->ring + read % (q->bytes / 64) * 64, packet, sizeof packet) &&
        packet[0] == 2) {
        read++;
        put(q->read_index, &read, sizeof read);
    }
}

static void be_the_gpu(int listener, int from_host)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    prctl(PR_SET_NAME, "fake gpu", 0, 0, 0);
    if (getppid() != host)
        _exit(0);
    for (uint64_t last = 0;;) {
        int runs = shared->reached == RUNNING && shared->count;
        struct pollfd on[2] = { { listener, POLLIN, 0 }, { from_host, POLLIN, 0 } };
        poll(on, 2, runs ? 1 : waiting ? 20 : -1);
        if (on[0].revents & POLLIN)
            hear(listener);
        if (on[1].revents & POLLIN) {
            uint32_t event[64];
            ssize_t n = read(from_host, event, sizeof event);
            for (ssize_t i = 0; i < n / 4; i++)
                happen(event[i]);
        }
        if (shared->wanted == TAKING && shared->reached != TAKING)
            for (uint32_t i = 0; i < shared->count; i++)
                take(&shared->queues[i]);
        shared->reached = shared->wanted;
        uint32_t slow = shared->slow;
        if (shared->reached == RUNNING && now() >= last + slow) {
            for (uint32_t i = 0; i < shared->count; i++)
                execute(&shared->queues[i], slow ? 1 : 64);
            last = now();
        }
        answer(listener);
    }
}

/* An event set by the host, or 0 to make it look at what is wanted. */
static void tell_gpu(uint32_t event)
{
    if (write(to_gpu, &event, sizeof event) != sizeof event)
        abort();
}

static void want(uint32_t state)
{
    if (!shared)
        return;
    shared->wanted = state;
    tell_gpu(0);
    while (shared->reached != state)
        sched_yield();
}

API void fakekfd_freeze(void)
{
    want(FROZEN);
}

API void fakekfd_take(void)
{
    want(TAKING);
}

API void fakekfd_slow(uint32_t ms)
{
    if (shared)
        shared->slow = ms;
}

/* The amd_queue_t of the AQL queue that is the n-th to have packets pending; NULL: there are not so many. */
API void *fakekfd_pending_queue(int n)
{
    for (uint32_t i = 0; shared && i < shared->count; i++) {
        const struct queue *q = &shared->queues[i];
        if (q->aql && *(uint64_t *)q->write_index > *(uint64_t *)q->read_index && n-- == 0)
            return (char *)q->write_index - 56;
    }
    return NULL;
}

/* ---- the files ---- */

static void file(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, name);
    for (char *slash = path + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
        *slash = 0;
        mkdir(path, 0777);
    }
    int fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, text, strlen(text)) < 0)
        dprintf(2, "fakekfd: cannot write %s\n", path);
    close(fd);
}

/* A device is a sparse file: what is mapped from it is memory. */
static void device(const char *name)
{
    char path[512];
    file(name, "");
    snprintf(path, sizeof path, "%s%s", root, name);
    if (truncate(path, 1ll << 36))
        dprintf(2, "fakekfd: cannot enlarge %s\n", path);
}

/* The topology: node 0 has the CPU, node 1 is a gfx900 with 8 GB. */
static void make_files(void)
{
    device("/dev/kfd");
    device("/dev/dri/renderD128");
    file("/topology/generation_id", "1\n");
    file("/topology/system_properties", "platform_oem 0\nplatform_id 0\nplatform_rev 0\n");
    file("/topology/nodes/0/gpu_id", "0\n");
    file("/topology/nodes/0/name", "cpu\n");
    file("/topology/nodes/0/properties",
         "cpu_cores_count 2\nsimd_count 0\nmem_banks_count 1\ncaches_count 0\nio_links_count 1\np2p_links_count 0\n"
         "cpu_core_id_base 0\nmax_engine_clk_ccompute 2000\n");
    file("/topology/nodes/0/mem_banks/0/properties",
         "heap_type 0\nsize_in_bytes 8589934592\nflags 0\nwidth 64\nmem_clk_max 2400\n");
    for (int cpu = 0; cpu < 2; cpu++) {
        static const char *const cache[][2] = {
            { "level", "1" }, { "type", "Data" }, { "size", "32K" }, { "coherency_line_size", "64" },
            { "ways_of_associativity", "8" }, { "physical_line_partition", "1" }, { "shared_cpu_map", "3" }, { "shared_cpu_list", "0-1" },
        };
        for (size_t i = 0; i < sizeof cache / sizeof *cache; i++) {
            char name[64], text[64];
            snprintf(name, sizeof name, "/cpu/cpu%d/cache/index0/%s", cpu, cache[i][0]);
            snprintf(text, sizeof text, "%s\n", cache[i][1]);
            file(name, text);
        }
    }
    file("/topology/nodes/1/gpu_id", "4660\n");
    file("/topology/nodes/1/name", "vega10\n");
    file("/topology/nodes/1/properties",
         "cpu_cores_count 0\nsimd_count 256\nmem_banks_count 1\ncaches_count 2\nio_links_count 1\np2p_links_count 0\n"
         "simd_id_base 2147487744\nmax_waves_per_simd 10\nlds_size_in_kb 64\ngds_size_in_kb 0\nnum_gws 64\n"
         "wave_front_size 64\narray_count 4\nsimd_arrays_per_engine 1\ncu_per_simd_array 16\nsimd_per_cu 4\n"
         "max_slots_scratch_cu 32\ngfx_target_version 90000\nvendor_id 4098\ndevice_id 26723\nlocation_id 768\ndomain 0\n"
         "drm_render_minor 128\nhive_id 0\nnum_sdma_engines 2\nnum_sdma_xgmi_engines 0\nnum_sdma_queues_per_engine 2\n"
         "num_cp_queues 24\nmax_engine_clk_fcompute 1630\nlocal_mem_size 8573157376\nfw_version 440\ncapability 8832\n"
         "sdma_fw_version 430\nunique_id 1234\nnum_xcc 1\nmax_engine_clk_ccompute 2000\n");
    file("/topology/nodes/1/mem_banks/0/properties",
         "heap_type 1\nsize_in_bytes 8573157376\nflags 0\nwidth 2048\nmem_clk_max 945\n");
    for (int level = 1; level <= 2; level++) {
        char name[64], text[256];
        snprintf(name, sizeof name, "/topology/nodes/1/caches/%d/properties", level - 1);
        snprintf(text, sizeof text,
                 "processor_id_low 2147487744\nlevel %d\nsize %d\ncache_line_size 64\ncache_lines_per_tag 1\n"
                 "association 16\nlatency 0\ntype 9\nsibling_map 1,0,0,0\n",
                 level, 16 * level * level * level);
        file(name, text);
    }
    for (int node = 0; node < 2; node++) {
        char name[64], text[256];
        snprintf(name, sizeof name, "/topology/nodes/%d/io_links/0/properties", node);
        snprintf(text, sizeof text,
                 "type 2\nversion_major 0\nversion_minor 0\nnode_from %d\nnode_to %d\nweight 20\nmin_latency 0\n"
                 "max_latency 0\nmin_bandwidth 0\nmax_bandwidth 0\nrecommended_transfer_size 0\nflags 1\n",
                 node, 1 - node);
        file(name, text);
    }
}

/* Where a path of the kernel's lies here; any other stays. */
static const char *here(const char *path, char *buffer)
{
    const char *tail = NULL, *kind = "";
    if (!*root || !path)
        return path;
    if (!strncmp(path, TOPOLOGY, sizeof TOPOLOGY - 1)) {
        kind = "/topology";
        tail = path + sizeof TOPOLOGY - 1;
    } else if (!strncmp(path, CPUS, sizeof CPUS - 1)) { /* a root without /sys has none */
        kind = "/cpu";
        tail = path + sizeof CPUS - 1;
    } else if (!strcmp(path, "/dev/kfd") || !strncmp(path, "/dev/dri/render", 15)) {
        tail = path;
    }
    if (!tail)
        return path;
    snprintf(buffer, 512, "%s%s%s", root, kind, tail);
    return buffer;
}

static void *libcs(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

API FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    char buffer[512];
    if (!real)
        real = libcs("fopen");
    return real(here(path, buffer), mode);
}

API FILE *fopen64(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    char buffer[512];
    if (!real)
        real = libcs("fopen64");
    return real(here(path, buffer), mode);
}

API DIR *opendir(const char *path)
{
    static DIR *(*real)(const char *);
    char buffer[512];
    if (!real)
        real = libcs("opendir");
    return real(here(path, buffer));
}

API int open(const char *path, int flags, ...)
{
    static int (*real)(const char *, int, ...);
    char buffer[512];
    va_list more;
    va_start(more, flags);
    int mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(more, int) : 0;
    va_end(more);
    if (!real)
        real = libcs("open");
    const char *at = here(path, buffer);
    int fd = real(at, flags, mode);
    if (at != path && !strcmp(path, "/dev/kfd"))
        kfd = fd;
    return fd;
}

/* Scratch memory of four gigabytes is reserved and not touched: gdb would write all its zeros into a core. */
API void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
    void *got = (void *)syscall(SYS_mmap, at, size, protection, flags, fd, offset);
    if (*root && got != MAP_FAILED && protection == PROT_NONE && fd < 0 && size >= 1ul << 30)
        madvise(got, size, MADV_DONTDUMP);
    return got;
}

/* ---- libdrm_amdgpu, which asks the render node who it is ---- */

API int drmOpenRender(int minor)
{
    char path[64];
    snprintf(path, sizeof path, "/dev/dri/renderD%d", minor);
    return open(path, O_RDWR | O_CLOEXEC);
}

API void drmClose(int fd)
{
    close(fd);
}

/* struct amdgpu_device is libdrm's own; its descriptor, a duplicate, lies at 16, where its amdgpu_device_get_fd looks. */
API int amdgpu_device_initialize(int fd, uint32_t *major, uint32_t *minor, void **handle)
{
    static int it[1024];
    it[4] = it[5] = fcntl(fd, F_DUPFD_CLOEXEC, 3);
    *major = 3;
    *minor = 54;
    *handle = it;
    return 0;
}

API int amdgpu_device_deinitialize(void *handle)
{
    (void)handle;
    return 0;
}

API const char *amdgpu_get_marketing_name(void *handle)
{
    (void)handle;
    return "no GPU at all";
}

/* struct amdgpu_gpu_info, 336 bytes: all zeros but asic_id, family_id (Vega's, 141) */
API int amdgpu_query_gpu_info(void *handle, void *info)
{
    (void)handle;
    memset(info, 0, 336);
    ((uint32_t *)info)[0] = 26723;
    ((uint32_t *)info)[3] = 141;
    return 0;
}

/* ---- the KFD's ioctls ---- */

static int create_queue(uint64_t *q, uint32_t *u)
{
    static uint32_t id = 1;
    uint32_t n = shared->count;
    if (n == QUEUES)
        return ENOMEM;
    shared->queues[n] = (struct queue){ q[0], q[1], q[2], u[8], u[10] == COMPUTE_AQL };
    __atomic_store_n(&shared->count, n + 1, __ATOMIC_RELEASE);
    tell_gpu(0);
    if (getenv("FAKEKFD_TELL"))
        dprintf(2, "queue %u%s: amd_queue_t %#lx, ring %#lx, %u bytes\n", id, u[10] == COMPUTE_AQL ? "" : " (no AQL)",
                (unsigned long)q[1] - 56, (unsigned long)q[0], u[8]);
    q[3] = id * 8; /* doorbell */
    u[13] = id++;
    return 0;
}

static void destroy_queue(uint32_t id)
{
    if (id && id <= shared->count)
        shared->queues[id - 1].aql = 0;
}

/* struct kfd_process_device_apertures of the one GPU */
static int apertures(uint64_t *q, uint32_t *u)
{
    uint64_t *one = (uint64_t *)q[0];
    if (u[2] < 1)
        return EINVAL;
    memset(one, 0, 56);
    one[0] = 1ull << 48; /* LDS */
    one[1] = one[0] | 0xffffffff;
    one[2] = 2ull << 48; /* scratch */
    one[3] = one[2] | 0xffffffff;
    one[4] = 0x1000000; /* GPU virtual memory */
    one[5] = (1ull << 47) - 1;
    ((uint32_t *)one)[12] = GPU_ID;
    u[2] = 1;
    return 0;
}

static int allocate(uint64_t *q, uint32_t *u)
{
    static uint64_t offset = 1ull << 32, handle = 1;
    const uint32_t USERPTR = 4;
    if (!(u[9] & USERPTR))
        q[3] = __atomic_fetch_add(&offset, (q[1] + 0x1fffff) & ~0x1fffffull, __ATOMIC_RELAXED);
    q[2] = __atomic_fetch_add(&handle, 1, __ATOMIC_RELAXED);
    return 0;
}

/* An error number. */
static int answer_kfd(unsigned number, void *argument)
{
    static uint32_t event = 1;
    uint32_t *u = argument;
    uint64_t *q = argument;
    struct timespec t;
    switch (number) {
    case 0x01: /* version */
        u[0] = 1;
        u[1] = 14; /* the first that tells an event's age */
        return 0;
    case 0x02: return create_queue(q, u);
    case 0x03: destroy_queue(u[0]); return 0;
    case 0x05: /* clock counters */
        clock_gettime(CLOCK_MONOTONIC, &t);
        q[0] = 0;
        q[1] = q[2] = (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
        q[3] = 1000000000;
        return 0;
    case 0x08: /* create event: trigger data, event, slot */
        u[2] = u[6] = u[7] = __atomic_fetch_add(&event, 1, __ATOMIC_RELAXED);
        return 0;
    case 0x0a: tell_gpu(u[0]); return 0; /* set event */
    case 0x12: u[6] = u[7] = u[8] = 0; return 0; /* tile configuration */
    case 0x14: return apertures(q, u);
    case 0x16: return allocate(q, u);
    case 0x18: case 0x19: u[5] = u[4]; return 0; /* map, unmap: all of the devices did it */
    case 0x1e: u[1] = 0; return 0;
    case 0x21: u[0] = 0; return 0; /* XNACK: off */
    case 0x23: q[0] = 8ull << 30; return 0; /* memory that is free */
    case 0x04: case 0x07: case 0x09: case 0x0b: case 0x11: case 0x13: case 0x15: case 0x17: case 0x1a: return 0;
    default: return EINVAL;
    }
}

/* Not declared with `...`, so that what it hands on is a jump and no frame of its own. */
API int ioctl(int fd, unsigned long request, void *argument)
{
    static int (*real)(int, unsigned long, void *);
    if (!real)
        real = libcs("ioctl");
    if (fd != kfd || kfd < 0 || ((request >> 8) & 0xff) != 'K' || (uint32_t)request == WAIT_EVENTS)
        return real(fd, request, argument);
    int error = answer_kfd(request & 0xff, argument);
    errno = error;
    return error ? -1 : 0;
}

/* Hands WAIT_EVENTS to whoever holds the descriptor it returns. */
static int filter_waits(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_ioctl, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, WAIT_EVENTS, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = { sizeof code / sizeof *code, code };
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    return (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
}

static __attribute__((constructor)) void begin(void)
{
    const char *at = getenv("FAKEKFD_ROOT");
    int pipe_ends[2];
    if (!at || strlen(at) >= sizeof root)
        return;
    strcpy(root, at);
    alarm(60); /* a sample that never gets so far that it is ready */
    unsetenv("LD_PRELOAD"); /* not for what this process starts */
    unsetenv("FAKEKFD_ROOT");
    make_files();
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int listener = filter_waits();
    if (shared == MAP_FAILED || listener < 0 || pipe2(pipe_ends, O_CLOEXEC)) {
        perror("fakekfd");
        _exit(71);
    }
    host = getpid();
    pid_t child = fork();
    if (child == 0) {
        int null = (int)syscall(SYS_openat, AT_FDCWD, "/dev/null", O_RDWR);
        dup2(null, 0);
        dup2(null, 1);
        be_the_gpu(listener, pipe_ends[0]);
    }
    if (child < 0)
        _exit(71);
    close(listener);
    close(pipe_ends[0]);
    to_gpu = pipe_ends[1];
}
