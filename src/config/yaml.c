/* YAML in: sections of keys, each with a scalar or a list of scalars. Nothing else of YAML is
 * taken: anchors, aliases, tags and further documents are refused with their line. */
#include "base/mem.h"
#include "config/table.h"

#include <stdlib.h>
#include <string.h>
#include <yaml.h>

enum {
    KEY_BYTES = 128,
    WHERE_BYTES = 512,
    VALUES_MAX = 256,
    SECTIONS_MAX = 16,
    SECTION_BYTES = 32,
    NAME_BYTES = 64
};

struct reader {
    yaml_parser_t parser;
    struct sw_config *config;
    const char *path;
    const char *text;
    size_t text_bytes;
    bool setting;                               /* a line made of a --set, not a file */
    int32_t seen[SW_CONFIG_KEYS_MAX];           /* line of each key of this file, 0: not yet */
    char sections[SECTIONS_MAX][SECTION_BYTES]; /* of this file so far */
    int section_count;
};

static void where_line(const struct reader *reader, size_t line, char out[WHERE_BYTES])
{
    if (reader->setting)
        snprintf(out, WHERE_BYTES, "%s", reader->path);
    else
        snprintf(out, WHERE_BYTES, "%.400s:%zu", reader->path, line + 1);
}

static void where(const struct reader *reader, const yaml_event_t *event, char out[WHERE_BYTES])
{
    where_line(reader, event->start_mark.line, out);
}

