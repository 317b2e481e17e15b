/* The programs of a plan: step, drain, evaluation, generation. What computes is listed first, as an
 * agenda; from it follows when weights and kept activations are needed; then ops are emitted. */
#include "plan/build.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- resources ---- */

int64_t sw_build_chunks(const struct sw_build *b, int64_t unit)
{
    if (!sw_build_trains(b, unit))
        return 1;
    return (b->model->units[unit].elements + b->plan->state_chunk - 1) / b->plan->state_chunk;
}

int64_t sw_build_accumulator(const struct sw_build *b, int64_t unit)
{
    if (b->gradient_slot[unit] < 0)
        return b->r.accumulator + unit;
    return b->r.gradient_slot[sw_plan_pool(b->plan, unit)] + b->gradient_slot[unit];
}

static int64_t take(int64_t *next, int64_t count)
{
    int64_t first = *next;
    *next += count;
    return first;
}

static void number_resources(struct sw_build *b)
{
    const struct sw_plan *plan = b->plan;
    int64_t m = plan->microbatches, units = b->model->unit_count, next = 0, chunks = 0;
    struct sw_build_resources *r = &b->r;
    bool home = plan->activations == SW_TIER_DEVICE;
    r->batch = take(&next, m);
    r->activation = take(&next, plan->activation_slots * (home ? m : 1));
    r->activation_home = take(&next, home ? 0 : b->model->block_count * m);
    r->context = take(&next, plan->context_slots);
    r->gradient = take(&next, m);
    r->encoder_gradient = take(&next, m);
    r->weights = take(&next, units);
    r->accumulator = take(&next, units);
    r->held = take(&next, units);
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        r->weight_slot[pool] = take(&next, plan->weight_pools[pool].slots);
        r->gradient_slot[pool] = take(&next, plan->gradient_pools[pool].slots);
    }
    for (int64_t unit = 0; unit < units; unit++)
        b->first_chunk[unit] = take(&chunks, sw_build_chunks(b, unit));
    r->states = take(&next, chunks);
    r->state_buffer = take(&next, plan->state_buffers);
    r->fetch_buffer = take(&next, plan->fetch_buffers);
    r->spill_buffer = take(&next, plan->spill_buffers);
    r->bias = take(&next, 1);
    r->loss = take(&next, 1);
    r->norm = take(&next, 1);
    r->decode = take(&next, 1);
    r->count = next;
}

/* ---- the agenda ---- */

static void agenda_add(struct sw_build *b, enum sw_op_kind kind, int64_t block, int64_t microbatch)
{
    if (b->failed || !sw_array_reserve((void **)&b->agenda, &b->agenda_capacity, b->agenda_count,
                                       sizeof *b->agenda)) {
        b->failed = true;
        return;
    }
    b->agenda[b->agenda_count++] = (struct sw_agenda_op){kind, (int32_t)block, (int32_t)microbatch};
}

/* Layer-major: a block for all micro-batches before the next block. */
static void agenda_all(struct sw_build *b, enum sw_op_kind kind, int64_t block)
{
    for (int64_t m = 0; m < b->plan->microbatches; m++)
        agenda_add(b, kind, block, m);
}

static void plan_step(struct sw_build *b)
{
    int64_t head = b->model->block_count - 1;
    b->trains = true;
    b->windowed = !sw_build_early(b);
    for (int64_t block = 0; block < head; block++)
        agenda_all(b, SW_OP_FORWARD, block);
    agenda_all(b, SW_OP_HEAD, head);
    for (int64_t block = head - 1; block >= 0; block--)
        agenda_all(b, SW_OP_BACKWARD, block);
}

static void plan_drain(struct sw_build *b)
{
    b->windowed = !sw_build_early(b);
}

static void plan_evaluation(struct sw_build *b)
{
    for (int64_t block = 0; block < b->model->block_count - 1; block++)
        agenda_all(b, SW_OP_FORWARD, block);
    agenda_all(b, SW_OP_HEAD, b->model->block_count - 1);
}

/* Encode, then the cross keys and values of every decoder block. */
static void plan_encoding(struct sw_build *b)
{
    int64_t end = sw_plan_encoder_end(b->model);
    for (int64_t block = 0; block <= end; block++)
        agenda_add(b, SW_OP_FORWARD, block, 0);
    agenda_add(b, SW_OP_DECODE_BEGIN, -1, -1);
    for (int64_t block = 0; block < b->model->block_count; block++)
        if (b->model->blocks[block].kind == SW_BLOCK_DECODER)
            agenda_add(b, SW_OP_DECODE_CROSS, block, -1);
}

