#include "model/config_read.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* What the engine can count on: no product of these sizes overflows 63 bits. */
enum {
    VOCABULARY_MAX = INT32_MAX,
    WIDTH_MAX = 1 << 20,
    HEADS_MAX = 65535, /* the head's number has 16 bits of dropout's counter */
    HEAD_WIDTH_MAX = 1 << 16,
    INNER_MAX = 1 << 24,
    LAYERS_MAX = 2048, /* dropout sites: 8 a block, below 65536 */
    BUCKETS_MAX = 1 << 16,
};

struct reader {
    const struct sw_json *config;
    const char *path;
};

/* A key whose value is null is as good as absent. */
static const struct sw_json *find(const struct reader *reader, const char *key)
{
    const struct sw_json *value = sw_json_get(reader->config, key);
    return value != NULL && sw_json_kind(value) == SW_JSON_NULL ? NULL : value;
}

static sw_code wrong_kind(const struct reader *reader, const char *key, const struct sw_json *value,
                          const char *wanted, struct sw_err *err)
{
    return SW_FAIL(err, SW_E_FORMAT, "%s: %s must be %s, not %s", reader->path, key, wanted,
                   sw_json_kind_name(value));
}

/* Leaves *out alone when the key is absent. */
static sw_code read_integer(const struct reader *reader, const char *key, int64_t least,
                            int64_t most, int64_t *out, struct sw_err *err)
{
    const struct sw_json *value = find(reader, key);
    int64_t integer;
    if (value == NULL)
        return SW_OK;
    if (!sw_json_to_integer(value, &integer))
        return wrong_kind(reader, key, value, "a whole number", err);
    if (integer < least || integer > most)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: %s is %" PRId64 ", which is not between %" PRId64 " and %" PRId64,
                       reader->path, key, integer, least, most);
    *out = integer;
    return SW_OK;
}

static sw_code need_integer(const struct reader *reader, const char *key, int64_t most,
                            int64_t *out, struct sw_err *err)
{
    if (find(reader, key) == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: %s is missing", reader->path, key);
    return read_integer(reader, key, 1, most, out, err);
}

/* A real number within [least, below). */
static sw_code read_real(const struct reader *reader, const char *key, double least, double below,
                         float *out, struct sw_err *err)
{
    const struct sw_json *value = find(reader, key);
    double real;
    if (value == NULL)
        return SW_OK;
    if (!sw_json_to_double(value, &real))
        return wrong_kind(reader, key, value, "a number", err);
    if (!(real >= least && real < below))
        return SW_FAIL(err, SW_E_FORMAT, "%s: %s is %g, which is not at least %g and below %g",
                       reader->path, key, real, least, below);
    *out = (float)real;
    return SW_OK;
}

static sw_code read_bool(const struct reader *reader, const char *key, bool *out,
                         struct sw_err *err)
{
    const struct sw_json *value = find(reader, key);
    if (value != NULL && !sw_json_to_bool(value, out))
        return wrong_kind(reader, key, value, "true or false", err);
    return SW_OK;
}

static sw_code read_string(const struct reader *reader, const char *key, const char **out,
                           struct sw_err *err)
{
    const struct sw_json *value = find(reader, key);
    if (value == NULL)
        return SW_OK;
    if (sw_json_to_string(value) == NULL)
        return wrong_kind(reader, key, value, "a string", err);
    *out = sw_json_to_string(value);
    return SW_OK;
}

/* A token id; transformers also writes a list of them, of which one is understood. */
static sw_code read_id(const struct reader *reader, const char *key, int64_t vocabulary,
                       int32_t *out, struct sw_err *err)
{
    const struct sw_json *value = find(reader, key);
    int64_t id;
    if (value == NULL)
        return SW_OK;
    if (sw_json_kind(value) == SW_JSON_ARRAY && sw_json_count(value) == 1)
        value = sw_json_at(value, 0);
    if (!sw_json_to_integer(value, &id))
        return wrong_kind(reader, key, value, "a token id", err);
    if (id < 0 || id >= vocabulary)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: %s is %" PRId64 ", but ids are below vocab_size, which is %" PRId64,
                       reader->path, key, id, vocabulary);
    *out = (int32_t)id;
    return SW_OK;
}

