/* The order in which stages compute: a greedy schedule on a virtual clock, in which a block takes
 * time by its products, and the ends of the model none. */
#include "plan/agenda.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { CHEAPEST_TIME = 4 /* forward, of a block */, END_QUEUES = 8 };

/* What must be done: a block over a micro-batch, one way. */
struct task {
    int32_t block, microbatch;
    bool backward;
};

/* Tasks of a stage that run in a fixed order. */
struct queue {
    struct task *tasks;
    int64_t count, capacity, next;
    int32_t stage;
    bool layers; /* encoder and decoder blocks; else one end of the model */
};

struct scheduler {
    const struct sw_plan *plan;
    const struct sw_model *model;
    struct sw_agenda *agenda;
    struct queue *queues;
    int64_t queue_count;
    int64_t *ends;            /* [2][block_count][microbatches] when a task ends; -1: not run yet */
    int64_t *clock;           /* [stages] */
    double cheapest;          /* forward operations of a layer */
    int64_t now;              /* when the task at hand ends */
    struct sw_agenda waiting; /* SENDs of tasks that have not ended yet, by their time */
    bool failed;
};

static bool is_layer(const struct sw_block *block)
{
    return block->kind == SW_BLOCK_ENCODER || block->kind == SW_BLOCK_DECODER;
}

static bool is_embedding(const struct sw_block *block)
{
    return block->kind == SW_BLOCK_EMBED_SOURCE || block->kind == SW_BLOCK_EMBED_TARGET;
}

/* ---- stages ---- */

/* Layers in order: [first, first + layers) of `costs` over stages so that the dearest stage is as
 * cheap as can be; none is empty. */
static bool split_evenly(const double *costs, int64_t layers, int32_t stages, int32_t *stage_of)
{
    int64_t width = layers + 1;
    double *best = sw_calloc((int64_t)stages * width, sizeof *best);
    int32_t *cut = sw_calloc((int64_t)stages * width, sizeof *cut);
    bool had = best != NULL && cut != NULL;
    for (int32_t s = 0; had && s < stages; s++)
        for (int64_t end = s + 1; end <= layers; end++) {
            double sum = 0, least = -1;
            for (int64_t begin = end - 1; begin >= s; begin--) {
                sum += costs[begin];
                double before = s == 0 ? 0 : best[(s - 1) * width + begin];
                double most = sum > before ? sum : before;
                if ((s > 0 || begin == 0) && (least < 0 || most < least)) {
                    least = most;
                    cut[s * width + end] = (int32_t)begin;
                }
            }
            best[s * width + end] = least;
        }
    int64_t end = layers;
    for (int32_t s = stages - 1; had && s >= 0; s--) {
        int64_t begin = cut[s * width + end];
        for (int64_t i = begin; i < end; i++)
            stage_of[i] = s;
        end = begin;
    }
    free(best);
    free(cut);
    return had;
}

static bool assign_contiguous(struct sw_plan *plan, int64_t layers)
{
    const struct sw_model *model = plan->request.model;
    double *costs = sw_calloc(layers, sizeof *costs);
    int32_t *stage_of = sw_calloc(layers, sizeof *stage_of);
    bool had = costs != NULL && stage_of != NULL;
    int64_t layer = 0;
    for (int64_t i = 0; had && i < model->block_count; i++)
        if (is_layer(&model->blocks[i]))
            costs[layer++] = plan->sizes[i].forward_flops + plan->sizes[i].backward_flops;
    had = had && split_evenly(costs, layers, plan->stages, stage_of);
    layer = 0;
    for (int64_t i = 0; had && i < model->block_count; i++)
        if (is_layer(&model->blocks[i]))
            plan->block_stage[i] = stage_of[layer++];
    free(costs);
    free(stage_of);
    return had;
}

/* The ends of the model, with the vocabulary's tables, are on stage 0. The loop begins behind it,
 * so that it has not more layers than others. */
