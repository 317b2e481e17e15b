/* The programs of a plan: step, drain, evaluation, generation. The agenda says what computes; from
 * it follows when weights and kept activations are needed; then ops are emitted, alike for all
 * replicas. */
#include "plan/build.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

/* ---- resources ---- */

int64_t sw_build_chunks(const struct sw_build *b, int64_t unit)
{
    int64_t chunks = 0;
    if (!sw_build_trains(b, unit))
        return 1;
    for (int32_t d = 0; d < b->plan->replicas; d++)
        chunks += (sw_plan_range(b->plan, unit, d).count + b->plan->state_chunk - 1) /
                  b->plan->state_chunk;
    return chunks;
}

int64_t sw_build_accumulator(const struct sw_build *b, int64_t unit, int32_t rank)
{
    if (b->gradient_slot[unit] < 0)
        return b->ranks[rank].accumulator + unit;
    return b->ranks[rank].gradient_slot[sw_plan_pool(b->plan, unit)] + b->gradient_slot[unit];
}

static int64_t take(int64_t *next, int64_t count)
{
    int64_t first = *next;
    *next += count;
    return first;
}

static void number_rank(struct sw_build *b, int32_t rank, int64_t *next)
{
    const struct sw_plan *plan = b->plan;
    const struct sw_stage_plan *stage = &plan->stage[rank % plan->stages];
    struct sw_build_rank *r = &b->ranks[rank];
    int64_t m = plan->microbatches, contexts = 0;
    bool home = plan->activations == SW_TIER_DEVICE;
    r->batch = take(next, m);
    r->activation = take(next, home ? stage->slots[SW_SLOTS_SOURCE] + stage->slots[SW_SLOTS_TARGET]
                                    : plan->activation_slots);
    r->activation_home = take(next, home ? 0 : b->model->block_count * m);
    for (int c = SW_SLOTS_CONTEXT; c < SW_SLOT_CLASSES; c++)
        contexts += stage->slots[c];
    r->context = take(next, contexts > 0 ? contexts : 1);
    r->gradient = take(next, m);
    r->encoder_gradient = take(next, m);
    r->accumulator = take(next, b->model->unit_count);
    for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
        r->weight_slot[pool] = take(next, stage->weight_pools[pool].slots);
        r->gradient_slot[pool] = take(next, stage->gradient_pools[pool].slots);
    }
    r->stepping = take(next, stage->stepping_buffers);
    r->mailbox = take(next, plan->mailboxes);
    r->bias = take(next, 1);
    r->loss = take(next, 1);
    r->decode = take(next, 1);
}

static void number_resources(struct sw_build *b)
{
    const struct sw_plan *plan = b->plan;
    int64_t units = b->model->unit_count, next = 0, chunks = 0;
    struct sw_build_resources *r = &b->r;
    for (int32_t rank = 0; rank < plan->ranks; rank++)
        number_rank(b, rank, &next);
    r->weights = take(&next, units);
    r->held = take(&next, units);
    for (int64_t unit = 0; unit < units; unit++)
        b->first_chunk[unit] = take(&chunks, sw_build_chunks(b, unit));
    r->states = take(&next, chunks);
    r->state_buffer = take(&next, plan->state_buffers);
    r->fetch_buffer = take(&next, plan->fetch_buffers);
    r->spill_buffer = take(&next, plan->spill_buffers);
    r->norm = take(&next, 1);
    r->count = next;
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
    if (item->kind == SW_OP_SEND || block == NULL || block->units[0] < 0 ||
        block->units[0] == b->model->common_unit ||
        (item->kind == SW_OP_BACKWARD && is_embedding(block)))
        return -1;
    return sw_plan_is_slotted(b->plan, block->units[0]) ? block->units[0] : -1;
}

static struct sw_residency **weights_of(const struct sw_build *b, int32_t stage, int pool)
{
    return &b->weights[stage * SW_POOL_KINDS + pool];
}

static bool spills_activations(const struct sw_build *b)
{
    return b->plan->activations != SW_TIER_DEVICE;
}

