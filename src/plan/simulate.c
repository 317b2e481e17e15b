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

/* Programs of many ranks have hundreds of queues of which few have an op under way, so what is
 * under way is listed, and a queue that waits is looked at again only when what it waits for moves.
 */
struct clock {
    const struct sw_program *program;
    sw_op_cost_fn cost;
    void *context;
    struct running *running; /* [queue_count] */
    int32_t *done;           /* [queue_count] */
    int32_t *met;            /* [queue_count] waits of the next op that are known to be over */
    int32_t *active;         /* [queue_count] queues with an op under way */
    int32_t active_count;
    int32_t *stirred; /* [queue_count] queues whose next op may start now */
    int32_t stirred_count;
    int32_t *first_waiter,
        *next_waiter; /* [queue_count] lists of queues by what they wait for; -1 */
    double now;
    double *device_seconds; /* [MOST_DEVICES][SW_RESOURCES] */
    double *load;           /* [MOST_DEVICES][SW_RESOURCES] asked for at present */
    double drives_longer;   /* than reads or writes alone do drives take at present; 1: no longer */
    struct sw_simulation result;
};

enum { MOST_DEVICES = 64 };

/* Devices have arithmetic and links of their own; the rest is the machine's. */
static bool is_of_device(int resource)
{
    return resource == SW_RESOURCE_DEVICE || resource == SW_RESOURCE_LINK_UP ||
           resource == SW_RESOURCE_LINK_DOWN || resource == SW_RESOURCE_LINK;
}

static int32_t place_of(const struct sw_op_cost *cost, int resource)
{
    return is_of_device(resource) ? cost->device % MOST_DEVICES : 0;
}

