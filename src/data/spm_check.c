#include "data/spm_check.h"

#include "base/mem.h"
#include "data/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- protobuf: fields one behind the other ------------------------------------------- */

struct cursor {
    const unsigned char *at, *end;
};

struct field {
    uint64_t number, wire_type;
    uint64_t value;      /* varint */
    struct cursor bytes; /* of the fixed and length-delimited types */
};

enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 };

static bool take_varint(struct cursor *cursor, uint64_t *out)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 70 && cursor->at < cursor->end; shift += 7) {
        unsigned char byte = *cursor->at++;
        if (shift < 64)
            value |= (uint64_t)(byte & 0x7F) << shift;
        if ((byte & 0x80) == 0) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool take_bytes(struct cursor *cursor, uint64_t count, struct cursor *out)
{
    if (count > (uint64_t)(cursor->end - cursor->at))
        return false;
    out->at = cursor->at;
    out->end = cursor->at += count;
    return true;
}

/* The next field of a message; false when it is malformed. Groups went out of use before there were
 * SentencePiece models. */
static bool take_field(struct cursor *cursor, struct field *out)
{
    uint64_t tag, count;
    if (!take_varint(cursor, &tag) || tag >> 3 == 0)
        return false;
    out->number = tag >> 3;
    out->wire_type = tag & 7;
    switch (out->wire_type) {
    case VARINT:
        return take_varint(cursor, &out->value);
    case FIXED64:
        return take_bytes(cursor, 8, &out->bytes);
    case DELIMITED:
        return take_varint(cursor, &count) && take_bytes(cursor, count, &out->bytes);
    case FIXED32:
        return take_bytes(cursor, 4, &out->bytes);
    default:
        return false;
    }
}

/* --- the normalizer's table: a double array (darts-clone), whose leaves point at strings --- */

/* commonPrefixSearch() of the library goes from unit to unit by XOR without looking at the array's
 * end, and puts what it finds into an array of 32 on its stack. */
enum { RESULTS_MAX = 32 };

struct trie {
    const unsigned char *units; /* little-endian, 4 bytes each; not aligned */
    int64_t count;
    const char *strings; /* what leaves point at, each ended by a NUL */
    int64_t strings_bytes;
};

static uint32_t unit_at(const struct trie *trie, int64_t index)
{
    const unsigned char *byte = trie->units + index * 4;
    return (uint32_t)byte[0] | (uint32_t)byte[1] << 8 | (uint32_t)byte[2] << 16 |
           (uint32_t)byte[3] << 24;
}

/* Where the children of the unit at `index` are: child c at base ^ c. */
static int64_t unit_base(const struct trie *trie, int64_t index)
{
    uint32_t unit = unit_at(trie, index);
    return index ^ (int64_t)((unit >> 10) << ((unit & 0x200u) >> 6));
}

static bool unit_has_leaf(const struct trie *trie, int64_t index)
{
    return (unit_at(trie, index) >> 8 & 1) != 0;
}

/* May a walk step on this unit's children, and is its value a place in the strings? */
static bool unit_is_sound(const struct trie *trie, int64_t index)
{
    int64_t base = unit_base(trie, index);
    if ((base | 0xFF) >= trie->count)
        return false;
    if (!unit_has_leaf(trie, index))
        return true;
    return (int64_t)(unit_at(trie, base) & 0x7FFFFFFFu) < trie->strings_bytes;
}

struct visit {
    int64_t index;
    int32_t child;  /* next byte to look at, 0 .. 256 */
    int32_t leaves; /* most leaves on a way down from here, this unit's included */
};

enum { NEW = 0, OPEN = 1 /* on the way down */, DONE = 2 /* + leaves below */ };

/* Depth first over all units that a walk can reach (they may share children: each is looked at
 * once). `mark` and `stack` have an element a unit. */
static bool walk_trie(const struct trie *trie, int32_t *mark, struct visit *stack)
{
    int64_t depth = 1;
    stack[0] = (struct visit){.index = 0};
    mark[0] = OPEN;
    if (!unit_is_sound(trie, 0))
        return false;
    while (depth > 0) {
        struct visit *top = &stack[depth - 1];
        if (top->child == 256) {
            int32_t leaves = top->leaves + (unit_has_leaf(trie, top->index) ? 1 : 0);
            if (leaves > RESULTS_MAX)
                return false;
            mark[top->index] = DONE + leaves;
            if (--depth > 0 && leaves > stack[depth - 1].leaves)
                stack[depth - 1].leaves = leaves;
            continue;
        }
        int64_t next = unit_base(trie, top->index) ^ top->child;
        if ((unit_at(trie, next) & 0x800000FFu) == (uint32_t)top->child) {
            if (mark[next] == OPEN || !unit_is_sound(trie, next))
                return false; /* a circle would never end */
            if (mark[next] == NEW) {
                top->child++;
                mark[next] = OPEN;
                stack[depth++] = (struct visit){.index = next};
                continue;
            }
            if (mark[next] - DONE > top->leaves)
                top->leaves = mark[next] - DONE;
        }
        top->child++;
    }
    return true;
}

static sw_code check_charsmap(struct cursor blob, const char *what, struct sw_err *err)
{
    static const char *const broken = "%s is no usable SentencePiece model: its normalizer's table "
                                      "is damaged";
    struct trie trie;
    int64_t bytes = blob.end - blob.at;
    if (bytes == 0)
        return SW_OK;
    trie.units = blob.at;
    trie.count = 1;
    if (bytes < 8)
        return SW_FAIL(err, SW_E_FORMAT, broken, what);
    int64_t trie_bytes = unit_at(&trie, 0);
    trie.units = blob.at + 4;
    trie.count = trie_bytes / 4;
    if (trie_bytes % 4 != 0 || trie.count < 256 || trie_bytes >= bytes - 4)
        return SW_FAIL(err, SW_E_FORMAT, broken, what);
    trie.strings = (const char *)blob.at + 4 + trie_bytes;
    trie.strings_bytes = bytes - 4 - trie_bytes;
    if (trie.strings[trie.strings_bytes - 1] != '\0' ||
        sw_utf8_check(trie.strings, trie.strings_bytes) >= 0)
        return SW_FAIL(err, SW_E_FORMAT, broken, what);

    int32_t *mark = sw_calloc(trie.count, sizeof *mark);
    struct visit *stack = sw_calloc(trie.count, sizeof *stack);
    sw_code code = SW_OK;
    if (mark == NULL || stack == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to check %s", what);
    else if (!walk_trie(&trie, mark, stack))
        code = SW_FAIL(err, SW_E_FORMAT, broken, what);
    free(mark);
    free(stack);
    return code;
}

/* --- the messages -------------------------------------------------------------------- */

static sw_code malformed(const char *what, struct sw_err *err)
{
    return SW_FAIL(err, SW_E_FORMAT,
                   "%s is no SentencePiece model: it is not the protobuf it should be (half a "
                   "download, or another file?)",
                   what);
}

static sw_code check_piece(struct cursor message, int64_t id, const char *what, struct sw_err *err)
{
    /* The library matches these with room for 64 nested ones on its stack. */
    enum { USER_DEFINED = 4, USER_DEFINED_BYTES_MAX = 64, PIECE_BYTES_MAX = 7999 };
    struct cursor name = {0};
    struct field field;
    uint64_t type = 1;
    float score = 0;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return malformed(what, err);
        if (field.number == 1 && field.wire_type == DELIMITED)
            name = field.bytes;
        else if (field.number == 2 && field.wire_type == FIXED32)
            memcpy(&score, field.bytes.at, sizeof score);
        else if (field.number == 3 && field.wire_type == VARINT)
            type = field.value;
    }
    int64_t bytes = name.end - name.at;
    const char *text = (const char *)name.at;
    if (bytes == 0 || bytes > PIECE_BYTES_MAX || memchr(text, '\0', (size_t)bytes) != NULL ||
        sw_utf8_check(text, bytes) >= 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is no usable SentencePiece model: piece %lld is empty, too long or not "
                       "UTF-8",
                       what, (long long)id);
    if (type == USER_DEFINED && bytes > USER_DEFINED_BYTES_MAX)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is no usable SentencePiece model: its user-defined piece %lld is longer "
                       "than %d bytes",
                       what, (long long)id, USER_DEFINED_BYTES_MAX);
    if (!(fabsf(score) <= 1e9f))
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is no usable SentencePiece model: piece %lld has no sensible score",
                       what, (long long)id);
    return SW_OK;
}

