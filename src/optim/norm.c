#include "optim/walk.h"

#include <math.h>

int64_t sw_norm_partial_count(int64_t elements)
{
    return (elements + SW_OPTIM_BLOCK - 1) / SW_OPTIM_BLOCK;
}

struct norm_job {
    const struct sw_optim_unit *unit;
    struct sw_lanes_in gradient;
    int64_t first, count;
    double *partials;
};

static void norm_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct norm_job *job = context;
    int64_t offset = index * SW_OPTIM_BLOCK;
    int64_t count = sw_min(SW_OPTIM_BLOCK, job->count - offset);
    struct sw_walk walk = sw_walk_start(job->unit, job->first + offset, count);
    struct sw_run run;
    double sum = 0.0;
    while (sw_walk_next(&walk, &run)) {
        if (run.param == NULL || !run.param->trainable)
            continue;
        struct sw_lanes_in in = sw_lanes_in_at(job->gradient, run.first - job->first);
        sum += sw_lanes()->squares(&in, 1.0F, run.count);
    }
    job->partials[index] = sum;
}

void sw_norm_partials(struct sw_pool *pool, const struct sw_optim_unit *unit, const void *gradient,
                      enum sw_dtype dtype, int64_t first, int64_t count, double *partials)
{
    sw_chunk_check(unit, first, count, SW_OPTIM_BLOCK);
    struct norm_job job = {.unit = unit,
                           .gradient = sw_gradient_in(gradient, dtype),
                           .first = first,
                           .count = count,
                           .partials = partials};
    sw_pool_run(pool, norm_task, &job, sw_norm_partial_count(count));
}

double sw_norm_sum(const double *partials, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += partials[i];
    return sum;
}

void sw_norm_finish(const struct sw_optim_settings *settings, double sum_of_squares,
                    struct sw_gradient_norm *out)
{
    double norm = sqrt(sum_of_squares), scale = 1.0;
    if (settings->max_grad_norm > 0.0)
        scale = fmin(1.0, settings->max_grad_norm / (norm + 1e-6));
    *out = (struct sw_gradient_norm){
        .norm = norm, .finite = isfinite(sum_of_squares), .clip_scale = (float)scale};
}
