#include "tests/model_run.h"

#include "tests/support.h"

#include "base/mem.h"
#include "model/init.h"

enum { GUARD_BYTES = 256, GUARD = 0x5A };

/* --- Guarded memory ----------------------------------------------------------------------------*/

static void *guarded(int64_t bytes)
{
    int64_t size = sw_align_up(bytes + GUARD_BYTES, 64);
    char *memory = sw_aligned_alloc(size + 64);
    assert_non_null(memory);
    memcpy(memory, &bytes, sizeof bytes);     /* 64 bytes before what is handed out */
    memset(memory + 64, 0xFF, (size_t)bytes); /* NaN: nothing may be read before it is written */
    memset(memory + 64 + bytes, GUARD, GUARD_BYTES);
    return memory + 64;
}

static void *guarded_zero(int64_t bytes)
{
    return memset(guarded(bytes), 0, (size_t)bytes);
}

static void guarded_free(void *memory)
{
    if (memory == NULL)
        return;
    char *start = (char *)memory - 64;
    int64_t bytes;
    memcpy(&bytes, start, sizeof bytes);
    for (int64_t i = 0; i < GUARD_BYTES; i++) {
        if (start[64 + bytes + i] != GUARD)
            fail_msg("byte %lld behind a buffer of %lld bytes was written", (long long)i,
                     (long long)bytes);
    }
    free(start);
}

/* --- Opening -----------------------------------------------------------------------------------*/

static void open_device(struct model_run *run, int threads)
{
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(sw_pool_open(&run->pool, threads, &err), &err);
    const struct sw_device_config config = {.memory_bytes = 1 << 20, .pool = run->pool};
    assert_ok(sw_cpu_device_ops.open(&run->device, &config, &err), &err);
    assert_ok(sw_cpu_device_ops.stream_open(run->device, SW_STREAM_COMPUTE, &run->stream, &err),
              &err);
}

static void sync_stream(const struct model_run *run)
{
    struct sw_err err;
    sw_err_init(&err);
    assert_ok(sw_cpu_device_ops.stream_sync(run->stream, &err), &err);
}

static int64_t bias_entries(const struct model_run *run)
{
    return run->model->t5.heads * (2 * run->tables.reach - 1);
}

void model_run_open(struct model_run *run, const struct sw_model *model,
                    const struct sw_bounds *bounds, enum sw_dtype dtype, int threads)
{
    *run = (struct model_run){.model = model, .bounds = *bounds, .dtype = dtype};
    open_device(run, threads);
    int64_t reach = sw_model_tables_reach(bounds->source_length, bounds->target_length);
    run->buckets = guarded(sw_model_tables_bytes(reach));
    sw_model_tables_fill(model, reach, run->buckets);
    sw_model_tables_at(&run->tables, reach, run->buckets);
    size_t pointer = sizeof(void *);
    run->masters = sw_calloc(model->unit_count, (int64_t)pointer);
    run->weights = sw_calloc(model->unit_count, (int64_t)pointer);
    run->gradients = sw_calloc(model->unit_count, (int64_t)pointer);
    run->bias_gradients = sw_calloc(model->block_count, (int64_t)pointer);
    run->bias_partials = sw_calloc(model->block_count, (int64_t)pointer);
    for (int64_t i = 0; i < model->unit_count; i++) {
        run->masters[i] = guarded_zero(model->units[i].elements * 4);
        run->weights[i] = guarded_zero(model->units[i].elements * sw_dtype_bytes(dtype));
        run->gradients[i] = guarded_zero(model->units[i].elements * 4);
    }
    for (int64_t i = 0; i < model->block_count; i++) {
        run->bias_gradients[i] = guarded_zero(bias_entries(run) * 4);
        run->bias_partials[i] = guarded_zero(model->t5.bias_buckets * model->t5.heads * 4);
    }
}

void model_run_close(struct model_run *run)
{
    for (int64_t i = 0; i < run->model->unit_count; i++) {
        guarded_free(run->masters[i]);
        guarded_free(run->weights[i]);
        guarded_free(run->gradients[i]);
    }
    for (int64_t i = 0; i < run->model->block_count; i++) {
        guarded_free(run->bias_gradients[i]);
        guarded_free(run->bias_partials[i]);
    }
    guarded_free(run->buckets);
    free(run->masters);
    free(run->weights);
    free(run->gradients);
    free(run->bias_gradients);
    free(run->bias_partials);
    sw_cpu_device_ops.stream_close(run->stream);
    sw_cpu_device_ops.close(run->device);
    sw_pool_close(run->pool);
}

