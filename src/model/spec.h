/* What a model is made of: parameters, units, blocks in order. A pure description, built from
 * config.json; holds no weights.
 *
 * unit   the parameters that are fetched, reduced, stepped and evicted together
 * block  one step of the computation; reads one or more units. Encoder and decoder blocks have a
 *        unit each; the embedding unit serves the source embedding, the target embedding and, when
 *        tied, the head; the `common` unit holds what is small and used all over (bias tables,
 * final norms) and is resident everywhere.
 */
#ifndef SPILLWAY_MODEL_SPEC_H
#define SPILLWAY_MODEL_SPEC_H

#include "base/dtype.h"
#include "base/err.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_PARAM_NAME_BYTES = 128, SW_BLOCK_UNITS = 2 };

enum sw_param_role {
    SW_PARAM_MATRIX,    /* a projection [out, in] */
    SW_PARAM_EMBEDDING, /* a table [vocabulary, width] */
    SW_PARAM_NORM,      /* a norm's weight [width] */
    SW_PARAM_BIAS,      /* an additive vector, or a relative bias table */
};

struct sw_param {
    char name[SW_PARAM_NAME_BYTES]; /* HuggingFace's name; the one it is exported under */
    enum sw_param_role role;
    int dims;         /* 1 or 2 */
    int64_t shape[2]; /* shape[1] = 1 when dims == 1 */
    int64_t elements;
    int32_t unit;   /* index of its unit */
    int64_t offset; /* elements from the start of the unit; parts of one fused matrix adjoin */
    bool decays;    /* weight decay applies (neither norm nor bias) */
    bool trainable;
    float init_mean, init_std; /* for random initialisation; norms: mean 1, std 0 */
};

struct sw_unit {
    char name[48];
    int32_t first_param, param_count;
    int64_t elements; /* with padding between groups, a multiple of 64; padding is always zero */
    bool trainable;   /* any parameter is */
};

enum sw_block_kind {
    SW_BLOCK_EMBED_SOURCE,
    SW_BLOCK_ENCODER,
    SW_BLOCK_ENCODER_END, /* final norm: makes the encoder output */
    SW_BLOCK_EMBED_TARGET,
    SW_BLOCK_DECODER,
    SW_BLOCK_HEAD, /* final norm, logits, loss; forward and backward in one in training */
};

struct sw_block {
    enum sw_block_kind kind;
    int32_t layer;                 /* index within its stack */
    int32_t units[SW_BLOCK_UNITS]; /* [0]: its own, or the table it reads; [1]: common. -1: none */
    char name[48];                 /* "encoder block 3", for messages */
};

/* T5's config.json, checked. */
struct sw_t5_config {
    int64_t vocab_size, d_model, d_kv, d_ff, heads, encoder_layers, decoder_layers;
    int64_t bias_buckets, bias_max_distance;
    float norm_eps, dropout, initializer_factor;
    bool gated, tied, scale_head;
    enum sw_activation activation;
    int32_t pad_id, eos_id, decoder_start_id;
};

struct sw_model {
    struct sw_t5_config t5;
    struct sw_param *params; /* owned; ordered by unit, then offset */
    int64_t param_count;
    struct sw_unit *units; /* owned: embedding, common, encoder blocks, decoder blocks, lm_head */
    int64_t unit_count;
    struct sw_block *blocks; /* owned, in forward order */
    int64_t block_count;
    int32_t embedding_unit, common_unit, head_unit; /* head_unit == embedding_unit when tied */
    int64_t elements; /* trainable or not, without padding: "number of parameters" */
};

#endif
