/* Ops that move bytes between tiers. */
#include "exec/internal.h"

#include "base/mem.h"

#include <assert.h>

static char *staging(char *slab, int32_t buffer, int64_t bytes)
{
    sw_assert(buffer >= 0);
    return slab + buffer * sw_align_up(bytes, SW_AIO_ALIGNMENT_BYTES);
}

static char *fetch_buffer(const struct sw_engine *engine, int32_t buffer)
{
    return staging(engine->store.fetch_buffers, buffer, engine->plan->fetch_buffer_bytes);
}

static char *spill_buffer(const struct sw_engine *engine, int32_t buffer)
{
    return staging(engine->store.spill_buffers, buffer, engine->plan->spill_buffer_bytes);
}

/* Only what this micro-batch has, of a kept activation. */
static int64_t activation_bytes(const struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_microbatch *view = &sw_engine_rank_of(engine, op)->batches[op->microbatch].view;
    bool target = op->block > sw_plan_encoder_end(engine->model);
    return (target ? view->target.tokens : view->source.tokens) * engine->model->t5.d_model *
           sw_dtype_bytes(engine->plan->request.compute);
}

static const struct sw_place *activation_home(const struct sw_engine *engine,
                                              const struct sw_op *op)
{
    return &engine->store.ranks[op->rank]
                .activations[sw_plan_activation_index(engine->plan, op->block, op->microbatch)];
}

/* ---- up ---- */

static const char *weights_source(const struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    if (op->to_window)
        return sw_store_state_buffer(&engine->store, op->buffer, SW_PART_WEIGHTS);
    if (op->buffer >= 0)
        return fetch_buffer(engine, op->buffer);
    if (op->weights < 0) /* a host array with just these weights was stepped in place */
        return sw_store_part(
            &engine->store, op->rank, op->unit,
            engine->plan->request.compute == SW_F32 ? SW_PART_MASTER : SW_PART_HIGH, op->first);
    return sw_store_part(&engine->store, op->rank, op->unit, unit->weights_part, op->first);
}

/* Where stepped weights are at home on the device. */
static char *weights_home(const struct sw_engine *engine, const struct sw_op *op)
{
    if (op->unit == engine->model->common_unit)
        return sw_store_common_weights(&engine->store, op->rank) +
               op->first * sw_dtype_bytes(engine->plan->request.compute);
    return sw_store_part(&engine->store, op->rank, op->unit, SW_PART_WEIGHTS, op->first);
}

void sw_engine_upload(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_stream *stream = sw_engine_stream(engine, op);
    if (op->cargo == SW_CARGO_ACTIVATION) {
        const char *from = op->buffer >= 0 ? fetch_buffer(engine, op->buffer)
                                           : activation_home(engine, op)->memory;
        engine->device_ops->copy(stream, sw_engine_rank_of(engine, op)->activations[op->output],
                                 from, activation_bytes(engine, op));
        return;
    }
    int64_t size = sw_dtype_bytes(engine->plan->request.compute);
    char *to = op->weights >= 0 ? sw_store_arrive(&engine->store, op->rank, op->unit, op->weights,
                                                  op->first, op->count)
                                : weights_home(engine, op);
    engine->device_ops->copy(stream, to, weights_source(engine, op), op->count * size);
}

/* ---- down ---- */

/* A gradient in fp32 on the device to bf16, on the device or the host, piece by piece. */
static void convert_down(struct sw_engine *engine, const struct sw_op *op, char *to,
                         const float *from, bool device)
{
    const struct sw_kernels *kernels = engine->device_ops->kernels;
    struct sw_stream *stream = sw_engine_stream(engine, op);
    if (device) {
        kernels->convert(stream, to, SW_BF16, from, SW_F32, op->count);
        return;
    }
    for (int64_t at = 0; at < op->count; at += engine->plan->gradient_chunk) {
        int64_t left = op->count - at;
        int64_t count = left < engine->plan->gradient_chunk ? left : engine->plan->gradient_chunk;
        void *buffer = engine->store.ranks[op->rank].convert_buffer;
        kernels->convert(stream, buffer, SW_BF16, from + at, SW_F32, count);
        engine->device_ops->copy(stream, to + at * 2, buffer, count * 2);
    }
}

