#include "plan/program.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *const LANE_NAMES[SW_LANES] = {
    "compute",   "ends",       "h2d",         "d2h",         "send",
    "recv",      "collective", "state_up",    "device_step", "state_down",
    "optimizer", "state_read", "state_write", "nvme_fetch",  "nvme_spill"};

static const char *const OP_NAMES[SW_OP_KINDS] = {
    [SW_OP_BATCH] = "batch",
    [SW_OP_FORWARD] = "forward",
    [SW_OP_HEAD] = "head",
    [SW_OP_BACKWARD] = "backward",
    [SW_OP_BIAS] = "bias",
    [SW_OP_PARTIALS] = "partials",
    [SW_OP_NORM] = "norm",
    [SW_OP_STEP] = "step",
    [SW_OP_READ] = "read",
    [SW_OP_WRITE] = "write",
    [SW_OP_FETCH] = "fetch",
    [SW_OP_UPLOAD] = "upload",
    [SW_OP_DOWNLOAD] = "download",
    [SW_OP_SPILL] = "spill",
    [SW_OP_SEND] = "send",
    [SW_OP_RECV] = "recv",
    [SW_OP_REDUCE] = "reduce",
    [SW_OP_GATHER] = "gather",
    [SW_OP_DECODE_BEGIN] = "decode begin",
    [SW_OP_DECODE_CROSS] = "decode cross",
    [SW_OP_DECODE_EMBED] = "decode embed",
    [SW_OP_DECODE_BLOCK] = "decode block",
    [SW_OP_DECODE_HEAD] = "decode head",
};

const char *sw_lane_name(enum sw_lane lane)
{
    return LANE_NAMES[lane];
}

const char *sw_op_name(enum sw_op_kind kind)
{
    return OP_NAMES[kind];
}

/* Of a resource and a queue: how many of its ops must be done for the last writer, for those that
 * added since, and for all readers since. Few queues have to do with one resource, so each has a
 * list. */
struct uses {
    int32_t queue;
    int32_t written, added, read;
    int64_t next; /* of builder->lists; -1: the last */
};

struct sw_program_builder {
    struct sw_program *program;
    int64_t capacity;
    uint32_t unordered;
    struct uses *lists;
    int64_t list_count, list_capacity;
    int64_t spare_list; /* free ones; -1: none */
    int64_t *first;     /* [resource_count] of lists; -1: none */
    int32_t *counts;    /* [queue_count] of the op at hand */
    int32_t *awaited;   /* [queue_count] queues whose count is not 0 */
    int32_t awaited_count;
    int64_t wait_capacity, use_capacity;
    bool failed;
    struct sw_op spare; /* what calls write to after a failure */
};

struct sw_program_builder *sw_program_begin(const char *name, int32_t ranks, int64_t resources,
                                            uint32_t unordered)
{
    struct sw_program_builder *builder = sw_calloc(1, sizeof *builder);
    if (builder == NULL)
        return NULL;
    int32_t queues = ranks * SW_LANES;
    builder->unordered = unordered;
    builder->program = sw_calloc(1, sizeof *builder->program);
    builder->first = sw_calloc(resources > 0 ? resources : 1, sizeof *builder->first);
    builder->counts = sw_calloc(queues, sizeof *builder->counts);
    builder->awaited = sw_calloc(queues, sizeof *builder->awaited);
    builder->spare_list = -1;
    builder->failed = builder->program == NULL || builder->first == NULL ||
                      builder->counts == NULL || builder->awaited == NULL;
    if (builder->failed)
        return builder;
    for (int64_t i = 0; i < resources; i++)
        builder->first[i] = -1;
    builder->program->name = name;
    builder->program->resource_count = resources;
    builder->program->queues = sw_calloc(queues, sizeof *builder->program->queues);
    builder->program->queue_count = queues;
    builder->failed = builder->program->queues == NULL;
    return builder;
}

static struct sw_op *last_op(struct sw_program_builder *builder)
{
    if (builder->failed)
        return &builder->spare;
    return &builder->program->ops[builder->program->op_count - 1];
}

