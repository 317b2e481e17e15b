/* The programs of a plan: step, drain, evaluation, generation. */
#include "plan/plan.h"

/* Resource numbers: what ops read and write. */
struct resources {
    int64_t batch, activation, context, gradient, encoder_gradient, weights, unit_gradient;
    int64_t bias, loss, norm, decode, count;
};

static struct resources number_resources(const struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    int64_t m = plan->microbatches;
    struct resources r;
    int64_t next = 0;
    r.batch = next, next += m;
    r.activation = next, next += plan->activation_slots * m;
    r.context = next, next += plan->context_slots;
    r.gradient = next, next += m;
    r.encoder_gradient = next, next += m;
    r.weights = next, next += model->unit_count;
    r.unit_gradient = next, next += model->unit_count;
    r.bias = next++;
    r.loss = next++;
    r.norm = next++;
    r.decode = next++;
    r.count = next;
    return r;
}

struct builder {
    const struct sw_plan *plan;
    const struct sw_model *model;
    struct resources r;
    struct sw_program_builder *program;
};

static int64_t activation(const struct builder *b, int64_t block, int64_t microbatch)
{
    return b->r.activation + sw_plan_activation_slot(b->plan, block) * b->plan->microbatches +
           microbatch;
}

/* Does the block's input come from the block before? */
static bool has_input(enum sw_block_kind kind)
{
    return kind != SW_BLOCK_EMBED_SOURCE && kind != SW_BLOCK_EMBED_TARGET;
}

static bool is_target_side(enum sw_block_kind kind)
{
    return kind == SW_BLOCK_EMBED_TARGET || kind == SW_BLOCK_DECODER || kind == SW_BLOCK_HEAD;
}

static void reads_weights(struct builder *b, const struct sw_block *block)
{
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            sw_program_reads(b->program, b->r.weights + block->units[i]);
}

static void writes_gradients(struct builder *b, const struct sw_block *block)
{
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            sw_program_writes(b->program, b->r.unit_gradient + block->units[i]);
}

static void add_batches(struct builder *b)
{
    for (int64_t m = 0; m < b->plan->microbatches; m++) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_BATCH, SW_LANE_H2D);
        op->microbatch = (int32_t)m;
        sw_program_writes(b->program, b->r.batch + m);
    }
}

/* Layer-major: a block for all micro-batches before the next block. */
static void add_forward(struct builder *b, int64_t block_index, bool keeps_context)
{
    const struct sw_block *block = &b->model->blocks[block_index];
    for (int64_t m = 0; m < b->plan->microbatches; m++) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_FORWARD, SW_LANE_COMPUTE);
        op->block = (int32_t)block_index;
        op->microbatch = (int32_t)m;
        sw_program_reads(b->program, b->r.batch + m);
        reads_weights(b, block);
        if (has_input(block->kind))
            sw_program_reads(b->program, activation(b, block_index - 1, m));
        if (block->kind == SW_BLOCK_DECODER)
            sw_program_reads(b->program, activation(b, sw_plan_encoder_end(b->model), m));
        sw_program_writes(b->program, activation(b, block_index, m));
        if (keeps_context) {
            op->slot = (int32_t)sw_plan_context_slot(b->plan, block_index, m);
            sw_program_writes(b->program, b->r.context + op->slot);
        }
    }
}

static void add_head(struct builder *b, bool training)
{
    int64_t block_index = b->model->block_count - 1;
    const struct sw_block *block = &b->model->blocks[block_index];
    for (int64_t m = 0; m < b->plan->microbatches; m++) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_HEAD, SW_LANE_COMPUTE);
        op->block = (int32_t)block_index;
        op->microbatch = (int32_t)m;
        sw_program_reads(b->program, b->r.batch + m);
        reads_weights(b, block);
        sw_program_reads(b->program, activation(b, block_index - 1, m));
        sw_program_writes(b->program, b->r.loss);
        if (training) {
            sw_program_writes(b->program, b->r.gradient + m);
            sw_program_writes(b->program, b->r.encoder_gradient + m);
            writes_gradients(b, block);
        }
    }
}

static void add_backward(struct builder *b, int64_t block_index)
{
    const struct sw_block *block = &b->model->blocks[block_index];
    for (int64_t m = 0; m < b->plan->microbatches; m++) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_BACKWARD, SW_LANE_COMPUTE);
        op->block = (int32_t)block_index;
        op->microbatch = (int32_t)m;
        op->slot = (int32_t)sw_plan_context_slot(b->plan, block_index, m);
        sw_program_reads(b->program, b->r.batch + m);
        reads_weights(b, block);
        if (has_input(block->kind))
            sw_program_reads(b->program, activation(b, block_index - 1, m));
        if (block->kind == SW_BLOCK_DECODER)
            sw_program_reads(b->program, activation(b, sw_plan_encoder_end(b->model), m));
        sw_program_writes(b->program, b->r.context + op->slot);
        if (is_target_side(block->kind))
            sw_program_writes(b->program, b->r.gradient + m);
        if (block->kind != SW_BLOCK_EMBED_TARGET)
            sw_program_writes(b->program, b->r.encoder_gradient + m);
        writes_gradients(b, block);
        sw_program_writes(b->program, b->r.bias);
    }
}

static void add_partials(struct builder *b, int64_t unit)
{
    if (!b->model->units[unit].trainable)
        return;
    struct sw_op *op = sw_program_add(b->program, SW_OP_PARTIALS, SW_LANE_OPTIMIZER);
    op->unit = (int32_t)unit;
    sw_program_reads(b->program, b->r.unit_gradient + unit);
    sw_program_writes(b->program, b->r.norm);
}

