/* Where T5's parameters lie in the unit of a block. For src/model only.
 *
 * Groups that are read as one matrix adjoin without padding: q, k, v of self-attention; k, v of
 * cross-attention; wi_0, wi_1 of a gated feed-forward. Every group begins at a multiple of
 * SW_GROUP_ELEMENTS. */
#ifndef SPILLWAY_MODEL_T5_LAYOUT_H
#define SPILLWAY_MODEL_T5_LAYOUT_H

#include "model/spec.h"

enum { SW_GROUP_ELEMENTS = 64 };

/* Parameters of the common unit, in order. */
enum sw_t5_common {
    SW_T5_ENCODER_BIAS,
    SW_T5_DECODER_BIAS,
    SW_T5_ENCODER_NORM,
    SW_T5_DECODER_NORM,
    SW_T5_COMMON_PARAMS
};

struct sw_t5_attention_params {
    const struct sw_param *norm; /* [d_model] */
    const struct sw_param *q;    /* q, k, v: [heads * d_kv, d_model] each */
    const struct sw_param *k;
    const struct sw_param *v;
    const struct sw_param *o; /* [d_model, heads * d_kv] */
};

struct sw_t5_block_params {
    struct sw_t5_attention_params self, cross; /* cross: decoder blocks only */
    const struct sw_param *ffn_norm;           /* [d_model] */
    const struct sw_param *ffn_in;             /* wi or wi_0: [d_ff, d_model] */
    const struct sw_param *ffn_gate;           /* wi_1, behind ffn_in; NULL: no gate */
    const struct sw_param *ffn_out;            /* [d_model, d_ff] */
};

/* Parameters of an encoder or decoder block. */
void sw_t5_block_params(const struct sw_model *model, int32_t block,
                        struct sw_t5_block_params *out);
const struct sw_param *sw_t5_common_param(const struct sw_model *model, enum sw_t5_common which);

#endif
