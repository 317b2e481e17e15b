#include "data/tokenizer.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "data/sentencepiece_shim.h"
#include "data/spm_check.h"
#include "data/utf8.h"

#include <stdlib.h>
#include <string.h>

enum {
    T5_SENTINELS = 100,
    SENTINELS_MAX = 100000,
    MODEL_BYTES_MAX = 256 << 20,
    CONFIG_BYTES_MAX = 64 << 20
};

/* What a piece's name says in the output. */
static const char meta_space[] = "\xE2\x96\x81"; /* U+2581, a space inside pieces */

struct sw_tokenizer {
    struct sw_spm *spm;
    char *what;                /* for messages */
    int64_t pieces, sentinels; /* <extra_id_N> has id pieces + sentinels - 1 - N */
    int64_t model_vocabulary;  /* ids must be below; INT64_MAX: unbounded */
    int32_t eos, pad, unknown; /* -1: the model has no such piece */
};

/* --- opening ------------------------------------------------------------------------- */

static sw_code find_special(struct sw_tokenizer *tokenizer, int64_t extra_ids, struct sw_err *err)
{
    struct sw_spm *spm = tokenizer->spm;
    tokenizer->pieces = sw_spm_pieces(spm);
    tokenizer->eos = sw_spm_find(spm, "</s>");
    tokenizer->pad = sw_spm_find(spm, "<pad>");
    tokenizer->unknown = sw_spm_find(spm, "<unk>");
    if (extra_ids >= 0)
        tokenizer->sentinels = extra_ids;
    else if (sw_spm_find(spm, "<extra_id_0>") < 0 &&
             sw_spm_find(spm, "\xE2\x96\x81<extra_id_0>") < 0)
        tokenizer->sentinels = T5_SENTINELS;
    if (tokenizer->eos < 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s has no piece </s>, which ends every T5 text",
                       tokenizer->what);
    if (tokenizer->pieces > tokenizer->model_vocabulary)
        return SW_FAIL(
            err, SW_E_FORMAT,
            "%s has %lld pieces, but vocab_size of the model's config.json is %lld: they "
            "do not belong together",
            tokenizer->what, (long long)tokenizer->pieces, (long long)tokenizer->model_vocabulary);
    return SW_OK;
}

sw_code sw_tokenizer_open_memory(const void *bytes, int64_t count, const char *what,
                                 int64_t extra_ids, int64_t model_vocabulary,
                                 struct sw_tokenizer **out, struct sw_err *err)
{
    sw_assert(extra_ids >= -1 && extra_ids <= SENTINELS_MAX && model_vocabulary >= 0);
    struct sw_tokenizer *tokenizer = sw_calloc(1, sizeof *tokenizer);
    sw_code code;
    if (tokenizer == NULL || (tokenizer->what = sw_strdup(what)) == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for the tokenizer %s", what);
        goto out;
    }
    tokenizer->model_vocabulary = model_vocabulary > 0 ? model_vocabulary : INT64_MAX;
    if ((code = sw_spm_check(bytes, count, what, err)) != SW_OK ||
        (code = sw_spm_load(bytes, count, what, &tokenizer->spm, err)) != SW_OK ||
        (code = find_special(tokenizer, extra_ids, err)) != SW_OK)
        goto out;
    *out = tokenizer;
    tokenizer = NULL;
out:
    sw_tokenizer_close(tokenizer);
    return code;
}

