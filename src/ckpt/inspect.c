#include "ckpt/inspect.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/model_dir.h"
#include "io/safetensors.h"
#include "io/torch_bin.h"
#include "model/config.h"
#include "model/mapping.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAX_BYTES = 16 << 20, TAIL_BYTES = 1 << 16 };

static const char *const tokenizers[] = {"spiece.model", "tokenizer.model", "tokenizer.json",
                                         "vocab.json"};

static bool has(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    bool there = path != NULL && sw_file_exists(path);
    free(path);
    return there;
}

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

/* --- directories ------------------------------------------------------------------------------ */

struct listing {
    char **names; /* owned; sorted, checkpoints by their number */
    int64_t count, capacity;
};

/* Names with equal beginnings and a number behind them in the order of the number. */
static int by_name(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;
    return strverscmp(*a, *b);
}

static void free_listing(struct listing *listing)
{
    for (int64_t i = 0; i < listing->count; i++)
        free(listing->names[i]);
    free(listing->names);
}

static sw_code list(const char *path, struct listing *out, struct sw_err *err)
{
    struct dirent *entry;
    sw_code code = SW_OK;
    DIR *directory = opendir(path);
    if (directory == NULL)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot list %s", path);
    while (code == SW_OK && (entry = readdir(directory)) != NULL) {
        void *array = out->names;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        bool room = sw_array_reserve(&array, &out->capacity, out->count, sizeof(char *));
        out->names = array;
        if (room)
            out->names[out->count] = sw_strdup(entry->d_name);
        if (!room || out->names[out->count] == NULL)
            code = SW_FAIL(err, SW_E_MEMORY, "no memory to list %s", path);
        else
            out->count++;
    }
    closedir(directory);
    if (out->count > 0)
        qsort(out->names, (size_t)out->count, sizeof *out->names, by_name);
    return code;
}

/* --- weights ---------------------------------------------------------------------------------- */

/* "131 tensors, 242026496 bytes (F32)" */
static void add_totals(const struct sw_tensor *tensors, int64_t count, struct sw_text *out)
{
    const char *seen[32]; /* more than there are dtypes */
    int64_t bytes = 0, seen_count = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t at = 0;
        while (at < seen_count && strcmp(seen[at], tensors[i].dtype_name) != 0)
            at++;
        if (at == seen_count && at < (int64_t)(sizeof seen / sizeof seen[0]))
            seen[seen_count++] = tensors[i].dtype_name;
        bytes += tensors[i].bytes;
    }
    sw_text_add(out, "%lld tensor%s, %lld bytes (", (long long)count, sw_text_plural(count),
                (long long)bytes);
    for (int64_t i = 0; i < seen_count; i++)
        sw_text_add(out, "%s%s", i == 0 ? "" : ", ", seen[i]);
    sw_text_add(out, ")\n");
}

static void add_tensors(const struct sw_tensor *tensors, int64_t count, struct sw_text *out)
{
    char shape[SW_TENSOR_SHAPE_TEXT_BYTES];
    sw_text_add(out, "tensors\n");
    for (int64_t i = 0; i < count; i++)
        sw_text_add(out, "  %-5s %-16s %s\n", tensors[i].dtype_name,
                    sw_tensor_shape_text(&tensors[i], shape), tensors[i].name);
}

static sw_code inspect_file(const char *path, struct sw_text *out, struct sw_err *err)
{
    struct sw_tensor_file *file;
    sw_code code;
    if (ends_in(path, ".safetensors"))
        code = sw_safetensors_open(path, &file, err);
    else if (ends_in(path, ".bin") || ends_in(path, ".pt") || ends_in(path, ".pth"))
        code = sw_torch_bin_open(path, &file, err);
    else
        return SW_FAIL(err, SW_E_USAGE,
                       "%s is neither a directory nor a .safetensors or .bin file of weights",
                       path);
    if (code != SW_OK)
        return code;
    sw_text_add(out, "%s: weights\nformat      %s\nholds       ", path, file->format);
    add_totals(file->tensors, file->tensor_count, out);
    add_tensors(file->tensors, file->tensor_count, out);
    sw_tensor_file_close(file);
    return SW_OK;
}

/* --- model directories and checkpoints -------------------------------------------------------- */

