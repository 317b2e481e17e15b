/* Ops that move weights, gradients and kept activations between tiers and ranks. */
#include "plan/build.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- weights ---- */

/* From host memory or a staging buffer to slots: of every replica, or of one. */
static void upload_weights(struct sw_build *b, int32_t unit, int32_t slot, int32_t buffer,
                           struct sw_range piece, int32_t replica)
{
    for (int32_t d = 0; d < b->plan->replicas; d++) {
        int32_t rank = sw_build_rank_of(b, unit, d);
        if (replica >= 0 && d != replica)
            continue;
        struct sw_op *op = sw_program_add(b->program, SW_OP_UPLOAD, SW_LANE_H2D, rank);
        op->buffer = buffer;
        op->cargo = SW_CARGO_WEIGHTS;
        op->unit = unit;
        op->weights = slot;
        op->first = piece.first;
        op->count = piece.count;
        sw_program_adds(b->program, b->ranks[rank].weight_slot[sw_plan_pool(b->plan, unit)] + slot);
        sw_program_reads(b->program,
                         buffer >= 0 ? b->r.fetch_buffer + buffer : b->r.weights + unit);
    }
}

/* Every replica has a range of them, at home or in the slot: together they have all. */
static void gather_weights(struct sw_build *b, int32_t unit, int32_t slot)
{
    enum sw_pool_kind pool = sw_plan_pool(b->plan, unit);
    struct sw_op *op =
        sw_program_add(b->program, SW_OP_GATHER, SW_LANE_COLLECTIVE, sw_build_rank_of(b, unit, 0));
    op->cargo = SW_CARGO_WEIGHTS;
    op->unit = unit;
    op->weights = slot;
    op->count = b->model->units[unit].elements;
    if (b->plan->homes[unit].weights == SW_TIER_DEVICE)
        sw_program_reads(b->program, b->r.weights + unit);
    for (int32_t d = 0; d < b->plan->replicas; d++)
        sw_program_writes(b->program,
                          b->ranks[sw_build_rank_of(b, unit, d)].weight_slot[pool] + slot);
}

/* A range of them from their home to slots: of every replica, or of one. */
static void bring_weights(struct sw_build *b, int32_t unit, int32_t slot, struct sw_range range,
                          int32_t replica)
{
    if (b->plan->homes[unit].weights == SW_TIER_HOST) {
        if (range.count > 0)
            upload_weights(b, unit, slot, -1, range, replica);
        return;
    }
    for (int64_t at = 0; at < range.count; at += b->plan->weight_chunk) {
        int64_t count = least(b->plan->weight_chunk, range.count - at);
        int32_t buffer = (int32_t)(b->next_fetch_buffer++ % b->plan->fetch_buffers);
        struct sw_op *op = sw_program_add(b->program, SW_OP_FETCH, SW_LANE_FETCH,
                                          sw_build_rank_of(b, unit, replica > 0 ? replica : 0));
        op->cargo = SW_CARGO_WEIGHTS;
        op->unit = unit;
        op->buffer = buffer;
        op->first = range.first + at;
        op->count = count;
        sw_program_reads(b->program, b->r.weights + unit);
        sw_program_writes(b->program, b->r.fetch_buffer + buffer);
        upload_weights(b, unit, slot, buffer, (struct sw_range){range.first + at, count}, replica);
    }
}

void sw_build_fetch_weights(struct sw_build *b, int32_t unit, int32_t slot)
{
    sw_build_window_until(b, unit);
    bool ranges = sw_plan_uploads_ranges(b->plan, unit);
    for (int32_t d = 0; ranges && d < b->plan->replicas; d++)
        bring_weights(b, unit, slot, sw_plan_range(b->plan, unit, d), d);
    if (ranges || b->plan->homes[unit].weights == SW_TIER_DEVICE)
        gather_weights(b, unit, slot);
    else
        bring_weights(b, unit, slot, (struct sw_range){0, b->model->units[unit].elements}, -1);
}

/* ---- kept activations ---- */

static struct sw_op *activation_op(struct sw_build *b, enum sw_op_kind kind, enum sw_lane lane,
                                   int32_t rank, int32_t index)
{
    struct sw_op *op = sw_program_add(b->program, kind, lane, rank);
    op->cargo = SW_CARGO_ACTIVATION;
    op->block = index / (int32_t)b->plan->microbatches;
    op->microbatch = index % (int32_t)b->plan->microbatches;
    return op;
}