sw_code sw_plan_assign_stages(struct sw_plan *plan, struct sw_err *err)
{
    const struct sw_model *model = plan->request.model;
    int64_t layers = model->t5.encoder_layers + model->t5.decoder_layers, layer = 0;
    if (plan->stages > layers)
        return SW_FAIL(
            err, SW_E_USAGE,
            "parallel.pipeline: %d stage%s for a model of %lld encoder and decoder block%s; "
            "at most one a block",
            (int)plan->stages, sw_text_plural(plan->stages), (long long)layers,
            sw_text_plural(layers));
    for (int64_t i = 0; i < model->block_count; i++)
        plan->block_stage[i] = is_layer(&model->blocks[i]) ? (int32_t)(++layer % plan->stages) : 0;
    if (plan->schedule != SW_SCHEDULE_LAYERED && !assign_contiguous(plan, layers))
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a plan");
    memset(plan->unit_stage, 0, (size_t)model->unit_count * sizeof *plan->unit_stage);
    for (int32_t s = 0; s < plan->stages; s++)
        plan->stage[s].layers = 0;
    for (int64_t i = 0; i < model->block_count; i++)
        if (is_layer(&model->blocks[i])) {
            plan->unit_stage[model->blocks[i].units[0]] = plan->block_stage[i];
            plan->stage[plan->block_stage[i]].layers++;
        }
    return SW_OK;
}

/* ---- agendas ---- */

static void append(struct scheduler *s, struct sw_agenda *agenda, struct sw_agenda_op op)
{
    if (s->failed || !sw_array_reserve((void **)&agenda->ops, &agenda->capacity, agenda->count,
                                       sizeof *agenda->ops)) {
        s->failed = true;
        return;
    }
    agenda->ops[agenda->count++] = op;
}

static void add(struct scheduler *s, struct sw_agenda_op op)
{
    append(s, s->agenda, op);
}

/* A message leaves when its task ends: what others send until then goes first. */
static void add_send(struct scheduler *s, struct sw_agenda_op op)
{
    append(s, &s->waiting, op);
    for (int64_t i = s->waiting.count - 1;
         !s->failed && i > 0 && s->waiting.ops[i - 1].start > s->waiting.ops[i].start; i--) {
        struct sw_agenda_op later = s->waiting.ops[i - 1];
        s->waiting.ops[i - 1] = s->waiting.ops[i];
        s->waiting.ops[i] = later;
    }
}

static void add_sends_until(struct scheduler *s, int64_t time)
{
    int64_t count = 0;
    while (count < s->waiting.count && s->waiting.ops[count].start <= time)
        add(s, s->waiting.ops[count++]);
    s->waiting.count -= count;
    if (count > 0)
        memmove(s->waiting.ops, s->waiting.ops + count,
                (size_t)s->waiting.count * sizeof *s->waiting.ops);
}

static void send_activation(struct scheduler *s, const struct task *task, int32_t to)
{
    int32_t from = s->plan->block_stage[task->block];
    if (to != from)
        add_send(s, (struct sw_agenda_op){SW_OP_SEND, from, to, task->block, task->microbatch,
                                          SW_CARGO_ACTIVATION, 0, s->now, s->now});
}

/* A block's output, to the stage of the next block; the encoder's, to all that decode. */
static void send_output(struct scheduler *s, const struct task *task)
{
    const struct sw_plan *plan = s->plan;
    const struct sw_model *model = s->model;
    if (model->blocks[task->block].kind != SW_BLOCK_ENCODER_END) {
        if (!is_embedding(&model->blocks[task->block + 1]))
            send_activation(s, task, plan->block_stage[task->block + 1]);
        return;
    }
    for (int32_t stage = 0; stage < plan->stages; stage++)
        for (int64_t i = task->block; i < model->block_count; i++)
            if (model->blocks[i].kind == SW_BLOCK_DECODER && plan->block_stage[i] == stage) {
                send_activation(s, task, stage);
                break;
            }
}

/* The gradient of a block's input, to the stage of the block before; along the decoder with that of
 * the encoder output. */