/* Is this block the first one of the forward order that reads its own unit? Then its backward
 * completes the unit's gradient. */
static bool completes_unit(const struct builder *b, int64_t block_index)
{
    int32_t unit = b->model->blocks[block_index].units[0];
    if (unit < 0 || unit == b->model->common_unit)
        return false;
    for (int64_t i = 0; i < block_index; i++)
        if (b->model->blocks[i].units[0] == unit)
            return false;
    return true;
}

/* Steps in the order of next use, so that the forward waits as little as may be. */
static void add_window(struct builder *b)
{
    const struct sw_model *model = b->model;
    for (int64_t i = -1; i < model->block_count; i++) {
        int64_t unit = i < 0 ? model->common_unit : model->blocks[i].units[0];
        if (i >= 0 && !completes_unit(b, i))
            continue;
        if (!model->units[unit].trainable)
            continue;
        struct sw_op *op = sw_program_add(b->program, SW_OP_STEP, SW_LANE_OPTIMIZER);
        op->unit = (int32_t)unit;
        sw_program_reads(b->program, b->r.norm);
        sw_program_writes(b->program, b->r.weights + unit);
        sw_program_writes(b->program, b->r.unit_gradient + unit);
    }
}

static void add_norm(struct builder *b)
{
    struct sw_op *op = sw_program_add(b->program, SW_OP_BIAS, SW_LANE_COMPUTE);
    op->unit = b->model->common_unit;
    sw_program_writes(b->program, b->r.bias);
    sw_program_writes(b->program, b->r.unit_gradient + b->model->common_unit);
    add_partials(b, b->model->common_unit);
    (void)sw_program_add(b->program, SW_OP_NORM, SW_LANE_OPTIMIZER);
    sw_program_reads(b->program, b->r.loss);
    sw_program_writes(b->program, b->r.norm);
}

static void add_step(struct builder *b)
{
    const struct sw_model *model = b->model;
    int64_t head = model->block_count - 1;
    add_window(b);
    add_batches(b);
    for (int64_t block = 0; block < head; block++)
        add_forward(b, block, !b->plan->recompute);
    add_head(b, true);
    if (completes_unit(b, head))
        add_partials(b, model->blocks[head].units[0]);
    for (int64_t block = head - 1; block >= 0; block--) {
        add_backward(b, block);
        if (completes_unit(b, block))
            add_partials(b, model->blocks[block].units[0]);
    }
    add_norm(b);
}

static void add_evaluation(struct builder *b)
{
    add_batches(b);
    for (int64_t block = 0; block < b->model->block_count - 1; block++)
        add_forward(b, block, false);
    add_head(b, false);
}

/* Encode, then the cross keys and values of every decoder block. */
static void add_generation_begin(struct builder *b)
{
    int64_t end = sw_plan_encoder_end(b->model);
    add_batches(b);
    for (int64_t block = 0; block <= end; block++)
        add_forward(b, block, false);
    sw_program_add(b->program, SW_OP_DECODE_BEGIN, SW_LANE_COMPUTE);
    sw_program_reads(b->program, b->r.weights + b->model->common_unit);
    sw_program_writes(b->program, b->r.decode);
    for (int64_t block = 0; block < b->model->block_count; block++) {
        if (b->model->blocks[block].kind != SW_BLOCK_DECODER)
            continue;
        struct sw_op *op = sw_program_add(b->program, SW_OP_DECODE_CROSS, SW_LANE_COMPUTE);
        op->block = (int32_t)block;
        reads_weights(b, &b->model->blocks[block]);
        sw_program_reads(b->program, activation(b, end, 0));
        sw_program_writes(b->program, b->r.decode);
    }
}

static void add_decode(struct builder *b)
{
    for (int64_t block = 0; block < b->model->block_count; block++) {
        enum sw_op_kind kind;
        switch (b->model->blocks[block].kind) {
        case SW_BLOCK_EMBED_TARGET:
            kind = SW_OP_DECODE_EMBED;
            break;
        case SW_BLOCK_DECODER:
            kind = SW_OP_DECODE_BLOCK;
            break;
        case SW_BLOCK_HEAD:
            kind = SW_OP_DECODE_HEAD;
            break;
        default:
            continue;
        }
        struct sw_op *op = sw_program_add(b->program, kind, SW_LANE_COMPUTE);
        op->block = (int32_t)block;
        reads_weights(b, &b->model->blocks[block]);
        sw_program_writes(b->program, b->r.decode);
    }
}

static sw_code build(const struct sw_plan *plan, const char *name, void (*add)(struct builder *),
                     struct sw_program **out, struct sw_err *err)
{
    struct builder b = {.plan = plan, .model = plan->request.model, .r = number_resources(plan)};
    b.program = sw_program_begin(name, b.r.count);
    if (b.program != NULL)
        add(&b);
    return sw_program_end(b.program, out, err);
}

sw_code sw_plan_build_programs(struct sw_plan *plan, struct sw_err *err)
{
    sw_code code = SW_OK;
    switch (plan->request.purpose) {
    case SW_FOR_TRAINING:
        code = build(plan, "step", add_step, &plan->step, err);
        if (code == SW_OK)
            code = build(plan, "drain", add_window, &plan->drain, err);
        /* fall through */
    case SW_FOR_EVALUATION:
        if (code == SW_OK)
            code = build(plan, "evaluation", add_evaluation, &plan->evaluation, err);
        break;
    case SW_FOR_GENERATION:
        code = build(plan, "encoding", add_generation_begin, &plan->begin, err);
        if (code == SW_OK)
            code = build(plan, "decoding", add_decode, &plan->decode, err);
        break;
    }
    return code;
}
