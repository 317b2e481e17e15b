/* The optimizer's window: held gradients applied, unit by unit in the order of next use. */
#include "plan/build.h"

static void set_range(struct sw_op *op, int64_t unit, int64_t first, int64_t count)
{
    op->unit = (int32_t)unit;
    op->first = first;
    op->count = count;
}

/* Where the gradient is that a step reads. */
static int64_t gradient_place(const struct sw_build *b, int64_t unit, int32_t rank)
{
    return sw_build_early(b) || sw_plan_gradient_stays(b->plan, unit)
               ? sw_build_accumulator(b, unit, rank)
               : b->r.held + unit;
}

/* Stepped weights to the devices that have them at home: to every replica, or to the one whose
 * range it is; what is used all over, to every rank. buffer < 0: out of the host's own array. */
static void upload_stepped(struct sw_build *b, int64_t unit, struct sw_range piece, int32_t buffer,
                           int64_t source)
{
    const struct sw_plan *plan = b->plan;
    bool sharded = sw_plan_is_sharded(plan, unit, sw_plan_weights_part(plan, unit));
    for (int32_t rank = 0; rank < plan->ranks; rank++) {
        int32_t replica = rank / plan->stages;
        struct sw_range own = sw_plan_range(plan, unit, replica);
        bool has = sw_plan_stage_has(plan, rank % plan->stages, unit);
        if (!has || (sharded && (piece.first < own.first ||
                                 piece.first + piece.count > own.first + own.count)))
            continue;
        struct sw_op *op = sw_program_add(b->program, SW_OP_UPLOAD, SW_LANE_H2D, rank);
        op->cargo = SW_CARGO_WEIGHTS;
        set_range(op, unit, piece.first, piece.count);
        op->buffer = buffer;
        op->to_window = buffer >= 0;
        sw_program_reads(b->program, source);
        sw_program_adds(b->program, b->r.weights + unit);
    }
}

static void step_op(struct sw_build *b, enum sw_lane lane, int64_t unit, int32_t rank,
                    struct sw_range range, int phase, int64_t states)
{
    struct sw_op *op = sw_program_add(b->program, SW_OP_STEP, lane, rank);
    set_range(op, unit, range.first, range.count);
    op->phase = phase;
    op->gradient = b->gradient_slot[unit];
    sw_program_reads(b->program, gradient_place(b, unit, rank));
    if (!sw_build_early(b))
        sw_program_reads(b->program, b->r.norm);
    if (lane == SW_LANE_DEVICE_STEP) /* replicas step side by side */
        sw_program_adds(b->program, b->r.states + states);
    else
        sw_program_writes(b->program, b->r.states + states);
}

/* In device memory: all of it on every replica alike, or each replica its range. A device that is
 * not the host steps beside it, and beside other devices. */
static void step_on_devices(struct sw_build *b, int64_t unit)
{
    const struct sw_plan *plan = b->plan;
    bool everywhere = sw_plan_steps_everywhere(plan, unit);
    enum sw_lane lane = plan->request.device_is_remote ? SW_LANE_DEVICE_STEP : SW_LANE_OPTIMIZER;
    int phases = everywhere ? 1 : sw_plan_phases(plan);
    for (int phase = 0; phase < phases; phase++)
        for (int32_t d = 0; d < plan->replicas; d++) {
            struct sw_range range = sw_plan_range(plan, unit, d);
            if (everywhere)
                range = (struct sw_range){0, b->model->units[unit].elements};
            if (range.count == 0)
                continue;
            step_op(b, lane, unit, sw_build_rank_of(b, unit, d), range, everywhere ? -1 : phase,
                    b->first_chunk[unit]);
            sw_program_adds(b->program, b->r.weights + unit);
        }
    sw_build_share_weights(b, unit);
}