static void send_gradient(struct scheduler *s, const struct task *task)
{
    const struct sw_plan *plan = s->plan;
    const struct sw_block *block = &s->model->blocks[task->block];
    if (is_embedding(block))
        return;
    int32_t from = plan->block_stage[task->block], to = plan->block_stage[task->block - 1];
    uint8_t sides = block->kind == SW_BLOCK_DECODER ? SW_SIDE_TARGET | SW_SIDE_SOURCE
                    : block->kind == SW_BLOCK_HEAD  ? SW_SIDE_TARGET
                                                    : SW_SIDE_SOURCE;
    if (to != from)
        add_send(s, (struct sw_agenda_op){SW_OP_SEND, from, to, task->block, task->microbatch,
                                          SW_CARGO_ACTIVATION_GRADIENT, sides, s->now, s->now});
}

static void add_task(struct scheduler *s, const struct task *task, int64_t start, bool trains)
{
    bool head = s->model->blocks[task->block].kind == SW_BLOCK_HEAD;
    enum sw_op_kind kind = head ? SW_OP_HEAD : task->backward ? SW_OP_BACKWARD : SW_OP_FORWARD;
    add(s, (struct sw_agenda_op){kind, s->plan->block_stage[task->block], -1, task->block,
                                 task->microbatch, SW_CARGO_NONE, 0, start, s->now});
    if (!head && !task->backward)
        send_output(s, task);
    else if (trains)
        send_gradient(s, task);
}

/* ---- the clock ---- */

static int64_t *end_of(const struct scheduler *s, bool backward, int64_t block, int64_t microbatch)
{
    int64_t way = backward ? s->model->block_count : 0;
    return &s->ends[(way + block) * s->plan->microbatches + microbatch];
}

/* What a task waits for, at most two others. */
struct needs {
    int64_t ends[2];
};

static struct needs needs_of(const struct scheduler *s, const struct task *task)
{
    int64_t b = task->block, m = task->microbatch, last = s->plan->microbatches - 1;
    int64_t head = s->model->block_count - 1, end = sw_plan_encoder_end(s->model);
    enum sw_block_kind kind = s->model->blocks[b].kind;
    struct needs out = {{0, 0}};
    if (!task->backward) {
        if (kind == SW_BLOCK_EMBED_TARGET) /* not earlier than it is of use */
            out.ends[0] = *end_of(s, false, end, m);
        else if (kind != SW_BLOCK_EMBED_SOURCE)
            out.ends[0] = *end_of(s, false, b - 1, m);
        if (kind == SW_BLOCK_DECODER)
            out.ends[1] = *end_of(s, false, end, m);
        return out;
    }
    /* Both tables may be one, to which the head adds first, then the target side. */
    if (kind == SW_BLOCK_EMBED_TARGET)
        out.ends[1] = *end_of(s, false, head, last);
    if (kind == SW_BLOCK_EMBED_SOURCE)
        out.ends[1] = *end_of(s, true, end + 1, last);
    int64_t after = kind == SW_BLOCK_ENCODER_END ? b + 2 : b + 1;
    out.ends[0] = *end_of(s, after != head, after, m);
    return out;
}

/* When the next task of a queue can start; -1: not yet known, or there is none. */
static int64_t start_of(const struct scheduler *s, const struct queue *queue)
{
    if (queue->next == queue->count)
        return -1;
    struct needs needs = needs_of(s, &queue->tasks[queue->next]);
    int64_t start = queue->layers ? s->clock[queue->stage] : 0; /* ends have a lane of their own */
    for (int i = 0; i < 2; i++) {
        if (needs.ends[i] < 0)
            return -1;
        start = needs.ends[i] > start ? needs.ends[i] : start;
    }
    return start;
}

/* Blocks are as long as their products, in parts of the cheapest one's: the clock tells in which
 * order messages leave, and one that leaves late in its lane holds up those behind it. */