/* Names as transformers' ACT2FN has them. */
static const struct {
    const char *name;
    enum sw_activation activation;
} activations[] = {
    {"relu", SW_ACT_RELU},
    {"gelu", SW_ACT_GELU_ERF},
    {"gelu_python", SW_ACT_GELU_ERF},
    {"gelu_new", SW_ACT_GELU_TANH},
    {"gelu_fast", SW_ACT_GELU_TANH},
    {"gelu_pytorch_tanh", SW_ACT_GELU_TANH},
    {"silu", SW_ACT_SILU},
    {"swish", SW_ACT_SILU},
};

static bool find_activation(const char *name, enum sw_activation *out)
{
    for (size_t i = 0; i < sizeof activations / sizeof *activations; i++) {
        if (strcmp(activations[i].name, name) == 0) {
            *out = activations[i].activation;
            return true;
        }
    }
    return false;
}

/* feed_forward_proj is ACTIVATION or gated-ACTIVATION. */
static sw_code read_feed_forward(const struct reader *reader, const char *default_projection,
                                 struct sw_t5_config *out, struct sw_err *err)
{
    static const char gate[] = "gated-";
    const char *projection = default_projection;
    const char *function = NULL;
    sw_code code = read_string(reader, "feed_forward_proj", &projection, err);
    if (code == SW_OK)
        code = read_string(reader, "dense_act_fn", &function, err);
    if (code != SW_OK)
        return code;
    bool gate_named = strncmp(projection, gate, sizeof gate - 1) == 0;
    const char *named = gate_named ? projection + sizeof gate - 1 : projection;
    enum sw_activation activation;
    if (!find_activation(named, &activation))
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: feed_forward_proj \"%s\" is not known: relu, gelu, gelu_new and silu "
                       "are, alone or behind \"gated-\"",
                       reader->path, projection);
    if (function != NULL && !find_activation(function, &activation))
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: dense_act_fn \"%s\" is not known: relu, gelu, gelu_new and silu are",
                       reader->path, function);
    if (strcmp(projection, "gated-gelu") == 0 && activation == SW_ACT_GELU_ERF)
        activation = SW_ACT_GELU_TANH;
    out->activation = activation;
    out->gated = gate_named;
    return read_bool(reader, "is_gated_act", &out->gated, err);
}

