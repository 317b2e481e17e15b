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
    return SW_FAIL(err, SW_E_USAGE, "%s: %s: %s is out of range; from %g to %g", source->text,
                   option->key, value, option->least, option->most);
}

static bool parse_real(const char *text, double *out)
{
    char *end;
    if (*text == '\0' || strpbrk(text, " \t\n") != NULL)
        return false;
    errno = 0;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

static bool parse_integer(const char *text, int64_t *out)
{
    char *end;
    if (*text == '\0' || strpbrk(text, " \t\n") != NULL)
        return false;
    errno = 0;
    *out = strtoll(text, &end, 10);
    return *end == '\0' && errno == 0;
}

/* 4096, 22.5GiB, 512 MiB */
static bool parse_size(const char *text, int64_t *out)
{
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    char *end;
    if (!(*text >= '0' && *text <= '9'))
        return false;
    double number = strtod(text, &end);
    while (*end == ' ')
        end++;
    for (int i = 0; i < 5; i++)
        if (strcmp(end, units[i]) == 0) {
            double bytes = ldexp(number, 10 * i);
            if (bytes > 9007199254740992.0 || bytes != floor(bytes))
                return false;
            *out = (int64_t)bytes;
            return true;
        }
    return false;
}

/* 90, 90s, 15m, 8h30m, 2d */
static bool parse_duration(const char *text, double *out)
{
    double seconds = 0;
    if (*text == '\0')
        return false;
    while (*text != '\0') {
        char *end;
        if (!(*text >= '0' && *text <= '9'))
            return false;
        double number = strtod(text, &end);
        switch (*end) {
        case 'd':
            number *= 86400;
            break;
        case 'h':
            number *= 3600;
            break;
        case 'm':
            number *= 60;
            break;
        case 's':
        case '\0':
            break;
        default:
            return false;
        }
        seconds += number;
        text = *end == '\0' ? end : end + 1;
    }
    *out = seconds;
    return true;
}

/* Position of `value` among space-separated names, or -1. */
static int find_choice(const char *choices, const char *value)
{
    size_t bytes = strlen(value);
    for (int index = 0; *choices != '\0'; index++) {
        size_t name = strcspn(choices, " ");
        if (name == bytes && memcmp(choices, value, bytes) == 0)
            return index;
        choices += name;
        choices += *choices == ' ';
    }
    return -1;
}

static sw_code assign_choice(int *to, const struct sw_option *option, const char *value,
                             const struct sw_option_source *source, struct sw_err *err)
{
    int choice = find_choice(option->choices, value);
    if (choice < 0)
        return SW_FAIL(err, SW_E_USAGE, "%s: %s: %s is not one of: %s", source->text, option->key,
                       value, option->choices);
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
        if (!parse_size(value, &integer))
            return refuse(option, value, source, "a size, such as 1048576, 512MiB or 22.5GiB", err);
        break;
    case SW_OPTION_DURATION:
        if (!parse_duration(value, &real))
            return refuse(option, value, source, "a time, such as 90s, 15m or 8h30m", err);
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

static sw_code assign_string(char **to, const char *value, struct sw_err *err)
{
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

static sw_code assign_strings(struct sw_strings *to, const char *const *values, int64_t count,
                              struct sw_err *err)
{
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
        return assign_strings(member(config, option), values, count, err);
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

sw_code sw_option_assign(struct sw_config *config, int index, const char *const *values,
                         int64_t count, bool is_list, const struct sw_option_source *source,
                         struct sw_err *err)
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
        return assign_string(to, value, err);
    case SW_OPTION_BOOL:
        if (source->quoted || (strcmp(value, "true") != 0 && strcmp(value, "false") != 0))
            return refuse(option, value, source, "true or false", err);
        *(bool *)to = value[0] == 't';
        return SW_OK;
    case SW_OPTION_CHOICE:
        /* YAML's other spellings of what "on" and "off" are written as in files. */
        return assign_choice(to, option, value, source, err);
    default:
        return assign_number(to, option, value, source, err);
    }
}

static void print_choice(const struct sw_option *option, int choice, struct sw_text *out)
{
    const char *name = option->choices;
    for (; choice > 0; choice--)
        name += strcspn(name, " ") + 1;
    sw_text_add(out, "%.*s", (int)strcspn(name, " "), name);
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
}
