/* Running one block over one micro-batch, against the kernel interface. Stateless: everything a
 * block reads or writes is in `struct sw_block_run`. */
#ifndef SPILLWAY_MODEL_BLOCK_H
#define SPILLWAY_MODEL_BLOCK_H

#include "model/spec.h"
#include "model/tables.h"

/* Largest micro-batch a plan allows. */
struct sw_bounds {
    int64_t rows;          /* per micro-batch */
    int64_t source_length; /* longest row, tokens */
    int64_t target_length;
    int64_t head_chunk_tokens; /* target tokens whose logits exist at once */
};

/* One micro-batch in device memory. Rows are packed: no padding anywhere. */
struct sw_microbatch {
    int64_t rows;
    struct sw_rows source, target;
    const int32_t *source_ids;  /* [source.tokens] */
    const int32_t *target_ids;  /* decoder input: labels shifted right behind the start token */
    const int32_t *labels;      /* [target.tokens] */
    const int32_t *global_rows; /* [rows] */
    float loss_scale;           /* 1 / target tokens of the whole global batch */
    float smoothing;
};

struct sw_block_sizes {
    int64_t input_bytes; /* residual stream in: what layer-major order saves per micro-batch */
    int64_t output_bytes;
    int64_t context_bytes;                /* internals that backward needs (kept, or recomputed) */
    int64_t workspace_bytes;              /* scratch, the largest of forward and backward */
    double forward_flops, backward_flops; /* at the bounds, without recomputation */
};

struct sw_block_run {
    struct sw_stream *stream;
    const struct sw_device_ops *device;
    const struct sw_kernels *kernels;
    const struct sw_model *model;
    const struct sw_model_tables *tables; /* reach covers the bounds */
    const struct sw_microbatch *batch;
    int32_t block; /* index into model->blocks */
    enum sw_dtype dtype;
    struct sw_bounds bounds;
    float dropout; /* p; 0 in evaluation */
    uint32_t dropout_key[2];

    const void *weights[SW_BLOCK_UNITS]; /* unit bases, dtype, as in sw_block.units */
    float *gradients[SW_BLOCK_UNITS];    /* unit bases, fp32, += ; NULL where a unit is frozen */
    float
        *bias_gradient;  /* [heads][2 * reach - 1] of this block's self-attention; zero at its first
                            micro-batch, += ; the last micro-batch folds it into bias_partial */
    float *bias_partial; /* [buckets][heads]: this block's share of its stack's table gradient, += .
                            Both NULL: not wanted */

    const void *input;          /* [N, d_model] residual stream; unused by embeddings */
    void *output;               /* [N, d_model]; may not alias input */
    const void *encoder_output; /* decoder blocks */
    void *context;              /* sw_block_sizes.context_bytes */
    void *workspace;

    void *gradient;         /* in: d(output); out: d(input); [N, d_model], in place */
    void *encoder_gradient; /* decoder blocks: += d(encoder output) */
    double *loss_sum;       /* head: += sum of token losses (unscaled), device double */
    float *logits;          /* head: NULL, or [N, vocabulary] to write; only without gradient */
    bool last_microbatch;   /* backward: fold bias_gradient into bias_partial */
};

/* For runs with `dropout` or without any: those want no more. */
void sw_block_sizes(const struct sw_model *model, int32_t block, const struct sw_bounds *bounds,
                    float dropout, enum sw_dtype dtype, const struct sw_kernels *kernels,
                    struct sw_block_sizes *out);

/* Forward: output, and context when run->context is not NULL. */
void sw_block_forward(const struct sw_block_run *run);
/* Backward from `context`, which a forward of the same inputs filled; it is written over. Gradients
 * of frozen parameters may be written where they are part of a fused matrix with trainable ones:
 * whoever reads gradients skips parameters that are not trainable. */
void sw_block_backward(const struct sw_block_run *run);
/* SW_BLOCK_HEAD: loss, and (when run->gradient != NULL) gradients, in chunks of tokens.
 * `gradient` out: d(input). */
void sw_block_head(const struct sw_block_run *run);

#endif
