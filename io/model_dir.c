#include "io/model_dir.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "io/safetensors.h"
#include "io/torch_bin.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { INDEX_MAX_BYTES = 64 << 20 };

typedef sw_code (*open_fn)(const char *path, struct sw_tensor_file **out, struct sw_err *err);

/* In order of preference. */
static const struct layout {
    const char *name;
    bool is_index;
    const char *format;
    open_fn open;
} layouts[] = {
    {"model.safetensors", false, "safetensors", sw_safetensors_open},
    {"model.safetensors.index.json", true, "safetensors", sw_safetensors_open},
    {"pytorch_model.bin", false, "PyTorch", sw_torch_bin_open},
    {"pytorch_model.bin.index.json", true, "PyTorch", sw_torch_bin_open},
};

static bool ends_in(const char *text, const char *end)
{
    size_t length = strlen(text), wanted = strlen(end);
    return length >= wanted && strcmp(text + length - wanted, end) == 0;
}

static bool exists_in(const char *directory, const char *name)
{
    char *path = sw_path_join(directory, name);
    bool exists = path != NULL && sw_file_exists(path);
    free(path);
    return exists;
}

/* Is it a file that is really there? Refuses Git LFS pointers and empty files. */
static sw_code check_file(const char *path, struct sw_err *err)
{
    struct sw_tensor_file *file;
    sw_code code = sw_tensor_file_open(path, "JSON", &file, err);
    if (code == SW_OK)
        sw_tensor_file_close(file);
    return code;
}

sw_code sw_model_dir_check_config(const char *path, struct sw_err *err)
{
    if (access(path, F_OK) != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno,
                          "no model directory %s (models are not downloaded: give a directory that "
                          "holds config.json)",
                          path);
    if (!sw_file_is_directory(path))
        return SW_FAIL(err, SW_E_USAGE,
                       "%s is a file, not a model directory: give the directory that holds "
                       "config.json",
                       path);
    if (access(path, R_OK | X_OK) != 0)
        return SW_FAIL_OS(err, SW_E_USAGE, errno, "cannot read the directory %s", path);
    char *config = sw_path_join(path, "config.json"), *final = sw_path_join(path, "final");
    sw_code code = SW_OK;
    if (config == NULL || final == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", path);
    else if (!sw_file_exists(config) && sw_file_is_directory(final))
        code = SW_FAIL(err, SW_E_USAGE, "%s is a run directory; its model is %s", path, final);
    else if (!sw_file_exists(config))
        code = SW_FAIL(err, SW_E_USAGE,
                       "%s has no config.json: not a HuggingFace model directory, or one that is "
                       "not completely downloaded",
                       path);
    else
        code = check_file(config, err);
    free(config);
    free(final);
    return code;
}

/* No weights that can be read: say what there is in place of them. */
static sw_code explain_missing(const char *path, struct sw_err *err)
{
    const char *found = NULL;
    char name[256] = "";
    struct dirent *entry;
    DIR *directory = opendir(path);
    if (directory == NULL)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot list %s", path);
    while ((entry = readdir(directory)) != NULL) {
        const char *what = NULL;
        if (ends_in(entry->d_name, ".incomplete") || ends_in(entry->d_name, ".part"))
            what = "the download is not complete: download it again";
        else if (found != NULL)
            continue;
        else if (ends_in(entry->d_name, ".msgpack") || ends_in(entry->d_name, ".h5") ||
                 strstr(entry->d_name, ".ckpt") != NULL)
            what = "weights of another framework: convert them with transformers "
                   "(from_pretrained with from_flax or from_tf, then save_pretrained)";
        else if (ends_in(entry->d_name, ".safetensors") || ends_in(entry->d_name, ".bin"))
            what = "its name is not one that save_pretrained gives, or its index "
                   "(.index.json) is missing";
        if (what == NULL)
            continue;
        found = what;
        snprintf(name, sizeof name, "%.255s", entry->d_name);
    }
    closedir(directory);
    if (found == NULL)
        return SW_FAIL(
            err, SW_E_FORMAT,
            "%s has no weights: neither model.safetensors nor pytorch_model.bin, nor the "
            "index of either",
            path);
    return SW_FAIL(err, SW_E_FORMAT,
                   "%s has neither model.safetensors nor pytorch_model.bin, but %s: %s", path, name,
                   found);
}

static sw_code add_file(struct sw_model_dir *dir, const struct layout *layout, const char *name,
                        int64_t *capacity, struct sw_err *err)
{
    sw_code code;
    void *array = dir->files;
    char *path = sw_path_join(dir->path, name);
    if (path == NULL || !sw_array_reserve(&array, capacity, dir->file_count, sizeof(void *))) {
        free(path);
        return SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", dir->path);
    }
    dir->files = array;
    code = layout->open(path, &dir->files[dir->file_count], err);
    if (code == SW_OK)
        dir->file_count++;
    free(path);
    return code;
}

static int by_text(const void *left, const void *right)
{
    const char *const *a = left, *const *b = right;
    return strcmp(*a, *b);
}

/* A shard is named by a plain file name, so that an index cannot point elsewhere. */
static sw_code check_shard(const struct sw_model_dir *dir, const char *index, const char *tensor,
                           const char *shard, struct sw_err *err)
{
    if (shard == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: the shard of tensor %.200s is not a string", index,
                       tensor);
    if (shard[0] == '\0' || strchr(shard, '/') != NULL || strcmp(shard, ".") == 0 ||
        strcmp(shard, "..") == 0)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: the shard %.200s of tensor %.200s is not a file name in %s", index,
                       shard, tensor, dir->path);
    return SW_OK;
}