struct sw_op sw_op_blank(enum sw_op_kind kind, enum sw_lane lane, int32_t rank)
{
    return (struct sw_op){.kind = kind,
                          .lane = lane,
                          .rank = rank,
                          .peer = -1,
                          .block = -1,
                          .unit = -1,
                          .microbatch = -1,
                          .context = -1,
                          .weights = -1,
                          .gradient = -1,
                          .input = -1,
                          .output = -1,
                          .memory = -1,
                          .buffer = -1,
                          .stepping = -1};
}

struct sw_op *sw_program_add(struct sw_program_builder *builder, enum sw_op_kind kind,
                             enum sw_lane lane, int32_t rank)
{
    struct sw_program *program = builder->program;
    if (!builder->failed && !sw_array_reserve((void **)&program->ops, &builder->capacity,
                                              program->op_count, sizeof *program->ops))
        builder->failed = true;
    if (!builder->failed)
        program->op_count++;
    struct sw_op *op = last_op(builder);
    *op = sw_op_blank(kind, lane, rank);
    op->first_use = program != NULL ? program->use_count : 0;
    return op;
}

static void use(struct sw_program_builder *builder, int64_t resource, enum sw_use_kind kind)
{
    struct sw_program *program = builder->program;
    struct sw_op *op = last_op(builder);
    if (builder->failed)
        return;
    sw_assert(resource >= 0 && resource < program->resource_count);
    for (int32_t i = 0; i < op->use_count; i++)
        if (program->uses[op->first_use + i].resource == (int32_t)resource &&
            program->uses[op->first_use + i].kind == kind)
            return;
    if (!sw_array_reserve((void **)&program->uses, &builder->use_capacity, program->use_count,
                          sizeof *program->uses)) {
        builder->failed = true;
        return;
    }
    program->uses[program->use_count++] = (struct sw_use){(int32_t)resource, kind};
    op->use_count++;
}

void sw_program_reads(struct sw_program_builder *builder, int64_t resource)
{
    use(builder, resource, SW_USE_READ);
}

void sw_program_writes(struct sw_program_builder *builder, int64_t resource)
{
    use(builder, resource, SW_USE_WRITE);
}

void sw_program_adds(struct sw_program_builder *builder, int64_t resource)
{
    use(builder, resource, SW_USE_ADD);
}

static void at_least(struct sw_program_builder *builder, int32_t queue, int32_t least)
{
    if (builder->counts[queue] >= least)
        return;
    if (builder->counts[queue] == 0)
        builder->awaited[builder->awaited_count++] = queue;
    builder->counts[queue] = least;
}

/* Collect into builder->counts what an op must wait for because of one use. */
static void wait_for(struct sw_program_builder *builder, const struct sw_use *use)
{
    for (int64_t i = builder->first[use->resource]; i >= 0; i = builder->lists[i].next) {
        const struct uses *uses = &builder->lists[i];
        at_least(builder, uses->queue, uses->written);
        if (use->kind != SW_USE_ADD)
            at_least(builder, uses->queue, uses->added);
        if (use->kind != SW_USE_READ)
            at_least(builder, uses->queue, uses->read);
    }
}

/* What is noted of a resource and a queue; NULL: no memory. */
static struct uses *uses_of(struct sw_program_builder *builder, int32_t resource, int32_t queue)
{
    int64_t at = builder->first[resource];
    while (at >= 0 && builder->lists[at].queue != queue)
        at = builder->lists[at].next;
    if (at >= 0)
        return &builder->lists[at];
    at = builder->spare_list;
    if (at >= 0)
        builder->spare_list = builder->lists[at].next;
    else if (sw_array_reserve((void **)&builder->lists, &builder->list_capacity,
                              builder->list_count, sizeof *builder->lists))
        at = builder->list_count++;
    else
        return NULL;
    builder->lists[at] = (struct uses){.queue = queue, .next = builder->first[resource]};
    builder->first[resource] = at;
    return &builder->lists[at];
}

static void forget_uses(struct sw_program_builder *builder, int32_t resource)
{
    int64_t at = builder->first[resource];
    builder->first[resource] = -1;
    while (at >= 0) {
        int64_t next = builder->lists[at].next;
        builder->lists[at].next = builder->spare_list;
        builder->spare_list = at;
        at = next;
    }
}

