/* The first step of the reference cases: loss, logits, gradients and greedy generation before
 * training, as HuggingFace transformers computed them. Skips where the cases are not there. */
#include "tests/model_run.h"
#include "tests/support.h"

#include "base/json.h"
#include "io/model_dir.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/mapping.h"

#include <dirent.h>
#include <math.h>

enum { ROWS_MAX = 16, TOKENS_MAX = 64, NEW_TOKENS = 16, CHECKED_LOGITS = 8, GENERATED = 6 };

/* As check.py has them: what float32 arithmetic in another order may change, with room. */
static const double loss_rtol = 2e-4, norm_rtol = 1e-3;

static struct sw_err err;

struct golden {
    char *path;
    struct sw_json *expect, *config;
    struct sw_model_dir *dir;
    struct sw_model *model;
    struct sw_mapping *mapping;
    struct sw_row rows[ROWS_MAX];
    int32_t ids[ROWS_MAX][2][TOKENS_MAX];
    int64_t row_count, batch_rows;
    struct model_run run;
};

static struct sw_json *read_json(const char *directory, const char *name)
{
    struct sw_json *out;
    char *path = sw_path_join(directory, name);
    assert_ok(sw_json_read_file(path, 1 << 26, &out, &err), &err);
    free(path);
    return out;
}

static double number(const struct sw_json *value)
{
    double out;
    if (!sw_json_to_double(value, &out))
        fail_msg("a number was expected");
    return out;
}

static int32_t read_ids(const struct sw_json *array, int32_t *out)
{
    int64_t count = sw_json_count(array);
    assert_in_range(count, 1, TOKENS_MAX);
    for (int64_t i = 0; i < count; i++)
        out[i] = (int32_t)number(sw_json_at(array, i));
    return (int32_t)count;
}

static void read_rows(struct golden *golden)
{
    const struct sw_json *rows = sw_json_get(golden->expect, "token_ids");
    golden->row_count = sw_json_count(rows) < ROWS_MAX ? sw_json_count(rows) : ROWS_MAX;
    golden->batch_rows = (int64_t)number(sw_json_get(golden->expect, "batch_rows"));
    assert_in_range(golden->batch_rows, 1, golden->row_count);
    for (int64_t i = 0; i < golden->row_count; i++) {
        const struct sw_json *row = sw_json_at(rows, i);
        struct sw_row *out = &golden->rows[i];
        out->source_length = read_ids(sw_json_at(row, 0), golden->ids[i][0]);
        out->target_length = read_ids(sw_json_at(row, 1), golden->ids[i][1]);
        out->source = golden->ids[i][0];
        out->target = golden->ids[i][1];
    }
}

static void load_weights(const struct golden *golden)
{
    for (int64_t i = 0; i < golden->model->param_count; i++)
        assert_ok(sw_tensor_read_float(golden->mapping->tensors[i], 0,
                                       golden->model->params[i].elements,
                                       model_run_param(&golden->run, i), &err),
                  &err);
    model_run_publish(&golden->run);
}

static struct golden *golden_open(const char *path)
{
    struct golden *golden = calloc(1, sizeof *golden);
    assert_non_null(golden);
    golden->path = sw_path_join(path, "model");
    golden->expect = read_json(path, "expect.json");
    golden->config = read_json(golden->path, "config.json");
    assert_ok(sw_model_dir_open(golden->path, &golden->dir, &err), &err);
    assert_ok(sw_mapping_open(golden->config, golden->dir->config_path, golden->path,
                              golden->dir->tensors, golden->dir->tensor_count, sw_tensor_equal,
                              &golden->model, &golden->mapping, &err),
              &err);
    read_rows(golden);
    const struct sw_bounds bounds = {ROWS_MAX, TOKENS_MAX, TOKENS_MAX, 37};
    model_run_open(&golden->run, golden->model, &bounds, SW_F32, 2);
    load_weights(golden);
    return golden;
}

