#include "io/safetensors_write.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/text.h"
#include "io/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ALIGNMENT_BYTES = 8 };

struct sw_safetensors_writer {
    char *path;
    int descriptor;
    bool created;
    int64_t data_offset; /* of the data section in the file */
    int64_t data_bytes;
    int64_t *offsets; /* count + 1: of each entry in the data section; the last is data_bytes */
    int64_t count;
    _Atomic int64_t written_bytes;
};

static bool entry_bytes(const struct sw_safetensors_entry *entry, int64_t *out)
{
    struct sw_tensor tensor = {.dims = entry->dims};
    sw_assert(entry->dims >= 0 && entry->dims <= SW_TENSOR_DIMS);
    memcpy(tensor.shape, entry->shape, sizeof tensor.shape);
    if (!sw_tensor_set_dtype(&tensor, entry->dtype_name) || !sw_tensor_measure(&tensor, false))
        return false;
    *out = tensor.bytes;
    return true;
}

bool sw_safetensors_data_bytes(const struct sw_safetensors_entry *entries, int64_t count,
                               int64_t *out)
{
    int64_t total = 0, bytes;
    for (int64_t i = 0; i < count; i++)
        if (!entry_bytes(&entries[i], &bytes) || !sw_size_add(total, bytes, &total))
            return false;
    *out = total;
    return true;
}

/* The header's text, padded; fills writer->offsets. */
static sw_code build_header(struct sw_safetensors_writer *writer,
                            const struct sw_safetensors_entry *entries, const char *const *metadata,
                            struct sw_text *text, struct sw_err *err)
{
    const char *comma = "";
    sw_text_add(text, "{");
    if (metadata != NULL) {
        sw_text_add(text, "\"__metadata__\":{");
        for (int64_t i = 0; metadata[i] != NULL; i += 2) {
            sw_text_add(text, "%s", i == 0 ? "" : ",");
            sw_text_add_json_string(text, metadata[i]);
            sw_text_add(text, ":");
            sw_text_add_json_string(text, metadata[i + 1]);
        }
        sw_text_add(text, "}");
        comma = ",";
    }
    for (int64_t i = 0; i < writer->count; i++) {
        int64_t bytes = 0;
        bool known = entry_bytes(&entries[i], &bytes); /* checked by the caller */
        sw_assert(known);
        writer->offsets[i + 1] = writer->offsets[i] + bytes;
        sw_text_add(text, "%s", comma);
        sw_text_add_json_string(text, entries[i].name);
        sw_text_add(text, ":{\"dtype\":\"%s\",\"shape\":[", entries[i].dtype_name);
        for (int32_t d = 0; d < entries[i].dims; d++)
            sw_text_add(text, "%s%lld", d == 0 ? "" : ",", (long long)entries[i].shape[d]);
        sw_text_add(text, "],\"data_offsets\":[%lld,%lld]}", (long long)writer->offsets[i],
                    (long long)writer->offsets[i + 1]);
        comma = ",";
    }
    sw_text_add(text, "}");
    while (text->used_bytes % ALIGNMENT_BYTES != 0 && !text->failed)
        sw_text_add(text, " ");
    if (text->used_bytes > SW_SAFETENSORS_HEADER_MAX_BYTES)
        return SW_FAIL(err, SW_E_FAILED, "%s would need a header of %lld bytes, %d are allowed",
                       writer->path, (long long)text->used_bytes, SW_SAFETENSORS_HEADER_MAX_BYTES);
    return sw_text_check(text, writer->path, err);
}

