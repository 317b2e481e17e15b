#include "data/dataset.h"

#include "base/mem.h"
#include "data/rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    int64_t first; /* in ids: the source, then the target */
    int32_t source_length, target_length;
};

struct sw_dataset {
    struct sw_ids ids;
    struct entry *entries;
    int64_t rows, capacity;
    struct sw_dataset_statistics statistics;
    char first_skipped[SW_ERR_TEXT_BYTES];
};

enum {
    CHUNK_ROWS = 1024,     /* read together, then tokenized together */
    CHUNK_BYTES = 4 << 20, /* no further row once a chunk's texts have so many */
    ROWS_PER_TASK = 16,
    TASKS = CHUNK_ROWS / ROWS_PER_TASK
};

/* A row of the chunk: where its texts are, and what they came to. */
struct pending {
    int64_t begin, source_bytes, target_bytes; /* in chunk.texts: source, then target */
    int64_t line;
    int64_t first; /* in its task's ids */
    int32_t source_length, target_length;
    bool source_truncated, target_truncated, failed;
};

struct chunk {
    const struct sw_tokenizer *tokenizer;
    const struct sw_dataset_options *options;
    struct sw_text texts;
    struct pending rows[CHUNK_ROWS];
    int64_t count;
    struct sw_ids ids[TASKS];
};

/* --- reading ------------------------------------------------------------------------- */

static sw_code read_chunk(struct chunk *chunk, struct sw_rows *reader, bool *out_end,
                          struct sw_err *err)
{
    struct sw_rows_field fields[2] = {{"", 0}, {"", 0}};
    chunk->texts.used_bytes = 0;
    chunk->count = 0;
    *out_end = false;
    while (chunk->count < CHUNK_ROWS && chunk->texts.used_bytes < CHUNK_BYTES) {
        sw_code code = sw_rows_next(reader, fields, out_end, err);
        if (code != SW_OK)
            return code;
        if (*out_end)
            break;
        chunk->rows[chunk->count++] = (struct pending){
            .begin = chunk->texts.used_bytes,
            .source_bytes = fields[0].bytes,
            .target_bytes = chunk->options->source_only ? 0 : fields[1].bytes,
            .line = sw_rows_line(reader),
        };
        sw_text_add_bytes(&chunk->texts, fields[0].text, fields[0].bytes);
        if (!chunk->options->source_only)
            sw_text_add_bytes(&chunk->texts, fields[1].text, fields[1].bytes);
    }
    return sw_text_check(&chunk->texts, "rows", err);
}

/* --- tokenizing ---------------------------------------------------------------------- */

static sw_code encode_row(struct chunk *chunk, struct pending *row, struct sw_ids *ids,
                          struct sw_err *err)
{
    const char *text = chunk->texts.bytes + row->begin;
    int64_t begin = ids->count;
    sw_code code =
        sw_tokenizer_encode(chunk->tokenizer, text, row->source_bytes,
                            chunk->options->max_source_length, ids, &row->source_truncated, err);
    if (code != SW_OK)
        return code;
    int64_t middle = ids->count;
    if (!chunk->options->source_only)
        code = sw_tokenizer_encode(chunk->tokenizer, text + row->source_bytes, row->target_bytes,
                                   chunk->options->max_target_length, ids, &row->target_truncated,
                                   err);
    if (code != SW_OK) {
        ids->count = begin;
        return code;
    }
    /* a row's text is bounded by data/rows.h, so its tokens fit */
    sw_assert(ids->count - begin <= INT32_MAX);
    row->first = begin;
    row->source_length = (int32_t)(middle - begin);
    row->target_length = (int32_t)(ids->count - middle);
    return SW_OK;
}

static void encode_task(void *context, int64_t index, int64_t worker)
{
    struct chunk *chunk = context;
    struct sw_ids *ids = &chunk->ids[index];
    int64_t first = index * ROWS_PER_TASK, end = first + ROWS_PER_TASK;
    (void)worker;
    ids->count = 0;
    for (int64_t i = first; i < end && i < chunk->count; i++)
        chunk->rows[i].failed = encode_row(chunk, &chunk->rows[i], ids, NULL) != SW_OK;
}

