/* Reading JSON (RFC 8259). Strict: one value and nothing behind it, no repeated keys, valid UTF-8,
 * no NUL inside strings, nesting and size bounded. Values are borrowed from the root. */
#ifndef SPILLWAY_BASE_JSON_H
#define SPILLWAY_BASE_JSON_H

#include "base/err.h"

#include <stdint.h>

struct sw_json;

enum sw_json_kind {
    SW_JSON_NULL,
    SW_JSON_BOOL,
    SW_JSON_INTEGER, /* written without point and exponent, and fits int64_t */
    SW_JSON_REAL,
    SW_JSON_STRING,
    SW_JSON_ARRAY,
    SW_JSON_OBJECT
};

/* Parse `bytes` of text, whose root must be an object or an array. `what` names it in messages: a
 * path, mostly. SW_E_FORMAT with line and column when it is malformed. */
sw_code sw_json_parse(const char *text, int64_t bytes, const char *what, struct sw_json **out,
                      struct sw_err *err) SW_WARN_UNUSED;
/* Read and parse a file of at most `max_bytes`. */
sw_code sw_json_read_file(const char *path, int64_t max_bytes, struct sw_json **out,
                          struct sw_err *err) SW_WARN_UNUSED;
/* Free a root. NULL is fine. */
void sw_json_free(struct sw_json *root);

enum sw_json_kind sw_json_kind(const struct sw_json *value);
/* "an object", "a string", ...: for messages. */
const char *sw_json_kind_name(const struct sw_json *value);

/* Member of an object, or NULL: no such key, or `object` is NULL or not an object. */
const struct sw_json *sw_json_get(const struct sw_json *object, const char *key);
/* Members of an array or object; 0 for others. */
int64_t sw_json_count(const struct sw_json *value);
/* Element of an array; NULL when out of range. */
const struct sw_json *sw_json_at(const struct sw_json *array, int64_t index);
/* Walk an object in the order it was written: start with *cursor = NULL; false at the end. */
bool sw_json_next(const struct sw_json *object, void **cursor, const char **key,
                  const struct sw_json **value);

/* The value if it has that type; false (or NULL), nothing written, if not or if `value` is NULL. */
bool sw_json_to_bool(const struct sw_json *value, bool *out);
bool sw_json_to_integer(const struct sw_json *value, int64_t *out);
bool sw_json_to_double(const struct sw_json *value, double *out); /* integers too */
const char *sw_json_to_string(const struct sw_json *value);

#endif
