#include "ckpt/weights.h"

#include "base/mem.h"
#include "ckpt/export.h"
#include "model/init.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE_ELEMENTS = 1 << 20 };

sw_code sw_weights_walk(const struct sw_model *model, sw_weights_piece_fn visit, void *context,
                        const struct sw_transfer *transfer, struct sw_err *err)
{
    float *piece = sw_aligned_alloc(PIECE_ELEMENTS * (int64_t)sizeof *piece);
    if (piece == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to move weights");
    sw_code code = SW_OK;
    int64_t done = 0;
    for (int64_t i = 0; i < model->param_count && code == SW_OK; i++) {
        int64_t elements = model->params[i].elements;
        for (int64_t first = 0; first < elements && code == SW_OK; first += PIECE_ELEMENTS) {
            int64_t count = elements - first < PIECE_ELEMENTS ? elements - first : PIECE_ELEMENTS;
            code = visit(context, i, first, count, piece, err);
            done += count;
            if (transfer != NULL && transfer->progress != NULL)
                transfer->progress(transfer->context, done, model->elements);
        }
    }
    free(piece);
    return code;
}

struct loading {
    struct sw_engine *engine;
    const struct sw_mapping *mapping;
};

static sw_code load_piece(void *context, int64_t param, int64_t first, int64_t count, float *piece,
                          struct sw_err *err)
{
    const struct loading *loading = context;
    sw_code code = sw_tensor_read_float(loading->mapping->tensors[param], first, count, piece, err);
    return code == SW_OK ? sw_engine_write_param(loading->engine, param, first, count, piece, err)
                         : code;
}

sw_code sw_weights_load(struct sw_engine *engine, const struct sw_model *model,
                        const struct sw_mapping *mapping, const struct sw_transfer *transfer,
                        struct sw_err *err)
{
    struct loading loading = {engine, mapping};
    sw_code code = sw_weights_walk(model, load_piece, &loading, transfer, err);
    return code == SW_OK ? SW_OK : sw_err_while(err, "loading weights");
}

struct making {
    struct sw_engine *engine;
    const struct sw_model *model;
    uint64_t seed;
    struct sw_pool *pool;
    /* the piece at hand */
    int64_t param, first, count;
    float *piece;
};

enum { TASK_ELEMENTS = 16384 }; /* a multiple of 4: numbers are drawn four at a time */

static void fill_part(void *context, int64_t index, int64_t worker)
{
    const struct making *making = context;
    int64_t at = index * TASK_ELEMENTS, left = making->count - at;
    (void)worker;
    sw_init_fill(making->model, making->seed, making->param, making->first + at,
                 left < TASK_ELEMENTS ? left : TASK_ELEMENTS, making->piece + at);
}

static sw_code make_piece(void *context, int64_t param, int64_t first, int64_t count, float *piece,
                          struct sw_err *err)
{
    struct making *making = context;
    making->param = param;
    making->first = first;
    making->count = count;
    making->piece = piece;
    sw_pool_run(making->pool, fill_part, making, (count + TASK_ELEMENTS - 1) / TASK_ELEMENTS);
    return sw_engine_write_param(making->engine, param, first, count, piece, err);
}

sw_code sw_weights_random(struct sw_engine *engine, const struct sw_model *model, uint64_t seed,
                          struct sw_pool *pool, const struct sw_transfer *transfer,
                          struct sw_err *err)
{
    struct making making = {.engine = engine, .model = model, .seed = seed, .pool = pool};
    return sw_weights_walk(model, make_piece, &making, transfer, err);
}

struct saving {
    struct sw_engine *engine;
    struct sw_export *export;
};

static sw_code save_piece(void *context, int64_t param, int64_t first, int64_t count, float *piece,
                          struct sw_err *err)
{
    const struct saving *saving = context;
    sw_code code = sw_engine_read_param(saving->engine, param, first, count, piece, err);
    return code == SW_OK ? sw_export_write(saving->export, piece, count, err) : code;
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
        code = sw_weights_walk(model, save_piece, &(struct saving){engine, export}, transfer, err);
    if (code == SW_OK && extra != NULL)
        code = extra(context, sw_export_directory(export), err);
    if (code == SW_OK)
        code = sw_export_commit(export, err);
    else
        sw_export_abort(export);
    free(tensors);
    return code == SW_OK ? SW_OK : sw_err_while(err, "writing %s", directory);
}
