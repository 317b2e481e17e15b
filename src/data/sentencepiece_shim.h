/* The SentencePiece library behind plain C functions: no exception and no C++ type gets out.
 * data/tokenizer.h is what others use. */
#ifndef SPILLWAY_DATA_SENTENCEPIECE_SHIM_H
#define SPILLWAY_DATA_SENTENCEPIECE_SHIM_H

#include "base/err.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sw_spm;

enum sw_spm_kind { SW_SPM_NORMAL, SW_SPM_UNKNOWN, SW_SPM_CONTROL, SW_SPM_BYTE };

/* Load a serialized model that sw_spm_check() has passed: the library trusts what it reads. */
sw_code sw_spm_load(const void *bytes, int64_t count, const char *what, struct sw_spm **out,
                    struct sw_err *err) SW_WARN_UNUSED;
void sw_spm_free(struct sw_spm *spm);

int64_t sw_spm_pieces(const struct sw_spm *spm);
/* Id of a piece by its exact name, -1 when there is none. */
int32_t sw_spm_find(const struct sw_spm *spm, const char *piece);
/* Bytes of piece `id` (0 <= id < pieces), borrowed from the model. */
const char *sw_spm_piece(const struct sw_spm *spm, int32_t id, int64_t *out_bytes);
enum sw_spm_kind sw_spm_kind(const struct sw_spm *spm, int32_t id);

/* Receives ids; false when there is no memory for them. */
typedef bool (*sw_spm_ids_fn)(void *context, const int *ids, int64_t count);
/* Ids of UTF-8 text without special tokens, in one call of `append`. Thread-safe. */
sw_code sw_spm_encode(const struct sw_spm *spm, const char *text, int64_t bytes,
                      sw_spm_ids_fn append, void *context, struct sw_err *err) SW_WARN_UNUSED;

struct sw_spm_training {
    /* Hands out the texts one by one: false at the end. Borrowed until the next call. */
    bool (*next)(void *context, const char **text, int64_t *bytes);
    void *context;
    int64_t pieces;
    bool split_digits;         /* every digit is a piece of its own */
    double character_coverage; /* share of the texts' characters that get a piece, 0 .. 1 */
};
/* *out is the serialized model, owned by the caller (free()). */
sw_code sw_spm_train(const struct sw_spm_training *training, void **out, int64_t *out_bytes,
                     struct sw_err *err) SW_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
