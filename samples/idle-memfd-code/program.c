// Healthy: sleeps below code that was made as it ran, in a memfd (.NET, some JITs): no file, no symbols, no call frame information.
#include "../ready.h"
#include <sys/mman.h>

int main(void) {
    // sub $8,%rsp; call *%rdi; add $8,%rsp; ret
    static const unsigned char code[] = {0x48, 0x83, 0xec, 0x08, 0xff, 0xd7, 0x48, 0x83, 0xc4, 0x08, 0xc3};
    ready_begin(1);
    int fd = (int)syscall(SYS_memfd_create, "made", 0);
    if (fd < 0 || write(fd, code, sizeof code) != sizeof code)
        return 1;
    void *made = mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_SHARED, fd, 0);
    void (*calls)(int (*)(void));
    if (made == MAP_FAILED)
        return 1;
    memcpy(&calls, &made, sizeof calls);
    ready_in_call(SYS_pause);
    for (;;)
        calls(pause);
}
