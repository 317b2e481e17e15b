/* Tensors in files, whatever the format: a view of where their elements lie, and reads of ranges of
 * them. Everything is read by pread(): a file that shrinks meanwhile is an error, not a signal.
 *
 * Element indices are logical and row-major (the last dimension runs fastest), also where the file
 * stores the tensor with other strides. Reads are thread-safe. */
#ifndef SPILLWAY_IO_TENSOR_FILE_H
#define SPILLWAY_IO_TENSOR_FILE_H

#include "base/dtype.h"
#include "base/err.h"

#include <stdbool.h>
#include <stdint.h>

enum { SW_TENSOR_DIMS = 8, SW_TENSOR_SHAPE_TEXT_BYTES = 8 * 21 + 3 };

/* All strings are borrowed from the file (or model directory) that the tensor belongs to. */
struct sw_tensor {
    const char *name;
    const char *path;       /* of the file, for messages */
    const char *dtype_name; /* as safetensors calls it: "F32", "I64", ... */
    bool readable;          /* F32, F16 or BF16; others are listed, and refused when read */
    enum sw_dtype dtype;    /* when `readable` */
    int32_t element_bytes;
    int32_t dims; /* 0: a scalar of one element */
    int64_t shape[SW_TENSOR_DIMS];
    int64_t stride[SW_TENSOR_DIMS]; /* in elements, >= 0 */
    bool contiguous;                /* elements lie one behind the other in logical order */
    int64_t elements;               /* product of the shape; 0 when one dimension is */
    int64_t bytes;                  /* elements * element_bytes */
    int descriptor;                 /* open for reading, as long as the file is */
    int64_t offset;                 /* of element 0, in bytes from the start of the file */
};

/* One open file. Close with sw_tensor_file_close(). */
struct sw_tensor_file {
    char *path;
    int descriptor;
    int64_t bytes;
    const char *format;        /* "safetensors", "PyTorch (zip)", "PyTorch (legacy)" */
    struct sw_tensor *tensors; /* owned; in the order of the file; names are unique */
    int64_t tensor_count;
    char *strings; /* owned: where the names lie */
};

void sw_tensor_file_close(struct sw_tensor_file *file); /* NULL is fine */

/* For readers: an open file without tensors yet. Refuses a Git LFS pointer in place of a file and
 * an empty file, in words a person can act on. */
sw_code sw_tensor_file_open(const char *path, const char *format, struct sw_tensor_file **out,
                            struct sw_err *err) SW_WARN_UNUSED;

/* `count` elements from `first` on as fp32. F16 and BF16 are converted exactly. SW_E_FORMAT for a
 * dtype that is not readable, or when the file ends early. */
sw_code sw_tensor_read_float(const struct sw_tensor *tensor, int64_t first, int64_t count,
                             float *out, struct sw_err *err) SW_WARN_UNUSED;
/* The same in the file's own dtype: count * element_bytes bytes. Any dtype. */
sw_code sw_tensor_read_raw(const struct sw_tensor *tensor, int64_t first, int64_t count, void *out,
                           struct sw_err *err) SW_WARN_UNUSED;

/* Same dtype, shape and bits? Streams through a small buffer and stops at the first difference. */
sw_code sw_tensor_equal(const struct sw_tensor *a, const struct sw_tensor *b, bool *out,
                        struct sw_err *err) SW_WARN_UNUSED;

/* SW_E_FORMAT, naming tensor, file and dtype, unless the tensor is readable. */
sw_code sw_tensor_check_readable(const struct sw_tensor *tensor, struct sw_err *err) SW_WARN_UNUSED;
/* The dtype that safetensors calls `name`: sets dtype_name, element_bytes, readable and dtype.
 * False, nothing written: there is no such dtype, or its elements are less than a byte. */
bool sw_tensor_set_dtype(struct sw_tensor *tensor, const char *name);
/* "[512, 64]" into `out` of SW_TENSOR_SHAPE_TEXT_BYTES; returns `out`. */
char *sw_tensor_shape_text(const struct sw_tensor *tensor, char *out);

/* For readers: fill elements, bytes and contiguous from shape, stride and element_bytes (`strides`
 * false: row-major strides are filled in too). False when a size overflows. */
bool sw_tensor_measure(struct sw_tensor *tensor, bool strides);
/* Elements of storage that the tensor spans from its element 0 on; 0 when it is empty. False when
 * that overflows. */
bool sw_tensor_span(const struct sw_tensor *tensor, int64_t *out_elements);

#endif
