#include "io/safetensors.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

enum { LENGTH_BYTES = 8 };

/* Read the header's text: *out is owned. */
static sw_code read_header(const struct sw_tensor_file *file, char **out, int64_t *out_bytes,
                           struct sw_err *err)
{
    uint64_t length;
    if (file->bytes < LENGTH_BYTES)
        return SW_FAIL(err, SW_E_FORMAT, "%s has %lld bytes only: not a safetensors file",
                       file->path, (long long)file->bytes);
    sw_code code = sw_file_pread(file->descriptor, &length, sizeof length, 0, file->path, err);
    if (code != SW_OK)
        return code;
    if (length > SW_SAFETENSORS_HEADER_MAX_BYTES)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is not a safetensors file: its first 8 bytes give a header of %llu "
                       "bytes, the format allows %d",
                       file->path, (unsigned long long)length, SW_SAFETENSORS_HEADER_MAX_BYTES);
    if ((int64_t)length > file->bytes - LENGTH_BYTES)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut short: its header takes %llu bytes, the file has %lld: download "
                       "it again",
                       file->path, (unsigned long long)length, (long long)file->bytes);
    char *text = sw_calloc((int64_t)length + 1, 1);
    if (text == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the header of %s", file->path);
    code = sw_file_pread(file->descriptor, text, (int64_t)length, LENGTH_BYTES, file->path, err);
    if (code == SW_OK && text[0] != '{')
        code =
            SW_FAIL(err, SW_E_FORMAT,
                    "%s is not a safetensors file: its header does not start with '{'", file->path);
    if (code != SW_OK) {
        free(text);
        return code;
    }
    *out = text;
    *out_bytes = (int64_t)length;
    return SW_OK;
}

static sw_code check_metadata(const struct sw_json *metadata, const char *path, struct sw_err *err)
{
    void *cursor = NULL;
    const char *key;
    const struct sw_json *value;
    if (sw_json_kind(metadata) != SW_JSON_OBJECT)
        return SW_FAIL(err, SW_E_FORMAT, "%s: __metadata__ is %s, not an object", path,
                       sw_json_kind_name(metadata));
    while (sw_json_next(metadata, &cursor, &key, &value))
        if (sw_json_to_string(value) == NULL)
            return SW_FAIL(err, SW_E_FORMAT, "%s: __metadata__ %.200s is %s, not a string", path,
                           key, sw_json_kind_name(value));
    return SW_OK;
}

/* A tensor's name goes into messages: no control characters. */
static sw_code check_name(const char *name, const char *path, struct sw_err *err)
{
    for (const char *c = name; *c != '\0'; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7F)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: a tensor's name has a control character (byte %d)", path,
                           (unsigned char)*c);
    return SW_OK;
}

static sw_code parse_shape(const struct sw_json *shape, struct sw_tensor *tensor,
                           struct sw_err *err)
{
    if (shape == NULL || sw_json_kind(shape) != SW_JSON_ARRAY)
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s has no list as its shape", tensor->path,
                       tensor->name);
    if (sw_json_count(shape) > SW_TENSOR_DIMS)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: tensor %.200s has %lld dimensions, more than the %d allowed",
                       tensor->path, tensor->name, (long long)sw_json_count(shape), SW_TENSOR_DIMS);
    tensor->dims = (int32_t)sw_json_count(shape);
    for (int32_t i = 0; i < tensor->dims; i++)
        if (!sw_json_to_integer(sw_json_at(shape, i), &tensor->shape[i]) || tensor->shape[i] < 0)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: tensor %.200s: dimension %d of its shape is not a whole number of "
                           "0 or more",
                           tensor->path, tensor->name, (int)i);
    return SW_OK;
}

/* One entry of the header. `tensor->name` and `->path` are set; `offset` becomes relative to the
 * data section. */
static sw_code parse_tensor(const struct sw_json *entry, struct sw_tensor *tensor,
                            struct sw_err *err)
{
    const char *path = tensor->path, *name = tensor->name;
    char shape[SW_TENSOR_SHAPE_TEXT_BYTES];
    int64_t begin, end;
    if (sw_json_kind(entry) != SW_JSON_OBJECT)
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s is %s, not an object", path, name,
                       sw_json_kind_name(entry));
    const char *dtype = sw_json_to_string(sw_json_get(entry, "dtype"));
    if (dtype == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s has no dtype", path, name);
    if (!sw_tensor_set_dtype(tensor, dtype))
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s has the unknown dtype %.40s", path,
                       name, dtype);
    sw_code code = parse_shape(sw_json_get(entry, "shape"), tensor, err);
    if (code != SW_OK)
        return code;
    if (!sw_tensor_measure(tensor, false))
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s: the size of shape %s overflows", path,
                       name, sw_tensor_shape_text(tensor, shape));
    const struct sw_json *offsets = sw_json_get(entry, "data_offsets");
    if (offsets == NULL || sw_json_kind(offsets) != SW_JSON_ARRAY || sw_json_count(offsets) != 2 ||
        !sw_json_to_integer(sw_json_at(offsets, 0), &begin) ||
        !sw_json_to_integer(sw_json_at(offsets, 1), &end) || begin < 0 || end < begin)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: tensor %.200s: data_offsets are not two rising whole numbers", path,
                       name);
    if (end - begin != tensor->bytes)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: tensor %.200s: shape %s of %s takes %lld bytes, its data_offsets give "
                       "%lld",
                       path, name, sw_tensor_shape_text(tensor, shape), dtype,
                       (long long)tensor->bytes, (long long)(end - begin));
    tensor->offset = begin;
    return SW_OK;
}

