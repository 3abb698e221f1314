/* Two ranks. Rank 0 waits for a collective, whose kernel waits on the GPU for rank 1; rank 1 waits for a message that rank 0
 * sends only afterwards. Rank 1 is a child; rank 0 is the one to look at. */
#include "../rocm/hip.h"
#include <sys/socket.h>

static void rank_1(int from_rank_0)
{
    char message;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    ready_name("rank-1");
    close(1);
    _exit(recv(from_rank_0, &message, 1, 0) != 1);
}

int main(int argc, char **argv)
{
    int between[2], (*ncclCommInitRank)(void), (*ncclAllReduce)(void *);
    char path[PATH_MAX + 16];
    void *stream;
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    ssize_t n = readlink("/proc/self/exe", path, PATH_MAX - 1);
    if (n < 0 || socketpair(AF_UNIX, SOCK_STREAM, 0, between))
        _exit(71);
    path[n] = 0;
    strcpy(strrchr(path, '/'), "/librccl.so");
    void *rccl = rocm_load(path, NULL);
    *(void **)&ncclCommInitRank = dlsym(rccl, "ncclCommInitRank");
    *(void **)&ncclAllReduce = dlsym(rccl, "ncclAllReduce");
    void (*place)(void);
    *(void **)&place = dlsym(rccl, "ready_gpu");
    switch (fork()) {
    case -1: _exit(71);
    case 0: rank_1(between[1]);
    }
    MUST(hipInit(0));
    MUST(hipStreamCreate(&stream));
    MUST(ncclCommInitRank());
    MUST(hipStreamSynchronize(stream));
    fakekfd_freeze();
    MUST(ncclAllReduce(stream));
    place();
    MUST(hipStreamSynchronize(stream));
    return send(between[0], "", 1, 0) != 1;
}
