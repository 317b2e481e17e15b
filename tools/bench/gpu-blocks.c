/* Times t5-11b's blocks on a GPU, forward + recomputation + backward by the program's own model
 * code, against the rate that cuBLASLt reaches at the very products of each block; says which
 * kernels the rest of the time goes to; and measures copies from and to pinned host memory beside a
 * running block. Build with `make tools/bench/gpu-blocks`.
 *
 * Flops are those of products and attention by sw_block_sizes, four times the forward's: forward,
 * recomputation, twice in backward. What attention's backward makes again is not counted.
 *
 * usage: gpu-blocks [FILTER]     FILTER: a part of the blocks' names to run */
#include "base/json.h"
#include "base/random.h"
#include "base/timing.h"
#include "model/block.h"
#include "model/config.h"
#include "model/presets.h"
#include "tests/cuda_module.h"

#include <stdlib.h>

enum { SAMPLES = 9, REPEATS = 4, CALLS = 16, PRODUCTS = 64, UNITS = SW_BLOCK_UNITS };

static const int64_t PATTERN_BYTES = 64 << 20, COPY_BYTES = 256 << 20;
static const int64_t DEVICE_BYTES = (int64_t)48 << 30;
static const double WANTED = 0.65, WANTED_COPY = 0.95;

/* A block and its micro-batch. */
struct shape {
    const char *name;
    enum sw_block_kind kind;
    int64_t rows, source, target; /* tokens of a row */
};

static const struct shape shapes[] = {
    {"encoder, 8 x 512", SW_BLOCK_ENCODER, 8, 512, 1},
    {"decoder, 32 x 128 over 512", SW_BLOCK_DECODER, 32, 512, 128},
    {"decoder, 8 x 128 over 512", SW_BLOCK_DECODER, 8, 512, 128},
};

enum { SHAPES = sizeof shapes / sizeof *shapes };

struct bench {
    const struct sw_device_ops *ops;
    struct sw_device *device;
    struct sw_stream *stream, *up, *down;
    struct sw_model *model;
    char *pinned; /* 2 COPY_BYTES, its first PATTERN_BYTES random numbers in [-1, 1) as bf16 */
    void *copied; /* 2 COPY_BYTES of device memory */
    struct sw_block_run run;
    struct sw_microbatch batch;
    struct sw_model_tables tables;
    void *start; /* d(output) that every backward begins with */
    int64_t gradient_bytes;
};

static void must(sw_code code, const struct sw_err *err)
{
    if (code == SW_OK)
        return;
    fprintf(stderr, "gpu-blocks: %s\n", err->text);
    exit(1);
}

static void finish(struct bench *b, struct sw_stream *stream)
{
    struct sw_err err = {0};
    must(b->ops->stream_sync(stream, &err), &err);
}

/* --- The table of kernels, each call repeated and timed ------------------------------------------
 */

enum kind {
    PRODUCT_FORWARD,
    PRODUCT_INPUT,
    PRODUCT_WEIGHT,
    ATTENTION,
    ATTENTION_BACKWARD,
    FFN,
    FFN_BACKWARD,
    NORM,
    NORM_BACKWARD,
    RESIDUAL,
    BIAS,
    BIAS_BACKWARD,
    KINDS
};

static const char *const kind_names[KINDS] = {
    "products, forward and recomputed",
    "products, inputs' gradients",
    "products, weights' gradients",
    "attention",
    "attention, backward",
    "activation",
    "activation, backward",
    "norm",
    "norm, backward",
    "residual and its gradient",
    "bias expanded",
    "bias table's gradient",
};

/* The table has no place for a caller's own data. */
static struct {
    struct bench *bench;
    const struct sw_kernels *kernels;
    double start, seconds[KINDS];
    int calls[KINDS];
    struct sw_gemm products[PRODUCTS];
    int product_count;
} timed;

/* Before call `i` of 1 + CALLS: the first is for warming up. */
static void before(int i)
{
    if (i != 1)
        return;
    finish(timed.bench, timed.bench->stream);
    timed.start = sw_seconds_now();
}

static void after(enum kind kind)
{
    finish(timed.bench, timed.bench->stream);
    timed.seconds[kind] += (sw_seconds_now() - timed.start) / CALLS;
    timed.calls[kind]++;
}

static void timed_gemm(struct sw_stream *stream, const struct sw_gemm *gemm)
{
    sw_assert(timed.product_count < PRODUCTS);
    timed.products[timed.product_count++] = *gemm;
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->gemm(stream, gemm);
    }
    after(gemm->trans_a ? PRODUCT_WEIGHT : gemm->trans_b ? PRODUCT_FORWARD : PRODUCT_INPUT);
}

