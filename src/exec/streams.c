/* Streams of a rank's lanes. What is submitted to some of them is waited for by events, so that a
 * lane has several ops under way, in order, and links and devices have no gaps between pieces. */
#include "exec/internal.h"

/* When a lane has a stream. */
enum wanted { ALWAYS, STREAMED, REMOTE, STREAMED_OR_REMOTE };

static const struct {
    enum sw_lane lane;
    enum sw_stream_kind kind;
    enum wanted wanted;
    bool queued;
} STREAMS[] = {
    {SW_LANE_COMPUTE, SW_STREAM_COMPUTE, ALWAYS, false},
    {SW_LANE_ENDS, SW_STREAM_COMPUTE, ALWAYS, false},
    {SW_LANE_H2D, SW_STREAM_H2D, ALWAYS, true},
    {SW_LANE_D2H, SW_STREAM_D2H, ALWAYS, true},
    {SW_LANE_SEND, SW_STREAM_SEND, ALWAYS, false},
    {SW_LANE_RECV, SW_STREAM_RECV, ALWAYS, false},
    {SW_LANE_COLLECTIVE, SW_STREAM_COLLECTIVE, ALWAYS, false},
    {SW_LANE_STATE_UP, SW_STREAM_H2D, STREAMED, true},
    {SW_LANE_DEVICE_STEP, SW_STREAM_OPTIMIZER, STREAMED_OR_REMOTE, true},
    {SW_LANE_STATE_DOWN, SW_STREAM_D2H, STREAMED, true},
    {SW_LANE_OPTIMIZER, SW_STREAM_OPTIMIZER, REMOTE, false},
};
enum { STREAMS_COUNT = sizeof STREAMS / sizeof *STREAMS };

uint32_t sw_engine_queued_lanes(void)
{
    uint32_t lanes = 0;
    for (int i = 0; i < STREAMS_COUNT; i++)
        if (STREAMS[i].queued)
            lanes |= 1U << STREAMS[i].lane;
    return lanes;
}

static bool is_wanted(const struct sw_engine *engine, const struct sw_engine_rank *rank,
                      enum wanted wanted)
{
    bool streamed = engine->plan->stage[rank->stage].stepping_buffers > 0;
    bool remote = engine->plan->request.device_is_remote;
    switch (wanted) {
    case STREAMED:
        return streamed;
    case REMOTE:
        return remote;
    case STREAMED_OR_REMOTE:
        return streamed || remote;
    case ALWAYS:
        break;
    }
    return true;
}

sw_code sw_engine_open_streams(struct sw_engine *engine, struct sw_engine_rank *rank,
                               struct sw_err *err)
{
    const struct sw_device_ops *ops = engine->device_ops;
    sw_code code = SW_OK;
    for (int i = 0; i < STREAMS_COUNT && code == SW_OK; i++) {
        enum sw_lane lane = STREAMS[i].lane;
        if (!is_wanted(engine, rank, STREAMS[i].wanted))
            continue;
        code = ops->stream_open(rank->device, STREAMS[i].kind, &rank->streams[lane], err);
        for (int place = 0; place < SW_EXECUTOR_DEPTH && STREAMS[i].queued && code == SW_OK;
             place++)
            code = ops->event_open(rank->device, &rank->queued[lane][place].event, err);
    }
    return code;
}

void sw_engine_close_streams(struct sw_engine *engine, struct sw_engine_rank *rank)
{
    for (int lane = 0; lane < SW_LANES; lane++) {
        if (rank->streams[lane] != NULL)
            engine->device_ops->stream_close(rank->streams[lane]);
        for (int place = 0; place < SW_EXECUTOR_DEPTH; place++)
            if (rank->queued[lane][place].event != NULL)
                engine->device_ops->event_close(rank->queued[lane][place].event);
    }
}

void sw_engine_queue(struct sw_engine *engine, const struct sw_op *op, int place)
{
    struct sw_queued_op *queued = &sw_engine_rank_of(engine, op)->queued[op->lane][place];
    engine->device_ops->event_record(queued->event, sw_engine_stream(engine, op));
    queued->under_way = true;
}

sw_code sw_engine_wait_queued(struct sw_engine *engine, const struct sw_op *op, int place,
                              struct sw_err *err)
{
    struct sw_queued_op *queued = &sw_engine_rank_of(engine, op)->queued[op->lane][place];
    bool under_way = queued->under_way;
    queued->under_way = false;
    return under_way ? engine->device_ops->event_sync(queued->event, err) : SW_OK;
}