/* Reads first, then adds, then writes, which end what was before. */
static bool note_uses(struct sw_program_builder *builder, const struct sw_op *op)
{
    static const enum sw_use_kind order[] = {SW_USE_READ, SW_USE_ADD, SW_USE_WRITE};
    for (int turn = 0; turn < 3; turn++)
        for (int32_t i = 0; i < op->use_count; i++) {
            const struct sw_use *use = &builder->program->uses[op->first_use + i];
            if (use->kind != order[turn])
                continue;
            if (use->kind == SW_USE_WRITE)
                forget_uses(builder, use->resource);
            struct uses *uses = uses_of(builder, use->resource, sw_op_queue(op));
            if (uses == NULL)
                return false;
            int32_t *count = use->kind == SW_USE_READ  ? &uses->read
                             : use->kind == SW_USE_ADD ? &uses->added
                                                       : &uses->written;
            *count = op->ordinal + 1;
        }
    return true;
}

static int compare_queues(const void *a, const void *b)
{
    return *(const int32_t *)a - *(const int32_t *)b;
}

/* In the order of the queues. Clears what was collected. */
static bool add_waits(struct sw_program_builder *builder, struct sw_op *op)
{
    struct sw_program *program = builder->program;
    bool waits_for_own = (builder->unordered >> op->lane & 1) != 0;
    op->first_wait = program->wait_count;
    qsort(builder->awaited, (size_t)builder->awaited_count, sizeof *builder->awaited,
          compare_queues);
    for (int32_t i = 0; i < builder->awaited_count; i++) {
        int32_t queue = builder->awaited[i], count = builder->counts[queue];
        builder->counts[queue] = 0;
        if (queue == sw_op_queue(op) && !waits_for_own)
            continue;
        if (!sw_array_reserve((void **)&program->waits, &builder->wait_capacity,
                              program->wait_count, sizeof *program->waits))
            return false;
        program->waits[program->wait_count++] = (struct sw_wait){queue, count};
        op->wait_count++;
    }
    builder->awaited_count = 0;
    return true;
}

static bool derive_waits(struct sw_program_builder *builder)
{
    struct sw_program *program = builder->program;
    for (int64_t i = 0; i < program->op_count; i++) {
        struct sw_op *op = &program->ops[i];
        for (int32_t u = 0; u < op->use_count; u++)
            wait_for(builder, &program->uses[op->first_use + u]);
        if (!add_waits(builder, op) || !note_uses(builder, op))
            return false;
    }
    return true;
}

static bool list_queues(struct sw_program *program)
{
    for (int64_t i = 0; i < program->op_count; i++)
        program->ops[i].ordinal = program->queues[sw_op_queue(&program->ops[i])].count++;
    for (int32_t queue = 0; queue < program->queue_count; queue++) {
        struct sw_queue *q = &program->queues[queue];
        q->ops = sw_calloc(q->count + 1, sizeof *q->ops);
        if (q->ops == NULL)
            return false;
    }
    for (int64_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->ops[i];
        program->queues[sw_op_queue(op)].ops[op->ordinal] = (int32_t)i;
    }
    return true;
}

sw_code sw_program_end(struct sw_program_builder *builder, struct sw_program **out,
                       struct sw_err *err)
{
    if (builder == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to build a program");
    struct sw_program *program = builder->program;
    bool built = !builder->failed && list_queues(program) && derive_waits(builder);
    free(builder->lists);
    free(builder->first);
    free(builder->counts);
    free(builder->awaited);
    free(builder);
    if (!built) {
        sw_program_free(program);
        return SW_FAIL(err, SW_E_MEMORY, "no memory to build a program");
    }
    *out = program;
    return SW_OK;
}

void sw_program_free(struct sw_program *program)
{
    if (program == NULL)
        return;
    for (int32_t queue = 0; program->queues != NULL && queue < program->queue_count; queue++)
        free(program->queues[queue].ops);
    free(program->queues);
    free(program->waits);
    free(program->uses);
    free(program->ops);
    free(program);
}
