#include "base/json.h"

#include "base/file.h"

#include <jansson.h>
#include <stdlib.h>

/* A struct sw_json is a json_t. Jansson's getters take mutable pointers in places; nothing here
 * writes through them. */
static json_t *raw(const struct sw_json *value)
{
    union {
        const struct sw_json *read_only;
        json_t *json;
    } either = {.read_only = value};
    return either.json;
}

static const struct sw_json *wrap(json_t *value)
{
    return (const struct sw_json *)(void *)value;
}

sw_code sw_json_parse(const char *text, int64_t bytes, const char *what, struct sw_json **out,
                      struct sw_err *err)
{
    json_error_t problem;
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &problem);
    if (root == NULL && json_error_code(&problem) == json_error_out_of_memory)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to parse %s", what);
    if (root == NULL) /* the library's words for it name a flag of the library */
        return SW_FAIL(err, SW_E_FORMAT, "%s is not valid JSON: line %d, column %d: %s", what,
                       problem.line, problem.column,
                       json_error_code(&problem) == json_error_null_character
                           ? "\\u0000 in a string is not taken"
                           : problem.text);
    *out = (struct sw_json *)(void *)root;
    return SW_OK;
}

sw_code sw_json_read_file(const char *path, int64_t max_bytes, struct sw_json **out,
                          struct sw_err *err)
{
    char *text;
    int64_t bytes;
    sw_code code = sw_file_read(path, max_bytes, &text, &bytes, err);
    if (code != SW_OK)
        return code;
    code = sw_json_parse(text, bytes, path, out, err);
    free(text);
    return code;
}

void sw_json_free(struct sw_json *root)
{
    json_decref(raw(root));
}

enum sw_json_kind sw_json_kind(const struct sw_json *value)
{
    switch (json_typeof(raw(value))) {
    case JSON_OBJECT:
        return SW_JSON_OBJECT;
    case JSON_ARRAY:
        return SW_JSON_ARRAY;
    case JSON_STRING:
        return SW_JSON_STRING;
    case JSON_INTEGER:
        return SW_JSON_INTEGER;
    case JSON_REAL:
        return SW_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return SW_JSON_BOOL;
    case JSON_NULL:
        break;
    }
    return SW_JSON_NULL;
}

const char *sw_json_kind_name(const struct sw_json *value)
{
    static const char *const names[] = {[SW_JSON_NULL] = "null",
                                        [SW_JSON_BOOL] = "true or false",
                                        [SW_JSON_INTEGER] = "a whole number",
                                        [SW_JSON_REAL] = "a number",
                                        [SW_JSON_STRING] = "a string",
                                        [SW_JSON_ARRAY] = "a list",
                                        [SW_JSON_OBJECT] = "an object"};
    return names[sw_json_kind(value)];
}

const struct sw_json *sw_json_get(const struct sw_json *object, const char *key)
{
    return wrap(json_object_get(raw(object), key));
}

int64_t sw_json_count(const struct sw_json *value)
{
    if (json_is_array(raw(value)))
        return (int64_t)json_array_size(raw(value));
    return (int64_t)json_object_size(raw(value));
}

const struct sw_json *sw_json_at(const struct sw_json *array, int64_t index)
{
    return index < 0 ? NULL : wrap(json_array_get(raw(array), (size_t)index));
}

bool sw_json_next(const struct sw_json *object, void **cursor, const char **key,
                  const struct sw_json **value)
{
    void *next = *cursor == NULL ? json_object_iter(raw(object))
                                 : json_object_iter_next(raw(object), *cursor);
    if (next == NULL)
        return false;
    *cursor = next;
    *key = json_object_iter_key(next);
    *value = wrap(json_object_iter_value(next));
    return true;
}

bool sw_json_to_bool(const struct sw_json *value, bool *out)
{
    if (!json_is_boolean(raw(value)))
        return false;
    *out = json_is_true(raw(value));
    return true;
}

bool sw_json_to_integer(const struct sw_json *value, int64_t *out)
{
    if (!json_is_integer(raw(value)))
        return false;
    *out = json_integer_value(raw(value));
    return true;
}

bool sw_json_to_double(const struct sw_json *value, double *out)
{
    if (!json_is_number(raw(value)))
        return false;
    *out = json_number_value(raw(value));
    return true;
}

const char *sw_json_to_string(const struct sw_json *value)
{
    return json_string_value(raw(value));
}
