#include "exec/executor.h"

#include "base/mem.h"
#include "base/timing.h"
#include "exec/trace.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lane {
    struct sw_executor *executor;
    int32_t queue;
    pthread_t thread;
    bool running; /* the thread was created */
    bool deep;
    pthread_cond_t wake;
    /* under the lock */
    const struct sw_op *waiting; /* the op whose waits are not over; NULL: not asleep for one */
    int32_t done;
    double busy_seconds, busy_until;
    double started[SW_EXECUTOR_DEPTH]; /* when each op under way began */
};

struct sw_executor {
    struct sw_executor_config config;
    pthread_mutex_t lock;
    pthread_cond_t finished;
    /* under `lock` */
    const struct sw_program *program;
    int64_t generation; /* counts programs: lanes notice a new one */
    int lanes_left;     /* lanes that have not finished this program */
    bool closing;
    int64_t ended; /* ops, of all programs */
    struct sw_err error;
    struct sw_trace *trace; /* NULL: not tracing */

    int32_t lane_count;
    struct lane lanes[];
};

static bool waits_are_over(const struct sw_executor *executor, const struct sw_op *op)
{
    for (int32_t i = 0; i < op->wait_count; i++) { /* a program without waits has no array */
        const struct sw_wait *wait = &executor->program->waits[op->first_wait + i];
        if (executor->lanes[wait->queue].done < wait->count)
            return false;
    }
    return true;
}

/* ---- all with the lock held ---- */

/* Wake the lanes that can go on: after an op, or after a failure. */
static void wake_lanes(struct sw_executor *executor)
{
    for (int32_t i = 0; i < executor->lane_count; i++) {
        struct lane *lane = &executor->lanes[i];
        if (lane->waiting != NULL &&
            (executor->error.code != SW_OK || waits_are_over(executor, lane->waiting))) {
            lane->waiting = NULL;
            pthread_cond_signal(&lane->wake);
        }
    }
}

static void fail(struct sw_executor *executor, const struct sw_err *err)
{
    if (executor->error.code == SW_OK)
        executor->error = *err;
    wake_lanes(executor);
}

static void note_done(struct sw_executor *executor, struct lane *lane, const struct sw_op *op,
                      double begin, double end)
{
    if (begin < lane->busy_until)
        begin = lane->busy_until;
    lane->busy_seconds += end - begin;
    lane->busy_until = end;
    if (executor->trace != NULL)
        sw_trace_add(executor->trace, op, begin, end);
    lane->done++;
    executor->ended++;
    wake_lanes(executor);
}

/* ---- the lock is given up while an op runs ---- */

static void run_op(struct sw_executor *executor, struct lane *lane, const struct sw_op *op)
{
    struct sw_err err;
    sw_err_init(&err);
    pthread_mutex_unlock(&executor->lock);
    double begin = sw_seconds_now();
    sw_code code = executor->config.run(executor->config.context, op, &err);
    double end = sw_seconds_now();
    pthread_mutex_lock(&executor->lock);
    if (code != SW_OK)
        fail(executor, &err);
    note_done(executor, lane, op, begin, end);
}

static bool start_op(struct sw_executor *executor, struct lane *lane, const struct sw_op *op)
{
    struct sw_err err;
    sw_err_init(&err);
    int place = op->ordinal % SW_EXECUTOR_DEPTH;
    pthread_mutex_unlock(&executor->lock);
    double begin = sw_seconds_now();
    sw_code code = executor->config.start(executor->config.context, op, place, &err);
    pthread_mutex_lock(&executor->lock);
    lane->started[place] = begin;
    if (code != SW_OK)
        fail(executor, &err);
    return code == SW_OK;
}

static void finish_op(struct sw_executor *executor, struct lane *lane, const struct sw_op *op)
{
    struct sw_err err;
    sw_err_init(&err);
    int place = op->ordinal % SW_EXECUTOR_DEPTH;
    pthread_mutex_unlock(&executor->lock);
    sw_code code = executor->config.finish(executor->config.context, op, place, &err);
    double end = sw_seconds_now();
    pthread_mutex_lock(&executor->lock);
    if (code != SW_OK)
        fail(executor, &err);
    note_done(executor, lane, op, lane->started[place], end);
}

static const struct sw_op *op_of(const struct sw_executor *executor, const struct lane *lane,
                                 int32_t ordinal)
{
    const struct sw_queue *queue = &executor->program->queues[lane->queue];
    return ordinal < queue->count ? &executor->program->ops[queue->ops[ordinal]] : NULL;
}

