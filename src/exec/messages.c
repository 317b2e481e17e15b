/* Ops between ranks: what passes between stages, and over the replicas of a stage. */
#include "exec/internal.h"

/* What one message is made of: at most two pieces, here and at the peer. */
struct piece {
    char *memory;
    int64_t bytes;
};

static int activation_pieces(const struct sw_engine *engine, const struct sw_op *op,
                             const struct sw_engine_rank *rank, int32_t slot, struct piece out[2])
{
    const struct sw_microbatch *view = &rank->batches[op->microbatch].view;
    int64_t token_bytes = engine->model->t5.d_model * sw_dtype_bytes(engine->plan->request.compute);
    int64_t source = view->source.tokens * token_bytes, target = view->target.tokens * token_bytes;
    int count = 0;
    if (op->cargo == SW_CARGO_ACTIVATION) {
        bool of_target = op->block > sw_plan_encoder_end(engine->model);
        out[count++] = (struct piece){rank->activations[slot], of_target ? target : source};
        return count;
    }
    if ((op->sides & SW_SIDE_TARGET) != 0)
        out[count++] = (struct piece){rank->gradients[op->microbatch], target};
    if ((op->sides & SW_SIDE_SOURCE) != 0)
        out[count++] = (struct piece){rank->encoder_gradients[op->microbatch], source};
    return count;
}

/* Partials of all blocks of the stage that sends them, one behind the other. */
static char *bias_partial(const struct sw_engine *engine, const struct sw_engine_rank *rank,
                          int32_t stage, int64_t index)
{
    int64_t at = 0;
    for (int64_t i = 0; i < engine->model->block_count; i++) {
        enum sw_block_kind kind = engine->model->blocks[i].kind;
        if (engine->plan->block_stage[i] == stage &&
            (kind == SW_BLOCK_ENCODER || kind == SW_BLOCK_DECODER) && at++ == index)
            return (char *)rank->bias_partials[i];
    }
    return NULL;
}

/* Copy on `stream` the message's pieces as rank `from` has them to rank `to`; either of the two may
 * be a mailbox: NULL. */
static void copy_message(struct sw_engine *engine, const struct sw_op *op, struct sw_stream *stream,
                         const struct sw_engine_rank *from, const struct sw_engine_rank *to,
                         char *mailbox)
{
    const struct sw_device_ops *device = engine->device_ops;
    int32_t sender = op->kind == SW_OP_SEND ? op->rank : op->peer;
    int32_t receiver = op->kind == SW_OP_SEND ? op->peer : op->rank;
    int64_t at = 0;
    if (op->cargo == SW_CARGO_WEIGHTS) {
        int64_t bytes = op->count * sw_dtype_bytes(engine->plan->request.compute);
        char *source = from != NULL ? sw_store_common_weights(&engine->store, sender) : mailbox;
        char *target = to != NULL ? sw_store_common_weights(&engine->store, receiver) : mailbox;
        device->copy(stream, target, source, bytes);
        return;
    }
    if (op->cargo == SW_CARGO_BIAS) {
        int32_t stage = engine->ranks[sender].stage;
        int64_t bytes = engine->model->t5.bias_buckets * engine->model->t5.heads * 4;
        for (int64_t i = 0; i < engine->plan->stage[stage].layers; i++, at += bytes) {
            char *source = from != NULL ? bias_partial(engine, from, stage, i) : mailbox + at;
            char *target = to != NULL ? bias_partial(engine, to, stage, i) : mailbox + at;
            device->copy(stream, target, source, bytes);
        }
        return;
    }
    struct piece source[2], target[2];
    int count = 0;
    if (from != NULL)
        count = activation_pieces(engine, op, from, op->input, source);
    if (to != NULL)
        count = activation_pieces(engine, op, to, op->output, target);
    for (int i = 0; i < count; i++) {
        int64_t bytes = from != NULL ? source[i].bytes : target[i].bytes;
        device->copy(stream, to != NULL ? target[i].memory : mailbox + at,
                     from != NULL ? source[i].memory : mailbox + at, bytes);
        at += bytes;
    }
}

