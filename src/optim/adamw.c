#include "base/random.h"
#include "optim/walk.h"

#include <math.h>

enum { GROUP = 64, RANDOM_ELEMENTS = 1024 };

void sw_adamw_scalars(const struct sw_optim_settings *settings,
                      const struct sw_optim_update *update, struct sw_adamw_scalars *out)
{
    sw_assert(update->number >= 1);
    double number = (double)update->number;
    *out = (struct sw_adamw_scalars){
        .clip_scale = update->clip_scale,
        .beta1_rest = (float)(1.0 - settings->beta1),
        .beta2 = (float)settings->beta2,
        .beta2_rest = (float)(1.0 - settings->beta2),
        .root_scale = (float)(1.0 / sqrt(1.0 - pow(settings->beta2, number))),
        .eps = (float)settings->eps,
        .step_size = (float)(update->lr / (1.0 - pow(settings->beta1, number))),
        .keep = (float)(1.0 - update->lr * settings->weight_decay),
        .number = (uint32_t)update->number,
    };
    sw_random_key(settings->seed, SW_RANDOM_ROUNDING, out->rounding_key);
}

struct adamw_job {
    const struct sw_optim_unit *unit;
    struct sw_adamw_scalars scalars;
    struct sw_lanes_adamw run; /* at the chunk's first element */
    int64_t first, count, task_elements;
};

void sw_adamw_lanes(const struct sw_lanes_adamw *run, uint32_t unit, int64_t first, int64_t count)
{
    if (run->exp_avg != NULL) {
        sw_lanes()->adamw(run, count);
        return;
    }
    /* Random words come in groups on multiples of 64 elements of the unit. */
    _Alignas(64) uint32_t words[RANDOM_ELEMENTS];
    int64_t end = first + count;
    for (int64_t at = first; at < end;) {
        int64_t group = at / GROUP, start = group * GROUP;
        int64_t stop = sw_min(end, start + RANDOM_ELEMENTS);
        sw_lanes()->random(run->scalars->rounding_key, run->scalars->number, unit, group,
                           (stop - start + GROUP - 1) / GROUP, words);
        struct sw_lanes_adamw part = sw_lanes_adamw_at(*run, at - first);
        part.random = words + (at - start);
        sw_lanes()->adamw(&part, stop - at);
        at = stop;
    }
}

static void step_run(const struct adamw_job *job, const struct sw_run *part)
{
    struct sw_lanes_adamw run = sw_lanes_adamw_at(job->run, part->first - job->first);
    run.keep = part->param->decays ? job->scalars.keep : 1.0F;
    sw_adamw_lanes(&run, (uint32_t)job->unit->index, part->first, part->count);
}

static void adamw_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct adamw_job *job = context;
    int64_t offset = index * job->task_elements;
    struct sw_walk walk = sw_walk_start(job->unit, job->first + offset,
                                        sw_min(job->task_elements, job->count - offset));
    struct sw_run part;
    while (sw_walk_next(&walk, &part)) {
        if (part.param != NULL && part.param->trainable) {
            step_run(job, &part);
            continue;
        }
        struct sw_lanes_weights weights =
            sw_lanes_weights_at(job->run.weights, part.first - job->first);
        struct sw_lanes_in in = sw_lanes_in_weights(&weights);
        sw_lanes()->copy(&in, &weights, part.count);
    }
}

void sw_adamw_step(struct sw_pool *pool, const struct sw_optim_settings *settings,
                   const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                   const struct sw_optim_chunk *chunk)
{
    sw_assert(settings->name == SW_OPTIM_ADAMW);
    sw_chunk_check(unit, chunk->first, chunk->count, GROUP);
    struct adamw_job job = {
        .unit = unit,
        .first = chunk->first,
        .count = chunk->count,
        .task_elements = sw_task_elements(pool, chunk->count),
    };
    sw_adamw_scalars(settings, update, &job.scalars);
    job.run.scalars = &job.scalars;
    job.run.gradient = sw_gradient_in(chunk->gradient, chunk->gradient_dtype);
    job.run.weights = sw_chunk_weights(settings, chunk);
    if (settings->moments == SW_F32) {
        job.run.exp_avg = chunk->exp_avg;
        job.run.exp_avg_sq = chunk->exp_avg_sq;
    } else {
        job.run.exp_avg_bf16 = chunk->exp_avg;
        job.run.exp_avg_sq_bf16 = chunk->exp_avg_sq;
    }
    sw_pool_run(pool, adamw_task, &job, (chunk->count + job.task_elements - 1) / job.task_elements);
}
