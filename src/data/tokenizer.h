/* SentencePiece tokenizers, as T5 uses them (docs/DATA.md has the rules in words).
 *
 * A tokenizer is the pieces of a SentencePiece model, followed by the sentinels <extra_id_N>: id
 * vocabulary - 1 - N, where the vocabulary counts pieces and sentinels. A model's own vocab_size
 * may be larger (padding of its embedding); ids that it does not have are refused. */
#ifndef SPILLWAY_DATA_TOKENIZER_H
#define SPILLWAY_DATA_TOKENIZER_H

#include "base/err.h"
#include "base/text.h"

#include <stdint.h>

struct sw_tokenizer;

/* Ids that are built up piece by piece. Start with {0}; end with free(ids.ids). */
struct sw_ids {
    int32_t *ids; /* owned, [count] */
    int64_t count, capacity;
};

/* Open a model directory (its spiece.model, and extra_ids of its tokenizer_config.json where that
 * is there) or a SentencePiece file. Ids not below `model_vocabulary`, the vocab_size of the
 * model's configuration, are refused; 0: unbounded. SW_E_FORMAT when the file is no SentencePiece
 * model, lacks </s>, is cut off, or has more pieces than the model. Thread-safe once open. */
sw_code sw_tokenizer_open(const char *path, int64_t model_vocabulary, struct sw_tokenizer **out,
                          struct sw_err *err) SW_WARN_UNUSED;
/* The same from memory; `what` names it in messages. extra_ids: number of sentinels behind the
 * pieces, -1: as T5 has them (100, or none when the pieces hold them already). */
sw_code sw_tokenizer_open_memory(const void *bytes, int64_t count, const char *what,
                                 int64_t extra_ids, int64_t model_vocabulary,
                                 struct sw_tokenizer **out, struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_tokenizer_close(struct sw_tokenizer *tokenizer);

int64_t sw_tokenizer_vocabulary(const struct sw_tokenizer *tokenizer); /* pieces and sentinels */
int64_t sw_tokenizer_sentinels(const struct sw_tokenizer *tokenizer);  /* of these */
int32_t sw_tokenizer_eos(const struct sw_tokenizer *tokenizer);

/* Append the ids of `bytes` of UTF-8 text and EOS to `ids`: at most max_length of them, EOS always
 * the last (max_length >= 1; 0: no limit). *out_truncated, which may be NULL: whether some were
 * cut. SW_E_FORMAT when an id is beyond the model's vocabulary. On failure `ids` holds what it
 * held. Thread-safe. */
sw_code sw_tokenizer_encode(const struct sw_tokenizer *tokenizer, const char *text, int64_t bytes,
                            int64_t max_length, struct sw_ids *ids, bool *out_truncated,
                            struct sw_err *err) SW_WARN_UNUSED;
/* Append the text of `count` ids to `text`; special tokens and ids beyond the vocabulary (a model
 * whose embedding is padded may produce them) are left out. Valid UTF-8. Thread-safe. */
sw_code sw_tokenizer_decode(const struct sw_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                            struct sw_text *text, struct sw_err *err) SW_WARN_UNUSED;

struct sw_tokenizer_training {
    /* Hands out the texts one by one: false at the end. Each is borrowed until the next call. */
    bool (*next)(void *context, const char **text, int64_t *bytes);
    void *context;
    int64_t pieces;            /* <pad>, </s> and <unk> included */
    bool split_digits;         /* every digit is a piece of its own: T5's are not split */
    double character_coverage; /* share of the characters that get a piece; 0: 0.9995, as T5 */
};

/* Train a unigram SentencePiece model with T5's ids (<pad> 0, </s> 1, <unk> 2, no <s>) and write it
 * to `path`. One thread, and the same bytes for the same texts. SW_E_USAGE when the texts are too
 * few or too plain for so many pieces. */
sw_code sw_tokenizer_train(const struct sw_tokenizer_training *training, const char *path,
                           struct sw_err *err) SW_WARN_UNUSED;

#endif