static void golden_close(struct golden *golden)
{
    model_run_close(&golden->run);
    sw_mapping_close(golden->mapping);
    sw_model_close(golden->model);
    sw_model_dir_close(golden->dir);
    sw_json_free(golden->expect);
    sw_json_free(golden->config);
    free(golden->path);
    free(golden);
}

static void assert_close(const char *what, double got, double wanted, double relative,
                         double absolute)
{
    if (!(fabs(got - wanted) <= relative * fabs(wanted) + absolute))
        fail_msg("%s: %.9g, reference %.9g", what, got, wanted);
}

/* --- Logits ------------------------------------------------------------------------------------*/

/* Of the first row; positions behind its end are padding in the reference. */
static void check_logits(const struct golden *golden)
{
    const struct sw_json *expected = sw_json_get(golden->expect, "logits_step0");
    int64_t vocabulary = golden->model->t5.vocab_size;
    float *logits = malloc((size_t)(TOKENS_MAX * vocabulary) * sizeof *logits);
    assert_non_null(logits);
    model_run_loss(&golden->run, golden->rows, 1, logits);
    for (int64_t i = 0; i < golden->rows[0].target_length; i++) {
        const float *row = logits + i * vocabulary;
        int64_t best = 0;
        double sum = 0.0;
        for (int64_t j = 0; j < vocabulary; j++) {
            sum += exp((double)row[j]);
            best = row[j] > row[best] ? j : best;
        }
        assert_close("logsumexp", log(sum),
                     number(sw_json_at(sw_json_get(expected, "row0_logsumexp"), i)), 2e-5, 0.0);
        assert_int_equal(best,
                         (int64_t)number(sw_json_at(sw_json_get(expected, "row0_argmax"), i)));
        const struct sw_json *first = sw_json_at(sw_json_get(expected, "row0_first8"), i);
        for (int64_t j = 0; j < CHECKED_LOGITS; j++)
            assert_close("logit", (double)row[j], number(sw_json_at(first, j)), 1e-4, 1e-4);
    }
    free(logits);
}

/* --- Loss and gradients ------------------------------------------------------------------------*/

static double norm_of(const float *values, int64_t count)
{
    double squares = 0.0;
    for (int64_t i = 0; i < count; i++)
        squares += (double)values[i] * (double)values[i];
    return sqrt(squares);
}

/* Relative to the whole tensor, 1e-3; and what is a millionth of all gradients may be rounding. */
static double check_gradient(const struct golden *golden, const struct sw_tensor_file *file,
                             int64_t param, double all)
{
    const struct sw_param *it = &golden->model->params[param];
    const float *got = model_run_gradient(&golden->run, param);
    const struct sw_tensor *tensor = NULL;
    for (int64_t i = 0; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i].name, it->name) == 0)
            tensor = &file->tensors[i];
    }
    if (tensor == NULL)
        fail_msg("the reference has no gradient of %s", it->name);
    float *wanted = malloc((size_t)it->elements * sizeof *wanted);
    assert_non_null(wanted);
    assert_int_equal(tensor->elements, it->elements);
    assert_ok(sw_tensor_read_float(tensor, 0, it->elements, wanted, &err), &err);
    double size = norm_of(wanted, it->elements);
    for (int64_t i = 0; i < it->elements; i++)
        wanted[i] -= got[i];
    double difference = norm_of(wanted, it->elements);
    if (!(difference <= 1e-3 * size + 1e-6 * all))
        fail_msg("gradient of %s is off by %.3g of %.3g", it->name, difference, size);
    free(wanted);
    return norm_of(got, it->elements);
}