static void timed_norm(struct sw_stream *stream, const struct sw_norm *norm, void *y, float *rstd,
                       const void *x, const void *w)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->rmsnorm_forward(stream, norm, y, rstd, x, w);
    }
    after(NORM);
}

static void timed_norm_backward(struct sw_stream *stream, const struct sw_norm *norm, void *dx,
                                float *dw, const void *dy, const void *x, const float *rstd,
                                const void *w, void *workspace)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->rmsnorm_backward(stream, norm, dx, dw, dy, x, rstd, w, workspace);
    }
    after(NORM_BACKWARD);
}

static void timed_ffn(struct sw_stream *stream, const struct sw_ffn *ffn, void *g, const void *h)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->ffn_forward(stream, ffn, g, h);
    }
    after(FFN);
}

static void timed_ffn_backward(struct sw_stream *stream, const struct sw_ffn *ffn, void *dh,
                               const void *dg, const void *h)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->ffn_backward(stream, ffn, dh, dg, h);
    }
    after(FFN_BACKWARD);
}

static void timed_residual(struct sw_stream *stream, void *y, const void *x, const void *r,
                           int64_t width, const struct sw_rows *layout,
                           const struct sw_dropout *dropout, enum sw_dtype dtype)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->residual_forward(stream, y, x, r, width, layout, dropout, dtype);
    }
    after(RESIDUAL);
}

static void timed_residual_backward(struct sw_stream *stream, void *dr, const void *dy,
                                    int64_t width, const struct sw_rows *layout,
                                    const struct sw_dropout *dropout, enum sw_dtype dtype)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->residual_backward(stream, dr, dy, width, layout, dropout, dtype);
    }
    after(RESIDUAL);
}

static void timed_attention(struct sw_stream *stream, const struct sw_attention *attention, void *o,
                            float *lse, void *workspace)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->attention_forward(stream, attention, o, lse, workspace);
    }
    after(ATTENTION);
}

static void timed_attention_backward(struct sw_stream *stream, const struct sw_attention *attention,
                                     void *dq, void *dk, void *dv, float *dbias, const void *d_o,
                                     const void *o, const float *lse, void *workspace)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->attention_backward(stream, attention, dq, dk, dv, dbias, d_o, o, lse,
                                          workspace);
    }
    after(ATTENTION_BACKWARD);
}

static void timed_bias(struct sw_stream *stream, float *bias, const void *table,
                       enum sw_dtype dtype, const int32_t *bucket_of, int64_t buckets,
                       int64_t heads, int64_t reach)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->bias_expand(stream, bias, table, dtype, bucket_of, buckets, heads, reach);
    }
    after(BIAS);
}

static void timed_bias_reduce(struct sw_stream *stream, float *dtable, const float *dbias,
                              const int32_t *bucket_of, int64_t buckets, int64_t heads,
                              int64_t reach)
{
    for (int i = 0; i <= CALLS; i++) {
        before(i);
        timed.kernels->bias_reduce(stream, dtable, dbias, bucket_of, buckets, heads, reach);
    }
    after(BIAS_BACKWARD);
}

static struct sw_kernels timed_kernels(struct bench *b)
{
    struct sw_kernels kernels = *b->ops->kernels;
    memset(&timed, 0, sizeof timed);
    timed.bench = b;
    timed.kernels = b->ops->kernels;
    kernels.gemm = timed_gemm;
    kernels.rmsnorm_forward = timed_norm;
    kernels.rmsnorm_backward = timed_norm_backward;
    kernels.ffn_forward = timed_ffn;
    kernels.ffn_backward = timed_ffn_backward;
    kernels.residual_forward = timed_residual;
    kernels.residual_backward = timed_residual_backward;
    kernels.attention_forward = timed_attention;
    kernels.attention_backward = timed_attention_backward;
    kernels.bias_expand = timed_bias;
    kernels.bias_reduce = timed_bias_reduce;
    return kernels;
}

/* --- Memory ------------------------------------------------------------------------------------*/

static void *alloc(struct bench *b, int64_t bytes)
{
    struct sw_err err = {0};
    void *memory = NULL;
    must(b->ops->alloc(b->device, bytes > 0 ? bytes : 1, &memory, &err), &err);
    return memory;
}