/* In host memory, in place. */
static void step_in_host(struct sw_build *b, int64_t unit, const struct sw_unit_flow *flow)
{
    struct sw_range all = {0, b->model->units[unit].elements};
    step_op(b, SW_LANE_OPTIMIZER, unit, sw_build_rank_of(b, unit, 0), all, -1,
            b->first_chunk[unit]);
    if (flow->weights_whole)
        for (int32_t d = 0; d < b->plan->replicas; d++) {
            bool sharded = sw_plan_is_sharded(b->plan, unit, SW_PART_WEIGHTS);
            struct sw_range range = sharded ? sw_plan_range(b->plan, unit, d) : all;
            if (range.count > 0 && (sharded || d == 0))
                upload_stepped(b, unit, range, -1, b->r.states + b->first_chunk[unit]);
        }
    else
        sw_program_adds(b->program, b->r.weights + unit);
}

struct piece {
    int64_t unit, states; /* states: resource */
    struct sw_range range;
    int32_t buffer, stepping, rank; /* -1: not through one */
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
        struct sw_op *op = sw_program_add(b->program, SW_OP_READ, SW_LANE_STATE_READ, piece->rank);
        set_range(op, piece->unit, piece->range.first, piece->range.count);
        op->buffer = piece->buffer;
        op->phase = piece->phase;
        if (gradient != 0)
            sw_program_reads(b->program, b->r.held + piece->unit);
        sw_program_reads(b->program, piece->states);
        sw_program_adds(b->program, b->r.state_buffer + piece->buffer);
    }
    if (flow->gradient_down) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_DOWNLOAD, SW_LANE_D2H, piece->rank);
        op->cargo = SW_CARGO_GRADIENT;
        set_range(op, piece->unit, piece->range.first, piece->range.count);
        op->gradient = b->gradient_slot[piece->unit];
        op->buffer = piece->buffer;
        op->to_window = true;
        sw_program_reads(b->program, gradient_place(b, piece->unit, piece->rank));
        sw_program_adds(b->program, b->r.state_buffer + piece->buffer);
    }
    if (sw_build_early(b) && flow->gradient_down && piece->phase == 0) {
        struct sw_op *op =
            sw_program_add(b->program, SW_OP_PARTIALS, SW_LANE_OPTIMIZER, piece->rank);
        op->cargo = SW_CARGO_GRADIENT;
        set_range(op, piece->unit, piece->range.first, piece->range.count);
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
        struct sw_op *op =
            sw_program_add(b->program, SW_OP_WRITE, SW_LANE_STATE_WRITE, piece->rank);
        set_range(op, piece->unit, piece->range.first, piece->range.count);
        op->buffer = piece->buffer;
        sw_program_reads(b->program, b->r.state_buffer + piece->buffer);
        sw_program_writes(b->program, piece->states);
        if (b->plan->homes[piece->unit].weights == SW_TIER_NVME)
            sw_program_adds(b->program, b->r.weights + piece->unit);
    }
    if (flow->weights_up)
        upload_stepped(b, piece->unit, piece->range, piece->buffer,
                       b->r.state_buffer + piece->buffer);
}

