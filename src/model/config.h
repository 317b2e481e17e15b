/* Building the description of a model (model/spec.h) from its config.json.
 *
 * T5 v1.0, v1.1, flan-t5 and mT5 are known; other families are refused by name. Every value is
 * checked: SW_E_FORMAT names the file and the key. Where the keys of config.json disagree:
 * - `is_gated_act`, where it is there, decides whether the feed-forward has a gate, else
 *   `feed_forward_proj` does;
 * - `dense_act_fn`, where it is there, names the activation, else `feed_forward_proj` does; GELU
 *   under `feed_forward_proj: gated-gelu` is always the tanh form;
 * - `scale_decoder_outputs`, where it is there, decides whether the head's input is scaled by
 *   d_model^-0.5; else it is when `tie_word_embeddings` (default true) is true, but for mT5, which
 *   is scaled only when `scale_decoder_outputs` says so: transformers 5 takes every mT5 for tied,
 *   whatever its config.json says, and never scales it.
 */
#ifndef SPILLWAY_MODEL_CONFIG_H
#define SPILLWAY_MODEL_CONFIG_H

#include "base/json.h"
#include "model/spec.h"

enum sw_head {
    SW_HEAD_BY_CONFIG, /* its own matrix unless tie_word_embeddings */
    SW_HEAD_SEPARATE,  /* its own matrix: a checkpoint's differs from the embedding */
};

/* Read and check `config` (borrowed). `path` names it in messages. sw_mapping_open() calls this
 * with what the weight files say about the head; call it directly where there are no weights. *out
 * is owned: sw_model_close(). */
sw_code sw_model_open(const struct sw_json *config, const char *path, enum sw_head head,
                      struct sw_model **out, struct sw_err *err) SW_WARN_UNUSED;
void sw_model_close(struct sw_model *model); /* NULL is fine */

/* Mark the parameters whose name matches one of the patterns (shell globs; '*' matches dots too) as
 * not trainable. SW_E_USAGE when a pattern matches nothing, and when nothing is left to train. */
sw_code sw_model_freeze(struct sw_model *model, const char *const *patterns, int64_t count,
                        struct sw_err *err) SW_WARN_UNUSED;

/* Index of a parameter by its name; -1 when there is none. */
int64_t sw_model_find(const struct sw_model *model, const char *name);

#endif
