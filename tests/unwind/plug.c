// One of many small libraries, each with a frame of another size.
#include <alloca.h>

#define JOIN2(a, b) a##b
#define JOIN(a, b) JOIN2(a, b)

typedef void (*step_t)(int);

void JOIN(plug, ID)(step_t step, int left)
{
    volatile char room[ID * 8 + 8];
    volatile char *more = ID % 3 ? alloca(left + ID) : room;
    room[left % (ID * 8)] = 1;
    more[0] = 2;
    step(left - 1);
    room[0] = more[0];
}
