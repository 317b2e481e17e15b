/* RMS norm. Rows are independent; the weight's gradient is one partial sum per block of rows,
 * added up in block order. */
#include "kernels/cpu/cpu.h"

enum { BLOCK_ROWS = 64, BLOCK_COLUMNS = 256, TASK_ELEMENTS = 1 << 14 };

struct job {
    const struct sw_norm *norm;
    void *out;
    float *rstd;
    const float *rstd_in;
    const void *dy, *x, *w;
    float *partials, *dw;
    int64_t rows_per_task, blocks;
};

static void forward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t first = index * job->rows_per_task;
    (void)worker;
    sw_cpu_lanes()->rmsnorm_forward(job->norm, first,
                                    sw_cpu_min(first + job->rows_per_task, job->norm->rows),
                                    job->out, job->rstd, job->x, job->w);
}

void sw_cpu_rmsnorm_forward(struct sw_stream *stream, const struct sw_norm *norm, void *y,
                            float *rstd, const void *x, const void *w)
{
    struct job job = {.norm = norm, .out = y, .rstd = rstd, .x = x, .w = w};
    job.rows_per_task = sw_cpu_max(1, TASK_ELEMENTS / norm->width);
    sw_cpu_run(stream, forward_task, &job, sw_cpu_ceil_div(norm->rows, job.rows_per_task));
}

static void backward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t first = index * BLOCK_ROWS;
    (void)worker;
    sw_cpu_lanes()->rmsnorm_backward(
        job->norm, first, sw_cpu_min(first + BLOCK_ROWS, job->norm->rows), job->out,
        job->partials + index * job->norm->width, job->dy, job->x, job->rstd_in, job->w);
}

static void combine_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t column = index * BLOCK_COLUMNS;
    (void)worker;
    sw_cpu_lanes()->add_partials(job->dw + column, job->partials + column,
                                 sw_cpu_min(BLOCK_COLUMNS, job->norm->width - column),
                                 job->norm->width, job->blocks);
}

void sw_cpu_rmsnorm_backward(struct sw_stream *stream, const struct sw_norm *norm, void *dx,
                             float *dw, const void *dy, const void *x, const float *rstd,
                             const void *w, void *workspace)
{
    struct job job = {.norm = norm,
                      .out = dx,
                      .rstd_in = rstd,
                      .dy = dy,
                      .x = x,
                      .w = w,
                      .partials = workspace,
                      .dw = dw,
                      .blocks = sw_cpu_ceil_div(norm->rows, BLOCK_ROWS)};
    sw_cpu_run(stream, backward_task, &job, job.blocks);
    sw_cpu_run(stream, combine_task, &job, sw_cpu_ceil_div(norm->width, BLOCK_COLUMNS));
}

int64_t sw_cpu_rmsnorm_backward_workspace_bytes(const struct sw_norm *bound)
{
    return sw_cpu_ceil_div(bound->rows, BLOCK_ROWS) * bound->width * (int64_t)sizeof(float);
}