static void sleep_for(struct sw_executor *executor, struct lane *lane, const struct sw_op *op)
{
    lane->waiting = op;
    while (lane->waiting != NULL && !executor->closing)
        pthread_cond_wait(&lane->wake, &executor->lock);
    lane->waiting = NULL;
}

/* A lane's part of the present program. */
static void run_lane(struct sw_executor *executor, struct lane *lane)
{
    const struct sw_op *op;
    while ((op = op_of(executor, lane, lane->done)) != NULL && executor->error.code == SW_OK) {
        if (waits_are_over(executor, op))
            run_op(executor, lane, op);
        else
            sleep_for(executor, lane, op);
    }
}

static void run_deep_lane(struct sw_executor *executor, struct lane *lane)
{
    int32_t issued = 0;
    for (;;) {
        const struct sw_op *next = op_of(executor, lane, issued);
        bool failed = executor->error.code != SW_OK;
        bool room = issued - lane->done < SW_EXECUTOR_DEPTH;
        if (next != NULL && !failed && room && waits_are_over(executor, next))
            issued += start_op(executor, lane, next) ? 1 : 0;
        else if (issued > lane->done)
            finish_op(executor, lane, op_of(executor, lane, lane->done));
        else if (next != NULL && !failed)
            sleep_for(executor, lane, next);
        else
            return;
    }
}

static void *lane_main(void *context)
{
    struct lane *lane = context;
    struct sw_executor *executor = lane->executor;
    int64_t seen = 0;
    sw_memory_thread_is_engine();
    pthread_mutex_lock(&executor->lock);
    for (;;) {
        while (executor->generation == seen && !executor->closing)
            pthread_cond_wait(&lane->wake, &executor->lock);
        if (executor->closing)
            break;
        seen = executor->generation;
        if (op_of(executor, lane, 0) == NULL) /* not counted in lanes_left */
            continue;
        if (lane->deep)
            run_deep_lane(executor, lane);
        else
            run_lane(executor, lane);
        if (--executor->lanes_left == 0)
            pthread_cond_signal(&executor->finished);
    }
    pthread_mutex_unlock(&executor->lock);
    return NULL;
}

/* ---- */