const char *sw_resource_name(enum sw_resource resource)
{
    static const char *const names[SW_RESOURCES] = {
        "device", "cpu", "host memory", "link up", "link down", "link both ways", "drives"};
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

/* The queue that the next op of queue `q` still waits for; -1: none. */
static int32_t awaited(struct clock *clock, int32_t q, const struct sw_op *op)
{
    for (int32_t *i = &clock->met[q]; *i < op->wait_count; ++*i) {
        const struct sw_wait *wait = &clock->program->waits[op->first_wait + *i];
        if (clock->done[wait->queue] < wait->count)
            return wait->queue;
    }
    return -1;
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

/* An op of the queue is over: whoever waits for that may go on. The queue itself is the caller's.
 */
static void finish(struct clock *clock, int32_t queue)
{
    clock->done[queue]++;
    clock->met[queue] = 0;
    int32_t waiter = clock->first_waiter[queue];
    clock->first_waiter[queue] = -1;
    for (; waiter >= 0; waiter = clock->next_waiter[waiter])
        clock->stirred[clock->stirred_count++] = waiter;
}

/* Start the queue's next op if its waits are over; ops that take no time are over at once. */
static void start_queue(struct clock *clock, int32_t q)
{
    struct running *running = &clock->running[q];
    const struct sw_queue *queue = &clock->program->queues[q];
    while (running->op == NULL && clock->done[q] < queue->count) {
        const struct sw_op *op = &clock->program->ops[queue->ops[clock->done[q]]];
        int32_t wanted = awaited(clock, q, op);
        if (wanted >= 0) {
            clock->next_waiter[q] = clock->first_waiter[wanted];
            clock->first_waiter[wanted] = q;
            return;
        }
        running->cost = (struct sw_op_cost){0};
        clock->cost(op, clock->context, &running->cost);
        account(clock, &running->cost);
        if (running->cost.seconds <= 0) {
            finish(clock, q);
            continue;
        }
        running->op = op;
        running->left = running->cost.seconds;
        clock->active[clock->active_count++] = q;
    }
}

static void start_ops(struct clock *clock)
{
    while (clock->stirred_count > 0)
        start_queue(clock, clock->stirred[--clock->stirred_count]);
}

static double *load_of(struct clock *clock, const struct sw_op_cost *cost, int resource)
{
    return &clock->load[place_of(cost, resource) * SW_RESOURCES + resource];
}

/* Times as long do drives take that are asked for `load`, `writes` of it by writes. */
static double drives_longer(const struct clock *clock, double load, double writes)
{
    double share = load > 0 ? writes / load : 0;
    return 1 + clock->result.drives_mixing * 4 * share * (1 - share);
}

/* How fast ops go on: 1 unless a resource that one uses is asked for more than there is. */
static void set_speeds(struct clock *clock)
{
    double writes = 0;
    memset(clock->load, 0, (size_t)MOST_DEVICES * SW_RESOURCES * sizeof *clock->load);
    for (int32_t i = 0; i < clock->active_count; i++) {
        const struct sw_op_cost *cost = &clock->running[clock->active[i]].cost;
        for (int r = 0; r < SW_RESOURCES; r++)
            *load_of(clock, cost, r) += (double)cost->load[r];
        writes += cost->writes ? (double)cost->load[SW_RESOURCE_DRIVES] : 0;
    }
    clock->drives_longer = drives_longer(clock, clock->load[SW_RESOURCE_DRIVES], writes);
    clock->load[SW_RESOURCE_DRIVES] *= clock->drives_longer;
    for (int32_t i = 0; i < clock->active_count; i++) {
        struct running *running = &clock->running[clock->active[i]];
        double most = 1.0;
        for (int r = 0; r < SW_RESOURCES; r++) {
            double load = running->cost.load[r] > 0 ? *load_of(clock, &running->cost, r) : 0;
            most = load > most ? load : most;
        }
        running->speed = 1.0 / most;
    }
}

/* `account` has counted an op's use of drives as if they did nothing else meanwhile. */
static void note_mixing(struct clock *clock, const struct running *running, double seconds)
{
    double *use = &clock->device_seconds[SW_RESOURCE_DRIVES];
    *use += seconds * running->speed * (double)running->cost.load[SW_RESOURCE_DRIVES] *
            (clock->drives_longer - 1);
    clock->result.resource_seconds[SW_RESOURCE_DRIVES] = *use;
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
    set_speeds(clock);
    for (int32_t i = 0; i < clock->active_count; i++) {
        const struct running *running = &clock->running[clock->active[i]];
        double wanted = running->left / running->speed;
        if (step < 0 || wanted < step)
            step = wanted;
    }
    if (step < 0)
        return false;
    clock->now += step;
    int32_t kept = 0, count = clock->active_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t q = clock->active[i];
        struct running *running = &clock->running[q];
        note_busy(clock, running->op, step);
        note_mixing(clock, running, step);
        running->left -= step * running->speed;
        if (running->left > 1e-12 * running->cost.seconds) {
            clock->active[kept++] = q;
            continue;
        }
        running->op = NULL;
        clock->stirred[clock->stirred_count++] = q;
        finish(clock, q);
    }
    clock->active_count = kept;
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

static bool open_clock(struct clock *clock)
{
    int64_t queues = clock->program->queue_count, places = (int64_t)MOST_DEVICES * SW_RESOURCES;
    clock->device_seconds = sw_calloc(places, sizeof *clock->device_seconds);
    clock->load = sw_calloc(places, sizeof *clock->load);
    clock->running = sw_calloc(queues, sizeof *clock->running);
    clock->done = sw_calloc(6 * queues, sizeof *clock->done);
    if (clock->device_seconds == NULL || clock->load == NULL || clock->running == NULL ||
        clock->done == NULL)
        return false;
    clock->met = clock->done + queues;
    clock->active = clock->met + queues;
    clock->stirred = clock->active + queues;
    clock->first_waiter = clock->stirred + queues;
    clock->next_waiter = clock->first_waiter + queues;
    for (int32_t q = 0; q < queues; q++) {
        clock->first_waiter[q] = clock->next_waiter[q] = -1;
        clock->stirred[clock->stirred_count++] = q;
    }
    return true;
}

sw_code sw_program_simulate(const struct sw_program *program, sw_op_cost_fn cost, void *context,
                            bool overlap, struct sw_simulation *out, struct sw_err *err)
{
    struct clock clock = {.program = program, .cost = cost, .context = context};
    double limit = out->give_up_seconds;
    clock.result.give_up_seconds = limit;
    clock.result.queue_seconds = out->queue_seconds;
    clock.result.drives_mixing = out->drives_mixing;
    sw_code code = SW_OK;
    if (!open_clock(&clock)) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to simulate %lld ops",
                       (long long)program->op_count);
    } else if (overlap) {
        do
            start_ops(&clock);
        while ((limit <= 0 || clock.now < limit) && advance(&clock));
        for (int32_t q = 0; q < program->queue_count; q++)
            sw_assert((limit > 0 && clock.now >= limit) ||
                      clock.done[q] == program->queues[q].count);
    } else {
        run_serially(&clock);
    }
    free(clock.device_seconds);
    free(clock.load);
    free(clock.running);
    free(clock.done);
    if (code != SW_OK)
        return code;
    clock.result.makespan_seconds = clock.now;
    *out = clock.result;
    return SW_OK;
}