/* Device memory full of bf16 numbers below 2^-exponent. */
static void *alloc_random(struct bench *b, int64_t bytes, int exponent)
{
    static const uint32_t key[2] = {1, 2};
    char *memory = alloc(b, bytes);
    uint16_t *values = (uint16_t *)(void *)b->pinned;
    for (int64_t i = 0; i < PATTERN_BYTES / 2; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t words[4];
        sw_philox(key, counter, words);
        for (int w = 0; w < 4; w++)
            values[i + w] =
                sw_float_to_bf16((2.0f * sw_random_unit(words[w]) - 1.0f) / (float)(1 << exponent));
    }
    for (int64_t at = 0; at < bytes; at += PATTERN_BYTES)
        b->ops->copy(b->up, memory + at, b->pinned,
                     bytes - at < PATTERN_BYTES ? bytes - at : PATTERN_BYTES);
    finish(b, b->up);
    return memory;
}

static const int32_t *alloc_indices(struct bench *b, int64_t count, int64_t step, int64_t divisor)
{
    int32_t *values = (int32_t *)(void *)b->pinned;
    int32_t *device = alloc(b, count * 4);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(i * step / divisor);
    b->ops->copy(b->up, device, values, count * 4);
    finish(b, b->up);
    return device;
}

/* `count` rows of `length` tokens. */
static struct sw_rows alloc_rows(struct bench *b, int64_t count, int64_t length)
{
    struct sw_rows rows = {.count = count, .tokens = count * length, .longest = length};
    int32_t *values = (int32_t *)(void *)b->pinned, *lengths = alloc(b, count * 4);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)length;
    b->ops->copy(b->up, lengths, values, count * 4);
    finish(b, b->up);
    rows.starts = alloc_indices(b, count, length, 1);
    rows.lengths = lengths;
    rows.row_of_token = alloc_indices(b, rows.tokens, 1, length);
    return rows;
}

/* The weights of a unit: its norms are ones, the rest about 1 / sqrt(d_model). */
static const void *alloc_weights(struct bench *b, int32_t unit)
{
    const struct sw_unit *u = &b->model->units[unit];
    uint16_t *weights = alloc_random(b, u->elements * 2, 5);
    uint16_t *ones = (uint16_t *)(void *)b->pinned;
    for (int64_t i = 0; i < b->model->t5.d_model; i++)
        ones[i] = sw_float_to_bf16(1.0f);
    for (int32_t i = 0; i < u->param_count; i++) {
        const struct sw_param *param = &b->model->params[u->first_param + i];
        if (param->role == SW_PARAM_NORM)
            b->ops->copy(b->up, weights + param->offset, ones, param->elements * 2);
    }
    finish(b, b->up);
    return weights;
}

static void open_tables(struct bench *b, int64_t reach)
{
    int64_t bytes = sw_model_tables_bytes(reach);
    void *tables = alloc(b, bytes);
    sw_model_tables_fill(b->model, reach, (int32_t *)(void *)b->pinned);
    b->ops->copy(b->up, tables, b->pinned, bytes);
    finish(b, b->up);
    sw_model_tables_at(&b->tables, reach, tables);
}

static void open_run(struct bench *b, const struct shape *shape, float dropout)
{
    struct sw_block_run *run = &b->run;
    struct sw_block_sizes sizes;
    *run = (struct sw_block_run){.stream = b->stream, .device = b->ops, .model = b->model};
    while (b->model->blocks[run->block].kind != shape->kind)
        run->block++;
    const struct sw_block *block = &b->model->blocks[run->block];
    b->batch = (struct sw_microbatch){.rows = shape->rows, .loss_scale = 1.0f};
    b->batch.source = alloc_rows(b, shape->rows, shape->source);
    b->batch.target = alloc_rows(b, shape->rows, shape->target);
    b->batch.global_rows = alloc_indices(b, shape->rows, 1, 1);
    run->bounds = (struct sw_bounds){shape->rows, shape->source, shape->target, 1};
    open_tables(b, sw_model_tables_reach(shape->source, shape->target));
    run->tables = &b->tables;
    run->batch = &b->batch;
    run->dtype = SW_BF16;
    run->dropout = dropout;
    run->dropout_key[0] = 5;
    for (int i = 0; i < UNITS; i++)
        run->weights[i] = alloc_weights(b, block->units[i]);
    int64_t entries = b->model->t5.heads * (2 * b->tables.reach - 1);
    run->gradients[0] = alloc(b, b->model->units[block->units[0]].elements * 4);
    run->bias_gradient = alloc(b, entries * 4);
    run->bias_partial = alloc(b, b->model->t5.bias_buckets * b->model->t5.heads * 4);
    run->last_microbatch = true;
    sw_block_sizes(b->model, run->block, &run->bounds, dropout, SW_BF16, b->ops->kernels, &sizes);
    int64_t source_bytes = b->batch.source.tokens * b->model->t5.d_model * 2;
    b->gradient_bytes = sizes.output_bytes;
    run->input = alloc_random(b, sizes.input_bytes, 0);
    run->output = alloc(b, sizes.output_bytes);
    run->encoder_output = alloc_random(b, source_bytes, 0);
    run->encoder_gradient = alloc(b, source_bytes);
    run->context = alloc(b, sizes.context_bytes);
    run->workspace = alloc(b, sizes.workspace_bytes);
    run->gradient = alloc(b, sizes.output_bytes);
    b->start = alloc_random(b, sizes.output_bytes, 10);
    b->copied = alloc(b, 2 * COPY_BYTES);
    b->ops->zero(b->stream, run->gradients[0], b->model->units[block->units[0]].elements * 4);
    b->ops->zero(b->stream, run->bias_gradient, entries * 4);
    b->ops->zero(b->stream, run->encoder_gradient, source_bytes);
}

