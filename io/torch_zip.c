/* pytorch_model.bin since PyTorch 1.6: a zip archive NAME/data.pkl, NAME/data/KEY, ... of stored
 * entries. libzip reads the directory; the data is read in place, so an entry's position in the
 * file is needed, which libzip does not tell. It is where libzip reads when it is asked for the
 * first byte of the entry: the archive is opened through a source that remembers. */
#include "io/torch_forms.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

enum { ENTRY_NAME_BYTES = 512 };

struct source {
    int descriptor;
    int64_t bytes, position;
    int64_t last_read; /* where the latest read began */
    zip_error_t error;
};

struct archive {
    const struct sw_tensor_file *file;
    struct source source;
    zip_t *zip;
    char prefix[ENTRY_NAME_BYTES]; /* NAME, without the slash */
};

static zip_int64_t source_read(struct source *source, void *data, zip_uint64_t length)
{
    ssize_t got;
    do
        got = pread(source->descriptor, data, length, source->position);
    while (got < 0 && errno == EINTR);
    if (got < 0) {
        zip_error_set(&source->error, ZIP_ER_READ, errno);
        return -1;
    }
    source->last_read = source->position;
    source->position += got;
    return got;
}

static zip_int64_t source_call(void *user, void *data, zip_uint64_t length,
                               zip_source_cmd_t command)
{
    struct source *source = user;
    zip_stat_t *status = data;
    zip_int64_t to;
    switch (command) {
    case ZIP_SOURCE_OPEN:
        source->position = 0;
        return 0;
    case ZIP_SOURCE_READ:
        return source_read(source, data, length);
    case ZIP_SOURCE_CLOSE:
    case ZIP_SOURCE_FREE:
        return 0;
    case ZIP_SOURCE_STAT:
        zip_stat_init(status);
        status->size = (zip_uint64_t)source->bytes;
        status->valid |= ZIP_STAT_SIZE;
        return (zip_int64_t)sizeof *status;
    case ZIP_SOURCE_ERROR:
        return zip_error_to_data(&source->error, data, length);
    case ZIP_SOURCE_SEEK:
        to = zip_source_seek_compute_offset((zip_uint64_t)source->position,
                                            (zip_uint64_t)source->bytes, data, length,
                                            &source->error);
        if (to < 0)
            return -1;
        source->position = to;
        return 0;
    case ZIP_SOURCE_TELL:
        return source->position;
    case ZIP_SOURCE_SUPPORTS:
        return zip_source_make_command_bitmap(
            ZIP_SOURCE_OPEN, ZIP_SOURCE_READ, ZIP_SOURCE_CLOSE, ZIP_SOURCE_STAT, ZIP_SOURCE_ERROR,
            ZIP_SOURCE_SEEK, ZIP_SOURCE_TELL, ZIP_SOURCE_SUPPORTS, ZIP_SOURCE_FREE, -1);
    default:
        zip_error_set(&source->error, ZIP_ER_OPNOTSUPP, 0);
        return -1;
    }
}

static sw_code open_archive(struct archive *archive, struct sw_err *err)
{
    zip_error_t problem;
    zip_error_init(&problem);
    zip_error_init(&archive->source.error);
    archive->source.descriptor = archive->file->descriptor;
    archive->source.bytes = archive->file->bytes;
    zip_source_t *source = zip_source_function_create(source_call, &archive->source, &problem);
    if (source != NULL) {
        archive->zip = zip_open_from_source(source, ZIP_RDONLY, &problem);
        if (archive->zip == NULL)
            zip_source_free(source);
    }
    sw_code code = SW_OK;
    if (archive->zip == NULL)
        code = SW_FAIL(err, SW_E_FORMAT,
                       "%s is a zip archive that cannot be opened (%s): half a download? Download "
                       "it again",
                       archive->file->path, zip_error_strerror(&problem));
    zip_error_fini(&problem);
    return code;
}