void sw_engine_download(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_stream *stream = sw_engine_stream(engine, op);
    if (op->cargo == SW_CARGO_ACTIVATION) {
        char *to = op->buffer >= 0 ? spill_buffer(engine, op->buffer)
                                   : activation_home(engine, op)->memory;
        engine->device_ops->copy(stream, to, sw_engine_rank_of(engine, op)->activations[op->output],
                                 activation_bytes(engine, op));
        return;
    }
    const struct sw_place *held = &engine->store.units[op->unit].parts[SW_PART_GRADIENT];
    bool bf16 = sw_plan_part_dtype(engine->plan, SW_PART_GRADIENT) == SW_BF16;
    char *to;
    if (op->to_window)
        to = sw_store_state_buffer(&engine->store, op->buffer, SW_PART_GRADIENT);
    else if (op->buffer >= 0)
        to = spill_buffer(engine, op->buffer);
    else
        to = sw_store_part(&engine->store, op->rank, op->unit, SW_PART_GRADIENT, op->first);
    if (op->to_window && held->tier == SW_TIER_DEVICE) { /* as it is held there */
        engine->device_ops->copy(
            stream, to,
            sw_store_part(&engine->store, op->rank, op->unit, SW_PART_GRADIENT, op->first),
            op->count * sw_dtype_bytes(held->dtype));
        return;
    }
    const float *from =
        sw_store_complete_gradient(&engine->store, op->rank, op->unit, op->gradient, op->first);
    if (bf16)
        convert_down(engine, op, to, from, op->buffer < 0 && held->tier == SW_TIER_DEVICE);
    else
        engine->device_ops->copy(stream, to, from, op->count * (int64_t)sizeof(float));
}

void sw_engine_move_states(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_flow *flow = &engine->store.units[op->unit].flow;
    bool up = op->kind == SW_OP_UPLOAD;
    uint32_t parts = up ? flow->up_parts : flow->down_parts;
    for (int i = 0; i < SW_PARTS; i++) {
        enum sw_part part = (enum sw_part)i;
        if ((parts >> part & 1) == 0)
            continue;
        char *inside = sw_store_stepping_buffer(&engine->store, op->rank, op->stepping, part);
        char *outside = sw_engine_part_outside(engine, op, part);
        engine->device_ops->copy(
            sw_engine_stream(engine, op), up ? inside : outside, up ? outside : inside,
            op->count * sw_dtype_bytes(sw_plan_part_dtype(engine->plan, part)));
    }
}

/* ---- drives ---- */

/* A line of the drives for each of their lanes, so that these share the drives as the simulator has
 * it. */
static int line_of(const struct sw_op *op)
{
    static_assert(SW_LANE_SPILL - SW_LANE_STATE_READ + 1 == SW_SPILL_LINES, "a line a lane");
    return (int)op->lane - (int)SW_LANE_STATE_READ;
}

static void transfer(struct sw_engine *engine, const struct sw_op *op,
                     struct sw_op_tickets *tickets, const struct sw_spill_region *region,
                     int64_t offset, char *memory, int64_t bytes)
{
    const struct sw_spill_transfer transfer = {
        .region = region,
        .offset_bytes = offset,
        .memory = memory,
        .bytes = bytes,
        .write = op->kind == SW_OP_WRITE || op->kind == SW_OP_SPILL,
        .line = line_of(op),
    };
    sw_spill_start(engine->store.spill, &transfer, &tickets->tickets[tickets->count++]);
}

/* The parts of a rotating buffer that come from drives, or go there. */
static void transfer_states(struct sw_engine *engine, const struct sw_op *op,
                            struct sw_op_tickets *tickets)
{
    const struct sw_unit_state *unit = &engine->store.units[op->unit];
    bool write = op->kind == SW_OP_WRITE;
    uint32_t parts = write ? unit->flow.write_parts : unit->flow.read_parts;
    if (!write && !sw_plan_phase_reads_master(engine->plan, op->phase))
        parts &= 1U << SW_PART_GRADIENT;
    for (int part = 0; part < SW_PARTS; part++) {
        const struct sw_place *place = &unit->parts[part];
        if ((parts >> part & 1) == 0)
            continue;
        int64_t size = sw_dtype_bytes(place->dtype);
        transfer(engine, op, tickets, &place->region, op->first * size,
                 sw_store_state_buffer(&engine->store, op->buffer, (enum sw_part)part),
                 op->count * size);
    }
}

void sw_engine_start_transfers(struct sw_engine *engine, const struct sw_op *op,
                               struct sw_op_tickets *tickets)
{
    const struct sw_unit_state *unit = op->unit >= 0 ? &engine->store.units[op->unit] : NULL;
    bool write = op->kind == SW_OP_SPILL;
    if (op->kind == SW_OP_READ || op->kind == SW_OP_WRITE) {
        transfer_states(engine, op, tickets);
        return;
    }
    char *buffer = write ? spill_buffer(engine, op->buffer) : fetch_buffer(engine, op->buffer);
    if (op->cargo == SW_CARGO_ACTIVATION) {
        transfer(engine, op, tickets, &activation_home(engine, op)->region, 0, buffer,
                 activation_bytes(engine, op));
        return;
    }
    sw_assert(unit != NULL); /* everything but activations belongs to one */
    const struct sw_place *place =
        &unit->parts[op->cargo == SW_CARGO_GRADIENT ? SW_PART_GRADIENT : unit->weights_part];
    int64_t size = sw_dtype_bytes(place->dtype);
    transfer(engine, op, tickets, &place->region, op->first * size, buffer, op->count * size);
}