/* Device memory is given back with the device only: each shape has its own. */
static void open_bench(struct bench *b, const struct shape *shape, float dropout)
{
    struct sw_err err = {0};
    const struct sw_device_config config = {.memory_bytes = DEVICE_BYTES};
    void *pinned = NULL;
    must(b->ops->open(&b->device, &config, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_COMPUTE, &b->stream, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_H2D, &b->up, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_D2H, &b->down, &err), &err);
    must(b->ops->host_alloc(b->device, 2 * COPY_BYTES, &pinned, &err), &err);
    b->pinned = pinned;
    open_run(b, shape, dropout);
}

static void close_bench(struct bench *b)
{
    b->ops->host_free(b->device, b->pinned, 2 * COPY_BYTES);
    b->ops->stream_close(b->stream);
    b->ops->stream_close(b->up);
    b->ops->stream_close(b->down);
    b->ops->close(b->device);
}

static struct sw_model *open_model(void)
{
    struct sw_err err = {0};
    struct sw_text text = {0};
    struct sw_json *json = NULL;
    struct sw_model *model = NULL;
    must(sw_preset_config("t5-11b", &text, &err), &err);
    must(sw_json_parse(text.bytes, text.used_bytes, "t5-11b", &json, &err), &err);
    must(sw_model_open(json, "t5-11b", SW_HEAD_BY_CONFIG, &model, &err), &err);
    sw_json_free(json);
    free(text.bytes);
    return model;
}

/* --- A block -----------------------------------------------------------------------------------*/

/* What training does to a block and a micro-batch. */
static void run_block(struct bench *b, const struct sw_kernels *kernels)
{
    struct sw_block_run run = b->run;
    run.kernels = kernels;
    run.context = NULL;
    sw_block_forward(&run);
    run.context = b->run.context;
    sw_block_forward(&run);
    b->ops->copy(b->stream, run.gradient, b->start, b->gradient_bytes);
    sw_block_backward(&run);
}

/* Seconds, the median. */
static double time_block(struct bench *b)
{
    double seconds[SAMPLES];
    run_block(b, b->ops->kernels);
    for (int sample = 0; sample < SAMPLES; sample++) {
        finish(b, b->stream);
        double start = sw_seconds_now();
        for (int i = 0; i < REPEATS; i++)
            run_block(b, b->ops->kernels);
        finish(b, b->stream);
        seconds[sample] = (sw_seconds_now() - start) / REPEATS;
    }
    return sw_median(seconds, SAMPLES);
}

/* Seconds of one product, the median, as it stands in the block. */
static double time_product(struct bench *b, const struct sw_gemm *gemm)
{
    double seconds[SAMPLES];
    b->ops->kernels->gemm(b->stream, gemm);
    for (int sample = 0; sample < SAMPLES; sample++) {
        finish(b, b->stream);
        double start = sw_seconds_now();
        for (int i = 0; i < CALLS; i++)
            b->ops->kernels->gemm(b->stream, gemm);
        finish(b, b->stream);
        seconds[sample] = (sw_seconds_now() - start) / CALLS;
    }
    return sw_median(seconds, SAMPLES);
}