static void list_accesses(struct sw_build *b)
{
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    for (int64_t i = 0; b->agenda != NULL && i < b->agenda->count; i++) {
        const struct sw_agenda_op *item = &b->agenda->ops[i];
        int32_t time = (int32_t)i, unit = slotted_unit(b, item);
        if (unit >= 0)
            sw_residency_access(*weights_of(b, item->stage, (int)sw_plan_pool(b->plan, unit)), time,
                                unit, false);
        if (!spills_activations(b))
            continue;
        int64_t m = item->microbatch >= 0 ? item->microbatch : 0;
        int count = sw_agenda_accesses(b->plan, item, accesses);
        for (int k = 0; k < count; k++)
            sw_residency_access(b->kept[accesses[k].stage], time,
                                (int32_t)sw_plan_activation_index(b->plan, accesses[k].block, m),
                                accesses[k].makes);
    }
}

static bool open_residencies(struct sw_build *b)
{
    const struct sw_plan *plan = b->plan;
    bool opened = true;
    for (int32_t stage = 0; stage < plan->stages; stage++) {
        for (int pool = 0; pool < SW_POOL_KINDS; pool++) {
            *weights_of(b, stage, pool) =
                sw_residency_open((int32_t)plan->stage[stage].weight_pools[pool].slots,
                                  (int32_t)b->model->unit_count);
            opened = opened && *weights_of(b, stage, pool) != NULL;
        }
        if (!spills_activations(b))
            continue;
        b->kept[stage] = sw_residency_open((int32_t)plan->activation_slots,
                                           (int32_t)(b->model->block_count * plan->microbatches));
        opened = opened && b->kept[stage] != NULL;
    }
    if (!opened)
        return false;
    list_accesses(b);
    for (int32_t i = 0; i < plan->stages * SW_POOL_KINDS; i++)
        opened = sw_residency_ready(b->weights[i]) && opened;
    for (int32_t stage = 0; stage < plan->stages && spills_activations(b); stage++)
        opened = sw_residency_ready(b->kept[stage]) && opened;
    return opened;
}

static void close_residencies(struct sw_build *b)
{
    for (int32_t i = 0; b->weights != NULL && i < b->plan->stages * SW_POOL_KINDS; i++) {
        sw_residency_close(b->weights[i]);
        b->weights[i] = NULL;
    }
    for (int32_t stage = 0; b->kept != NULL && stage < b->plan->stages; stage++) {
        sw_residency_close(b->kept[stage]);
        b->kept[stage] = NULL;
    }
}

static int64_t written_back_index(const struct sw_build *b, int32_t stage, int32_t object)
{
    return stage * b->model->block_count * b->plan->microbatches + object;
}

/* Which activations lose their slot before they are needed for the last time: those are written to
 * their home as soon as they are made. */
static bool find_written_back(struct sw_build *b)
{
    if (!spills_activations(b))
        return true;
    bool opened = open_residencies(b);
    struct sw_residency_change change;
    for (int64_t i = 0; opened && b->agenda != NULL && i < b->agenda->count; i++)
        for (int32_t stage = 0; stage < b->plan->stages; stage++)
            while (sw_residency_next(b->kept[stage], (int32_t)i, &change))
                if (change.evicted >= 0)
                    b->written_back[written_back_index(b, stage, change.evicted)] = true;
    close_residencies(b);
    return opened;
}

/* ---- emitting ---- */

/* All that may move before agenda op `now`. */
static void move(struct sw_build *b, int32_t now)
{
    struct sw_residency_change change;
    for (int32_t stage = 0; stage < b->plan->stages; stage++) {
        while (spills_activations(b) && sw_residency_next(b->kept[stage], now, &change))
            if (!change.produced)
                sw_build_fetch_activation(b, stage, change.object, change.slot);
        for (int pool = 0; pool < SW_POOL_KINDS; pool++)
            while (sw_residency_next(*weights_of(b, stage, pool), now, &change))
                sw_build_fetch_weights(b, change.object, change.slot);
    }
}

