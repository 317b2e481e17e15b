/* Values of options: from text and to text. */
#include "base/mem.h"
#include "config/table.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *member(struct sw_config *config, const struct sw_option *option)
{
    return (char *)config + option->offset;
}

static const void *member_const(const struct sw_config *config, const struct sw_option *option)
{
    return (const char *)config + option->offset;
}

static sw_code refuse(const struct sw_option *option, const char *value,
                      const struct sw_option_source *source, const char *wanted, struct sw_err *err)
{
    return SW_FAIL(err, SW_E_USAGE, "%s: %s: %s%s%s is not %s", source->text, option->key,
                   source->quoted ? "\"" : "", value, source->quoted ? "\"" : "", wanted);
}

static sw_code check_range(const struct sw_option *option, double number, const char *value,
                           const struct sw_option_source *source, struct sw_err *err)
{
    if (number >= option->least && number <= option->most)
        return SW_OK;
    return SW_FAIL(err, SW_E_USAGE, "%s: %s: %s is out of range; from %.15g to %.16g", source->text,
                   option->key, value, option->least, option->most);
}

/* A number as YAML writes it: 3, -.5, 1e-3; no hexadecimal, infinity or NaN. */
static bool parse_real(const char *text, double *out)
{
    const char *at = text + (*text == '-' || *text == '+');
    size_t whole = strspn(at, "0123456789"), fraction = 0, exponent = 1;
    at += whole;
    if (*at == '.') {
        fraction = strspn(at + 1, "0123456789");
        at += 1 + fraction;
    }
    if (*at == 'e' || *at == 'E') {
        at += 1 + (at[1] == '-' || at[1] == '+');
        exponent = strspn(at, "0123456789");
        at += exponent;
    }
    if (whole + fraction == 0 || exponent == 0 || *at != '\0')
        return false;
    *out = strtod(text, NULL);
    return isfinite(*out);
}

static bool parse_integer(const char *text, int64_t *out)
{
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits == '\0' || digits[strspn(digits, "0123456789")] != '\0')
        return false;
    errno = 0;
    *out = strtoll(text, NULL, 10);
    return errno == 0;
}

/* 90, 90s, 0.5s, 15m, 8h30m, 1.5d: falling units, each once; without a unit, seconds. */
static bool parse_duration(const char *text, double *out)
{
    static const char units[] = "dhms";
    static const double unit_seconds[] = {86400, 3600, 60, 1};
    double seconds = 0;
    int next = 0;
    if (*text >= '0' && *text <= '9' && parse_real(text, out))
        return true;
    if (*text == '\0')
        return false;
    while (*text != '\0') {
        char digits[24];
        double count;
        size_t used = strspn(text, "0123456789.");
        const char *unit = text[used] != '\0' ? strchr(units + next, text[used]) : NULL;
        if (unit == NULL || used >= sizeof digits)
            return false;
        memcpy(digits, text, used);
        digits[used] = '\0';
        if (!parse_real(digits, &count))
            return false;
        next = (int)(unit - units) + 1;
        seconds += count * unit_seconds[next - 1];
        text += used + 1;
    }
    *out = seconds;
    return true;
}

/* Position of `value` among the space-separated choices, or -1. */
static int find_choice(const char *choices, const char *value)
{
    size_t bytes = strlen(value);
    int index = 0;
    while (*choices != '\0') {
        size_t name = strcspn(choices, " |");
        if (name == bytes && memcmp(choices, value, bytes) == 0)
            return index;
        choices += name;
        index += *choices == ' ';
        choices += *choices != '\0';
    }
    return -1;
}

static sw_code assign_choice(int *to, const struct sw_option *option, const char *value,
                             const struct sw_option_source *source, struct sw_err *err)
{
    int choice = find_choice(option->choices, value);
    if (choice < 0) {
        struct sw_text wanted = {0};
        sw_option_describe(option, &wanted);
        (void)refuse(option, value, source, wanted.bytes != NULL ? wanted.bytes : "a choice", err);
        free(wanted.bytes);
        return err != NULL ? err->code : SW_E_USAGE;
    }
    *to = choice;
    return SW_OK;
}

static sw_code assign_number(void *to, const struct sw_option *option, const char *value,
                             const struct sw_option_source *source, struct sw_err *err)
{
    double real = 0;
    int64_t integer = 0;
    bool number = option->type != SW_OPTION_SIZE && option->type != SW_OPTION_DURATION;
    if (source->quoted && number)
        return refuse(option, value, source, "a number (it stands in quotes)", err);
    switch (option->type) {
    case SW_OPTION_INTEGER:
        if (!parse_integer(value, &integer))
            return refuse(option, value, source, "a whole number", err);
        break;
    case SW_OPTION_SIZE:
        if (!sw_text_parse_size(value, &integer))
            return refuse(option, value, source, "a size, such as 1048576, 512MiB or 22.5GiB", err);
        break;
    case SW_OPTION_DURATION:
        if (!parse_duration(value, &real))
            return refuse(option, value, source, "a time, such as 90s, 0.5m or 8h30m", err);
        break;
    default:
        if (!parse_real(value, &real))
            return refuse(option, value, source, "a number", err);
        break;
    }
    bool whole = option->type == SW_OPTION_INTEGER || option->type == SW_OPTION_SIZE;
    sw_code code = check_range(option, whole ? (double)integer : real, value, source, err);
    if (code == SW_OK && whole)
        *(int64_t *)to = integer;
    else if (code == SW_OK)
        *(double *)to = real;
    return code;
}

