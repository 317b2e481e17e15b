/* Describing models, checkpoints and runs. */
#include "support.h"

#include "base/json.h"
#include "ckpt/export.h"
#include "ckpt/inspect.h"
#include "io/safetensors_write.h"
#include "model/config.h"

#define DATA SW_SOURCE_DIRECTORY "/tests/data/"

static char *scratch;
static struct sw_err err;
static struct sw_text text;

static const char config[] =
    "{\"model_type\": \"t5\", \"architectures\": [\"T5ForConditionalGeneration\"], "
    "\"vocab_size\": 20, \"d_model\": 8, \"d_kv\": 4, \"d_ff\": 16, \"num_heads\": 2, "
    "\"num_layers\": 1, \"num_decoder_layers\": 1, \"relative_attention_num_buckets\": 32, "
    "\"feed_forward_proj\": \"relu\", \"pad_token_id\": 0, \"eos_token_id\": 1, "
    "\"decoder_start_token_id\": 0}";

static void put(const char *name, const char *contents)
{
    char *path = sw_path_join(scratch, name), *parent = sw_path_parent(path);
    assert_ok(sw_directory_make(parent, &err), &err);
    assert_ok(sw_file_write_atomic(path, contents, (int64_t)strlen(contents), &err), &err);
    free(parent);
    free(path);
}

/* A model directory of zeros under `name`; returns its number of parameters. */
static int64_t put_model(const char *name)
{
    struct sw_json *root;
    struct sw_model *model;
    struct sw_export *export;
    char *path = sw_path_join(scratch, name);
    assert_ok(sw_json_parse(config, (int64_t)strlen(config), "config", &root, &err), &err);
    assert_ok(sw_model_open(root, "config", SW_HEAD_BY_CONFIG, &model, &err), &err);
    struct sw_export_tensor *tensors = calloc((size_t)model->param_count, sizeof *tensors);
    assert_non_null(tensors);
    for (int64_t i = 0; i < model->param_count; i++) {
        tensors[i].name = model->params[i].name;
        tensors[i].dims = model->params[i].dims;
        memcpy(tensors[i].shape, model->params[i].shape, sizeof model->params[i].shape);
    }
    const struct sw_export_options options = {.directory = path, .config_text = config};
    assert_ok(sw_export_begin(&export, &options, tensors, model->param_count, &err), &err);
    float *zeros = calloc((size_t)model->elements, sizeof *zeros);
    assert_non_null(zeros);
    assert_ok(sw_export_write(export, zeros, model->elements, &err), &err);
    assert_ok(sw_export_commit(export, &err), &err);
    int64_t elements = model->elements;
    free(zeros);
    free(tensors);
    sw_model_close(model);
    sw_json_free(root);
    free(path);
    return elements;
}

static void inspect(const char *name)
{
    char *path = sw_path_join(scratch, name);
    text.used_bytes = 0;
    assert_ok(sw_inspect(path, &text, &err), &err);
    free(path);
}

static void assert_says(const char *part)
{
    if (strstr(text.bytes, part) == NULL)
        fail_msg("\"%s\" is not in:\n%s", part, text.bytes);
}

static void test_model(void **state)
{
    (void)state;
    char line[64];
    snprintf(line, sizeof line, "parameters  %lld\n", (long long)put_model("model"));
    put("model/spiece.model", "tokens");
    inspect("model");
    assert_says("model: model directory\n");
    assert_says("family      t5: 1 encoder and 1 decoder blocks, d_model 8, d_ff 16, 2 heads of 4, "
                "vocabulary 20, tied head\n");
    assert_says(line);
    assert_says("weights     safetensors, 1 file, ");
    assert_says(" bytes (F32)\n");
    assert_says("tokenizer   spiece.model, 6 bytes\n");
    assert_says("  F32   [20, 8]          shared.weight\n");
}

static void test_without_weights(void **state)
{
    (void)state;
    put("bare/config.json", config);
    inspect("bare");
    assert_says("family      t5: 1 encoder");
    assert_says("weights     none\n");
}

static void test_other_family(void **state)
{
    (void)state;
    put("other/config.json", "{\"model_type\": \"mystery\"}");
    char *path = sw_path_join(scratch, "other/pytorch_model.bin");
    assert_ok(sw_file_copy(DATA "weights-zip.bin", path, &err), &err);
    free(path);
    inspect("other");
    assert_says("family      mystery\nproblem     ");
    assert_says("weights     PyTorch, 1 file, 14 tensors, ");
    assert_says("(BF16, I64, F32, BOOL, F16)");
}

static void test_run(void **state)
{
    (void)state;
    put("run/config.yaml", "x: 1\n");
    inspect("run");
    assert_says("run: run directory\n");
    put("run/metrics.jsonl", "{\"step\": 1, \"loss\": 3.5}\n{\"step\": 2, \"loss\": 2.25}\n{\"st");
    put_model("run/checkpoint-9");
    put_model("run/checkpoint-10");
    put("run/checkpoint-11/half", "no checkpoint");
    struct sw_safetensors_writer *writer;
    const struct sw_safetensors_entry entry = {"moment", "U8", 1, {3}};
    char *path = sw_path_join(scratch, "run/checkpoint-10/state.safetensors");
    assert_ok(sw_safetensors_create(path, &entry, 1, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, "abc", 3, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    free(path);
    inspect("run");
    assert_says("steps       2, last loss 2.25\n");
    assert_says("checkpoint  checkpoint-9\ncheckpoint  checkpoint-10\n\n");
    assert_says("run/checkpoint-10: model directory\n");
    assert_says("state       state.safetensors: 1 tensor, 3 bytes (U8)\n");
    assert_null(strstr(text.bytes, "tensors\n"));
    put_model("run/final");
    inspect("run");
    assert_says("run/final: model directory\n");
}

static void test_file_and_nothing(void **state)
{
    (void)state;
    text.used_bytes = 0;
    assert_ok(sw_inspect(DATA "weights.safetensors", &text, &err), &err);
    assert_says("format      safetensors\nholds       14 tensors, ");
    assert_says("  I64   [3]              counts\n");
    text.used_bytes = 0;
    assert_ok(sw_inspect(DATA "weights-legacy.bin", &text, &err), &err);
    assert_says("format      PyTorch (legacy)\n");
    assert_refused(sw_inspect("/nowhere", &text, &err), SW_E_USAGE, "cannot inspect /nowhere",
                   &err);
    assert_refused(sw_inspect(scratch, &text, &err), SW_E_USAGE, "is neither a model directory",
                   &err);
    assert_refused(sw_inspect(DATA "make_torch_files.py", &text, &err), SW_E_USAGE,
                   "is neither a directory nor a .safetensors", &err);
}

static int set_up(void **state)
{
    (void)state;
    sw_err_init(&err);
    scratch = sw_test_scratch();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(text.bytes);
    text = (struct sw_text){0};
    sw_test_scratch_remove(scratch);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_model), TEST(test_without_weights),  TEST(test_other_family),
        TEST(test_run),   TEST(test_file_and_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
