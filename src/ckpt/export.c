#include "ckpt/export.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "ckpt/config_text.h"
#include "io/safetensors_write.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { CONFIG_MAX_BYTES = 16 << 20, CONVERT_ELEMENTS = 1 << 15, SHARD_NAME_BYTES = 64 };

/* What a tokenizer and generation need; each is copied when it is there. */
static const char *const companions[] = {
    "spiece.model",
    "tokenizer.model",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
};

/* TARGET.tmp-PID-N beside the target */
static const char TEMPORARY[] = ".tmp-";

struct sw_export {
    char *target;    /* the directory that will be; links resolved when it exists */
    char *temporary; /* beside it */
    bool created;    /* `temporary` exists */
    int lock;        /* descriptor of `temporary`, locked: tells others that it is in use; or -1 */
    enum sw_dtype dtype;
    struct sw_safetensors_entry *entries; /* owned, names too */
    int64_t count;
    int64_t *shard_starts; /* shard_count + 1: first entry of each */
    int64_t shard_count;
    int64_t elements, written_elements;
    /* the shard being written */
    int64_t shard;
    int64_t shard_left; /* elements that it still takes */
    struct sw_safetensors_writer *writer;
};

static const char *file_dtype(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? "F32" : dtype == SW_BF16 ? "BF16" : "F16";
}

static const char *config_dtype(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? "float32" : dtype == SW_BF16 ? "bfloat16" : "float16";
}

static void destroy(struct sw_export *export)
{
    if (export == NULL)
        return;
    for (int64_t i = 0; export->entries != NULL && i < export->count; i++) {
        union {
            const char *read_only;
            char *owned;
        } name = {.read_only = export->entries[i].name};
        free(name.owned);
    }
    if (export->lock >= 0)
        close(export->lock);
    free(export->entries);
    free(export->shard_starts);
    free(export->target);
    free(export->temporary);
    free(export);
}

/* Without trailing slashes; links resolved when it exists, so that a link stays and what it points
 * to is replaced. NULL with errno when that fails. */
static char *clean_path(const char *path)
{
    if (sw_file_exists(path))
        return realpath(path, NULL);
    char *clean = sw_strdup(path);
    if (clean == NULL)
        return NULL;
    for (size_t length = strlen(clean); length > 1 && clean[length - 1] == '/'; length--)
        clean[length - 1] = '\0';
    return clean;
}

