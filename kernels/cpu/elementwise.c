/* Feed-forward activations, residuals, and what else goes element by element. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mask.h"

#include <string.h>

enum { TASK_ELEMENTS = 1 << 14 };

struct job {
    const struct sw_ffn *ffn;
    const struct sw_rows *layout;
    const struct sw_dropout *dropout;
    enum sw_dtype dtype, x_dtype;
    void *y;
    const void *x, *r;
    const int32_t *index;
    int64_t rows, width, rows_per_task;
};

static void run_rows(struct sw_stream *stream, sw_task_fn task, struct job *job)
{
    if (job->rows <= 0 || job->width <= 0)
        return;
    job->rows_per_task = sw_cpu_max(1, TASK_ELEMENTS / job->width);
    sw_cpu_run(stream, task, job, sw_cpu_ceil_div(job->rows, job->rows_per_task));
}

static int64_t end_of(const struct job *job, int64_t index)
{
    return sw_cpu_min((index + 1) * job->rows_per_task, job->rows);
}

/* --- Feed-forward --------------------------------------------------------------------------------
 */

static void ffn_forward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_ffn *ffn = job->ffn;
    int64_t h_width = ffn->gated ? 2 * ffn->width : ffn->width;
    (void)worker;
    for (int64_t row = index * job->rows_per_task; row < end_of(job, index); row++) {
        struct sw_cpu_mask mask = sw_cpu_mask_of_token(&ffn->dropout, ffn->layout, row);
        sw_cpu_lanes()->ffn_forward(ffn, &mask,
                                    sw_cpu_at_mutable(job->y, row * ffn->width, ffn->dtype),
                                    sw_cpu_at(job->x, row * h_width, ffn->dtype));
    }
}

static void ffn_backward_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_ffn *ffn = job->ffn;
    int64_t h_width = ffn->gated ? 2 * ffn->width : ffn->width;
    (void)worker;
    for (int64_t row = index * job->rows_per_task; row < end_of(job, index); row++) {
        struct sw_cpu_mask mask = sw_cpu_mask_of_token(&ffn->dropout, ffn->layout, row);
        sw_cpu_lanes()->ffn_backward(ffn, &mask,
                                     sw_cpu_at_mutable(job->y, row * h_width, ffn->dtype),
                                     sw_cpu_at(job->r, row * ffn->width, ffn->dtype),
                                     sw_cpu_at(job->x, row * h_width, ffn->dtype));
    }
}

void sw_cpu_ffn_forward(struct sw_stream *stream, const struct sw_ffn *ffn, void *g, const void *h)
{
    struct job job = {.ffn = ffn, .y = g, .x = h, .rows = ffn->rows, .width = ffn->width};
    run_rows(stream, ffn_forward_task, &job);
}

void sw_cpu_ffn_backward(struct sw_stream *stream, const struct sw_ffn *ffn, void *dh,
                         const void *dg, const void *h)
{
    struct job job = {.ffn = ffn, .y = dh, .x = h, .r = dg, .rows = ffn->rows, .width = ffn->width};
    run_rows(stream, ffn_backward_task, &job);
}

/* --- Residuals -----------------------------------------------------------------------------------
 */

static void residual_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    (void)worker;
    for (int64_t row = index * job->rows_per_task; row < end_of(job, index); row++) {
        struct sw_cpu_mask mask = sw_cpu_mask_of_token(job->dropout, job->layout, row);
        int64_t at = row * job->width;
        sw_cpu_lanes()->residual(job->dtype, &mask, sw_cpu_at_mutable(job->y, at, job->dtype),
                                 job->x != NULL ? sw_cpu_at(job->x, at, job->dtype) : NULL,
                                 sw_cpu_at(job->r, at, job->dtype), job->width);
    }
}

void sw_cpu_residual_forward(struct sw_stream *stream, void *y, const void *x, const void *r,
                             int64_t width, const struct sw_rows *layout,
                             const struct sw_dropout *dropout, enum sw_dtype dtype)
{
    struct job job = {.layout = layout,
                      .dropout = dropout,
                      .dtype = dtype,
                      .y = y,
                      .x = x,
                      .r = r,
                      .rows = layout->tokens,
                      .width = width};
    run_rows(stream, residual_task, &job);
}

/* d(dropout(r)) is dropout(dy). */
void sw_cpu_residual_backward(struct sw_stream *stream, void *dr, const void *dy, int64_t width,
                              const struct sw_rows *layout, const struct sw_dropout *dropout,
                              enum sw_dtype dtype)
{
    sw_cpu_residual_forward(stream, dr, NULL, dy, width, layout, dropout, dtype);
}

/* --- Flat arrays, in pieces of TASK_ELEMENTS -----------------------------------------------------
 */

static void add_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_cpu_mask off = {.on = false};
    int64_t first = index * TASK_ELEMENTS;
    (void)worker;
    sw_cpu_lanes()->residual(job->dtype, &off, sw_cpu_at_mutable(job->y, first, job->dtype),
                             sw_cpu_at(job->y, first, job->dtype),
                             sw_cpu_at(job->x, first, job->dtype),
                             sw_cpu_min(TASK_ELEMENTS, job->rows - first));
}

void sw_cpu_add(struct sw_stream *stream, void *y, const void *x, int64_t count,
                enum sw_dtype dtype)
{
    struct job job = {.dtype = dtype, .y = y, .x = x, .rows = count};
    sw_cpu_run(stream, add_task, &job, sw_cpu_ceil_div(count, TASK_ELEMENTS));
}

static void convert_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t first = index * TASK_ELEMENTS;
    (void)worker;
    sw_cpu_lanes()->convert(sw_cpu_at_mutable(job->y, first, job->dtype), job->dtype,
                            sw_cpu_at(job->x, first, job->x_dtype), job->x_dtype,
                            sw_cpu_min(TASK_ELEMENTS, job->rows - first));
}

void sw_cpu_convert(struct sw_stream *stream, void *y, enum sw_dtype y_dtype, const void *x,
                    enum sw_dtype x_dtype, int64_t count)
{
    struct job job = {.dtype = y_dtype, .x_dtype = x_dtype, .y = y, .x = x, .rows = count};
    sw_assert(y_dtype != SW_F16 && x_dtype != SW_F16);
    sw_cpu_run(stream, convert_task, &job, sw_cpu_ceil_div(count, TASK_ELEMENTS));
}

static void gather_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    (void)worker;
    for (int64_t row = index * job->rows_per_task; row < end_of(job, index); row++)
        memcpy((char *)job->y + row * job->width,
               (const char *)job->x + job->index[row] * job->width, (size_t)job->width);
}

void sw_cpu_gather_rows(struct sw_stream *stream, void *y, const void *x, const int32_t *index,
                        int64_t rows, int64_t row_bytes)
{
    struct job job = {.y = y, .x = x, .index = index, .rows = rows, .width = row_bytes};
    run_rows(stream, gather_task, &job);
}
