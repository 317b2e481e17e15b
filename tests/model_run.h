/* The smallest thing that trains and generates with the blocks of src/model: everything resident in
 * plain memory of the CPU back end, micro-batch after micro-batch. For tests. Buffers have exactly
 * the sizes that the interfaces ask for, between guards. */
#ifndef SPILLWAY_TESTS_MODEL_RUN_H
#define SPILLWAY_TESTS_MODEL_RUN_H

#include "model/block.h"
#include "model/decode.h"
#include "model/spec.h"

#include "data/row.h"

struct model_run {
    const struct sw_model *model;
    struct sw_pool *pool;
    struct sw_device *device;
    struct sw_stream *stream;
    enum sw_dtype dtype;
    struct sw_bounds bounds;
    struct sw_model_tables tables;
    int32_t *buckets;
    float **masters;                         /* [unit] fp32 */
    void **weights;                          /* [unit] dtype */
    float **gradients;                       /* [unit] fp32 */
    float **bias_gradients, **bias_partials; /* [block] */

    /* How a step is run. */
    float dropout, smoothing;
    uint32_t key[2];
    bool recompute; /* contexts are made again in backward */
};

/* `threads` of the pool. The model is borrowed. Weights are zero. */
void model_run_open(struct model_run *run, const struct sw_model *model,
                    const struct sw_bounds *bounds, enum sw_dtype dtype, int threads);
void model_run_close(struct model_run *run);

/* Elements of a parameter's fp32 weights; call model_run_publish() after changing them. */
float *model_run_param(const struct model_run *run, int64_t param);
const float *model_run_gradient(const struct model_run *run, int64_t param);
void model_run_publish(const struct model_run *run);
/* Random weights of this seed. */
void model_run_init(const struct model_run *run, uint64_t seed);

/* Loss (mean over the target tokens) and gradients of `count` rows in micro-batches of bounds.rows
 * or fewer. Row i has number i in the global batch. */
double model_run_step(struct model_run *run, const struct sw_row *rows, int64_t count,
                      int64_t micro_batch);
/* Mean loss alone, with run->dropout and run->smoothing; logits NULL or [target
 * tokens][vocabulary].
 */
double model_run_loss(const struct model_run *run, const struct sw_row *rows, int64_t count,
                      float *logits);

/* Generation with `beams` hypotheses a row. `choose` is called after every step with
 * log-probabilities [count * beams][vocabulary] and writes the next tokens and parents; false ends
 * it. It ends by itself after `steps`. */
typedef bool (*model_run_choose)(void *context, int64_t position, const float *log_probabilities,
                                 int32_t *tokens, int32_t *parents);
void model_run_generate(const struct model_run *run, const struct sw_row *rows, int64_t count,
                        int64_t beams, int64_t steps, model_run_choose choose, void *context);

#endif
