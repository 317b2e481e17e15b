#include "model/mapping.h"

#include "base/mem.h"
#include "base/text.h"
#include "model/config.h"
#include "model/config_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const char unused_name[] =
    "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight";
static const char head_name[] = "lm_head.weight";
/* Names of the shared embedding; the first that is there is read. */
static const char *const embedding_names[] = {"shared.weight", "encoder.embed_tokens.weight",
                                              "decoder.embed_tokens.weight"};
enum { EMBEDDING_NAMES = 3, LISTED_MAX = 6 };

struct entry {
    const struct sw_tensor *tensor;
    bool used;
};

struct mapper {
    const char *where;
    struct entry *entries; /* sorted by name */
    int64_t count;
    sw_tensor_equal_fn equal;
    const struct sw_tensor *embedding; /* NULL: there is none */
};

static int compare_entries(const void *a, const void *b)
{
    return strcmp(((const struct entry *)a)->tensor->name, ((const struct entry *)b)->tensor->name);
}

static int compare_name(const void *name, const void *entry)
{
    return strcmp(name, ((const struct entry *)entry)->tensor->name);
}

static struct entry *find(const struct mapper *mapper, const char *name)
{
    return mapper->count == 0 ? NULL
                              : bsearch(name, mapper->entries, (size_t)mapper->count,
                                        sizeof *mapper->entries, compare_name);
}

static sw_code mapper_open(struct mapper *mapper, const char *where,
                           const struct sw_tensor *tensors, int64_t count, sw_tensor_equal_fn equal,
                           struct sw_err *err)
{
    *mapper = (struct mapper){.where = where, .count = count, .equal = equal};
    mapper->entries = sw_calloc(count + 1, sizeof *mapper->entries);
    if (mapper->entries == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the names of %" PRId64 " tensors in %s",
                       count, where);
    for (int64_t i = 0; i < count; i++)
        mapper->entries[i].tensor = &tensors[i];
    qsort(mapper->entries, (size_t)count, sizeof *mapper->entries, compare_entries);
    return SW_OK;
}

/* --- What the vocabulary's matrices are ---------------------------------------------------------
 */

static sw_code find_embedding(struct mapper *mapper, struct sw_err *err)
{
    for (int i = 0; i < EMBEDDING_NAMES; i++) {
        struct entry *entry = find(mapper, embedding_names[i]);
        bool same = true;
        if (entry == NULL)
            continue;
        entry->used = true;
        if (mapper->embedding == NULL) {
            mapper->embedding = entry->tensor;
            continue;
        }
        sw_code code = mapper->equal(mapper->embedding, entry->tensor, &same, err);
        if (code != SW_OK)
            return sw_err_while(err, "comparing copies of the embedding");
        if (!same)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s: %s and %s are copies of one embedding, but they differ",
                           mapper->where, mapper->embedding->name, entry->tensor->name);
    }
    return SW_OK;
}

/* In a tied configuration: does the file's head say otherwise? */
static sw_code decide_head(struct mapper *mapper, enum sw_head *out, struct sw_err *err)
{
    struct entry *entry = find(mapper, head_name);
    bool same = false;
    *out = SW_HEAD_BY_CONFIG;
    if (entry == NULL)
        return SW_OK;
    if (mapper->embedding != NULL &&
        mapper->equal(mapper->embedding, entry->tensor, &same, err) != SW_OK)
        return sw_err_while(err, "comparing the head with the embedding");
    if (same)
        entry->used = true;
    else
        *out = SW_HEAD_SEPARATE;
    return SW_OK;
}

static sw_code open_model(struct mapper *mapper, const struct sw_json *config,
                          const char *config_path, struct sw_model **out, struct sw_err *err)
{
    struct sw_t5_config t5;
    enum sw_head head = SW_HEAD_BY_CONFIG;
    sw_code code = sw_t5_config_read(config, config_path, &t5, err);
    if (code == SW_OK)
        code = find_embedding(mapper, err);
    if (code == SW_OK && t5.tied)
        code = decide_head(mapper, &head, err);
    if (code != SW_OK)
        return code;
    return sw_model_open(config, config_path, head, out, err);
}

/* --- One tensor for every parameter -------------------------------------------------------------
 */

static sw_code check_shape(const struct mapper *mapper, const struct sw_param *param,
                           const struct sw_tensor *tensor, struct sw_err *err)
{
    bool same = tensor->dims == param->dims;
    for (int i = 0; same && i < param->dims; i++)
        same = tensor->shape[i] == param->shape[i];
    if (same)
        return sw_tensor_check_readable(tensor, err);
    struct sw_tensor wanted = {.dims = param->dims, .shape = {param->shape[0], param->shape[1]}};
    char has[SW_TENSOR_SHAPE_TEXT_BYTES];
    char wants[SW_TENSOR_SHAPE_TEXT_BYTES];
    return SW_FAIL(err, SW_E_FORMAT, "%s: %s is %s, but config.json makes it %s", mapper->where,
                   tensor->name, sw_tensor_shape_text(tensor, has),
                   sw_tensor_shape_text(&wanted, wants));
}