static bool same_product(const struct sw_gemm *a, const struct sw_gemm *b)
{
    return a->m == b->m && a->n == b->n && a->k == b->k && a->trans_a == b->trans_a &&
           a->trans_b == b->trans_b;
}

/* The rate of all of the block's products together, flops a second; prints each once. */
static double time_products(struct bench *b)
{
    double flops = 0.0, seconds = 0.0;
    for (int i = 0; i < timed.product_count; i++) {
        const struct sw_gemm *gemm = &timed.products[i];
        int times = 1;
        bool seen = false;
        for (int j = 0; j < i; j++)
            seen = seen || same_product(gemm, &timed.products[j]);
        if (seen)
            continue;
        for (int j = i + 1; j < timed.product_count; j++)
            times += same_product(gemm, &timed.products[j]) ? 1 : 0;
        double one = time_product(b, gemm);
        double work = 2.0 * (double)gemm->m * (double)gemm->n * (double)gemm->k;
        printf("    %6lld x %6lld x %6lld, %-17s %d x %8.1f us %6.1f TFLOP/s\n", (long long)gemm->m,
               (long long)gemm->n, (long long)gemm->k,
               gemm->trans_a   ? "weight's gradient"
               : gemm->trans_b ? "forward"
                               : "input's gradient",
               times, 1e6 * one, 1e-12 * work / one);
        flops += times * work;
        seconds += times * one;
    }
    printf("    all products: %.3f TFLOP in %.2f ms, %.1f TFLOP/s\n", 1e-12 * flops, 1e3 * seconds,
           1e-12 * flops / seconds);
    return flops / seconds;
}

static void print_kinds(double block_seconds)
{
    double sum = 0.0;
    for (int kind = 0; kind < KINDS; kind++) {
        sum += timed.seconds[kind];
        if (timed.calls[kind] > 0)
            printf("    %-34s %2d calls %9.1f us %5.1f %%\n", kind_names[kind], timed.calls[kind],
                   1e6 * timed.seconds[kind], 100.0 * timed.seconds[kind] / block_seconds);
    }
    printf("    sum of calls, each repeated alone            %9.1f us %5.1f %%\n", 1e6 * sum,
           100.0 * sum / block_seconds);
}

static void measure_block(struct bench *b, const struct shape *shape, float dropout)
{
    struct sw_block_sizes sizes;
    sw_block_sizes(b->model, b->run.block, &b->run.bounds, dropout, SW_BF16, b->ops->kernels,
                   &sizes);
    double flops = 2.0 * sizes.forward_flops + sizes.backward_flops;
    double seconds = time_block(b);
    const struct sw_kernels kernels = timed_kernels(b);
    run_block(b, &kernels);
    printf("%s, dropout %.1f\n", shape->name, (double)dropout);
    double products = time_products(b);
    print_kinds(seconds);
    double ratio = flops / seconds / products;
    printf("  %s, dropout %.1f: %.2f ms, %.3f TFLOP, %.1f TFLOP/s, %.3f of the products' rate "
           "(wanted %.2f)%s\n",
           shape->name, (double)dropout, 1e3 * seconds, 1e-12 * flops, 1e-12 * flops / seconds,
           ratio, WANTED, ratio >= WANTED ? "" : "  BELOW");
    fflush(stdout);
}

/* --- Copies beside a running block -------------------------------------------------------------*/

/* The driver's own calls, for a copy that owes nothing to this program. */
struct driver {
    int (*host_alloc)(void **, size_t, unsigned int);
    int (*host_free)(void *);
    int (*stream_create)(void **, unsigned int);
    int (*stream_sync)(void *);
    int (*up)(unsigned long long, const void *, size_t, void *);
    int (*down)(void *, unsigned long long, size_t, void *);
};

static void look_up(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "gpu-blocks: the driver has no %s\n", name);
        exit(1);
    }
    memcpy(out, &symbol, sizeof symbol);
}

static void driver_must(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "gpu-blocks: %s failed with %d\n", what, status);
    exit(1);
}

static struct driver open_driver(void)
{
    struct driver driver;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL) {
        fprintf(stderr, "gpu-blocks: %s\n", dlerror());
        exit(1);
    }
    look_up(library, "cuMemHostAlloc", &driver.host_alloc);
    look_up(library, "cuMemFreeHost", &driver.host_free);
    look_up(library, "cuStreamCreate", &driver.stream_create);
    look_up(library, "cuStreamSynchronize", &driver.stream_sync);
    look_up(library, "cuMemcpyHtoDAsync_v2", &driver.up);
    look_up(library, "cuMemcpyDtoHAsync_v2", &driver.down);
    return driver;
}

