/* A model's weights into the engine and out of it, piece by piece: never a second whole copy. */
#ifndef SPILLWAY_CKPT_WEIGHTS_H
#define SPILLWAY_CKPT_WEIGHTS_H

#include "exec/engine.h"
#include "model/mapping.h"

/* What a long transfer reports; may be NULL. */
typedef void (*sw_transfer_fn)(void *context, int64_t done_elements, int64_t total_elements);

struct sw_transfer {
    sw_transfer_fn progress;
    void *context;
};

/* Visit all parameters in pieces of bounded size; `piece` is room for `count` elements. */
typedef sw_code (*sw_weights_piece_fn)(void *context, int64_t param, int64_t first, int64_t count,
                                       float *piece, struct sw_err *err);
sw_code sw_weights_walk(const struct sw_model *model, sw_weights_piece_fn visit, void *context,
                        const struct sw_transfer *transfer, struct sw_err *err) SW_WARN_UNUSED;

/* Every parameter from its tensor; SW_E_FORMAT when a file ends early. */
sw_code sw_weights_load(struct sw_engine *engine, const struct sw_model *model,
                        const struct sw_mapping *mapping, const struct sw_transfer *transfer,
                        struct sw_err *err) SW_WARN_UNUSED;
/* Every parameter at random, from `seed`. */
sw_code sw_weights_random(struct sw_engine *engine, const struct sw_model *model, uint64_t seed,
                          struct sw_pool *pool, const struct sw_transfer *transfer,
                          struct sw_err *err) SW_WARN_UNUSED;

/* Write a model directory: all weights in `dtype`, config and tokenizer files of `source`.
 * `extra` may add files to it before it gets its name; NULL: none. */
typedef sw_code (*sw_export_extra_fn)(void *context, const char *directory, struct sw_err *err);
sw_code sw_weights_export(struct sw_engine *engine, const struct sw_model *model,
                          const char *source, const char *directory, enum sw_dtype dtype,
                          sw_export_extra_fn extra, void *context,
                          const struct sw_transfer *transfer, struct sw_err *err) SW_WARN_UNUSED;

#endif
