#include "optim/adafactor.h"

#include "optim/walk.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    SPAN_ELEMENTS = 16 * SW_OPTIM_BLOCK, /* read twice, so that the second time it is in a cache */
    TASK_ELEMENTS = 16384,
    TASK_COLUMNS = 256,
};

/* ---- scratch ---- */

/* Of one trainable parameter. */
struct part {
    const struct sw_optim_param *param;
    float *row_state, *column_state; /* factored */
    float *exp_avg_sq;               /* else */
    double *row_sums;                /* [rows] squared gradients, then squared updates */
    double *weight_sums;             /* [rows] squared weights */
    double *column_sums;             /* [columns], factored */
    float *row_factor, *column_factor;
    double *rates; /* [2]: learning rate of the parameter, then as the update's size cuts it */
};

static int64_t part_scratch_bytes(const struct sw_optim_param *param)
{
    if (!param->trainable)
        return 0;
    int64_t rows = sw_adafactor_padded(param->rows);
    int64_t columns = param->factored ? sw_adafactor_padded(param->columns) : 0;
    int64_t doubles = 2 * rows + columns + 16, floats = rows + columns;
    return doubles * (int64_t)sizeof(double) + floats * (int64_t)sizeof(float);
}

int64_t sw_adafactor_scratch_bytes(const struct sw_optim_unit *unit)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < unit->param_count; i++)
        bytes += part_scratch_bytes(&unit->params[i]);
    return bytes;
}

int64_t sw_adafactor_state_elements(const struct sw_optim_unit *unit)
{
    return sw_adafactor_state_offset(unit, unit->param_count);
}

static struct part part_of(const struct sw_adafactor *a, int64_t index)
{
    const struct sw_optim_param *param = &a->unit->params[index];
    int64_t rows = sw_adafactor_padded(param->rows);
    int64_t columns = param->factored ? sw_adafactor_padded(param->columns) : 0;
    char *base = a->scratch;
    for (int64_t i = 0; i < index; i++)
        base += part_scratch_bytes(&a->unit->params[i]);
    double *doubles = (double *)(void *)base;
    float *floats = (float *)(void *)(doubles + 2 * rows + columns + 16);
    float *state = a->state + sw_adafactor_state_offset(a->unit, index);
    sw_assert(param->factored || param->rows == 1);
    return (struct part){
        .param = param,
        .row_state = param->factored ? state : NULL,
        .column_state = param->factored ? state + rows : NULL,
        .exp_avg_sq = param->factored ? NULL : state,
        .row_sums = doubles,
        .weight_sums = doubles + rows,
        .column_sums = param->factored ? doubles + 2 * rows : NULL,
        .rates = doubles + 2 * rows + columns,
        .row_factor = param->factored ? floats : NULL,
        .column_factor = param->factored ? floats + rows : NULL,
    };
}

bool sw_adafactor_phase_reads_weights(const struct sw_optim_settings *settings,
                                      enum sw_adafactor_phase phase)
{
    return phase == SW_ADAFACTOR_APPLY ||
           (phase == SW_ADAFACTOR_STATISTICS && settings->scale_parameter);
}

void sw_adafactor_begin(const struct sw_adafactor *a)
{
    sw_assert(a->settings->name == SW_OPTIM_ADAFACTOR && a->update->number >= 1);
    memset(a->scratch, 0, (size_t)sw_adafactor_scratch_bytes(a->unit));
}

/* Share of the old statistics in the new: 1 - number^-0.8. */
static double decay(const struct sw_adafactor *a)
{
    return 1.0 - pow((double)a->update->number, -0.8);
}

/* ---- one phase over one chunk ---- */

struct visit {
    const struct sw_adafactor *adafactor;
    enum sw_adafactor_phase phase;
    struct part part;
    struct sw_lanes_in gradient, weights; /* at unit element `base` */
    int64_t base;
    int64_t first, end; /* of the unit; this parameter only */
    int64_t first_row, row_count, rows_per_task;
};

