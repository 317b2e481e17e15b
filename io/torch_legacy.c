/* pytorch_model.bin before PyTorch 1.6: five pickles one behind the other (a magic number, the
 * format's version, facts on the machine, the weights, the keys of the storages in order), then
 * each storage: 8 bytes with its number of elements, and the elements. */
#include "io/torch_forms.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { COUNT_BYTES = 8, FORMAT_VERSION = 1001 };

/* 0x1950a86a20f9469cfc6c, little-endian. */
static const unsigned char magic[SW_PICKLE_BIG_BYTES] = {0x6C, 0xFC, 0x9C, 0x46, 0xF9,
                                                         0x20, 0x6A, 0xA8, 0x50, 0x19};

/* The pickles at the start of a file. */
struct stream {
    const struct sw_tensor_file *file;
    char *bytes;
    int64_t size, position;
};

static sw_code next_pickle(struct stream *stream, struct sw_pickle **out, struct sw_err *err)
{
    int64_t used = 0;
    sw_code code =
        sw_pickle_parse(stream->bytes + stream->position, stream->size - stream->position,
                        stream->file->path, out, &used, err);
    stream->position += used;
    return code;
}

static sw_code check_magic(struct stream *stream, struct sw_err *err)
{
    struct sw_pickle *pickle;
    sw_code code = next_pickle(stream, &pickle, err);
    if (code != SW_OK)
        return code;
    const struct sw_pickle_value *root = sw_pickle_root(pickle);
    if (root->kind != SW_PICKLE_BIG || memcmp(root->big, magic, sizeof magic) != 0)
        code = SW_FAIL(err, SW_E_FORMAT,
                       "%s is a pickle, but not one that torch.save() wrote: no magic number",
                       stream->file->path);
    sw_pickle_free(pickle);
    return code;
}

static sw_code check_version(struct stream *stream, struct sw_err *err)
{
    struct sw_pickle *pickle;
    sw_code code = next_pickle(stream, &pickle, err);
    if (code != SW_OK)
        return code;
    const struct sw_pickle_value *root = sw_pickle_root(pickle);
    if (root->kind != SW_PICKLE_INTEGER || root->integer != FORMAT_VERSION)
        code = SW_FAIL(err, SW_E_FORMAT, "%s has an unknown version of PyTorch's old file format",
                       stream->file->path);
    sw_pickle_free(pickle);
    return code;
}

/* {"protocol_version": ..., "little_endian": True, "type_sizes": {...}} */
static sw_code check_machine(struct stream *stream, struct sw_err *err)
{
    struct sw_pickle *pickle;
    sw_code code = next_pickle(stream, &pickle, err);
    if (code != SW_OK)
        return code;
    const struct sw_pickle_value *root = sw_pickle_root(pickle);
    for (int32_t i = 0; root->kind == SW_PICKLE_DICT && i + 1 < root->list.count; i += 2) {
        const struct sw_pickle_value *key = root->list.items[i], *value = root->list.items[i + 1];
        if (key->kind == SW_PICKLE_STRING && strcmp(key->string, "little_endian") == 0 &&
            (value->kind != SW_PICKLE_BOOL || value->integer == 0))
            code = SW_FAIL(err, SW_E_FORMAT,
                           "%s was written on a big-endian machine: save it again on another",
                           stream->file->path);
    }
    sw_pickle_free(pickle);
    return code;
}

static int by_key(const void *left, const void *right)
{
    struct sw_pickle_storage *const *a = left, *const *b = right;
    return strcmp((*a)->key, (*b)->key);
}

