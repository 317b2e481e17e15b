/* The parameters, units and blocks of a T5, from its configuration. */
#include "base/mem.h"
#include "model/config.h"
#include "model/config_read.h"
#include "model/t5_layout.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ENCODER_BLOCK_PARAMS = 9, /* at most */
    DECODER_BLOCK_PARAMS = 14,
    OTHER_PARAMS = SW_T5_COMMON_PARAMS + 2, /* and both tables of the vocabulary */
    OTHER_UNITS = 3,                        /* embedding, common, lm_head */
    OTHER_BLOCKS = 4,                       /* two embeddings, end of encoder, head */
    PREFIX_BYTES = 64,
};

/* --- Adding parameters -------------------------------------------------------------------------*/

static struct sw_unit *open_unit(struct sw_model *model)
{
    struct sw_unit *unit = &model->units[model->unit_count++];
    unit->first_param = (int32_t)model->param_count;
    unit->trainable = true;
    return unit;
}

/* What follows may not adjoin what came before. */
static void close_group(struct sw_model *model)
{
    struct sw_unit *unit = &model->units[model->unit_count - 1];
    unit->elements = sw_align_up(unit->elements, SW_GROUP_ELEMENTS);
}

struct shape {
    enum sw_param_role role;
    int64_t rows, columns; /* columns 0: a vector */
    double init_std;       /* before initializer_factor */
};

/* Append parameter `prefix``name` to the unit that was opened last. */
static void add(struct sw_model *model, const char *prefix, const char *name,
                const struct shape *shape)
{
    struct sw_unit *unit = &model->units[model->unit_count - 1];
    struct sw_param *param = &model->params[model->param_count++];
    int length = snprintf(param->name, sizeof param->name, "%s%s", prefix, name);
    sw_assert(length > 0 && length < (int)sizeof param->name);
    float factor = model->t5.initializer_factor;
    param->role = shape->role;
    param->dims = shape->columns == 0 ? 1 : 2;
    param->shape[0] = shape->rows;
    param->shape[1] = shape->columns == 0 ? 1 : shape->columns;
    param->elements = param->shape[0] * param->shape[1];
    param->unit = (int32_t)model->unit_count - 1;
    param->offset = unit->elements;
    param->decays = shape->role == SW_PARAM_MATRIX || shape->role == SW_PARAM_EMBEDDING;
    param->trainable = true;
    param->init_mean = shape->role == SW_PARAM_NORM ? factor : 0.0f;
    param->init_std = (float)(shape->init_std * (double)factor);
    unit->param_count++;
    unit->elements += param->elements;
    model->elements += param->elements;
}

static void add_norm(struct sw_model *model, const char *prefix, const char *name)
{
    add(model, prefix, name, &(struct shape){SW_PARAM_NORM, model->t5.d_model, 0, 0.0});
    close_group(model);
}

/* Standard deviations as transformers' T5PreTrainedModel._init_weights has them. */
static void add_attention(struct sw_model *model, const char *prefix, bool self)
{
    static const char *const names[2][4] = {
        {"EncDecAttention.q.weight", "EncDecAttention.k.weight", "EncDecAttention.v.weight",
         "EncDecAttention.o.weight"},
        {"SelfAttention.q.weight", "SelfAttention.k.weight", "SelfAttention.v.weight",
         "SelfAttention.o.weight"},
    };
    const struct sw_t5_config *t5 = &model->t5;
    int64_t inner = t5->heads * t5->d_kv;
    double width = (double)t5->d_model;
    const struct shape q = {SW_PARAM_MATRIX, inner, t5->d_model,
                            1.0 / sqrt(width * (double)t5->d_kv)};
    const struct shape kv = {SW_PARAM_MATRIX, inner, t5->d_model, 1.0 / sqrt(width)};
    const struct shape o = {SW_PARAM_MATRIX, t5->d_model, inner, 1.0 / sqrt((double)inner)};
    add_norm(model, prefix, "layer_norm.weight");
    add(model, prefix, names[self][0], &q);
    if (!self)
        close_group(model);
    add(model, prefix, names[self][1], &kv);
    add(model, prefix, names[self][2], &kv);
    close_group(model);
    add(model, prefix, names[self][3], &o);
    close_group(model);
}

