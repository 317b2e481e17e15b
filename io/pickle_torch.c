/* What a pickle of weights may name: PyTorch's storages, tensors and parameters, and OrderedDict.
 */
#include "io/pickle_machine.h"

#include "base/mem.h"

#include <string.h>

enum { NAME_MAX_BYTES = 255 };

enum global_role { MAKE_ORDERED_DICT, MAKE_TENSOR_V2, MAKE_TENSOR, MAKE_PARAMETER, STORAGE_TYPE };

static const struct {
    const char *module, *name;
    enum global_role role;
    const char *dtype_name; /* of a storage type */
} globals[] = {
    {"collections", "OrderedDict", MAKE_ORDERED_DICT, NULL},
    {"torch._utils", "_rebuild_tensor_v2", MAKE_TENSOR_V2, NULL},
    {"torch._utils", "_rebuild_tensor", MAKE_TENSOR, NULL},
    {"torch._utils", "_rebuild_parameter", MAKE_PARAMETER, NULL},
    {"torch", "FloatStorage", STORAGE_TYPE, "F32"},
    {"torch", "HalfStorage", STORAGE_TYPE, "F16"},
    {"torch", "BFloat16Storage", STORAGE_TYPE, "BF16"},
    {"torch", "DoubleStorage", STORAGE_TYPE, "F64"},
    {"torch", "LongStorage", STORAGE_TYPE, "I64"},
    {"torch", "IntStorage", STORAGE_TYPE, "I32"},
    {"torch", "ShortStorage", STORAGE_TYPE, "I16"},
    {"torch", "CharStorage", STORAGE_TYPE, "I8"},
    {"torch", "ByteStorage", STORAGE_TYPE, "U8"},
    {"torch", "BoolStorage", STORAGE_TYPE, "BOOL"},
    {"torch", "ComplexFloatStorage", STORAGE_TYPE, "C64"},
};

static sw_code push_global(struct sw_pickle_machine *m, const char *module, const char *name)
{
    struct sw_pickle_value *value;
    for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
        if (strcmp(globals[i].module, module) != 0 || strcmp(globals[i].name, name) != 0)
            continue;
        sw_code code = sw_pickle_push_new(m, SW_PICKLE_GLOBAL, &value);
        if (code == SW_OK)
            value->global = (int32_t)i;
        return code;
    }
    return SW_FAIL(m->err, SW_E_FORMAT,
                   "%s asks for the Python object %.100s.%.100s, which plain weights do not need: "
                   "refused, nothing was executed",
                   m->what, module, name);
}

/* A name that goes into messages and comparisons: printable and not long. */
static bool is_plain(const char *text)
{
    int length = 0;
    for (; text[length] != '\0'; length++)
        if ((unsigned char)text[length] < 0x20 || text[length] == 0x7F || length == NAME_MAX_BYTES)
            return false;
    return true;
}

sw_code sw_pickle_push_global_line(struct sw_pickle_machine *m)
{
    char module[256], name[256];
    sw_code code = sw_pickle_take_line(m, module, sizeof module);
    if (code == SW_OK)
        code = sw_pickle_take_line(m, name, sizeof name);
    if (code == SW_OK && (!is_plain(module) || !is_plain(name)))
        return sw_pickle_malformed(m, "a name is too long or has control characters");
    return code == SW_OK ? push_global(m, module, name) : code;
}

sw_code sw_pickle_push_global_stack(struct sw_pickle_machine *m)
{
    struct sw_pickle_value *module = NULL, *name = NULL;
    sw_code code = sw_pickle_pop(m, &name);
    if (code == SW_OK)
        code = sw_pickle_pop(m, &module);
    if (code != SW_OK)
        return code;
    if (module->kind != SW_PICKLE_STRING || name->kind != SW_PICKLE_STRING ||
        !is_plain(module->string) || !is_plain(name->string))
        return sw_pickle_malformed(m, "a global has no name");
    return push_global(m, module->string, name->string);
}

