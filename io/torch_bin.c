#include "io/torch_bin.h"

#include "base/file.h"
#include "base/mem.h"
#include "io/torch_forms.h"

#include <stdlib.h>
#include <string.h>

enum { NAME_MAX_BYTES = 1024 };

/* A pickle can repeat one long string cheaply, so the length counts too. */
static bool is_plain(const char *name)
{
    int length = 0;
    for (; name[length] != '\0'; length++)
        if ((unsigned char)name[length] < 0x20 || name[length] == 0x7F || length == NAME_MAX_BYTES)
            return false;
    return true;
}

static sw_code read_form(struct sw_tensor_file *file, struct sw_pickle **out, struct sw_err *err)
{
    static const char zip_start[] = {'P', 'K', 3, 4}, pickle_start[] = {(char)0x80, 2};
    char start[4] = {0};
    int64_t bytes = file->bytes < (int64_t)sizeof start ? file->bytes : (int64_t)sizeof start;
    sw_code code = sw_file_pread(file->descriptor, start, bytes, 0, file->path, err);
    if (code != SW_OK)
        return code;
    if (memcmp(start, zip_start, sizeof zip_start) == 0) {
        file->format = "PyTorch (zip)";
        return sw_torch_zip_read(file, out, err);
    }
    if (start[0] == pickle_start[0]) {
        file->format = "PyTorch (legacy)";
        return sw_torch_legacy_read(file, out, err);
    }
    return SW_FAIL(err, SW_E_FORMAT,
                   "%s is not a file of torch.save(): it starts neither as a zip archive nor as a "
                   "pickle",
                   file->path);
}

sw_code sw_torch_check_weights(const struct sw_tensor_file *file, const struct sw_pickle *weights,
                               struct sw_err *err)
{
    const struct sw_pickle_value *root = sw_pickle_root(weights);
    if (root->kind != SW_PICKLE_DICT)
        return SW_FAIL(err, SW_E_FORMAT, "%s holds %s, not a dict of tensors", file->path,
                       sw_pickle_kind_name(root->kind));
    for (int32_t i = 0; i < root->list.count; i += 2) {
        const struct sw_pickle_value *key = root->list.items[i], *value = root->list.items[i + 1];
        if (key->kind != SW_PICKLE_STRING)
            return SW_FAIL(err, SW_E_FORMAT, "%s: the name of a tensor is %s, not a string",
                           file->path, sw_pickle_kind_name(key->kind));
        if (!is_plain(key->string))
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: a tensor's name has control characters or more than %d bytes",
                           file->path, NAME_MAX_BYTES);
        if (value->kind != SW_PICKLE_TENSOR)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: its entry %.200s is %s, not a tensor: only a plain state dict can "
                           "be read",
                           file->path, key->string, sw_pickle_kind_name(value->kind));
    }
    return SW_OK;
}

/* `tensor->name`, `->path` and `->descriptor` are set. */
static sw_code fill_tensor(const struct sw_pickle_tensor *from, struct sw_tensor *tensor,
                           struct sw_err *err)
{
    const struct sw_pickle_storage *storage = from->storage;
    char shape[SW_TENSOR_SHAPE_TEXT_BYTES];
    int64_t span, end;
    bool known = sw_tensor_set_dtype(tensor, storage->dtype_name);
    sw_assert(known && storage->file_offset >= 0);
    tensor->dims = from->dims;
    memcpy(tensor->shape, from->shape, sizeof tensor->shape);
    memcpy(tensor->stride, from->stride, sizeof tensor->stride);
    if (!sw_tensor_measure(tensor, true) || !sw_tensor_span(tensor, &span))
        return SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s: the size of shape %s overflows",
                       tensor->path, tensor->name, sw_tensor_shape_text(tensor, shape));
    if (span > 0 && (!sw_size_add(from->offset, span, &end) || end > storage->view_elements))
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: tensor %.200s of shape %s reaches beyond the %lld elements of its "
                       "storage",
                       tensor->path, tensor->name, sw_tensor_shape_text(tensor, shape),
                       (long long)storage->view_elements);
    /* Within the storage, which lies within the file: nothing overflows. */
    tensor->offset = storage->file_offset;
    if (span > 0)
        tensor->offset += (storage->view_offset + from->offset) * storage->element_bytes;
    return SW_OK;
}

static int by_name(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

static sw_code check_unique(const struct sw_tensor_file *file, struct sw_err *err)
{
    sw_code code = SW_OK;
    const char **names = sw_calloc(file->tensor_count, sizeof *names);
    if (names == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", file->path);
    for (int64_t i = 0; i < file->tensor_count; i++)
        names[i] = file->tensors[i].name;
    qsort(names, (size_t)file->tensor_count, sizeof *names, by_name);
    for (int64_t i = 1; i < file->tensor_count && code == SW_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            code =
                SW_FAIL(err, SW_E_FORMAT, "%s: tensor %.200s is there twice", file->path, names[i]);
    free(names);
    return code;
}

static sw_code fill_tensors(struct sw_tensor_file *file, const struct sw_pickle_value *root,
                            struct sw_err *err)
{
    int64_t name_bytes = 0;
    for (int32_t i = 0; i < root->list.count; i += 2)
        name_bytes += (int64_t)strlen(root->list.items[i]->string) + 1;
    file->tensors = sw_calloc(root->list.count / 2, sizeof file->tensors[0]);
    file->strings = sw_calloc(name_bytes, 1);
    if (file->tensors == NULL || file->strings == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the tensors of %s", file->path);
    char *names = file->strings;
    for (int32_t i = 0; i < root->list.count; i += 2) {
        struct sw_tensor *tensor = &file->tensors[file->tensor_count++];
        size_t bytes = strlen(root->list.items[i]->string) + 1;
        memcpy(names, root->list.items[i]->string, bytes);
        tensor->name = names;
        tensor->path = file->path;
        tensor->descriptor = file->descriptor;
        names += bytes;
        sw_code code = fill_tensor(root->list.items[i + 1]->tensor, tensor, err);
        if (code != SW_OK)
            return code;
    }
    return check_unique(file, err);
}

sw_code sw_torch_bin_open(const char *path, struct sw_tensor_file **out, struct sw_err *err)
{
    struct sw_tensor_file *file;
    struct sw_pickle *pickle = NULL;
    sw_code code = sw_tensor_file_open(path, "PyTorch", &file, err);
    if (code != SW_OK)
        return code;
    code = read_form(file, &pickle, err);
    if (code == SW_OK)
        code = fill_tensors(file, sw_pickle_root(pickle), err);
    sw_pickle_free(pickle);
    if (code == SW_OK)
        *out = file;
    else
        sw_tensor_file_close(file);
    return code;
}