static void plan_decoding(struct sw_build *b)
{
    for (int64_t block = 0; block < b->model->block_count; block++)
        switch (b->model->blocks[block].kind) {
        case SW_BLOCK_EMBED_TARGET:
            agenda_add(b, SW_OP_DECODE_EMBED, block, -1);
            break;
        case SW_BLOCK_DECODER:
            agenda_add(b, SW_OP_DECODE_BLOCK, block, -1);
            break;
        case SW_BLOCK_HEAD:
            agenda_add(b, SW_OP_DECODE_HEAD, block, -1);
            break;
        default:
            break;
        }
}

/* ---- what an agenda op needs ---- */

static const struct sw_block *block_of(const struct sw_build *b, const struct sw_agenda_op *item)
{
    return item->block >= 0 ? &b->model->blocks[item->block] : NULL;
}

static bool is_embedding(const struct sw_block *block)
{
    return block->kind == SW_BLOCK_EMBED_SOURCE || block->kind == SW_BLOCK_EMBED_TARGET;
}

static bool is_target_side(enum sw_block_kind kind)
{
    return kind == SW_BLOCK_EMBED_TARGET || kind == SW_BLOCK_DECODER || kind == SW_BLOCK_HEAD;
}

/* The unit whose weights an op reads through a slot, or -1. An embedding's backward reads none. */
static int32_t slotted_unit(const struct sw_build *b, const struct sw_agenda_op *item)
{
    const struct sw_block *block = block_of(b, item);
    if (block == NULL || block->units[0] < 0 || block->units[0] == b->model->common_unit ||
        (item->kind == SW_OP_BACKWARD && is_embedding(block)))
        return -1;
    return b->plan->homes[block->units[0]].weights != SW_TIER_DEVICE ? block->units[0] : -1;
}

/* Activations, as block indices; -1: none. */
struct activations {
    int32_t input, memory, output;
};

static struct activations activations_of(const struct sw_build *b, const struct sw_agenda_op *item)
{
    struct activations out = {-1, -1, -1};
    const struct sw_block *block = block_of(b, item);
    bool runs =
        item->kind == SW_OP_FORWARD || item->kind == SW_OP_BACKWARD || item->kind == SW_OP_HEAD;
    if (item->kind == SW_OP_DECODE_CROSS)
        out.memory = (int32_t)sw_plan_encoder_end(b->model);
    if (!runs)
        return out;
    if (!is_embedding(block))
        out.input = item->block - 1;
    if (block->kind == SW_BLOCK_DECODER)
        out.memory = (int32_t)sw_plan_encoder_end(b->model);
    if (item->kind == SW_OP_FORWARD)
        out.output = item->block;
    return out;
}

static void list_accesses(struct sw_build *b)
{
    for (int64_t i = 0; i < b->agenda_count; i++) {
        const struct sw_agenda_op *item = &b->agenda[i];
        int32_t time = (int32_t)i, unit = slotted_unit(b, item);
        if (unit >= 0)
            sw_residency_access(b->weights[sw_plan_pool(b->plan, unit)], time, unit, false);
        if (b->activations == NULL)
            continue;
        struct activations a = activations_of(b, item);
        int32_t blocks[3] = {a.input, a.memory, a.output};
        int64_t m = item->microbatch >= 0 ? item->microbatch : 0;
        for (int k = 0; k < 3; k++)
            if (blocks[k] >= 0)
                sw_residency_access(b->activations, time,
                                    (int32_t)sw_plan_activation_index(b->plan, blocks[k], m),
                                    k == 2);
    }
}

static bool open_residencies(struct sw_build *b)
{
    bool opened = true;
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        b->weights[pool] = sw_residency_open((int32_t)b->plan->weight_pools[pool].slots,
                                             (int32_t)b->model->unit_count);
        opened = opened && b->weights[pool] != NULL;
    }
    if (b->plan->activations != SW_TIER_DEVICE) {
        b->activations =
            sw_residency_open((int32_t)b->plan->activation_slots,
                              (int32_t)(b->model->block_count * b->plan->microbatches));
        opened = opened && b->activations != NULL;
    }
    if (!opened)
        return false;
    list_accesses(b);
    for (int pool = 0; pool < SW_POOL_KINDS; pool++)
        opened = sw_residency_ready(b->weights[pool]) && opened;
    return opened && (b->activations == NULL || sw_residency_ready(b->activations));
}