/* A run of one row's elements, ready for the lanes. */
static struct sw_lanes_adafactor update_run(const struct sw_adafactor *a, const struct part *part,
                                            struct sw_lanes_in gradient, int64_t row,
                                            int64_t column)
{
    struct sw_lanes_adafactor run = {.gradient = gradient, .clip_scale = a->update->clip_scale};
    if (part->param->factored) {
        run.row_factor = part->row_factor[row];
        run.column_factor = part->column_factor + column;
    } else {
        run.exp_avg_sq = part->exp_avg_sq + column;
    }
    return run;
}

/* The pieces of one row: its elements in each block. */
static void visit_row(const struct visit *v, int64_t row)
{
    const struct part *part = &v->part;
    float clip_scale = v->adafactor->update->clip_scale;
    int64_t row_start = part->param->offset + row * part->param->columns;
    int64_t end = sw_min(v->end, row_start + part->param->columns);
    for (int64_t at = sw_max(v->first, row_start); at < end;) {
        int64_t stop = sw_min(end, (at / SW_OPTIM_BLOCK + 1) * SW_OPTIM_BLOCK);
        struct sw_lanes_in gradient = sw_lanes_in_at(v->gradient, at - v->base);
        if (v->phase == SW_ADAFACTOR_SIZE) {
            struct sw_lanes_adafactor run =
                update_run(v->adafactor, part, gradient, row, at - row_start);
            part->row_sums[row] += sw_lanes()->update_squares(&run, stop - at);
        } else {
            part->row_sums[row] += sw_lanes()->squares(&gradient, clip_scale, stop - at);
            if (v->adafactor->settings->scale_parameter) {
                struct sw_lanes_in weights = sw_lanes_in_at(v->weights, at - v->base);
                part->weight_sums[row] += sw_lanes()->squares(&weights, 1.0F, stop - at);
            }
        }
        at = stop;
    }
}

static void rows_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct visit *v = context;
    int64_t first = index * v->rows_per_task;
    int64_t last = sw_min(first + v->rows_per_task, v->row_count);
    for (int64_t row = first; row < last; row++)
        visit_row(v, v->first_row + row);
}

/* Column sums of a stripe of columns, rows in ascending order. */
static void columns_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct visit *v = context;
    int64_t columns = v->part.param->columns;
    int64_t left = index * TASK_COLUMNS, right = sw_min(columns, left + TASK_COLUMNS);
    for (int64_t row = v->first_row; row < v->first_row + v->row_count; row++) {
        int64_t row_start = v->part.param->offset + row * columns;
        int64_t at = sw_max(v->first, row_start + left), end = sw_min(v->end, row_start + right);
        if (at >= end)
            continue;
        struct sw_lanes_in gradient = sw_lanes_in_at(v->gradient, at - v->base);
        sw_lanes()->add_squares(&gradient, v->adafactor->update->clip_scale,
                                v->part.column_sums + (at - row_start), end - at);
    }
}

static void visit_param(struct sw_pool *pool, struct visit *v)
{
    const struct sw_optim_param *param = v->part.param;
    int64_t columns = param->columns;
    v->first_row = (v->first - param->offset) / columns;
    v->row_count = (v->end - param->offset + columns - 1) / columns - v->first_row;
    v->rows_per_task = sw_max(1, TASK_ELEMENTS / columns);
    sw_pool_run(pool, rows_task, v, (v->row_count + v->rows_per_task - 1) / v->rows_per_task);
    if (v->phase != SW_ADAFACTOR_STATISTICS)
        return;
    if (param->factored) {
        sw_pool_run(pool, columns_task, v, (columns + TASK_COLUMNS - 1) / TASK_COLUMNS);
        return;
    }
    double keep = decay(v->adafactor);
    struct sw_lanes_in gradient = sw_lanes_in_at(v->gradient, v->first - v->base);
    sw_lanes()->average_squares(&gradient, v->adafactor->update->clip_scale, (float)keep,
                                (float)(1.0 - keep), (float)v->adafactor->settings->eps1,
                                v->part.exp_avg_sq + (v->first - param->offset), v->end - v->first);
}