/* The one NAME/data.pkl gives NAME. */
static sw_code find_prefix(struct archive *archive, struct sw_err *err)
{
    static const char pickle_name[] = "/data.pkl";
    zip_int64_t count = zip_get_num_entries(archive->zip, 0);
    for (zip_int64_t i = 0; i < count; i++) {
        const char *name = zip_get_name(archive->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        const char *slash = name == NULL ? NULL : strchr(name, '/');
        if (slash == NULL || strcmp(slash, pickle_name) != 0 ||
            slash - name >= ENTRY_NAME_BYTES / 2)
            continue;
        memcpy(archive->prefix, name, (size_t)(slash - name));
        return SW_OK;
    }
    return SW_FAIL(err, SW_E_FORMAT,
                   "%s is a zip archive, but not one of PyTorch: it has no entry NAME/data.pkl",
                   archive->file->path);
}

/* Look up NAME/`entry`, check that it is stored plainly and within the file. *out_index = -1 when
 * there is no such entry. */
static sw_code find_entry(struct archive *archive, const char *entry, zip_int64_t *out_index,
                          int64_t *out_bytes, struct sw_err *err)
{
    char name[ENTRY_NAME_BYTES];
    zip_stat_t status;
    *out_index = -1;
    int length = snprintf(name, sizeof name, "%s/%s", archive->prefix, entry);
    if (length < 0 || length >= (int)sizeof name)
        return SW_OK;
    zip_int64_t index = zip_name_locate(archive->zip, name, ZIP_FL_ENC_RAW);
    if (index < 0)
        return SW_OK;
    const zip_uint64_t needed =
        ZIP_STAT_SIZE | ZIP_STAT_COMP_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
    if (zip_stat_index(archive->zip, (zip_uint64_t)index, 0, &status) != 0 ||
        (status.valid & needed) != needed)
        return SW_FAIL(err, SW_E_FORMAT, "%s: its zip directory is damaged at entry %.200s",
                       archive->file->path, name);
    if (status.comp_method != ZIP_CM_STORE || status.encryption_method != ZIP_EM_NONE ||
        status.comp_size != status.size)
        return SW_FAIL(
            err, SW_E_FORMAT,
            "%s: entry %.200s is compressed or encrypted, which PyTorch never does: save "
            "the model again with torch.save",
            archive->file->path, name);
    if (status.size > (zip_uint64_t)archive->file->bytes)
        return SW_FAIL(err, SW_E_FORMAT, "%s: entry %.200s claims %llu bytes, the file has %lld",
                       archive->file->path, name, (unsigned long long)status.size,
                       (long long)archive->file->bytes);
    *out_index = index;
    *out_bytes = (int64_t)status.size;
    return SW_OK;
}

static sw_code damaged(const struct archive *archive, const char *entry, zip_error_t *problem,
                       struct sw_err *err)
{
    return SW_FAIL(err, SW_E_FORMAT, "%s: entry %.200s cannot be read: %s", archive->file->path,
                   entry, zip_error_strerror(problem));
}

/* All of a small entry: *out is owned; its CRC is checked. */
static sw_code read_entry(struct archive *archive, const char *entry, zip_int64_t index,
                          int64_t bytes, char **out, struct sw_err *err)
{
    zip_file_t *opened = zip_fopen_index(archive->zip, (zip_uint64_t)index, 0);
    if (opened == NULL)
        return damaged(archive, entry, zip_get_error(archive->zip), err);
    sw_code code = SW_OK;
    /* One more byte than there is: the CRC is compared at the end of the entry. */
    char *text = sw_calloc(bytes + 1, 1);
    zip_int64_t got = 0;
    int64_t done = 0;
    if (text == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", archive->file->path);
    while (code == SW_OK &&
           (got = zip_fread(opened, text + done, (zip_uint64_t)(bytes + 1 - done))) > 0 &&
           done + got <= bytes)
        done += got;
    if (code == SW_OK && (got < 0 || done != bytes))
        code = damaged(archive, entry, zip_file_get_error(opened), err);
    zip_fclose(opened);
    if (code == SW_OK)
        *out = text;
    else
        free(text);
    return code;
}

/* Where the entry's bytes lie in the file. */
static sw_code locate_entry(struct archive *archive, const char *entry, zip_int64_t index,
                            int64_t bytes, int64_t *out, struct sw_err *err)
{
    char byte;
    zip_file_t *opened = zip_fopen_index(archive->zip, (zip_uint64_t)index, ZIP_FL_COMPRESSED);
    if (opened == NULL)
        return damaged(archive, entry, zip_get_error(archive->zip), err);
    sw_code code = SW_OK;
    if (zip_fread(opened, &byte, 1) != 1)
        code = damaged(archive, entry, zip_file_get_error(opened), err);
    zip_fclose(opened);
    int64_t offset = archive->source.last_read;
    if (code == SW_OK && bytes > archive->file->bytes - offset)
        code = SW_FAIL(err, SW_E_FORMAT,
                       "%s is cut short: entry %.200s takes %lld bytes from byte %lld on, the file "
                       "has %lld",
                       archive->file->path, entry, (long long)bytes, (long long)offset,
                       (long long)archive->file->bytes);
    if (code == SW_OK)
        *out = offset;
    return code;
}

static sw_code check_byte_order(struct archive *archive, struct sw_err *err)
{
    zip_int64_t index;
    int64_t bytes;
    char *text;
    sw_code code = find_entry(archive, "byteorder", &index, &bytes, err);
    if (code != SW_OK || index < 0)
        return code;
    if (bytes > 16)
        return SW_FAIL(err, SW_E_FORMAT, "%s: its byteorder is no word", archive->file->path);
    code = read_entry(archive, "byteorder", index, bytes, &text, err);
    if (code != SW_OK)
        return code;
    if (strcmp(text, "little") != 0)
        code = SW_FAIL(err, SW_E_FORMAT,
                       "%s was written on a big-endian machine: save it again on another",
                       archive->file->path);
    free(text);
    return code;
}

static sw_code read_pickle(struct archive *archive, struct sw_pickle **out, struct sw_err *err)
{
    zip_int64_t index;
    int64_t bytes;
    char *text;
    sw_code code = find_entry(archive, "data.pkl", &index, &bytes, err);
    if (code != SW_OK)
        return code;
    sw_assert(index >= 0);
    if (bytes > SW_PICKLE_MAX_BYTES)
        return SW_FAIL(err, SW_E_FORMAT, "%s: its pickle takes %lld bytes, %d are allowed",
                       archive->file->path, (long long)bytes, SW_PICKLE_MAX_BYTES);
    code = read_entry(archive, "data.pkl", index, bytes, &text, err);
    if (code != SW_OK)
        return code;
    code = sw_pickle_parse(text, bytes, archive->file->path, out, NULL, err);
    free(text);
    return code;
}

static sw_code place_storage(struct archive *archive, struct sw_pickle_storage *storage,
                             struct sw_err *err)
{
    char entry[ENTRY_NAME_BYTES];
    zip_int64_t index;
    int64_t bytes, wanted;
    snprintf(entry, sizeof entry, "data/%.200s", storage->key);
    sw_code code = find_entry(archive, entry, &index, &bytes, err);
    if (code != SW_OK)
        return code;
    if (index < 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s: storage %.200s is missing", archive->file->path,
                       entry);
    if (!sw_size_mul(storage->elements, storage->element_bytes, &wanted) || wanted != bytes)
        return SW_FAIL(err, SW_E_FORMAT,
                       "%s: storage %.200s has %lld bytes, not the %lld elements of %s that its "
                       "pickle claims",
                       archive->file->path, entry, (long long)bytes, (long long)storage->elements,
                       storage->dtype_name);
    if (bytes == 0) {
        storage->file_offset = 0;
        return SW_OK;
    }
    return locate_entry(archive, entry, index, bytes, &storage->file_offset, err);
}

sw_code sw_torch_zip_read(const struct sw_tensor_file *file, struct sw_pickle **out,
                          struct sw_err *err)
{
    struct archive archive = {.file = file};
    struct sw_pickle *pickle = NULL;
    sw_code code = open_archive(&archive, err);
    if (code != SW_OK)
        return code;
    code = find_prefix(&archive, err);
    if (code == SW_OK)
        code = check_byte_order(&archive, err);
    if (code == SW_OK)
        code = read_pickle(&archive, &pickle, err);
    if (code == SW_OK)
        code = sw_torch_check_weights(file, pickle, err);
    if (code == SW_OK) {
        int64_t count;
        struct sw_pickle_storage **storages = sw_pickle_storages(pickle, &count);
        for (int64_t i = 0; i < count && code == SW_OK; i++)
            code = place_storage(&archive, storages[i], err);
    }
    zip_discard(archive.zip);
    zip_error_fini(&archive.source.error);
    if (code == SW_OK)
        *out = pickle;
    else
        sw_pickle_free(pickle);
    return code;
}