static int64_t time_of(const struct scheduler *s, const struct task *task)
{
    const struct sw_block_sizes *sizes = &s->plan->sizes[task->block];
    double flops = task->backward ? sizes->backward_flops : sizes->forward_flops;
    if (task->backward && s->plan->recompute)
        flops += sizes->forward_flops;
    return (int64_t)(CHEAPEST_TIME * flops / s->cheapest + 0.5);
}

static double cheapest_layer(const struct sw_plan *plan)
{
    const struct sw_model *model = plan->request.model;
    double cheapest = 0;
    for (int64_t i = 0; i < model->block_count; i++)
        if (is_layer(&model->blocks[i]) &&
            (cheapest <= 0 || plan->sizes[i].forward_flops < cheapest))
            cheapest = plan->sizes[i].forward_flops;
    return cheapest;
}

static void run_clock(struct scheduler *s, bool trains)
{
    int64_t left = 0;
    for (int64_t q = 0; q < s->queue_count; q++)
        left += s->queues[q].count;
    for (; left > 0 && !s->failed; left--) {
        struct queue *best = NULL;
        int64_t best_start = -1;
        for (int64_t q = 0; q < s->queue_count; q++) {
            int64_t start = start_of(s, &s->queues[q]);
            bool sooner = start >= 0 && (best == NULL || start < best_start);
            bool end_first = start >= 0 && best != NULL && start == best_start && best->layers &&
                             !s->queues[q].layers;
            if (sooner || end_first) {
                best = &s->queues[q];
                best_start = start;
            }
        }
        sw_assert(best != NULL); /* else the schedule waits for itself */
        const struct task *task = &best->tasks[best->next++];
        int64_t time = !best->layers ? 0 : time_of(s, task);
        if (best->layers)
            s->clock[best->stage] = best_start + time;
        add_sends_until(s, best_start);
        s->now = best_start + time;
        *end_of(s, task->backward, task->block, task->microbatch) = s->now;
        add_task(s, task, best_start, trains);
    }
    add_sends_until(s, INT64_MAX);
}

/* ---- orders ---- */

static void enqueue(struct scheduler *s, struct queue *queue, int64_t block, int64_t microbatch,
                    bool backward)
{
    if (s->failed || !sw_array_reserve((void **)&queue->tasks, &queue->capacity, queue->count,
                                       sizeof *queue->tasks)) {
        s->failed = true;
        return;
    }
    queue->tasks[queue->count++] = (struct task){(int32_t)block, (int32_t)microbatch, backward};
}

static bool is_layer_of(const struct scheduler *s, int64_t block, int32_t stage)
{
    return is_layer(&s->model->blocks[block]) && s->plan->block_stage[block] == stage;
}

/* On a single stage the ends of the model have their turn like all blocks. */
static bool is_queued(const struct scheduler *s, int64_t block, int32_t stage)
{
    bool alone = s->plan->stages == 1 && s->plan->schedule == SW_SCHEDULE_LAYERED;
    return alone || is_layer_of(s, block, stage);
}

/* A block for all micro-batches before the next block. */
static void order_by_layer(struct scheduler *s, struct queue *queue, bool trains)
{
    int64_t blocks = s->model->block_count, m = s->plan->microbatches;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t i = 0; i < m && is_queued(s, b, queue->stage); i++)
            enqueue(s, queue, b, i, false);
    for (int64_t b = blocks - 2; trains && b >= 0; b--)
        for (int64_t i = 0; i < m && is_queued(s, b, queue->stage); i++)
            enqueue(s, queue, b, i, true);
}

/* All of a stage's blocks for one micro-batch. */
static void order_microbatch(struct scheduler *s, struct queue *queue, int64_t microbatch,
                             bool backward)
{
    int64_t blocks = s->model->block_count;
    for (int64_t i = 0; i < blocks; i++) {
        int64_t b = backward ? blocks - 1 - i : i;
        if (is_layer_of(s, b, queue->stage))
            enqueue(s, queue, b, microbatch, backward);
    }
}