static void visit_sums(struct sw_pool *pool, const struct sw_adafactor *a,
                       enum sw_adafactor_phase phase, const struct sw_optim_chunk *chunk)
{
    struct sw_lanes_weights weights = sw_chunk_weights(a->settings, chunk);
    struct visit v = {
        .adafactor = a,
        .phase = phase,
        .gradient = sw_gradient_in(chunk->gradient, chunk->gradient_dtype),
        .weights = sw_lanes_in_weights(&weights),
        .base = chunk->first,
    };
    for (int64_t done = 0; done < chunk->count; done += SPAN_ELEMENTS) {
        struct sw_walk walk =
            sw_walk_start(a->unit, chunk->first + done, sw_min(SPAN_ELEMENTS, chunk->count - done));
        struct sw_run run;
        while (sw_walk_next(&walk, &run)) {
            if (run.param == NULL || !run.param->trainable)
                continue;
            v.part = part_of(a, run.param - a->unit->params);
            v.first = run.first;
            v.end = run.first + run.count;
            visit_param(pool, &v);
        }
    }
}

/* ---- applying ---- */

struct apply {
    const struct sw_adafactor *adafactor;
    struct sw_lanes_in gradient;
    struct sw_lanes_weights weights;
    int64_t first, count, task_elements;
};

static void apply_run(const struct apply *job, const struct sw_run *run)
{
    const struct sw_adafactor *a = job->adafactor;
    struct part part = part_of(a, run->param - a->unit->params);
    int64_t columns = run->param->columns, end = run->first + run->count;
    double decayed = run->param->decays ? part.rates[0] * a->settings->weight_decay : 0.0;
    float keep = (float)(1.0 - decayed), step = (float)part.rates[1];
    for (int64_t at = run->first; at < end;) {
        int64_t row = (at - run->param->offset) / columns;
        int64_t row_start = run->param->offset + row * columns;
        int64_t stop = sw_min(end, row_start + columns);
        struct sw_lanes_in gradient = sw_lanes_in_at(job->gradient, at - job->first);
        struct sw_lanes_weights weights = sw_lanes_weights_at(job->weights, at - job->first);
        struct sw_lanes_adafactor lanes = update_run(a, &part, gradient, row, at - row_start);
        sw_lanes()->update(&lanes, keep, step, &weights, stop - at);
        at = stop;
    }
}

static void apply_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct apply *job = context;
    int64_t offset = index * job->task_elements;
    struct sw_walk walk = sw_walk_start(job->adafactor->unit, job->first + offset,
                                        sw_min(job->task_elements, job->count - offset));
    struct sw_run run;
    while (sw_walk_next(&walk, &run)) {
        if (run.param != NULL && run.param->trainable) {
            apply_run(job, &run);
            continue;
        }
        struct sw_lanes_weights weights = sw_lanes_weights_at(job->weights, run.first - job->first);
        struct sw_lanes_in in = sw_lanes_in_weights(&weights);
        sw_lanes()->copy(&in, &weights, run.count);
    }
}

void sw_adafactor_visit(struct sw_pool *pool, const struct sw_adafactor *a,
                        enum sw_adafactor_phase phase, const struct sw_optim_chunk *chunk)
{
    sw_chunk_check(a->unit, chunk->first, chunk->count, SW_OPTIM_BLOCK);
    if (phase != SW_ADAFACTOR_APPLY) {
        visit_sums(pool, a, phase, chunk);
        return;
    }
    struct apply job = {
        .adafactor = a,
        .gradient = sw_gradient_in(chunk->gradient, chunk->gradient_dtype),
        .weights = sw_chunk_weights(a->settings, chunk),
        .first = chunk->first,
        .count = chunk->count,
        .task_elements = sw_task_elements(pool, chunk->count),
    };
    sw_pool_run(pool, apply_task, &job, (chunk->count + job.task_elements - 1) / job.task_elements);
}

