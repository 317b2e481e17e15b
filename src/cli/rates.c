#include "cli/rates.h"

#include "base/mem.h"
#include "base/timing.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "optim/optim.h"

#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, GEMM_SIDE = 1024, COPY_TASK_BYTES = 1 << 20 };
enum { LEAST_PRODUCTS = 5, MOST_PRODUCTS = 64 };
/* What is held for so long is held for a step, too: in a shared machine, and with clocks that fall
 * under load, the best of a few products is not. */
static const double GEMM_SECONDS = 0.5;

/* --- memcpy
 * ----------------------------------------------------------------------------------------*/

struct copy {
    char *to, *from;
};

static void copy_task(void *context, int64_t index, int64_t worker)
{
    const struct copy *copy = context;
    (void)worker;
    memcpy(copy->to + index * COPY_TASK_BYTES, copy->from + index * COPY_TASK_BYTES,
           COPY_TASK_BYTES);
}

static sw_code measure_memcpy(struct sw_pool *pool, int64_t bytes, double *out_rate,
                              struct sw_err *err)
{
    int64_t tasks = (bytes + COPY_TASK_BYTES - 1) / COPY_TASK_BYTES;
    struct copy copy = {sw_aligned_alloc(tasks * COPY_TASK_BYTES),
                        sw_aligned_alloc(tasks * COPY_TASK_BYTES)};
    sw_code code = SW_OK;
    double seconds[REPEATS];
    if (copy.to == NULL || copy.from == NULL) {
        code =
            SW_FAIL(err, SW_E_MEMORY, "no memory to time copies of %lld bytes", (long long)bytes);
        goto out;
    }
    for (int i = 0; i < REPEATS; i++) {
        double begin = sw_seconds_now();
        sw_pool_run(pool, copy_task, &copy, tasks);
        seconds[i] = sw_seconds_now() - begin;
    }
    *out_rate = 2.0 * (double)(tasks * COPY_TASK_BYTES) / sw_median(seconds, REPEATS);
out:
    free(copy.to);
    free(copy.from);
    return code;
}

/* --- matrix products
 * -------------------------------------------------------------------------------*/

/* Products one after another; the median of their seconds. */
static sw_code time_products(struct sw_stream *stream, const struct sw_gemm *gemm,
                             double *out_seconds, struct sw_err *err)
{
    const struct sw_device_ops *ops = &sw_cpu_device_ops;
    double seconds[MOST_PRODUCTS], start = sw_seconds_now();
    int count = 0;
    while (count < MOST_PRODUCTS &&
           (count < LEAST_PRODUCTS || sw_seconds_now() - start < GEMM_SECONDS)) {
        double begin = sw_seconds_now();
        ops->kernels->gemm(stream, gemm);
        sw_code code = ops->stream_sync(stream, err);
        if (code != SW_OK)
            return code;
        seconds[count++] = sw_seconds_now() - begin;
    }
    *out_seconds = sw_median(seconds, count);
    return SW_OK;
}

static sw_code time_gemm(struct sw_device *device, double *out_rate, struct sw_err *err)
{
    const struct sw_device_ops *ops = &sw_cpu_device_ops;
    enum { BYTES = GEMM_SIDE * GEMM_SIDE * 4 };
    void *matrices[3];
    struct sw_stream *stream = NULL;
    for (int i = 0; i < 3; i++) {
        sw_code code = ops->alloc(device, BYTES, &matrices[i], err);
        if (code != SW_OK)
            return code;
        float *values = matrices[i];
        for (int64_t k = 0; k < (int64_t)GEMM_SIDE * GEMM_SIDE; k++)
            values[k] = (float)(k % 17) * 0.125F;
    }
    sw_code code = ops->stream_open(device, SW_STREAM_COMPUTE, &stream, err);
    if (code != SW_OK)
        return code;
    struct sw_gemm gemm = {.m = GEMM_SIDE,
                           .n = GEMM_SIDE,
                           .k = GEMM_SIDE,
                           .a = matrices[0],
                           .b = matrices[1],
                           .c = matrices[2],
                           .lda = GEMM_SIDE,
                           .ldb = GEMM_SIDE,
                           .ldc = GEMM_SIDE,
                           .alpha = 1,
                           .ab_dtype = SW_F32,
                           .c_dtype = SW_F32};
    double seconds = 0;
    code = time_products(stream, &gemm, &seconds, err);
    ops->stream_close(stream);
    if (code == SW_OK)
        *out_rate = 2.0 * GEMM_SIDE * GEMM_SIDE * GEMM_SIDE / seconds;
    return code;
}

sw_code sw_rates_measure_gemm(struct sw_pool *pool, double *out_rate, struct sw_err *err)
{
    struct sw_device *device = NULL;
    struct sw_device_config config = {.memory_bytes = 64 << 20, .pool = pool};
    sw_code code = sw_cpu_device_ops.open(&device, &config, err);
    if (code != SW_OK)
        return code;
    code = time_gemm(device, out_rate, err);
    sw_cpu_device_ops.close(device);
    return code;
}

int64_t sw_rates_elements(const struct sw_pool *pool, int64_t bytes_per_worker,
                          int64_t available_bytes)
{
    static const int64_t least = 64 << 20, most = (int64_t)4 << 30;
    int64_t bytes = sw_pool_workers(pool) * bytes_per_worker;
    if (bytes > most)
        bytes = most;
    if (bytes > available_bytes / 8)
        bytes = available_bytes / 8;
    return (bytes < least ? least : bytes) / 1024 * 64; /* 16 bytes an element */
}

sw_code sw_rates_measure(struct sw_pool *pool, int64_t elements, struct sw_machine *machine,
                         struct sw_err *err)
{
    struct sw_optim_bench bench;
    sw_code code = sw_optim_bench(pool, elements, &bench, err);
    if (code != SW_OK)
        return code;
    machine->triad_bytes_per_second = bench.triad_bytes_per_second;
    machine->optimizer_bytes_per_second = bench.adamw_bytes_per_second;
    code = measure_memcpy(pool, 8 * elements, &machine->memcpy_bytes_per_second, err);
    if (code == SW_OK)
        code = sw_rates_measure_gemm(pool, &machine->gemm_flops_per_second, err);
    return code;
}