static void check_step(struct golden *golden, const char *path, int64_t micro_batch)
{
    double squares = 0.0;
    double loss = model_run_step(&golden->run, golden->rows, golden->batch_rows, micro_batch);
    const struct sw_json *losses = sw_json_get(golden->expect, "loss_per_step");
    const struct sw_json *norms = sw_json_get(golden->expect, "grad_norm_per_step_before_clipping");
    double norm = number(sw_json_at(norms, 0));
    assert_close("loss", loss, number(sw_json_at(losses, 0)), loss_rtol, 0.0);
    struct sw_tensor_file *file;
    char *name = sw_path_join(path, "grads_step0.safetensors");
    assert_ok(sw_safetensors_open(name, &file, &err), &err);
    for (int64_t i = 0; i < golden->model->param_count; i++) {
        double one = check_gradient(golden, file, i, norm);
        squares += one * one;
    }
    assert_close("gradient norm", sqrt(squares), norm, norm_rtol, 0.0);
    sw_tensor_file_close(file);
    free(name);
}

/* --- Greedy generation -------------------------------------------------------------------------*/

struct greedy {
    const struct sw_model *model;
    int32_t ids[GENERATED][NEW_TOKENS];
    int64_t lengths[GENERATED];
    bool done[GENERATED];
};

static bool choose_best(void *context, int64_t position, const float *log_probabilities,
                        int32_t *tokens, int32_t *parents)
{
    struct greedy *greedy = context;
    bool all = true;
    for (int64_t i = 0; i < GENERATED; i++) {
        const float *row = log_probabilities + i * greedy->model->t5.vocab_size;
        int32_t best = 0;
        for (int32_t j = 0; j < greedy->model->t5.vocab_size; j++)
            best = row[j] > row[best] ? j : best;
        tokens[i] = best;
        parents[i] = (int32_t)i;
        if (!greedy->done[i])
            greedy->ids[i][greedy->lengths[i]++] = best;
        greedy->done[i] |= best == greedy->model->t5.eos_id;
        all &= greedy->done[i];
    }
    return !all && position + 1 < NEW_TOKENS;
}

static void check_generation(const struct golden *golden)
{
    const struct sw_json *expected = sw_json_get(golden->expect, "greedy_ids_before");
    struct greedy greedy = {.model = golden->model};
    model_run_generate(&golden->run, golden->rows, GENERATED, 1, NEW_TOKENS, choose_best, &greedy);
    for (int64_t i = 0; i < GENERATED; i++) {
        int32_t wanted[TOKENS_MAX];
        int32_t count = read_ids(sw_json_at(expected, i), wanted);
        assert_int_equal(greedy.lengths[i], count - 1); /* the start token comes first there */
        assert_memory_equal(greedy.ids[i], wanted + 1, (size_t)(count - 1) * sizeof *wanted);
    }
}

/* --- All cases that are T5's -------------------------------------------------------------------*/

static bool is_t5(const char *path)
{
    char *model = sw_path_join(path, "model");
    char *config = sw_path_join(model, "config.json");
    bool out = false;
    if (sw_file_exists(config)) {
        struct sw_json *json = read_json(model, "config.json");
        const char *family = sw_json_to_string(sw_json_get(json, "model_type"));
        out = family != NULL && (strcmp(family, "t5") == 0 || strcmp(family, "mt5") == 0);
        sw_json_free(json);
    }
    free(config);
    free(model);
    return out;
}

static void test_cases(void **state)
{
    const char *directory = sw_test_golden_dir();
    const struct dirent *entry;
    int cases = 0;
    (void)state;
    if (directory == NULL)
        skip();
    DIR *stream = opendir(directory);
    assert_non_null(stream);
    while ((entry = readdir(stream)) != NULL) {
        char *path = sw_path_join(directory, entry->d_name);
        if (entry->d_name[0] != '.' && is_t5(path)) {
            printf("%s\n", entry->d_name);
            struct golden *golden = golden_open(path);
            check_logits(golden);
            check_step(golden, path, golden->batch_rows);
            golden->run.recompute = true;
            check_step(golden, path, 3);
            check_generation(golden);
            golden_close(golden);
            cases++;
        }
        free(path);
    }
    closedir(stream);
    assert_true(cases > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