float *model_run_param(const struct model_run *run, int64_t param)
{
    const struct sw_param *it = &run->model->params[param];
    return run->masters[it->unit] + it->offset;
}

const float *model_run_gradient(const struct model_run *run, int64_t param)
{
    const struct sw_param *it = &run->model->params[param];
    return run->gradients[it->unit] + it->offset;
}

void model_run_publish(const struct model_run *run)
{
    for (int64_t i = 0; i < run->model->unit_count; i++)
        sw_cpu_kernels.convert(run->stream, run->weights[i], run->dtype, run->masters[i], SW_F32,
                               run->model->units[i].elements);
    sync_stream(run);
}

void model_run_init(const struct model_run *run, uint64_t seed)
{
    for (int64_t i = 0; i < run->model->param_count; i++)
        sw_init_fill(run->model, seed, i, 0, run->model->params[i].elements,
                     model_run_param(run, i));
    model_run_publish(run);
}

/* --- Micro-batches -----------------------------------------------------------------------------*/

struct packed {
    struct sw_microbatch batch;
    int32_t *memory[9];
    int count;
};

static int32_t *ints(struct packed *packed, int64_t count)
{
    int32_t *memory = guarded(count * 4);
    packed->memory[packed->count++] = memory;
    return memory;
}

static struct sw_rows pack_rows(struct packed *packed, const struct sw_row *rows, int64_t count,
                                bool target)
{
    struct sw_rows out = {.count = count};
    int32_t *starts = ints(packed, count);
    int32_t *lengths = ints(packed, count);
    for (int64_t i = 0; i < count; i++) {
        starts[i] = (int32_t)out.tokens;
        lengths[i] = target ? rows[i].target_length : rows[i].source_length;
        out.tokens += lengths[i];
        out.longest = lengths[i] > out.longest ? lengths[i] : out.longest;
    }
    int32_t *row_of_token = ints(packed, out.tokens);
    for (int64_t i = 0; i < count; i++) {
        for (int32_t j = 0; j < lengths[i]; j++)
            row_of_token[starts[i] + j] = (int32_t)i;
    }
    out.starts = starts;
    out.lengths = lengths;
    out.row_of_token = row_of_token;
    return out;
}

static void pack(struct packed *packed, const struct model_run *run, const struct sw_row *rows,
                 int64_t count, int64_t first_row)
{
    struct sw_microbatch *batch = &packed->batch;
    *packed = (struct packed){.batch = {.rows = count, .smoothing = run->smoothing}};
    batch->source = pack_rows(packed, rows, count, false);
    batch->target = pack_rows(packed, rows, count, true);
    int32_t *ids = ints(packed, batch->source.tokens + 2 * batch->target.tokens);
    int32_t *inputs = ids + batch->source.tokens;
    int32_t *labels = inputs + batch->target.tokens;
    int32_t *numbers = ints(packed, count);
    batch->source_ids = ids;
    batch->target_ids = inputs;
    batch->labels = labels;
    batch->global_rows = numbers;
    for (int64_t i = 0; i < count; i++) {
        numbers[i] = (int32_t)(first_row + i);
        memcpy(ids, rows[i].source, (size_t)rows[i].source_length * 4);
        ids += rows[i].source_length;
        for (int32_t j = 0; j < rows[i].target_length; j++) {
            *inputs++ = j == 0 ? run->model->t5.decoder_start_id : rows[i].target[j - 1];
            *labels++ = rows[i].target[j];
        }
    }
}

static void unpack(struct packed *packed)
{
    for (int i = 0; i < packed->count; i++)
        guarded_free(packed->memory[i]);
}

/* --- Blocks ------------------------------------------------------------------------------------*/

/* What forward leaves for backward. */
struct trail {
    void **outputs; /* [block] */
    void **contexts;
    void *encoder_output;
};

static struct sw_block_run block_run(const struct model_run *run, const struct packed *packed,
                                     int64_t index)
{
    const struct sw_block *block = &run->model->blocks[index];
    struct sw_block_run out = {
        .stream = run->stream,
        .device = &sw_cpu_device_ops,
        .kernels = &sw_cpu_kernels,
        .model = run->model,
        .tables = &run->tables,
        .batch = &packed->batch,
        .block = (int32_t)index,
        .dtype = run->dtype,
        .bounds = run->bounds,
        .dropout = run->dropout,
        .dropout_key = {run->key[0], run->key[1]},
        .bias_gradient = run->bias_gradients[index],
        .bias_partial = run->bias_partials[index],
    };
    for (int i = 0; i < SW_BLOCK_UNITS; i++) {
        if (block->units[i] < 0)
            continue;
        out.weights[i] = run->weights[block->units[i]];
        if (run->model->units[block->units[i]].trainable)
            out.gradients[i] = run->gradients[block->units[i]];
    }
    return out;
}