static sw_code choose_target(struct sw_export *export, const char *directory, struct sw_err *err)
{
    export->target = clean_path(directory);
    if (export->target == NULL)
        return SW_FAIL_OS(err, SW_E_IO, errno, "cannot resolve %s", directory);
    if (sw_file_exists(export->target) && !sw_file_is_directory(export->target))
        return SW_FAIL(err, SW_E_IO, "%s is a file: a model is written as a directory", directory);
    char *parent = sw_path_parent(export->target);
    if (parent == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", directory);
    sw_code code = sw_directory_make(parent, err);
    free(parent);
    return code;
}

/* -1: another process has it, or it cannot be locked. */
static int lock_directory(const char *path)
{
    int descriptor = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (descriptor >= 0 && flock(descriptor, LOCK_EX | LOCK_NB) != 0) {
        close(descriptor);
        descriptor = -1;
    }
    return descriptor;
}

/* What a killed process left beside the target: it holds no lock any more. A model is large, so
 * that must not pile up. What cannot be listed or removed stays. */
static void remove_stale(const struct sw_export *export)
{
    char *parent = sw_path_parent(export->target);
    const char *name = sw_path_name(export->target);
    size_t length = strlen(name);
    DIR *directory = parent == NULL ? NULL : opendir(parent);
    struct dirent *entry;
    while (directory != NULL && (entry = readdir(directory)) != NULL) {
        if (strncmp(entry->d_name, name, length) != 0 ||
            strncmp(entry->d_name + length, TEMPORARY, strlen(TEMPORARY)) != 0)
            continue;
        char *path = sw_path_join(parent, entry->d_name);
        int lock = path == NULL ? -1 : lock_directory(path);
        if (lock >= 0) {
            if (sw_directory_remove(path, NULL) != SW_OK)
                fprintf(stderr, "spillway: cannot remove %s\n", path);
            close(lock);
        }
        free(path);
    }
    if (directory != NULL)
        closedir(directory);
    free(parent);
}

static sw_code make_temporary(struct sw_export *export, struct sw_err *err)
{
    int64_t room = (int64_t)strlen(export->target) + 48;
    export->temporary = sw_calloc(room, 1);
    if (export->temporary == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
    for (int attempt = 0; attempt < 1000; attempt++) {
        snprintf(export->temporary, (size_t)room, "%s%s%ld-%d", export->target, TEMPORARY,
                 (long)getpid(), attempt);
        if (mkdir(export->temporary, 0777) == 0) {
            export->created = true;
            export->lock = lock_directory(export->temporary);
            return SW_OK;
        }
        if (errno != EEXIST)
            break;
    }
    return SW_FAIL_OS(err, SW_E_IO, errno, "cannot create directory %s", export->temporary);
}

static sw_code copy_tensors(struct sw_export *export, const struct sw_export_tensor *tensors,
                            struct sw_err *err)
{
    export->entries = sw_calloc(export->count, sizeof export->entries[0]);
    if (export->entries == NULL)
        goto no_memory;
    for (int64_t i = 0; i < export->count; i++) {
        struct sw_safetensors_entry *entry = &export->entries[i];
        int64_t bytes;
        entry->name = sw_strdup(tensors[i].name);
        if (entry->name == NULL)
            goto no_memory;
        entry->dtype_name = file_dtype(export->dtype);
        entry->dims = tensors[i].dims;
        memcpy(entry->shape, tensors[i].shape, sizeof entry->shape);
        if (!sw_safetensors_data_bytes(entry, 1, &bytes) ||
            !sw_size_add(export->elements, bytes / sw_dtype_bytes(export->dtype),
                         &export->elements))
            return SW_FAIL(err, SW_E_FAILED, "the size of tensor %s overflows", entry->name);
    }
    return SW_OK;
no_memory:
    return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
}

static int64_t entry_bytes(const struct sw_export *export, int64_t index)
{
    int64_t bytes = 0;
    bool fits = sw_safetensors_data_bytes(&export->entries[index], 1, &bytes);
    sw_assert(fits);
    return bytes;
}

/* As save_pretrained: tensors in order, a new shard where the next does not fit. */
static sw_code cut_shards(struct sw_export *export, int64_t max_bytes, struct sw_err *err)
{
    int64_t used = 0;
    export->shard_starts = sw_calloc(export->count + 1, sizeof export->shard_starts[0]);
    if (export->shard_starts == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
    for (int64_t i = 0; i < export->count; i++) {
        int64_t bytes = entry_bytes(export, i);
        if (i == 0 || (used > 0 && bytes > max_bytes - used)) {
            export->shard_starts[export->shard_count++] = i;
            used = 0;
        }
        used += bytes;
    }
    export->shard_starts[export->shard_count] = export->count;
    return SW_OK;
}

static void shard_name(const struct sw_export *export, int64_t shard, char *out)
{
    if (export->shard_count == 1)
        snprintf(out, SHARD_NAME_BYTES, "model.safetensors");
    else
        snprintf(out, SHARD_NAME_BYTES, "model-%05lld-of-%05lld.safetensors",
                 (long long)(shard + 1), (long long)export->shard_count);
}

static sw_code check_space(const struct sw_export *export, struct sw_err *err)
{
    int64_t bytes = export->elements * sw_dtype_bytes(export->dtype);
    int64_t free_bytes = sw_directory_free_bytes(export->temporary);
    if (free_bytes >= 0 && free_bytes < bytes)
        return SW_FAIL_OS(err, SW_E_IO, ENOSPC,
                          "the model needs %lld bytes at %s, its file system has %lld free",
                          (long long)bytes, export->target, (long long)free_bytes);
    return SW_OK;
}

static sw_code write_file(const struct sw_export *export, const char *name, const char *text,
                          int64_t bytes, struct sw_err *err)
{
    char *path = sw_path_join(export->temporary, name);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
    sw_code code = sw_file_write_atomic(path, text, bytes, err);
    free(path);
    return code;
}

static sw_code write_config(const struct sw_export *export, const char *text, const char *source,
                            struct sw_err *err)
{
    struct sw_text updated = {0};
    char *path = NULL, *read = NULL;
    sw_code code = SW_OK;
    if (text == NULL) {
        path = sw_path_join(source, "config.json");
        if (path == NULL)
            return SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", source);
        code = sw_file_read(path, CONFIG_MAX_BYTES, &read, NULL, err);
        text = read;
    }
    if (code == SW_OK)
        code = sw_config_text_set_dtype(text, path != NULL ? path : "config.json",
                                        config_dtype(export->dtype), &updated, err);
    if (code == SW_OK)
        code = write_file(export, "config.json", updated.bytes, updated.used_bytes, err);
    free(updated.bytes);
    free(path);
    free(read);
    return code;
}

static sw_code copy_companions(const struct sw_export *export, const char *source,
                               struct sw_err *err)
{
    sw_code code = SW_OK;
    for (size_t i = 0; i < sizeof companions / sizeof companions[0] && code == SW_OK; i++) {
        char *from = sw_path_join(source, companions[i]);
        char *to = sw_path_join(export->temporary, companions[i]);
        if (from == NULL || to == NULL)
            code = SW_FAIL(err, SW_E_MEMORY, "no memory to copy %s", companions[i]);
        else if (sw_file_exists(from))
            code = sw_file_copy(from, to, err);
        free(from);
        free(to);
    }
    return code;
}

sw_code sw_export_begin(struct sw_export **out, const struct sw_export_options *options,
                        const struct sw_export_tensor *tensors, int64_t count, struct sw_err *err)
{
    int64_t max_bytes =
        options->max_shard_bytes > 0 ? options->max_shard_bytes : SW_EXPORT_SHARD_BYTES;
    sw_assert(options->source != NULL || options->config_text != NULL);
    struct sw_export *export = sw_calloc(1, sizeof *export);
    if (export == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", options->directory);
    export->dtype = options->dtype;
    export->count = count;
    export->shard = -1;
    export->lock = -1;
    sw_code code = choose_target(export, options->directory, err);
    if (code == SW_OK)
        code = copy_tensors(export, tensors, err);
    if (code == SW_OK)
        code = cut_shards(export, max_bytes, err);
    if (code == SW_OK) {
        remove_stale(export);
        code = make_temporary(export, err);
    }
    if (code == SW_OK)
        code = check_space(export, err);
    if (code == SW_OK)
        code = write_config(export, options->config_text, options->source, err);
    if (code == SW_OK && options->source != NULL)
        code = copy_companions(export, options->source, err);
    if (code == SW_OK)
        *out = export;
    else
        sw_export_abort(export);
    return code;
}

/* Finish the shard being written and open the next one. */
static sw_code next_shard(struct sw_export *export, struct sw_err *err)
{
    static const char *const metadata[] = {"format", "pt", NULL};
    char name[SHARD_NAME_BYTES];
    sw_code code = SW_OK;
    if (export->writer != NULL)
        code = sw_safetensors_finish(export->writer, err);
    export->writer = NULL;
    if (code != SW_OK || ++export->shard == export->shard_count)
        return code;
    int64_t first = export->shard_starts[export->shard];
    int64_t end = export->shard_starts[export->shard + 1], bytes = 0;
    for (int64_t i = first; i < end; i++)
        bytes += entry_bytes(export, i);
    export->shard_left = bytes / sw_dtype_bytes(export->dtype);
    shard_name(export, export->shard, name);
    char *path = sw_path_join(export->temporary, name);
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
    code = sw_safetensors_create(path, export->entries + first, end - first, metadata,
                                 &export->writer, err);
    free(path);
    return code;
}

/* `count` elements of the current shard, rounded to the file's dtype. */
static sw_code append(struct sw_export *export, const float *elements, int64_t count,
                      struct sw_err *err)
{
    uint16_t halves[CONVERT_ELEMENTS];
    if (export->dtype == SW_F32)
        return sw_safetensors_append(export->writer, elements, count * 4, err);
    for (int64_t done = 0; done < count; done += CONVERT_ELEMENTS) {
        int64_t part = count - done < CONVERT_ELEMENTS ? count - done : CONVERT_ELEMENTS;
        if (export->dtype == SW_BF16)
            for (int64_t i = 0; i < part; i++)
                halves[i] = sw_float_to_bf16(elements[done + i]);
        else
            for (int64_t i = 0; i < part; i++)
                halves[i] = sw_float_to_f16(elements[done + i]);
        sw_code code = sw_safetensors_append(export->writer, halves, part * 2, err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

sw_code sw_export_write(struct sw_export *export, const float *elements, int64_t count,
                        struct sw_err *err)
{
    sw_assert(count >= 0 && count <= export->elements - export->written_elements);
    while (count > 0) {
        while (export->shard_left == 0) {
            sw_code code = next_shard(export, err);
            if (code != SW_OK)
                return code;
            sw_assert(export->shard < export->shard_count);
        }
        int64_t part = count < export->shard_left ? count : export->shard_left;
        sw_code code = append(export, elements, part, err);
        if (code != SW_OK)
            return code;
        elements += part;
        count -= part;
        export->shard_left -= part;
        export->written_elements += part;
    }
    return SW_OK;
}

const char *sw_export_directory(const struct sw_export *export)
{
    return export->temporary;
}

static sw_code write_index(const struct sw_export *export, struct sw_err *err)
{
    struct sw_text text = {0};
    char name[SHARD_NAME_BYTES];
    sw_text_add(&text, "{\n  \"metadata\": {\n    \"total_size\": %lld\n  },\n  \"weight_map\": {",
                (long long)(export->elements * sw_dtype_bytes(export->dtype)));
    for (int64_t shard = 0; shard < export->shard_count; shard++) {
        shard_name(export, shard, name);
        for (int64_t i = export->shard_starts[shard]; i < export->shard_starts[shard + 1]; i++) {
            sw_text_add(&text, "%s\n    ", i == 0 ? "" : ",");
            sw_text_add_json_string(&text, export->entries[i].name);
            sw_text_add(&text, ": \"%s\"", name);
        }
    }
    sw_text_add(&text, "\n  }\n}\n");
    sw_code code = sw_text_check(&text, "the index of the shards", err);
    if (code == SW_OK)
        code = write_file(export, "model.safetensors.index.json", text.bytes, text.used_bytes, err);
    free(text.bytes);
    return code;
}

/* Put the new directory in place of the old one, which is removed last. Exchanging the two names is
 * one step where the file system can; elsewhere the old one is moved away first, and back when the
 * new one cannot follow. */
static sw_code replace_target(struct sw_export *export, struct sw_err *err)
{
    if (renameat2(AT_FDCWD, export->temporary, AT_FDCWD, export->target, RENAME_EXCHANGE) == 0)
        return SW_OK;
    sw_code code = SW_OK;
    /* Not a name that remove_stale() takes: after a crash in between it is all there is. */
    int64_t room = (int64_t)strlen(export->target) + 32;
    char *old = sw_calloc(room, 1);
    if (old == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to replace %s", export->target);
    snprintf(old, (size_t)room, "%s.old-%ld", export->target, (long)getpid());
    if (rename(export->target, old) != 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot replace %s", export->target);
    } else if (rename(export->temporary, export->target) != 0) {
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot replace %s", export->target);
        if (rename(old, export->target) != 0)
            sw_err_while(err, "its former contents lie in %s", old);
    } else if (rename(old, export->temporary) != 0) {
        /* The new one is in place: what is left to do is to remove the old one. */
        code = sw_directory_remove(old, err);
    }
    free(old);
    return code;
}

static sw_code move_into_place(struct sw_export *export, struct sw_err *err)
{
    char *parent = sw_path_parent(export->target);
    if (parent == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", export->target);
    sw_code code = SW_OK;
    if (sw_file_exists(export->target))
        code = replace_target(export, err);
    else if (rename(export->temporary, export->target) != 0)
        code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot rename %s to %s", export->temporary,
                          export->target);
    if (code == SW_OK)
        code = sw_directory_sync(parent, err);
    free(parent);
    return code;
}

sw_code sw_export_commit(struct sw_export *export, struct sw_err *err)
{
    sw_code code = SW_OK;
    if (export->written_elements != export->elements)
        code = SW_FAIL(err, SW_E_FAILED, "%s is not whole: %lld of %lld elements were written",
                       export->target, (long long)export->written_elements,
                       (long long)export->elements);
    /* Closes the last shard; shards of empty tensors only are written here. */
    while (code == SW_OK && export->shard_count > 0 && export->shard < export->shard_count)
        code = next_shard(export, err);
    if (code == SW_OK && export->shard_count > 1)
        code = write_index(export, err);
    if (code == SW_OK)
        code = sw_directory_sync(export->temporary, err);
    if (code == SW_OK)
        code = move_into_place(export, err);
    /* What has the temporary name now is the old directory, a failed one, or nothing. */
    sw_export_abort(export);
    return code;
}

void sw_export_abort(struct sw_export *export)
{
    if (export == NULL)
        return;
    sw_safetensors_discard(export->writer);
    /* Nothing more can be done about a directory that stays. */
    if (export->created && sw_directory_remove(export->temporary, NULL) != SW_OK)
        fprintf(stderr, "spillway: cannot remove %s\n", export->temporary);
    destroy(export);
}