void sw_engine_send(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_engine_rank *peer = &engine->ranks[op->peer];
    bool mailbox = op->buffer >= 0;
    copy_message(engine, op, sw_engine_stream(engine, op), sw_engine_rank_of(engine, op),
                 mailbox ? NULL : peer, mailbox ? peer->mailboxes[op->buffer] : NULL);
}

void sw_engine_receive(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    copy_message(engine, op, sw_engine_stream(engine, op), NULL, rank, rank->mailboxes[op->buffer]);
}

/* ---- over the replicas of a stage ---- */

enum { MOST_REPLICAS = 64 };

static void list_ranges(const struct sw_engine *engine, int64_t unit, struct sw_comm_range *out)
{
    for (int32_t d = 0; d < engine->plan->replicas; d++) {
        struct sw_range range = sw_plan_range(engine->plan, unit, d);
        out[d] = (struct sw_comm_range){range.first, range.count};
    }
}

/* A rank's range of a micro-batch's gradient, to the sum over those before. */
static void add_range(struct sw_engine *engine, const struct sw_op *op, int32_t rank,
                      struct sw_comm_range range, const float *gradient)
{
    struct sw_stream *stream = engine->ranks[rank].streams[SW_LANE_COLLECTIVE];
    float *sum =
        sw_store_complete_gradient(&engine->store, rank, op->unit, op->gradient, range.first);
    if (op->clears_own)
        engine->device_ops->copy(stream, sum, gradient + range.first,
                                 range.count * (int64_t)sizeof(float));
    else
        engine->device_ops->kernels->add(stream, sum, gradient + range.first, range.count, SW_F32);
}

sw_code sw_engine_reduce(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    int32_t stage = sw_engine_rank_of(engine, op)->stage;
    struct sw_comm *comm = engine->replica_comms[stage];
    struct sw_comm_range ranges[MOST_REPLICAS];
    float *arrays[MOST_REPLICAS];
    list_ranges(engine, op->unit, ranges);
    for (int32_t d = 0; d < plan->replicas; d++)
        arrays[d] = sw_store_gradient(&engine->store, sw_plan_rank(plan, stage, d), op->unit,
                                      op->unit == engine->model->common_unit ? -1 : op->gradient);
    if (op->whole)
        comm->ops->all_reduce(comm, arrays, op->count);
    else
        comm->ops->reduce_scatter(comm, arrays, ranges);
    for (int32_t d = 0; d < plan->replicas && op->sums; d++)
        if (ranges[d].count > 0)
            add_range(engine, op, sw_plan_rank(plan, stage, d), ranges[d], arrays[d]);
    return comm->ops->barrier(comm, err);
}

/* Into slots, out of the ranges that replicas have at home, or have uploaded there; or among what
 * they have at home, after each has stepped its range. */
sw_code sw_engine_gather(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    const struct sw_plan *plan = engine->plan;
    int32_t stage = sw_engine_rank_of(engine, op)->stage;
    struct sw_comm *comm = engine->replica_comms[stage];
    enum sw_part part = engine->store.units[op->unit].weights_part;
    int64_t size = sw_dtype_bytes(plan->request.compute);
    struct sw_comm_range ranges[MOST_REPLICAS];
    void *destinations[MOST_REPLICAS];
    const void *sources[MOST_REPLICAS];
    list_ranges(engine, op->unit, ranges);
    for (int32_t d = 0; d < plan->replicas; d++) {
        int32_t rank = sw_plan_rank(plan, stage, d);
        destinations[d] = op->weights >= 0
                              ? sw_store_gather(&engine->store, rank, op->unit, op->weights)
                              : sw_store_part(&engine->store, rank, op->unit, part, 0);
        if (sw_plan_uploads_ranges(plan, op->unit))
            sources[d] = (char *)destinations[d] + ranges[d].first * size;
        else
            sources[d] = ranges[d].count > 0
                             ? sw_store_part(&engine->store, rank, op->unit, part, ranges[d].first)
                             : NULL;
    }
    comm->ops->all_gather(comm, destinations, sources, ranges, size);
    return comm->ops->barrier(comm, err);
}
