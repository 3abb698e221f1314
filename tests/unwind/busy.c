// Threads that run through short functions, calls by the PLT, prologues and epilogues, the vdso and string routines: stopped
// at any instant they stand anywhere. Prints "ready".
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static volatile int sink;

__attribute__((noinline)) static int leaf(int n) { return n * 3 + sink; }
__attribute__((noinline)) static int saves(int a, int b, int c) { int x = leaf(a), y = leaf(b), z = leaf(c); return x ^ y ^ z ^ leaf(x + y + z); }
__attribute__((noinline)) static int tree(int n) { return n < 2 ? leaf(n) : tree(n - 1) + tree(n - 2) + saves(n, n, n); }
__attribute__((noinline)) static int big(int n) { char room[9000]; memset(room, n, sizeof room); return room[n % 9000] + leaf(n); }
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

static void *small(void *x) { for (;;) sink = tree(12); return x; }
static void *plt(void *x) { for (;;) sink += (int)(labs(sink) + atoi("17") + (long)strlen("twenty") + abs(sink)); return x; }
static void *heap(void *x) { for (;;) { char *p = malloc((size_t)(sink & 0xfff) + 1), *q = strdup("heap"); free(p); free(q); sink++; } return x; }
static void *sorts(void *x) { for (;;) { int n[50]; for (int i = 0; i < 50; i++) n[i] = i * 7919 % 50; qsort(n, 50, sizeof *n, compare); sink += n[3]; } return x; }
static void *prints(void *x) { for (;;) { char s[100]; snprintf(s, sizeof s, "%d %.3f %s", sink, sink / 3.0, "x"); sink += (int)strtod(s, NULL); } return x; }
static void *clocks(void *x) { for (;;) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); sink += (int)t.tv_nsec; } return x; }
static void *large(void *x) { for (;;) sink += big(sink & 0xff); return x; }

int main(void)
{
    void *(*bodies[])(void *) = {small, plt, heap, sorts, prints, clocks, large};
    pthread_t thread;
    alarm(120);
    for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++)
        pthread_create(&thread, NULL, bodies[i], NULL);
    puts("ready");
    fflush(stdout);
    pthread_join(thread, NULL);
}
