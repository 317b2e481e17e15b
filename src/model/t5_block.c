/* T5's blocks: which steps they take, what they keep, how much memory that is. */
#include "model/t5_ops.h"

#include <string.h>

/* An encoder or decoder block over one micro-batch. */
struct layer {
    const struct sw_block_run *run;
    struct sw_t5_block_params params;
    struct sw_t5_attention self, cross;
    struct sw_t5_ffn ffn;
    bool decoder;
};

static void layer_init(struct layer *layer, const struct sw_block_run *run)
{
    const struct sw_microbatch *batch = run->batch;
    memset(layer, 0, sizeof *layer);
    layer->run = run;
    layer->decoder = run->model->blocks[run->block].kind == SW_BLOCK_DECODER;
    const struct sw_rows *rows = layer->decoder ? &batch->target : &batch->source;
    sw_t5_block_params(run->model, run->block, &layer->params);
    layer->self = (struct sw_t5_attention){
        .run = run,
        .params = &layer->params.self,
        .causal = layer->decoder,
        .queries = *rows,
        .keys = *rows,
    };
    layer->cross = (struct sw_t5_attention){
        .run = run,
        .params = &layer->params.cross,
        .cross = true,
        .queries = *rows,
        .keys = batch->source,
    };
    layer->ffn = (struct sw_t5_ffn){.run = run, .params = &layer->params, .rows = *rows};
}

static int64_t residual_bytes(const struct layer *layer)
{
    return layer->ffn.rows.tokens * layer->run->model->t5.d_model *
           sw_dtype_bytes(layer->run->dtype);
}

/* What forward keeps for backward, in the order in which it is cut from the context. */
struct layer_context {
    struct sw_t5_attention_context self, cross;
    void *after_self, *after_cross; /* residual stream, [N, D] */
    struct sw_t5_ffn_context ffn;
};

static void layer_carve(const struct layer *layer, struct sw_carve *carve,
                        struct layer_context *out)
{
    memset(out, 0, sizeof *out);
    sw_t5_attention_carve(&layer->self, carve, &out->self);
    out->after_self = sw_carve(carve, residual_bytes(layer));
    out->after_cross = out->after_self;
    if (layer->decoder) {
        sw_t5_attention_carve(&layer->cross, carve, &out->cross);
        out->after_cross = sw_carve(carve, residual_bytes(layer));
    }
    sw_t5_ffn_carve(&layer->ffn, carve, &out->ffn);
}

static void layer_forward(const struct layer *layer, const struct layer_context *context,
                          struct sw_carve *carve)
{
    const struct sw_block_run *run = layer->run;
    int64_t mark = carve->used_bytes;
    sw_t5_attention_forward(&layer->self, &context->self, context->after_self, run->input, carve);
    carve->used_bytes = mark;
    if (layer->decoder)
        sw_t5_attention_forward(&layer->cross, &context->cross, context->after_cross,
                                context->after_self, carve);
    carve->used_bytes = mark;
    sw_t5_ffn_forward(&layer->ffn, &context->ffn, run->output, context->after_cross, carve);
    carve->used_bytes = mark;
}

/* The same with nothing kept: every part gives its memory to the next, and the residual stream is
 * in `output` all along. */
static void layer_forward_only(const struct layer *layer, struct sw_carve *carve)
{
    const struct sw_block_run *run = layer->run;
    struct layer_context context = {0};
    int64_t mark = carve->used_bytes;
    sw_t5_attention_carve(&layer->self, carve, &context.self);
    sw_t5_attention_forward(&layer->self, &context.self, run->output, run->input, carve);
    carve->used_bytes = mark;
    if (layer->decoder) {
        sw_t5_attention_carve(&layer->cross, carve, &context.cross);
        sw_t5_attention_forward(&layer->cross, &context.cross, run->output, run->output, carve);
        carve->used_bytes = mark;
    }
    sw_t5_ffn_carve(&layer->ffn, carve, &context.ffn);
    sw_t5_ffn_forward(&layer->ffn, &context.ffn, run->output, run->output, carve);
    carve->used_bytes = mark;
}

static void layer_backward(const struct layer *layer, const struct layer_context *context,
                           struct sw_carve *carve)
{
    const struct sw_block_run *run = layer->run;
    sw_t5_ffn_backward(&layer->ffn, &context->ffn, run->gradient, context->after_cross, carve);
    if (layer->decoder)
        sw_t5_attention_backward(&layer->cross, &context->cross, run->gradient, context->after_self,
                                 carve);
    sw_t5_attention_backward(&layer->self, &context->self, run->gradient, run->input, carve);
}

/* --- Running -----------------------------------------------------------------------------------*/

static bool is_layer(const struct sw_block_run *run)
{
    enum sw_block_kind kind = run->model->blocks[run->block].kind;
    return kind == SW_BLOCK_ENCODER || kind == SW_BLOCK_DECODER;
}

void sw_block_forward(const struct sw_block_run *run)
{
    enum sw_block_kind kind = run->model->blocks[run->block].kind;
    struct sw_carve workspace = {.base = run->workspace};
    sw_assert(kind != SW_BLOCK_HEAD);
    if (is_layer(run)) {
        struct sw_carve kept = {.base = run->context};
        struct layer_context context;
        struct layer layer;
        layer_init(&layer, run);
        layer_carve(&layer, &kept, &context);
        if (run->context != NULL)
            layer_forward(&layer, &context, &workspace);
        else
            layer_forward_only(&layer, &workspace);
    } else if (kind == SW_BLOCK_ENCODER_END) {
        sw_t5_end_forward(run, &workspace);
    } else {
        sw_t5_embed_forward(run);
    }
}

