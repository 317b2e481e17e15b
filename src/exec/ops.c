/* From an op of a program to what it does. Runs on the thread of the op's lane. */
#include "exec/internal.h"

/* Ops with nothing to do this time: of micro-batches that this step has not, and of a window with
 * nothing to apply. */
static bool is_idle(const struct sw_engine *engine, const struct sw_op *op)
{
    if (op->microbatch >= 0 && !sw_engine_rank_of(engine, op)->batches[op->microbatch].filled)
        return true;
    if (sw_engine_early(engine) || engine->applying)
        return false;
    bool of_window = op->kind == SW_OP_READ || op->kind == SW_OP_WRITE || op->kind == SW_OP_STEP ||
                     op->to_window || op->cargo == SW_CARGO_STATES ||
                     (op->cargo == SW_CARGO_WEIGHTS && op->weights < 0 && op->kind != SW_OP_FETCH);
    return of_window;
}

/* Of ops on a stream: submit them. False: this is no such op. */
static bool submit(struct sw_engine *engine, const struct sw_op *op)
{
    switch (op->kind) {
    case SW_OP_BATCH:
        sw_engine_copy_batch(engine, op);
        break;
    case SW_OP_FORWARD:
        sw_engine_forward(engine, op);
        break;
    case SW_OP_HEAD:
        sw_engine_head(engine, op);
        break;
    case SW_OP_BACKWARD:
        sw_engine_backward(engine, op);
        break;
    case SW_OP_BIAS:
        sw_engine_bias(engine, op);
        break;
    case SW_OP_SEND:
        sw_engine_send(engine, op);
        break;
    case SW_OP_RECV:
        sw_engine_receive(engine, op);
        break;
    case SW_OP_UPLOAD:
    case SW_OP_DOWNLOAD:
        if (op->cargo == SW_CARGO_STATES)
            sw_engine_move_states(engine, op);
        else if (op->kind == SW_OP_UPLOAD)
            sw_engine_upload(engine, op);
        else
            sw_engine_download(engine, op);
        break;
    case SW_OP_STEP:
        sw_engine_step_op(engine, op);
        return op->lane == SW_LANE_DEVICE_STEP; /* the host's is done */
    default:
        return false;
    }
    return true;
}

static sw_code run(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    switch (op->kind) {
    case SW_OP_PARTIALS:
        return sw_engine_partials(engine, op, err);
    case SW_OP_NORM:
        sw_engine_norm(engine);
        return SW_OK;
    case SW_OP_REDUCE:
        return sw_engine_reduce(engine, op, err);
    case SW_OP_GATHER:
        return sw_engine_gather(engine, op, err);
    case SW_OP_DECODE_BEGIN:
    case SW_OP_DECODE_CROSS:
    case SW_OP_DECODE_EMBED:
    case SW_OP_DECODE_BLOCK:
    case SW_OP_DECODE_HEAD:
        return sw_generation_run_op(engine, op, err);
    default:
        return submit(engine, op)
                   ? engine->device_ops->stream_sync(sw_engine_stream(engine, op), err)
                   : SW_OK;
    }
}

const char *sw_engine_op_name(void *context, const struct sw_op *op)
{
    const struct sw_engine *engine = context;
    if (op->block >= 0)
        return engine->model->blocks[op->block].name;
    if (op->unit >= 0)
        return engine->model->units[op->unit].name;
    if (op->cargo == SW_CARGO_BIAS || op->cargo == SW_CARGO_WEIGHTS)
        return engine->model->units[engine->model->common_unit].name;
    return op->kind == SW_OP_BATCH ? "rows" : "everything";
}

/* Whose failure it is: what a group does is an op of its first member. */
static int32_t failed_rank(const struct sw_engine *engine, const struct sw_op *op)
{
    if (op->lane != SW_LANE_COLLECTIVE)
        return op->rank;
    int32_t stage = engine->ranks[op->rank].stage;
    int member = engine->replica_comms[stage]->ops->failed(engine->replica_comms[stage]);
    return member >= 0 ? sw_plan_rank(engine->plan, stage, member) : op->rank;
}

static sw_code fail(struct sw_engine *engine, const struct sw_op *op, struct sw_err *err)
{
    if (engine->plan->ranks == 1)
        return sw_err_while(err, "running %s of %s", sw_op_name(op->kind),
                            sw_engine_op_name(engine, op));
    return sw_err_while(err, "running %s of %s on rank %d", sw_op_name(op->kind),
                        sw_engine_op_name(engine, op), (int)failed_rank(engine, op));
}

sw_code sw_engine_run_op(void *context, const struct sw_op *op, struct sw_err *err)
{
    struct sw_engine *engine = context;
    sw_code code = SW_OK;
    if (!is_idle(engine, op)) {
        code = run(engine, op, err);
    } else if (engine->training && !engine->diagnosing &&
               (op->kind == SW_OP_BACKWARD || op->kind == SW_OP_HEAD)) {
        sw_engine_begin_gradients(engine, op);
        code = engine->device_ops->stream_sync(sw_engine_stream(engine, op), err);
    }
    return code == SW_OK ? SW_OK : fail(engine, op, err);
}

static bool is_queued(const struct sw_op *op)
{
    return (sw_engine_queued_lanes() >> op->lane & 1) != 0;
}

sw_code sw_engine_start_op(void *context, const struct sw_op *op, int place, struct sw_err *err)
{
    struct sw_engine *engine = context;
    (void)err;
    if (is_queued(op)) {
        if (!is_idle(engine, op) && submit(engine, op))
            sw_engine_queue(engine, op, place);
        return SW_OK;
    }
    struct sw_op_tickets *tickets = &engine->tickets[op->lane][place];
    tickets->count = 0;
    if (!is_idle(engine, op))
        sw_engine_start_transfers(engine, op, tickets);
    return SW_OK;
}

sw_code sw_engine_finish_op(void *context, const struct sw_op *op, int place, struct sw_err *err)
{
    struct sw_engine *engine = context;
    sw_code code = SW_OK;
    if (is_queued(op)) {
        code = sw_engine_wait_queued(engine, op, place, err);
        return code == SW_OK ? SW_OK : fail(engine, op, err);
    }
    struct sw_op_tickets *tickets = &engine->tickets[op->lane][place];
    for (int i = 0; i < tickets->count; i++) {
        sw_code one = sw_spill_wait(&tickets->tickets[i], err);
        code = code == SW_OK ? one : code;
    }
    return code == SW_OK ? SW_OK : fail(engine, op, err);
}
