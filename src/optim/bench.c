#include "base/mem.h"
#include "base/random.h"
#include "base/timing.h"
#include "optim/walk.h"

#include <stdlib.h>

enum { REPEATS = 9, ARRAYS = 4, GRADIENT = 0, WEIGHTS, EXP_AVG, EXP_AVG_SQ };

struct job {
    float *arrays[ARRAYS]; /* [elements] each */
    int64_t elements, task_elements;
};

static void task_range(const struct job *job, int64_t index, int64_t *first, int64_t *count)
{
    *first = index * job->task_elements;
    *count = sw_min(job->task_elements, job->elements - *first);
}

/* Different magnitudes, none zero: neither subnormals nor shortcuts. Also the first touch of the
 * pages, by threads as they will be used. */
static void fill_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct job *job = context;
    static const uint32_t key[2] = {1, 2};
    int64_t first, count;
    task_range(job, index, &first, &count);
    for (int64_t i = first; i < first + count; i++) {
        uint32_t counter[4] = {(uint32_t)i, (uint32_t)(i >> 32), 0, 0}, words[4];
        sw_philox(key, counter, words);
        for (int a = 0; a < ARRAYS; a++)
            job->arrays[a][i] = sw_random_unit(words[a]) + 0x1p-10F;
    }
}

static void triad_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct job *job = context;
    int64_t first, count;
    task_range(job, index, &first, &count);
    sw_lanes()->triad(job->arrays[GRADIENT] + first, job->arrays[WEIGHTS] + first, 0.5F,
                      job->arrays[EXP_AVG] + first, count);
}

static int64_t tasks_of(const struct job *job)
{
    return (job->elements + job->task_elements - 1) / job->task_elements;
}

static double time_adamw(struct sw_pool *pool, const struct job *job, int64_t number)
{
    struct sw_optim_settings settings;
    sw_optim_settings_init(&settings, SW_OPTIM_ADAMW);
    settings.weight_decay = 0.01;
    struct sw_optim_param param = {
        .rows = 1, .columns = job->elements, .decays = true, .trainable = true};
    struct sw_optim_unit unit = {.params = &param, .param_count = 1, .elements = job->elements};
    struct sw_optim_update update = {.number = number, .lr = 1e-4, .clip_scale = 0.5F};
    struct sw_optim_chunk chunk = {
        .count = job->elements,
        .gradient = job->arrays[GRADIENT],
        .master = job->arrays[WEIGHTS],
        .exp_avg = job->arrays[EXP_AVG],
        .exp_avg_sq = job->arrays[EXP_AVG_SQ],
    };
    double start = sw_seconds_now();
    sw_adamw_step(pool, &settings, &update, &unit, &chunk);
    return sw_seconds_now() - start;
}

static double time_triad(struct sw_pool *pool, struct job *job)
{
    double start = sw_seconds_now();
    sw_pool_run(pool, triad_task, job, tasks_of(job));
    return sw_seconds_now() - start;
}

sw_code sw_optim_bench(struct sw_pool *pool, int64_t elements, struct sw_optim_bench *out,
                       struct sw_err *err)
{
    sw_code code = SW_OK;
    double adamw[REPEATS], triad[REPEATS];
    struct job job = {.elements = elements};
    int64_t bytes;
    if (elements <= 0 || elements % 64 != 0 ||
        !sw_size_mul(elements, (int64_t)sizeof(float), &bytes))
        return SW_FAIL(err, SW_E_USAGE, "%lld elements are not a multiple of 64",
                       (long long)elements);
    job.task_elements = sw_task_elements(pool, elements);
    for (int a = 0; a < ARRAYS; a++) {
        job.arrays[a] = sw_aligned_alloc(bytes);
        if (job.arrays[a] == NULL) {
            code =
                SW_FAIL(err, SW_E_MEMORY, "no memory for %lld elements of 16 bytes; measure fewer",
                        (long long)elements);
            goto out;
        }
    }
    sw_pool_run(pool, fill_task, &job, tasks_of(&job));
    /* Once each unmeasured; then in turn, so that a slower machine slows both. */
    for (int i = -1; i < REPEATS; i++) {
        adamw[i < 0 ? 0 : i] = time_adamw(pool, &job, i + 2);
        triad[i < 0 ? 0 : i] = time_triad(pool, &job);
    }
    *out = (struct sw_optim_bench){
        .elements = elements,
        .adamw_bytes_per_second = 28.0 * (double)elements / sw_median(adamw, REPEATS),
        .triad_bytes_per_second = 12.0 * (double)elements / sw_median(triad, REPEATS),
    };
    out->ratio = out->adamw_bytes_per_second / out->triad_bytes_per_second;
out:
    for (int a = 0; a < ARRAYS; a++)
        free(job.arrays[a]);
    return code;
}
