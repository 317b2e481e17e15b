#include "plan/program.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

static const char *const LANE_NAMES[SW_LANES] = {"compute",   "h2d",       "d2h",
                                                 "optimizer", "nvme read", "nvme write"};

static const char *const OP_NAMES[SW_OP_KINDS] = {
    "batch", "forward",      "head",         "backward",     "bias",         "partials",   "norm",
    "step",  "decode begin", "decode cross", "decode embed", "decode block", "decode head"};

const char *sw_lane_name(enum sw_lane lane)
{
    return LANE_NAMES[lane];
}

const char *sw_op_name(enum sw_op_kind kind)
{
    return OP_NAMES[kind];
}

/* Of a resource, per lane: how many of the lane's ops must be done for the last writer, and for all
 * readers since. */
struct uses {
    int32_t written[SW_LANES], read[SW_LANES];
};

struct sw_program_builder {
    struct sw_program *program;
    int64_t capacity;
    struct uses *uses; /* [resource_count] */
    bool failed;
    struct sw_op spare; /* what calls write to after a failure */
};

struct sw_program_builder *sw_program_begin(const char *name, int64_t resources)
{
    struct sw_program_builder *builder = sw_calloc(1, sizeof *builder);
    if (builder == NULL)
        return NULL;
    builder->program = sw_calloc(1, sizeof *builder->program);
    builder->uses = sw_calloc(resources > 0 ? resources : 1, sizeof *builder->uses);
    builder->failed = builder->program == NULL || builder->uses == NULL;
    if (!builder->failed) {
        builder->program->name = name;
        builder->program->resource_count = resources;
    }
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
    *op = (struct sw_op){
        .kind = kind, .lane = lane, .block = -1, .unit = -1, .microbatch = -1, .slot = -1};
    if (!builder->failed)
        op->ordinal = program->lane_count[lane]++;
    return op;
}

void sw_program_reads(struct sw_program_builder *builder, int64_t resource)
{
    struct sw_op *op = last_op(builder);
    if (builder->failed)
        return;
    sw_assert(resource >= 0 && resource < builder->program->resource_count);
    sw_assert(op->read_count < SW_OP_USES);
    op->reads[op->read_count++] = (int32_t)resource;
}

void sw_program_writes(struct sw_program_builder *builder, int64_t resource)
{
    struct sw_op *op = last_op(builder);
    if (builder->failed)
        return;
    sw_assert(resource >= 0 && resource < builder->program->resource_count);
    sw_assert(op->write_count < SW_OP_USES);
    op->writes[op->write_count++] = (int32_t)resource;
}

static void wait_for(struct sw_op *op, const int32_t *counts)
{
    for (int lane = 0; lane < SW_LANES; lane++)
        if (lane != (int)op->lane && counts[lane] > op->waits[lane])
            op->waits[lane] = counts[lane];
}

static void derive_waits(struct sw_program_builder *builder)
{
    struct sw_program *program = builder->program;
    for (int64_t i = 0; i < program->op_count; i++) {
        struct sw_op *op = &program->ops[i];
        for (int32_t r = 0; r < op->read_count; r++)
            wait_for(op, builder->uses[op->reads[r]].written);
        for (int32_t w = 0; w < op->write_count; w++) {
            wait_for(op, builder->uses[op->writes[w]].written);
            wait_for(op, builder->uses[op->writes[w]].read);
        }
        for (int32_t r = 0; r < op->read_count; r++)
            builder->uses[op->reads[r]].read[op->lane] = op->ordinal + 1;
        for (int32_t w = 0; w < op->write_count; w++) {
            struct uses *uses = &builder->uses[op->writes[w]];
            memset(uses, 0, sizeof *uses);
            uses->written[op->lane] = op->ordinal + 1;
        }
    }
}

static bool list_lanes(struct sw_program *program)
{
    int32_t at[SW_LANES] = {0};
    for (int lane = 0; lane < SW_LANES; lane++) {
        program->lane_ops[lane] =
            sw_calloc(program->lane_count[lane] + 1, sizeof *program->lane_ops[lane]);
        if (program->lane_ops[lane] == NULL)
            return false;
    }
    for (int64_t i = 0; i < program->op_count; i++) {
        enum sw_lane lane = program->ops[i].lane;
        program->lane_ops[lane][at[lane]++] = (int32_t)i;
    }
    return true;
}

sw_code sw_program_end(struct sw_program_builder *builder, struct sw_program **out,
                       struct sw_err *err)
{
    if (builder == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to build a program");
    struct sw_program *program = builder->program;
    bool built = !builder->failed && list_lanes(program);
    if (built)
        derive_waits(builder);
    free(builder->uses);
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
    for (int lane = 0; lane < SW_LANES; lane++)
        free(program->lane_ops[lane]);
    free(program->ops);
    free(program);
}

sw_code sw_program_simulate(const struct sw_program *program, sw_op_seconds_fn seconds,
                            void *context, bool overlap, struct sw_simulation *out,
                            struct sw_err *err)
{
    double *ends = sw_calloc(program->op_count + 1, sizeof *ends);
    if (ends == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to simulate %lld ops",
                       (long long)program->op_count);
    struct sw_simulation sim = {0};
    double free_at[SW_LANES] = {0}, serial = 0;
    /* The serial order is a topological one, so one pass is enough. */
    for (int64_t i = 0; i < program->op_count; i++) {
        const struct sw_op *op = &program->ops[i];
        double start = overlap ? free_at[op->lane] : serial, cost = seconds(op, context);
        for (int lane = 0; lane < SW_LANES; lane++)
            if (op->waits[lane] > 0) {
                double end = ends[program->lane_ops[lane][op->waits[lane] - 1]];
                start = end > start ? end : start;
            }
        ends[i] = serial = free_at[op->lane] = start + cost;
        sim.busy_seconds[op->lane] += cost;
        if (ends[i] > sim.makespan_seconds)
            sim.makespan_seconds = ends[i];
    }
    free(ends);
    *out = sim;
    return SW_OK;
}