static void fetch_activation(struct sw_build *b, int32_t rank, int32_t index, int32_t slot)
{
    bool nvme = b->plan->activations == SW_TIER_NVME;
    int64_t home = b->ranks[rank].activation_home + index;
    int32_t buffer = -1;
    if (nvme) {
        buffer = (int32_t)(b->next_fetch_buffer++ % b->plan->fetch_buffers);
        activation_op(b, SW_OP_FETCH, SW_LANE_FETCH, rank, index)->buffer = buffer;
        sw_program_reads(b->program, home);
        sw_program_writes(b->program, b->r.fetch_buffer + buffer);
    }
    struct sw_op *op = activation_op(b, SW_OP_UPLOAD, SW_LANE_H2D, rank, index);
    op->buffer = buffer;
    op->output = slot;
    sw_program_reads(b->program, nvme ? b->r.fetch_buffer + buffer : home);
    sw_program_writes(b->program, b->ranks[rank].activation + slot);
}

void sw_build_fetch_activation(struct sw_build *b, int32_t stage, int32_t index, int32_t slot)
{
    for (int32_t d = 0; d < b->plan->replicas; d++)
        fetch_activation(b, sw_plan_rank(b->plan, stage, d), index, slot);
}

static void write_back(struct sw_build *b, int32_t rank, int32_t index, int32_t slot)
{
    bool nvme = b->plan->activations == SW_TIER_NVME;
    int64_t home = b->ranks[rank].activation_home + index;
    int32_t buffer = nvme ? (int32_t)(b->next_spill_buffer++ % b->plan->spill_buffers) : -1;
    struct sw_op *op = activation_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, rank, index);
    op->buffer = buffer;
    op->output = slot;
    sw_program_reads(b->program, b->ranks[rank].activation + slot);
    sw_program_writes(b->program, nvme ? b->r.spill_buffer + buffer : home);
    if (!nvme)
        return;
    activation_op(b, SW_OP_SPILL, SW_LANE_SPILL, rank, index)->buffer = buffer;
    sw_program_reads(b->program, b->r.spill_buffer + buffer);
    sw_program_writes(b->program, home);
}

void sw_build_write_back(struct sw_build *b, int32_t stage, int32_t index, int32_t slot)
{
    for (int32_t d = 0; d < b->plan->replicas; d++)
        write_back(b, sw_plan_rank(b->plan, stage, d), index, slot);
}

/* ---- between stages ---- */

/* What of a rank a message is in: up to two resources. */
struct ends {
    int64_t from[2], to[2];
    int count;
};

static struct ends ends_of(const struct sw_build *b, const struct sw_op *op)
{
    const struct sw_build_rank *from = &b->ranks[op->rank], *to = &b->ranks[op->peer];
    struct ends out = {.count = 0};
    if (op->cargo == SW_CARGO_ACTIVATION) {
        out.from[0] = from->activation + op->input;
        out.to[0] = to->activation + op->output;
        out.count = 1;
    } else if (op->cargo == SW_CARGO_BIAS) {
        out.from[0] = from->bias;
        out.to[0] = to->bias;
        out.count = 1;
    } else if (op->cargo == SW_CARGO_WEIGHTS) {
        out.from[0] = out.to[0] = b->r.weights + op->unit;
        out.count = 1;
    }
    if (op->cargo != SW_CARGO_ACTIVATION_GRADIENT)
        return out;
    if ((op->sides & SW_SIDE_TARGET) != 0) {
        out.from[out.count] = from->gradient + op->microbatch;
        out.to[out.count++] = to->gradient + op->microbatch;
    }
    if ((op->sides & SW_SIDE_SOURCE) != 0) {
        out.from[out.count] = from->encoder_gradient + op->microbatch;
        out.to[out.count++] = to->encoder_gradient + op->microbatch;
    }
    return out;
}

/* `message`: a SEND without its lanes. Straight into the peer's memory; or, where devices cannot
 * reach each other, by a mailbox in host memory. */