/* extra_ids of the directory's tokenizer_config.json, -1 where that says nothing. */
static sw_code read_extra_ids(const char *directory, int64_t *out, struct sw_err *err)
{
    struct sw_json *root = NULL;
    int64_t extra_ids = -1;
    sw_code code = SW_OK;
    char *path = sw_path_join(directory, "tokenizer_config.json");
    if (path == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
        goto out;
    }
    if (sw_file_exists(path)) {
        code = sw_json_read_file(path, CONFIG_BYTES_MAX, &root, err);
        if (code != SW_OK)
            goto out;
        const struct sw_json *value = sw_json_get(root, "extra_ids");
        if (value != NULL && (!sw_json_to_integer(value, &extra_ids) || extra_ids < 0 ||
                              extra_ids > SENTINELS_MAX)) {
            code = SW_FAIL(err, SW_E_FORMAT, "extra_ids of %s is no number from 0 to %d", path,
                           SENTINELS_MAX);
            goto out;
        }
    }
    *out = extra_ids;
out:
    if (root != NULL)
        sw_json_free(root);
    free(path);
    return code;
}

sw_code sw_tokenizer_open(const char *path, int64_t model_vocabulary, struct sw_tokenizer **out,
                          struct sw_err *err)
{
    char *bytes = NULL, *joined = NULL;
    int64_t count, extra_ids = -1;
    sw_code code;
    if (sw_file_is_directory(path)) {
        if ((code = read_extra_ids(path, &extra_ids, err)) != SW_OK)
            goto out;
        joined = sw_path_join(path, "spiece.model");
        if (joined == NULL) {
            code = SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
            goto out;
        }
        if (!sw_file_exists(joined)) {
            code = SW_FAIL(err, SW_E_IO,
                           "%s is not there: a T5 model directory holds its tokenizer under that "
                           "name",
                           joined);
            goto out;
        }
        path = joined;
    }
    if ((code = sw_file_read(path, MODEL_BYTES_MAX, &bytes, &count, err)) != SW_OK)
        goto out;
    code = sw_tokenizer_open_memory(bytes, count, path, extra_ids, model_vocabulary, out, err);
out:
    free(bytes);
    free(joined);
    return code;
}

void sw_tokenizer_close(struct sw_tokenizer *tokenizer)
{
    if (tokenizer == NULL)
        return;
    sw_spm_free(tokenizer->spm);
    free(tokenizer->what);
    free(tokenizer);
}

int64_t sw_tokenizer_vocabulary(const struct sw_tokenizer *tokenizer)
{
    return tokenizer->pieces + tokenizer->sentinels;
}

int64_t sw_tokenizer_sentinels(const struct sw_tokenizer *tokenizer)
{
    return tokenizer->sentinels;
}

int32_t sw_tokenizer_eos(const struct sw_tokenizer *tokenizer)
{
    return tokenizer->eos;
}

/* --- text to ids --------------------------------------------------------------------- */

static bool append_ids(void *context, const int *ids, int64_t count)
{
    struct sw_ids *to = context;
    void *array = to->ids;
    int64_t wanted;
    if (count == 0)
        return true;
    if (!sw_size_add(to->count, count, &wanted) ||
        !sw_array_reserve(&array, &to->capacity, wanted - 1, sizeof *to->ids))
        return false;
    to->ids = array;
    memcpy(to->ids + to->count, ids, (size_t)count * sizeof *ids);
    to->count = wanted;
    return true;
}

/* The special token that `text` begins with: its id and length, or -1. */
static int32_t match_special(const struct sw_tokenizer *tokenizer, const char *text, int64_t bytes,
                             int64_t *out_length)
{
    static const char sentinel[] = "<extra_id_";
    const struct {
        const char *name;
        int32_t id;
    } named[] = {
        {"</s>", tokenizer->eos}, {"<pad>", tokenizer->pad}, {"<unk>", tokenizer->unknown}};
    for (size_t i = 0; i < sizeof named / sizeof named[0]; i++) {
        int64_t length = (int64_t)strlen(named[i].name);
        if (named[i].id >= 0 && bytes >= length &&
            memcmp(text, named[i].name, (size_t)length) == 0) {
            *out_length = length;
            return named[i].id;
        }
    }
    int64_t at = sizeof sentinel - 1, number = 0;
    if (bytes <= at || memcmp(text, sentinel, (size_t)at) != 0)
        return -1;
    int64_t first = at;
    for (; at < bytes && text[at] >= '0' && text[at] <= '9' && number < SENTINELS_MAX; at++)
        number = number * 10 + (text[at] - '0');
    bool canonical = at > first && (text[first] != '0' || at == first + 1);
    if (!canonical || at == bytes || text[at] != '>' || number >= tokenizer->sentinels)
        return -1;
    *out_length = at + 1;
    return (int32_t)(tokenizer->pieces + tokenizer->sentinels - 1 - number);
}

