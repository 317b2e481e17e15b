/* Embedding rows and the relative position bias. The table's gradient is summed in token order:
 * tasks own columns, so no two write one element. */
#include "kernels/cpu/cpu.h"

#include <string.h>

enum { TASK_ELEMENTS = 1 << 14, BLOCK_COLUMNS = 128 };

struct job {
    void *x;
    const void *table, *dx;
    float *dtable;
    const int32_t *ids;
    int64_t tokens, width, vocabulary, tokens_per_task;
    enum sw_dtype dtype;
};

static void forward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t first = index * job->tokens_per_task;
    int64_t end = sw_cpu_min(first + job->tokens_per_task, job->tokens);
    int64_t row_bytes = job->width * sw_dtype_bytes(job->dtype);
    (void)worker;
    for (int64_t t = first; t < end; t++)
        memcpy((char *)job->x + t * row_bytes, (const char *)job->table + job->ids[t] * row_bytes,
               (size_t)row_bytes);
}

void sw_cpu_embedding_forward(struct sw_stream *stream, void *x, const void *table,
                              const int32_t *ids, int64_t tokens, int64_t width,
                              enum sw_dtype dtype)
{
    struct job job = {.x = x,
                      .table = table,
                      .ids = ids,
                      .tokens = tokens,
                      .width = width,
                      .tokens_per_task = sw_cpu_max(1, TASK_ELEMENTS / width),
                      .dtype = dtype};
    sw_cpu_run(stream, forward_task, &job, sw_cpu_ceil_div(tokens, job.tokens_per_task));
}

static void backward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    int64_t column = index * BLOCK_COLUMNS;
    int64_t columns = sw_cpu_min(BLOCK_COLUMNS, job->width - column);
    (void)worker;
    for (int64_t t = 0; t < job->tokens; t++) {
        sw_assert(job->ids[t] >= 0 && job->ids[t] < job->vocabulary);
        lanes->accumulate(job->dtable + job->ids[t] * job->width + column,
                          sw_cpu_at(job->dx, t * job->width + column, job->dtype), job->dtype,
                          columns);
    }
}

void sw_cpu_embedding_backward(struct sw_stream *stream, float *dtable, const void *dx,
                               const int32_t *ids, int64_t tokens, int64_t width,
                               int64_t vocabulary, enum sw_dtype dtype, void *workspace)
{
    struct job job = {.dx = dx,
                      .dtable = dtable,
                      .ids = ids,
                      .tokens = tokens,
                      .width = width,
                      .vocabulary = vocabulary,
                      .dtype = dtype};
    (void)workspace;
    sw_cpu_run(stream, backward_task, &job, sw_cpu_ceil_div(width, BLOCK_COLUMNS));
}

int64_t sw_cpu_embedding_backward_workspace_bytes(int64_t tokens, int64_t width, int64_t vocabulary)
{
    (void)tokens;
    (void)width;
    (void)vocabulary;
    return 0;
}

void sw_cpu_bias_expand(struct sw_stream *stream, float *bias, const void *table,
                        enum sw_dtype dtype, const int32_t *bucket_of, int64_t buckets,
                        int64_t heads, int64_t reach)
{
    int64_t entries = 2 * reach - 1;
    if (sw_cpu_failed(stream))
        return;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t e = 0; e < entries; e++) {
            int64_t at = bucket_of[e] * heads + h;
            sw_assert(bucket_of[e] >= 0 && bucket_of[e] < buckets);
            bias[h * entries + e] = dtype == SW_F32
                                        ? ((const float *)table)[at]
                                        : sw_bf16_to_float(((const uint16_t *)table)[at]);
        }
    }
}

void sw_cpu_bias_reduce(struct sw_stream *stream, float *dtable, const float *dbias,
                        const int32_t *bucket_of, int64_t buckets, int64_t heads, int64_t reach)
{
    int64_t entries = 2 * reach - 1;
    if (sw_cpu_failed(stream))
        return;
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t e = 0; e < entries; e++) {
            sw_assert(bucket_of[e] >= 0 && bucket_of[e] < buckets);
            dtable[bucket_of[e] * heads + h] += dbias[h * entries + e];
        }
    }
}
