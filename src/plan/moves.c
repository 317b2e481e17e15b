/* Ops that move weights, gradients and kept activations between tiers. */
#include "plan/build.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void upload_weights(struct sw_build *b, int32_t unit, int32_t slot, int32_t buffer,
                           int64_t first, int64_t count)
{
    struct sw_op *op = sw_program_add(b->program, SW_OP_UPLOAD, SW_LANE_H2D);
    op->buffer = buffer;
    op->cargo = SW_CARGO_WEIGHTS;
    op->unit = unit;
    op->weights = slot;
    op->first = first;
    op->count = count;
    sw_program_adds(b->program, b->r.weight_slot[sw_plan_pool(b->plan, unit)] + slot);
}

void sw_build_fetch_weights(struct sw_build *b, int32_t unit, int32_t slot)
{
    int64_t elements = b->model->units[unit].elements;
    sw_build_window_until(b, unit);
    if (b->plan->homes[unit].weights == SW_TIER_HOST) {
        upload_weights(b, unit, slot, -1, 0, elements);
        sw_program_reads(b->program, b->r.weights + unit);
        return;
    }
    for (int64_t first = 0; first < elements; first += b->plan->weight_chunk) {
        int64_t count = least(b->plan->weight_chunk, elements - first);
        int32_t buffer = (int32_t)(b->next_fetch_buffer++ % b->plan->fetch_buffers);
        struct sw_op *op = sw_program_add(b->program, SW_OP_FETCH, SW_LANE_FETCH);
        op->cargo = SW_CARGO_WEIGHTS;
        op->unit = unit;
        op->buffer = buffer;
        op->first = first;
        op->count = count;
        sw_program_reads(b->program, b->r.weights + unit);
        sw_program_writes(b->program, b->r.fetch_buffer + buffer);
        upload_weights(b, unit, slot, buffer, first, count);
        sw_program_reads(b->program, b->r.fetch_buffer + buffer);
    }
}

/* ---- kept activations ---- */

static struct sw_op *activation_op(struct sw_build *b, enum sw_op_kind kind, enum sw_lane lane,
                                   int32_t index)
{
    struct sw_op *op = sw_program_add(b->program, kind, lane);
    op->cargo = SW_CARGO_ACTIVATION;
    op->block = index / (int32_t)b->plan->microbatches;
    op->microbatch = index % (int32_t)b->plan->microbatches;
    return op;
}

void sw_build_fetch_activation(struct sw_build *b, int32_t index, int32_t slot)
{
    bool nvme = b->plan->activations == SW_TIER_NVME;
    int32_t buffer = -1;
    if (nvme) {
        buffer = (int32_t)(b->next_fetch_buffer++ % b->plan->fetch_buffers);
        activation_op(b, SW_OP_FETCH, SW_LANE_FETCH, index)->buffer = buffer;
        sw_program_reads(b->program, b->r.activation_home + index);
        sw_program_writes(b->program, b->r.fetch_buffer + buffer);
    }
    struct sw_op *op = activation_op(b, SW_OP_UPLOAD, SW_LANE_H2D, index);
    op->buffer = buffer;
    op->output = slot;
    sw_program_reads(b->program, nvme ? b->r.fetch_buffer + buffer : b->r.activation_home + index);
    sw_program_writes(b->program, b->r.activation + slot);
}

void sw_build_write_back(struct sw_build *b, int32_t index, int32_t slot)
{
    bool nvme = b->plan->activations == SW_TIER_NVME;
    int32_t buffer = nvme ? (int32_t)(b->next_spill_buffer++ % b->plan->spill_buffers) : -1;
    struct sw_op *op = activation_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, index);
    op->buffer = buffer;
    op->output = slot;
    sw_program_reads(b->program, b->r.activation + slot);
    sw_program_writes(b->program, nvme ? b->r.spill_buffer + buffer : b->r.activation_home + index);
    if (!nvme)
        return;
    activation_op(b, SW_OP_SPILL, SW_LANE_SPILL, index)->buffer = buffer;
    sw_program_reads(b->program, b->r.spill_buffer + buffer);
    sw_program_writes(b->program, b->r.activation_home + index);
}

/* ---- gradients ---- */

static struct sw_op *gradient_op(struct sw_build *b, enum sw_op_kind kind, enum sw_lane lane,
                                 int64_t unit, int64_t first, int64_t count)
{
    struct sw_op *op = sw_program_add(b->program, kind, lane);
    op->cargo = SW_CARGO_GRADIENT;
    op->unit = (int32_t)unit;
    op->gradient = b->gradient_slot[unit];
    op->first = first;
    op->count = count;
    return op;
}

/* The gradient goes to a drive: through staging buffers, where its partials are taken. */
static void spill_gradient(struct sw_build *b, int64_t unit)
{
    int64_t elements = b->model->units[unit].elements;
    for (int64_t first = 0; first < elements; first += b->plan->gradient_chunk) {
        int64_t count = least(b->plan->gradient_chunk, elements - first);
        int32_t buffer = (int32_t)(b->next_spill_buffer++ % b->plan->spill_buffers);
        gradient_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, unit, first, count)->buffer = buffer;
        sw_program_reads(b->program, sw_build_accumulator(b, unit));
        sw_program_writes(b->program, b->r.spill_buffer + buffer);
        gradient_op(b, SW_OP_SPILL, SW_LANE_SPILL, unit, first, count)->buffer = buffer;
        sw_program_reads(b->program, b->r.spill_buffer + buffer);
        sw_program_adds(b->program, b->r.held + unit);
        gradient_op(b, SW_OP_PARTIALS, SW_LANE_OPTIMIZER, unit, first, count)->buffer = buffer;
        sw_program_reads(b->program, b->r.spill_buffer + buffer);
        sw_program_adds(b->program, b->r.norm);
    }
}

void sw_build_complete_gradient(struct sw_build *b, int64_t unit)
{
    int64_t elements = b->model->units[unit].elements;
    struct sw_unit_flow flow;
    sw_plan_unit_flow(b->plan, unit, &flow);
    if (sw_build_early(b) && flow.chunked) { /* partials are taken on the way */
        sw_build_step_unit(b, unit);
        return;
    }
    if (sw_plan_part_tier(b->plan, unit, SW_PART_GRADIENT) == SW_TIER_NVME) {
        spill_gradient(b, unit);
        return;
    }
    int64_t place = sw_build_accumulator(b, unit);
    if (!sw_build_early(b) && !sw_plan_gradient_stays(b->plan, unit)) {
        (void)gradient_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, unit, 0, elements);
        sw_program_reads(b->program, place);
        place = b->r.held + unit;
        sw_program_writes(b->program, place);
    }
    (void)gradient_op(b, SW_OP_PARTIALS, SW_LANE_OPTIMIZER, unit, 0, elements);
    sw_program_reads(b->program, place);
    sw_program_adds(b->program, b->r.norm);
    if (sw_build_early(b))
        sw_build_step_unit(b, unit);
}
