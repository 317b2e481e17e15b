/* Writing safetensors, streaming: tensors are declared first, so the header is known; then their
 * bytes follow in any pieces. Padded so that the data section starts at a multiple of 8 bytes. */
#ifndef SPILLWAY_IO_SAFETENSORS_WRITE_H
#define SPILLWAY_IO_SAFETENSORS_WRITE_H

#include "base/err.h"
#include "io/tensor_file.h"

#include <stdint.h>

struct sw_safetensors_writer;

/* A tensor to be written; strings are borrowed until sw_safetensors_create() returns. */
struct sw_safetensors_entry {
    const char *name;
    const char *dtype_name; /* "F32", "BF16", "U8", "I64", ... */
    int32_t dims;
    int64_t shape[SW_TENSOR_DIMS];
};

/* Create `path`, which must not exist, and write the header. `metadata`: pairs of strings, key then
 * value, ended by NULL; may be NULL. SW_E_IO on a full disk names the bytes needed and free. */
sw_code sw_safetensors_create(const char *path, const struct sw_safetensors_entry *entries,
                              int64_t count, const char *const *metadata,
                              struct sw_safetensors_writer **out,
                              struct sw_err *err) SW_WARN_UNUSED;
/* The next `bytes` of data, in the order of the entries. Not beside sw_safetensors_put(). */
sw_code sw_safetensors_append(struct sw_safetensors_writer *writer, const void *data, int64_t bytes,
                              struct sw_err *err) SW_WARN_UNUSED;
/* `bytes` of entry `index`, from byte `offset` of it on. Any order, any thread. */
sw_code sw_safetensors_put(struct sw_safetensors_writer *writer, int64_t index, int64_t offset,
                           const void *data, int64_t bytes, struct sw_err *err) SW_WARN_UNUSED;
/* Check that as many bytes came as were declared (SW_E_FAILED), sync and close. The writer is freed
 * in any case; the file is removed on failure. */
sw_code sw_safetensors_finish(struct sw_safetensors_writer *writer,
                              struct sw_err *err) SW_WARN_UNUSED;
/* Close, remove the file, free. NULL is fine. */
void sw_safetensors_discard(struct sw_safetensors_writer *writer);

/* Bytes of data that the entries take; false on overflow or an unknown dtype. */
bool sw_safetensors_data_bytes(const struct sw_safetensors_entry *entries, int64_t count,
                               int64_t *out);

#endif