sw_code sw_executor_open(struct sw_executor **out, const struct sw_executor_config *config,
                         struct sw_err *err)
{
    int32_t lanes = config->ranks * SW_LANES;
    struct sw_executor *executor =
        sw_calloc(1, (int64_t)(sizeof *executor + (size_t)lanes * sizeof *executor->lanes));
    if (executor == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the executor");
    executor->config = *config;
    executor->lane_count = lanes;
    sw_err_init(&executor->error);
    pthread_mutex_init(&executor->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&executor->finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    for (int32_t i = 0; i < lanes; i++) {
        executor->lanes[i].executor = executor;
        executor->lanes[i].queue = i;
        executor->lanes[i].deep = (config->deep >> i % SW_LANES & 1) != 0;
        pthread_cond_init(&executor->lanes[i].wake, NULL);
    }
    for (int32_t i = 0; i < lanes && config->overlap; i++) {
        struct lane *lane = &executor->lanes[i];
        int status = pthread_create(&lane->thread, NULL, lane_main, lane);
        if (status != 0) {
            sw_executor_close(executor);
            return SW_FAIL_OS(err, SW_E_FAILED, status, "cannot start a thread for lane %s",
                              sw_lane_name((enum sw_lane)(i % SW_LANES)));
        }
        lane->running = true;
    }
    *out = executor;
    return SW_OK;
}

void sw_executor_close(struct sw_executor *executor)
{
    if (executor == NULL)
        return;
    pthread_mutex_lock(&executor->lock);
    executor->closing = true;
    for (int32_t i = 0; i < executor->lane_count; i++)
        pthread_cond_signal(&executor->lanes[i].wake);
    pthread_mutex_unlock(&executor->lock);
    for (int32_t i = 0; i < executor->lane_count; i++) {
        if (executor->lanes[i].running)
            pthread_join(executor->lanes[i].thread, NULL);
        pthread_cond_destroy(&executor->lanes[i].wake);
    }
    pthread_cond_destroy(&executor->finished);
    pthread_mutex_destroy(&executor->lock);
    sw_trace_close(executor->trace);
    free(executor);
}

/* ---- nothing ends ---- */

/* What a lane is in or waits for; nothing for one that is through. Into `text`, from `at` on; the
 * memory is sealed, so of a fixed size. */
static size_t describe_lane(const struct sw_executor *executor, const struct lane *lane, char *text,
                            size_t at, size_t size)
{
    const struct sw_op *op = op_of(executor, lane, lane->done);
    if (op == NULL || at >= size)
        return at;
    const struct sw_executor_config *config = &executor->config;
    int count = snprintf(text + at, size - at, "; %s%s %s of %s (op %d of %d)",
                         sw_lane_name((enum sw_lane)(lane->queue % SW_LANES)),
                         lane->waiting != NULL ? " waits to begin" : " is in", sw_op_name(op->kind),
                         config->name(config->context, op), (int)lane->done + 1,
                         (int)executor->program->queues[lane->queue].count);
    return at + (size_t)count;
}

static void tell_of_stall(struct sw_executor *executor, double seconds)
{
    char text[4096];
    size_t at = (size_t)snprintf(text, sizeof text, "no op has ended for %.0f s", seconds);
    for (int32_t i = 0; i < executor->lane_count; i++)
        at = describe_lane(executor, &executor->lanes[i], text, at, sizeof text);
    pthread_mutex_unlock(&executor->lock);
    executor->config.stalled(executor->config.context, text);
    pthread_mutex_lock(&executor->lock);
}

/* Sleep until all lanes are through, or for as long as makes a stall. */
static void wait_for_lanes(struct sw_executor *executor)
{
    if (executor->config.stalled == NULL) {
        pthread_cond_wait(&executor->finished, &executor->lock);
        return;
    }
    int64_t ended = executor->ended;
    double begin = sw_seconds_now(), until = begin + executor->config.stall_seconds;
    struct timespec limit = {.tv_sec = (time_t)until};
    limit.tv_nsec = (long)(1e9 * (until - (double)limit.tv_sec));
    int status = 0;
    while (executor->lanes_left > 0 && status != ETIMEDOUT)
        status = pthread_cond_timedwait(&executor->finished, &executor->lock, &limit);
    if (executor->lanes_left > 0 && executor->ended == ended)
        tell_of_stall(executor, sw_seconds_now() - begin);
}

static void run_in_lanes(struct sw_executor *executor)
{
    executor->lanes_left = 0;
    executor->generation++;
    for (int32_t i = 0; i < executor->lane_count; i++)
        if (executor->program->queues[i].count > 0) {
            executor->lanes_left++;
            pthread_cond_signal(&executor->lanes[i].wake);
        }
    while (executor->lanes_left > 0)
        wait_for_lanes(executor);
}

static void run_serially(struct sw_executor *executor)
{
    const struct sw_program *program = executor->program;
    for (int64_t i = 0; i < program->op_count && executor->error.code == SW_OK; i++) {
        const struct sw_op *op = &program->ops[i];
        struct lane *lane = &executor->lanes[sw_op_queue(op)];
        if (!lane->deep)
            run_op(executor, lane, op);
        else if (start_op(executor, lane, op))
            finish_op(executor, lane, op);
    }
}

sw_code sw_executor_run(struct sw_executor *executor, const struct sw_program *program,
                        double *busy_seconds, struct sw_err *err)
{
    sw_assert(program->queue_count == executor->lane_count);
    pthread_mutex_lock(&executor->lock);
    sw_err_init(&executor->error);
    executor->program = program;
    for (int32_t i = 0; i < executor->lane_count; i++) {
        executor->lanes[i].busy_seconds = executor->lanes[i].busy_until = 0;
        executor->lanes[i].done = 0;
    }
    if (executor->config.overlap)
        run_in_lanes(executor);
    else
        run_serially(executor);
    for (int32_t i = 0; i < executor->lane_count; i++)
        busy_seconds[i % SW_LANES] += executor->lanes[i].busy_seconds;
    sw_code code = executor->error.code;
    if (code != SW_OK && err != NULL && err->code == SW_OK)
        *err = executor->error;
    pthread_mutex_unlock(&executor->lock);
    return code;
}

sw_code sw_executor_trace(struct sw_executor *executor, int64_t ops, struct sw_err *err)
{
    return sw_trace_open(&executor->trace, ops, err);
}

sw_code sw_executor_write_trace(const struct sw_executor *executor, const char *path,
                                const char *(*block_name)(void *, int32_t),
                                const char *(*unit_name)(void *, int32_t), void *names,
                                struct sw_err *err)
{
    const struct sw_trace_names labels = {block_name, unit_name, names};
    return sw_trace_write(executor->trace, path, &labels, err);
}