/* Better to say so before hours of writing than after. */
static sw_code check_space(const char *path, int64_t bytes, struct sw_err *err)
{
    char *parent = sw_path_parent(path);
    if (parent == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", path);
    int64_t free_bytes = sw_directory_free_bytes(parent);
    free(parent);
    if (free_bytes >= 0 && free_bytes < bytes)
        return SW_FAIL_OS(err, SW_E_IO, ENOSPC,
                          "%s needs %lld bytes, its file system has %lld free", path,
                          (long long)bytes, (long long)free_bytes);
    return SW_OK;
}

/* Adds how much is free to a failed write. */
static sw_code write_at(struct sw_safetensors_writer *writer, const void *data, int64_t bytes,
                        int64_t offset, struct sw_err *err)
{
    sw_code code = sw_file_pwrite(writer->descriptor, data, bytes, offset, writer->path, err);
    if (code == SW_OK)
        return SW_OK;
    char *parent = sw_path_parent(writer->path);
    if (parent != NULL)
        sw_err_while(err, "writing %lld bytes of tensors to a file system with %lld bytes free",
                     (long long)writer->data_bytes, (long long)sw_directory_free_bytes(parent));
    free(parent);
    return code;
}

static sw_code create_file(struct sw_safetensors_writer *writer, const struct sw_text *header,
                           struct sw_err *err)
{
    const uint64_t length = (uint64_t)header->used_bytes;
    int64_t total;
    writer->data_offset = (int64_t)sizeof length + header->used_bytes;
    if (!sw_size_add(writer->data_offset, writer->data_bytes, &total))
        return SW_FAIL(err, SW_E_FAILED, "the size of %s overflows", writer->path);
    sw_code code = check_space(writer->path, total, err);
    if (code != SW_OK)
        return code;
    writer->descriptor = open(writer->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (writer->descriptor < 0)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot create %s", writer->path);
    writer->created = true;
    code = write_at(writer, &length, sizeof length, 0, err);
    if (code == SW_OK)
        code = write_at(writer, header->bytes, header->used_bytes, sizeof length, err);
    return code;
}

sw_code sw_safetensors_create(const char *path, const struct sw_safetensors_entry *entries,
                              int64_t count, const char *const *metadata,
                              struct sw_safetensors_writer **out, struct sw_err *err)
{
    struct sw_text header = {0};
    sw_code code;
    struct sw_safetensors_writer *writer = sw_calloc(1, sizeof *writer);
    if (writer == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", path);
    writer->descriptor = -1;
    writer->count = count;
    writer->path = sw_strdup(path);
    writer->offsets = sw_calloc(count + 1, sizeof writer->offsets[0]);
    if (writer->path == NULL || writer->offsets == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", path);
        goto out;
    }
    if (!sw_safetensors_data_bytes(entries, count, &writer->data_bytes)) {
        code = SW_FAIL(err, SW_E_FAILED, "%s: a tensor's size overflows or its dtype is unknown",
                       path);
        goto out;
    }
    code = build_header(writer, entries, metadata, &header, err);
    if (code == SW_OK)
        code = create_file(writer, &header, err);
out:
    free(header.bytes);
    if (code == SW_OK)
        *out = writer;
    else
        sw_safetensors_discard(writer);
    return code;
}

sw_code sw_safetensors_append(struct sw_safetensors_writer *writer, const void *data, int64_t bytes,
                              struct sw_err *err)
{
    int64_t at = atomic_load(&writer->written_bytes);
    sw_assert(bytes >= 0 && bytes <= writer->data_bytes - at);
    sw_code code = write_at(writer, data, bytes, writer->data_offset + at, err);
    if (code == SW_OK)
        atomic_fetch_add(&writer->written_bytes, bytes);
    return code;
}

sw_code sw_safetensors_put(struct sw_safetensors_writer *writer, int64_t index, int64_t offset,
                           const void *data, int64_t bytes, struct sw_err *err)
{
    sw_assert(index >= 0 && index < writer->count && offset >= 0 && bytes >= 0);
    sw_assert(bytes <= writer->offsets[index + 1] - writer->offsets[index] - offset);
    sw_code code =
        write_at(writer, data, bytes, writer->data_offset + writer->offsets[index] + offset, err);
    if (code == SW_OK)
        atomic_fetch_add(&writer->written_bytes, bytes);
    return code;
}

sw_code sw_safetensors_finish(struct sw_safetensors_writer *writer, struct sw_err *err)
{
    sw_code code = SW_OK;
    int64_t written = atomic_load(&writer->written_bytes);
    if (written != writer->data_bytes)
        code = SW_FAIL(err, SW_E_FAILED, "%s is not whole: %lld of %lld bytes were written",
                       writer->path, (long long)written, (long long)writer->data_bytes);
    else if (fsync(writer->descriptor) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot finish writing %s", writer->path);
    int closed = close(writer->descriptor);
    writer->descriptor = -1;
    if (code == SW_OK && closed != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot finish writing %s", writer->path);
    writer->created = code != SW_OK;
    sw_safetensors_discard(writer);
    return code;
}

void sw_safetensors_discard(struct sw_safetensors_writer *writer)
{
    if (writer == NULL)
        return;
    if (writer->descriptor >= 0)
        close(writer->descriptor);
    if (writer->path != NULL && writer->created)
        unlink(writer->path);
    free(writer->path);
    free(writer->offsets);
    free(writer);
}