/* `warm` micro-batches forward, then one back for one forward. gpipe: all forward first. */
static void order_by_microbatch(struct scheduler *s, struct queue *queue, int64_t warm, bool trains)
{
    int64_t m = s->plan->microbatches;
    warm = warm < m ? warm : m;
    for (int64_t i = 0; i < warm; i++)
        order_microbatch(s, queue, i, false);
    for (int64_t i = 0; i < m; i++) {
        if (warm + i < m)
            order_microbatch(s, queue, warm + i, false);
        if (trains)
            order_microbatch(s, queue, i, true);
    }
}

static void order_ends(struct scheduler *s, bool trains)
{
    for (int way = 0; way < (trains ? 2 : 1); way++)
        for (int64_t b = 0; b < s->model->block_count; b++) {
            const struct sw_block *block = &s->model->blocks[b];
            if (is_layer(block) || (way == 1 && block->kind == SW_BLOCK_HEAD))
                continue;
            sw_assert(s->queue_count < s->plan->stages + END_QUEUES);
            struct queue *queue = &s->queues[s->queue_count++];
            for (int64_t m = 0; m < s->plan->microbatches; m++)
                enqueue(s, queue, b, m, way == 1);
        }
}

static void order_all(struct scheduler *s, bool trains)
{
    for (int32_t stage = 0; stage < s->plan->stages; stage++) {
        struct queue *queue = &s->queues[s->queue_count++];
        queue->stage = stage;
        queue->layers = true;
        if (s->plan->schedule == SW_SCHEDULE_LAYERED)
            order_by_layer(s, queue, trains);
        else if (s->plan->schedule == SW_SCHEDULE_1F1B)
            order_by_microbatch(s, queue, s->plan->stages - 1 - stage, trains);
        else
            order_by_microbatch(s, queue, s->plan->microbatches, trains);
    }
    if (!is_queued(s, 0, 0))
        order_ends(s, trains);
}

static struct sw_agenda *new_agenda(struct scheduler *s, const struct sw_plan *plan)
{
    *s = (struct scheduler){.plan = plan, .model = plan->request.model};
    s->agenda = sw_calloc(1, sizeof *s->agenda);
    s->failed = s->agenda == NULL;
    return s->agenda;
}

static struct sw_agenda *schedule(const struct sw_plan *plan, bool trains, bool *failed)
{
    struct scheduler s;
    struct sw_agenda *agenda = new_agenda(&s, plan);
    int64_t ends = 2 * s.model->block_count * plan->microbatches;
    s.queues = sw_calloc(plan->stages + END_QUEUES, sizeof *s.queues);
    s.ends = sw_calloc(ends, sizeof *s.ends);
    s.clock = sw_calloc(plan->stages, sizeof *s.clock);
    s.failed = s.failed || s.queues == NULL || s.ends == NULL || s.clock == NULL;
    if (!s.failed) {
        memset(s.ends, -1, (size_t)ends * sizeof *s.ends);
        s.cheapest = cheapest_layer(plan);
        order_all(&s, trains);
        run_clock(&s, trains);
    }
    for (int64_t q = 0; s.queues != NULL && q < s.queue_count; q++)
        free(s.queues[q].tasks);
    free(s.queues);
    free(s.waiting.ops);
    free(s.ends);
    free(s.clock);
    *failed = *failed || s.failed;
    return agenda;
}

/* Generation runs on one rank. Encode, then the cross keys and values of every decoder block. */
static struct sw_agenda *encoding(const struct sw_plan *plan, bool *failed)
{
    struct scheduler s;
    struct sw_agenda *agenda = new_agenda(&s, plan);
    int32_t end = (int32_t)sw_plan_encoder_end(s.model);
    for (int32_t b = 0; b <= end; b++)
        add(&s, (struct sw_agenda_op){SW_OP_FORWARD, 0, -1, b, 0, SW_CARGO_NONE, 0, 0, 0});
    add(&s, (struct sw_agenda_op){SW_OP_DECODE_BEGIN, 0, -1, -1, -1, SW_CARGO_NONE, 0, 0, 0});
    for (int32_t b = end; b < s.model->block_count; b++)
        if (s.model->blocks[b].kind == SW_BLOCK_DECODER)
            add(&s,
                (struct sw_agenda_op){SW_OP_DECODE_CROSS, 0, -1, b, -1, SW_CARGO_NONE, 0, 0, 0});
    *failed = *failed || s.failed;
    return agenda;
}