static void add_t5(const struct sw_model *model, struct sw_text *out)
{
    const struct sw_t5_config *t5 = &model->t5;
    sw_text_add(out,
                "family      t5: %lld encoder and %lld decoder blocks, d_model %lld, d_ff %lld%s, "
                "%lld heads of %lld, vocabulary %lld, %s head\nparameters  %lld\n",
                (long long)t5->encoder_layers, (long long)t5->decoder_layers,
                (long long)t5->d_model, (long long)t5->d_ff, t5->gated ? " gated" : "",
                (long long)t5->heads, (long long)t5->d_kv, (long long)t5->vocab_size,
                model->head_unit == model->embedding_unit ? "tied" : "separate",
                (long long)model->elements);
}

/* A family that is not known, or weights that do not fit it: what there is, and why. */
static void add_unknown(const struct sw_json *config, const struct sw_model_dir *dir,
                        const struct sw_err *reason, struct sw_text *out)
{
    const char *family = sw_json_to_string(sw_json_get(config, "model_type"));
    int64_t elements = 0;
    for (int64_t i = 0; dir != NULL && i < dir->tensor_count; i++)
        elements += dir->tensors[i].elements;
    sw_text_add(out, "family      %s\nproblem     %s\n", family != NULL ? family : "unknown",
                reason->text);
    if (dir != NULL)
        sw_text_add(out, "parameters  %lld\n", (long long)elements);
}

