// Threads that count in a file, each in its own word: COUNT of them, some asleep most of the time, one that never sleeps.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

static volatile uint64_t *words;

static void *counts(void *number) {
    size_t n = (size_t)number;
    for (;;) {
        words[n]++;
        if (n == 0) continue;
        usleep(n % 2 ? 200 : 2000);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    size_t count = (size_t)atoi(argv[2]);
    int file = open(argv[1], O_RDWR);
    words = mmap(0, count * sizeof *words, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (words == MAP_FAILED) return 3;
    for (size_t n = 1; n < count; n++) {
        pthread_t t;
        if (pthread_create(&t, 0, counts, (void *)n)) return 4;
    }
    puts("ready");
    fflush(stdout);
    counts(0);
}