static struct sw_block_sizes sizes_of(const struct model_run *run, int64_t index)
{
    struct sw_block_sizes sizes;
    sw_block_sizes(run->model, (int32_t)index, &run->bounds, run->dropout, run->dtype,
                   &sw_cpu_kernels, &sizes);
    return sizes;
}

static void forward(const struct model_run *run, const struct packed *packed, struct trail *trail,
                    int64_t index, bool keep)
{
    struct sw_block_run block = block_run(run, packed, index);
    struct sw_block_sizes sizes = sizes_of(run, index);
    enum sw_block_kind kind = run->model->blocks[index].kind;
    bool embeds = kind == SW_BLOCK_EMBED_SOURCE || kind == SW_BLOCK_EMBED_TARGET;
    block.input = embeds ? NULL : trail->outputs[index - 1];
    block.encoder_output = trail->encoder_output;
    if (trail->outputs[index] == NULL)
        trail->outputs[index] = guarded(sizes.output_bytes);
    block.output = trail->outputs[index];
    if (keep && sizes.context_bytes > 0)
        block.context = trail->contexts[index] = guarded(sizes.context_bytes);
    block.workspace = guarded(sizes.workspace_bytes);
    sw_block_forward(&block);
    sync_stream(run);
    guarded_free(block.workspace);
    if (kind == SW_BLOCK_ENCODER_END)
        trail->encoder_output = block.output;
}

static void backward(const struct model_run *run, const struct packed *packed, struct trail *trail,
                     int64_t index, void *gradient, void *encoder_gradient, bool last)
{
    if (run->recompute)
        forward(run, packed, trail, index, true);
    struct sw_block_run block = block_run(run, packed, index);
    enum sw_block_kind kind = run->model->blocks[index].kind;
    block.input = index == 0 || kind == SW_BLOCK_EMBED_TARGET ? NULL : trail->outputs[index - 1];
    block.encoder_output = trail->encoder_output;
    block.context = trail->contexts[index];
    block.gradient = gradient;
    block.encoder_gradient = encoder_gradient;
    block.last_microbatch = last;
    block.workspace = guarded(sizes_of(run, index).workspace_bytes);
    sw_block_backward(&block);
    sync_stream(run);
    guarded_free(block.workspace);
    guarded_free(trail->contexts[index]);
    trail->contexts[index] = NULL;
}

/* `gradient` NULL: loss only. */
static void head(const struct model_run *run, const struct packed *packed,
                 const struct trail *trail, void *gradient, double *loss_sum, float *logits)
{
    int64_t index = run->model->block_count - 1;
    struct sw_block_run block = block_run(run, packed, index);
    block.input = trail->outputs[index - 1];
    block.gradient = gradient;
    block.loss_sum = loss_sum;
    block.logits = logits;
    block.workspace = guarded(sizes_of(run, index).workspace_bytes);
    sw_block_head(&block);
    sync_stream(run);
    guarded_free(block.workspace);
}

static void trail_open(const struct model_run *run, struct trail *trail)
{
    trail->outputs = sw_calloc(run->model->block_count, sizeof *trail->outputs);
    trail->contexts = sw_calloc(run->model->block_count, sizeof *trail->contexts);
    trail->encoder_output = NULL;
}

static void trail_close(const struct model_run *run, struct trail *trail)
{
    for (int64_t i = 0; i < run->model->block_count; i++) {
        guarded_free(trail->outputs[i]);
        guarded_free(trail->contexts[i]);
    }
    free(trail->outputs);
    free(trail->contexts);
}

/* --- Steps -------------------------------------------------------------------------------------*/

static void backward_all(const struct model_run *run, const struct packed *packed,
                         struct trail *trail, void *gradient, bool last)
{
    int64_t width_bytes = run->model->t5.d_model * sw_dtype_bytes(run->dtype);
    void *encoder_gradient = guarded_zero(packed->batch.source.tokens * width_bytes);
    bool in_encoder = false;
    for (int64_t i = run->model->block_count - 2; i >= 0; i--) {
        enum sw_block_kind kind = run->model->blocks[i].kind;
        in_encoder |= kind == SW_BLOCK_ENCODER_END;
        backward(run, packed, trail, i, in_encoder ? encoder_gradient : gradient, encoder_gradient,
                 last);
    }
    guarded_free(encoder_gradient);
}