static void step_piece(struct sw_build *b, const struct piece *piece)
{
    bring(b, piece);
    bool in_host = b->plan->homes[piece->unit].gradient == SW_TIER_HOST && !sw_build_early(b);
    struct sw_op *op = sw_program_add(b->program, SW_OP_STEP, SW_LANE_OPTIMIZER, piece->rank);
    set_range(op, piece->unit, piece->range.first, piece->range.count);
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

static struct sw_op *stream_op(struct sw_build *b, const struct piece *piece, enum sw_op_kind kind,
                               enum sw_lane lane)
{
    struct sw_op *op = sw_program_add(b->program, kind, lane, piece->rank);
    set_range(op, piece->unit, piece->range.first, piece->range.count);
    op->cargo = kind == SW_OP_STEP ? SW_CARGO_NONE : SW_CARGO_STATES;
    op->buffer = piece->buffer;
    op->stepping = piece->stepping;
    return op;
}

/* Up, stepped, and down again: each in a lane of its own, so that three pieces are under way. */
static void stream_piece(struct sw_build *b, const struct piece *piece)
{
    const struct sw_unit_homes *homes = &b->plan->homes[piece->unit];
    int64_t place = b->ranks[piece->rank].stepping + piece->stepping;
    bool gradient_up = (piece->flow->up_parts >> SW_PART_GRADIENT & 1) != 0;
    bring(b, piece);
    (void)stream_op(b, piece, SW_OP_UPLOAD, SW_LANE_STATE_UP);
    sw_program_reads(b->program, piece->states);
    if (piece->buffer >= 0)
        sw_program_reads(b->program, b->r.state_buffer + piece->buffer);
    if (gradient_up && homes->gradient == SW_TIER_HOST)
        sw_program_reads(b->program, b->r.held + piece->unit);
    sw_program_writes(b->program, place);
    stream_op(b, piece, SW_OP_STEP, SW_LANE_DEVICE_STEP)->gradient = b->gradient_slot[piece->unit];
    if (!gradient_up)
        sw_program_reads(b->program, gradient_place(b, piece->unit, piece->rank));
    if (!sw_build_early(b))
        sw_program_reads(b->program, b->r.norm);
    sw_program_writes(b->program, place);
    if (homes->weights == SW_TIER_DEVICE)
        sw_program_adds(b->program, b->r.weights + piece->unit);
    (void)stream_op(b, piece, SW_OP_DOWNLOAD, SW_LANE_STATE_DOWN);
    sw_program_reads(b->program, place);
    if (piece->buffer >= 0)
        sw_program_writes(b->program, b->r.state_buffer + piece->buffer);
    if (homes->states == SW_TIER_HOST)
        sw_program_writes(b->program, piece->states);
    if (homes->weights == SW_TIER_HOST)
        sw_program_adds(b->program, b->r.weights + piece->unit);
    take_back(b, piece);
}

/* The next of `count` buffers in turn; -1 where `wanted` is false. */
static int32_t next_buffer(int64_t *next, int64_t count, bool wanted)
{
    return wanted ? (int32_t)((*next)++ % count) : -1;
}

/* Through the rotating buffers, or those of the device, piece by piece; `states`: the resource of
 * the range's first piece.
 */
static int64_t step_range(struct sw_build *b, int64_t unit, int32_t replica, int phase,
                          const struct sw_unit_flow *flow, int64_t states)
{
    struct sw_range range = sw_plan_range(b->plan, unit, replica);
    int32_t rank = sw_build_rank_of(b, unit, replica);
    int64_t stepping = b->plan->stage[rank % b->plan->stages].stepping_buffers;
    for (int64_t at = 0; at < range.count; at += b->plan->state_chunk, states++) {
        int64_t left = range.count - at;
        const struct piece piece = {
            .unit = unit,
            .states = states,
            .range = {range.first + at, left < b->plan->state_chunk ? left : b->plan->state_chunk},
            .buffer = next_buffer(&b->next_state_buffer, b->plan->state_buffers, flow->chunked),
            .stepping = next_buffer(&b->next_stepping[rank], stepping, flow->streamed),
            .rank = rank,
            .phase = phase,
            .last_phase = phase == sw_plan_phases(b->plan) - 1,
            .flow = flow,
        };
        if (flow->streamed)
            stream_piece(b, &piece);
        else
            step_piece(b, &piece);
    }
    return states;
}

void sw_build_step_unit(struct sw_build *b, int64_t unit)
{
    struct sw_unit_flow flow;
    sw_plan_unit_flow(b->plan, unit, &flow);
    if (b->plan->homes[unit].states == SW_TIER_DEVICE) {
        step_on_devices(b, unit);
        return;
    }
    if (!flow.chunked && !flow.streamed) {
        step_in_host(b, unit, &flow);
        return;
    }
    for (int phase = 0; phase < sw_plan_phases(b->plan); phase++) {
        int64_t states = b->r.states + b->first_chunk[unit];
        for (int32_t d = 0; d < b->plan->replicas; d++)
            states = step_range(b, unit, d, phase, &flow, states);
    }
    if (flow.streamed)
        sw_build_share_weights(b, unit);
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