void sw_block_backward(const struct sw_block_run *run)
{
    enum sw_block_kind kind = run->model->blocks[run->block].kind;
    struct sw_carve workspace = {.base = run->workspace};
    sw_assert(kind != SW_BLOCK_HEAD);
    if (is_layer(run)) {
        struct sw_carve kept = {.base = run->context};
        struct layer_context context;
        struct layer layer;
        layer_init(&layer, run);
        layer_carve(&layer, &kept, &context);
        layer_backward(&layer, &context, &workspace);
    } else if (kind == SW_BLOCK_ENCODER_END) {
        sw_t5_end_backward(run, &workspace);
    } else {
        sw_t5_embed_backward(run, &workspace);
    }
}

void sw_block_head(const struct sw_block_run *run)
{
    struct sw_carve workspace = {.base = run->workspace};
    sw_assert(run->model->blocks[run->block].kind == SW_BLOCK_HEAD);
    sw_t5_head(run, run->gradient != NULL, &workspace);
}

/* --- Sizes -------------------------------------------------------------------------------------*/

static struct sw_rows bound_rows(int64_t rows, int64_t length)
{
    return (struct sw_rows){.count = rows, .tokens = rows * length, .longest = length};
}

/* The most that any of forward, forward without context and backward carves. */
static void measure(const struct sw_block_run *run, struct sw_block_sizes *out)
{
    enum sw_block_kind kind = run->model->blocks[run->block].kind;
    struct sw_carve workspace = {.measuring = true};
    struct sw_carve kept = {.measuring = true};
    if (is_layer(run)) {
        struct layer_context context;
        struct layer layer;
        layer_init(&layer, run);
        layer_carve(&layer, &kept, &context);
        layer_forward(&layer, &context, &workspace);
        layer_forward_only(&layer, &workspace);
        layer_backward(&layer, &context, &workspace);
    } else if (kind == SW_BLOCK_ENCODER_END) {
        sw_t5_end_forward(run, &kept); /* its workspace is a spare context */
        sw_t5_end_forward(run, &workspace);
        workspace.used_bytes = 0;
        sw_t5_end_backward(run, &workspace);
    } else if (kind == SW_BLOCK_HEAD) {
        sw_t5_head(run, false, &workspace);
        workspace.used_bytes = 0;
        sw_t5_head(run, true, &workspace);
    } else {
        sw_t5_embed_backward(run, &workspace);
    }
    out->context_bytes = kept.high_bytes;
    out->workspace_bytes = workspace.high_bytes;
}

/* Multiply-adds count two. Causal attention counts half of its square. */
static double layer_flops(const struct sw_model *model, bool decoder,
                          const struct sw_bounds *bounds)
{
    const struct sw_t5_config *t5 = &model->t5;
    double source = (double)(bounds->rows * bounds->source_length);
    double target = (double)(bounds->rows * bounds->target_length);
    double tokens = decoder ? target : source;
    double inner = (double)(t5->heads * t5->d_kv);
    double width = (double)t5->d_model;
    double ffn = 2.0 * width * (double)t5->d_ff * (t5->gated ? 3.0 : 2.0);
    double flops = tokens * (8.0 * width * inner + ffn);
    if (!decoder)
        return flops + 4.0 * inner * source * (double)bounds->source_length;
    flops += 2.0 * inner * target * (double)bounds->target_length;
    flops += 4.0 * width * inner * (target + source);
    return flops + 4.0 * inner * target * (double)bounds->source_length;
}

void sw_block_sizes(const struct sw_model *model, int32_t block, const struct sw_bounds *bounds,
                    float dropout, enum sw_dtype dtype, const struct sw_kernels *kernels,
                    struct sw_block_sizes *out)
{
    const struct sw_microbatch batch = {
        .rows = bounds->rows,
        .source = bound_rows(bounds->rows, bounds->source_length),
        .target = bound_rows(bounds->rows, bounds->target_length),
    };
    const struct sw_model_tables tables = {
        .reach = sw_model_tables_reach(bounds->source_length, bounds->target_length)};
    const struct sw_block_run run = {
        .kernels = kernels,
        .model = model,
        .tables = &tables,
        .batch = &batch,
        .block = block,
        .dropout = dropout,
        .dtype = dtype,
        .bounds = *bounds,
    };
    enum sw_block_kind kind = model->blocks[block].kind;
    int64_t width_bytes = model->t5.d_model * sw_dtype_bytes(dtype);
    int64_t source_bytes = batch.source.tokens * width_bytes;
    int64_t target_bytes = batch.target.tokens * width_bytes;
    bool of_source = kind <= SW_BLOCK_ENCODER_END;
    bool embeds = kind == SW_BLOCK_EMBED_SOURCE || kind == SW_BLOCK_EMBED_TARGET;
    memset(out, 0, sizeof *out);
    out->input_bytes = embeds ? 0 : of_source ? source_bytes : target_bytes;
    out->output_bytes = kind == SW_BLOCK_HEAD ? 0 : of_source ? source_bytes : target_bytes;
    measure(&run, out);
    if (is_layer(&run))
        out->forward_flops = layer_flops(model, kind == SW_BLOCK_DECODER, bounds);
    else if (kind == SW_BLOCK_HEAD)
        out->forward_flops = 2.0 * (double)batch.target.tokens * (double)model->t5.d_model *
                             (double)model->t5.vocab_size;
    out->backward_flops = 2.0 * out->forward_flops;
}
