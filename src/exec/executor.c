#include "exec/executor.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct lane {
    struct sw_executor *executor;
    enum sw_lane lane;
    pthread_t thread;
    bool running; /* the thread was created */
    double busy_seconds;
};

struct event {
    double begin, end;
    enum sw_op_kind kind;
    enum sw_lane lane;
    int32_t block, unit, microbatch;
};

struct sw_executor {
    struct sw_executor_config config;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under `lock` */
    const struct sw_program *program;
    int64_t generation; /* counts programs: lanes notice a new one */
    int32_t done[SW_LANES];
    int lanes_left; /* lanes that have not finished this program */
    bool closing;
    struct sw_err error;
    struct event *events; /* NULL: not tracing */
    int64_t event_count, event_room;

    struct lane lanes[SW_LANES];
};

double sw_seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool waits_are_over(const struct sw_executor *executor, const struct sw_op *op)
{
    for (int lane = 0; lane < SW_LANES; lane++)
        if (executor->done[lane] < op->waits[lane])
            return false;
    return true;
}

/* With the lock held. */
static void record(struct sw_executor *executor, const struct sw_op *op, double begin, double end)
{
    if (executor->events == NULL || executor->event_count == executor->event_room)
        return;
    executor->events[executor->event_count++] =
        (struct event){begin, end, op->kind, op->lane, op->block, op->unit, op->microbatch};
}

/* Run one op without the lock; the lock is held before and after. */
static void run_op(struct sw_executor *executor, struct lane *lane, const struct sw_op *op)
{
    struct sw_err err;
    sw_err_init(&err);
    pthread_mutex_unlock(&executor->lock);
    double begin = sw_seconds_now();
    sw_code code = executor->config.run(executor->config.context, op, &err);
    double end = sw_seconds_now();
    pthread_mutex_lock(&executor->lock);
    lane->busy_seconds += end - begin;
    record(executor, op, begin, end);
    if (code != SW_OK && executor->error.code == SW_OK)
        executor->error = err;
    executor->done[op->lane]++;
}

/* A lane's part of the present program; the lock is held. */
static void run_lane(struct sw_executor *executor, struct lane *lane)
{
    const struct sw_program *program = executor->program;
    for (int32_t i = 0; i < program->lane_count[lane->lane]; i++) {
        const struct sw_op *op = &program->ops[program->lane_ops[lane->lane][i]];
        while (!waits_are_over(executor, op) && executor->error.code == SW_OK)
            pthread_cond_wait(&executor->changed, &executor->lock);
        if (executor->error.code != SW_OK)
            break;
        run_op(executor, lane, op);
        pthread_cond_broadcast(&executor->changed);
    }
    executor->lanes_left--;
    pthread_cond_broadcast(&executor->changed);
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
            pthread_cond_wait(&executor->changed, &executor->lock);
        if (executor->closing)
            break;
        seen = executor->generation;
        run_lane(executor, lane);
    }
    pthread_mutex_unlock(&executor->lock);
    return NULL;
}

sw_code sw_executor_open(struct sw_executor **out, const struct sw_executor_config *config,
                         struct sw_err *err)
{
    struct sw_executor *executor = sw_calloc(1, sizeof *executor);
    if (executor == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the executor");
    executor->config = *config;
    sw_err_init(&executor->error);
    pthread_mutex_init(&executor->lock, NULL);
    pthread_cond_init(&executor->changed, NULL);
    for (int i = 0; i < SW_LANES; i++) {
        struct lane *lane = &executor->lanes[i];
        lane->executor = executor;
        lane->lane = (enum sw_lane)i;
        if (!config->overlap)
            continue;
        int status = pthread_create(&lane->thread, NULL, lane_main, lane);
        if (status != 0) {
            sw_executor_close(executor);
            return SW_FAIL_OS(err, SW_E_FAILED, status, "cannot start a thread for lane %s",
                              sw_lane_name((enum sw_lane)i));
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
    pthread_cond_broadcast(&executor->changed);
    pthread_mutex_unlock(&executor->lock);
    for (int i = 0; i < SW_LANES; i++)
        if (executor->lanes[i].running)
            pthread_join(executor->lanes[i].thread, NULL);
    pthread_cond_destroy(&executor->changed);
    pthread_mutex_destroy(&executor->lock);
    free(executor->events);
    free(executor);
}

sw_code sw_executor_run(struct sw_executor *executor, const struct sw_program *program,
                        double *busy_seconds, struct sw_err *err)
{
    pthread_mutex_lock(&executor->lock);
    sw_err_init(&executor->error);
    executor->program = program;
    memset(executor->done, 0, sizeof executor->done);
    for (int i = 0; i < SW_LANES; i++)
        executor->lanes[i].busy_seconds = 0;
    if (executor->config.overlap) {
        executor->lanes_left = SW_LANES;
        executor->generation++;
        pthread_cond_broadcast(&executor->changed);
        while (executor->lanes_left > 0)
            pthread_cond_wait(&executor->changed, &executor->lock);
    } else {
        for (int64_t i = 0; i < program->op_count && executor->error.code == SW_OK; i++)
            run_op(executor, &executor->lanes[program->ops[i].lane], &program->ops[i]);
    }
    for (int i = 0; i < SW_LANES; i++)
        busy_seconds[i] += executor->lanes[i].busy_seconds;
    sw_code code = executor->error.code;
    if (code != SW_OK && err != NULL && err->code == SW_OK)
        *err = executor->error;
    pthread_mutex_unlock(&executor->lock);
    return code;
}

sw_code sw_executor_trace(struct sw_executor *executor, int64_t ops, struct sw_err *err)
{
    executor->events = sw_calloc(ops, sizeof *executor->events);
    if (executor->events == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to trace %lld ops", (long long)ops);
    executor->event_room = ops;
    return SW_OK;
}

sw_code sw_executor_write_trace(const struct sw_executor *executor, const char *path,
                                const char *(*block_name)(void *, int32_t),
                                const char *(*unit_name)(void *, int32_t), void *names,
                                struct sw_err *err)
{
    struct sw_text text = {0};
    double zero = executor->event_count > 0 ? executor->events[0].begin : 0;
    sw_text_add(&text, "{\"traceEvents\": [\n");
    for (int i = 0; i < SW_LANES; i++)
        sw_text_add(&text,
                    "{\"ph\": \"M\", \"pid\": 0, \"tid\": %d, \"name\": \"thread_name\", "
                    "\"args\": {\"name\": \"%s\"}},\n",
                    i, sw_lane_name((enum sw_lane)i));
    for (int64_t i = 0; i < executor->event_count; i++) {
        const struct event *event = &executor->events[i];
        const char *what = event->block >= 0  ? block_name(names, event->block)
                           : event->unit >= 0 ? unit_name(names, event->unit)
                                              : "";
        sw_text_add(&text,
                    "{\"ph\": \"X\", \"pid\": 0, \"tid\": %d, \"ts\": %.3f, \"dur\": %.3f, "
                    "\"name\": \"%s %s\", \"args\": {\"micro-batch\": %d}}%s\n",
                    (int)event->lane, 1e6 * (event->begin - zero),
                    1e6 * (event->end - event->begin), sw_op_name(event->kind), what,
                    (int)event->microbatch, i + 1 < executor->event_count ? "," : "");
    }
    sw_text_add(&text, "]}\n");
    sw_code code = sw_text_check(&text, path, err);
    if (code == SW_OK)
        code = sw_file_write_atomic(path, text.bytes, text.used_bytes, err);
    free(text.bytes);
    return code;
}
