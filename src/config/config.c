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

sw_code sw_config_settle(struct sw_config *config, struct sw_err *err)
{
    sw_code code = SW_OK;
    for (int i = 0; i < sw_option_default_count && code == SW_OK; i++) {
        const struct sw_option_default *other = &sw_option_defaults[i];
        int index = sw_config_find(other->key);
        char assignment[256];
        if (config->given[index] || !sw_option_is(config, other->when_key, other->when_value))
            continue;
        snprintf(assignment, sizeof assignment, "%s=%s", other->key, other->initial);
        code = sw_config_set(config, assignment, err);
        config->given[index] = false;
    }
    return code;
}

void sw_config_print(const struct sw_config *config, int index, struct sw_text *out)
{
    sw_option_print(config, index, out);
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
    return SW_FAIL(err, SW_E_USAGE, "%s%s%s is not set (%s)",
                   config->path != NULL ? config->path : "", config->path != NULL ? ": " : "", key,
                   sw_options[index].help);
}

/* The key that `text` begins with, or -1. */
static int key_at(const char *text)
{
    for (int i = 0; i < sw_option_count; i++) {
        size_t bytes = strlen(sw_options[i].key);
        char after = strncmp(text, sw_options[i].key, bytes) == 0 ? text[bytes] : 'x';
        if (!(after == '_' || (after >= 'a' && after <= 'z')))
            return i;
    }
    return -1;
}

sw_code sw_config_locate(const struct sw_config *config, struct sw_err *err)
{
    if (err == NULL || err->code != SW_E_USAGE)
        return err != NULL ? err->code : SW_E_USAGE;
    for (const char *at = err->text; *at != '\0'; at += strcspn(at, " "), at += *at == ' ') {
        int index = key_at(at);
        if (index < 0 || !config->given[index])
            continue;
        struct sw_err before = *err;
        if (config->lines[index] > 0)
            snprintf(err->text, sizeof err->text, "%.200s:%d: %.1700s", config->path,
                     (int)config->lines[index], before.text);
        else
            snprintf(err->text, sizeof err->text, "--set: %.1900s", before.text);
        break;
    }
    return err->code;
}

static sw_code check_train(const struct sw_config *c, struct sw_err *err)
{
    long long rows = (long long)c->train.global_batch, replicas = (long long)c->parallel.data;
    if (c->train.steps > 0 && sw_config_given(c, "train.epochs"))
        return SW_FAIL(err, SW_E_USAGE,
                       "train.steps and train.epochs are both set; keep one of them");
    if (rows < replicas)
        return SW_FAIL(err, SW_E_USAGE, "parallel.data (%lld) exceeds train.global_batch (%lld)",
                       replicas, rows);
    if (c->train.micro_batch > rows / replicas)
        return SW_FAIL(err, SW_E_USAGE,
                       "train.micro_batch (%lld) exceeds the rows that a replica has of "
                       "train.global_batch (%lld)",
                       (long long)c->train.micro_batch, rows / replicas);
    if (c->train.dropout < 0 && c->train.dropout > -1)
        return SW_FAIL(err, SW_E_USAGE, "train.dropout: %g is no probability (-1: the model's own)",
                       c->train.dropout);
    if (c->output.eval_every > 0 && !is_set(c, sw_config_find("data.eval")))
        return SW_FAIL(err, SW_E_USAGE, "output.eval_every is set, data.eval is not");
    return SW_OK;
}

static sw_code check_numbers(const struct sw_config *c, struct sw_err *err)
{
    bool elsewhere =
        c->offload.optimizer == SW_CFG_HOME_HOST || c->offload.optimizer == SW_CFG_HOME_NVME;
    if (c->precision.compute == SW_CFG_FP16)
        return SW_FAIL(err, SW_E_USAGE,
                       "precision.compute: fp16 is not supported; use bf16 or fp32");
    if (c->optimizer.where == SW_CFG_WHERE_DEVICE && elsewhere)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.where: device steps what lives there, offload.optimizer is not "
                       "device; use optimizer.where: stream");
    if (c->optimizer.where == SW_CFG_WHERE_HOST && c->offload.optimizer == SW_CFG_HOME_DEVICE)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.where: host steps what the host holds, offload.optimizer is "
                       "device");
    return SW_OK;
}

static sw_code check_ranks(const struct sw_config *c, struct sw_err *err)
{
    long long ranks = (long long)(c->parallel.pipeline * c->parallel.data);
    if (c->devices.count > 0 && c->devices.count != ranks)
        return SW_FAIL(err, SW_E_USAGE,
                       "devices.count is %lld, parallel.pipeline x parallel.data is %lld",
                       (long long)c->devices.count, ranks);
    if (c->devices.list.count > 0 && c->devices.list.count != ranks)
        return SW_FAIL(
            err, SW_E_USAGE,
            "devices.list names %lld device%s, parallel.pipeline x parallel.data is %lld",
            (long long)c->devices.list.count, sw_text_plural(c->devices.list.count), ranks);
    return SW_OK;
}

