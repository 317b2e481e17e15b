/* Generating: one token at a time for every hypothesis, block by block, with the keys and values of
 * earlier tokens kept.
 *
 * A hypothesis is one of `beams` continuations of a source row; number row * beams + beam. Order of
 * a generation:
 *
 *   sw_decode_index_begin, copy the index to the device
 *   encoder blocks by sw_block_forward → encoder_output; sw_decode_begin
 *   for every decoder block: sw_decode_cross                       (its cross keys and values)
 *   for position 0, 1, …: sw_decode_index_step, copy the index to the device
 *       sw_decode_embed; for every decoder block: sw_decode_block; sw_decode_head
 *
 * Each function reads the weights of one unit and of the common unit only, so units may come and go
 * in between. Everything is packed; hypotheses that have ended go on as if they had not. */
#ifndef SPILLWAY_MODEL_DECODE_H
#define SPILLWAY_MODEL_DECODE_H

#include "model/block.h"
#include "model/tables.h"

struct sw_decode_bounds {
    int64_t rows; /* source rows at once */
    int64_t beams;
    int64_t source_length; /* longest source, tokens */
    int64_t steps;         /* tokens that may be generated */
};

/* Small integers of a generation, one buffer, the same on host and device. H = rows * beams. */
struct sw_decode_index {
    int32_t *query_starts;   /* [H] i */
    int32_t *query_lengths;  /* [H] 1 */
    int32_t *cache_starts;   /* [H] i * steps */
    int32_t *source_starts;  /* [H] of the hypothesis's source row */
    int32_t *source_lengths; /* [H] */
    int32_t *tokens;         /* [H] input of this step */
    int32_t *parents;        /* [H] the hypothesis that each goes on from */
    int32_t *cache_lengths;  /* [H] position + 1 */
};

struct sw_decode_sizes {
    int64_t index_bytes;
    int64_t bias_bytes;              /* relative bias of the decoder, for all of its blocks */
    int64_t cache_bytes;             /* of one decoder block; one more of these is the spare */
    int64_t cross_bytes;             /* of one decoder block */
    int64_t hidden_bytes;            /* [H, d_model] */
    int64_t log_probabilities_bytes; /* fp32 [H, vocabulary] */
    int64_t workspace_bytes;
};

void sw_decode_sizes(const struct sw_model *model, const struct sw_decode_bounds *bounds,
                     enum sw_dtype dtype, const struct sw_kernels *kernels,
                     struct sw_decode_sizes *out);

/* Point `out` into a buffer of index_bytes, in host or device memory. */
void sw_decode_index_at(struct sw_decode_index *out, void *buffer,
                        const struct sw_decode_bounds *bounds);
/* Fill the host copy: what holds for the whole generation of `rows` rows (at most bounds->rows),
 * with source_lengths [rows]. */
void sw_decode_index_begin(const struct sw_decode_index *host,
                           const struct sw_decode_bounds *bounds, int64_t rows,
                           const int32_t *source_lengths);
/* Fill the host copy for one step: tokens and parents are [rows * beams]. Returns whether any
 * hypothesis goes on from another than itself: then the caches must be reordered. */
bool sw_decode_index_step(const struct sw_decode_index *host, const struct sw_decode_bounds *bounds,
                          int64_t rows, int64_t position, const int32_t *tokens,
                          const int32_t *parents);

struct sw_decode_run {
    struct sw_stream *stream;
    const struct sw_kernels *kernels;
    const struct sw_model *model;
    const struct sw_model_tables *tables; /* reach >= bounds.steps */
    enum sw_dtype dtype;
    struct sw_decode_bounds bounds;
    const struct sw_decode_index *index; /* device */
    int64_t rows;                        /* source rows of this generation */
    int64_t source_tokens, source_longest;
    int64_t position; /* of this step's input tokens: 0, 1, … */
    bool reorder;     /* what sw_decode_index_step returned */

    int32_t block;                       /* index into model->blocks */
    const void *weights[SW_BLOCK_UNITS]; /* unit bases, dtype, as in sw_block.units */
    float *bias;                         /* bias_bytes */
    void *cross;                         /* cross_bytes, of this block */
    const void *encoder_output;          /* [source tokens, d_model]: for sw_decode_cross */
    void *hidden;                        /* [H, d_model], in place */
    float *log_probabilities;            /* sw_decode_head writes them */
    void *workspace;
};

/* Expand the decoder's relative bias; weights[1]: the common unit. Once, before the first step. */
void sw_decode_begin(const struct sw_decode_run *run);
/* Keys and values of the encoder output for decoder block run->block. */
void sw_decode_cross(const struct sw_decode_run *run);
/* hidden = embedding of the step's tokens; weights[0]: the embedding unit. */
void sw_decode_embed(const struct sw_decode_run *run);
/* hidden through decoder block run->block. When run->reorder, the rows of *cache are gathered by
 * parents into *spare and the two pointers swapped. */
void sw_decode_block(const struct sw_decode_run *run, void **cache, void **spare);
/* Final norm, logits, log-probabilities; run->block: the head, weights as in its units. */
void sw_decode_head(const struct sw_decode_run *run);

#endif
