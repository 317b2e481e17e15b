#include "ckpt/weights.h"

#include "base/mem.h"
#include "ckpt/export.h"
#include "model/init.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_ELEMENTS = 1 << 20 };

/* Fills a piece of a parameter. */
typedef sw_code (*fill_fn)(const void *context, int64_t param, int64_t first, int64_t count,
                           float *out, struct sw_err *err);

static void report(const struct sw_transfer *transfer, int64_t done, int64_t total)
{
    if (transfer != NULL && transfer->progress != NULL)
        transfer->progress(transfer->context, done, total);
}

static sw_code write_all(struct sw_engine *engine, const struct sw_model *model, fill_fn fill,
                         const void *context, const struct sw_transfer *transfer,
                         struct sw_err *err)
{
    float *piece = sw_aligned_alloc(PIECE_ELEMENTS * (int64_t)sizeof *piece);
    if (piece == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to read weights");
    sw_code code = SW_OK;
    int64_t done = 0;
    for (int64_t i = 0; i < model->param_count && code == SW_OK; i++) {
        int64_t elements = model->params[i].elements;
        for (int64_t first = 0; first < elements && code == SW_OK; first += PIECE_ELEMENTS) {
            int64_t count = elements - first < PIECE_ELEMENTS ? elements - first : PIECE_ELEMENTS;
            code = fill(context, i, first, count, piece, err);
            if (code == SW_OK)
                code = sw_engine_write_param(engine, i, first, count, piece, err);
            done += count;
            report(transfer, done, model->elements);
        }
    }
    free(piece);
    return code;
}

static sw_code fill_from_file(const void *context, int64_t param, int64_t first, int64_t count,
                              float *out, struct sw_err *err)
{
    const struct sw_mapping *mapping = context;
    return sw_tensor_read_float(mapping->tensors[param], first, count, out, err);
}

sw_code sw_weights_load(struct sw_engine *engine, const struct sw_model *model,
                        const struct sw_mapping *mapping, const struct sw_transfer *transfer,
                        struct sw_err *err)
{
    sw_code code = write_all(engine, model, fill_from_file, mapping, transfer, err);
    return code == SW_OK ? SW_OK : sw_err_while(err, "loading weights");
}

struct random_source {
    const struct sw_model *model;
    uint64_t seed;
};

static sw_code fill_at_random(const void *context, int64_t param, int64_t first, int64_t count,
                              float *out, struct sw_err *err)
{
    const struct random_source *source = context;
    (void)err;
    sw_init_fill(source->model, source->seed, param, first, count, out);
    return SW_OK;
}

sw_code sw_weights_random(struct sw_engine *engine, const struct sw_model *model, uint64_t seed,
                          const struct sw_transfer *transfer, struct sw_err *err)
{
    const struct random_source source = {model, seed};
    return write_all(engine, model, fill_at_random, &source, transfer, err);
}

static sw_code export_all(struct sw_engine *engine, const struct sw_model *model,
                          struct sw_export *export, const struct sw_transfer *transfer,
                          struct sw_err *err)
{
    float *piece = sw_aligned_alloc(PIECE_ELEMENTS * (int64_t)sizeof *piece);
    if (piece == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write weights");
    sw_code code = SW_OK;
    int64_t done = 0;
    for (int64_t i = 0; i < model->param_count && code == SW_OK; i++) {
        int64_t elements = model->params[i].elements;
        for (int64_t first = 0; first < elements && code == SW_OK; first += PIECE_ELEMENTS) {
            int64_t count = elements - first < PIECE_ELEMENTS ? elements - first : PIECE_ELEMENTS;
            code = sw_engine_read_param(engine, i, first, count, piece, err);
            if (code == SW_OK)
                code = sw_export_write(export, piece, count, err);
            done += count;
            report(transfer, done, model->elements);
        }
    }
    free(piece);
    return code;
}

sw_code sw_weights_export(struct sw_engine *engine, const struct sw_model *model,
                          const char *source, const char *directory, enum sw_dtype dtype,
                          sw_export_extra_fn extra, void *context,
                          const struct sw_transfer *transfer, struct sw_err *err)
{
    struct sw_export_tensor *tensors = sw_calloc(model->param_count, sizeof *tensors);
    struct sw_export *export = NULL;
    if (tensors == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", directory);
    for (int64_t i = 0; i < model->param_count; i++) {
        const struct sw_param *param = &model->params[i];
        tensors[i] = (struct sw_export_tensor){.name = param->name, .dims = param->dims};
        memcpy(tensors[i].shape, param->shape, (size_t)param->dims * sizeof *param->shape);
    }
    const struct sw_export_options options = {
        .directory = directory, .source = source, .dtype = dtype};
    sw_code code = sw_engine_drain(engine, err);
    if (code == SW_OK)
        code = sw_export_begin(&export, &options, tensors, model->param_count, err);
    if (code == SW_OK)
        code = export_all(engine, model, export, transfer, err);
    if (code == SW_OK && extra != NULL)
        code = extra(context, sw_export_directory(export), err);
    if (code == SW_OK)
        code = sw_export_commit(export, err);
    else
        sw_export_abort(export);
    free(tensors);
    return code == SW_OK ? SW_OK : sw_err_while(err, "writing %s", directory);
}