/* The slot of an activation, numbered over both sides; its resource is r.activation more. */
static int32_t activation_slot(const struct sw_build *b, int32_t stage, int32_t block,
                               int32_t microbatch)
{
    int32_t m = microbatch >= 0 ? microbatch : 0;
    if (spills_activations(b))
        return sw_residency_slot(b->kept[stage],
                                 (int32_t)sw_plan_activation_index(b->plan, block, m));
    int32_t slot = sw_slots_activation(b->slots, stage, block, m);
    if (sw_slots_class(b->plan, block) == SW_SLOTS_TARGET)
        slot += (int32_t)b->plan->stage[stage].slots[SW_SLOTS_SOURCE];
    return slot;
}

static int32_t context_slot(const struct sw_build *b, const struct sw_agenda_op *item)
{
    if (b->plan->recompute)
        return 0;
    int32_t slot = sw_slots_context(b->slots, item->stage, item->block, item->microbatch);
    for (enum sw_block_kind kind = 0; kind < block_of(b, item)->kind; kind++)
        slot += (int32_t)b->plan->stage[item->stage].slots[SW_SLOTS_CONTEXT + (int)kind];
    return slot;
}

static void use_activations(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    int64_t first = b->ranks[op->rank].activation;
    int32_t end = (int32_t)sw_plan_encoder_end(b->model);
    int count = sw_agenda_accesses(b->plan, item, accesses);
    for (int k = 0; k < count; k++) {
        int32_t slot = activation_slot(b, item->stage, accesses[k].block, item->microbatch);
        bool memory =
            accesses[k].block == end && !accesses[k].makes &&
            (item->kind == SW_OP_DECODE_CROSS || block_of(b, item)->kind == SW_BLOCK_DECODER);
        if (accesses[k].makes)
            op->output = slot;
        else if (memory)
            op->memory = slot;
        else
            op->input = slot;
        if (accesses[k].makes)
            sw_program_writes(b->program, first + slot);
        else
            sw_program_reads(b->program, first + slot);
    }
}

static void use_weights(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    const struct sw_block *block = block_of(b, item);
    int32_t slotted = slotted_unit(b, item);
    if (slotted >= 0) {
        enum sw_pool_kind pool = sw_plan_pool(b->plan, slotted);
        op->weights = sw_residency_slot(*weights_of(b, item->stage, (int)pool), slotted);
        sw_program_reads(b->program, b->ranks[op->rank].weight_slot[pool] + op->weights);
    }
    if (item->kind == SW_OP_DECODE_BEGIN)
        sw_program_reads(b->program, b->r.weights + b->model->common_unit);
    for (int i = 0; block != NULL && i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0 && !sw_plan_is_slotted(b->plan, block->units[i]))
            sw_program_reads(b->program, b->r.weights + block->units[i]);
}

static bool is_layer(const struct sw_block *block)
{
    return block->kind == SW_BLOCK_ENCODER || block->kind == SW_BLOCK_DECODER;
}

/* When each unit's gradient begins and is complete: agenda indices. Of what is used all over only
 * the final norms' gradients accumulate: those of bias tables are partials of blocks. */
