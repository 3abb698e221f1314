/* Healthy: the only thread waits for what a handler of signals writes to a pipe of the process's own. */
#include "../ready.h"
#include <signal.h>

static int wake[2];

static void on_signal(int number)
{
    char byte = (char)number;
    if (write(wake[1], &byte, 1) != 1)
        abort();
}

int main(void)
{
    char byte;
    if (pipe2(wake, O_CLOEXEC))
        return 1;
    signal(SIGUSR1, on_signal);
    ready_begin(1);
    ready_in_call(SYS_read);
    while (read(wake[0], &byte, 1) != 1 || byte != SIGTERM)
        ;
    return 0;
}
