// MPI_Allreduce of float32, in place: per size the median and the least of the slowest rank's times.
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(long bytes, int rank, int ranks) {
    long count = bytes / 4;
    int rounds = bytes <= 65536 ? 1000 : bytes <= (1 << 20) ? 200 : bytes <= (64 << 20) ? 30 : 20;
    int warm = bytes <= (1 << 20) ? 50 : 3;
    float *x = malloc(bytes);
    double *times = malloc(rounds * sizeof *times);
    for (int i = -warm; i < rounds; i++) {
        // Sums grow; now and then they start again.
        if (i == -warm || i % 8 == 0)
            for (long j = 0; j < count; j++) x[j] = 1;
        MPI_Barrier(MPI_COMM_WORLD);
        double start = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        double mine = MPI_Wtime() - start, slowest;
        MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        if (i >= 0) times[i] = slowest;
    }
    for (long j = 0; j < count; j++) x[j] = 1;
    MPI_Allreduce(MPI_IN_PLACE, x, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    if (x[count - 1] != ranks) MPI_Abort(MPI_COMM_WORLD, 1);
    if (rank == 0) {
        qsort(times, rounds, sizeof *times, compare);
        printf("bytes=%ld p50_us=%.2f min_us=%.2f\n", bytes, times[rounds / 2] * 1e6, times[0] * 1e6);
        fflush(stdout);
    }
    free(x);
    free(times);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    for (int i = 1; i < argc; i++) measure(atol(argv[i]), rank, ranks);
    MPI_Finalize();
}