static void close_residencies(struct sw_build *b)
{
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        sw_residency_close(b->weights[pool]);
        b->weights[pool] = NULL;
    }
    sw_residency_close(b->activations);
    b->activations = NULL;
}

/* Which activations lose their slot before they are needed for the last time: those are written to
 * their home as soon as they are made. */
static bool find_written_back(struct sw_build *b)
{
    if (b->plan->activations == SW_TIER_DEVICE)
        return true;
    bool opened = open_residencies(b);
    struct sw_residency_change change;
    for (int64_t i = 0; opened && i < b->agenda_count; i++)
        while (sw_residency_next(b->activations, (int32_t)i, &change))
            if (change.evicted >= 0)
                b->written_back[change.evicted] = true;
    close_residencies(b);
    return opened;
}

/* ---- emitting ---- */

/* All that may move before agenda op `now`. */
static void move(struct sw_build *b, int32_t now)
{
    struct sw_residency_change change;
    if (b->activations != NULL)
        while (sw_residency_next(b->activations, now, &change))
            if (!change.produced)
                sw_build_fetch_activation(b, change.object, change.slot);
    for (int pool = 0; pool < SW_POOL_KINDS; pool++)
        while (sw_residency_next(b->weights[pool], now, &change))
            sw_build_fetch_weights(b, change.object, change.slot);
}

/* The slot of an activation and its resource are the same number. */
static int32_t activation_slot(const struct sw_build *b, int32_t block, int64_t microbatch)
{
    int64_t m = microbatch >= 0 ? microbatch : 0;
    if (b->activations != NULL)
        return sw_residency_slot(b->activations,
                                 (int32_t)sw_plan_activation_index(b->plan, block, m));
    return (int32_t)(sw_plan_activation_slot(b->plan, block) * b->plan->microbatches + m);
}

static void use_activations(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    struct activations a = activations_of(b, item);
    if (a.input >= 0) {
        op->input = activation_slot(b, a.input, item->microbatch);
        sw_program_reads(b->program, b->r.activation + op->input);
    }
    if (a.memory >= 0) {
        op->memory = activation_slot(b, a.memory, item->microbatch);
        sw_program_reads(b->program, b->r.activation + op->memory);
    }
    if (a.output >= 0) {
        op->output = activation_slot(b, a.output, item->microbatch);
        sw_program_writes(b->program, b->r.activation + op->output);
    }
}

static void use_weights(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    const struct sw_block *block = block_of(b, item);
    int32_t slotted = slotted_unit(b, item);
    if (slotted >= 0) {
        enum sw_pool_kind pool = sw_plan_pool(b->plan, slotted);
        op->weights = sw_residency_slot(b->weights[pool], slotted);
        sw_program_reads(b->program, b->r.weight_slot[pool] + op->weights);
    }
    if (item->kind == SW_OP_DECODE_BEGIN)
        sw_program_reads(b->program, b->r.weights + b->model->common_unit);
    for (int i = 0; block != NULL && i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0 && b->plan->homes[block->units[i]].weights == SW_TIER_DEVICE)
            sw_program_reads(b->program, b->r.weights + block->units[i]);
}

/* When each unit's gradient begins and is complete: agenda indices. */
static void find_gradients(struct sw_build *b)
{
    memset(b->gradient_begins, -1, (size_t)b->model->unit_count * sizeof *b->gradient_begins);
    memset(b->gradient_ends, -1, (size_t)b->model->unit_count * sizeof *b->gradient_ends);
    for (int64_t i = 0; i < b->agenda_count; i++) {
        const struct sw_block *block = block_of(b, &b->agenda[i]);
        if (b->agenda[i].kind != SW_OP_HEAD && b->agenda[i].kind != SW_OP_BACKWARD)
            continue;
        for (int k = 0; k < SW_BLOCK_UNITS; k++) {
            int32_t unit = block->units[k];
            if (unit < 0)
                continue;
            if (b->gradient_begins[unit] < 0)
                b->gradient_begins[unit] = i;
            b->gradient_ends[unit] = i;
        }
    }
}

/* The slot in which a unit's gradient will accumulate; -1: a place of its own. */
static int32_t begin_gradient(struct sw_build *b, int32_t unit)
{
    enum sw_pool_kind pool = sw_plan_pool(b->plan, unit);
    if (unit == b->model->common_unit || sw_plan_gradient_stays(b->plan, unit))
        return -1;
    return (int32_t)(b->next_gradient_slot[pool]++ % b->plan->gradient_pools[pool].slots);
}