static void add_feed_forward(struct sw_model *model, const char *prefix)
{
    const struct sw_t5_config *t5 = &model->t5;
    const struct shape in = {SW_PARAM_MATRIX, t5->d_ff, t5->d_model,
                             1.0 / sqrt((double)t5->d_model)};
    const struct shape out = {SW_PARAM_MATRIX, t5->d_model, t5->d_ff, 1.0 / sqrt((double)t5->d_ff)};
    add_norm(model, prefix, "layer_norm.weight");
    if (t5->gated) {
        add(model, prefix, "DenseReluDense.wi_0.weight", &in);
        add(model, prefix, "DenseReluDense.wi_1.weight", &in);
    } else {
        add(model, prefix, "DenseReluDense.wi.weight", &in);
    }
    close_group(model);
    add(model, prefix, "DenseReluDense.wo.weight", &out);
    close_group(model);
}

/* --- Units -------------------------------------------------------------------------------------*/

static void add_vocabulary_unit(struct sw_model *model, const char *unit, const char *name)
{
    const struct sw_t5_config *t5 = &model->t5;
    snprintf(open_unit(model)->name, sizeof model->units->name, "%s", unit);
    add(model, "", name, &(struct shape){SW_PARAM_EMBEDDING, t5->vocab_size, t5->d_model, 1.0});
    close_group(model);
}

static void add_common_unit(struct sw_model *model)
{
    static const char bias[] = "block.0.layer.0.SelfAttention.relative_attention_bias.weight";
    const struct sw_t5_config *t5 = &model->t5;
    const struct shape table = {SW_PARAM_BIAS, t5->bias_buckets, t5->heads,
                                1.0 / sqrt((double)t5->d_model)};
    snprintf(open_unit(model)->name, sizeof model->units->name, "common");
    add(model, "encoder.", bias, &table);
    close_group(model);
    add(model, "decoder.", bias, &table);
    close_group(model);
    add_norm(model, "encoder.", "final_layer_norm.weight");
    add_norm(model, "decoder.", "final_layer_norm.weight");
}

static void add_block_unit(struct sw_model *model, const char *stack, int64_t layer, bool decoder)
{
    char prefix[PREFIX_BYTES];
    int sublayer = 0;
    snprintf(open_unit(model)->name, sizeof model->units->name, "%s block %" PRId64, stack, layer);
    snprintf(prefix, sizeof prefix, "%s.block.%" PRId64 ".layer.%d.", stack, layer, sublayer++);
    add_attention(model, prefix, true);
    if (decoder) {
        snprintf(prefix, sizeof prefix, "%s.block.%" PRId64 ".layer.%d.", stack, layer, sublayer++);
        add_attention(model, prefix, false);
    }
    snprintf(prefix, sizeof prefix, "%s.block.%" PRId64 ".layer.%d.", stack, layer, sublayer);
    add_feed_forward(model, prefix);
}

static void add_units(struct sw_model *model)
{
    model->embedding_unit = (int32_t)model->unit_count;
    add_vocabulary_unit(model, "embedding", "shared.weight");
    model->common_unit = (int32_t)model->unit_count;
    add_common_unit(model);
    for (int64_t i = 0; i < model->t5.encoder_layers; i++)
        add_block_unit(model, "encoder", i, false);
    for (int64_t i = 0; i < model->t5.decoder_layers; i++)
        add_block_unit(model, "decoder", i, true);
    model->head_unit = model->embedding_unit;
    if (!model->t5.tied) {
        model->head_unit = (int32_t)model->unit_count;
        add_vocabulary_unit(model, "lm_head", "lm_head.weight");
    }
}

/* --- Blocks ------------------------------------------------------------------------------------*/

static void add_block(struct sw_model *model, enum sw_block_kind kind, int64_t layer, int64_t unit,
                      int64_t second_unit, const char *name)
{
    struct sw_block *block = &model->blocks[model->block_count++];
    block->kind = kind;
    block->layer = (int32_t)layer;
    block->units[0] = (int32_t)unit;
    block->units[1] = (int32_t)second_unit;
    snprintf(block->name, sizeof block->name, "%s", name);
}

static void add_blocks(struct sw_model *model)
{
    int64_t common = model->common_unit;
    int64_t unit = common + 1;
    add_block(model, SW_BLOCK_EMBED_SOURCE, 0, model->embedding_unit, -1, "source embedding");
    for (int64_t i = 0; i < model->t5.encoder_layers; i++, unit++)
        add_block(model, SW_BLOCK_ENCODER, i, unit, common, model->units[unit].name);
    add_block(model, SW_BLOCK_ENCODER_END, 0, -1, common, "encoder's final norm");
    add_block(model, SW_BLOCK_EMBED_TARGET, 0, model->embedding_unit, -1, "target embedding");
    for (int64_t i = 0; i < model->t5.decoder_layers; i++, unit++)
        add_block(model, SW_BLOCK_DECODER, i, unit, common, model->units[unit].name);
    add_block(model, SW_BLOCK_HEAD, 0, model->head_unit, common, "head");
}