static sw_code open_shard(struct sw_model_dir *dir, const struct layout *layout, const char *index,
                          const char *shard, int64_t *capacity, struct sw_err *err)
{
    char partial[300];
    if (exists_in(dir->path, shard))
        return add_file(dir, layout, shard, capacity, err);
    snprintf(partial, sizeof partial, "%.255s.incomplete", shard);
    return SW_FAIL(
        err, SW_E_FORMAT, "%s names the shard %.200s, which %s: download it again", index, shard,
        exists_in(dir->path, partial) ? "is half downloaded (.incomplete)" : "is not there");
}

/* Open every shard once, in the order of their names. */
static sw_code open_shards(struct sw_model_dir *dir, const struct layout *layout, const char *index,
                           const struct sw_json *map, struct sw_err *err)
{
    void *cursor = NULL;
    const char *tensor;
    const struct sw_json *value;
    int64_t count = 0, capacity = 0;
    sw_code code = SW_OK;
    const char **shards = sw_calloc(sw_json_count(map), sizeof *shards);
    if (shards == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", dir->path);
    while (code == SW_OK && sw_json_next(map, &cursor, &tensor, &value)) {
        shards[count] = sw_json_to_string(value);
        code = check_shard(dir, index, tensor, shards[count++], err);
    }
    if (code == SW_OK)
        qsort(shards, (size_t)count, sizeof *shards, by_text);
    for (int64_t i = 0; i < count && code == SW_OK; i++)
        if (i == 0 || strcmp(shards[i - 1], shards[i]) != 0)
            code = open_shard(dir, layout, index, shards[i], &capacity, err);
    free(shards);
    return code;
}

static int by_tensor_name(const void *left, const void *right)
{
    const struct sw_tensor *a = left, *b = right;
    return strcmp(a->name, b->name);
}

/* One sorted list of the tensors of all files. */
static sw_code gather(struct sw_model_dir *dir, struct sw_err *err)
{
    int64_t count = 0;
    for (int64_t i = 0; i < dir->file_count; i++)
        count += dir->files[i]->tensor_count;
    if (count == 0)
        return SW_FAIL(err, SW_E_FORMAT, "the weights of %s hold no tensors", dir->path);
    dir->tensors = sw_calloc(count, sizeof dir->tensors[0]);
    if (dir->tensors == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the tensors of %s", dir->path);
    for (int64_t i = 0; i < dir->file_count; i++) {
        const struct sw_tensor_file *file = dir->files[i];
        if (file->tensor_count > 0)
            memcpy(dir->tensors + dir->tensor_count, file->tensors,
                   (size_t)file->tensor_count * sizeof file->tensors[0]);
        dir->tensor_count += file->tensor_count;
    }
    qsort(dir->tensors, (size_t)count, sizeof dir->tensors[0], by_tensor_name);
    for (int64_t i = 1; i < count; i++)
        if (strcmp(dir->tensors[i - 1].name, dir->tensors[i].name) == 0)
            return SW_FAIL(err, SW_E_FORMAT, "tensor %.200s is both in %s and in %s",
                           dir->tensors[i].name, dir->tensors[i - 1].path, dir->tensors[i].path);
    return SW_OK;
}

/* The index and its shards say the same. */
static sw_code compare_index(const struct sw_model_dir *dir, const char *index,
                             const struct sw_json *map, struct sw_err *err)
{
    void *cursor = NULL;
    const char *name;
    const struct sw_json *value;
    while (sw_json_next(map, &cursor, &name, &value)) {
        const char *shard = sw_json_to_string(value);
        const struct sw_tensor *tensor = sw_model_dir_find(dir, name);
        if (tensor == NULL)
            return SW_FAIL(err, SW_E_FORMAT, "%s puts tensor %.200s into %s, which lacks it", index,
                           name, shard);
        if (strcmp(sw_path_name(tensor->path), shard) != 0)
            return SW_FAIL(err, SW_E_FORMAT, "%s puts tensor %.200s into %s, but it is in %s",
                           index, name, shard, tensor->path);
    }
    for (int64_t i = 0; i < dir->tensor_count; i++)
        if (sw_json_get(map, dir->tensors[i].name) == NULL)
            return SW_FAIL(err, SW_E_FORMAT, "%s does not name tensor %.200s, which is in %s",
                           index, dir->tensors[i].name, dir->tensors[i].path);
    return SW_OK;
}

static sw_code open_index(struct sw_model_dir *dir, const struct layout *layout, struct sw_err *err)
{
    struct sw_json *root = NULL;
    char *path = sw_path_join(dir->path, layout->name);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", dir->path);
    sw_code code = check_file(path, err);
    if (code == SW_OK)
        code = sw_json_read_file(path, INDEX_MAX_BYTES, &root, err);
    const struct sw_json *map = sw_json_get(root, "weight_map");
    if (code == SW_OK && (map == NULL || sw_json_kind(map) != SW_JSON_OBJECT))
        code = SW_FAIL(err, SW_E_FORMAT, "%s has no object weight_map", path);
    if (code == SW_OK)
        code = open_shards(dir, layout, path, map, err);
    if (code == SW_OK)
        code = gather(dir, err);
    if (code == SW_OK)
        code = compare_index(dir, path, map, err);
    sw_json_free(root);
    free(path);
    return code;
}

static sw_code open_weights(struct sw_model_dir *dir, struct sw_err *err)
{
    for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
        const struct layout *layout = &layouts[i];
        int64_t capacity = 0;
        if (!exists_in(dir->path, layout->name))
            continue;
        dir->format = layout->format;
        if (layout->is_index)
            return open_index(dir, layout, err);
        sw_code code = add_file(dir, layout, layout->name, &capacity, err);
        return code == SW_OK ? gather(dir, err) : code;
    }
    return explain_missing(dir->path, err);
}

sw_code sw_model_dir_open(const char *path, struct sw_model_dir **out, struct sw_err *err)
{
    sw_code code = sw_model_dir_check_config(path, err);
    if (code != SW_OK)
        return code;
    struct sw_model_dir *dir = sw_calloc(1, sizeof *dir);
    if (dir == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", path);
    dir->path = sw_strdup(path);
    dir->config_path = sw_path_join(path, "config.json");
    if (dir->path == NULL || dir->config_path == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", path);
    else
        code = open_weights(dir, err);
    if (code == SW_OK)
        *out = dir;
    else
        sw_model_dir_close(dir);
    return code;
}

void sw_model_dir_close(struct sw_model_dir *dir)
{
    if (dir == NULL)
        return;
    for (int64_t i = 0; i < dir->file_count; i++)
        sw_tensor_file_close(dir->files[i]);
    free(dir->files);
    free(dir->tensors);
    free(dir->config_path);
    free(dir->path);
    free(dir);
}

const struct sw_tensor *sw_model_dir_find(const struct sw_model_dir *dir, const char *name)
{
    const struct sw_tensor wanted = {.name = name};
    if (dir->tensor_count == 0)
        return NULL;
    return bsearch(&wanted, dir->tensors, (size_t)dir->tensor_count, sizeof wanted, by_tensor_name);
}