static void step(const struct model_run *run, const struct packed *packed, double *loss_sum,
                 bool last)
{
    int64_t width_bytes = run->model->t5.d_model * sw_dtype_bytes(run->dtype);
    struct trail trail;
    trail_open(run, &trail);
    for (int64_t i = 0; i + 1 < run->model->block_count; i++)
        forward(run, packed, &trail, i, !run->recompute);
    void *gradient = guarded(packed->batch.target.tokens * width_bytes);
    head(run, packed, &trail, gradient, loss_sum, NULL);
    backward_all(run, packed, &trail, gradient, last);
    guarded_free(gradient);
    trail_close(run, &trail);
}

/* The table's gradient is the sum of its stack's blocks, in order. */
static void fold_bias(const struct model_run *run)
{
    const struct sw_model *model = run->model;
    const struct sw_unit *common = &model->units[model->common_unit];
    for (int64_t i = 0; i < model->block_count; i++) {
        enum sw_block_kind kind = model->blocks[i].kind;
        if (kind != SW_BLOCK_ENCODER && kind != SW_BLOCK_DECODER)
            continue;
        const struct sw_param *table =
            &model->params[common->first_param + (kind == SW_BLOCK_DECODER)];
        float *sum = run->gradients[model->common_unit] + table->offset;
        for (int64_t j = 0; j < table->elements; j++)
            sum[j] += run->bias_partials[i][j];
    }
}

static int64_t target_tokens(const struct sw_row *rows, int64_t count)
{
    int64_t tokens = 0;
    for (int64_t i = 0; i < count; i++)
        tokens += rows[i].target_length;
    return tokens;
}

double model_run_step(struct model_run *run, const struct sw_row *rows, int64_t count,
                      int64_t micro_batch)
{
    const struct sw_model *model = run->model;
    double loss_sum = 0.0;
    int64_t tokens = target_tokens(rows, count);
    for (int64_t i = 0; i < model->unit_count; i++)
        memset(run->gradients[i], 0, (size_t)model->units[i].elements * 4);
    for (int64_t i = 0; i < model->block_count; i++) {
        memset(run->bias_gradients[i], 0, (size_t)bias_entries(run) * 4);
        memset(run->bias_partials[i], 0, (size_t)(model->t5.bias_buckets * model->t5.heads) * 4);
    }
    for (int64_t first = 0; first < count; first += micro_batch) {
        struct packed packed;
        int64_t part = count - first < micro_batch ? count - first : micro_batch;
        pack(&packed, run, rows + first, part, first);
        packed.batch.loss_scale = (float)(1.0 / (double)tokens);
        step(run, &packed, &loss_sum, first + part == count);
        unpack(&packed);
    }
    fold_bias(run);
    return loss_sum / (double)tokens;
}

double model_run_loss(const struct model_run *run, const struct sw_row *rows, int64_t count,
                      float *logits)
{
    struct packed packed;
    struct trail trail;
    double loss_sum = 0.0;
    pack(&packed, run, rows, count, 0);
    trail_open(run, &trail);
    for (int64_t i = 0; i + 1 < run->model->block_count; i++)
        forward(run, &packed, &trail, i, false);
    head(run, &packed, &trail, NULL, &loss_sum, logits);
    trail_close(run, &trail);
    unpack(&packed);
    return loss_sum / (double)target_tokens(rows, count);
}

/* --- Generation --------------------------------------------------------------------------------*/

struct generation {
    struct sw_decode_run run;
    struct sw_decode_sizes sizes;
    struct sw_decode_index index;
    void *memory;  /* of the index */
    void **caches; /* [block] */
    void **cross;
    void *spare;
};

static void point_at(struct generation *generation, const struct model_run *run, int64_t index)
{
    const struct sw_block *block = &run->model->blocks[index];
    generation->run.block = (int32_t)index;
    generation->run.cross = generation->cross[index];
    for (int i = 0; i < SW_BLOCK_UNITS; i++)
        generation->run.weights[i] = block->units[i] < 0 ? NULL : run->weights[block->units[i]];
}

