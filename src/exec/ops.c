/* What each op of a program does. Runs on the thread of the op's lane. */
#include "exec/internal.h"

#include <string.h>

/* Fill what all block runs share. */
static struct sw_block_run block_run(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    struct sw_block_run run = {
        .stream = engine->streams[op->lane],
        .device = engine->device_ops,
        .kernels = engine->device_ops->kernels,
        .model = engine->model,
        .tables = &engine->tables,
        .batch = &engine->batches[op->microbatch].view,
        .block = op->block,
        .dtype = engine->plan->request.compute,
        .bounds = engine->plan->bounds,
        .dropout = engine->dropout,
        .dropout_key = {engine->dropout_key[0], engine->dropout_key[1]},
        .workspace = engine->workspace,
        .loss_sum = engine->loss_sum,
    };
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            run.weights[i] = engine->units[block->units[i]].weights;
    return run;
}

static void *activation(const struct sw_engine *engine, int64_t block, int32_t microbatch)
{
    return engine
        ->activations[sw_plan_activation_slot(engine->plan, block) * engine->plan->microbatches +
                      microbatch];
}

static void set_inputs(struct sw_engine *engine, const struct sw_op *op, struct sw_block_run *run)
{
    enum sw_block_kind kind = engine->model->blocks[op->block].kind;
    if (kind != SW_BLOCK_EMBED_SOURCE && kind != SW_BLOCK_EMBED_TARGET)
        run->input = activation(engine, op->block - 1, op->microbatch);
    if (kind == SW_BLOCK_DECODER)
        run->encoder_output =
            activation(engine, sw_plan_encoder_end(engine->model), op->microbatch);
}

static void set_gradients(struct sw_engine *engine, const struct sw_op *op,
                          struct sw_block_run *run)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        if (block->units[i] >= 0)
            run->gradients[i] = engine->units[block->units[i]].gradient;
    bool source = block->kind == SW_BLOCK_EMBED_SOURCE || block->kind == SW_BLOCK_ENCODER ||
                  block->kind == SW_BLOCK_ENCODER_END;
    run->gradient =
        source ? engine->encoder_gradients[op->microbatch] : engine->gradients[op->microbatch];
    if (block->kind == SW_BLOCK_DECODER)
        run->encoder_gradient = engine->encoder_gradients[op->microbatch];
    if (engine->bias_partials[op->block] != NULL) {
        run->bias_gradient = engine->bias_gradient;
        run->bias_partial = engine->bias_partials[op->block];
    }
    run->last_microbatch = op->microbatch == engine->batch_count - 1;
}

static void run_forward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    set_inputs(engine, op, &run);
    run.output = activation(engine, op->block, op->microbatch);
    run.context = op->slot >= 0 ? engine->contexts[op->slot] : NULL;
    sw_block_forward(&run);
}

static void run_head(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    set_inputs(engine, op, &run);
    if (engine->training) {
        set_gradients(engine, op, &run);
        engine->device_ops->zero(run.stream, engine->encoder_gradients[op->microbatch],
                                 engine->plan->activation_bytes);
    }
    run.logits = engine->logits;
    sw_block_head(&run);
    if (engine->logits != NULL)
        engine->logits += run.batch->target.tokens * engine->model->t5.vocab_size;
}

static int64_t bias_bytes(const struct sw_engine *engine)
{
    return (2 * engine->plan->reach - 1) * engine->model->t5.heads * (int64_t)sizeof(float);
}

static int64_t bias_table_elements(const struct sw_engine *engine)
{
    return engine->model->t5.bias_buckets * engine->model->t5.heads;
}

static void run_backward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    set_inputs(engine, op, &run);
    run.context = engine->contexts[op->slot];
    if (engine->plan->recompute) {
        /* The output is there already; writing it again leaves the same bits. */
        run.output = activation(engine, op->block, op->microbatch);
        sw_block_forward(&run);
    }
    set_gradients(engine, op, &run);
    if (run.bias_gradient != NULL && op->microbatch == 0) {
        engine->device_ops->zero(run.stream, run.bias_gradient, bias_bytes(engine));
        engine->device_ops->zero(run.stream, run.bias_partial,
                                 bias_table_elements(engine) * (int64_t)sizeof(float));
    }
    sw_block_backward(&run);
}