/* Element `index` of a tuple when it is of that kind, else NULL. */
static struct sw_pickle_value *argument(const struct sw_pickle_value *tuple, int32_t index,
                                        enum sw_pickle_kind kind)
{
    if (index >= tuple->list.count || tuple->list.items[index]->kind != kind)
        return NULL;
    return tuple->list.items[index];
}

static bool sizes_of(const struct sw_pickle_value *tuple, int32_t *count, int64_t *out)
{
    if (tuple == NULL || tuple->list.count > SW_TENSOR_DIMS)
        return false;
    for (int32_t i = 0; i < tuple->list.count; i++) {
        const struct sw_pickle_value *size = argument(tuple, i, SW_PICKLE_INTEGER);
        if (size == NULL || size->integer < 0)
            return false;
        out[i] = size->integer;
    }
    *count = tuple->list.count;
    return true;
}

/* (storage, offset, size, stride, ...): what follows says nothing about the elements. */
static sw_code make_tensor(struct sw_pickle_machine *m, const struct sw_pickle_value *arguments)
{
    const struct sw_pickle_value *storage = argument(arguments, 0, SW_PICKLE_STORAGE);
    const struct sw_pickle_value *offset = argument(arguments, 1, SW_PICKLE_INTEGER);
    struct sw_pickle_value *value;
    int32_t strides;
    struct sw_pickle_tensor *tensor = sw_pickle_arena_take(m->pickle, sizeof *tensor);
    if (tensor == NULL)
        return sw_pickle_no_memory(m);
    if (storage == NULL || offset == NULL || offset->integer < 0 ||
        !sizes_of(argument(arguments, 2, SW_PICKLE_TUPLE), &tensor->dims, tensor->shape) ||
        !sizes_of(argument(arguments, 3, SW_PICKLE_TUPLE), &strides, tensor->stride) ||
        strides != tensor->dims)
        return sw_pickle_malformed(m, "a tensor is not (storage, offset, size, stride) of up to 8 "
                                      "dimensions");
    tensor->storage = storage->storage;
    tensor->offset = offset->integer;
    sw_code code = sw_pickle_push_new(m, SW_PICKLE_TENSOR, &value);
    if (code == SW_OK)
        value->tensor = tensor;
    return code;
}

/* OrderedDict(), or OrderedDict([(key, value), ...]) as Python 2 wrote it. */
static sw_code make_dict(struct sw_pickle_machine *m, const struct sw_pickle_value *arguments)
{
    struct sw_pickle_value *dict = NULL;
    sw_code code = sw_pickle_push_new(m, SW_PICKLE_DICT, &dict);
    if (code != SW_OK || arguments->list.count == 0)
        return code;
    const struct sw_pickle_value *pairs = argument(arguments, 0, SW_PICKLE_LIST);
    if (pairs == NULL || arguments->list.count != 1)
        return sw_pickle_malformed(m, "an OrderedDict is not made of a list of pairs");
    for (int32_t i = 0; i < pairs->list.count && code == SW_OK; i++) {
        const struct sw_pickle_value *pair = pairs->list.items[i];
        if ((pair->kind != SW_PICKLE_TUPLE && pair->kind != SW_PICKLE_LIST) ||
            pair->list.count != 2)
            return sw_pickle_malformed(m, "an OrderedDict is not made of a list of pairs");
        code = sw_pickle_extend(m, dict, pair->list.items, 2);
    }
    return code;
}

sw_code sw_pickle_call(struct sw_pickle_machine *m)
{
    struct sw_pickle_value *arguments = NULL, *function = NULL, *tensor;
    sw_code code = sw_pickle_pop(m, &arguments);
    if (code == SW_OK)
        code = sw_pickle_pop(m, &function);
    if (code != SW_OK)
        return code;
    if (arguments->kind != SW_PICKLE_TUPLE || function->kind != SW_PICKLE_GLOBAL)
        return sw_pickle_malformed(m, "it calls what is no function");
    switch (globals[function->global].role) {
    case MAKE_ORDERED_DICT:
        return make_dict(m, arguments);
    case MAKE_TENSOR_V2:
    case MAKE_TENSOR:
        return make_tensor(m, arguments);
    case MAKE_PARAMETER:
        tensor = argument(arguments, 0, SW_PICKLE_TENSOR);
        if (tensor == NULL)
            return sw_pickle_malformed(m, "a parameter has no tensor");
        return sw_pickle_push(m, tensor);
    case STORAGE_TYPE:
        break;
    }
    return sw_pickle_malformed(m, "it calls a storage type");
}

