/* Which tensor of a model's files feeds which parameter.
 *
 * T5's files hold the shared embedding under up to three names and the head's matrix or not; the
 * description of the model depends on it, so both are made here together:
 * - shared.weight, encoder.embed_tokens.weight and decoder.embed_tokens.weight: any of them feeds
 *   the embedding; those that are there must be equal, bit for bit;
 * - lm_head.weight in a tied configuration: absent or bit-equal to the embedding, there is one
 *   parameter; different, the head has its own. tie_word_embeddings switched off: its own;
 * - decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight, which old checkpoints
 *   carry and nothing uses, is ignored;
 * - anything else that is missing or not expected, or has another shape, is an error that lists
 *   names.
 */
#ifndef SPILLWAY_MODEL_MAPPING_H
#define SPILLWAY_MODEL_MAPPING_H

#include "base/json.h"
#include "io/tensor_file.h"
#include "model/spec.h"

/* Same shape and bits? sw_tensor_equal() outside tests. */
typedef sw_code (*sw_tensor_equal_fn)(const struct sw_tensor *a, const struct sw_tensor *b,
                                      bool *out, struct sw_err *err);

struct sw_mapping {
    const struct sw_tensor **tensors; /* owned array [model->param_count]; tensors are borrowed */
    int64_t count;
};

/* Build the model and the mapping. `config` is what `config_path` holds; `where` names the model
 * directory in messages; `tensors` are all of its tensors, names unique, in any order. Both outputs
 * are owned: sw_model_close(), sw_mapping_close(). */
sw_code sw_mapping_open(const struct sw_json *config, const char *config_path, const char *where,
                        const struct sw_tensor *tensors, int64_t count, sw_tensor_equal_fn equal,
                        struct sw_model **out_model, struct sw_mapping **out_mapping,
                        struct sw_err *err) SW_WARN_UNUSED;
void sw_mapping_close(struct sw_mapping *mapping); /* NULL is fine */

#endif