/* Bytes a second of a plain pinned copy with nothing beside it, the median. */
static double time_plain(struct bench *b, const struct driver *driver, bool up)
{
    double seconds[SAMPLES];
    void *host = NULL, *stream = NULL;
    unsigned long long device = (unsigned long long)(uintptr_t)b->copied;
    driver_must(driver->host_alloc(&host, (size_t)COPY_BYTES, 0), "cuMemHostAlloc");
    driver_must(driver->stream_create(&stream, 1), "cuStreamCreate");
    memset(host, 1, (size_t)COPY_BYTES);
    for (int sample = 0; sample < SAMPLES; sample++) {
        double start = sw_seconds_now();
        driver_must(up ? driver->up(device, host, (size_t)COPY_BYTES, stream)
                       : driver->down(host, device, (size_t)COPY_BYTES, stream),
                    "a copy");
        driver_must(driver->stream_sync(stream), "a copy");
        seconds[sample] = sw_seconds_now() - start;
    }
    driver_must(driver->host_free(host), "cuMemFreeHost");
    return (double)COPY_BYTES / sw_median(seconds, SAMPLES);
}

/* Bytes a second of our copies, the median, while `blocks` blocks run; and how long the blocks
 * took, which must be longer than the copies. Both ways at once: bytes of one. */
static double time_copies(struct bench *b, bool up, bool down, int blocks, double *block_seconds)
{
    double seconds[SAMPLES], start = sw_seconds_now();
    for (int i = 0; i < blocks; i++)
        run_block(b, b->ops->kernels);
    for (int sample = 0; sample < SAMPLES; sample++) {
        double begin = sw_seconds_now();
        if (up)
            b->ops->copy(b->up, b->copied, b->pinned, COPY_BYTES);
        if (down)
            b->ops->copy(b->down, b->pinned + COPY_BYTES, (char *)b->copied + COPY_BYTES,
                         COPY_BYTES);
        finish(b, b->up);
        finish(b, b->down);
        seconds[sample] = sw_seconds_now() - begin;
    }
    double copied = sw_seconds_now() - start;
    finish(b, b->stream);
    *block_seconds = blocks > 0 ? (sw_seconds_now() - start) / blocks : 0.0;
    if (blocks > 0 && sw_seconds_now() - start < copied + *block_seconds)
        printf("    the blocks were done before the copies\n");
    return (double)(COPY_BYTES) / sw_median(seconds, SAMPLES);
}

static void measure_copies(struct bench *b)
{
    static const char *const names[] = {"up", "down", "both ways at once, each"};
    const struct driver driver = open_driver();
    const double plain[] = {time_plain(b, &driver, true), time_plain(b, &driver, false)};
    double alone = time_block(b);
    printf("plain pinned copies of 256 MiB: %.1f GB/s up, %.1f down; a block alone: %.2f ms\n",
           1e-9 * plain[0], 1e-9 * plain[1], 1e3 * alone);
    for (int way = 0; way < 3; way++) {
        bool up = way != 1, down = way != 0;
        double block, idle, bound = plain[way & 1];
        double quiet = time_copies(b, up, down, 0, &idle);
        int blocks = (int)(1.5 * SAMPLES * (double)COPY_BYTES / quiet / alone) + 4;
        double busy = time_copies(b, up, down, blocks, &block);
        printf(
            "  %-24s %.1f GB/s, beside blocks %.1f GB/s, %.3f of plain%s; a block then %.2f ms\n",
            names[way], 1e-9 * quiet, 1e-9 * busy, busy / bound,
            way == 2                     ? ""
            : busy < WANTED_COPY * bound ? " (wanted 0.95)  BELOW"
                                         : " (wanted 0.95)",
            1e3 * block);
    }
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = sw_test_cuda()};
    if (b.ops == NULL)
        return 1;
    b.model = open_model();
    for (int i = 0; i < SHAPES; i++) {
        if (argc > 1 && strstr(shapes[i].name, argv[1]) == NULL)
            continue;
        for (int dropped = 0; dropped < 2; dropped++) {
            float dropout = dropped ? 0.1f : 0.0f;
            open_bench(&b, &shapes[i], dropout);
            measure_block(&b, &shapes[i], dropout);
            if (i == 0 && !dropped)
                measure_copies(&b);
            close_bench(&b);
        }
    }
    sw_model_close(b.model);
    return 0;
}