static void generation_open(struct generation *generation, const struct model_run *run,
                            const struct sw_decode_bounds *bounds)
{
    *generation = (struct generation){.run = {.stream = run->stream,
                                              .kernels = &sw_cpu_kernels,
                                              .model = run->model,
                                              .tables = &run->tables,
                                              .dtype = run->dtype,
                                              .bounds = *bounds}};
    struct sw_decode_sizes *sizes = &generation->sizes;
    sw_decode_sizes(run->model, bounds, run->dtype, &sw_cpu_kernels, sizes);
    generation->memory = guarded(sizes->index_bytes);
    sw_decode_index_at(&generation->index, generation->memory, bounds);
    generation->caches = sw_calloc(run->model->block_count, sizeof(void *));
    generation->cross = sw_calloc(run->model->block_count, sizeof(void *));
    for (int64_t i = 0; i < run->model->block_count; i++) {
        if (run->model->blocks[i].kind == SW_BLOCK_DECODER) {
            generation->caches[i] = guarded(sizes->cache_bytes);
            generation->cross[i] = guarded(sizes->cross_bytes);
        }
    }
    generation->spare = guarded(sizes->cache_bytes);
    generation->run.index = &generation->index;
    generation->run.bias = guarded(sizes->bias_bytes);
    generation->run.hidden = guarded(sizes->hidden_bytes);
    generation->run.log_probabilities = guarded(sizes->log_probabilities_bytes);
    generation->run.workspace = guarded(sizes->workspace_bytes);
}

static void generation_close(struct generation *generation, const struct model_run *run)
{
    for (int64_t i = 0; i < run->model->block_count; i++) {
        guarded_free(generation->caches[i]);
        guarded_free(generation->cross[i]);
    }
    free(generation->caches);
    free(generation->cross);
    guarded_free(generation->spare);
    guarded_free(generation->memory);
    guarded_free(generation->run.bias);
    guarded_free(generation->run.hidden);
    guarded_free(generation->run.log_probabilities);
    guarded_free(generation->run.workspace);
}

static void generation_begin(struct generation *generation, const struct model_run *run,
                             const struct packed *packed, struct trail *trail)
{
    int64_t index = 0;
    for (; run->model->blocks[index].kind != SW_BLOCK_EMBED_TARGET; index++)
        forward(run, packed, trail, index, false);
    generation->run.rows = packed->batch.rows;
    generation->run.source_tokens = packed->batch.source.tokens;
    generation->run.source_longest = packed->batch.source.longest;
    generation->run.encoder_output = trail->encoder_output;
    sw_decode_index_begin(&generation->index, &generation->run.bounds, packed->batch.rows,
                          packed->batch.source.lengths);
    for (index++; run->model->blocks[index].kind == SW_BLOCK_DECODER; index++) {
        point_at(generation, run, index);
        sw_decode_begin(
            &generation->run); /* reads the common unit, as every decoder block has it */
        sw_decode_cross(&generation->run);
    }
}

static void generation_step(struct generation *generation, const struct model_run *run)
{
    for (int64_t i = 0; i < run->model->block_count; i++) {
        point_at(generation, run, i);
        if (run->model->blocks[i].kind == SW_BLOCK_EMBED_TARGET)
            sw_decode_embed(&generation->run);
        else if (run->model->blocks[i].kind == SW_BLOCK_DECODER)
            sw_decode_block(&generation->run, &generation->caches[i], &generation->spare);
        else if (run->model->blocks[i].kind == SW_BLOCK_HEAD)
            sw_decode_head(&generation->run);
    }
    sync_stream(run);
}

void model_run_generate(const struct model_run *run, const struct sw_row *rows, int64_t count,
                        int64_t beams, int64_t steps, model_run_choose choose, void *context)
{
    const struct sw_decode_bounds bounds = {run->bounds.rows, beams, run->bounds.source_length,
                                            steps};
    struct generation generation;
    struct packed packed;
    struct trail trail;
    int64_t hypotheses = count * beams;
    int32_t *tokens = sw_calloc(hypotheses, 4);
    int32_t *parents = sw_calloc(hypotheses, 4);
    for (int64_t i = 0; i < hypotheses; i++) {
        tokens[i] = run->model->t5.decoder_start_id;
        parents[i] = (int32_t)i;
    }
    trail_open(run, &trail);
    pack(&packed, run, rows, count, 0);
    generation_open(&generation, run, &bounds);
    generation_begin(&generation, run, &packed, &trail);
    for (int64_t position = 0; position < steps; position++) {
        generation.run.position = position;
        generation.run.reorder =
            sw_decode_index_step(&generation.index, &bounds, count, position, tokens, parents);
        generation_step(&generation, run);
        if (!choose(context, position, generation.run.log_probabilities, tokens, parents))
            break;
    }
    generation_close(&generation, run);
    unpack(&packed);
    trail_close(run, &trail);
    free(tokens);
    free(parents);
}