/* --- keeping ------------------------------------------------------------------------- */

static bool keep_ids(struct sw_dataset *dataset, const int32_t *ids, int64_t count)
{
    void *array = dataset->ids.ids;
    int64_t wanted;
    if (!sw_size_add(dataset->ids.count, count, &wanted) ||
        !sw_array_reserve(&array, &dataset->ids.capacity, wanted, sizeof *ids))
        return false;
    dataset->ids.ids = array;
    memcpy(dataset->ids.ids + dataset->ids.count, ids, (size_t)count * sizeof *ids);
    dataset->ids.count = wanted;
    return true;
}

static void count_row(struct sw_dataset_statistics *statistics, const struct pending *row)
{
    statistics->rows++;
    statistics->truncated_sources += row->source_truncated;
    statistics->truncated_targets += row->target_truncated;
    statistics->source_tokens += row->source_length;
    statistics->target_tokens += row->target_length;
    if (row->source_length > statistics->longest_source)
        statistics->longest_source = row->source_length;
    if (row->target_length > statistics->longest_target)
        statistics->longest_target = row->target_length;
}

static sw_code keep_row(struct sw_dataset *dataset, const struct pending *row, const int32_t *ids,
                        struct sw_err *err)
{
    void *array = dataset->entries;
    int64_t first = dataset->ids.count, count = (int64_t)row->source_length + row->target_length;
    if (!sw_array_reserve(&array, &dataset->capacity, dataset->rows, sizeof *dataset->entries))
        return SW_FAIL(err, SW_E_MEMORY, "no memory for row %lld", (long long)dataset->rows + 1);
    dataset->entries = array;
    if (!keep_ids(dataset, ids, count))
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the tokens of row %lld",
                       (long long)dataset->rows + 1);
    dataset->entries[dataset->rows++] =
        (struct entry){first, row->source_length, row->target_length};
    count_row(&dataset->statistics, row);
    return SW_OK;
}

/* A row that could not be tokenized: do it once more to hear why. */
static sw_code report_failed(struct sw_dataset *dataset, struct chunk *chunk, struct pending *row,
                             const char *path, struct sw_err *err)
{
    struct sw_ids ids = {0};
    struct sw_err problem;
    sw_err_init(&problem);
    sw_code code = encode_row(chunk, row, &ids, &problem);
    free(ids.ids);
    if (code == SW_OK) /* there was no memory, and now there is */
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the tokens of %s", path);
    if (code != SW_E_FORMAT || !chunk->options->skip_bad)
        return SW_FAIL(err, code, "%s, line %lld: %s", path, (long long)row->line, problem.text);
    if (dataset->statistics.skipped++ == 0)
        snprintf(dataset->first_skipped, sizeof dataset->first_skipped, "%s, line %lld: %.1500s",
                 path, (long long)row->line, problem.text);
    return SW_OK;
}

static sw_code keep_chunk(struct sw_dataset *dataset, struct chunk *chunk, const char *path,
                          struct sw_err *err)
{
    for (int64_t i = 0; i < chunk->count; i++) {
        struct pending *row = &chunk->rows[i];
        const struct sw_ids *ids = &chunk->ids[i / ROWS_PER_TASK];
        sw_code code = row->failed ? report_failed(dataset, chunk, row, path, err)
                                   : keep_row(dataset, row, ids->ids + row->first, err);
        if (code != SW_OK)
            return code;
    }
    return SW_OK;
}