/* Attributes of an OrderedDict (its _metadata): nothing that is needed. */
sw_code sw_pickle_build(struct sw_pickle_machine *m)
{
    struct sw_pickle_value *state = NULL, *target = NULL;
    sw_code code = sw_pickle_pop(m, &state);
    if (code == SW_OK)
        code = sw_pickle_top(m, SW_PICKLE_DICT, &target);
    if (code == SW_OK && state->kind != SW_PICKLE_DICT)
        return sw_pickle_malformed(m, "it sets the state of a dict to something else than a dict");
    return code;
}

/* Older files give a storage as a part of another: (key, offset, elements). */
static bool apply_view(const struct sw_pickle_value *view, struct sw_pickle_storage *storage)
{
    const struct sw_pickle_value *offset = argument(view, 1, SW_PICKLE_INTEGER);
    const struct sw_pickle_value *elements = argument(view, 2, SW_PICKLE_INTEGER);
    if (view->list.count != 3 || offset == NULL || elements == NULL || offset->integer < 0 ||
        elements->integer < 0 || offset->integer > storage->elements ||
        elements->integer > storage->elements - offset->integer)
        return false;
    storage->view_offset = offset->integer;
    storage->view_elements = elements->integer;
    return true;
}

/* ('storage', type, key, location, elements[, view]) */
sw_code sw_pickle_push_storage(struct sw_pickle_machine *m)
{
    struct sw_pickle_value *id = NULL, *value = NULL;
    sw_code code = sw_pickle_pop(m, &id);
    if (code != SW_OK)
        return code;
    if (id->kind != SW_PICKLE_TUPLE)
        return sw_pickle_malformed(m, "a persistent id is not a storage");
    const struct sw_pickle_value *tag = argument(id, 0, SW_PICKLE_STRING);
    const struct sw_pickle_value *type = argument(id, 1, SW_PICKLE_GLOBAL);
    const struct sw_pickle_value *key = argument(id, 2, SW_PICKLE_STRING);
    const struct sw_pickle_value *elements = argument(id, 4, SW_PICKLE_INTEGER);
    const struct sw_pickle_value *view = argument(id, 5, SW_PICKLE_TUPLE);
    struct sw_pickle_storage *storage = sw_pickle_arena_take(m->pickle, sizeof *storage);
    void *array = m->pickle->storages;
    if (storage == NULL || !sw_array_reserve(&array, &m->pickle->storage_capacity,
                                             m->pickle->storage_count, sizeof(void *)))
        return sw_pickle_no_memory(m);
    m->pickle->storages = array;
    if (tag == NULL || strcmp(tag->string, "storage") != 0 || type == NULL ||
        globals[type->global].role != STORAGE_TYPE || key == NULL || elements == NULL ||
        elements->integer < 0 || !is_plain(key->string))
        return sw_pickle_malformed(m, "a persistent id is not a storage");
    struct sw_tensor dtype;
    bool known = sw_tensor_set_dtype(&dtype, globals[type->global].dtype_name);
    sw_assert(known);
    storage->key = key->string;
    storage->dtype_name = dtype.dtype_name;
    storage->element_bytes = dtype.element_bytes;
    storage->elements = elements->integer;
    storage->view_elements = elements->integer;
    storage->file_offset = -1;
    if (view != NULL && !apply_view(view, storage))
        return sw_pickle_malformed(m, "a storage's view lies outside of it");
    m->pickle->storages[m->pickle->storage_count++] = storage;
    code = sw_pickle_push_new(m, SW_PICKLE_STORAGE, &value);
    if (code == SW_OK)
        value->storage = storage;
    return code;
}
