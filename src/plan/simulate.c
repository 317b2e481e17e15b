#include "plan/simulate.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* An op under way on a queue. */
struct running {
    const struct sw_op *op; /* NULL: none */
    struct sw_op_cost cost;
    double left; /* of its seconds */
    double speed;
};

struct clock {
    const struct sw_program *program;
    sw_op_cost_fn cost;
    void *context;
    struct running *running; /* [queue_count] */
    int32_t *done;           /* [queue_count] */
    double now;
    double *device_seconds; /* [MOST_DEVICES][SW_RESOURCES] */
    struct sw_simulation result;
};

enum { MOST_DEVICES = 64 };

/* Devices have arithmetic and links of their own; the rest is the machine's. */
static bool is_of_device(int resource)
{
    return resource == SW_RESOURCE_DEVICE || resource == SW_RESOURCE_LINK_UP ||
           resource == SW_RESOURCE_LINK_DOWN;
}

static int32_t place_of(const struct sw_op_cost *cost, int resource)
{
    return is_of_device(resource) ? cost->device % MOST_DEVICES : 0;
}

const char *sw_resource_name(enum sw_resource resource)
{
    static const char *const names[SW_RESOURCES] = {"device",  "cpu",       "host memory",
                                                    "link up", "link down", "drives"};
    return names[resource];
}

enum sw_resource sw_simulation_busiest(const struct sw_simulation *simulation)
{
    int busiest = 0;
    for (int i = 1; i < SW_RESOURCES; i++)
        if (simulation->resource_seconds[i] > simulation->resource_seconds[busiest])
            busiest = i;
    return (enum sw_resource)busiest;
}

static bool waits_are_over(const struct clock *clock, const struct sw_op *op)
{
    for (int32_t i = 0; i < op->wait_count; i++) {
        const struct sw_wait *wait = &clock->program->waits[op->first_wait + i];
        if (clock->done[wait->queue] < wait->count)
            return false;
    }
    return true;
}

static void account(struct clock *clock, const struct sw_op_cost *cost)
{
    for (int i = 0; i < SW_RESOURCES; i++) {
        double *seconds = &clock->device_seconds[place_of(cost, i) * SW_RESOURCES + i];
        *seconds += cost->seconds * (double)cost->load[i];
        if (*seconds > clock->result.resource_seconds[i])
            clock->result.resource_seconds[i] = *seconds;
    }
}

/* Start what can start; ops that take no time are over at once, which may let others start. */
static void start_ops(struct clock *clock)
{
    bool moved = true;
    while (moved) {
        moved = false;
        for (int32_t q = 0; q < clock->program->queue_count; q++) {
            struct running *running = &clock->running[q];
            const struct sw_queue *queue = &clock->program->queues[q];
            while (running->op == NULL && clock->done[q] < queue->count) {
                const struct sw_op *op = &clock->program->ops[queue->ops[clock->done[q]]];
                if (!waits_are_over(clock, op))
                    break;
                running->cost = (struct sw_op_cost){0};
                clock->cost(op, clock->context, &running->cost);
                account(clock, &running->cost);
                moved = true;
                if (running->cost.seconds <= 0) {
                    clock->done[q]++;
                    continue;
                }
                running->op = op;
                running->left = running->cost.seconds;
            }
        }
    }
}

/* How fast an op goes on: 1 unless a resource that it uses is asked for more than once. */
static double speed(const struct clock *clock, const struct running *running)
{
    double most = 1.0;
    for (int r = 0; r < SW_RESOURCES; r++) {
        if (running->cost.load[r] <= 0)
            continue;
        double load = 0;
        for (int32_t q = 0; q < clock->program->queue_count; q++)
            if (clock->running[q].op != NULL &&
                place_of(&clock->running[q].cost, r) == place_of(&running->cost, r))
                load += (double)clock->running[q].cost.load[r];
        most = load > most ? load : most;
    }
    return 1.0 / most;
}

static void note_busy(struct clock *clock, const struct sw_op *op, double seconds)
{
    clock->result.busy_seconds[op->lane] += seconds;
    if (clock->result.queue_seconds != NULL)
        clock->result.queue_seconds[sw_op_queue(op)] += seconds;
}

/* On to the next end of an op. False when nothing is under way. */
static bool advance(struct clock *clock)
{
    double step = -1;
    int32_t queues = clock->program->queue_count;
    for (int32_t q = 0; q < queues; q++) {
        struct running *running = &clock->running[q];
        if (running->op == NULL)
            continue;
        running->speed = speed(clock, running);
        double wanted = running->left / running->speed;
        if (step < 0 || wanted < step)
            step = wanted;
    }
    if (step < 0)
        return false;
    clock->now += step;
    for (int32_t q = 0; q < queues; q++) {
        struct running *running = &clock->running[q];
        if (running->op == NULL)
            continue;
        note_busy(clock, running->op, step);
        running->left -= step * running->speed;
    }
    for (int32_t q = 0; q < queues; q++) {
        struct running *running = &clock->running[q];
        if (running->op != NULL && running->left <= 1e-12 * running->cost.seconds) {
            running->op = NULL;
            clock->done[q]++;
        }
    }
    return true;
}

static void run_serially(struct clock *clock)
{
    for (int64_t i = 0; i < clock->program->op_count; i++) {
        const struct sw_op *op = &clock->program->ops[i];
        struct sw_op_cost cost = {0};
        clock->cost(op, clock->context, &cost);
        account(clock, &cost);
        clock->now += cost.seconds;
        note_busy(clock, op, cost.seconds);
    }
}

sw_code sw_program_simulate(const struct sw_program *program, sw_op_cost_fn cost, void *context,
                            bool overlap, struct sw_simulation *out, struct sw_err *err)
{
    struct clock clock = {.program = program, .cost = cost, .context = context};
    clock.result.queue_seconds = out->queue_seconds;
    clock.device_seconds =
        sw_calloc((int64_t)MOST_DEVICES * SW_RESOURCES, sizeof *clock.device_seconds);
    clock.running = sw_calloc(program->queue_count, sizeof *clock.running);
    clock.done = sw_calloc(program->queue_count, sizeof *clock.done);
    sw_code code = SW_OK;
    if (clock.running == NULL || clock.done == NULL || clock.device_seconds == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to simulate %lld ops",
                       (long long)program->op_count);
    } else if (overlap) {
        do
            start_ops(&clock);
        while (advance(&clock));
        for (int32_t q = 0; q < program->queue_count; q++)
            sw_assert(clock.done[q] == program->queues[q].count);
    } else {
        run_serially(&clock);
    }
    free(clock.device_seconds);
    free(clock.running);
    free(clock.done);
    if (code != SW_OK)
        return code;
    clock.result.makespan_seconds = clock.now;
    *out = clock.result;
    return SW_OK;
}