/* What YAML takes for a number, a truth value or nothing is no string, unless it is quoted or comes
 * from the command line. */
static bool is_string(const char *value, const struct sw_option_source *source)
{
    double number;
    return source->quoted || source->verbatim ||
           !(parse_real(value, &number) || strcmp(value, "true") == 0 ||
             strcmp(value, "false") == 0 || strcmp(value, "null") == 0 || strcmp(value, "~") == 0);
}

static sw_code assign_string(char **to, const struct sw_option *option, const char *value,
                             const struct sw_option_source *source, struct sw_err *err)
{
    if (!is_string(value, source))
        return refuse(option, value, source, "text (put it in quotes if it is)", err);
    char *copy = sw_strdup(value);
    if (copy == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the configuration");
    free(*to);
    *to = copy;
    return SW_OK;
}

static void free_strings(struct sw_strings *strings)
{
    for (int64_t i = 0; i < strings->count; i++)
        free(strings->items[i]);
    free(strings->items);
    *strings = (struct sw_strings){0};
}

static sw_code assign_strings(struct sw_strings *to, const struct sw_option *option,
                              const char *const *values, int64_t count,
                              const struct sw_option_source *source, struct sw_err *err)
{
    for (int64_t i = 0; i < count; i++)
        if (values[i][0] == '\0' || !is_string(values[i], source))
            return refuse(option, values[i], source, "text (put it in quotes if it is)", err);
    struct sw_strings list = {.items = sw_calloc(count + 1, sizeof(char *))};
    for (; list.items != NULL && list.count < count; list.count++)
        if ((list.items[list.count] = sw_strdup(values[list.count])) == NULL)
            break;
    if (list.items == NULL || list.count < count) {
        free_strings(&list);
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the configuration");
    }
    free_strings(to);
    *to = list;
    return SW_OK;
}

static sw_code assign_list(struct sw_config *config, const struct sw_option *option,
                           const char *const *values, int64_t count,
                           const struct sw_option_source *source, struct sw_err *err)
{
    if (option->type == SW_OPTION_STRINGS)
        return assign_strings(member(config, option), option, values, count, source, err);
    if (option->type == SW_OPTION_PAIR) {
        const struct sw_option one = {.key = option->key,
                                      .type = SW_OPTION_REAL,
                                      .least = option->least,
                                      .most = option->most};
        double pair[2];
        if (count != 2)
            return SW_FAIL(err, SW_E_USAGE,
                           "%s: %s wants two numbers, [0.9, 0.999]; there are %lld", source->text,
                           option->key, (long long)count);
        for (int i = 0; i < 2; i++)
            if (assign_number(&pair[i], &one, values[i], source, err) != SW_OK)
                return err->code;
        memcpy(member(config, option), pair, sizeof pair);
        return SW_OK;
    }
    const struct sw_option one = {.key = option->key,
                                  .type = SW_OPTION_INTEGER,
                                  .least = option->least,
                                  .most = option->most};
    struct sw_integers list = {.count = count};
    if (count > SW_CONFIG_LIST)
        return SW_FAIL(err, SW_E_USAGE, "%s: %s has more than %d entries", source->text,
                       option->key, SW_CONFIG_LIST);
    for (int64_t i = 0; i < count; i++) {
        sw_code code = assign_number(&list.items[i], &one, values[i], source, err);
        if (code != SW_OK)
            return code;
    }
    memcpy(member(config, option), &list, sizeof list);
    return SW_OK;
}

static bool takes_list(enum sw_option_type type)
{
    return type == SW_OPTION_STRINGS || type == SW_OPTION_INTEGERS || type == SW_OPTION_PAIR;
}

static sw_code assign(struct sw_config *config, int index, const char *const *values, int64_t count,
                      bool is_list, const struct sw_option_source *source, struct sw_err *err)
{
    const struct sw_option *option = &sw_options[index];
    void *to = member(config, option);
    if (is_list != takes_list(option->type) &&
        !(option->type == SW_OPTION_STRINGS && count == 1)) /* one string for a list of one */
        return SW_FAIL(err, SW_E_USAGE,
                       is_list ? "%s: %s takes one value, not a list"
                               : "%s: %s takes a list: [a, b]",
                       source->text, option->key);
    if (takes_list(option->type))
        return assign_list(config, option, values, count, source, err);
    const char *value = values[0];
    switch (option->type) {
    case SW_OPTION_STRING:
        return assign_string(to, option, value, source, err);
    case SW_OPTION_BOOL:
        if (source->quoted || (strcmp(value, "true") != 0 && strcmp(value, "false") != 0))
            return refuse(option, value, source, "true or false", err);
        *(bool *)to = value[0] == 't';
        return SW_OK;
    case SW_OPTION_CHOICE:
        return assign_choice(to, option, value, source, err);
    default:
        return assign_number(to, option, value, source, err);
    }
}

sw_code sw_option_assign(struct sw_config *config, int index, const char *const *values,
                         int64_t count, bool is_list, const struct sw_option_source *source,
                         struct sw_err *err)
{
    sw_code code = assign(config, index, values, count, is_list, source, err);
    if (code == SW_OK) {
        config->given[index] = true;
        config->lines[index] = source->line;
    }
    return code;
}

void sw_option_describe(const struct sw_option *option, struct sw_text *out)
{
    static const char *const types[] = {
        [SW_OPTION_STRING] = "text",
        [SW_OPTION_BOOL] = "true or false",
        [SW_OPTION_INTEGER] = "a whole number",
        [SW_OPTION_SIZE] = "a size, as in 22.5GiB",
        [SW_OPTION_REAL] = "a number",
        [SW_OPTION_PAIR] = "a list of two numbers",
        [SW_OPTION_DURATION] = "a time, as in 8h30m",
        [SW_OPTION_STRINGS] = "a list of texts",
        [SW_OPTION_INTEGERS] = "a list of whole numbers",
        [SW_OPTION_CHOICE] = NULL,
    };
    enum { BOUND_SHOWN = 1000000 }; /* beyond it nobody asks */
    if (option->type == SW_OPTION_CHOICE) {
        for (const char *at = option->choices; *at != '\0'; at += *at != '\0') {
            size_t name = strcspn(at, " |"), whole = strcspn(at, " ");
            bool last = at[whole] == '\0';
            sw_text_add(out, "%s%.*s",
                        at == option->choices ? ""
                        : last                ? " or "
                                              : ", ",
                        (int)name, at);
            at += whole;
        }
        return;
    }
    sw_text_add(out, "%s", types[option->type]);
    if (option->type == SW_OPTION_STRING || option->type == SW_OPTION_BOOL ||
        option->type == SW_OPTION_STRINGS || option->type == SW_OPTION_SIZE ||
        option->type == SW_OPTION_DURATION)
        return;
    sw_text_add(out, " from %g", option->least);
    if (option->most <= BOUND_SHOWN)
        sw_text_add(out, " to %.9g", option->most);
}

bool sw_option_is(const struct sw_config *config, const char *key, const char *value)
{
    const struct sw_option *option = &sw_options[sw_config_find(key)];
    const int *choice = member_const(config, option);
    return *choice == find_choice(option->choices, value);
}

static void print_choice(const struct sw_option *option, int choice, struct sw_text *out)
{
    const char *name = option->choices;
    for (; choice > 0; choice--)
        name += strcspn(name, " ") + 1;
    sw_text_add(out, "%.*s", (int)strcspn(name, " |"), name);
}

static void print_strings(const struct sw_strings *strings, struct sw_text *out)
{
    sw_text_add(out, "[");
    for (int64_t i = 0; i < strings->count; i++) {
        sw_text_add(out, i > 0 ? ", " : "");
        sw_text_add_json_string(out, strings->items[i]);
    }
    sw_text_add(out, "]");
}

void sw_option_print(const struct sw_config *config, int index, struct sw_text *out)
{
    const struct sw_option *option = &sw_options[index];
    const void *from = member_const(config, option);
    switch (option->type) {
    case SW_OPTION_STRING: {
        char *const *string = from;
        sw_text_add_json_string(out, *string != NULL ? *string : "");
        break;
    }
    case SW_OPTION_BOOL:
        sw_text_add(out, "%s", *(const bool *)from ? "true" : "false");
        break;
    case SW_OPTION_INTEGER:
    case SW_OPTION_SIZE:
        sw_text_add(out, "%lld", (long long)*(const int64_t *)from);
        break;
    case SW_OPTION_REAL:
    case SW_OPTION_DURATION:
        sw_text_add_json_double(out, *(const double *)from);
        break;
    case SW_OPTION_PAIR:
        sw_text_add(out, "[");
        sw_text_add_json_double(out, ((const double *)from)[0]);
        sw_text_add(out, ", ");
        sw_text_add_json_double(out, ((const double *)from)[1]);
        sw_text_add(out, "]");
        break;
    case SW_OPTION_CHOICE:
        print_choice(option, *(const int *)from, out);
        break;
    case SW_OPTION_STRINGS:
        print_strings(from, out);
        break;
    case SW_OPTION_INTEGERS: {
        const struct sw_integers *list = from;
        sw_text_add(out, "[");
        for (int64_t i = 0; i < list->count; i++)
            sw_text_add(out, "%s%lld", i > 0 ? ", " : "", (long long)list->items[i]);
        sw_text_add(out, "]");
        break;
    }
    }
}

void sw_config_deinit(struct sw_config *config)
{
    for (int i = 0; i < sw_option_count; i++) {
        const struct sw_option *option = &sw_options[i];
        if (option->type == SW_OPTION_STRING) {
            char **string = member(config, option);
            free(*string);
            *string = NULL;
        } else if (option->type == SW_OPTION_STRINGS) {
            free_strings(member(config, option));
        }
    }
    free(config->path);
    config->path = NULL;
}
