#include "base/timing.h"

#include <stdlib.h>
#include <time.h>

double sw_seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sw_median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, ascending);
    return (values[(count - 1) / 2] + values[count / 2]) / 2;
}