static sw_code check_trainer(struct cursor message, const char *what, struct sw_err *err)
{
    static const char *const types[] = {"?", "unigram", "BPE", "word", "character"};
    struct field field;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return malformed(what, err);
        if (field.number == 3 && field.wire_type == VARINT && field.value != 1)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s is a SentencePiece model of type %s; T5 has unigram models, no "
                           "others are read",
                           what, types[field.value <= 4 ? field.value : 0]);
    }
    return SW_OK;
}

static sw_code check_normalizer(struct cursor message, const char *what, struct sw_err *err)
{
    struct field field;
    while (message.at < message.end) {
        if (!take_field(&message, &field))
            return malformed(what, err);
        if (field.number == 2 && field.wire_type == DELIMITED) {
            sw_code code = check_charsmap(field.bytes, what, err);
            if (code != SW_OK)
                return code;
        }
    }
    return SW_OK;
}

sw_code sw_spm_check(const void *bytes, int64_t count, const char *what, struct sw_err *err)
{
    enum { PIECES = 1, TRAINER = 2, NORMALIZER = 3, SELF_TEST = 4, DENORMALIZER = 5 };
    static const char lfs[] = "version https://git-lfs";
    const unsigned char *start = bytes;
    struct cursor model = {start, start + count};
    struct field field;
    int64_t pieces = 0;
    bool trainer = false, normalizer = false;
    sw_code code = SW_OK;
    if (count >= (int64_t)sizeof lfs - 1 && memcmp(bytes, lfs, sizeof lfs - 1) == 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is a Git LFS pointer, not the file itself: git lfs pull fetches it",
                       what);
    while (code == SW_OK && model.at < model.end) {
        if (!take_field(&model, &field))
            return malformed(what, err);
        if (field.number > DENORMALIZER)
            continue;
        if (field.wire_type != DELIMITED)
            return malformed(what, err);
        if (field.number == PIECES)
            code = check_piece(field.bytes, pieces++, what, err);
        else if (field.number == TRAINER)
            code = check_trainer(field.bytes, what, err);
        trainer = trainer || field.number == TRAINER;
        normalizer = normalizer || field.number == NORMALIZER;
        if (field.number == NORMALIZER || field.number == DENORMALIZER)
            code = check_normalizer(field.bytes, what, err);
    }
    if (code == SW_OK && pieces == 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s is no SentencePiece model: it has no pieces", what);
    /* every trainer writes both, behind the pieces */
    if (code == SW_OK && !(trainer && normalizer))
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut off: behind its %lld pieces there is no %s (half a download?)",
                       what, (long long)pieces, trainer ? "normalizer" : "trainer's record");
    return code;
}