/* The gradients of both bias tables: partials in block order. The tables are the first parameters
 * of the common unit, the encoder's before the decoder's. */
static void run_bias(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit *common = &engine->model->units[engine->model->common_unit];
    float *gradient = engine->units[engine->model->common_unit].gradient;
    const struct sw_param *tables = &engine->model->params[common->first_param];
    if (gradient == NULL)
        return;
    for (int64_t i = 0; i < engine->model->block_count; i++)
        if (engine->bias_partials[i] != NULL) {
            bool decoder = engine->model->blocks[i].kind == SW_BLOCK_DECODER;
            engine->device_ops->kernels->add(
                engine->streams[op->lane], gradient + tables[decoder ? 1 : 0].offset,
                engine->bias_partials[i], bias_table_elements(engine), SW_F32);
        }
}

static void run_partials(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_memory *unit = &engine->units[op->unit];
    sw_norm_partials(engine->config.pool, &unit->optim, unit->gradient, SW_F32, 0,
                     unit->optim.elements, engine->partials + engine->partial_start[op->unit]);
}

static void run_norm(struct sw_engine *engine)
{
    double sum = 0.0;
    for (int64_t i = 0; i < engine->model->unit_count; i++)
        if (engine->model->units[i].trainable)
            sum += sw_norm_sum(engine->partials + engine->partial_start[i],
                               sw_norm_partial_count(engine->model->units[i].elements));
    sw_norm_finish(engine->config.optim, sum, &engine->norm);
}

/* Apply the held gradient of a unit, or drop it, and leave zeros for the next step. */
static void run_step(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit_memory *unit = &engine->units[op->unit];
    if (!engine->held)
        return;
    if (engine->norm.finite) {
        const struct sw_optim_chunk chunk = {
            .count = unit->optim.elements,
            .gradient = unit->gradient,
            .master = unit->master,
            .high = unit->high,
            .low = unit->low,
            .exp_avg = unit->moments[0],
            .exp_avg_sq = unit->moments[1],
            .weights = unit->weights == (void *)unit->master || unit->weights == (void *)unit->high
                           ? NULL
                           : unit->weights,
            .weights_dtype = engine->plan->request.compute,
        };
        sw_optim_step_unit(engine->config.pool, engine->config.optim, &engine->update, &unit->optim,
                           &chunk, unit->factors, engine->scratch);
    }
    engine->device_ops->zero(engine->streams[op->lane], unit->gradient,
                             unit->optim.elements * (int64_t)sizeof(float));
}

sw_code sw_engine_run_op(void *context, const struct sw_op *op, struct sw_err *err)
{
    struct sw_engine *engine = context;
    if (op->microbatch >= 0 && !engine->batches[op->microbatch].filled)
        return SW_OK;
    switch (op->kind) {
    case SW_OP_BATCH:
        return sw_engine_copy_batch(engine, op->microbatch, err);
    case SW_OP_FORWARD:
        run_forward(engine, op);
        break;
    case SW_OP_HEAD:
        run_head(engine, op);
        break;
    case SW_OP_BACKWARD:
        run_backward(engine, op);
        break;
    case SW_OP_BIAS:
        run_bias(engine, op);
        break;
    case SW_OP_PARTIALS:
        run_partials(engine, op);
        break;
    case SW_OP_NORM:
        run_norm(engine);
        break;
    case SW_OP_STEP:
        run_step(engine, op);
        break;
    default:
        return sw_generation_run_op(engine, op, err);
    }
    if (engine->streams[op->lane] == NULL)
        return SW_OK;
    sw_code code = engine->device_ops->stream_sync(engine->streams[op->lane], err);
    if (code != SW_OK && op->block >= 0)
        return sw_err_while(err, "running %s of %s", sw_op_name(op->kind),
                            engine->model->blocks[op->block].name);
    return code;
}
