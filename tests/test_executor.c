/* The executor over programs made by hand. */
#include "tests/support.h"

#include "exec/executor.h"

#include <time.h>

/* FETCH on a deep lane, then FORWARD, which waits for it, then another FORWARD. */
enum { OPS = 3, QUEUES = SW_LANES };

struct tiny {
    struct sw_op ops[OPS];
    struct sw_wait wait;
    int32_t fetches[1], forwards[2];
    struct sw_queue queues[QUEUES];
    struct sw_program program;
};

static void make_tiny(struct tiny *tiny)
{
    *tiny = (struct tiny){.wait = {SW_LANE_FETCH, 1}, .fetches = {0}, .forwards = {1, 2}};
    for (int i = 0; i < OPS; i++) {
        tiny->ops[i] = i == 0 ? sw_op_blank(SW_OP_FETCH, SW_LANE_FETCH, 0)
                              : sw_op_blank(SW_OP_FORWARD, SW_LANE_COMPUTE, 0);
        tiny->ops[i].ordinal = i == 2 ? 1 : 0;
    }
    tiny->ops[1].wait_count = 1;
    tiny->queues[SW_LANE_FETCH] = (struct sw_queue){tiny->fetches, 1};
    tiny->queues[SW_LANE_COMPUTE] = (struct sw_queue){tiny->forwards, 2};
    tiny->program = (struct sw_program){.name = "tiny",
                                        .ops = tiny->ops,
                                        .op_count = OPS,
                                        .waits = &tiny->wait,
                                        .wait_count = 1,
                                        .queues = tiny->queues,
                                        .queue_count = QUEUES};
}

struct world {
    double fetch_seconds; /* that finish takes */
    int runs, starts, finishes, told;
    bool wrong;     /* an op began before its time, or in a wrong place */
    char text[512]; /* what was said first */
};

static sw_code run(void *context, const struct sw_op *op, struct sw_err *err)
{
    struct world *world = context;
    (void)err;
    world->wrong = world->wrong || op->kind != SW_OP_FORWARD || world->finishes != 1;
    world->runs++;
    return SW_OK;
}

static sw_code start(void *context, const struct sw_op *op, int place, struct sw_err *err)
{
    struct world *world = context;
    (void)err;
    world->wrong = world->wrong || op->kind != SW_OP_FETCH || place != 0;
    world->starts++;
    return SW_OK;
}

static sw_code finish(void *context, const struct sw_op *op, int place, struct sw_err *err)
{
    struct world *world = context;
    const struct timespec pause = {0, (long)(1e9 * world->fetch_seconds)};
    (void)op;
    (void)place;
    (void)err;
    nanosleep(&pause, NULL);
    world->finishes++;
    return SW_OK;
}

static void take_words(void *context, const char *text)
{
    struct world *world = context;
    if (world->told++ == 0)
        snprintf(world->text, sizeof world->text, "%s", text);
}

static const char *name(void *context, const struct sw_op *op)
{
    (void)context;
    return op->kind == SW_OP_FETCH ? "table" : "block 7";
}

static void run_tiny(struct world *world, double stall_seconds, bool overlap)
{
    struct tiny tiny;
    struct sw_executor *executor;
    struct sw_err err;
    double busy[SW_LANES] = {0};
    const struct sw_executor_config config = {.run = run,
                                              .start = start,
                                              .finish = finish,
                                              .deep = 1U << SW_LANE_FETCH,
                                              .context = world,
                                              .ranks = 1,
                                              .overlap = overlap,
                                              .stalled = take_words,
                                              .name = name,
                                              .stall_seconds = stall_seconds};
    sw_err_init(&err);
    make_tiny(&tiny);
    assert_ok(sw_executor_open(&executor, &config, &err), &err);
    assert_ok(sw_executor_run(executor, &tiny.program, busy, &err), &err);
    sw_executor_close(executor);
    assert_false(world->wrong);
    assert_int_equal(world->runs, 2);
    assert_int_equal(world->starts, 1);
    assert_true(busy[SW_LANE_FETCH] >= world->fetch_seconds);
}

static void lanes_that_stand_still_are_named(void **state)
{
    (void)state;
    struct world slow = {.fetch_seconds = 0.4}, quick = {.fetch_seconds = 0};
    run_tiny(&slow, 0.05, true);
    assert_true(slow.told >= 1);
    assert_non_null(strstr(slow.text, "no op has ended for"));
    assert_non_null(strstr(slow.text, "compute waits to begin forward of block 7 (op 1 of 2)"));
    assert_non_null(strstr(slow.text, "nvme_fetch is in fetch of table (op 1 of 1)"));
    run_tiny(&quick, 60, true);
    assert_int_equal(quick.told, 0);
}

static void one_after_the_other_is_the_same_work(void **state)
{
    (void)state;
    struct world world = {.fetch_seconds = 0.01};
    run_tiny(&world, 60, false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lanes_that_stand_still_are_named),
        cmocka_unit_test(one_after_the_other_is_the_same_work),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