/* The first storage of that key in the sorted list, or `count`. */
static int64_t find_key(struct sw_pickle_storage *const *sorted, int64_t count, const char *key)
{
    int64_t low = 0, high = count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (strcmp(sorted[middle]->key, key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && strcmp(sorted[low]->key, key) == 0 ? low : count;
}

/* The storage `key` starts at *offset with its count; all mentions of it learn where it lies.
 * *offset moves behind it. */
static sw_code place_storage(const struct sw_tensor_file *file, const char *key,
                             struct sw_pickle_storage *const *sorted, int64_t count,
                             int64_t *offset, struct sw_err *err)
{
    int64_t elements = 0, bytes = 0, first = find_key(sorted, count, key);
    if (first == count)
        return SW_FAIL(err, SW_E_FORMAT, "%s: storage %.100s belongs to no tensor", file->path,
                       key);
    if (sorted[first]->file_offset >= 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s lists storage %.100s twice", file->path, key);
    if (file->bytes - *offset < COUNT_BYTES)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut short: it ends before storage %.100s: download it again",
                       file->path, key);
    sw_code code =
        sw_file_pread(file->descriptor, &elements, COUNT_BYTES, *offset, file->path, err);
    if (code != SW_OK)
        return code;
    *offset += COUNT_BYTES;
    for (int64_t i = first; i < count && strcmp(sorted[i]->key, key) == 0; i++) {
        if (sorted[i]->elements != elements ||
            sorted[i]->element_bytes != sorted[first]->element_bytes)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: storage %.100s has %lld elements, not the %lld of %s that its "
                           "pickle claims",
                           file->path, key, (long long)elements, (long long)sorted[i]->elements,
                           sorted[i]->dtype_name);
        sorted[i]->file_offset = *offset;
    }
    if (!sw_size_mul(elements, sorted[first]->element_bytes, &bytes) ||
        bytes > file->bytes - *offset)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut short: storage %.100s of %lld elements starts at byte %lld of "
                       "%lld: download it again",
                       file->path, key, (long long)elements, (long long)*offset,
                       (long long)file->bytes);
    *offset += bytes;
    return SW_OK;
}

static sw_code place_storages(const struct sw_tensor_file *file, const struct sw_pickle_value *keys,
                              struct sw_pickle_storage *const *sorted, int64_t count,
                              int64_t offset, struct sw_err *err)
{
    if (keys->kind != SW_PICKLE_LIST)
        return SW_FAIL(err, SW_E_FORMAT, "%s: the keys of its storages are %s, not a list",
                       file->path, sw_pickle_kind_name(keys->kind));
    for (int32_t i = 0; i < keys->list.count; i++) {
        const struct sw_pickle_value *key = keys->list.items[i];
        if (key->kind != SW_PICKLE_STRING)
            return SW_FAIL(err, SW_E_FORMAT, "%s: the key of a storage is %s, not a string",
                           file->path, sw_pickle_kind_name(key->kind));
        sw_code code = place_storage(file, key->string, sorted, count, &offset, err);
        if (code != SW_OK)
            return code;
    }
    for (int64_t i = 0; i < count; i++)
        if (sorted[i]->file_offset < 0)
            return SW_FAIL(err, SW_E_FORMAT, "%s: storage %.100s is missing", file->path,
                           sorted[i]->key);
    if (offset != file->bytes)
        return SW_FAIL(err, SW_E_FORMAT, "%s has %lld bytes behind its last storage", file->path,
                       (long long)(file->bytes - offset));
    return SW_OK;
}

static sw_code find_storages(struct stream *stream, struct sw_pickle *weights, struct sw_err *err)
{
    int64_t count;
    struct sw_pickle *keys = NULL;
    struct sw_pickle_storage **storages = sw_pickle_storages(weights, &count), **sorted = NULL;
    sw_code code = next_pickle(stream, &keys, err);
    if (code != SW_OK)
        return code;
    sorted = sw_calloc(count, sizeof *sorted);
    if (sorted == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", stream->file->path);
        goto out;
    }
    if (count > 0)
        memcpy(sorted, storages, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_key);
    code = place_storages(stream->file, sw_pickle_root(keys), sorted, count, stream->position, err);
out:
    free(sorted);
    sw_pickle_free(keys);
    return code;
}

sw_code sw_torch_legacy_read(const struct sw_tensor_file *file, struct sw_pickle **out,
                             struct sw_err *err)
{
    struct sw_pickle *weights = NULL;
    struct stream stream = {.file = file, .size = file->bytes};
    if (stream.size > SW_PICKLE_MAX_BYTES)
        stream.size = SW_PICKLE_MAX_BYTES;
    stream.bytes = sw_calloc(stream.size, 1);
    if (stream.bytes == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", file->path);
    sw_code code = sw_file_pread(file->descriptor, stream.bytes, stream.size, 0, file->path, err);
    if (code == SW_OK)
        code = check_magic(&stream, err);
    if (code == SW_OK)
        code = check_version(&stream, err);
    if (code == SW_OK)
        code = check_machine(&stream, err);
    if (code == SW_OK)
        code = next_pickle(&stream, &weights, err);
    if (code == SW_OK)
        code = sw_torch_check_weights(file, weights, err);
    if (code == SW_OK)
        code = find_storages(&stream, weights, err);
    free(stream.bytes);
    if (code == SW_OK)
        *out = weights;
    else
        sw_pickle_free(weights);
    return code;
}