static int by_offset(const void *left, const void *right)
{
    const struct sw_tensor *a = left, *b = right;
    if (a->offset != b->offset)
        return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes);
}

/* The tensors cover the data section from its start to the end of the file, each byte once. */
static sw_code check_layout(struct sw_tensor_file *file, int64_t data_offset, struct sw_err *err)
{
    int64_t end = 0, data_bytes = file->bytes - data_offset;
    qsort(file->tensors, (size_t)file->tensor_count, sizeof file->tensors[0], by_offset);
    for (int64_t i = 0; i < file->tensor_count; i++) {
        struct sw_tensor *tensor = &file->tensors[i];
        if (tensor->offset != end)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: the data of tensor %.200s starts at byte %lld, %s %lld", file->path,
                           tensor->name, (long long)tensor->offset,
                           tensor->offset < end ? "overlapping another that ends at byte"
                                                : "leaving a gap from byte",
                           (long long)end);
        end += tensor->bytes; /* offset + bytes was read as an int64_t: no overflow */
        tensor->offset += data_offset;
        tensor->descriptor = file->descriptor;
    }
    if (end > data_bytes)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut short: its tensors take %lld bytes, %lld are there: download it "
                       "again",
                       file->path, (long long)end, (long long)data_bytes);
    if (end < data_bytes)
        return SW_FAIL(err, SW_E_FORMAT, "%s has %lld bytes that belong to no tensor at its end",
                       file->path, (long long)(data_bytes - end));
    return SW_OK;
}

/* Room for the tensors and their names. */
static sw_code allocate(struct sw_tensor_file *file, const struct sw_json *header,
                        struct sw_err *err)
{
    void *cursor = NULL;
    const char *key;
    const struct sw_json *value;
    int64_t name_bytes = 0, count = 0;
    while (sw_json_next(header, &cursor, &key, &value)) {
        name_bytes += (int64_t)strlen(key) + 1;
        count++;
    }
    file->tensors = sw_calloc(count, sizeof file->tensors[0]);
    file->strings = sw_calloc(name_bytes, 1);
    if (file->tensors == NULL || file->strings == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the %lld tensors of %s", (long long)count,
                       file->path);
    return SW_OK;
}

static sw_code parse_header(struct sw_tensor_file *file, const struct sw_json *header,
                            struct sw_err *err)
{
    void *cursor = NULL;
    const char *key;
    const struct sw_json *value;
    sw_code code = allocate(file, header, err);
    if (code != SW_OK)
        return code;
    char *names = file->strings;
    while (sw_json_next(header, &cursor, &key, &value)) {
        if (strcmp(key, "__metadata__") == 0) {
            code = check_metadata(value, file->path, err);
        } else {
            struct sw_tensor *tensor = &file->tensors[file->tensor_count++];
            size_t bytes = strlen(key) + 1;
            memcpy(names, key, bytes);
            tensor->name = names;
            tensor->path = file->path;
            names += bytes;
            code = check_name(key, file->path, err);
            if (code == SW_OK)
                code = parse_tensor(value, tensor, err);
        }
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

sw_code sw_safetensors_open(const char *path, struct sw_tensor_file **out, struct sw_err *err)
{
    struct sw_tensor_file *file;
    struct sw_json *header = NULL;
    struct sw_err damage;
    char *text = NULL;
    int64_t bytes = 0;
    sw_err_init(&damage);
    sw_code code = sw_tensor_file_open(path, "safetensors", &file, err);
    if (code != SW_OK)
        return code;
    code = read_header(file, &text, &bytes, err);
    if (code != SW_OK)
        goto out;
    code = sw_json_parse(text, bytes, "its header", &header, &damage);
    if (code != SW_OK) {
        code = SW_FAIL(err, code, "%s is damaged: %s", path, damage.text);
        goto out;
    }
    code = parse_header(file, header, err);
    if (code == SW_OK)
        code = check_layout(file, LENGTH_BYTES + bytes, err);
out:
    sw_json_free(header);
    free(text);
    if (code == SW_OK)
        *out = file;
    else
        sw_tensor_file_close(file);
    return code;
}