/* The tensor of a parameter; NULL: none. */
static const struct sw_tensor *source_of(struct mapper *mapper, const struct sw_param *param)
{
    if (strcmp(param->name, embedding_names[0]) == 0)
        return mapper->embedding;
    struct entry *entry = find(mapper, param->name);
    if (entry == NULL)
        return NULL;
    entry->used = true;
    return entry->tensor;
}

struct list {
    struct sw_text text;
    int64_t count;
};

static void list_add(struct list *list, const char *name)
{
    if (list->count++ < LISTED_MAX)
        sw_text_add(&list->text, "%s%.*s", list->count == 1 ? "" : ", ", SW_PARAM_NAME_BYTES, name);
}

static void list_end(struct list *list)
{
    if (list->count > LISTED_MAX)
        sw_text_add(&list->text, " and %" PRId64 " more", list->count - LISTED_MAX);
}

static sw_code report(const struct mapper *mapper, struct list *missing, struct list *unexpected,
                      struct sw_err *err)
{
    list_end(missing);
    list_end(unexpected);
    if (missing->text.failed || unexpected->text.failed)
        return SW_FAIL(err, SW_E_MEMORY, "%s: keys are missing or unexpected", mapper->where);
    if (missing->count > 0 && unexpected->count > 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: the weights do not fit config.json; missing: %s; not expected: %s",
                       mapper->where, missing->text.bytes, unexpected->text.bytes);
    if (missing->count > 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s: the weights do not fit config.json; missing: %s",
                       mapper->where, missing->text.bytes);
    if (unexpected->count > 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s: the weights do not fit config.json; not expected: %s",
                       mapper->where, unexpected->text.bytes);
    return SW_OK;
}

static sw_code check_names(struct mapper *mapper, const struct sw_model *model,
                           const struct sw_mapping *mapping, struct sw_err *err)
{
    struct list missing = {0};
    struct list unexpected = {0};
    for (int64_t i = 0; i < model->param_count; i++) {
        if (mapping->tensors[i] == NULL)
            list_add(&missing, model->params[i].name);
    }
    for (int64_t i = 0; i < mapper->count; i++) {
        const struct entry *entry = &mapper->entries[i];
        if (!entry->used && strcmp(entry->tensor->name, unused_name) != 0)
            list_add(&unexpected, entry->tensor->name);
    }
    sw_code code = report(mapper, &missing, &unexpected, err);
    free(missing.text.bytes);
    free(unexpected.text.bytes);
    return code;
}

static sw_code map(struct mapper *mapper, const struct sw_model *model, struct sw_mapping **out,
                   struct sw_err *err)
{
    sw_code code = SW_OK;
    struct sw_mapping *mapping = sw_calloc(1, sizeof *mapping);
    if (mapping != NULL)
        mapping->tensors = sw_calloc(model->param_count, sizeof *mapping->tensors);
    if (mapping == NULL || mapping->tensors == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory for the mapping of %s", mapper->where);
        goto out;
    }
    mapping->count = model->param_count;
    for (int64_t i = 0; i < model->param_count; i++)
        mapping->tensors[i] = source_of(mapper, &model->params[i]);
    code = check_names(mapper, model, mapping, err);
    for (int64_t i = 0; code == SW_OK && i < model->param_count; i++)
        code = check_shape(mapper, &model->params[i], mapping->tensors[i], err);
out:
    if (code == SW_OK)
        *out = mapping;
    else
        sw_mapping_close(mapping);
    return code;
}

sw_code sw_mapping_open(const struct sw_json *config, const char *config_path, const char *where,
                        const struct sw_tensor *tensors, int64_t count, sw_tensor_equal_fn equal,
                        struct sw_model **out_model, struct sw_mapping **out_mapping,
                        struct sw_err *err)
{
    struct mapper mapper;
    struct sw_model *model = NULL;
    struct sw_mapping *mapping = NULL;
    sw_code code = mapper_open(&mapper, where, tensors, count, equal, err);
    if (code == SW_OK)
        code = open_model(&mapper, config, config_path, &model, err);
    if (code == SW_OK)
        code = map(&mapper, model, &mapping, err);
    free(mapper.entries);
    if (code != SW_OK) {
        sw_model_close(model);
        return code;
    }
    *out_model = model;
    *out_mapping = mapping;
    return SW_OK;
}

void sw_mapping_close(struct sw_mapping *mapping)
{
    if (mapping == NULL)
        return;
    free(mapping->tensors);
    free(mapping);
}
