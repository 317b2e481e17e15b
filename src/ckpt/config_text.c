#include "ckpt/config_text.h"

#include "base/json.h"

#include <string.h>

/* The text is known to be valid JSON: what follows only has to find its way. */

static const char *skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

/* Behind the string that starts at `at`. */
static const char *skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at + 1;
}

/* Behind the value that starts at `at`. */
static const char *skip_value(const char *at)
{
    int depth = 0;
    for (;;) {
        if (*at == '"') {
            at = skip_string(at);
        } else if (*at == '{' || *at == '[') {
            depth++;
            at++;
        } else if (*at == '}' || *at == ']') {
            depth--;
            at++;
        } else if (depth == 0) {
            return at + strcspn(at, ",}] \t\r\n"); /* a number or word */
        } else {
            at += strcspn(at, "\"{}[]");
        }
        if (depth == 0)
            return at;
    }
}

static bool is_dtype_key(const char *key, const char *end)
{
    static const char *const names[] = {"\"torch_dtype\"", "\"dtype\""};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if ((size_t)(end - key) == strlen(names[i]) &&
            strncmp(key, names[i], strlen(names[i])) == 0)
            return true;
    return false;
}

static void replace(const char *text, const char *dtype, struct sw_text *out)
{
    const char *copied = text, *at = skip_space(skip_space(text) + 1);
    while (*at == '"') {
        const char *key = at, *key_end = skip_string(at);
        const char *value = skip_space(skip_space(key_end) + 1), *end = skip_value(value);
        if (is_dtype_key(key, key_end)) {
            sw_text_add_bytes(out, copied, value - copied);
            sw_text_add_json_string(out, dtype);
            copied = end;
        }
        at = skip_space(end);
        if (*at == ',')
            at = skip_space(at + 1);
    }
    sw_text_add(out, "%s", copied);
}

sw_code sw_config_text_set_dtype(const char *text, const char *what, const char *dtype,
                                 struct sw_text *out, struct sw_err *err)
{
    struct sw_json *root;
    sw_code code = sw_json_parse(text, (int64_t)strlen(text), what, &root, err);
    if (code != SW_OK)
        return code;
    bool is_object = sw_json_kind(root) == SW_JSON_OBJECT;
    sw_json_free(root);
    if (!is_object)
        return SW_FAIL(err, SW_E_FORMAT, "%s is not a JSON object", what);
    replace(text, dtype, out);
    return sw_text_check(out, what, err);
}