static void use_gradients(struct sw_build *b, struct sw_op *op, int64_t index)
{
    const struct sw_block *block = block_of(b, &b->agenda[index]);
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        int32_t unit = block->units[i];
        if (unit < 0 || !sw_build_trains(b, unit))
            continue;
        bool begins = b->gradient_begins[unit] == index;
        if (begins)
            b->gradient_slot[unit] = begin_gradient(b, unit);
        if (unit == b->model->common_unit) {
            op->clears_common = begins;
        } else {
            op->clears_own = begins;
            op->gradient = b->gradient_slot[unit];
        }
        sw_program_writes(b->program, sw_build_accumulator(b, unit));
    }
}

/* Units whose gradient this op completed; the common unit waits for the bias tables. */
static void complete_gradients(struct sw_build *b, int64_t index)
{
    for (int32_t unit = 0; unit < (int32_t)b->model->unit_count; unit++)
        if (b->gradient_ends[unit] == index && unit != b->model->common_unit &&
            sw_build_trains(b, unit))
            sw_build_complete_gradient(b, unit);
}

static void emit_forward(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    const struct sw_plan *plan = b->plan;
    sw_program_reads(b->program, b->r.batch + item->microbatch);
    if (item->kind == SW_OP_FORWARD && b->trains && !plan->recompute) {
        op->context = (int32_t)sw_plan_context_slot(plan, item->block, item->microbatch);
        sw_program_writes(b->program, b->r.context + op->context);
    }
    if (item->kind != SW_OP_HEAD)
        return;
    sw_program_writes(b->program, b->r.loss);
    if (b->trains) {
        sw_program_writes(b->program, b->r.gradient + item->microbatch);
        sw_program_writes(b->program, b->r.encoder_gradient + item->microbatch);
    }
}

static void emit_backward(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    enum sw_block_kind kind = block_of(b, item)->kind;
    sw_program_reads(b->program, b->r.batch + item->microbatch);
    op->context = (int32_t)sw_plan_context_slot(b->plan, item->block, item->microbatch);
    sw_program_writes(b->program, b->r.context + op->context);
    if (is_target_side(kind))
        sw_program_writes(b->program, b->r.gradient + item->microbatch);
    if (kind != SW_BLOCK_EMBED_TARGET)
        sw_program_writes(b->program, b->r.encoder_gradient + item->microbatch);
    sw_program_writes(b->program, b->r.bias);
}

static void emit(struct sw_build *b, int64_t index)
{
    const struct sw_agenda_op *item = &b->agenda[index];
    const struct sw_block *block = block_of(b, item);
    for (int i = 0; block != NULL && i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            sw_build_window_until(b, block->units[i]);
    move(b, (int32_t)index);
    struct sw_op *op = sw_program_add(b->program, item->kind, SW_LANE_COMPUTE);
    op->block = item->block;
    op->microbatch = item->microbatch;
    use_weights(b, op, item);
    use_activations(b, op, item);
    if (item->kind == SW_OP_FORWARD || item->kind == SW_OP_HEAD)
        emit_forward(b, op, item);
    else if (item->kind == SW_OP_BACKWARD)
        emit_backward(b, op, item);
    else
        sw_program_writes(b->program, b->r.decode);
    if (b->trains && (item->kind == SW_OP_HEAD || item->kind == SW_OP_BACKWARD))
        use_gradients(b, op, index);
    if (op->output >= 0 && b->activations != NULL) {
        int64_t at = sw_plan_activation_index(b->plan, item->block, item->microbatch);
        if (b->written_back[at])
            sw_build_write_back(b, (int32_t)at, op->output);
    }
    if (b->trains)
        complete_gradients(b, index);
}

static void emit_batches(struct sw_build *b)
{
    for (int64_t m = 0; m < b->plan->microbatches; m++) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_BATCH, SW_LANE_H2D);
        op->microbatch = (int32_t)m;
        sw_program_writes(b->program, b->r.batch + m);
    }
}