/* `dir` is NULL where there are no weights. */
static sw_code add_family(const char *path, const struct sw_model_dir *dir, struct sw_text *out,
                          struct sw_err *err)
{
    struct sw_json *config = NULL;
    struct sw_model *model = NULL;
    struct sw_mapping *mapping = NULL;
    struct sw_err reason = {0};
    char *config_path = sw_path_join(path, "config.json");
    if (config_path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
    sw_code code = sw_json_read_file(config_path, CONFIG_MAX_BYTES, &config, err);
    if (code == SW_OK) {
        sw_code known =
            dir == NULL
                ? sw_model_open(config, config_path, SW_HEAD_BY_CONFIG, &model, &reason)
                : sw_mapping_open(config, config_path, path, dir->tensors, dir->tensor_count,
                                  sw_tensor_equal, &model, &mapping, &reason);
        if (known == SW_OK)
            add_t5(model, out);
        else
            add_unknown(config, dir, &reason, out);
    }
    sw_mapping_close(mapping);
    sw_model_close(model);
    sw_json_free(config);
    free(config_path);
    return code;
}

static bool is_weights(const struct sw_model_dir *dir, const char *name)
{
    for (int64_t i = 0; dir != NULL && i < dir->file_count; i++)
        if (strcmp(sw_path_name(dir->files[i]->path), name) == 0)
            return true;
    return false;
}

/* What else lies there: the states of a checkpoint, tokenizers. */
static sw_code add_other_files(const char *path, const struct sw_model_dir *dir,
                               struct sw_text *out, struct sw_err *err)
{
    struct listing listing = {0};
    sw_code code = list(path, &listing, err);
    for (int64_t i = 0; i < listing.count && code == SW_OK; i++) {
        const char *name = listing.names[i];
        struct sw_tensor_file *file;
        struct stat status;
        char *full = sw_path_join(path, name);
        if (full == NULL) {
            code = SW_FAIL(err, SW_E_MEMORY, "no memory to list %s", path);
        } else if (is_weights(dir, name) || strcmp(name, "config.json") == 0 ||
                   stat(full, &status) != 0 || !S_ISREG(status.st_mode)) {
            /* shown already, or nothing to show */
        } else if (ends_in(name, ".safetensors")) {
            code = sw_safetensors_open(full, &file, err);
            if (code == SW_OK) {
                sw_text_add(out, "state       %s: ", name);
                add_totals(file->tensors, file->tensor_count, out);
                sw_tensor_file_close(file);
            }
        } else {
            bool tokenizer = false;
            for (size_t t = 0; t < sizeof tokenizers / sizeof tokenizers[0]; t++)
                tokenizer |= strcmp(name, tokenizers[t]) == 0;
            sw_text_add(out, "%s %s, %lld bytes\n", tokenizer ? "tokenizer  " : "file       ", name,
                        (long long)status.st_size);
        }
        free(full);
    }
    free_listing(&listing);
    return code;
}

static sw_code inspect_model(const char *path, bool tensors, struct sw_text *out,
                             struct sw_err *err)
{
    struct sw_model_dir *dir = NULL;
    bool weights = has(path, "model.safetensors") || has(path, "model.safetensors.index.json") ||
                   has(path, "pytorch_model.bin") || has(path, "pytorch_model.bin.index.json");
    sw_code code =
        weights ? sw_model_dir_open(path, &dir, err) : sw_model_dir_check_config(path, err);
    if (code != SW_OK)
        return code;
    sw_text_add(out, "%s: model directory\n", path);
    code = add_family(path, dir, out, err);
    if (code == SW_OK && dir != NULL) {
        sw_text_add(out, "weights     %s, %lld file%s, ", dir->format, (long long)dir->file_count,
                    dir->file_count == 1 ? "" : "s");
        add_totals(dir->tensors, dir->tensor_count, out);
    } else if (code == SW_OK) {
        sw_text_add(out, "weights     none\n");
    }
    if (code == SW_OK)
        code = add_other_files(path, dir, out, err);
    if (code == SW_OK && tensors && dir != NULL)
        add_tensors(dir->tensors, dir->tensor_count, out);
    sw_model_dir_close(dir);
    return code;
}

/* --- run directories -------------------------------------------------------------------------- */

/* The last whole line of metrics.jsonl: how far the run got. */
static sw_code add_metrics(const char *path, struct sw_text *out, struct sw_err *err)
{
    char tail[TAIL_BYTES + 1];
    int descriptor;
    int64_t bytes, step;
    double loss;
    struct sw_json *last = NULL;
    sw_code code = sw_file_open(path, &descriptor, &bytes, err);
    if (code != SW_OK)
        return code;
    int64_t from = bytes > TAIL_BYTES ? bytes - TAIL_BYTES : 0;
    code = sw_file_pread(descriptor, tail, bytes - from, from, path, err);
    close(descriptor);
    if (code != SW_OK)
        return code;
    tail[bytes - from] = '\0';
    char *end = strrchr(tail, '\n');
    if (end == NULL)
        return SW_OK;
    *end = '\0';
    char *line = strrchr(tail, '\n');
    line = line == NULL ? tail : line + 1;
    code = sw_json_parse(line, (int64_t)strlen(line), path, &last, err);
    if (code == SW_OK && sw_json_to_integer(sw_json_get(last, "step"), &step)) {
        sw_text_add(out, "steps       %lld", (long long)step);
        if (sw_json_to_double(sw_json_get(last, "loss"), &loss))
            sw_text_add(out, ", last loss %.6g", loss);
        sw_text_add(out, "\n");
    }
    sw_json_free(last);
    return code;
}

static bool is_checkpoint(const char *path, const char *name)
{
    char *full = sw_path_join(path, name);
    bool answer = full != NULL && strncmp(name, "checkpoint-", strlen("checkpoint-")) == 0 &&
                  has(full, "config.json");
    free(full);
    return answer;
}

static sw_code inspect_run(const char *path, const struct listing *listing, struct sw_text *out,
                           struct sw_err *err)
{
    const char *newest = NULL;
    sw_code code = SW_OK;
    sw_text_add(out, "%s: run directory\n", path);
    if (has(path, "metrics.jsonl")) {
        char *metrics = sw_path_join(path, "metrics.jsonl");
        code = metrics == NULL ? SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path)
                               : add_metrics(metrics, out, err);
        free(metrics);
    }
    for (int64_t i = 0; i < listing->count; i++)
        if (is_checkpoint(path, listing->names[i])) {
            newest = listing->names[i];
            sw_text_add(out, "checkpoint  %s\n", newest);
        }
    if (has(path, "final"))
        newest = "final";
    if (code != SW_OK || newest == NULL)
        return code;
    char *full = sw_path_join(path, newest);
    if (full == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
    sw_text_add(out, "\n");
    code = inspect_model(full, false, out, err);
    free(full);
    return code;
}

sw_code sw_inspect(const char *path, struct sw_text *out, struct sw_err *err)
{
    struct listing listing = {0};
    if (!sw_file_exists(path))
        return SW_FAIL_OS(err, SW_E_USAGE, ENOENT, "cannot inspect %s", path);
    if (!sw_file_is_directory(path))
        return inspect_file(path, out, err);
    if (has(path, "config.json"))
        return inspect_model(path, true, out, err);
    sw_code code = list(path, &listing, err);
    bool is_run = has(path, "config.yaml") || has(path, "metrics.jsonl") || has(path, "final");
    for (int64_t i = 0; i < listing.count && !is_run; i++)
        is_run = is_checkpoint(path, listing.names[i]);
    if (code == SW_OK && is_run)
        code = inspect_run(path, &listing, out, err);
    else if (code == SW_OK)
        code = SW_FAIL(err, SW_E_USAGE,
                       "%s is neither a model directory (no config.json) nor a run directory (no "
                       "config.yaml, metrics.jsonl, checkpoint-N or final)",
                       path);
    free_listing(&listing);
    if (code == SW_OK)
        code = sw_text_check(out, path, err);
    return code;
}