/* ---- combining ---- */

static double sum_in_order(const double *values, int64_t count)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += values[i];
    return sum;
}

/* state = keep state + (1 - keep) (sum / count + eps), in double; kept finite, so that one
 * overflowing row leaves the others' factors meaningful. */
static void average(float *state, const double *sums, int64_t length, int64_t count, double keep,
                    double eps)
{
    for (int64_t i = 0; i < length; i++) {
        double mean = sums[i] / (double)count + eps;
        state[i] = (float)fmin(keep * (double)state[i] + (1.0 - keep) * mean, (double)FLT_MAX);
    }
}

static void finish_statistics(const struct sw_adafactor *a, struct part *part)
{
    const struct sw_optim_param *param = part->param;
    double keep = decay(a), eps = a->settings->eps1, size = 1.0;
    if (param->factored) {
        average(part->row_state, part->row_sums, param->rows, param->columns, keep, eps);
        average(part->column_state, part->column_sums, param->columns, param->rows, keep, eps);
        double mean = 0.0;
        for (int64_t i = 0; i < param->rows; i++)
            mean += (double)part->row_state[i];
        mean /= (double)param->rows;
        for (int64_t i = 0; i < param->rows; i++)
            part->row_factor[i] = (float)sqrt(mean / (double)part->row_state[i]);
        for (int64_t i = 0; i < param->columns; i++)
            part->column_factor[i] = (float)(1.0 / sqrt((double)part->column_state[i]));
    }
    if (a->settings->scale_parameter) {
        double sum = sum_in_order(part->weight_sums, param->rows);
        size = fmax(a->settings->eps2, sqrt(sum / (double)sw_param_elements(param)));
    }
    part->rates[0] = a->update->lr * size;
    memset(part->row_sums, 0, (size_t)param->rows * sizeof *part->row_sums);
}

static void finish_size(struct part *part)
{
    const struct sw_optim_param *param = part->param;
    double sum = sum_in_order(part->row_sums, param->rows);
    double size = sqrt(sum / (double)sw_param_elements(param));
    part->rates[1] = part->rates[0] / fmax(1.0, size);
}

struct finish {
    const struct sw_adafactor *adafactor;
    enum sw_adafactor_phase phase;
};

static void finish_task(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct finish *job = context;
    if (!job->adafactor->unit->params[index].trainable)
        return;
    struct part part = part_of(job->adafactor, index);
    if (job->phase == SW_ADAFACTOR_STATISTICS)
        finish_statistics(job->adafactor, &part);
    else if (job->phase == SW_ADAFACTOR_SIZE)
        finish_size(&part);
}

void sw_adafactor_finish(struct sw_pool *pool, const struct sw_adafactor *a,
                         enum sw_adafactor_phase phase)
{
    struct finish job = {.adafactor = a, .phase = phase};
    sw_pool_run(pool, finish_task, &job, a->unit->param_count);
}

void sw_optim_step_unit(struct sw_pool *pool, const struct sw_optim_settings *settings,
                        const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                        const struct sw_optim_chunk *chunk, float *factors, void *scratch)
{
    sw_assert(chunk->first == 0 && chunk->count == unit->elements);
    if (settings->name == SW_OPTIM_ADAMW) {
        sw_adamw_step(pool, settings, update, unit, chunk);
        return;
    }
    struct sw_adafactor a = {
        .settings = settings, .update = update, .unit = unit, .state = factors, .scratch = scratch};
    sw_adafactor_begin(&a);
    for (int phase = 0; phase < SW_ADAFACTOR_PHASES; phase++) {
        sw_adafactor_visit(pool, &a, (enum sw_adafactor_phase)phase, chunk);
        sw_adafactor_finish(pool, &a, (enum sw_adafactor_phase)phase);
    }
}