static sw_code check_spill(const struct sw_config *c, struct sw_err *err)
{
    const struct {
        const char *key;
        bool spills;
    } keys[] = {
        {"offload.params: nvme", c->offload.params == SW_CFG_HOME_NVME},
        {"offload.optimizer: nvme", c->offload.optimizer == SW_CFG_HOME_NVME},
        {"offload.grads: nvme", c->offload.grads == SW_CFG_HOME_NVME},
        {"offload.activations: nvme", c->offload.activations == SW_CFG_HOME_NVME},
        {"offload.nvme_capacity", c->offload.nvme_capacity_bytes > 0},
    };
    const struct sw_strings *nvme = &c->offload.nvme;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].spills && nvme->count == 0)
            return SW_FAIL(err, SW_E_USAGE, "%s needs offload.nvme: [DIRECTORY]", keys[i].key);
    for (int64_t i = 0; i < nvme->count; i++)
        for (int64_t j = 0; j < i; j++)
            if (strcmp(nvme->items[i], nvme->items[j]) == 0)
                return SW_FAIL(err, SW_E_USAGE, "offload.nvme has %s twice", nvme->items[i]);
    return SW_OK;
}

/* A key that nothing reads must not look as if it did. */
static sw_code check_data(const struct sw_config *config, struct sw_err *err)
{
    if (strcmp(config->data.text_field, "text") == 0) /* its default, given or not */
        return SW_OK;
    return SW_FAIL(err, SW_E_USAGE,
                   "data.text_field: it is for causal models, which this version has not; rows of "
                   "T5 have two fields, data.source_field and data.target_field (plain text is not "
                   "turned into rows by span corruption)");
}

/* Neither YAML nor the shell behind "--set key=" makes a home directory of ~: a run would go into a
 * directory of that name. */
static sw_code check_path(const char *key, const char *path, struct sw_err *err)
{
    if (path == NULL || path[0] != '~' || (path[1] != '/' && path[1] != '\0'))
        return SW_OK;
    return SW_FAIL(err, SW_E_USAGE, "%s: ~ of %s is not expanded here; write the whole path", key,
                   path);
}

static sw_code check_paths(const struct sw_config *c, struct sw_err *err)
{
    const struct {
        const char *key, *path;
    } paths[] = {{"model.path", c->model.path},
                 {"data.train", c->data.train},
                 {"data.eval", c->data.eval},
                 {"output.dir", c->output.dir},
                 {"run.machine", c->run.machine}};
    sw_code code = SW_OK;
    for (size_t i = 0; i < sizeof paths / sizeof *paths && code == SW_OK; i++)
        code = check_path(paths[i].key, paths[i].path, err);
    for (int64_t i = 0; i < c->offload.nvme.count && code == SW_OK; i++)
        code = check_path("offload.nvme", c->offload.nvme.items[i], err);
    return code;
}

sw_code sw_config_check(const struct sw_config *config, struct sw_err *err)
{
    sw_code code = check_train(config, err);
    if (code == SW_OK)
        code = check_paths(config, err);
    if (code == SW_OK)
        code = check_data(config, err);
    if (code == SW_OK)
        code = check_numbers(config, err);
    if (code == SW_OK)
        code = check_ranks(config, err);
    if (code == SW_OK)
        code = check_spill(config, err);
    return code == SW_OK ? SW_OK : sw_config_locate(config, err);
}

/* Bytes of the section's name when a section begins with option `index`, else 0. */
static size_t begins_section(int index)
{
    const char *key = sw_options[index].key;
    size_t bytes = strcspn(key, ".") + 1;
    return index == 0 || strncmp(key, sw_options[index - 1].key, bytes) != 0 ? bytes - 1 : 0;
}

void sw_config_dump(const struct sw_config *config, struct sw_text *out)
{
    for (int i = 0; i < sw_option_count; i++) {
        const char *key = sw_options[i].key;
        if (begins_section(i) > 0)
            sw_text_add(out, "%.*s:\n", (int)begins_section(i), key);
        sw_text_add(out, "  %s%s: ", config->given[i] ? "" : "# ", strchr(key, '.') + 1);
        sw_option_print(config, i, out);
        sw_text_add(out, "\n");
    }
}

/* "1e-4 (adafactor: 1e-3)" */
static void add_initial(struct sw_text *out, int index)
{
    const char *initial = sw_options[index].initial;
    sw_text_add(out, "%s", initial != NULL && initial[0] != '\0' ? initial : "none");
    for (int i = 0; i < sw_option_default_count; i++)
        if (strcmp(sw_option_defaults[i].key, sw_options[index].key) == 0)
            sw_text_add(out, " (%s: %s)", sw_option_defaults[i].when_value,
                        sw_option_defaults[i].initial);
}

void sw_config_help(struct sw_text *out)
{
    sw_text_add(out,
                "In YAML a section holds its keys; any key can be given as --set KEY=VALUE.\n");
    for (int i = 0; i < sw_option_count; i++) {
        if (begins_section(i) > 0)
            sw_text_add(out, "\n");
        sw_text_add(out, "%-26s %s\n%-26s   ", sw_options[i].key, sw_options[i].help, "");
        sw_option_describe(&sw_options[i], out);
        sw_text_add(out, "; default: ");
        add_initial(out, i);
        sw_text_add(out, "\n");
    }
}

void sw_config_help_markdown(struct sw_text *out)
{
    for (int i = 0; i < sw_option_count; i++) {
        const char *key = sw_options[i].key;
        if (begins_section(i) > 0)
            sw_text_add(out,
                        "\n## %.*s\n\n| key | takes | default | |\n| --- | --- | --- | --- |\n",
                        (int)begins_section(i), key);
        sw_text_add(out, "| `%s` | ", key);
        sw_option_describe(&sw_options[i], out);
        sw_text_add(out, " | ");
        add_initial(out, i);
        sw_text_add(out, " | %s |\n", sw_options[i].help);
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