/* Whether a tab stands in the indentation of line `line` (from 0). */
static bool indented_by_tab(const struct reader *reader, size_t line)
{
    const char *at = reader->text, *end = at + reader->text_bytes;
    for (; line > 0 && at != NULL; line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    while (at != NULL && at < end && *at == ' ')
        at++;
    return at != NULL && at < end && *at == '\t';
}

static sw_code refuse_syntax(const struct reader *reader, struct sw_err *err)
{
    const yaml_parser_t *p = &reader->parser;
    char at[WHERE_BYTES];
    if (p->error == YAML_MEMORY_ERROR)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", reader->path);
    size_t line = p->problem_mark.line;
    if (p->error == YAML_READER_ERROR) { /* it reads ahead of its marks */
        line = 0;
        for (size_t i = 0; i < p->problem_offset && i < reader->text_bytes; i++)
            line += reader->text[i] == '\n';
    }
    where_line(reader, line, at);
    if (p->error == YAML_SCANNER_ERROR && indented_by_tab(reader, line))
        return SW_FAIL(err, SW_E_USAGE, "%s: not YAML: indented by a tab; use spaces", at);
    return SW_FAIL(err, SW_E_USAGE, "%s: not YAML: %s%s%s", at,
                   p->problem != NULL ? p->problem : "it cannot be read",
                   p->context != NULL ? ", " : "", p->context != NULL ? p->context : "");
}

/* Something of YAML that a configuration does not have: NULL, or what and its first character. */
static const char *foreign(const yaml_event_t *event)
{
    const unsigned char *anchor = NULL, *tag = NULL;
    if (event->type == YAML_ALIAS_EVENT)
        return "*aliases";
    if (event->type == YAML_SCALAR_EVENT) {
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    }
    return anchor != NULL ? "&anchors" : tag != NULL ? "!tags" : NULL;
}

static sw_code next(struct reader *reader, yaml_event_t *event, struct sw_err *err)
{
    char at[WHERE_BYTES];
    if (yaml_parser_parse(&reader->parser, event) == 0)
        return refuse_syntax(reader, err);
    const char *what = foreign(event);
    if (what == NULL)
        return SW_OK;
    where(reader, event, at);
    yaml_event_delete(event);
    return SW_FAIL(err, SW_E_USAGE,
                   "%s: %s are not understood; a text that begins with %c needs quotes", at, what,
                   what[0]);
}

/* A scalar's text, which must hold no NUL; owned by the caller. */
static sw_code take_scalar(const yaml_event_t *event, const char *at, char **out, bool *quoted,
                           struct sw_err *err)
{
    const char *text = (const char *)event->data.scalar.value;
    if (strlen(text) != event->data.scalar.length)
        return SW_FAIL(err, SW_E_USAGE, "%s: a NUL character in a value", at);
    *quoted = event->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    *out = sw_strdup(text);
    return *out != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for the configuration");
}

static void free_values(char **values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        free(values[i]);
}

/* The scalars of a list, whose start was read. */
static sw_code read_list(struct reader *reader, char **values, int64_t *count, bool *quoted,
                         struct sw_err *err)
{
    for (;;) {
        yaml_event_t event;
        char at[WHERE_BYTES];
        bool one = false;
        sw_code code = next(reader, &event, err);
        if (code != SW_OK)
            return code;
        where(reader, &event, at);
        bool end = event.type == YAML_SEQUENCE_END_EVENT;
        if (!end && event.type != YAML_SCALAR_EVENT)
            code = SW_FAIL(err, SW_E_USAGE, "%s: a list holds plain values only", at);
        else if (!end && *count == VALUES_MAX)
            code = SW_FAIL(err, SW_E_USAGE, "%s: a list of more than %d values", at, VALUES_MAX);
        else if (!end)
            code = take_scalar(&event, at, &values[*count], &one, err);
        yaml_event_delete(&event);
        if (code != SW_OK || end)
            return code;
        *quoted = *quoted || one;
        (*count)++;
    }
}

/* The value of a key whose event was read, and the assignment. */
static sw_code read_value(struct reader *reader, int index, const yaml_event_t *event,
                          struct sw_err *err)
{
    char *values[VALUES_MAX], at[WHERE_BYTES];
    int64_t count = 0;
    bool quoted = false, list = event->type == YAML_SEQUENCE_START_EVENT;
    sw_code code = SW_OK;
    where(reader, event, at);
    if (list) {
        code = read_list(reader, values, &count, &quoted, err);
    } else if (event->type == YAML_SCALAR_EVENT) {
        code = take_scalar(event, at, &values[0], &quoted, err);
        count = code == SW_OK;
        if (code == SW_OK && !quoted && values[0][0] == '\0')
            code = SW_FAIL(err, SW_E_USAGE, "%s: %s has no value", at, sw_options[index].key);
    } else {
        code = SW_FAIL(err, SW_E_USAGE, "%s: %s takes a value, not further keys", at,
                       sw_options[index].key);
    }
    if (code == SW_OK) {
        const struct sw_option_source source = {
            .text = at,
            .line = reader->setting ? 0 : (int32_t)event->start_mark.line + 1,
            .quoted = quoted,
            .verbatim = reader->setting};
        code = sw_option_assign(reader->config, index, (const char *const *)values, count, list,
                                &source, err);
    }
    free_values(values, count);
    return code;
}

/* Find the option of "section.key"; refuse a repeated one. */
static sw_code find_key(struct reader *reader, const char *section, const yaml_event_t *event,
                        int *out, struct sw_err *err)
{
    char key[KEY_BYTES], at[WHERE_BYTES];
    where(reader, event, at);
    if (event->type != YAML_SCALAR_EVENT)
        return SW_FAIL(err, SW_E_USAGE, "%s: a key was expected", at);
    const char *name = (const char *)event->data.scalar.value;
    if (strlen(name) != event->data.scalar.length || strlen(name) > NAME_BYTES)
        return SW_FAIL(err, SW_E_USAGE, "%s: this is no key", at);
    snprintf(key, sizeof key, "%.*s%s%.*s", SECTION_BYTES - 1, section,
             section[0] != '\0' ? "." : "", NAME_BYTES, name);
    *out = sw_config_find(key);
    if (*out < 0)
        return sw_option_unknown(key, at, err);
    if (reader->seen[*out] > 0)
        return SW_FAIL(err, SW_E_USAGE, "%s: %s is set twice, first in line %d", at, key,
                       (int)reader->seen[*out]);
    reader->seen[*out] = (int32_t)event->start_mark.line + 1;
    return SW_OK;
}

/* The keys of a section, whose start was read. */
static sw_code read_section(struct reader *reader, const char *section, struct sw_err *err)
{
    for (;;) {
        yaml_event_t event;
        int index = -1;
        sw_code code = next(reader, &event, err);
        if (code != SW_OK)
            return code;
        bool end = event.type == YAML_MAPPING_END_EVENT;
        if (!end)
            code = find_key(reader, section, &event, &index, err);
        yaml_event_delete(&event);
        if (code != SW_OK || end)
            return code;
        code = next(reader, &event, err);
        if (code != SW_OK)
            return code;
        code = read_value(reader, index, &event, err);
        yaml_event_delete(&event);
        if (code != SW_OK)
            return code;
    }
}

static bool is_section(const char *name)
{
    size_t bytes = strlen(name);
    for (int i = 0; i < sw_option_count; i++)
        if (strncmp(sw_options[i].key, name, bytes) == 0 && sw_options[i].key[bytes] == '.')
            return true;
    return false;
}

static sw_code enter_section(struct reader *reader, const char *name, const char *at,
                             struct sw_err *err)
{
    for (int i = 0; i < reader->section_count; i++)
        if (strcmp(reader->sections[i], name) == 0)
            return SW_FAIL(err, SW_E_USAGE, "%s: section %s is there twice", at, name);
    sw_assert(reader->section_count < SECTIONS_MAX);
    snprintf(reader->sections[reader->section_count++], SECTION_BYTES, "%s", name);
    return SW_OK;
}

/* One entry of the outermost mapping: a section, or a dotted key with its value. */
static sw_code read_entry(struct reader *reader, const yaml_event_t *key, struct sw_err *err)
{
    char at[WHERE_BYTES];
    where(reader, key, at);
    if (key->type != YAML_SCALAR_EVENT)
        return SW_FAIL(err, SW_E_USAGE, "%s: a section such as \"train:\" was expected", at);
    const char *name = (const char *)key->data.scalar.value;
    int index = -1;
    bool section = strlen(name) == key->data.scalar.length && is_section(name);
    sw_code code =
        section ? enter_section(reader, name, at, err) : find_key(reader, "", key, &index, err);
    if (code != SW_OK)
        return code;
    yaml_event_t value;
    code = next(reader, &value, err);
    if (code != SW_OK)
        return code;
    bool empty = value.type == YAML_SCALAR_EVENT && value.data.scalar.length == 0;
    if (index >= 0)
        code = read_value(reader, index, &value, err);
    else if (value.type == YAML_MAPPING_START_EVENT)
        code = read_section(reader, name, err);
    else if (!empty)
        code =
            SW_FAIL(err, SW_E_USAGE, "%s: %s is a section: it holds keys, not a value", at, name);
    yaml_event_delete(&value);
    return code;
}

static sw_code read_document(struct reader *reader, struct sw_err *err)
{
    int documents = 0, depth = 0;
    for (;;) {
        yaml_event_t event;
        char at[WHERE_BYTES];
        sw_code code = next(reader, &event, err);
        if (code != SW_OK)
            return code;
        where(reader, &event, at);
        bool end = event.type == YAML_STREAM_END_EVENT;
        switch (event.type) {
        case YAML_STREAM_START_EVENT:
        case YAML_STREAM_END_EVENT:
        case YAML_DOCUMENT_END_EVENT:
            break;
        case YAML_DOCUMENT_START_EVENT:
            if (++documents > 1)
                code = SW_FAIL(err, SW_E_USAGE, "%s: a second YAML document", at);
            break;
        case YAML_MAPPING_START_EVENT:
            depth++;
            break;
        case YAML_MAPPING_END_EVENT:
            depth--;
            break;
        default:
            if (depth > 0)
                code = read_entry(reader, &event, err);
            else if (event.type != YAML_SCALAR_EVENT || event.data.scalar.length > 0)
                code = SW_FAIL(err, SW_E_USAGE, "%s: sections with keys were expected", at);
        }
        if (code == SW_OK && depth > 1)
            code = SW_FAIL(err, SW_E_USAGE, "%s: a section such as \"train:\" was expected", at);
        yaml_event_delete(&event);
        if (code != SW_OK || end)
            return code;
    }
}

static sw_code read_text(struct reader *reader, const char *text, int64_t bytes, struct sw_err *err)
{
    reader->text = text;
    reader->text_bytes = (size_t)bytes;
    if (yaml_parser_initialize(&reader->parser) == 0)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", reader->path);
    yaml_parser_set_encoding(&reader->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&reader->parser, (const unsigned char *)text, (size_t)bytes);
    sw_code code = read_document(reader, err);
    yaml_parser_delete(&reader->parser);
    return code;
}

sw_code sw_config_parse(struct sw_config *config, const char *text, int64_t bytes, const char *path,
                        struct sw_err *err)
{
    struct reader reader = {.config = config, .path = path};
    char *copy = sw_strdup(path);
    if (copy == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
    free(config->path);
    config->path = copy;
    return read_text(&reader, text, bytes, err);
}

/* A list with quotes in it, or something odd: a line of YAML. */
static sw_code set_yaml_list(struct sw_config *config, const char *key, const char *value,
                             struct sw_err *err)
{
    struct sw_text line = {0};
    struct reader reader = {.config = config, .path = "--set", .setting = true};
    sw_text_add(&line, "%s: %s\n", key, value);
    sw_code code = sw_text_check(&line, "a setting", err);
    if (code == SW_OK)
        code = read_text(&reader, line.bytes, line.used_bytes, err);
    free(line.bytes);
    return code;
}

/* [a, b*]: cut at the commas, so that what YAML would want in quotes needs none. */
static sw_code set_plain_list(struct sw_config *config, int index, const char *value,
                              struct sw_err *err)
{
    const struct sw_option_source source = {.text = "--set", .verbatim = true};
    const char *values[VALUES_MAX];
    int64_t count = 0;
    char *copy = sw_strdup(value + 1), *close = copy != NULL ? strrchr(copy, ']') : NULL;
    sw_code code = SW_OK;
    if (copy == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the configuration");
    if (close == NULL || close[1 + strspn(close + 1, " ")] != '\0') {
        code = SW_FAIL(err, SW_E_USAGE, "--set: %s: the list %s has no ] at its end",
                       sw_options[index].key, value);
        goto out;
    }
    *close = '\0';
    for (char *at = copy + strspn(copy, " "); at != NULL && (count > 0 || *at != '\0');) {
        char *comma = strchr(at, ','), *end = comma != NULL ? comma : at + strlen(at);
        while (end > at && end[-1] == ' ')
            end--;
        if (count == VALUES_MAX) {
            code = SW_FAIL(err, SW_E_USAGE, "--set: a list of more than %d values", VALUES_MAX);
            goto out;
        }
        values[count++] = at;
        at = comma != NULL ? comma + 1 + strspn(comma + 1, " ") : NULL;
        *end = '\0';
    }
    code = sw_option_assign(config, index, values, count, true, &source, err);
out:
    free(copy);
    return code;
}

sw_code sw_config_set(struct sw_config *config, const char *assignment, struct sw_err *err)
{
    const char *equals = strchr(assignment, '=');
    char key[KEY_BYTES];
    if (equals == NULL || equals == assignment || equals - assignment >= KEY_BYTES)
        return SW_FAIL(err, SW_E_USAGE, "--set %.100s: key=value was expected", assignment);
    memcpy(key, assignment, (size_t)(equals - assignment));
    key[equals - assignment] = '\0';
    int index = sw_config_find(key);
    if (index < 0)
        return sw_option_unknown(key, "--set", err);
    const char *value = equals + 1;
    if (value[0] != '[') {
        const struct sw_option_source source = {.text = "--set", .verbatim = true};
        return sw_option_assign(config, index, &value, 1, false, &source, err);
    }
    return strpbrk(value, "\"'{}#") != NULL || strchr(value + 1, '[') != NULL
               ? set_yaml_list(config, key, value, err)
               : set_plain_list(config, index, value, err);
}
