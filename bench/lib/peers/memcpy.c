// What the machine can do: copies of 256 MiB on one core and on two at a time, GB/s of data copied.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SIZE (256L << 20)
#define ROUNDS 15

static pthread_barrier_t barrier;
static double times[ROUNDS];

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void *copier(void *first) {
    char *from = malloc(SIZE), *into = malloc(SIZE);
    memset(from, 1, SIZE);
    memset(into, 2, SIZE);
    for (int i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&barrier);
        double start = now();
        memcpy(into, from, SIZE);
        pthread_barrier_wait(&barrier);
        if (first) times[i] = now() - start;
    }
    free(from);
    free(into);
    return NULL;
}

int main(void) {
    for (int threads = 1; threads <= 2; threads++) {
        pthread_t handles[2];
        pthread_barrier_init(&barrier, NULL, threads);
        for (int i = 0; i < threads; i++)
            pthread_create(&handles[i], NULL, copier, i == 0 ? (void *)1 : NULL);
        for (int i = 0; i < threads; i++) pthread_join(handles[i], NULL);
        qsort(times, ROUNDS, sizeof *times, compare);
        printf("threads=%d gbs=%.2f\n", threads, threads * SIZE / times[ROUNDS / 2] / 1e9);
    }
}