static void send(struct sw_build *b, const struct sw_op *message)
{
    bool mailbox = b->plan->mailboxes > 0;
    int64_t box = 0;
    struct sw_op *op = sw_program_add(b->program, SW_OP_SEND, SW_LANE_SEND, message->rank);
    int64_t first_use = op->first_use;
    *op = *message;
    op->first_use = first_use;
    if (mailbox) {
        op->buffer = (int32_t)(b->next_mailbox[op->peer]++ % b->plan->mailboxes);
        box = b->ranks[op->peer].mailbox + op->buffer;
    }
    const struct sw_op sent = *op;
    const struct ends ends = ends_of(b, &sent);
    for (int i = 0; i < ends.count; i++) {
        sw_program_reads(b->program, ends.from[i]);
        if (!mailbox)
            sw_program_writes(b->program, ends.to[i]);
    }
    if (!mailbox)
        return;
    sw_program_writes(b->program, box);
    op = sw_program_add(b->program, SW_OP_RECV, SW_LANE_RECV, sent.peer);
    first_use = op->first_use;
    *op = sent;
    op->kind = SW_OP_RECV;
    op->lane = SW_LANE_RECV;
    op->rank = sent.peer;
    op->peer = sent.rank;
    op->first_use = first_use;
    op->use_count = 0;
    sw_program_reads(b->program, box);
    for (int i = 0; i < ends.count; i++)
        sw_program_writes(b->program, ends.to[i]);
}

static struct sw_op message(int32_t from, int32_t to, enum sw_cargo cargo)
{
    struct sw_op op = sw_op_blank(SW_OP_SEND, SW_LANE_SEND, from);
    op.cargo = cargo;
    op.peer = to;
    return op;
}

void sw_build_send(struct sw_build *b, const struct sw_agenda_op *item, int32_t from_slot,
                   int32_t to_slot)
{
    for (int32_t d = 0; d < b->plan->replicas; d++) {
        struct sw_op op = message(sw_plan_rank(b->plan, item->stage, d),
                                  sw_plan_rank(b->plan, item->to, d), item->cargo);
        op.block = item->block;
        op.microbatch = item->microbatch;
        op.sides = item->sides;
        op.input = from_slot;
        op.output = to_slot;
        send(b, &op);
    }
}

void sw_build_send_bias(struct sw_build *b)
{
    for (int32_t d = 0; d < b->plan->replicas; d++)
        for (int32_t stage = 1; stage < b->plan->stages; stage++) {
            const struct sw_op op = message(sw_plan_rank(b->plan, stage, d),
                                            sw_plan_rank(b->plan, 0, d), SW_CARGO_BIAS);
            send(b, &op);
        }
}

void sw_build_share_weights(struct sw_build *b, int64_t unit)
{
    const struct sw_plan *plan = b->plan;
    bool there = plan->homes[unit].streamed || (plan->homes[unit].states == SW_TIER_DEVICE &&
                                                !sw_plan_steps_everywhere(plan, unit));
    bool cut = plan->replicas > 1 && plan->homes[unit].weights == SW_TIER_DEVICE && there;
    if (cut && !sw_plan_is_sharded(plan, unit, sw_plan_weights_part(plan, unit))) {
        struct sw_op *op = sw_program_add(b->program, SW_OP_GATHER, SW_LANE_COLLECTIVE,
                                          sw_build_rank_of(b, unit, 0));
        op->cargo = SW_CARGO_WEIGHTS;
        op->unit = (int32_t)unit;
        op->count = b->model->units[unit].elements;
        sw_program_writes(b->program, b->r.weights + unit);
    }
    if (unit != b->model->common_unit || plan->homes[unit].states != SW_TIER_DEVICE)
        return;
    for (int32_t d = 0; d < plan->replicas; d++)
        for (int32_t stage = 1; stage < plan->stages; stage++) {
            struct sw_op op =
                message(sw_plan_rank(plan, 0, d), sw_plan_rank(plan, stage, d), SW_CARGO_WEIGHTS);
            op.unit = (int32_t)unit;
            op.count = b->model->units[unit].elements;
            send(b, &op);
        }
}

/* ---- gradients ---- */

static struct sw_op *gradient_op(struct sw_build *b, enum sw_op_kind kind, enum sw_lane lane,
                                 int32_t rank, int64_t unit, int64_t first, int64_t count)
{
    struct sw_op *op = sw_program_add(b->program, kind, lane, rank);
    op->cargo = SW_CARGO_GRADIENT;
    op->unit = (int32_t)unit;
    op->gradient = b->gradient_slot[unit];
    op->first = first;
    op->count = count;
    return op;
}

