/* The optimizer's window: held gradients applied, unit by unit in the order of next use. */
#include "plan/build.h"

static void set_range(struct sw_op *op, int64_t unit, int64_t first, int64_t count)
{
    op->unit = (int32_t)unit;
    op->first = first;
    op->count = count;
}

/* Where the gradient is that a step reads. */
static int64_t gradient_place(const struct sw_build *b, int64_t unit)
{
    return sw_build_early(b) || sw_plan_gradient_stays(b->plan, unit)
               ? sw_build_accumulator(b, unit)
               : b->r.held + unit;
}

/* All of it where it is: in device memory, or in host memory. */
static void step_whole(struct sw_build *b, int64_t unit, const struct sw_unit_flow *flow)
{
    int64_t elements = b->model->units[unit].elements;
    struct sw_op *op = sw_program_add(b->program, SW_OP_STEP, SW_LANE_OPTIMIZER);
    set_range(op, unit, 0, elements);
    op->phase = -1;
    op->gradient = b->gradient_slot[unit];
    sw_program_reads(b->program, gradient_place(b, unit));
    if (!sw_build_early(b))
        sw_program_reads(b->program, b->r.norm);
    sw_program_writes(b->program, b->r.states + b->first_chunk[unit]);
    if (!flow->weights_whole) {
        sw_program_adds(b->program, b->r.weights + unit);
        return;
    }
    op = sw_program_add(b->program, SW_OP_UPLOAD, SW_LANE_H2D);
    op->cargo = SW_CARGO_WEIGHTS;
    set_range(op, unit, 0, elements);
    sw_program_reads(b->program, b->r.states + b->first_chunk[unit]);
    sw_program_adds(b->program, b->r.weights + unit);
}

struct piece {
    int64_t unit, first, count, states; /* states: resource */
    int32_t buffer;
    int phase;
    bool last_phase;
    const struct sw_unit_flow *flow;
};

static void bring(struct sw_build *b, const struct piece *piece)
{
    const struct sw_unit_flow *flow = piece->flow;
    uint32_t gradient = flow->read_parts & 1U << SW_PART_GRADIENT;
    bool states = flow->read_parts != gradient && sw_plan_phase_reads_master(b->plan, piece->phase);
    if (gradient != 0 || states) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_READ, SW_LANE_STATE_READ);
        set_range(op, piece->unit, piece->first, piece->count);
        op->buffer = piece->buffer;
        op->phase = piece->phase;
        if (gradient != 0)
            sw_program_reads(b->program, b->r.held + piece->unit);
        sw_program_reads(b->program, piece->states);
        sw_program_adds(b->program, b->r.state_buffer + piece->buffer);
    }
    if (flow->gradient_down) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_DOWNLOAD, SW_LANE_D2H);
        op->cargo = SW_CARGO_GRADIENT;
        set_range(op, piece->unit, piece->first, piece->count);
        op->gradient = b->gradient_slot[piece->unit];
        op->buffer = piece->buffer;
        op->to_window = true;
        sw_program_reads(b->program, gradient_place(b, piece->unit));
        sw_program_adds(b->program, b->r.state_buffer + piece->buffer);
    }
    if (sw_build_early(b) && piece->phase == 0) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_PARTIALS, SW_LANE_OPTIMIZER);
        op->cargo = SW_CARGO_GRADIENT;
        set_range(op, piece->unit, piece->first, piece->count);
        op->buffer = piece->buffer;
        op->to_window = true;
        sw_program_reads(b->program, b->r.state_buffer + piece->buffer);
        sw_program_adds(b->program, b->r.norm);
    }
}

static void take_back(struct sw_build *b, const struct piece *piece)
{
    const struct sw_unit_flow *flow = piece->flow;
    if (flow->write_parts != 0) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_WRITE, SW_LANE_STATE_WRITE);
        set_range(op, piece->unit, piece->first, piece->count);
        op->buffer = piece->buffer;
        sw_program_reads(b->program, b->r.state_buffer + piece->buffer);
        sw_program_writes(b->program, piece->states);
        if (b->plan->homes[piece->unit].weights == SW_TIER_NVME)
            sw_program_adds(b->program, b->r.weights + piece->unit);
    }
    if (flow->weights_up) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_UPLOAD, SW_LANE_H2D);
        op->cargo = SW_CARGO_WEIGHTS;
        set_range(op, piece->unit, piece->first, piece->count);
        op->buffer = piece->buffer;
        op->to_window = true;
        sw_program_reads(b->program, b->r.state_buffer + piece->buffer);
        sw_program_adds(b->program, b->r.weights + piece->unit);
    }
}

static void step_piece(struct sw_build *b, const struct piece *piece)
{
    bring(b, piece);
    bool in_host = b->plan->homes[piece->unit].gradient == SW_TIER_HOST && !sw_build_early(b);
    struct sw_op *op = sw_program_add(b->program, SW_OP_STEP, SW_LANE_OPTIMIZER);
    set_range(op, piece->unit, piece->first, piece->count);
    op->buffer = piece->buffer;
    op->phase = piece->phase;
    if (in_host)
        sw_program_reads(b->program, b->r.held + piece->unit);
    if (!sw_build_early(b))
        sw_program_reads(b->program, b->r.norm);
    sw_program_writes(b->program, b->r.state_buffer + piece->buffer);
    sw_program_writes(b->program, piece->states);
    if (!piece->last_phase)
        return;
    if (b->plan->homes[piece->unit].weights == SW_TIER_HOST)
        sw_program_adds(b->program, b->r.weights + piece->unit);
    take_back(b, piece);
}

void sw_build_step_unit(struct sw_build *b, int64_t unit)
{
    struct sw_unit_flow flow;
    sw_plan_unit_flow(b->plan, unit, &flow);
    if (!flow.chunked) {
        step_whole(b, unit, &flow);
        return;
    }
    int64_t elements = b->model->units[unit].elements;
    int phases = sw_plan_phases(b->plan);
    for (int phase = 0; phase < phases; phase++)
        for (int64_t chunk = 0; chunk < sw_build_chunks(b, unit); chunk++) {
            int64_t first = chunk * b->plan->state_chunk, left = elements - first;
            const struct piece piece = {
                .unit = unit,
                .first = first,
                .count = left < b->plan->state_chunk ? left : b->plan->state_chunk,
                .states = b->r.states + b->first_chunk[unit] + chunk,
                .buffer = (int32_t)(b->next_state_buffer++ % b->plan->state_buffers),
                .phase = phase,
                .last_phase = phase == phases - 1,
                .flow = &flow,
            };
            step_piece(b, &piece);
        }
}

void sw_build_window_until(struct sw_build *b, int64_t unit)
{
    if (!b->windowed || (unit >= 0 && b->stepped[unit]))
        return;
    while (b->order_next < b->order_count) {
        int32_t next = b->order[b->order_next++];
        b->stepped[next] = true;
        if (sw_build_trains(b, next))
            sw_build_step_unit(b, next);
        if (next == unit)
            return;
    }
}
