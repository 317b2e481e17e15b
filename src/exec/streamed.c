/* Steps on devices: their streams; and of units whose states pass through a device, copies up and
 * down, several under way at once, so that the links have no gaps between pieces. */
#include "exec/internal.h"

static sw_code open_way(struct sw_engine *engine, struct sw_engine_rank *rank, int way,
                        struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int place = 0; place < SW_EXECUTOR_DEPTH && code == SW_OK; place++)
        code = engine->device_ops->event_open(rank->device, &rank->moves[way][place].event, err);
    return code;
}

sw_code sw_engine_open_steps(struct sw_engine *engine, struct sw_engine_rank *rank,
                             struct sw_err *err)
{
    static const struct {
        enum sw_lane lane;
        enum sw_stream_kind kind;
        bool streamed, remote; /* wanted where units are streamed; where the device is remote */
    } streams[] = {{SW_LANE_STATE_UP, SW_STREAM_H2D, true, false},
                   {SW_LANE_DEVICE_STEP, SW_STREAM_OPTIMIZER, true, true},
                   {SW_LANE_STATE_DOWN, SW_STREAM_D2H, true, false},
                   {SW_LANE_OPTIMIZER, SW_STREAM_OPTIMIZER, false, true}};
    bool streamed = engine->plan->stage[rank->stage].stepping_buffers > 0;
    bool remote = engine->plan->request.device_is_remote;
    sw_code code = SW_OK;
    for (size_t i = 0; i < sizeof streams / sizeof *streams && code == SW_OK; i++)
        if ((streams[i].streamed && streamed) || (streams[i].remote && remote))
            code = engine->device_ops->stream_open(rank->device, streams[i].kind,
                                                   &rank->streams[streams[i].lane], err);
    for (int way = 0; way < SW_STATES_WAYS && streamed && code == SW_OK; way++)
        code = open_way(engine, rank, way, err);
    return code;
}

void sw_engine_close_steps(struct sw_engine *engine, struct sw_engine_rank *rank)
{
    for (int way = 0; way < SW_STATES_WAYS; way++)
        for (int place = 0; place < SW_EXECUTOR_DEPTH; place++)
            if (rank->moves[way][place].event != NULL)
                engine->device_ops->event_close(rank->moves[way][place].event);
}

bool sw_engine_moves_states(const struct sw_op *op)
{
    return op->lane == SW_LANE_STATE_UP || op->lane == SW_LANE_STATE_DOWN;
}

static struct sw_state_move *move_at(struct sw_engine *engine, const struct sw_op *op, int place)
{
    int way = op->lane == SW_LANE_STATE_UP ? SW_STATES_UP : SW_STATES_DOWN;
    return &sw_engine_rank_of(engine, op)->moves[way][place];
}

void sw_engine_start_states(struct sw_engine *engine, const struct sw_op *op, int place)
{
    const struct sw_unit_flow *flow = &engine->store.units[op->unit].flow;
    struct sw_state_move *move = move_at(engine, op, place);
    struct sw_stream *stream = sw_engine_stream(engine, op);
    bool up = op->lane == SW_LANE_STATE_UP;
    uint32_t parts = up ? flow->up_parts : flow->down_parts;
    for (int i = 0; i < SW_PARTS; i++) {
        enum sw_part part = (enum sw_part)i;
        if ((parts >> part & 1) == 0)
            continue;
        char *inside = sw_store_stepping_buffer(&engine->store, op->rank, op->stepping, part);
        char *outside = sw_engine_part_outside(engine, op, part);
        engine->device_ops->copy(stream, up ? inside : outside, up ? outside : inside,
                                 op->count *
                                     sw_dtype_bytes(sw_plan_part_dtype(engine->plan, part)));
    }
    engine->device_ops->event_record(move->event, stream);
    move->under_way = true;
}

sw_code sw_engine_finish_states(struct sw_engine *engine, const struct sw_op *op, int place,
                                struct sw_err *err)
{
    struct sw_state_move *move = move_at(engine, op, place);
    bool under_way = move->under_way;
    move->under_way = false;
    return under_way ? engine->device_ops->event_sync(move->event, err) : SW_OK;
}