static sw_code check_family(const struct reader *reader, bool *out_mt5, struct sw_err *err)
{
    const char *family = NULL;
    if (sw_json_kind(reader->config) != SW_JSON_OBJECT)
        return SW_FAIL(err, SW_E_FORMAT, "%s: this is %s where an object was expected",
                       reader->path, sw_json_kind_name(reader->config));
    sw_code code = read_string(reader, "model_type", &family, err);
    if (code != SW_OK)
        return code;
    if (family == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: model_type is missing", reader->path);
    if (strcmp(family, "umt5") == 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: model_type \"umt5\" has a relative bias table in every block, which is "
                       "not supported; t5 and mt5 are",
                       reader->path);
    *out_mt5 = strcmp(family, "mt5") == 0;
    if (!*out_mt5 && strcmp(family, "t5") != 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: model_type \"%.64s\" is not supported; t5 and mt5 are", reader->path,
                       family);
    return SW_OK;
}

static sw_code read_sizes(const struct reader *reader, struct sw_t5_config *out, struct sw_err *err)
{
    const struct {
        const char *key;
        int64_t most;
        int64_t *value;
    } sizes[] = {
        {"vocab_size", VOCABULARY_MAX, &out->vocab_size},
        {"d_model", WIDTH_MAX, &out->d_model},
        {"d_kv", HEAD_WIDTH_MAX, &out->d_kv},
        {"d_ff", INNER_MAX, &out->d_ff},
        {"num_heads", HEADS_MAX, &out->heads},
        {"num_layers", LAYERS_MAX, &out->encoder_layers},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        sw_code code = need_integer(reader, sizes[i].key, sizes[i].most, sizes[i].value, err);
        if (code != SW_OK)
            return code;
    }
    if (out->heads * out->d_kv > INNER_MAX)
        return SW_FAIL(err, SW_E_FORMAT, "%s: num_heads * d_kv is %" PRId64 ", above %d",
                       reader->path, out->heads * out->d_kv, INNER_MAX);
    out->decoder_layers = out->encoder_layers;
    return read_integer(reader, "num_decoder_layers", 1, LAYERS_MAX, &out->decoder_layers, err);
}

/* The encoder spends half of the buckets on each direction and half of these on exact distances;
 * the decoder half of all. Beyond them distances must still grow. */
static sw_code read_buckets(const struct reader *reader, struct sw_t5_config *out,
                            struct sw_err *err)
{
    out->bias_buckets = 32;
    out->bias_max_distance = 128;
    sw_code code = read_integer(reader, "relative_attention_num_buckets", 4, BUCKETS_MAX,
                                &out->bias_buckets, err);
    if (code == SW_OK)
        code = read_integer(reader, "relative_attention_max_distance", out->bias_buckets / 2 + 1,
                            INT32_MAX, &out->bias_max_distance, err);
    return code;
}

static sw_code read_scalars(const struct reader *reader, struct sw_t5_config *out,
                            struct sw_err *err)
{
    out->dropout = 0.1f;
    out->norm_eps = 1e-6f;
    out->initializer_factor = 1.0f;
    sw_code code = read_real(reader, "dropout_rate", 0.0, 1.0, &out->dropout, err);
    if (code == SW_OK)
        code = read_real(reader, "layer_norm_epsilon", 0.0, 1.0, &out->norm_eps, err);
    if (code == SW_OK)
        code = read_real(reader, "initializer_factor", 0.0, 1e6, &out->initializer_factor, err);
    return code;
}

static sw_code read_ids(const struct reader *reader, struct sw_t5_config *out, struct sw_err *err)
{
    out->pad_id = 0;
    out->eos_id = 1;
    sw_code code = read_id(reader, "pad_token_id", out->vocab_size, &out->pad_id, err);
    if (code == SW_OK)
        code = read_id(reader, "eos_token_id", out->vocab_size, &out->eos_id, err);
    out->decoder_start_id = out->pad_id;
    if (code == SW_OK)
        code =
            read_id(reader, "decoder_start_token_id", out->vocab_size, &out->decoder_start_id, err);
    return code;
}

static sw_code read_head(const struct reader *reader, bool mt5, struct sw_t5_config *out,
                         struct sw_err *err)
{
    out->tied = true;
    sw_code code = read_bool(reader, "tie_word_embeddings", &out->tied, err);
    if (code != SW_OK)
        return code;
    out->scale_head = out->tied && !mt5;
    return read_bool(reader, "scale_decoder_outputs", &out->scale_head, err);
}

sw_code sw_t5_config_read(const struct sw_json *config, const char *path, struct sw_t5_config *out,
                          struct sw_err *err)
{
    const struct reader reader = {config, path};
    struct sw_t5_config t5 = {0};
    bool mt5 = false;
    sw_code code = check_family(&reader, &mt5, err);
    if (code == SW_OK)
        code = read_sizes(&reader, &t5, err);
    if (code == SW_OK)
        code = read_buckets(&reader, &t5, err);
    if (code == SW_OK)
        code = read_scalars(&reader, &t5, err);
    if (code == SW_OK)
        code = read_feed_forward(&reader, mt5 ? "gated-gelu" : "relu", &t5, err);
    if (code == SW_OK)
        code = read_head(&reader, mt5, &t5, err);
    if (code == SW_OK)
        code = read_ids(&reader, &t5, err);
    if (code == SW_OK)
        *out = t5;
    return code;
}
