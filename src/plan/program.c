#include "plan/program.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *const LANE_NAMES[SW_LANES] = {
    "compute", "h2d", "d2h", "optimizer", "state_read", "state_write", "nvme_fetch", "nvme_spill"};

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

/* Of a resource, per queue: how many of its ops must be done for the last writer, for those that
 * added since, and for all readers since. */
struct uses {
    int32_t written, added, read;
};

struct sw_program_builder {
    struct sw_program *program;
    int64_t capacity;
    uint32_t unordered;
    struct uses *uses; /* [resource_count][queue_count] */
    int32_t *counts;   /* [queue_count] of the op at hand */
    int64_t wait_capacity;
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
    int64_t count;
    if (sw_size_mul(resources > 0 ? resources : 1, queues, &count))
        builder->uses = sw_calloc(count, sizeof *builder->uses);
    builder->counts = sw_calloc(queues, sizeof *builder->counts);
    builder->failed = builder->program == NULL || builder->uses == NULL || builder->counts == NULL;
    if (builder->failed)
        return builder;
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

struct sw_op *sw_program_add(struct sw_program_builder *builder, enum sw_op_kind kind,
                             enum sw_lane lane)
{
    struct sw_program *program = builder->program;
    if (!builder->failed && !sw_array_reserve((void **)&program->ops, &builder->capacity,
                                              program->op_count, sizeof *program->ops))
        builder->failed = true;
    if (!builder->failed)
        program->op_count++;
    struct sw_op *op = last_op(builder);
    *op = (struct sw_op){.kind = kind,
                         .lane = lane,
                         .block = -1,
                         .unit = -1,
                         .microbatch = -1,
                         .context = -1,
                         .weights = -1,
                         .gradient = -1,
                         .input = -1,
                         .output = -1,
                         .memory = -1,
                         .buffer = -1};
    return op;
}

static void use(struct sw_program_builder *builder, int64_t resource, int32_t *list, int32_t *count,
                int32_t room)
{
    if (builder->failed)
        return;
    sw_assert(resource >= 0 && resource < builder->program->resource_count);
    for (int32_t i = 0; i < *count; i++)
        if (list[i] == (int32_t)resource)
            return;
    sw_assert(*count < room);
    list[(*count)++] = (int32_t)resource;
}

void sw_program_reads(struct sw_program_builder *builder, int64_t resource)
{
    struct sw_op *op = last_op(builder);
    use(builder, resource, op->reads, &op->read_count, SW_OP_USES);
}

void sw_program_writes(struct sw_program_builder *builder, int64_t resource)
{
    struct sw_op *op = last_op(builder);
    use(builder, resource, op->writes, &op->write_count, SW_OP_USES / 2);
}

void sw_program_adds(struct sw_program_builder *builder, int64_t resource)
{
    struct sw_op *op = last_op(builder);
    use(builder, resource, op->adds, &op->add_count, SW_OP_USES / 2);
}

static void at_least(int32_t *count, int32_t least)
{
    if (*count < least)
        *count = least;
}

/* Collect into builder->counts what an op must wait for because of one resource. */
static void wait_for(struct sw_program_builder *builder, int32_t resource, bool added, bool read)
{
    const struct uses *uses = builder->uses + (int64_t)resource * builder->program->queue_count;
    for (int32_t queue = 0; queue < builder->program->queue_count; queue++) {
        at_least(&builder->counts[queue], uses[queue].written);
        if (added)
            at_least(&builder->counts[queue], uses[queue].added);
        if (read)
            at_least(&builder->counts[queue], uses[queue].read);
    }
}

static void note_uses(struct sw_program_builder *builder, const struct sw_op *op)
{
    int32_t queue = sw_op_queue(op), queues = builder->program->queue_count;
    for (int32_t r = 0; r < op->read_count; r++)
        builder->uses[(int64_t)op->reads[r] * queues + queue].read = op->ordinal + 1;
    for (int32_t a = 0; a < op->add_count; a++)
        builder->uses[(int64_t)op->adds[a] * queues + queue].added = op->ordinal + 1;
    for (int32_t w = 0; w < op->write_count; w++) {
        struct uses *uses = builder->uses + (int64_t)op->writes[w] * queues;
        memset(uses, 0, (size_t)queues * sizeof *uses);
        uses[queue].written = op->ordinal + 1;
    }
}

static bool add_waits(struct sw_program_builder *builder, struct sw_op *op)
{
    struct sw_program *program = builder->program;
    bool waits_for_own = (builder->unordered >> op->lane & 1) != 0;
    op->first_wait = program->wait_count;
    for (int32_t queue = 0; queue < program->queue_count; queue++) {
        if (builder->counts[queue] == 0 || (queue == sw_op_queue(op) && !waits_for_own))
            continue;
        if (!sw_array_reserve((void **)&program->waits, &builder->wait_capacity,
                              program->wait_count, sizeof *program->waits))
            return false;
        program->waits[program->wait_count++] = (struct sw_wait){queue, builder->counts[queue]};
        op->wait_count++;
    }
    return true;
}

static bool derive_waits(struct sw_program_builder *builder)
{
    struct sw_program *program = builder->program;
    for (int64_t i = 0; i < program->op_count; i++) {
        struct sw_op *op = &program->ops[i];
        memset(builder->counts, 0, (size_t)program->queue_count * sizeof *builder->counts);
        for (int32_t r = 0; r < op->read_count; r++)
            wait_for(builder, op->reads[r], true, false);
        for (int32_t a = 0; a < op->add_count; a++)
            wait_for(builder, op->adds[a], false, true);
        for (int32_t w = 0; w < op->write_count; w++)
            wait_for(builder, op->writes[w], true, true);
        if (!add_waits(builder, op))
            return false;
        note_uses(builder, op);
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
    free(builder->uses);
    free(builder->counts);
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
    free(program->ops);
    free(program);
}