static void find_gradients(struct sw_build *b)
{
    memset(b->gradient_begins, -1, (size_t)b->model->unit_count * sizeof *b->gradient_begins);
    memset(b->gradient_ends, -1, (size_t)b->model->unit_count * sizeof *b->gradient_ends);
    for (int64_t i = 0; b->agenda != NULL && i < b->agenda->count; i++) {
        const struct sw_agenda_op *item = &b->agenda->ops[i];
        if (item->kind != SW_OP_HEAD && item->kind != SW_OP_BACKWARD)
            continue;
        for (int k = 0; k < SW_BLOCK_UNITS; k++) {
            int32_t unit = block_of(b, item)->units[k];
            if (unit < 0 || (unit == b->model->common_unit && is_layer(block_of(b, item))))
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
    int32_t stage = b->plan->unit_stage[unit];
    if (!sw_plan_gradient_slotted(b->plan, unit))
        return -1;
    return (int32_t)(b->next_gradient_slot[stage * SW_POOL_KINDS + (int)pool]++ %
                     b->plan->stage[stage].gradient_pools[pool].slots);
}

static void use_gradients(struct sw_build *b, struct sw_op *op, int64_t index)
{
    const struct sw_agenda_op *item = &b->agenda->ops[index];
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        int32_t unit = block_of(b, item)->units[i];
        if (unit < 0 || !sw_build_trains(b, unit) ||
            (unit == b->model->common_unit && is_layer(block_of(b, item))))
            continue;
        bool begins = b->gradient_begins[unit] == index || sw_plan_gradient_sums(b->plan, unit);
        if (begins && op->rank == item->stage) /* once for all replicas */
            b->gradient_slot[unit] = begin_gradient(b, unit);
        if (unit == b->model->common_unit) {
            op->clears_common = begins;
        } else {
            op->clears_own = begins;
            op->gradient = b->gradient_slot[unit];
        }
        sw_program_writes(b->program, sw_build_accumulator(b, unit, op->rank));
    }
}

/* Units whose gradient this op completed, of the micro-batch or of all; the common unit waits for
 * the bias tables. */
static void complete_gradients(struct sw_build *b, int64_t index)
{
    const struct sw_block *block = block_of(b, &b->agenda->ops[index]);
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        int32_t unit = block->units[i];
        if (unit < 0 || unit == b->model->common_unit || !sw_build_trains(b, unit))
            continue;
        if (sw_plan_gradient_sums(b->plan, unit))
            sw_build_sum_gradient(b, unit, b->gradient_begins[unit] == index);
        if (b->gradient_ends[unit] == index)
            sw_build_complete_gradient(b, unit);
    }
}

static void emit_forward(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    const struct sw_build_rank *r = &b->ranks[op->rank];
    sw_program_reads(b->program, r->batch + item->microbatch);
    if (item->kind == SW_OP_FORWARD && b->trains && !b->plan->recompute) {
        op->context = context_slot(b, item);
        sw_program_writes(b->program, r->context + op->context);
    }
    if (item->kind != SW_OP_HEAD)
        return;
    sw_program_writes(b->program, r->loss);
    if (b->trains)
        sw_program_writes(b->program, r->gradient + item->microbatch);
}

static void emit_backward(struct sw_build *b, struct sw_op *op, const struct sw_agenda_op *item)
{
    const struct sw_build_rank *r = &b->ranks[op->rank];
    enum sw_block_kind kind = block_of(b, item)->kind;
    sw_program_reads(b->program, r->batch + item->microbatch);
    op->context = context_slot(b, item);
    op->clears_encoder = item->block == b->model->block_count - 2;
    sw_program_writes(b->program, r->context + op->context);
    if (is_target_side(kind))
        sw_program_writes(b->program, r->gradient + item->microbatch);
    if (kind != SW_BLOCK_EMBED_TARGET)
        sw_program_writes(b->program, r->encoder_gradient + item->microbatch);
    if (kind == SW_BLOCK_ENCODER || kind == SW_BLOCK_DECODER)
        sw_program_writes(b->program, r->bias);
}

static enum sw_lane lane_of(const struct sw_build *b, const struct sw_agenda_op *item)
{
    return b->plan->stages > 1 && !is_layer(block_of(b, item)) ? SW_LANE_ENDS : SW_LANE_COMPUTE;
}

static void emit_compute(struct sw_build *b, int64_t index, int32_t replica)
{
    const struct sw_agenda_op *item = &b->agenda->ops[index];
    struct sw_op *op = sw_program_add(b->program, item->kind, lane_of(b, item),
                                      sw_plan_rank(b->plan, item->stage, replica));
    op->block = item->block;
    op->microbatch = item->microbatch;
    use_weights(b, op, item);
    use_activations(b, op, item);
    if (item->kind == SW_OP_FORWARD || item->kind == SW_OP_HEAD)
        emit_forward(b, op, item);
    else if (item->kind == SW_OP_BACKWARD)
        emit_backward(b, op, item);
    else
        sw_program_writes(b->program, b->ranks[op->rank].decode);
    if (b->trains && (item->kind == SW_OP_HEAD || item->kind == SW_OP_BACKWARD))
        use_gradients(b, op, index);
}

