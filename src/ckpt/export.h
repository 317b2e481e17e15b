/* Writing a HuggingFace model directory: safetensors (sharded above a size), config.json as it was
 * read with its dtype key alone updated, and the tokenizer's files.
 *
 * Everything is written into a directory beside the target, synced, and renamed into place at the
 * end; a target that is there already is replaced only then. On failure nothing is left behind and
 * the target is untouched. What a killed process left beside the target is removed by the next one.
 *
 *     sw_export_begin(&export, &options, tensors, count, err)
 *     for each tensor, in order: sw_export_write(export, elements, count, err), in any pieces
 *     optionally: more files into sw_export_directory(export)
 *     sw_export_commit(export, err)        or        sw_export_abort(export)
 */
#ifndef SPILLWAY_CKPT_EXPORT_H
#define SPILLWAY_CKPT_EXPORT_H

#include "base/dtype.h"
#include "base/err.h"
#include "io/tensor_file.h"

#include <stdint.h>

#define SW_EXPORT_SHARD_BYTES INT64_C(5000000000) /* as HuggingFace's save_pretrained */

struct sw_export;

struct sw_export_options {
    const char *directory; /* the target */
    const char *source;    /* its config.json and tokenizer files go along; NULL: none */
    /* Written as config.json in place of the source's, its dtype updated likewise; NULL: the
     * source's. */
    const char *config_text;
    enum sw_dtype dtype;     /* of the tensors written: all three */
    int64_t max_shard_bytes; /* 0: SW_EXPORT_SHARD_BYTES. A larger tensor has a shard of its own */
};

struct sw_export_tensor {
    const char *name;
    int32_t dims;
    int64_t shape[SW_TENSOR_DIMS];
};

/* count = 0: a directory without weights. Create the directory beside the target, its config.json
 * and tokenizer files. All that is passed is copied. SW_E_IO names the free bytes when the tensors
 * do not fit the file system. */
sw_code sw_export_begin(struct sw_export **out, const struct sw_export_options *options,
                        const struct sw_export_tensor *tensors, int64_t count,
                        struct sw_err *err) SW_WARN_UNUSED;
/* The next `count` elements of the sequence of all tensors, one behind the other; a call may cross
 * from a tensor into the next. Rounded to nearest even when the dtype is narrower. */
sw_code sw_export_write(struct sw_export *export, const float *elements, int64_t count,
                        struct sw_err *err) SW_WARN_UNUSED;
/* Where the files are being written; borrowed. */
const char *sw_export_directory(const struct sw_export *export);
/* Check that every element came, sync, rename. Frees `export` in any case. */
sw_code sw_export_commit(struct sw_export *export, struct sw_err *err) SW_WARN_UNUSED;
/* Remove what was written, free. NULL is fine. */
void sw_export_abort(struct sw_export *export);

#endif