static struct sw_agenda *decoding(const struct sw_plan *plan, bool *failed)
{
    struct scheduler s;
    struct sw_agenda *agenda = new_agenda(&s, plan);
    for (int32_t b = 0; b < s.model->block_count; b++) {
        enum sw_block_kind kind = s.model->blocks[b].kind;
        enum sw_op_kind op = kind == SW_BLOCK_EMBED_TARGET ? SW_OP_DECODE_EMBED
                             : kind == SW_BLOCK_DECODER    ? SW_OP_DECODE_BLOCK
                                                           : SW_OP_DECODE_HEAD;
        if (kind == SW_BLOCK_EMBED_TARGET || kind == SW_BLOCK_DECODER || kind == SW_BLOCK_HEAD)
            add(&s, (struct sw_agenda_op){op, 0, -1, b, -1, SW_CARGO_NONE, 0, 0, 0});
    }
    *failed = *failed || s.failed;
    return agenda;
}

sw_code sw_plan_make_agendas(struct sw_plan *plan, struct sw_err *err)
{
    bool failed = false;
    sw_plan_free_agendas(plan);
    if (plan->request.purpose == SW_FOR_GENERATION) {
        plan->begin_agenda = encoding(plan, &failed);
        plan->decode_agenda = decoding(plan, &failed);
    } else {
        plan->evaluation_agenda = schedule(plan, false, &failed);
        if (plan->request.purpose == SW_FOR_TRAINING)
            plan->step_agenda = schedule(plan, true, &failed);
    }
    return failed ? SW_FAIL(err, SW_E_MEMORY, "no memory for a plan") : SW_OK;
}

void sw_plan_free_agendas(struct sw_plan *plan)
{
    struct sw_agenda **agendas[] = {&plan->step_agenda, &plan->evaluation_agenda,
                                    &plan->begin_agenda, &plan->decode_agenda};
    for (size_t i = 0; i < sizeof agendas / sizeof *agendas; i++) {
        if (*agendas[i] != NULL)
            free((*agendas[i])->ops);
        free(*agendas[i]);
        *agendas[i] = NULL;
    }
}

int sw_agenda_accesses(const struct sw_plan *plan, const struct sw_agenda_op *op,
                       struct sw_agenda_access out[SW_AGENDA_ACCESSES])
{
    const struct sw_model *model = plan->request.model;
    int32_t end = (int32_t)sw_plan_encoder_end(model);
    int count = 0;
    if (op->kind == SW_OP_SEND) {
        if (op->cargo != SW_CARGO_ACTIVATION)
            return 0;
        out[count++] = (struct sw_agenda_access){op->stage, op->block, false};
        out[count++] = (struct sw_agenda_access){op->to, op->block, true};
        return count;
    }
    bool runs = op->kind == SW_OP_FORWARD || op->kind == SW_OP_BACKWARD || op->kind == SW_OP_HEAD;
    if (op->kind == SW_OP_DECODE_CROSS)
        out[count++] = (struct sw_agenda_access){op->stage, end, false};
    if (!runs)
        return count;
    const struct sw_block *block = &model->blocks[op->block];
    if (!is_embedding(block))
        out[count++] = (struct sw_agenda_access){op->stage, op->block - 1, false};
    if (block->kind == SW_BLOCK_DECODER)
        out[count++] = (struct sw_agenda_access){op->stage, end, false};
    if (op->kind == SW_OP_FORWARD)
        out[count++] = (struct sw_agenda_access){op->stage, op->block, true};
    return count;
}
