/* Steps of the optimizer and sums of squares: the host optimizer's own loops, a task a piece. */
#include "kernels/cpu/cpu.h"
#include "optim/walk.h"

enum { TASK_ELEMENTS = 1 << 14 };

struct job {
    const struct sw_adamw_run *run;
    struct sw_lanes_adamw lanes;
    struct sw_lanes_in in;
    double *partials;
    int64_t first, count;
};

static struct sw_lanes_weights lanes_of(const struct sw_run_weights *weights)
{
    struct sw_lanes_weights lanes = {
        .f32 = weights->master, .high = weights->high, .low = weights->low};
    if (weights->copy != NULL && weights->copy_dtype == SW_F32)
        lanes.out_f32 = weights->copy;
    else
        lanes.out_bf16 = weights->copy;
    return lanes;
}

static void adamw_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t offset = index * TASK_ELEMENTS;
    struct sw_lanes_adamw lanes = sw_lanes_adamw_at(job->lanes, offset);
    (void)worker;
    sw_adamw_lanes(&lanes, job->run->unit, job->first + offset,
                   sw_cpu_min(TASK_ELEMENTS, job->count - offset));
}

void sw_cpu_adamw(struct sw_stream *stream, const struct sw_adamw_run *run)
{
    struct job job = {.run = run, .first = run->first, .count = run->count};
    job.lanes = (struct sw_lanes_adamw){
        .scalars = &run->scalars,
        .keep = run->keep,
        .gradient = sw_gradient_in(run->gradient, run->gradient_dtype),
        .weights = lanes_of(&run->weights),
    };
    if (run->moments_dtype == SW_F32) {
        job.lanes.exp_avg = run->exp_avg;
        job.lanes.exp_avg_sq = run->exp_avg_sq;
    } else {
        job.lanes.exp_avg_bf16 = run->exp_avg;
        job.lanes.exp_avg_sq_bf16 = run->exp_avg_sq;
    }
    sw_cpu_run(stream, adamw_task, &job, sw_cpu_ceil_div(run->count, TASK_ELEMENTS));
}

static void copy_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t offset = index * TASK_ELEMENTS;
    struct sw_lanes_weights weights = sw_lanes_weights_at(job->lanes.weights, offset);
    struct sw_lanes_in in = sw_lanes_in_weights(&weights);
    (void)worker;
    sw_lanes()->copy(&in, &weights, sw_cpu_min(TASK_ELEMENTS, job->count - offset));
}

void sw_cpu_weights_copy(struct sw_stream *stream, const struct sw_run_weights *weights,
                         int64_t count)
{
    struct job job = {.lanes.weights = lanes_of(weights), .count = count};
    sw_cpu_run(stream, copy_task, &job, sw_cpu_ceil_div(count, TASK_ELEMENTS));
}

/* What the range has in block `index` from the first one's. */
static void squares_task(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    int64_t block = job->first / SW_OPTIM_BLOCK + index;
    int64_t begin = sw_cpu_max(job->first, block * SW_OPTIM_BLOCK);
    int64_t end = sw_cpu_min(job->first + job->count, (block + 1) * SW_OPTIM_BLOCK);
    struct sw_lanes_in in = sw_lanes_in_at(job->in, begin - job->first);
    (void)worker;
    job->partials[index] += sw_lanes()->squares(&in, 1.0F, end - begin);
}

void sw_cpu_square_sums(struct sw_stream *stream, double *partials, const void *x,
                        enum sw_dtype dtype, int64_t first, int64_t count)
{
    struct job job = {
        .in = sw_gradient_in(x, dtype), .partials = partials, .first = first, .count = count};
    if (count > 0)
        sw_cpu_run(stream, squares_task, &job,
                   (first + count - 1) / SW_OPTIM_BLOCK - first / SW_OPTIM_BLOCK + 1);
}
