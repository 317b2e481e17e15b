/* T5's blocks: gradients against finite differences, and what must not change a result. */
#include "tests/model_run.h"
#include "tests/support.h"

#include "base/json.h"
#include "base/random.h"
#include "model/config.h"

#include <math.h>

static struct sw_err err;

#define SIZES                                                                                      \
    "\"vocab_size\": 23, \"d_model\": 12, \"d_kv\": 5, \"d_ff\": 18, \"num_heads\": 3, "           \
    "\"num_layers\": 2, \"num_decoder_layers\": 3, \"relative_attention_num_buckets\": 8, "        \
    "\"relative_attention_max_distance\": 10"

static struct sw_model *open_model(const char *keys)
{
    char text[1024];
    struct sw_model *model;
    struct sw_json *config;
    snprintf(text, sizeof text, "{\"model_type\": \"t5\", " SIZES "%s%s}",
             keys[0] != '\0' ? ", " : "", keys);
    assert_ok(sw_json_parse(text, (int64_t)strlen(text), "config.json", &config, &err), &err);
    assert_ok(sw_model_open(config, "config.json", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(config);
    return model;
}

/* Rows with one and three target tokens, a lone source token, and the longest of the bounds. */
enum { ROWS = 8, SOURCE = 11, TARGET = 7, LONGEST_ROW = 16 };
static const struct sw_bounds bounds = {ROWS, SOURCE, TARGET, 5};
static int32_t ids[ROWS][LONGEST_ROW];
static struct sw_row rows[ROWS];

static void make_rows(void)
{
    static const int32_t lengths[ROWS][2] = {{4, 3}, {1, 1}, {SOURCE, 2}, {6, TARGET},
                                             {3, 3}, {5, 1}, {9, 5},      {2, 4}};
    const uint32_t key[2] = {11, 12};
    for (int i = 0; i < ROWS; i++) {
        for (int j = 0; j < LONGEST_ROW; j++) {
            const uint32_t counter[4] = {(uint32_t)i, (uint32_t)j, 0, 0};
            uint32_t words[4];
            sw_philox(key, counter, words);
            ids[i][j] = (int32_t)(words[0] % 23);
        }
        rows[i] = (struct sw_row){ids[i], ids[i] + 5, lengths[i][0], lengths[i][1]};
    }
}

static void run_open(struct model_run *run, const struct sw_model *model, int threads)
{
    model_run_open(run, model, &bounds, SW_F32, threads);
    run->key[0] = 3;
    run->key[1] = 4;
    model_run_init(run, 5);
}

/* The initial scale leaves attention nearly uniform: sharpen it, so that its gradients matter. */
static void sharpen(const struct model_run *run, float factor)
{
    for (int64_t i = 0; i < run->model->param_count; i++) {
        const struct sw_param *param = &run->model->params[i];
        if (strstr(param->name, "Attention.q.") == NULL && param->role != SW_PARAM_BIAS)
            continue;
        for (int64_t j = 0; j < param->elements; j++)
            model_run_param(run, i)[j] *= factor;
    }
    model_run_publish(run);
}

/* --- Finite differences ------------------------------------------------------------------------*/

/* Loss at weights + step * direction in one parameter. */
static double loss_at(const struct model_run *run, int64_t param, const float *direction,
                      double distance)
{
    int64_t count = run->model->params[param].elements;
    float *weights = model_run_param(run, param);
    float *kept = malloc((size_t)count * sizeof *kept);
    assert_non_null(kept);
    memcpy(kept, weights, (size_t)count * sizeof *kept);
    for (int64_t i = 0; i < count; i++)
        weights[i] += (float)(distance * (double)direction[i]);
    model_run_publish(run);
    double loss = model_run_loss(run, rows, ROWS, NULL);
    memcpy(weights, kept, (size_t)count * sizeof *kept);
    model_run_publish(run);
    free(kept);
    return loss;
}

/* Derivative of the loss along `direction`, of length one, against the gradient's.
 *
 * The loss is a mean of 26 fp32 losses near 3 that went through five blocks, each off by about
 * 2e-6: it is off by 4e-7, which a quotient of two of them 0.016 apart turns into 3e-5. The
 * quotient with its third-order term removed (Richardson) is off by the fifth derivative, up to 1e5
 * where the softmax bends, times h^4 / 6 = 7e-10. So 1e-4 absolute plus 1e-3 relative; a quarter of
 * it is used. Gradients are 0.01 to 5 long here. */
static void check_direction(const struct model_run *run, int64_t param, const float *direction,
                            const char *what)
{
    const double h = 0.008;
    const float *gradient = model_run_gradient(run, param);
    double along = 0.0;
    for (int64_t i = 0; i < run->model->params[param].elements; i++)
        along += (double)gradient[i] * (double)direction[i];
    double near =
        (loss_at(run, param, direction, h) - loss_at(run, param, direction, -h)) / (2 * h);
    double far =
        (loss_at(run, param, direction, 2 * h) - loss_at(run, param, direction, -2 * h)) / (4 * h);
    double measured = (4.0 * near - far) / 3.0;
    if (fabs(measured - along) > 1e-4 + 1e-3 * fabs(along))
        fail_msg("%s, %s: gradient %.6g, finite difference %.6g", run->model->params[param].name,
                 what, along, measured);
}

static void unit_length(float *direction, int64_t count)
{
    double squares = 0.0;
    for (int64_t i = 0; i < count; i++)
        squares += (double)direction[i] * (double)direction[i];
    for (int64_t i = 0; i < count && squares > 0.0; i++)
        direction[i] = (float)((double)direction[i] / sqrt(squares));
}

/* Along the gradient itself, and along a random direction. */
static void check_gradients(const char *keys, float dropout, float smoothing)
{
    struct sw_model *model = open_model(keys);
    struct model_run run;
    run_open(&run, model, 2);
    sharpen(&run, 1.5f);
    run.dropout = dropout;
    run.smoothing = smoothing;
    double loss = model_run_step(&run, rows, ROWS, ROWS);
    assert_true(fabs(loss - model_run_loss(&run, rows, ROWS, NULL)) < 1e-6 * loss);
    for (int64_t i = 0; i < model->param_count; i++) {
        int64_t count = model->params[i].elements;
        float *direction = malloc((size_t)count * sizeof *direction);
        assert_non_null(direction);
        memcpy(direction, model_run_gradient(&run, i), (size_t)count * sizeof *direction);
        unit_length(direction, count);
        check_direction(&run, i, direction, "along itself");
        for (int64_t j = 0; j < count; j++) {
            const uint32_t counter[4] = {(uint32_t)i, (uint32_t)j, 1, 0};
            uint32_t words[4];
            sw_philox(run.key, counter, words);
            direction[j] = sw_random_unit(words[0]) - 0.5f;
        }
        unit_length(direction, count);
        check_direction(&run, i, direction, "along a random direction");
        free(direction);
    }
    model_run_close(&run);
    sw_model_close(model);
}

static void test_gradients_tied(void **state)
{
    (void)state;
    check_gradients("\"feed_forward_proj\": \"silu\"", 0.0f, 0.0f);
}

static void test_gradients_untied_gated(void **state)
{
    (void)state;
    check_gradients("\"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false", 0.0f,
                    0.1f);
}

static void test_gradients_with_dropout(void **state)
{
    (void)state;
    check_gradients("\"feed_forward_proj\": \"gated-silu\"", 0.2f, 0.0f);
    check_gradients("\"feed_forward_proj\": \"gelu\"", 0.1f, 0.1f);
}

/* --- What must not change a bit ----------------------------------------------------------------*/

static void gradients_copy(const struct model_run *run, float **out)
{
    const struct sw_model *model = run->model;
    for (int64_t i = 0; i < model->unit_count; i++) {
        size_t bytes = (size_t)model->units[i].elements * sizeof(float);
        out[i] = malloc(bytes);
        assert_non_null(out[i]);
        memcpy(out[i], run->gradients[i], bytes);
    }
}

enum { UNITS_MAX = 16 };

static void gradients_free(const struct sw_model *model, float **gradients)
{
    for (int64_t i = 0; i < model->unit_count; i++)
        free(gradients[i]);
}

static void assert_same_gradients(const struct model_run *run, float **wanted)
{
    for (int64_t i = 0; i < run->model->unit_count; i++)
        assert_memory_equal(run->gradients[i], wanted[i],
                            (size_t)run->model->units[i].elements * sizeof(float));
}

static void test_threads_and_recomputation(void **state)
{
    (void)state;
    struct sw_model *model = open_model("\"feed_forward_proj\": \"gated-gelu\"");
    struct model_run one, three;
    float *wanted[UNITS_MAX];
    run_open(&one, model, 1);
    run_open(&three, model, 3);
    one.dropout = three.dropout = 0.1f;
    double loss = model_run_step(&one, rows, ROWS, 3);
    gradients_copy(&one, wanted);
    assert_true(model_run_step(&three, rows, ROWS, 3) == loss);
    assert_same_gradients(&three, wanted);
    three.recompute = true;
    assert_true(model_run_step(&three, rows, ROWS, 3) == loss);
    assert_same_gradients(&three, wanted);
    three.key[0]++;
    assert_true(model_run_step(&three, rows, ROWS, 3) != loss);
    gradients_free(model, wanted);
    model_run_close(&one);
    model_run_close(&three);
    sw_model_close(model);
}

static void test_frozen(void **state)
{
    (void)state;
    struct sw_model *model = open_model("");
    struct model_run run;
    float *wanted[UNITS_MAX];
    run_open(&run, model, 1);
    model_run_step(&run, rows, ROWS, 4);
    gradients_copy(&run, wanted);
    const char *const patterns[] = {"shared.weight",
                                    "encoder.block.1.*",
                                    "*.SelfAttention.relative_attention_bias.weight",
                                    "decoder.block.1.layer.0.SelfAttention.[qkv].weight",
                                    "decoder.block.2.layer.2.DenseReluDense.wo.weight",
                                    "decoder.final_layer_norm.weight"};
    assert_ok(sw_model_freeze(model, patterns, 6, &err), &err);
    model_run_step(&run, rows, ROWS, 4);
    for (int64_t i = 0; i < model->param_count; i++) {
        const struct sw_param *param = &model->params[i];
        const float *gradient = model_run_gradient(&run, i);
        const float *before = wanted[param->unit] + param->offset;
        for (int64_t j = 0; j < param->elements; j++) {
            if (gradient[j] != (param->trainable ? before[j] : 0.0f))
                fail_msg("%s[%lld]: %g, without freezing %g", param->name, (long long)j,
                         (double)gradient[j], (double)before[j]);
        }
    }
    gradients_free(model, wanted);
    model_run_close(&run);
    sw_model_close(model);
}

/* --- What may change rounding only -------------------------------------------------------------*/

static double gradient_norm(const struct model_run *run, float **other)
{
    double squares = 0.0;
    for (int64_t i = 0; i < run->model->unit_count; i++) {
        for (int64_t j = 0; j < run->model->units[i].elements; j++) {
            double difference =
                (double)run->gradients[i][j] - (other != NULL ? (double)other[i][j] : 0.0);
            squares += difference * difference;
        }
    }
    return sqrt(squares);
}

/* Sums over tokens are cut elsewhere: each is off by a few units of 6e-8, errors that mix as they
 * go back through five blocks; 1e-5 of the norm has room, and a wrong row, weight or mask does not.
 */
static void test_micro_batches(void **state)
{
    (void)state;
    struct sw_model *model = open_model("\"feed_forward_proj\": \"gated-gelu\"");
    struct model_run run;
    float *wanted[UNITS_MAX];
    run_open(&run, model, 2);
    sharpen(&run, 4.0f);
    run.dropout = 0.1f;
    run.smoothing = 0.1f;
    double loss = model_run_step(&run, rows, ROWS, ROWS);
    double norm = gradient_norm(&run, NULL);
    gradients_copy(&run, wanted);
    for (int64_t micro_batch = 4; micro_batch >= 1; micro_batch /= 2) {
        assert_true(fabs(model_run_step(&run, rows, ROWS, micro_batch) - loss) < 1e-6 * loss);
        assert_true(gradient_norm(&run, wanted) < 1e-5 * norm);
    }
    gradients_free(model, wanted);
    model_run_close(&run);
    sw_model_close(model);
}

/* bf16 has 8 bits: a value is off by 2^-9 of it at each of some 60 roundings on the way, at random:
 * 8 * 2^-9 = 1.6 %. */
static void test_bf16(void **state)
{
    (void)state;
    struct sw_model *model = open_model("\"feed_forward_proj\": \"gated-gelu\"");
    struct model_run single, half;
    float *wanted[UNITS_MAX];
    run_open(&single, model, 1);
    model_run_open(&half, model, &bounds, SW_BF16, 1);
    model_run_init(&half, 5);
    double loss = model_run_step(&single, rows, ROWS, 4);
    double norm = gradient_norm(&single, NULL);
    gradients_copy(&single, wanted);
    assert_true(fabs(model_run_step(&half, rows, ROWS, 4) - loss) < 0.016 * loss);
    assert_true(gradient_norm(&half, wanted) < 0.05 * norm);
    gradients_free(model, wanted);
    model_run_close(&single);
    model_run_close(&half);
    sw_model_close(model);
}

/* --- Masks -------------------------------------------------------------------------------------*/

/* With logits of any size, what comes later in a row, and what is in other rows, changes nothing.
 */
static void test_masks(void **state)
{
    static const float factors[] = {1.0f, 1e4f, 1e12f};
    static float before[ROWS * TARGET * 23], after[ROWS * TARGET * 23];
    (void)state;
    struct sw_model *model = open_model("");
    struct model_run run;
    struct sw_row changed[2];
    int32_t other_target[TARGET], other_source[SOURCE];
    for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
        run_open(&run, model, 1);
        sharpen(&run, factors[f]);
        memcpy(changed, rows + 2, sizeof changed);
        model_run_loss(&run, changed, 2, before);
        assert_true(isfinite(before[0]));
        memcpy(other_target, rows[3].target, sizeof other_target);
        other_target[4] = (other_target[4] + 1) % 23; /* input of position 5 */
        changed[1].target = other_target;
        model_run_loss(&run, changed, 2, after);
        int64_t unchanged = (rows[2].target_length + 5) * 23;
        assert_memory_equal(before, after, (size_t)unchanged * sizeof *before);
        assert_memory_not_equal(before, after, (size_t)(unchanged + 23) * sizeof *before);
        memcpy(other_source, rows[3].source, sizeof other_source);
        other_source[0] = (other_source[0] + 1) % 23;
        changed[1].source = other_source;
        model_run_loss(&run, changed, 2, after);
        unchanged = rows[2].target_length * 23;
        assert_memory_equal(before, after, (size_t)unchanged * sizeof *before);
        assert_memory_not_equal(before + unchanged, after + unchanged, 23 * sizeof *before);
        model_run_close(&run);
    }
    sw_model_close(model);
}

/* --- Decoding ----------------------------------------------------------------------------------*/

enum { BEAMS = 3, STEPS = TARGET, HYPOTHESES = ROWS * BEAMS };

/* Follows random paths: tokens, and from step to step a random other hypothesis of the same row. */
struct walk {
    int32_t history[HYPOTHESES][STEPS]; /* tokens of each hypothesis so far */
    double heard[HYPOTHESES][STEPS];    /* log-probability that decoding gave to each */
    uint32_t seed;
    int64_t beams;
};

static uint32_t draw(struct walk *walk)
{
    const uint32_t key[2] = {21, 22};
    const uint32_t counter[4] = {walk->seed++, 0, 0, 0};
    uint32_t words[4];
    sw_philox(key, counter, words);
    return words[0] >> 8;
}

static bool walk_on(void *context, int64_t position, const float *log_probabilities,
                    int32_t *tokens, int32_t *parents)
{
    struct walk *walk = context;
    struct walk *old = malloc(sizeof *old);
    assert_non_null(old);
    memcpy(old, walk, sizeof *old);
    for (int64_t i = 0; i < ROWS * walk->beams; i++) {
        int64_t parent = i / walk->beams * walk->beams + (int64_t)draw(walk) % walk->beams;
        tokens[i] = (int32_t)(draw(walk) % 23);
        parents[i] = (int32_t)parent;
        memcpy(walk->history[i], old->history[parent], sizeof walk->history[i]);
        memcpy(walk->heard[i], old->heard[parent], sizeof walk->heard[i]);
        walk->history[i][position] = tokens[i];
        walk->heard[i][position] = (double)log_probabilities[parent * 23 + tokens[i]];
    }
    free(old);
    return true;
}

static double log_probability(const float *logits, int32_t token)
{
    double sum = 0.0;
    for (int i = 0; i < 23; i++)
        sum += exp((double)logits[i]);
    return (double)logits[token] - log(sum);
}

/* Both compute the same sums in other orders, of logits as large as the log-probabilities at least:
 * 1e-5 of one that is that far from 0 (they are -3 to -15), whatever the BLAS library's kernels. */
static void check_decoding(const char *keys, int64_t beams)
{
    static float logits[HYPOTHESES * STEPS * 23];
    struct sw_model *model = open_model(keys);
    struct walk walk = {.beams = beams};
    struct model_run run;
    run_open(&run, model, 2);
    sharpen(&run, 4.0f);
    model_run_generate(&run, rows, ROWS, beams, STEPS, walk_on, &walk);
    for (int64_t beam = 0; beam < beams; beam++) {
        struct sw_row followed[ROWS];
        for (int64_t i = 0; i < ROWS; i++)
            followed[i] = (struct sw_row){rows[i].source, walk.history[i * beams + beam],
                                          rows[i].source_length, STEPS};
        model_run_loss(&run, followed, ROWS, logits);
        for (int64_t i = 0; i < ROWS; i++) {
            for (int64_t j = 0; j < STEPS; j++) {
                double wanted = log_probability(logits + (i * STEPS + j) * 23,
                                                walk.history[i * beams + beam][j]);
                double heard = walk.heard[i * beams + beam][j];
                if (fabs(heard - wanted) > 1e-5 * fmax(1.0, fabs(wanted)))
                    fail_msg("row %d, beam %d, position %d: %g with the cache, %g without", (int)i,
                             (int)beam, (int)j, heard, wanted);
            }
        }
    }
    model_run_close(&run);
    sw_model_close(model);
}

static void test_decoding(void **state)
{
    (void)state;
    check_decoding("", 1);
    check_decoding("\"feed_forward_proj\": \"gated-gelu\", \"tie_word_embeddings\": false", BEAMS);
}

/* --- Sizes -------------------------------------------------------------------------------------*/

static void test_sizes(void **state)
{
    (void)state;
    struct sw_model *model = open_model("");
    struct sw_block_sizes small, large;
    for (int32_t i = 0; i < model->block_count; i++) {
        const struct sw_bounds wider = {ROWS + 1, SOURCE + 3, TARGET + 2, 9};
        sw_block_sizes(model, i, &bounds, 0.1f, SW_F32, &sw_cpu_kernels, &small);
        sw_block_sizes(model, i, &wider, 0.1f, SW_F32, &sw_cpu_kernels, &large);
        assert_true(large.workspace_bytes >= small.workspace_bytes);
        assert_true(large.context_bytes >= small.context_bytes);
        assert_true(large.forward_flops >= small.forward_flops);
    }
    /* one encoder block: q, k, v, o, wi and wo over 88 tokens, and two products over 8 rows */
    sw_block_sizes(model, 1, &bounds, 0.1f, SW_F32, &sw_cpu_kernels, &small);
    assert_true(small.forward_flops ==
                2.0 * 88 * (4 * 12 * 15 + 2 * 12 * 18) + 2.0 * 2 * 8 * 11 * 11 * 15);
    assert_int_equal(small.input_bytes, 88 * 12 * 4);
    /* without dropout, no branch of 88 x 12 values; until backward is what wants the most */
    sw_block_sizes(model, 1, &bounds, 0.0f, SW_F32, &sw_cpu_kernels, &large);
    assert_true(large.workspace_bytes < small.workspace_bytes);
    assert_true(large.workspace_bytes >= small.workspace_bytes - 88 * 12 * 4 - 256);
    assert_int_equal(small.context_bytes, large.context_bytes);
    sw_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gradients_tied),
        cmocka_unit_test(test_gradients_untied_gated),
        cmocka_unit_test(test_gradients_with_dropout),
        cmocka_unit_test(test_threads_and_recomputation),
        cmocka_unit_test(test_frozen),
        cmocka_unit_test(test_micro_batches),
        cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_masks),
        cmocka_unit_test(test_decoding),
        cmocka_unit_test(test_sizes),
    };
    make_rows();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
