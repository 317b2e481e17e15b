/* Steps that T5's blocks are made of, over one micro-batch. For src/model only.
 *
 * N, S: tokens of the stack at hand and of the source; D d_model, I heads * d_kv, F d_ff. Matrices
 * are stored [out, in], as HuggingFace has them. */
#ifndef SPILLWAY_MODEL_T5_OPS_H
#define SPILLWAY_MODEL_T5_OPS_H

#include "model/block.h"
#include "model/carve.h"
#include "model/t5_layout.h"

/* Places of dropout within a block; sites are block * SW_T5_PLACES + place. */
enum sw_t5_place {
    SW_T5_AT_SELF_PROBABILITIES,
    SW_T5_AT_SELF_RESIDUAL,
    SW_T5_AT_CROSS_PROBABILITIES,
    SW_T5_AT_CROSS_RESIDUAL,
    SW_T5_AT_ACTIVATION,
    SW_T5_AT_FFN_RESIDUAL,
    SW_T5_AT_OUTPUT, /* embeddings and final norms */
    SW_T5_PLACES = 8
};

struct sw_dropout sw_t5_dropout(const struct sw_block_run *run, enum sw_t5_place place);

/* Address of an element of a buffer of `dtype`. */
const void *sw_t5_at(const void *base, int64_t element, enum sw_dtype dtype);
void *sw_t5_at_mutable(void *base, int64_t element, enum sw_dtype dtype);

/* Weights of a parameter of the block's unit 0 or 1; its gradient, or NULL when none is wanted: the
 * unit or the parameter is frozen. */
const void *sw_t5_weight(const struct sw_block_run *run, int which, const struct sw_param *param);
float *sw_t5_gradient(const struct sw_block_run *run, int which, const struct sw_param *param);

/* A matrix of the block's own unit: `parts` parameters that adjoin, read as one. */
struct sw_t5_matrix {
    int64_t out, in;
    const void *weight;
    float *gradient; /* NULL: every part is frozen */
};
struct sw_t5_matrix sw_t5_matrix(const struct sw_block_run *run, const struct sw_param *first,
                                 int parts);

/* y [rows, out] = x [rows, in] W^T */
void sw_t5_linear(const struct sw_block_run *run, const struct sw_t5_matrix *matrix, int64_t rows,
                  void *y, const void *x);
/* Memory for a branch [rows, D] before it is dropped from; NULL without dropout. */
void *sw_t5_branch(const struct sw_block_run *run, int64_t rows, struct sw_carve *carve);
/* y [rows, out] = residual + dropout(x W^T); y may alias residual. Without dropout the product adds
 * to the residual itself; with it, the branch is made first, and then added. */
void sw_t5_linear_residual(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                           const struct sw_rows *layout, const struct sw_dropout *dropout, void *y,
                           const void *residual, const void *x, void *branch);
/* dx [rows, in] = dy W, or += with `accumulate` */
void sw_t5_linear_input(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                        int64_t rows, void *dx, const void *dy, bool accumulate);
/* dW += dy^T x, unless frozen */
void sw_t5_linear_weight(const struct sw_block_run *run, const struct sw_t5_matrix *matrix,
                         int64_t rows, const void *dy, const void *x);

/* --- Norms ---------------------------------------------------------------------------------- */

struct sw_norm sw_t5_norm(const struct sw_model *model, enum sw_dtype dtype, int64_t rows);
/* y = norm(x), with the norm `param` of unit `which`. */
void sw_t5_norm_forward(const struct sw_block_run *run, int which, const struct sw_param *param,
                        int64_t rows, void *y, float *rstd, const void *x);
/* dx += ; the norm's gradient too, unless frozen. `carve`: workspace. */
void sw_t5_norm_backward(const struct sw_block_run *run, int which, const struct sw_param *param,
                         int64_t rows, void *dx, const void *dy, const void *x, const float *rstd,
                         struct sw_carve *carve);

/* --- Attention with its norm, projections and residual ---------------------------------------- */

struct sw_t5_attention {
    const struct sw_block_run *run;
    const struct sw_t5_attention_params *params;
    bool cross, causal;
    struct sw_rows queries, keys; /* the same for self-attention */
};

/* What backward needs. */
struct sw_t5_attention_context {
    void *normed; /* [N, D] */
    float *rstd;  /* [N] */
    void *q;      /* self: q, k, v in one, [N, 3 I]; cross: [N, I] */
    void *kv;     /* cross: [S, 2 I] */
    void *o;      /* [N, I] */
    float *lse;   /* [heads, N] */
};

void sw_t5_attention_carve(const struct sw_t5_attention *attention, struct sw_carve *carve,
                           struct sw_t5_attention_context *out);
/* y = x + dropout(attention(norm(x))); y may alias x. Workspace comes from `carve`; nothing runs
 * when it is measuring. */
void sw_t5_attention_forward(const struct sw_t5_attention *attention,
                             const struct sw_t5_attention_context *context, void *y, const void *x,
                             struct sw_carve *carve);
/* gradient: in d(y), out d(x). */
void sw_t5_attention_backward(const struct sw_t5_attention *attention,
                              const struct sw_t5_attention_context *context, void *gradient,
                              const void *x, struct sw_carve *carve);

/* --- Feed-forward with its norm and residual -------------------------------------------------- */

struct sw_t5_ffn_context {
    void *normed; /* [N, D] */
    float *rstd;  /* [N] */
    void *h;      /* [N, F], gated [N, 2 F]; backward writes over it */
};

struct sw_t5_ffn {
    const struct sw_block_run *run;
    const struct sw_t5_block_params *params;
    struct sw_rows rows;
};

void sw_t5_ffn_carve(const struct sw_t5_ffn *ffn, struct sw_carve *carve,
                     struct sw_t5_ffn_context *out);
void sw_t5_ffn_forward(const struct sw_t5_ffn *ffn, const struct sw_t5_ffn_context *context,
                       void *y, const void *x, struct sw_carve *carve);
void sw_t5_ffn_backward(const struct sw_t5_ffn *ffn, const struct sw_t5_ffn_context *context,
                        void *gradient, const void *x, struct sw_carve *carve);

/* --- Embeddings, final norm, head --------------------------------------------------------------
 */

void sw_t5_embed_forward(const struct sw_block_run *run);
void sw_t5_embed_backward(const struct sw_block_run *run, struct sw_carve *carve);
void sw_t5_end_forward(const struct sw_block_run *run, struct sw_carve *carve);
void sw_t5_end_backward(const struct sw_block_run *run, struct sw_carve *carve);
/* d_model^-0.5 where the head's input is scaled, else 1. */
float sw_t5_head_scale(const struct sw_model *model);
void sw_t5_head(const struct sw_block_run *run, bool backward, struct sw_carve *carve);

#endif