/* Each replica gets the sum over all of them: of its range, or of all. */
static struct sw_op *reduce_gradient(struct sw_build *b, int64_t unit)
{
    struct sw_op *op =
        gradient_op(b, SW_OP_REDUCE, SW_LANE_COLLECTIVE, sw_build_rank_of(b, unit, 0), unit, 0,
                    b->model->units[unit].elements);
    op->whole = sw_plan_steps_everywhere(b->plan, unit);
    for (int32_t d = 0; d < b->plan->replicas; d++)
        sw_program_writes(b->program, sw_build_accumulator(b, unit, sw_build_rank_of(b, unit, d)));
    return op;
}

void sw_build_sum_gradient(struct sw_build *b, int64_t unit, bool first)
{
    struct sw_op *op = reduce_gradient(b, unit);
    op->sums = true;
    op->clears_own = first;
    b->gradient_slot[unit] = -1; /* from here on it is in the place of its own */
    for (int32_t d = 0; d < b->plan->replicas; d++)
        sw_program_writes(b->program, sw_build_accumulator(b, unit, sw_build_rank_of(b, unit, d)));
}

/* A range of the gradient goes to a drive: through staging buffers, where its partials are taken.
 */
static void spill_gradient(struct sw_build *b, int64_t unit, int32_t rank, struct sw_range range)
{
    int64_t end = range.first + range.count;
    for (int64_t first = range.first; first < end; first += b->plan->gradient_chunk) {
        int64_t count = least(b->plan->gradient_chunk, end - first);
        int32_t buffer = (int32_t)(b->next_spill_buffer++ % b->plan->spill_buffers);
        gradient_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, rank, unit, first, count)->buffer = buffer;
        sw_program_reads(b->program, sw_build_accumulator(b, unit, rank));
        sw_program_writes(b->program, b->r.spill_buffer + buffer);
        gradient_op(b, SW_OP_SPILL, SW_LANE_SPILL, rank, unit, first, count)->buffer = buffer;
        sw_program_reads(b->program, b->r.spill_buffer + buffer);
        sw_program_adds(b->program, b->r.held + unit);
        gradient_op(b, SW_OP_PARTIALS, SW_LANE_OPTIMIZER, rank, unit, first, count)->buffer =
            buffer;
        sw_program_reads(b->program, b->r.spill_buffer + buffer);
        sw_program_adds(b->program, b->r.norm);
    }
}

/* What a replica has the sum of: its range, of which it takes the norm's partials, or all. */
static void hold_gradient(struct sw_build *b, int64_t unit, int32_t rank, struct sw_range range)
{
    struct sw_range held = range;
    if (sw_plan_steps_everywhere(b->plan, unit))
        held = (struct sw_range){0, b->model->units[unit].elements};
    int64_t place = sw_build_accumulator(b, unit, rank);
    if (sw_plan_part_tier(b->plan, unit, SW_PART_GRADIENT) == SW_TIER_NVME) {
        spill_gradient(b, unit, rank, range);
        return;
    }
    if (!sw_build_early(b) && !sw_plan_gradient_stays(b->plan, unit)) {
        (void)gradient_op(b, SW_OP_DOWNLOAD, SW_LANE_D2H, rank, unit, held.first, held.count);
        sw_program_reads(b->program, place);
        place = b->r.held + unit;
        sw_program_adds(b->program, place);
    }
    if (range.count == 0)
        return;
    (void)gradient_op(b, SW_OP_PARTIALS, SW_LANE_OPTIMIZER, rank, unit, range.first, range.count);
    sw_program_reads(b->program, place);
    sw_program_adds(b->program, b->r.norm);
}

void sw_build_complete_gradient(struct sw_build *b, int64_t unit)
{
    struct sw_unit_flow flow;
    sw_plan_unit_flow(b->plan, unit, &flow);
    if (b->plan->replicas > 1 && !sw_plan_gradient_sums(b->plan, unit))
        (void)reduce_gradient(b, unit);
    if (sw_build_early(b) && flow.gradient_down) { /* partials are taken on the way */
        sw_build_step_unit(b, unit);
        return;
    }
    for (int32_t d = 0; d < b->plan->replicas; d++) {
        struct sw_range range = sw_plan_range(b->plan, unit, d);
        if (range.count > 0 || sw_plan_steps_everywhere(b->plan, unit))
            hold_gradient(b, unit, sw_build_rank_of(b, unit, d), range);
    }
    if (sw_build_early(b))
        sw_build_step_unit(b, unit);
}
