/* Ops that compute: blocks over micro-batches. */
#include "exec/internal.h"

#include <math.h>

/* Fill what all block runs share. */
static struct sw_block_run block_run(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    const struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    struct sw_block_run run = {
        .stream = sw_engine_stream(engine, op),
        .device = engine->device_ops,
        .kernels = engine->device_ops->kernels,
        .model = engine->model,
        .tables = &rank->tables,
        .batch = &rank->batches[op->microbatch].view,
        .block = op->block,
        .dtype = engine->plan->request.compute,
        .bounds = engine->plan->bounds,
        .dropout = engine->dropout,
        .dropout_key = {engine->dropout_key[0], engine->dropout_key[1]},
        .workspace = op->lane == SW_LANE_ENDS ? rank->ends_workspace : rank->workspace,
        .loss_sum = rank->loss_sum,
        .input = op->input >= 0 ? rank->activations[op->input] : NULL,
        .encoder_output = op->memory >= 0 ? rank->activations[op->memory] : NULL,
    };
    /* An embedding's backward reads no weights, so they need not be there. */
    bool reads = op->kind != SW_OP_BACKWARD || op->input >= 0;
    for (int i = 0; i < SW_BLOCK_UNITS && reads; i++) {
        int32_t unit = block->units[i];
        if (unit >= 0)
            run.weights[i] = sw_store_weights(&engine->store, op->rank, unit, op->weights);
    }
    return run;
}

static int64_t bias_bytes(const struct sw_engine *engine)
{
    return (2 * engine->plan->reach - 1) * engine->model->t5.heads * (int64_t)sizeof(float);
}

static int64_t bias_table_elements(const struct sw_engine *engine)
{
    return engine->model->t5.bias_buckets * engine->model->t5.heads;
}

/* Where op's block adds its gradient of `unit`; NULL: nowhere, it is frozen, or (of what is used
 * all over) added up on stage 0. */
static float *gradient_of(const struct sw_engine *engine, const struct sw_op *op, int32_t unit)
{
    bool common = unit == engine->model->common_unit;
    if (unit < 0 || !engine->model->units[unit].trainable ||
        (common && sw_engine_rank_of(engine, op)->stage != 0))
        return NULL;
    return sw_store_gradient(&engine->store, op->rank, unit, common ? -1 : op->gradient);
}

void sw_engine_begin_gradients(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    struct sw_stream *stream = sw_engine_stream(engine, op);
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        int32_t unit = block->units[i];
        float *gradient = gradient_of(engine, op, unit);
        bool clears = unit == engine->model->common_unit ? op->clears_common : op->clears_own;
        if (gradient != NULL && clears)
            engine->device_ops->zero(stream, gradient,
                                     engine->model->units[unit].elements * (int64_t)sizeof(float));
    }
    if (op->kind != SW_OP_BACKWARD || op->microbatch != 0 ||
        rank->bias_gradients[op->block] == NULL)
        return;
    engine->device_ops->zero(stream, rank->bias_gradients[op->block], bias_bytes(engine));
    engine->device_ops->zero(stream, rank->bias_partials[op->block],
                             bias_table_elements(engine) * (int64_t)sizeof(float));
}

static void set_gradients(struct sw_engine *engine, const struct sw_op *op,
                          struct sw_block_run *run)
{
    const struct sw_block *block = &engine->model->blocks[op->block];
    struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        run->gradients[i] = gradient_of(engine, op, block->units[i]);
    sw_engine_begin_gradients(engine, op);
    bool source = block->kind == SW_BLOCK_EMBED_SOURCE || block->kind == SW_BLOCK_ENCODER ||
                  block->kind == SW_BLOCK_ENCODER_END;
    run->gradient =
        source ? rank->encoder_gradients[op->microbatch] : rank->gradients[op->microbatch];
    if (block->kind == SW_BLOCK_DECODER)
        run->encoder_gradient = rank->encoder_gradients[op->microbatch];
    if (op->clears_encoder)
        engine->device_ops->zero(run->stream, run->encoder_gradient,
                                 engine->plan->class_bytes[SW_SLOTS_SOURCE]);
    if (rank->bias_gradients[op->block] != NULL) {
        run->bias_gradient = rank->bias_gradients[op->block];
        run->bias_partial = rank->bias_partials[op->block];
    }
    run->last_microbatch = op->microbatch == rank->batch_count - 1;
}

/* The first block counts, whichever rank finds its own first. */
static void note_nonfinite(struct sw_engine *engine, int32_t block)
{
    int32_t known = atomic_load(&engine->nonfinite_block);
    while ((known < 0 || block < known) &&
           !atomic_compare_exchange_weak(&engine->nonfinite_block, &known, block))
        ;
}

void sw_engine_diagnose(struct sw_engine *engine, int32_t block, const void *output, int64_t tokens)
{
    int64_t count = tokens * engine->model->t5.d_model;
    bool bf16 = engine->plan->request.compute == SW_BF16;
    if (!engine->diagnosing || engine->device_ops->asynchronous)
        return;
    for (int64_t i = 0; i < count; i++) {
        float value =
            bf16 ? sw_bf16_to_float(((const uint16_t *)output)[i]) : ((const float *)output)[i];
        if (!isfinite(value)) {
            note_nonfinite(engine, block);
            return;
        }
    }
}

void sw_engine_forward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    const struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    run.output = rank->activations[op->output];
    run.context = op->context >= 0 ? rank->contexts[op->context] : NULL;
    sw_block_forward(&run);
    bool target = op->block > sw_plan_encoder_end(engine->model);
    sw_engine_diagnose(engine, op->block, run.output,
                       target ? run.batch->target.tokens : run.batch->source.tokens);
}

void sw_engine_head(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    if (engine->training && !engine->diagnosing)
        set_gradients(engine, op, &run);
    if (engine->logits != NULL)
        run.logits =
            engine->logits + sw_engine_rank_of(engine, op)->batches[op->microbatch].first_target *
                                 engine->model->t5.vocab_size;
    sw_block_head(&run);
}

void sw_engine_backward(struct sw_engine *engine, const struct sw_op *op)
{
    struct sw_block_run run = block_run(engine, op);
    const struct sw_engine_rank *rank = sw_engine_rank_of(engine, op);
    run.context = rank->contexts[op->context];
    if (engine->plan->recompute && op->input >= 0) {
        run.output = rank->recomputed;
        sw_block_forward(&run);
    }
    set_gradients(engine, op, &run);
    sw_block_backward(&run);
}

/* The gradients of both bias tables: partials in block order. The tables are the first parameters
 * of the common unit, the encoder's before the decoder's. */
void sw_engine_bias(struct sw_engine *engine, const struct sw_op *op)
{
    const struct sw_unit *common = &engine->model->units[engine->model->common_unit];
    float *gradient = sw_store_gradient(&engine->store, op->rank, engine->model->common_unit, -1);
    float **partials = sw_engine_rank_of(engine, op)->bias_partials;
    const struct sw_param *tables = &engine->model->params[common->first_param];
    for (int64_t i = 0; i < engine->model->block_count; i++)
        if (partials[i] != NULL) {
            bool decoder = engine->model->blocks[i].kind == SW_BLOCK_DECODER;
            engine->device_ops->kernels->add(sw_engine_stream(engine, op),
                                             gradient + tables[decoder ? 1 : 0].offset, partials[i],
                                             bias_table_elements(engine), SW_F32);
        }
}
