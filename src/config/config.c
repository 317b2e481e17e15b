#include "config/config.h"

#include "base/file.h"
#include "config/table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int sw_config_count(void)
{
    return sw_option_count;
}

const char *sw_config_key(int index)
{
    return sw_options[index].key;
}

const char *sw_config_key_help(int index)
{
    return sw_options[index].help;
}

int sw_config_find(const char *key)
{
    for (int i = 0; i < sw_option_count; i++)
        if (strcmp(sw_options[i].key, key) == 0)
            return i;
    return -1;
}

sw_code sw_config_init(struct sw_config *config, struct sw_err *err)
{
    memset(config, 0, sizeof *config);
    sw_code code = SW_OK;
    for (int i = 0; i < sw_option_count && code == SW_OK; i++) {
        const char *initial = sw_options[i].initial;
        if (initial == NULL || strcmp(initial, "[]") == 0)
            continue;
        char assignment[256];
        snprintf(assignment, sizeof assignment, "%s=%s", sw_options[i].key, initial);
        code = sw_config_set(config, assignment, err);
    }
    memset(config->given, 0, sizeof config->given);
    if (code != SW_OK)
        sw_config_deinit(config);
    return code;
}

/* Levenshtein's distance, for short strings. */
static int distance(const char *a, const char *b)
{
    enum { LONGEST = 64 };
    int row[LONGEST + 1];
    size_t columns = strlen(b);
    if (columns > LONGEST)
        return LONGEST;
    for (size_t j = 0; j <= columns; j++)
        row[j] = (int)j;
    for (size_t i = 1; a[i - 1] != '\0'; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= columns; j++) {
            int replace = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            row[j] = replace < shorter + 1 ? replace : shorter + 1;
        }
    }
    return row[columns];
}

/* How far a mistyped key is from a valid one: as a whole, or by its last part alone when that is
 * closer (the right name in the wrong section). */
static int key_distance(const char *key, const char *valid)
{
    const char *name = strrchr(key, '.'), *valid_name = strrchr(valid, '.');
    int whole = distance(key, valid);
    int part = distance(name != NULL ? name + 1 : key, valid_name + 1) + 1;
    return part < whole ? part : whole;
}

sw_code sw_option_unknown(const char *key, const char *where, struct sw_err *err)
{
    int best = 0;
    for (int i = 1; i < sw_option_count; i++)
        if (key_distance(key, sw_options[i].key) < key_distance(key, sw_options[best].key))
            best = i;
    return SW_FAIL(err, SW_E_USAGE,
                   "%s: there is no key %s; the nearest is %s (spillway help config lists all)",
                   where, key, sw_options[best].key);
}

static bool is_set(const struct sw_config *config, int index)
{
    const struct sw_option *option = &sw_options[index];
    if (!config->given[index])
        return false;
    if (option->type != SW_OPTION_STRING)
        return true;
    char *const *string = (const void *)((const char *)config + option->offset);
    return *string != NULL && **string != '\0';
}

bool sw_config_given(const struct sw_config *config, const char *key)
{
    int index = sw_config_find(key);
    sw_assert(index >= 0);
    return config->given[index];
}

sw_code sw_config_require(const struct sw_config *config, const char *key, struct sw_err *err)
{
    int index = sw_config_find(key);
    sw_assert(index >= 0);
    if (is_set(config, index))
        return SW_OK;
    return SW_FAIL(err, SW_E_USAGE, "%s is not set (%s)", key, sw_options[index].help);
}

sw_code sw_config_check(const struct sw_config *config, struct sw_err *err)
{
    if (config->train.steps > 0 && sw_config_given(config, "train.epochs"))
        return SW_FAIL(err, SW_E_USAGE,
                       "train.steps and train.epochs are both set; keep one of them");
    if (config->train.micro_batch > config->train.global_batch)
        return SW_FAIL(err, SW_E_USAGE,
                       "train.micro_batch (%lld) exceeds train.global_batch (%lld)",
                       (long long)config->train.micro_batch, (long long)config->train.global_batch);
    if (config->train.dropout < 0 && config->train.dropout != -1)
        return SW_FAIL(err, SW_E_USAGE, "train.dropout: %g is no probability (-1: the model's own)",
                       config->train.dropout);
    if (config->precision.compute == SW_CFG_FP16)
        return SW_FAIL(err, SW_E_USAGE,
                       "precision.compute: fp16 is not supported; use bf16 or fp32");
    if (config->precision.compute == SW_CFG_BF16 && config->devices.kind == SW_CFG_CPU)
        return SW_FAIL(
            err, SW_E_USAGE,
            "precision.compute: bf16 needs devices.kind: cuda; the cpu computes in fp32");
    if (config->output.eval_every > 0 && config->data.eval[0] == '\0')
        return SW_FAIL(err, SW_E_USAGE, "output.eval_every is set, data.eval is not");
    bool nvme = config->offload.params == SW_CFG_HOME_NVME ||
                config->offload.optimizer == SW_CFG_HOME_NVME ||
                config->offload.grads == SW_CFG_HOME_NVME ||
                config->offload.activations == SW_CFG_HOME_NVME;
    if (nvme && config->offload.nvme.count == 0)
        return SW_FAIL(err, SW_E_USAGE,
                       "something is to live on nvme, but offload.nvme names no directory");
    int64_t ranks = config->parallel.pipeline * config->parallel.data;
    if (config->devices.count > 0 && config->devices.count != ranks)
        return SW_FAIL(err, SW_E_USAGE,
                       "devices.count is %lld, parallel.pipeline x parallel.data is %lld",
                       (long long)config->devices.count, (long long)ranks);
    return SW_OK;
}

void sw_config_dump(const struct sw_config *config, struct sw_text *out)
{
    size_t section = 0;
    for (int i = 0; i < sw_option_count; i++) {
        const char *key = sw_options[i].key;
        size_t prefix = strcspn(key, ".");
        if (i == 0 || section != prefix || strncmp(key, sw_options[i - 1].key, prefix) != 0)
            sw_text_add(out, "%.*s:\n", (int)prefix, key);
        section = prefix;
        sw_text_add(out, "  %s: ", key + prefix + 1);
        sw_option_print(config, i, out);
        sw_text_add(out, "\n");
    }
}

void sw_config_help(struct sw_text *out)
{
    static const char *const types[] = {"text",   "true or false",  "number", "size",
                                        "number", "two numbers",    "time",   "",
                                        "list",   "list of numbers"};
    for (int i = 0; i < sw_option_count; i++) {
        const struct sw_option *option = &sw_options[i];
        sw_text_add(out, "%-24s %s\n", option->key, option->help);
        sw_text_add(out, "%-24s   %s; default: %s\n", "",
                    option->choices != NULL ? option->choices : types[option->type],
                    option->initial == NULL      ? "none"
                    : option->initial[0] == '\0' ? "none"
                                                 : option->initial);
    }
}

sw_code sw_config_read(struct sw_config *config, const char *path, struct sw_err *err)
{
    enum { MAX_BYTES = 1 << 20 };
    char *text;
    int64_t bytes;
    sw_code code = sw_file_read(path, MAX_BYTES, &text, &bytes, err);
    if (code != SW_OK) {
        if (err != NULL && code == SW_E_IO)
            err->code = SW_E_USAGE; /* a wrong path on the command line */
        return err != NULL ? err->code : SW_E_USAGE;
    }
    code = sw_config_parse(config, text, bytes, path, err);
    free(text);
    return code;
}
