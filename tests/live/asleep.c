// A library whose function sleeps for two minutes, and the program that calls it: `asleep FILE` with the library's file.
#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#ifdef LIBRARY
static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;
int sleeps(void) {
    pthread_mutex_lock(&held);
    if (write(1, "ready\n", 6) != 6) return 1;
    sleep(120);
    pthread_mutex_unlock(&held);
    return 0;
}
#else
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : 0;
    int (*sleeps)(void) = library ? (int (*)(void))dlsym(library, "sleeps") : 0;
    if (!sleeps) return 2;
    alarm(120);
    _exit(sleeps());
}
#endif