/* --- The model ---------------------------------------------------------------------------------*/

static struct sw_model *allocate(const struct sw_t5_config *t5)
{
    struct sw_model *model = sw_calloc(1, sizeof *model);
    if (model == NULL)
        return NULL;
    int64_t layers = t5->encoder_layers + t5->decoder_layers;
    model->t5 = *t5;
    model->params = sw_calloc(OTHER_PARAMS + ENCODER_BLOCK_PARAMS * t5->encoder_layers +
                                  DECODER_BLOCK_PARAMS * t5->decoder_layers,
                              sizeof *model->params);
    model->units = sw_calloc(OTHER_UNITS + layers, sizeof *model->units);
    model->blocks = sw_calloc(OTHER_BLOCKS + layers, sizeof *model->blocks);
    if (model->params == NULL || model->units == NULL || model->blocks == NULL) {
        sw_model_close(model);
        return NULL;
    }
    return model;
}

sw_code sw_model_open(const struct sw_json *config, const char *path, enum sw_head head,
                      struct sw_model **out, struct sw_err *err)
{
    struct sw_t5_config t5;
    sw_code code = sw_t5_config_read(config, path, &t5, err);
    if (code != SW_OK)
        return code;
    if (head == SW_HEAD_SEPARATE)
        t5.tied = false;
    struct sw_model *model = allocate(&t5);
    if (model == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of the model in %s", path);
    add_units(model);
    add_blocks(model);
    *out = model;
    return SW_OK;
}

void sw_model_close(struct sw_model *model)
{
    if (model == NULL)
        return;
    free(model->params);
    free(model->units);
    free(model->blocks);
    free(model);
}

/* --- Freezing and finding ----------------------------------------------------------------------*/

static int64_t freeze(struct sw_model *model, const char *pattern)
{
    int64_t matches = 0;
    for (int64_t i = 0; i < model->param_count; i++) {
        if (fnmatch(pattern, model->params[i].name, 0) == 0) {
            model->params[i].trainable = false;
            matches++;
        }
    }
    return matches;
}

static bool mark_units(struct sw_model *model)
{
    bool any = false;
    for (int64_t i = 0; i < model->unit_count; i++) {
        struct sw_unit *unit = &model->units[i];
        unit->trainable = false;
        for (int32_t j = 0; j < unit->param_count; j++)
            unit->trainable |= model->params[unit->first_param + j].trainable;
        any |= unit->trainable;
    }
    return any;
}

sw_code sw_model_freeze(struct sw_model *model, const char *const *patterns, int64_t count,
                        struct sw_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (freeze(model, patterns[i]) == 0)
            return SW_FAIL(err, SW_E_USAGE,
                           "train.freeze: no parameter's name matches \"%s\"; names are like "
                           "encoder.block.0.layer.0.SelfAttention.q.weight, `spillway inspect` "
                           "lists them",
                           patterns[i]);
    }
    if (!mark_units(model))
        return SW_FAIL(err, SW_E_USAGE, "train.freeze: no parameter is left to train");
    return SW_OK;
}

int64_t sw_model_find(const struct sw_model *model, const char *name)
{
    for (int64_t i = 0; i < model->param_count; i++) {
        if (strcmp(model->params[i].name, name) == 0)
            return i;
    }
    return -1;
}

/* --- Where a block's parameters are ------------------------------------------------------------*/

static const struct sw_param *attention_params(const struct sw_param *param,
                                               struct sw_t5_attention_params *out)
{
    out->norm = param++;
    out->q = param++;
    out->k = param++;
    out->v = param++;
    out->o = param++;
    return param;
}

void sw_t5_block_params(const struct sw_model *model, int32_t block, struct sw_t5_block_params *out)
{
    const struct sw_block *it = &model->blocks[block];
    sw_assert(it->kind == SW_BLOCK_ENCODER || it->kind == SW_BLOCK_DECODER);
    const struct sw_param *param = &model->params[model->units[it->units[0]].first_param];
    memset(out, 0, sizeof *out);
    param = attention_params(param, &out->self);
    if (it->kind == SW_BLOCK_DECODER)
        param = attention_params(param, &out->cross);
    out->ffn_norm = param++;
    out->ffn_in = param++;
    out->ffn_gate = model->t5.gated ? param++ : NULL;
    out->ffn_out = param;
}

const struct sw_param *sw_t5_common_param(const struct sw_model *model, enum sw_t5_common which)
{
    return &model->params[model->units[model->common_unit].first_param + (int32_t)which];
}