/* What this op made and will lose its slot goes home. */
static void write_back(struct sw_build *b, const struct sw_agenda_op *item)
{
    struct sw_agenda_access accesses[SW_AGENDA_ACCESSES];
    int count = sw_agenda_accesses(b->plan, item, accesses);
    int64_t m = item->microbatch >= 0 ? item->microbatch : 0;
    for (int k = 0; k < count && spills_activations(b); k++) {
        int32_t at = (int32_t)sw_plan_activation_index(b->plan, accesses[k].block, m);
        if (accesses[k].makes && b->written_back[written_back_index(b, accesses[k].stage, at)])
            sw_build_write_back(b, accesses[k].stage, at,
                                sw_residency_slot(b->kept[accesses[k].stage], at));
    }
}

static void emit(struct sw_build *b, int64_t index)
{
    const struct sw_agenda_op *item = &b->agenda->ops[index];
    const struct sw_block *block = block_of(b, item);
    for (int i = 0; item->kind != SW_OP_SEND && block != NULL && i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            sw_build_window_until(b, block->units[i]);
    sw_slots_before(b->slots, index);
    move(b, (int32_t)index);
    if (item->kind == SW_OP_SEND) {
        bool activation = item->cargo == SW_CARGO_ACTIVATION;
        sw_build_send(
            b, item,
            activation ? activation_slot(b, item->stage, item->block, item->microbatch) : -1,
            activation ? activation_slot(b, item->to, item->block, item->microbatch) : -1);
    } else {
        for (int32_t d = 0; d < b->plan->replicas; d++)
            emit_compute(b, index, d);
    }
    write_back(b, item);
    sw_slots_after(b->slots, index);
    if (b->trains && (item->kind == SW_OP_HEAD || item->kind == SW_OP_BACKWARD))
        complete_gradients(b, index);
}

static void emit_batches(struct sw_build *b)
{
    for (int64_t m = 0; m < b->plan->microbatches; m++)
        for (int32_t rank = 0; rank < b->plan->ranks; rank++) {
            struct sw_op *op = sw_program_add(b->program, SW_OP_BATCH, SW_LANE_H2D, rank);
            op->microbatch = (int32_t)m;
            sw_program_writes(b->program, b->ranks[rank].batch + m);
        }
}

/* The bias tables' gradients complete the common unit's; then the norm is known. */
static void emit_norm(struct sw_build *b)
{
    int32_t common = b->model->common_unit;
    if (sw_build_trains(b, common)) {
        sw_build_send_bias(b);
        for (int32_t d = 0; d < b->plan->replicas; d++) {
            int32_t rank = sw_plan_rank(b->plan, 0, d);
            struct sw_op *op = sw_program_add(b->program, SW_OP_BIAS, SW_LANE_COMPUTE, rank);
            op->unit = common;
            sw_program_writes(b->program, b->ranks[rank].bias);
            sw_program_writes(b->program, sw_build_accumulator(b, common, rank));
        }
        sw_build_complete_gradient(b, common);
    }
    (void)sw_program_add(b->program, SW_OP_NORM, SW_LANE_OPTIMIZER, 0);
    for (int32_t d = 0; d < b->plan->replicas; d++)
        sw_program_reads(b->program, b->ranks[sw_plan_rank(b->plan, 0, d)].loss);
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
    const struct sw_plan *plan = b->plan;
    int64_t units = b->model->unit_count;
    int64_t activations = plan->stages * b->model->block_count * plan->microbatches;
    b->ranks = sw_calloc(plan->ranks, sizeof *b->ranks);
    b->weights = sw_calloc((int64_t)plan->stages * SW_POOL_KINDS, sizeof *b->weights);
    b->kept = sw_calloc(plan->stages, sizeof *b->kept);
    b->first_chunk = sw_calloc(units, sizeof *b->first_chunk);
    b->stepped = sw_calloc(units, sizeof *b->stepped);
    b->order = sw_calloc(units, sizeof *b->order);
    b->gradient_slot = sw_calloc(units, sizeof *b->gradient_slot);
    b->gradient_begins = sw_calloc(units, sizeof *b->gradient_begins);
    b->gradient_ends = sw_calloc(units, sizeof *b->gradient_ends);
    b->written_back = sw_calloc(activations, sizeof *b->written_back);
    b->next_gradient_slot =
        sw_calloc((int64_t)plan->stages * SW_POOL_KINDS, sizeof *b->next_gradient_slot);
    b->next_mailbox = sw_calloc(plan->ranks, sizeof *b->next_mailbox);
    b->next_stepping = sw_calloc(plan->ranks, sizeof *b->next_stepping);
    if (b->ranks == NULL || b->weights == NULL || b->kept == NULL || b->first_chunk == NULL ||
        b->stepped == NULL || b->order == NULL || b->gradient_slot == NULL ||
        b->gradient_begins == NULL || b->gradient_ends == NULL || b->written_back == NULL ||
        b->next_gradient_slot == NULL || b->next_mailbox == NULL || b->next_stepping == NULL)
        return false;
    memset(b->gradient_slot, -1, (size_t)units * sizeof *b->gradient_slot);
    return true;
}

static void free_tables(struct sw_build *b)
{
    close_residencies(b);
    sw_slots_close(b->slots);
    free(b->ranks);
    free(b->weights);
    free(b->kept);
    free(b->first_chunk);
    free(b->stepped);
    free(b->order);
    free(b->gradient_slot);
    free(b->gradient_begins);
    free(b->gradient_ends);
    free(b->written_back);
    free(b->next_gradient_slot);
    free(b->next_mailbox);
    free(b->next_stepping);
}

static void emit_all(struct sw_build *b)
{
    /* Decoding has nothing but tokens, which come another way. */
    if (b->agenda != NULL && b->agenda->count > 0 && b->agenda->ops[0].microbatch >= 0)
        emit_batches(b);
    for (int64_t i = 0; b->agenda != NULL && i < b->agenda->count; i++)
        emit(b, i);
    if (b->trains)
        emit_norm(b);
    sw_build_window_until(b, -1);
}

/* trains: a step; windowed: held gradients are applied in it. */
static sw_code build(const struct sw_plan *plan, const char *name, const struct sw_agenda *agenda,
                     bool trains, bool windowed, struct sw_program **out, struct sw_err *err)
{
    struct sw_build b = {.plan = plan,
                         .model = plan->request.model,
                         .agenda = agenda,
                         .trains = trains,
                         .windowed = windowed};
    b.failed = !alloc_tables(&b);
    if (!b.failed && agenda != NULL) {
        b.slots = sw_slots_open(plan, agenda, !spills_activations(&b), trains && !plan->recompute);
        b.failed = b.slots == NULL;
    }
    if (!b.failed) {
        number_resources(&b);
        order_units(&b);
        find_gradients(&b);
        b.failed = !find_written_back(&b) || !open_residencies(&b);
    }
    if (!b.failed)
        b.program = sw_program_begin(name, plan->ranks, b.r.count,
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
    bool held = plan->request.optim != NULL && !plan->request.optim->early_step;
    switch (plan->request.purpose) {
    case SW_FOR_TRAINING:
        code = sw_plan_build_step(plan, err);
        if (code == SW_OK)
            code = build(plan, "drain", NULL, false, held, &plan->drain, err);
        /* fall through */
    case SW_FOR_EVALUATION:
        if (code == SW_OK)
            code = build(plan, "evaluation", plan->evaluation_agenda, false, false,
                         &plan->evaluation, err);
        break;
    case SW_FOR_GENERATION:
        code = build(plan, "encoding", plan->begin_agenda, false, false, &plan->begin, err);
        if (code == SW_OK)
            code = build(plan, "decoding", plan->decode_agenda, false, false, &plan->decode, err);
        break;
    }
    return code;
}

sw_code sw_plan_build_step(struct sw_plan *plan, struct sw_err *err)
{
    sw_assert(plan->request.optim != NULL); /* training has one */
    bool held = !plan->request.optim->early_step;
    return build(plan, "step", plan->step_agenda, true, held, &plan->step, err);
}
