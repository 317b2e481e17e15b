/* Ops that compute: blocks over micro-batches. */
#include "exec/internal.h"

#include <math.h>

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
        .input = op->input >= 0 ? engine->activations[op->input] : NULL,
        .encoder_output = op->memory >= 0 ? engine->activations[op->memory] : NULL,
    };
    /* An embedding's backward reads no weights, so they need not be there. */
    bool reads = op->kind != SW_OP_BACKWARD || op->input >= 0;
    for (int i = 0; i < SW_BLOCK_UNITS && reads; i++) {
        int32_t unit = block->units[i];
        if (unit >= 0)
            run.weights[i] = sw_store_weights(
                &engine->store, unit, unit == engine->model->common_unit ? -1 : op->weights);
    }
    return run;
}

static void clear_gradient(struct sw_engine *engine, const struct sw_op *op, int32_t unit,
                           float *gradient)
{
    engine->device_ops->zero(engine->streams[op->lane], gradient,
                             engine->model->units[unit].elements * (int64_t)sizeof(float));
}

static void set_gradients(struct sw_engine *engine, const struct sw_op *op,
                          struct sw_block_run *run)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        int32_t unit = block->units[i];
        if (unit < 0 || !engine->model->units[unit].trainable)
            continue;
        bool common = unit == engine->model->common_unit;
        run->gradients[i] = sw_store_gradient(&engine->store, unit, common ? -1 : op->gradient);
        if (common ? op->clears_common : op->clears_own)
            clear_gradient(engine, op, unit, run->gradients[i]);
    }
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

void sw_engine_diagnose(struct sw_engine *engine, int32_t block, const void *output, int64_t tokens)
{
    int64_t count = tokens * engine->model->t5.d_model;
    bool bf16 = engine->plan->request.compute == SW_BF16;
    if (!engine->diagnosing || engine->device_ops->asynchronous ||
        (engine->nonfinite_block >= 0 && engine->nonfinite_block < block))
        return;
    for (int64_t i = 0; i < count; i++) {
        float value =
            bf16 ? sw_bf16_to_float(((const uint16_t *)output)[i]) : ((const float *)output)[i];
        if (!isfinite(value)) {
            engine->nonfinite_block = block;
            return;
        }
    }
}

void sw_engine_forward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    run.output = engine->activations[op->output];
    run.context = op->context >= 0 ? engine->contexts[op->context] : NULL;
    sw_block_forward(&run);
    bool target = op->block > sw_plan_encoder_end(engine->model);
    sw_engine_diagnose(engine, op->block, run.output,
                       target ? run.batch->target.tokens : run.batch->source.tokens);
}

void sw_engine_head(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    if (engine->training && !engine->diagnosing) {
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

void sw_engine_backward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    run.context = engine->contexts[op->context];
    if (engine->plan->recompute && op->input >= 0) {
        run.output = engine->recomputed;
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
void sw_engine_bias(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit *common = &engine->model->units[engine->model->common_unit];
    float *gradient = sw_store_gradient(&engine->store, engine->model->common_unit, -1);
    const struct sw_param *tables = &engine->model->params[common->first_param];
    for (int64_t i = 0; i < engine->model->block_count; i++)
        if (engine->bias_partials[i] != NULL) {
            bool decoder = engine->model->blocks[i].kind == SW_BLOCK_DECODER;
            engine->device_ops->kernels->add(
                engine->streams[op->lane], gradient + tables[decoder ? 1 : 0].offset,
                engine->bias_partials[i], bias_table_elements(engine), SW_F32);
        }
}
