/* A restricted reader of Python pickles: enough for the weights that torch.save() writes, and
 * nothing that acts. It knows None, bool, int, str, tuple, list, dict, OrderedDict, PyTorch's typed
 * storages, and the functions that make a tensor or parameter of one; it interprets those itself.
 * Any other class, function or opcode is refused by name. Nothing is imported, called or executed.
 *
 * Memory is bounded by constants below and is linear in the size of the pickle; values may refer to
 * each other in circles, so walk them with a bound. */
#ifndef SPILLWAY_IO_PICKLE_H
#define SPILLWAY_IO_PICKLE_H

#include "base/err.h"
#include "io/tensor_file.h"

#include <stdint.h>

enum {
    SW_PICKLE_MAX_BYTES = 64 << 20,
    SW_PICKLE_MAX_VALUES = 2 << 20, /* values made and items put into containers together; stack
 entries; memo entries */
    SW_PICKLE_BIG_BYTES = 16,
};

enum sw_pickle_kind {
    SW_PICKLE_NONE,
    SW_PICKLE_BOOL,
    SW_PICKLE_INTEGER,
    SW_PICKLE_BIG, /* an integer of 9 to 16 bytes */
    SW_PICKLE_STRING,
    SW_PICKLE_TUPLE,
    SW_PICKLE_LIST,
    SW_PICKLE_DICT, /* items: key, value, key, value, ...; a repeated key is repeated */
    SW_PICKLE_GLOBAL,
    SW_PICKLE_STORAGE,
    SW_PICKLE_TENSOR,
    SW_PICKLE_MARK, /* never in a result */
};

/* Where elements lie; which bytes of the file these are, the form of the file says. */
struct sw_pickle_storage {
    const char *key;
    const char *dtype_name; /* safetensors' name */
    int32_t element_bytes;
    int64_t elements;      /* of the whole storage */
    int64_t view_offset;   /* tensors index from here ... */
    int64_t view_elements; /* ... over that many elements */
    int64_t file_offset;   /* of the whole storage; -1 until a reader has found it */
};

struct sw_pickle_tensor {
    struct sw_pickle_storage *storage;
    int64_t offset; /* in elements, in the storage's view */
    int32_t dims;
    int64_t shape[SW_TENSOR_DIMS], stride[SW_TENSOR_DIMS];
};

struct sw_pickle_value {
    enum sw_pickle_kind kind;
    union {
        int64_t integer;                        /* BOOL: 0 or 1 */
        unsigned char big[SW_PICKLE_BIG_BYTES]; /* BIG: little-endian, sign-extended */
        const char *string;                     /* STRING, NUL-terminated, no NUL inside */
        struct {
            struct sw_pickle_value **items;
            int32_t count, capacity;
        } list;         /* TUPLE, LIST, DICT */
        int32_t global; /* index in the reader's own table */
        struct sw_pickle_storage *storage;
        struct sw_pickle_tensor *tensor;
    };
};

struct sw_pickle; /* owns all values */

/* Read one pickle from the start of `bytes`. `what` names it in messages. *used_bytes: where it
 * ended (may be NULL). *out is owned: sw_pickle_free(). SW_E_FORMAT for anything unknown. */
sw_code sw_pickle_parse(const char *bytes, int64_t size, const char *what, struct sw_pickle **out,
                        int64_t *used_bytes, struct sw_err *err) SW_WARN_UNUSED;
void sw_pickle_free(struct sw_pickle *pickle); /* NULL is fine */

/* Borrowed from `pickle`. */
const struct sw_pickle_value *sw_pickle_root(const struct sw_pickle *pickle);
/* All storages that the pickle mentions, one entry per mention; borrowed, file_offset is the
 * caller's to fill. */
struct sw_pickle_storage **sw_pickle_storages(const struct sw_pickle *pickle, int64_t *count);

/* "a list", "a string": for messages. */
const char *sw_pickle_kind_name(enum sw_pickle_kind kind);

#endif