/* Where the text goes on behind something that is no plain text: a special token, whose id is
 * *out_special, or U+0085 (*out_special -1), which HuggingFace's tokenizer takes for a space and
 * SentencePiece's normalizer for an unknown character. `bytes` when there is nothing of the kind.
 */
static int64_t find_break(const struct sw_tokenizer *tokenizer, const char *text, int64_t bytes,
                          int64_t from, int64_t *out_length, int32_t *out_special)
{
    for (int64_t at = from; at < bytes; at++) {
        *out_length = 0;
        *out_special = -1;
        if (text[at] == '<')
            *out_special = match_special(tokenizer, text + at, bytes - at, out_length);
        else if (text[at] == '\xC2' && at + 1 < bytes && text[at + 1] == '\x85')
            *out_length = 2;
        if (*out_length > 0)
            return at;
    }
    *out_length = 0;
    *out_special = -1;
    return bytes;
}

/* All ids of the text, without EOS at the end. Stops early once there are more than enough. */
static sw_code encode_parts(const struct sw_tokenizer *tokenizer, const char *text, int64_t bytes,
                            int64_t enough, struct sw_ids *ids, struct sw_err *err)
{
    const int64_t first = ids->count;
    for (int64_t at = 0; at < bytes && ids->count - first <= enough;) {
        int64_t length;
        int32_t special;
        int64_t end = find_break(tokenizer, text, bytes, at, &length, &special);
        if (end > at) {
            sw_code code = sw_spm_encode(tokenizer->spm, text + at, end - at, append_ids, ids, err);
            if (code != SW_OK)
                return code;
        }
        if (special >= 0 && !append_ids(ids, &special, 1))
            return SW_FAIL(err, SW_E_MEMORY, "no memory for the tokens of a text");
        at = end + length;
    }
    return SW_OK;
}

static sw_code check_ids(const struct sw_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         struct sw_err *err)
{
    if (sw_tokenizer_vocabulary(tokenizer) <= tokenizer->model_vocabulary)
        return SW_OK;
    for (int64_t i = 0; i < count; i++)
        if (ids[i] >= tokenizer->model_vocabulary)
            return SW_FAIL(err, SW_E_FORMAT,
                           "the text holds <extra_id_%lld>, whose id %d is beyond the model's "
                           "vocabulary of %lld",
                           (long long)(tokenizer->pieces + tokenizer->sentinels - 1 - ids[i]),
                           (int)ids[i], (long long)tokenizer->model_vocabulary);
    return SW_OK;
}

sw_code sw_tokenizer_encode(const struct sw_tokenizer *tokenizer, const char *text, int64_t bytes,
                            int64_t max_length, struct sw_ids *ids, bool *out_truncated,
                            struct sw_err *err)
{
    sw_assert(bytes >= 0 && max_length >= 0);
    const int64_t first = ids->count;
    const int64_t room = (max_length > 0 ? max_length : INT64_MAX) - 1; /* beside EOS */
    const int eos = tokenizer->eos;
    sw_code code = encode_parts(tokenizer, text, bytes, room, ids, err);
    bool truncated = ids->count - first > room;
    if (truncated)
        ids->count = first + room;
    if (code == SW_OK && !append_ids(ids, &eos, 1))
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for the tokens of a text");
    if (code == SW_OK)
        code = check_ids(tokenizer, ids->ids + first, ids->count - first, err);
    if (code != SW_OK) {
        ids->count = first;
        return code;
    }
    if (out_truncated != NULL)
        *out_truncated = truncated;
    return SW_OK;
}

