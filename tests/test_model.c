/* What config.json says about a model, and what weight files do. */
#include "tests/support.h"

#include "base/json.h"
#include "base/text.h"
#include "io/tensor_file.h"
#include "model/config.h"
#include "model/init.h"
#include "model/mapping.h"
#include "model/presets.h"
#include "model/tables.h"

#include <math.h>

static struct sw_err err;

static struct sw_json *parse(const char *text)
{
    struct sw_json *config;
    assert_ok(sw_json_parse(text, (int64_t)strlen(text), "config.json", &config, &err), &err);
    return config;
}

static struct sw_model *open_preset(const char *name)
{
    struct sw_text text = {0};
    struct sw_model *model;
    assert_ok(sw_preset_config(name, &text, &err), &err);
    struct sw_json *config = parse(text.bytes);
    assert_ok(sw_model_open(config, "config.json", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(config);
    free(text.bytes);
    return model;
}

#define SIZES                                                                                      \
    "\"vocab_size\": 40, \"d_model\": 6, \"d_kv\": 5, \"d_ff\": 7, \"num_heads\": 3, "             \
    "\"num_layers\": 2"
#define T5 "\"model_type\": \"t5\", " SIZES

/* A tiny model with these keys on top. */
static struct sw_model *open_with(const char *keys, enum sw_head head)
{
    char text[1024];
    struct sw_model *model;
    snprintf(text, sizeof text, "{" T5 "%s%s}", keys[0] != '\0' ? ", " : "", keys);
    struct sw_json *config = parse(text);
    assert_ok(sw_model_open(config, "config.json", head, &model, &err), &err);
    sw_json_free(config);
    return model;
}

static void refuse(const char *text, const char *part)
{
    struct sw_model *model;
    struct sw_json *config = parse(text);
    assert_refused(sw_model_open(config, "config.json", SW_HEAD_BY_CONFIG, &model, &err),
                   SW_E_FORMAT, part, &err);
    sw_json_free(config);
}

/* --- Presets and layout ------------------------------------------------------------------------*/

static void test_parameter_counts(void **state)
{
    static const struct {
        const char *name;
        int64_t elements;
    } published[] = {
        {"t5-small", 60506624},      {"t5-base", 222903552},       {"t5-large", 737668096},
        {"t5-3b", 2851598336},       {"t5-11b", 11307321344},      {"flan-t5-small", 76961152},
        {"t5-v1_1-small", 76961152}, {"flan-t5-xxl", 11135332352}, {"mt5-small", 300176768},
    };
    (void)state;
    for (size_t i = 0; i < sizeof published / sizeof *published; i++) {
        struct sw_model *model = open_preset(published[i].name);
        assert_int_equal(model->elements, published[i].elements);
        sw_model_close(model);
    }
    for (int64_t i = 0; i < sw_preset_count(); i++)
        sw_model_close(open_preset(sw_preset_name(i)));
    struct sw_text text = {0};
    assert_refused(sw_preset_config("t5-12b", &text, &err), SW_E_USAGE, "t5-11b", &err);
}

static void check_layout(const struct sw_model *model)
{
    int64_t elements = 0;
    int64_t end = 0;
    for (int64_t i = 0; i < model->param_count; i++) {
        const struct sw_param *param = &model->params[i];
        const struct sw_unit *unit = &model->units[param->unit];
        if (i == unit->first_param)
            end = 0;
        assert_true(i >= unit->first_param && i < unit->first_param + unit->param_count);
        assert_true(param->offset >= end);
        assert_true(param->offset == end || param->offset % 64 == 0);
        end = param->offset + param->elements;
        assert_true(end <= unit->elements && unit->elements % 64 == 0);
        assert_true(unit->elements - end < 64 || i + 1 < unit->first_param + unit->param_count);
        assert_int_equal(param->elements, param->shape[0] * param->shape[1]);
        assert_int_equal(sw_model_find(model, param->name), i);
        elements += param->elements;
    }
    assert_int_equal(elements, model->elements);
}

static const struct sw_param *param(const struct sw_model *model, const char *name)
{
    int64_t index = sw_model_find(model, name);
    if (index < 0)
        fail_msg("no parameter %s", name);
    return &model->params[index];
}

/* Elements from the start of one parameter to the start of another. */
static int64_t distance(const struct sw_model *model, const char *from, const char *to)
{
    assert_int_equal(param(model, from)->unit, param(model, to)->unit);
    return param(model, to)->offset - param(model, from)->offset;
}

static void test_layout(void **state)
{
    (void)state;
    struct sw_model *model =
        open_with("\"num_decoder_layers\": 3, \"feed_forward_proj\": \"gated-silu\", "
                  "\"tie_word_embeddings\": false",
                  SW_HEAD_BY_CONFIG);
    check_layout(model);
    assert_int_equal(model->unit_count, 2 + 2 + 3 + 1);
    assert_int_equal(model->block_count, 1 + 2 + 1 + 1 + 3 + 1);
    assert_int_equal(model->head_unit, 7);
    /* q, k, v adjoin: 15 * 6 elements each, which is no multiple of 64 */
    assert_int_equal(distance(model, "encoder.block.1.layer.0.SelfAttention.q.weight",
                              "encoder.block.1.layer.0.SelfAttention.k.weight"),
                     90);
    assert_int_equal(distance(model, "decoder.block.2.layer.1.EncDecAttention.k.weight",
                              "decoder.block.2.layer.1.EncDecAttention.v.weight"),
                     90);
    assert_int_equal(distance(model, "decoder.block.2.layer.2.DenseReluDense.wi_0.weight",
                              "decoder.block.2.layer.2.DenseReluDense.wi_1.weight"),
                     42);
    assert_int_equal(param(model, "decoder.block.2.layer.1.EncDecAttention.k.weight")->offset % 64,
                     0);
    assert_false(
        param(model, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight")
            ->decays);
    assert_false(param(model, "decoder.final_layer_norm.weight")->decays);
    assert_true(param(model, "lm_head.weight")->decays);
    static const enum sw_block_kind kinds[] = {
        SW_BLOCK_EMBED_SOURCE, SW_BLOCK_ENCODER,      SW_BLOCK_ENCODER,
        SW_BLOCK_ENCODER_END,  SW_BLOCK_EMBED_TARGET, SW_BLOCK_DECODER,
        SW_BLOCK_DECODER,      SW_BLOCK_DECODER,      SW_BLOCK_HEAD};
    for (int64_t i = 0; i < model->block_count; i++)
        assert_int_equal(model->blocks[i].kind, kinds[i]);
    assert_int_equal(model->blocks[8].units[0], 7);
    assert_string_equal(model->blocks[7].name, "decoder block 2");
    sw_model_close(model);
}

/* --- Keys of config.json -----------------------------------------------------------------------*/

static void check_feed_forward(const char *keys, bool gated, enum sw_activation activation)
{
    struct sw_model *model = open_with(keys, SW_HEAD_BY_CONFIG);
    if (model->t5.gated != gated || model->t5.activation != activation)
        fail_msg("%s: gated %d, activation %d", keys, model->t5.gated, (int)model->t5.activation);
    assert_int_equal(
        sw_model_find(model, "encoder.block.0.layer.1.DenseReluDense.wi_1.weight") >= 0, gated);
    assert_int_equal(sw_model_find(model, "encoder.block.0.layer.1.DenseReluDense.wi.weight") >= 0,
                     !gated);
    sw_model_close(model);
}

static void test_feed_forward_keys(void **state)
{
    (void)state;
    check_feed_forward("", false, SW_ACT_RELU);
    check_feed_forward("\"feed_forward_proj\": null", false, SW_ACT_RELU);
    check_feed_forward("\"feed_forward_proj\": \"gelu\"", false, SW_ACT_GELU_ERF);
    check_feed_forward("\"feed_forward_proj\": \"silu\"", false, SW_ACT_SILU);
    check_feed_forward("\"feed_forward_proj\": \"gated-silu\"", true, SW_ACT_SILU);
    check_feed_forward("\"feed_forward_proj\": \"gated-relu\"", true, SW_ACT_RELU);
    check_feed_forward("\"feed_forward_proj\": \"gated-gelu\"", true, SW_ACT_GELU_TANH);
    check_feed_forward("\"feed_forward_proj\": \"gated-gelu\", \"dense_act_fn\": \"gelu\"", true,
                       SW_ACT_GELU_TANH);
    check_feed_forward("\"feed_forward_proj\": \"relu\", \"is_gated_act\": true, "
                       "\"dense_act_fn\": \"gelu_new\"",
                       true, SW_ACT_GELU_TANH);
    check_feed_forward("\"feed_forward_proj\": \"gated-gelu\", \"is_gated_act\": false", false,
                       SW_ACT_GELU_TANH);
    check_feed_forward("\"feed_forward_proj\": \"gated-silu\", \"dense_act_fn\": \"relu\"", true,
                       SW_ACT_RELU);
}

static void check_head(const char *keys, bool tied, bool scaled)
{
    struct sw_model *model = open_with(keys, SW_HEAD_BY_CONFIG);
    if (model->t5.tied != tied || model->t5.scale_head != scaled)
        fail_msg("%s: tied %d, scaled %d", keys, model->t5.tied, model->t5.scale_head);
    assert_int_equal(model->head_unit == model->embedding_unit, tied);
    sw_model_close(model);
}

static void test_head_keys(void **state)
{
    (void)state;
    check_head("", true, true);
    check_head("\"tie_word_embeddings\": true", true, true);
    check_head("\"tie_word_embeddings\": false", false, false);
    check_head("\"tie_word_embeddings\": true, \"scale_decoder_outputs\": false", true, false);
    check_head("\"tie_word_embeddings\": false, \"scale_decoder_outputs\": true", false, true);
    check_head("\"scale_decoder_outputs\": null", true, true);
    /* a separate head that only the weights show does not change the scale */
    struct sw_model *model = open_with("", SW_HEAD_SEPARATE);
    assert_false(model->t5.tied);
    assert_true(model->t5.scale_head);
    assert_true(sw_model_find(model, "lm_head.weight") >= 0);
    sw_model_close(model);
}

/* Whether the head is scaled, over all a config.json can say. T5's column is what transformers
 * 5.24 computes, logits over (decoder's output x head); of mT5 it scales nothing, and neither do
 * we unless the key itself asks for it. */
static void test_head_scale(void **state)
{
    static const struct {
        const char *keys;
        bool t5, mt5;
    } cases[] = {
        {"", true, false},
        {"\"scale_decoder_outputs\": true,", true, true},
        {"\"scale_decoder_outputs\": false,", false, false},
        {"\"tie_word_embeddings\": true,", true, false},
        {"\"tie_word_embeddings\": true, \"scale_decoder_outputs\": true,", true, true},
        {"\"tie_word_embeddings\": true, \"scale_decoder_outputs\": false,", false, false},
        {"\"tie_word_embeddings\": false,", false, false},
        {"\"tie_word_embeddings\": false, \"scale_decoder_outputs\": true,", true, true},
        {"\"tie_word_embeddings\": false, \"scale_decoder_outputs\": false,", false, false},
    };
    (void)state;
    for (size_t i = 0; i < 2 * sizeof cases / sizeof *cases; i++) {
        const bool mt5 = i % 2 != 0, wanted = mt5 ? cases[i / 2].mt5 : cases[i / 2].t5;
        char text[512];
        struct sw_model *model;
        snprintf(text, sizeof text, "{\"model_type\": \"%s\", %s " SIZES "}", mt5 ? "mt5" : "t5",
                 cases[i / 2].keys);
        struct sw_json *config = parse(text);
        assert_ok(sw_model_open(config, "config.json", SW_HEAD_BY_CONFIG, &model, &err), &err);
        if (model->t5.scale_head != wanted)
            fail_msg("%s: scaled %d", text, model->t5.scale_head);
        sw_model_close(model);
        sw_json_free(config);
    }
}

static void test_mt5_head(void **state)
{
    (void)state;
    struct sw_model *model = open_preset("mt5-small");
    assert_false(model->t5.tied);
    assert_false(model->t5.scale_head);
    sw_model_close(model);
    struct sw_json *config =
        parse("{\"model_type\": \"mt5\", \"tie_word_embeddings\": true, " SIZES "}");
    assert_ok(sw_model_open(config, "config.json", SW_HEAD_BY_CONFIG, &model, &err), &err);
    assert_true(model->t5.tied);
    assert_false(model->t5.scale_head);
    assert_true(model->t5.gated);
    sw_model_close(model);
    sw_json_free(config);
}

static void test_defaults(void **state)
{
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    assert_int_equal(model->t5.decoder_layers, 2);
    assert_int_equal(model->t5.bias_buckets, 32);
    assert_int_equal(model->t5.bias_max_distance, 128);
    assert_true(model->t5.dropout == 0.1f);
    assert_true(model->t5.norm_eps == 1e-6f);
    assert_int_equal(model->t5.pad_id, 0);
    assert_int_equal(model->t5.eos_id, 1);
    sw_model_close(model);
    model = open_with("\"pad_token_id\": 3, \"eos_token_id\": [5]", SW_HEAD_BY_CONFIG);
    assert_int_equal(model->t5.decoder_start_id, 3);
    assert_int_equal(model->t5.eos_id, 5);
    sw_model_close(model);
}

static void test_refused_configurations(void **state)
{
    (void)state;
    refuse("{" SIZES "}", "config.json: model_type is missing");
    refuse("{\"model_type\": \"umt5\", " SIZES "}", "umt5");
    refuse("{\"model_type\": \"gpt2\", " SIZES "}", "\"gpt2\" is not supported; t5 and mt5");
    refuse("{\"model_type\": \"bart\", " SIZES "}", "\"bart\" is not supported");
    refuse("{\"model_type\": 5, " SIZES "}", "model_type must be a string");
    refuse("[1]", "an object was expected");
    refuse("{\"model_type\": \"t5\"}", "vocab_size is missing");
    refuse("{\"model_type\": \"t5\", \"vocab_size\": 0}", "vocab_size is 0");
    refuse("{\"model_type\": \"t5\", \"vocab_size\": \"many\"}", "vocab_size must be a whole");
    refuse("{\"model_type\": \"t5\", \"vocab_size\": 99999999999}", "vocab_size is 99999999999");
    refuse("{\"model_type\": \"t5\", \"vocab_size\": 9, \"d_model\": 8, \"d_kv\": 60000, "
           "\"d_ff\": 3, \"num_heads\": 60000, \"num_layers\": 1}",
           "num_heads * d_kv");
    refuse("{" T5 ", \"num_decoder_layers\": 0}", "num_decoder_layers is 0");
    refuse("{" T5 ", \"dropout_rate\": 1.0}", "dropout_rate is 1");
    refuse("{" T5 ", \"dropout_rate\": -0.1}", "dropout_rate is -0.1");
    refuse("{" T5 ", \"layer_norm_epsilon\": 2}", "layer_norm_epsilon is 2");
    refuse("{" T5 ", \"initializer_factor\": true}", "initializer_factor must be a number");
    refuse("{" T5 ", \"relative_attention_num_buckets\": 1}", "relative_attention_num_buckets");
    refuse("{" T5 ", \"relative_attention_max_distance\": 16}", "relative_attention_max_distance");
    refuse("{" T5 ", \"feed_forward_proj\": \"gated-gelu-x\"}", "\"gated-gelu-x\" is not known");
    refuse("{" T5 ", \"feed_forward_proj\": \"mish\"}", "\"mish\" is not known");
    refuse("{" T5 ", \"dense_act_fn\": \"quick_gelu\"}", "\"quick_gelu\" is not known");
    refuse("{" T5 ", \"is_gated_act\": 1}", "is_gated_act must be true or false");
    refuse("{" T5 ", \"tie_word_embeddings\": \"no\"}", "tie_word_embeddings must be");
    refuse("{" T5 ", \"pad_token_id\": 40}", "pad_token_id is 40");
    refuse("{" T5 ", \"decoder_start_token_id\": -1}", "decoder_start_token_id is -1");
    refuse("{" T5 ", \"eos_token_id\": [1, 2]}", "eos_token_id must be a token id");
}

/* --- Freezing ----------------------------------------------------------------------------------*/

static void test_freeze(void **state)
{
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    const char *const some[] = {"encoder.block.0.*", "*.layer_norm.weight"};
    assert_ok(sw_model_freeze(model, some, 2, &err), &err);
    assert_false(param(model, "encoder.block.0.layer.1.DenseReluDense.wo.weight")->trainable);
    assert_true(param(model, "encoder.block.1.layer.1.DenseReluDense.wo.weight")->trainable);
    assert_false(param(model, "decoder.block.1.layer.2.layer_norm.weight")->trainable);
    assert_true(param(model, "shared.weight")->trainable);
    assert_true(model->units[model->common_unit].trainable);
    assert_false(model->units[model->common_unit + 1].trainable);
    assert_true(model->units[model->common_unit + 2].trainable);
    const char *const none[] = {"shared.weight", "lm_hed.*"};
    assert_refused(sw_model_freeze(model, none, 2, &err), SW_E_USAGE, "\"lm_hed.*\"", &err);
    const char *const all[] = {"*"};
    assert_refused(sw_model_freeze(model, all, 1, &err), SW_E_USAGE, "left to train", &err);
    sw_model_close(model);
}

/* --- Relative buckets --------------------------------------------------------------------------*/

static void test_buckets(void **state)
{
    /* the first distance of each bucket, for 32 buckets and distance 128 */
    static const int encoder[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 23, 32, 46, 64, 91};
    static const int decoder[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                    11, 12, 13, 14, 15, 16, 19, 21, 24, 27, 31,
                                    35, 40, 46, 52, 59, 67, 77, 87, 99, 113};
    (void)state;
    for (int back = 0; back < 3000; back++) {
        int bucket = 15;
        while (encoder[bucket] > back)
            bucket--;
        assert_int_equal(sw_relative_bucket(-back, true, 32, 128), bucket);
        if (back > 0)
            assert_int_equal(sw_relative_bucket(back, true, 32, 128), bucket + 16);
        bucket = 31;
        while (decoder[bucket] > back)
            bucket--;
        assert_int_equal(sw_relative_bucket(-back, false, 32, 128), bucket);
        assert_int_equal(sw_relative_bucket(back, false, 32, 128), 0);
    }
}

static void test_tables(void **state)
{
    enum { REACH = 50 };
    int32_t host[2 * (2 * REACH - 1)];
    struct sw_model_tables tables;
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    assert_int_equal(sw_model_tables_reach(REACH, 7), REACH);
    assert_int_equal(sw_model_tables_bytes(REACH), sizeof host);
    sw_model_tables_fill(model, REACH, host);
    sw_model_tables_at(&tables, REACH, host);
    for (int relative = -(REACH - 1); relative < REACH; relative++) {
        assert_int_equal(tables.encoder_buckets[relative + REACH - 1],
                         sw_relative_bucket(relative, true, 32, 128));
        assert_int_equal(tables.decoder_buckets[relative + REACH - 1],
                         sw_relative_bucket(relative, false, 32, 128));
    }
    sw_model_close(model);
}

/* --- Initialisation ----------------------------------------------------------------------------*/

static void check_statistics(const struct sw_model *model, const char *name, double deviation)
{
    int64_t index = sw_model_find(model, name);
    int64_t count = model->params[index].elements;
    float *values = malloc((size_t)count * sizeof *values);
    double sum = 0.0, squares = 0.0, fourth = 0.0;
    assert_non_null(values);
    sw_init_fill(model, 7, index, 0, count, values);
    for (int64_t i = 0; i < count; i++) {
        double z = (double)values[i] / deviation;
        sum += z;
        squares += z * z;
        fourth += z * z * z * z;
    }
    /* Mean, variance and fourth moment of n normal numbers are off by 1, sqrt(2) and sqrt(96) over
     * sqrt(n), one deviation; five are allowed. */
    double n = (double)count;
    if (fabs(sum / n) > 5.0 / sqrt(n) || fabs(squares / n - 1.0) > 5.0 * sqrt(2.0 / n) ||
        fabs(fourth / n - 3.0) > 5.0 * sqrt(96.0 / n))
        fail_msg("%s: mean %g, variance %g, fourth moment %g", name, sum / n, squares / n,
                 fourth / n);
    free(values);
}

static void test_init_statistics(void **state)
{
    (void)state;
    struct sw_model *model = open_preset("t5-v1_1-small");
    check_statistics(model, "encoder.block.3.layer.0.SelfAttention.q.weight",
                     1.0 / sqrt(512.0 * 64.0));
    check_statistics(model, "decoder.block.3.layer.1.EncDecAttention.k.weight", 1.0 / sqrt(512.0));
    check_statistics(model, "decoder.block.3.layer.1.EncDecAttention.o.weight", 1.0 / sqrt(384.0));
    check_statistics(model, "encoder.block.7.layer.1.DenseReluDense.wi_1.weight",
                     1.0 / sqrt(512.0));
    check_statistics(model, "encoder.block.7.layer.1.DenseReluDense.wo.weight", 1.0 / 32.0);
    check_statistics(model, "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                     1.0 / sqrt(512.0));
    sw_model_close(model);
}

static void test_init_pieces(void **state)
{
    float whole[90], pieces[90], other[90];
    (void)state;
    struct sw_model *model = open_with("\"initializer_factor\": 0.5", SW_HEAD_BY_CONFIG);
    int64_t q = sw_model_find(model, "encoder.block.0.layer.0.SelfAttention.q.weight");
    sw_init_fill(model, 1, q, 0, 90, whole);
    for (int64_t first = 0, step = 1; first < 90; first += step, step = step % 7 + 1)
        sw_init_fill(model, 1, q, first, first + step <= 90 ? step : 90 - first, pieces + first);
    assert_memory_equal(whole, pieces, sizeof whole);
    sw_init_fill(model, 2, q, 0, 90, other);
    assert_memory_not_equal(whole, other, sizeof whole);
    sw_init_fill(model, 1, q + 1, 0, 90, other);
    assert_memory_not_equal(whole, other, sizeof whole);
    sw_init_fill(model, 1, sw_model_find(model, "encoder.final_layer_norm.weight"), 2, 4, other);
    for (int i = 0; i < 4; i++)
        assert_true(other[i] == 0.5f);
    sw_model_close(model);
}

/* --- Weight files ------------------------------------------------------------------------------*/

enum { TENSORS_MAX = 64 };

/* A pretended file: what its tensors hold is `element_bytes`' place taken by a number in `offset`;
 * two tensors are equal when theirs is. */
struct pretended {
    struct sw_tensor tensors[TENSORS_MAX];
    int64_t count;
};

static sw_code pretended_equal(const struct sw_tensor *a, const struct sw_tensor *b, bool *out,
                               struct sw_err *error)
{
    if (a->offset < 0 || b->offset < 0)
        return SW_FAIL(error, SW_E_IO, "cannot read %s", a->offset < 0 ? a->name : b->name);
    *out = a->offset == b->offset;
    return SW_OK;
}

static struct sw_tensor *add(struct pretended *file, const char *name, int64_t rows,
                             int64_t columns, int64_t content)
{
    struct sw_tensor *tensor = &file->tensors[file->count++];
    assert_true(file->count <= TENSORS_MAX);
    *tensor = (struct sw_tensor){.name = name,
                                 .path = "model.safetensors",
                                 .dtype_name = "F32",
                                 .readable = true,
                                 .dims = columns == 0 ? 1 : 2,
                                 .shape = {rows, columns},
                                 .offset = content};
    return tensor;
}

/* All parameters of `model` but the embedding and the head, last first. */
static void add_blocks(struct pretended *file, const struct sw_model *model)
{
    for (int64_t i = model->param_count - 1; i >= 0; i--) {
        const struct sw_param *it = &model->params[i];
        if (it->role != SW_PARAM_EMBEDDING)
            add(file, it->name, it->shape[0], it->dims == 1 ? 0 : it->shape[1], 100 + i);
    }
}

static sw_code map(const char *keys, const struct pretended *file, struct sw_model **model,
                   struct sw_mapping **mapping)
{
    char text[1024];
    snprintf(text, sizeof text, "{" T5 "%s%s}", keys[0] != '\0' ? ", " : "", keys);
    struct sw_json *config = parse(text);
    sw_code code = sw_mapping_open(config, "dir/config.json", "dir", file->tensors, file->count,
                                   pretended_equal, model, mapping, &err);
    sw_json_free(config);
    return code;
}

/* Maps; the embedding must come from `embedding`, the head from `head` (NULL: tied). */
static void check_mapping(const char *keys, const struct pretended *file, const char *embedding,
                          const char *head)
{
    struct sw_model *model;
    struct sw_mapping *mapping;
    assert_ok(map(keys, file, &model, &mapping), &err);
    assert_int_equal(mapping->count, model->param_count);
    for (int64_t i = 0; i < mapping->count; i++) {
        const char *wanted = model->params[i].name;
        if (strcmp(wanted, "shared.weight") == 0)
            wanted = embedding;
        assert_string_equal(mapping->tensors[i]->name, wanted);
    }
    assert_int_equal(model->t5.tied, head == NULL);
    assert_int_equal(sw_model_find(model, "lm_head.weight") >= 0, head != NULL);
    sw_mapping_close(mapping);
    sw_model_close(model);
}

static void refuse_mapping(const char *keys, const struct pretended *file, const char *part)
{
    struct sw_model *model = NULL;
    struct sw_mapping *mapping = NULL;
    assert_refused(map(keys, file, &model, &mapping), SW_E_FORMAT, part, &err);
    assert_null(model);
    assert_null(mapping);
}

static void test_embedding_names(void **state)
{
    static const char *const names[3] = {"shared.weight", "encoder.embed_tokens.weight",
                                         "decoder.embed_tokens.weight"};
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    for (int present = 1; present < 8; present++) {
        struct pretended file = {.count = 0};
        const char *first = NULL;
        for (int i = 2; i >= 0; i--) {
            if ((present >> i & 1) != 0) {
                add(&file, names[i], 40, 6, 1);
                first = names[i];
            }
        }
        add_blocks(&file, model);
        check_mapping("", &file, first, NULL);
        if (present == 7) {
            file.tensors[1].offset = 2; /* the encoder's copy is another */
            refuse_mapping("", &file,
                           "shared.weight and encoder.embed_tokens.weight are copies of one "
                           "embedding, but they differ");
        }
    }
    sw_model_close(model);
}

static void test_heads(void **state)
{
    static const char untied[] = "\"tie_word_embeddings\": false";
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    struct pretended file = {.count = 0};
    add(&file, "shared.weight", 40, 6, 1);
    add_blocks(&file, model);
    refuse_mapping(untied, &file, "missing: lm_head.weight");
    struct sw_tensor *head = add(&file, "lm_head.weight", 40, 6, 1);
    check_mapping("", &file, "shared.weight", NULL);
    check_mapping(untied, &file, "shared.weight", "lm_head.weight");
    head->offset = 2;
    check_mapping("", &file, "shared.weight", "lm_head.weight");
    head->offset = -1;
    struct sw_model *none = NULL;
    struct sw_mapping *mapping = NULL;
    assert_refused(map("", &file, &none, &mapping), SW_E_IO,
                   "cannot read lm_head.weight, while comparing the head", &err);
    sw_model_close(model);
}

static void test_unfit_weights(void **state)
{
    (void)state;
    struct sw_model *model = open_with("", SW_HEAD_BY_CONFIG);
    struct pretended file = {.count = 0};
    add_blocks(&file, model);
    refuse_mapping("", &file, "missing: shared.weight");
    add(&file, "shared.weight", 40, 6, 1);
    struct sw_tensor *odd = add(
        &file, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight", 32, 3, 1);
    check_mapping("", &file, "shared.weight", NULL);
    odd->name = "decoder.block.1.layer.1.EncDecAttention.relative_attention_bias.weight";
    refuse_mapping("", &file,
                   "not expected: decoder.block.1.layer.1.EncDecAttention.relative_attention_bias");
    file.count--;
    struct sw_tensor *wrong = &file.tensors[3];
    wrong->shape[0]++;
    refuse_mapping("", &file, wrong->name);
    refuse_mapping("", &file, "but config.json makes it");
    wrong->shape[0]--;
    wrong->readable = false;
    wrong->dtype_name = "I64";
    refuse_mapping("", &file, "dtype I64");
    struct pretended nothing = {.count = 0};
    refuse_mapping("", &nothing, "and 41 more");
    struct pretended others = {.count = 0};
    add(&others, "transformer.wte.weight", 40, 6, 1);
    refuse_mapping("", &others, "not expected: transformer.wte.weight");
    refuse_mapping("", &others, "missing: shared.weight, ");
    sw_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parameter_counts),
        cmocka_unit_test(test_layout),
        cmocka_unit_test(test_feed_forward_keys),
        cmocka_unit_test(test_head_keys),
        cmocka_unit_test(test_head_scale),
        cmocka_unit_test(test_mt5_head),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_refused_configurations),
        cmocka_unit_test(test_freeze),
        cmocka_unit_test(test_buckets),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_init_statistics),
        cmocka_unit_test(test_init_pieces),
        cmocka_unit_test(test_embedding_names),
        cmocka_unit_test(test_heads),
        cmocka_unit_test(test_unfit_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