static sw_code load(struct sw_dataset *dataset, struct chunk *chunk, struct sw_rows *reader,
                    struct sw_pool *pool, const char *path, struct sw_err *err)
{
    const struct sw_dataset_options *options = chunk->options;
    bool end = false;
    while (!end) {
        sw_code code = read_chunk(chunk, reader, &end, err);
        if (code != SW_OK)
            return code;
        sw_pool_run(pool, encode_task, chunk, (chunk->count + ROWS_PER_TASK - 1) / ROWS_PER_TASK);
        code = keep_chunk(dataset, chunk, path, err);
        if (code != SW_OK)
            return code;
        if (options->stop_requested != NULL && options->stop_requested())
            return SW_FAIL(err, SW_E_STOPPED, "stopped while %s was read", path);
        if (options->progress != NULL)
            options->progress(options->progress_context, dataset->rows, sw_rows_bytes_read(reader),
                              sw_rows_file_bytes(reader));
    }
    if (sw_rows_skipped(reader) > 0 && dataset->statistics.skipped == 0)
        memcpy(dataset->first_skipped, sw_rows_first_skipped(reader),
               strlen(sw_rows_first_skipped(reader)) + 1);
    dataset->statistics.skipped += sw_rows_skipped(reader);
    if (dataset->rows == 0)
        return SW_FAIL(err, SW_E_FORMAT, "%s holds no rows%s%s", path,
                       dataset->statistics.skipped > 0 ? "; the first that was skipped: " : "",
                       dataset->first_skipped);
    return SW_OK;
}

static void chunk_free(struct chunk *chunk)
{
    if (chunk == NULL)
        return;
    for (int i = 0; i < TASKS; i++)
        free(chunk->ids[i].ids);
    free(chunk->texts.bytes);
    free(chunk);
}

/* Give back what the arrays had been grown by for more. */
static void shrink(struct sw_dataset *dataset)
{
    void *ids = realloc(dataset->ids.ids, (size_t)dataset->ids.count * sizeof *dataset->ids.ids);
    if (ids != NULL)
        dataset->ids.ids = ids;
    void *entries = realloc(dataset->entries, (size_t)dataset->rows * sizeof *dataset->entries);
    if (entries != NULL)
        dataset->entries = entries;
}

sw_code sw_dataset_load(const char *path, const struct sw_tokenizer *tokenizer,
                        struct sw_pool *pool, const struct sw_dataset_options *options,
                        struct sw_dataset **out, struct sw_err *err)
{
    struct sw_rows_options rows = {
        .fields = {options->source_field != NULL ? options->source_field : "source",
                   options->target_field != NULL ? options->target_field : "target"},
        .fields_count = options->source_only ? 1 : 2,
        .skip_bad = options->skip_bad,
    };
    struct sw_rows *reader = NULL;
    struct sw_dataset *dataset = sw_calloc(1, sizeof *dataset);
    struct chunk *chunk = sw_calloc(1, sizeof *chunk);
    sw_code code;
    if (dataset == NULL || chunk == NULL) {
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to read %s", path);
        goto out;
    }
    chunk->tokenizer = tokenizer;
    chunk->options = options;
    if ((code = sw_rows_open(path, &rows, &reader, err)) != SW_OK ||
        (code = load(dataset, chunk, reader, pool, path, err)) != SW_OK)
        goto out;
    shrink(dataset);
    *out = dataset;
    dataset = NULL;
out:
    sw_rows_close(reader);
    chunk_free(chunk);
    sw_dataset_free(dataset);
    return code;
}

void sw_dataset_free(struct sw_dataset *dataset)
{
    if (dataset == NULL)
        return;
    free(dataset->ids.ids);
    free(dataset->entries);
    free(dataset);
}

int64_t sw_dataset_rows(const struct sw_dataset *dataset)
{
    return dataset->rows;
}

struct sw_row sw_dataset_row(const struct sw_dataset *dataset, int64_t index)
{
    sw_assert(index >= 0 && index < dataset->rows);
    const struct entry *entry = &dataset->entries[index];
    const int32_t *source = dataset->ids.ids + entry->first;
    return (struct sw_row){.source = source,
                           .target = source + entry->source_length,
                           .source_length = entry->source_length,
                           .target_length = entry->target_length};
}

const struct sw_dataset_statistics *sw_dataset_statistics(const struct sw_dataset *dataset)
{
    return &dataset->statistics;
}

const char *sw_dataset_first_skipped(const struct sw_dataset *dataset)
{
    return dataset->first_skipped;
}