/* --- ids to text --------------------------------------------------------------------- */

/* Bytes as they come, from pieces and from byte pieces, which may spell a character together. */
struct output {
    struct sw_text *text;
    char held[4]; /* byte pieces that do not make a character yet */
    int64_t held_bytes;
};

/* Write held bytes: whole characters as they are, others as U+FFFD. When `more` may come, a
 * beginning that could still become a character stays. */
static void flush_held(struct output *output, bool more)
{
    while (output->held_bytes > 0) {
        int64_t length = sw_utf8_character(output->held, output->held_bytes);
        if (length == 0 && more && output->held_bytes < (int64_t)sizeof output->held)
            return;
        if (length > 0)
            sw_text_add_bytes(output->text, output->held, length);
        else
            sw_text_add_bytes(output->text, "\xEF\xBF\xBD", 3);
        length = length > 0 ? length : 1;
        output->held_bytes -= length;
        memmove(output->held, output->held + length, (size_t)output->held_bytes);
    }
}

static void write_piece(struct output *output, const char *piece, int64_t bytes, bool is_first)
{
    const int64_t mark = sizeof meta_space - 1;
    for (int64_t at = 0; at < bytes;) {
        bool space = bytes - at >= mark && memcmp(piece + at, meta_space, (size_t)mark) == 0;
        if (!space)
            sw_text_add_bytes(output->text, piece + at++, 1);
        else {
            if (at > 0 || !is_first) /* the text's own beginning is no space */
                sw_text_add_bytes(output->text, " ", 1);
            at += mark;
        }
    }
}

/* "<0xAB>" */
static char byte_of_piece(const char *piece, int64_t bytes)
{
    char digits[3] = "";
    if (bytes == 6)
        memcpy(digits, piece + 3, 2);
    return (char)strtol(digits, NULL, 16);
}

sw_code sw_tokenizer_decode(const struct sw_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                            struct sw_text *text, struct sw_err *err)
{
    struct output output = {.text = text};
    bool is_first = true;
    for (int64_t i = 0; i < count; i++) {
        int64_t bytes;
        if (ids[i] < 0 || ids[i] >= tokenizer->pieces)
            continue;
        enum sw_spm_kind kind = sw_spm_kind(tokenizer->spm, ids[i]);
        if (kind == SW_SPM_UNKNOWN || kind == SW_SPM_CONTROL || ids[i] == tokenizer->eos ||
            ids[i] == tokenizer->pad)
            continue;
        const char *piece = sw_spm_piece(tokenizer->spm, ids[i], &bytes);
        if (kind == SW_SPM_BYTE) {
            output.held[output.held_bytes++] = byte_of_piece(piece, bytes);
            flush_held(&output, true);
        } else {
            flush_held(&output, false);
            write_piece(&output, piece, bytes, is_first);
        }
        is_first = false;
    }
    flush_held(&output, false);
    return sw_text_check(text, "the text of generated tokens", err);
}

/* --- training ------------------------------------------------------------------------ */

sw_code sw_tokenizer_train(const struct sw_tokenizer_training *training, const char *path,
                           struct sw_err *err)
{
    const struct sw_spm_training spm = {
        .next = training->next,
        .context = training->context,
        .pieces = training->pieces,
        .split_digits = training->split_digits,
        .character_coverage =
            training->character_coverage > 0 ? training->character_coverage : 0.9995,
    };
    void *model = NULL;
    int64_t bytes;
    if (training->pieces < 4 || training->pieces > INT32_MAX / 2)
        return SW_FAIL(err, SW_E_USAGE, "a tokenizer of %lld pieces cannot be: give 4 or more",
                       (long long)training->pieces);
    sw_code code = sw_spm_train(&spm, &model, &bytes, err);
    if (code == SW_OK)
        code = sw_file_write_atomic(path, model, bytes, err);
    free(model);
    return code;
}
