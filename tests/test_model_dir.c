/* Opening model directories: every layout, and every way to be incomplete. */
#include "support.h"

#include "base/text.h"
#include "io/model_dir.h"
#include "io/safetensors_write.h"

#include <sys/wait.h>

static char *dir;
static struct sw_err err;
static struct sw_model_dir *model;

static void put(const char *name, const char *text)
{
    char *path = sw_path_join(dir, name);
    assert_non_null(path);
    assert_ok(sw_file_write_atomic(path, text, (int64_t)strlen(text), &err), &err);
    free(path);
}

static void drop(const char *name)
{
    char *path = sw_path_join(dir, name);
    assert_non_null(path);
    assert_int_equal(unlink(path), 0);
    free(path);
}

/* A file with one fp32 tensor [2] of the value `value`. */
static void put_tensor(const char *file, const char *name, float value)
{
    struct sw_safetensors_writer *writer;
    const struct sw_safetensors_entry entry = {name, "F32", 1, {2}};
    const float data[2] = {value, value};
    char *path = sw_path_join(dir, file);
    assert_non_null(path);
    unlink(path);
    assert_ok(sw_safetensors_create(path, &entry, 1, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, data, sizeof data, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    free(path);
}

static void copy(const char *from, const char *name)
{
    char *path = sw_path_join(dir, name);
    assert_non_null(path);
    unlink(path);
    assert_ok(sw_file_copy(from, path, &err), &err);
    free(path);
}

static void refuse(sw_code code, const char *message)
{
    assert_refused(sw_model_dir_open(dir, &model, &err), code, message, &err);
}

static float value_of(const char *name)
{
    float value = 0;
    const struct sw_tensor *tensor = sw_model_dir_find(model, name);
    assert_non_null(tensor);
    assert_ok(sw_tensor_read_float(tensor, 1, 1, &value, &err), &err);
    return value;
}

#define INDEX "model.safetensors.index.json"

static void put_shards(void)
{
    put("config.json", "{}");
    put_tensor("model-00001-of-00002.safetensors", "b", 1);
    put_tensor("model-00002-of-00002.safetensors", "a", 2);
    put(INDEX, "{\"metadata\": {\"total_size\": 16}, \"weight_map\": {"
               "\"a\": \"model-00002-of-00002.safetensors\","
               "\"b\": \"model-00001-of-00002.safetensors\"}}");
}

/* A directory of somebody else's is not one that lacks config.json. In a process that is nobody. */
static void test_closed_directory(void **state)
{
    enum { NOBODY = 65534 };
    (void)state;
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (geteuid() == 0 ? setuid(NOBODY) != 0 : chmod(dir, 0) != 0)
            _exit(2);
        sw_code code = sw_model_dir_open(dir, &model, &err);
        _exit(code == SW_E_USAGE && strstr(err.text, "cannot read the directory") != NULL ? 0 : 1);
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
    assert_int_equal(chmod(dir, 0700), 0);
    assert_int_equal(WEXITSTATUS(status), 0);
}

static void test_no_directory(void **state)
{
    (void)state;
    assert_refused(sw_model_dir_open("/nowhere/model", &model, &err), SW_E_USAGE,
                   "no model directory /nowhere/model", &err);
    refuse(SW_E_USAGE, "has no config.json");
    char *final = sw_path_join(dir, "final");
    assert_ok(sw_directory_make(final, &err), &err);
    refuse(SW_E_USAGE, "is a run directory; its model is ");
    assert_ok(sw_directory_remove(final, &err), &err);
    free(final);
    put("config.json", "");
    refuse(SW_E_FORMAT, "config.json is empty");
    put("config.json", "version https://git-lfs.github.com/spec/v1\n");
    refuse(SW_E_FORMAT, "config.json is a Git LFS pointer");
    put("config.json", "{}");
    char *path = sw_path_join(dir, "config.json");
    assert_refused(sw_model_dir_open(path, &model, &err), SW_E_USAGE,
                   "is a file, not a model directory", &err);
    free(path);
}

static void test_no_weights(void **state)
{
    (void)state;
    put("config.json", "{}");
    assert_ok(sw_model_dir_check_config(dir, &err), &err);
    refuse(SW_E_FORMAT, "has no weights: neither model.safetensors nor pytorch_model.bin");
    put("flax_model.msgpack", "x");
    refuse(SW_E_FORMAT, "flax_model.msgpack: weights of another framework: convert them");
    drop("flax_model.msgpack");
    put("tf_model.h5", "x");
    refuse(SW_E_FORMAT, "tf_model.h5: weights of another framework: convert them");
    drop("tf_model.h5");
    put("model-00001-of-00002.safetensors", "x");
    refuse(SW_E_FORMAT, "its index (.index.json) is missing");
    put("model.safetensors.incomplete", "x");
    refuse(SW_E_FORMAT, "model.safetensors.incomplete: the download is not complete");
    put("model.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    refuse(SW_E_FORMAT, "model.safetensors is a Git LFS pointer");
}

static void test_one_file(void **state)
{
    (void)state;
    put("config.json", "{}");
    put_tensor("model.safetensors", "w", 3);
    /* what else lies about does not matter */
    put("pytorch_model.bin", "not looked at");
    put("other.incomplete", "x");
    assert_ok(sw_model_dir_open(dir, &model, &err), &err);
    assert_int_equal(model->tensor_count, 1);
    assert_string_equal(model->format, "safetensors");
    assert_int_equal((int)value_of("w"), 3);
    assert_null(sw_model_dir_find(model, "v"));
    sw_model_dir_close(model);
    drop("model.safetensors");
    refuse(SW_E_FORMAT, "pytorch_model.bin is not a file of torch.save()");
    copy(SW_SOURCE_DIRECTORY "/tests/data/weights-legacy.bin", "pytorch_model.bin");
    assert_ok(sw_model_dir_open(dir, &model, &err), &err);
    assert_int_equal(model->tensor_count, 14);
    assert_non_null(sw_model_dir_find(model, "shared.part"));
    for (int64_t i = 1; i < model->tensor_count; i++)
        assert_true(strcmp(model->tensors[i - 1].name, model->tensors[i].name) < 0);
    sw_model_dir_close(model);
}

static void test_shards(void **state)
{
    (void)state;
    put_shards();
    assert_ok(sw_model_dir_open(dir, &model, &err), &err);
    assert_int_equal(model->file_count, 2);
    assert_int_equal(model->tensor_count, 2);
    assert_int_equal((int)value_of("a"), 2);
    assert_int_equal((int)value_of("b"), 1);
    sw_model_dir_close(model);
    put("pytorch_model.bin.index.json", "{\"weight_map\": {}}");
    drop(INDEX);
    drop("model-00001-of-00002.safetensors");
    refuse(SW_E_FORMAT, "hold no tensors");
    put("pytorch_model.bin.index.json", "{\"weight_map\": {\"w\": \"pytorch_model-1.bin\"}}");
    copy(SW_SOURCE_DIRECTORY "/tests/data/weights-zip.bin", "pytorch_model-1.bin");
    refuse(SW_E_FORMAT, "puts tensor w into pytorch_model-1.bin, which lacks it");
}

static void test_broken_shards(void **state)
{
    (void)state;
    put_shards();
    put_tensor("model-00002-of-00002.safetensors", "b", 2);
    refuse(SW_E_FORMAT, "tensor b is both in");
    put_tensor("model-00002-of-00002.safetensors", "c", 2);
    refuse(SW_E_FORMAT, "puts tensor a into model-00002-of-00002.safetensors, which lacks it");
    put_shards();
    put(INDEX, "{\"weight_map\": {\"b\": \"model-00001-of-00002.safetensors\","
               "\"c\": \"model-00002-of-00002.safetensors\"}}");
    refuse(SW_E_FORMAT, "puts tensor c into");
    put_tensor("extra.safetensors", "c", 2);
    put(INDEX, "{\"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\","
               "\"b\": \"model-00002-of-00002.safetensors\"}}");
    refuse(SW_E_FORMAT, "puts tensor a into model-00001-of-00002.safetensors, but it is in");
    struct sw_safetensors_writer *writer;
    const struct sw_safetensors_entry entries[] = {{"a", "F32", 0, {0}}, {"d", "F32", 0, {0}}};
    char *path = sw_path_join(dir, "two.safetensors");
    assert_ok(sw_safetensors_create(path, entries, 2, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, "12345678", 8, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    free(path);
    put(INDEX, "{\"weight_map\": {\"a\": \"two.safetensors\"}}");
    refuse(SW_E_FORMAT, "does not name tensor d, which is in");
    put_shards();
    drop("model-00002-of-00002.safetensors");
    refuse(SW_E_FORMAT, "shard model-00002-of-00002.safetensors, which is not there");
    put("model-00002-of-00002.safetensors.incomplete", "x");
    refuse(SW_E_FORMAT, "is half downloaded (.incomplete)");
    put("model-00002-of-00002.safetensors", "version https://git-lfs.github.com/spec/v1\n");
    refuse(SW_E_FORMAT, "is a Git LFS pointer");
}

static void test_broken_index(void **state)
{
    (void)state;
    put_shards();
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"weight_map\": {\"a\": \"../model.safetensors\"}}", "is not a file name in"},
        {"{\"weight_map\": {\"a\": \"/etc/passwd\"}}", "is not a file name in"},
        {"{\"weight_map\": {\"a\": \"..\"}}", "is not a file name in"},
        {"{\"weight_map\": {\"a\": \"\"}}", "is not a file name in"},
        {"{\"weight_map\": {\"a\": 1}}", "the shard of tensor a is not a string"},
        {"{\"weight_map\": []}", "has no object weight_map"},
        {"{}", "has no object weight_map"},
        {"[]", "has no object weight_map"},
        {"{\"weight_map\": {\"a\": \"x\", \"a\": \"y\"}}", "is not valid JSON"},
        {"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"},
        {"", "is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        put(INDEX, cases[i].text);
        refuse(SW_E_FORMAT, cases[i].message);
    }
}

static int set_up(void **state)
{
    (void)state;
    sw_err_init(&err);
    dir = sw_test_scratch();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    sw_test_scratch_remove(dir);
    return 0;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_no_directory), TEST(test_closed_directory), TEST(test_no_weights),
        TEST(test_one_file),     TEST(test_shards),           TEST(test_broken_shards),
        TEST(test_broken_index),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
