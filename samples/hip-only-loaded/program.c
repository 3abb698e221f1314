/* HIP is loaded, and nobody has called it. */
#include "../rocm/hip.h"

int main(int argc, char **argv)
{
    (void)argc;
    rocm_begin(argv);
    rocm_open(true);
    ready_begin(1);
    ready_in_call(SYS_pause);
    return pause();
}
