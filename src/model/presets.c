#include "model/presets.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What a family's models have in common. */
struct family {
    const char *model_type, *architecture, *feed_forward, *activation;
    int64_t vocabulary;
    bool gated, tied;
};

static const struct family t5 = {"t5", "T5ForConditionalGeneration", "relu", "relu", 32128, false,
                                 true};
static const struct family t5_v1_1 = {
    "t5", "T5ForConditionalGeneration", "gated-gelu", "gelu_new", 32128, true, false};
static const struct family mt5 = {
    "mt5", "MT5ForConditionalGeneration", "gated-gelu", "gelu_new", 250112, true, false};

/* Sizes as published with the models. */
static const struct preset {
    const char *name;
    const struct family *family;
    int64_t d_model, d_kv, d_ff, layers, heads;
} presets[] = {
    {"t5-small", &t5, 512, 64, 2048, 6, 8},
    {"t5-base", &t5, 768, 64, 3072, 12, 12},
    {"t5-large", &t5, 1024, 64, 4096, 24, 16},
    {"t5-3b", &t5, 1024, 128, 16384, 24, 32},
    {"t5-11b", &t5, 1024, 128, 65536, 24, 128},
    {"t5-v1_1-small", &t5_v1_1, 512, 64, 1024, 8, 6},
    {"t5-v1_1-base", &t5_v1_1, 768, 64, 2048, 12, 12},
    {"t5-v1_1-large", &t5_v1_1, 1024, 64, 2816, 24, 16},
    {"t5-v1_1-xl", &t5_v1_1, 2048, 64, 5120, 24, 32},
    {"t5-v1_1-xxl", &t5_v1_1, 4096, 64, 10240, 24, 64},
    {"flan-t5-small", &t5_v1_1, 512, 64, 1024, 8, 6},
    {"flan-t5-base", &t5_v1_1, 768, 64, 2048, 12, 12},
    {"flan-t5-large", &t5_v1_1, 1024, 64, 2816, 24, 16},
    {"flan-t5-xl", &t5_v1_1, 2048, 64, 5120, 24, 32},
    {"flan-t5-xxl", &t5_v1_1, 4096, 64, 10240, 24, 64},
    {"mt5-small", &mt5, 512, 64, 1024, 8, 6},
    {"mt5-base", &mt5, 768, 64, 2048, 12, 12},
    {"mt5-large", &mt5, 1024, 64, 2816, 24, 16},
    {"mt5-xl", &mt5, 2048, 64, 5120, 24, 32},
    {"mt5-xxl", &mt5, 4096, 64, 10240, 24, 64},
};

int64_t sw_preset_count(void)
{
    return sizeof presets / sizeof *presets;
}

const char *sw_preset_name(int64_t index)
{
    sw_assert(index >= 0 && index < sw_preset_count());
    return presets[index].name;
}

static const struct preset *find(const char *name)
{
    for (int64_t i = 0; i < sw_preset_count(); i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

static sw_code unknown(const char *name, struct sw_err *err)
{
    char names[1024] = "";
    size_t used = 0;
    for (int64_t i = 0; i < sw_preset_count(); i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i == 0 ? "" : ", ",
                                 presets[i].name);
    sw_assert(used < sizeof names);
    return SW_FAIL(err, SW_E_USAGE, "there is no preset \"%.64s\"; there are %s", name, names);
}

static const char *json_bool(bool value)
{
    return value ? "true" : "false";
}

sw_code sw_preset_config(const char *name, struct sw_text *out, struct sw_err *err)
{
    const struct preset *preset = find(name);
    if (preset == NULL)
        return unknown(name, err);
    const struct family *family = preset->family;
    sw_text_add(out, "{\n  \"architectures\": [\n    \"%s\"\n  ],\n", family->architecture);
    sw_text_add(out, "  \"classifier_dropout\": 0.0,\n");
    sw_text_add(out, "  \"d_ff\": %" PRId64 ",\n", preset->d_ff);
    sw_text_add(out, "  \"d_kv\": %" PRId64 ",\n", preset->d_kv);
    sw_text_add(out, "  \"d_model\": %" PRId64 ",\n", preset->d_model);
    sw_text_add(out, "  \"decoder_start_token_id\": 0,\n");
    sw_text_add(out, "  \"dense_act_fn\": \"%s\",\n", family->activation);
    sw_text_add(out, "  \"dropout_rate\": 0.1,\n  \"eos_token_id\": 1,\n");
    sw_text_add(out, "  \"feed_forward_proj\": \"%s\",\n", family->feed_forward);
    sw_text_add(out, "  \"initializer_factor\": 1.0,\n  \"is_encoder_decoder\": true,\n");
    sw_text_add(out, "  \"is_gated_act\": %s,\n", json_bool(family->gated));
    sw_text_add(out, "  \"layer_norm_epsilon\": 1e-06,\n");
    sw_text_add(out, "  \"model_type\": \"%s\",\n", family->model_type);
    sw_text_add(out, "  \"num_decoder_layers\": %" PRId64 ",\n", preset->layers);
    sw_text_add(out, "  \"num_heads\": %" PRId64 ",\n", preset->heads);
    sw_text_add(out, "  \"num_layers\": %" PRId64 ",\n", preset->layers);
    sw_text_add(out, "  \"pad_token_id\": 0,\n");
    sw_text_add(out, "  \"relative_attention_max_distance\": 128,\n");
    sw_text_add(out, "  \"relative_attention_num_buckets\": 32,\n");
    sw_text_add(out, "  \"tie_word_embeddings\": %s,\n", json_bool(family->tied));
    sw_text_add(out, "  \"torch_dtype\": \"float32\",\n  \"use_cache\": true,\n");
    sw_text_add(out, "  \"vocab_size\": %" PRId64 "\n}\n", family->vocabulary);
    return sw_text_check(out, "the preset's config.json", err);
}