/* The bias tables' gradients complete the common unit's; then the norm is known. */
static void emit_norm(struct sw_build *b)
{
    int32_t common = b->model->common_unit;
    if (sw_build_trains(b, common)) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_BIAS, SW_LANE_COMPUTE);
        op->unit = common;
        sw_program_writes(b->program, b->r.bias);
        sw_program_writes(b->program, sw_build_accumulator(b, common));
        sw_build_complete_gradient(b, common);
    }
    (void)sw_program_add(b->program, SW_OP_NORM, SW_LANE_OPTIMIZER);
    sw_program_reads(b->program, b->r.loss);
    sw_program_writes(b->program, b->r.norm);
}

/* Units in the order of next use: what is used all over, then block by block. */
static void order_units(struct sw_build *b)
{
    b->order[b->order_count++] = b->model->common_unit;
    for (int64_t i = 0; i < b->model->block_count; i++) {
        int32_t unit = b->model->blocks[i].units[0];
        bool known = unit < 0;
        for (int64_t k = 0; k < b->order_count && !known; k++)
            known = b->order[k] == unit;
        if (!known)
            b->order[b->order_count++] = unit;
    }
}

/* ---- building ---- */

static bool alloc_tables(struct sw_build *b)
{
    int64_t units = b->model->unit_count;
    int64_t activations = b->model->block_count * b->plan->microbatches;
    b->first_chunk = sw_calloc(units, sizeof *b->first_chunk);
    b->stepped = sw_calloc(units, sizeof *b->stepped);
    b->order = sw_calloc(units, sizeof *b->order);
    b->gradient_slot = sw_calloc(units, sizeof *b->gradient_slot);
    b->gradient_begins = sw_calloc(units, sizeof *b->gradient_begins);
    b->gradient_ends = sw_calloc(units, sizeof *b->gradient_ends);
    b->written_back = sw_calloc(activations, sizeof *b->written_back);
    if (b->first_chunk == NULL || b->stepped == NULL || b->order == NULL ||
        b->gradient_slot == NULL || b->gradient_begins == NULL || b->gradient_ends == NULL ||
        b->written_back == NULL)
        return false;
    memset(b->gradient_slot, -1, (size_t)units * sizeof *b->gradient_slot);
    return true;
}

static void free_tables(struct sw_build *b)
{
    close_residencies(b);
    free(b->agenda);
    free(b->first_chunk);
    free(b->stepped);
    free(b->order);
    free(b->gradient_slot);
    free(b->gradient_begins);
    free(b->gradient_ends);
    free(b->written_back);
}

static void emit_all(struct sw_build *b)
{
    if (b->agenda_count > 0)
        emit_batches(b);
    for (int64_t i = 0; i < b->agenda_count; i++)
        emit(b, i);
    if (b->trains)
        emit_norm(b);
    sw_build_window_until(b, -1);
}

static sw_code build(const struct sw_plan *plan, const char *name, void (*list)(struct sw_build *),
                     struct sw_program **out, struct sw_err *err)
{
    struct sw_build b = {.plan = plan, .model = plan->request.model};
    b.failed = !alloc_tables(&b);
    if (!b.failed) {
        number_resources(&b);
        order_units(&b);
        list(&b);
    }
    if (!b.failed) {
        find_gradients(&b);
        b.failed = !find_written_back(&b) || !open_residencies(&b);
    }
    if (!b.failed)
        b.program = sw_program_begin(name, 1, b.r.count,
                                     1U << SW_LANE_STATE_READ | 1U << SW_LANE_STATE_WRITE |
                                         1U << SW_LANE_FETCH | 1U << SW_LANE_SPILL);
    if (b.program != NULL)
        emit_all(&b);
    free_tables(&b);
    return sw_program_end(b.program, out, err);
}

sw_code sw_plan_build_programs(struct sw_plan *plan, struct sw_err *err)
{
    sw_code code = SW_OK;
    switch (plan->request.purpose) {
    case SW_FOR_TRAINING:
        code = build(plan, "step", plan_step, &plan->step, err);
        if (code == SW_OK)
            code = build(plan, "drain", plan_drain, &plan->drain, err);
        /* fall through */
    case SW_FOR_EVALUATION:
        if (code == SW_OK)
            code = build(plan, "evaluation", plan_evaluation, &plan->evaluation, err);
        break;
    case SW_FOR_GENERATION:
        code = build(plan, "encoding", plan_encoding, &plan->begin, err);
        if (code == SW_OK)
            code = build(plan, "decoding", plan_decoding, &plan->decode, err);
        break;
    }
    return code;
}

sw_code sw_plan_build_step(struct sw_plan *plan, struct sw_err *err)
{
    return build(plan, "step", plan_step, &plan->step, err);
}
