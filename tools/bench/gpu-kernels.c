/* Times every CUDA kernel at the shapes of t5-11b's blocks (an encoder block over 8 x 512 tokens, a
 * decoder block over 32 x 128 with 512 source tokens each) against its bound: bytes at the rate of
 * a copy within the GPU, flops at the rate of a large bf16 product. Build with `make
 * tools/bench/gpu-kernels`.
 *
 * usage: gpu-kernels [FILTER]     FILTER: a part of the names to run */
#include "base/random.h"
#include "base/timing.h"
#include "optim/optim.h"
#include "tests/cuda_module.h"

#include <stdlib.h>

enum { TOKENS = 4096, MODEL = 1024, INNER = 65536, HEADS = 128, HEAD = 128, VOCABULARY = 32128 };
enum { WIDTH = HEADS * HEAD, CHUNK = 512, REACH = 512, BUCKETS = 32, BUFFERS = 6, ROUNDS = 3 };

static const int64_t BUFFER_BYTES = (int64_t)1 << 30, UNIT_ELEMENTS = 201 << 20;
static const int64_t DEVICE_BYTES = (int64_t)16 << 30, PATTERN_BYTES = 64 << 20;

struct bench {
    const struct sw_device_ops *ops;
    struct sw_device *device;
    struct sw_stream *stream, *up, *down;
    void *buffer[BUFFERS]; /* BUFFER_BYTES each, random numbers as bf16 and as fp32 */
    char *pinned;          /* PATTERN_BYTES */
    void *workspace;       /* as large as any kernel wants */
    float *statistics;     /* fp32 [HEADS][4 * TOKENS] */
    float *bias;           /* fp32 [HEADS][2 * REACH - 1] */
    double *sum;
    int32_t *ids, *labels, *buckets;
    struct sw_rows encoder, decoder, source;
    struct sw_dropout dropout;
    const char *filter;
    double bytes_per_second, flops_per_second;
};

/* One kind of call. */
struct call {
    const char *name;
    void (*run)(struct bench *, const struct call *);
    double bytes, flops;
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    bool apart; /* it accumulates on another buffer than it writes */
    enum sw_dtype dtype, c_dtype;
    bool causal, cross, gated;
    float p;
};

static void must(sw_code code, const struct sw_err *err)
{
    if (code == SW_OK)
        return;
    fprintf(stderr, "gpu-kernels: %s\n", err->text);
    exit(1);
}

static void finish(struct bench *b)
{
    struct sw_err err = {0};
    must(b->ops->stream_sync(b->stream, &err), &err);
    must(b->ops->stream_sync(b->up, &err), &err);
    must(b->ops->stream_sync(b->down, &err), &err);
}

/* Seconds of a call, the best of some rounds; and what issuing it takes the host. */
static double time_call(struct bench *b, const struct call *call, double *issue)
{
    double best = 0.0;
    call->run(b, call);
    finish(b);
    double start = sw_seconds_now();
    call->run(b, call);
    finish(b);
    int times = (int)(0.03 / (sw_seconds_now() - start)) + 3;
    times = times > 200 ? 200 : times;
    for (int round = 0; round < ROUNDS; round++) {
        start = sw_seconds_now();
        for (int i = 0; i < times; i++)
            call->run(b, call);
        double issued = (sw_seconds_now() - start) / times;
        finish(b);
        double seconds = (sw_seconds_now() - start) / times;
        *issue = round == 0 || issued < *issue ? issued : *issue;
        best = round == 0 || seconds < best ? seconds : best;
    }
    return best;
}

static double measure(struct bench *b, const struct call *call)
{
    double issue, bound = 0.0;
    if (b->filter != NULL && b->flops_per_second > 0.0 && strstr(call->name, b->filter) == NULL)
        return 0.0;
    double seconds = time_call(b, call, &issue);
    if (b->bytes_per_second > 0.0)
        bound = call->bytes / b->bytes_per_second;
    if (b->flops_per_second > 0.0 && call->flops / b->flops_per_second > bound)
        bound = call->flops / b->flops_per_second;
    printf("%-40s %9.1f us %8.1f GB/s %7.1f TFLOP/s   %5.1f %% of its bound   issue %6.1f us\n",
           call->name, 1e6 * seconds, 1e-9 * call->bytes / seconds, 1e-12 * call->flops / seconds,
           100.0 * bound / seconds, 1e6 * issue);
    fflush(stdout);
    return seconds;
}

/* --- Calls ---------------------------------------------------------------------------------------
 */

static void run_copy(struct bench *b, const struct call *c)
{
    b->ops->copy(b->stream, b->buffer[1], b->buffer[0], c->m);
}

static void run_up(struct bench *b, const struct call *c)
{
    b->ops->copy(b->up, b->buffer[0], b->pinned, c->m);
}

static void run_down(struct bench *b, const struct call *c)
{
    b->ops->copy(b->down, b->pinned, b->buffer[0], c->m);
}

static void run_gemm(struct bench *b, const struct call *c)
{
    const struct sw_gemm gemm = {.m = c->m,
                                 .n = c->n,
                                 .k = c->k,
                                 .trans_a = c->trans_a,
                                 .trans_b = c->trans_b,
                                 .a = b->buffer[0],
                                 .lda = c->trans_a ? c->m : c->k,
                                 .b = b->buffer[1],
                                 .ldb = c->trans_b ? c->k : c->n,
                                 .c = b->buffer[2],
                                 .ldc = c->n,
                                 .addend = c->apart ? b->buffer[3] : NULL,
                                 .alpha = 1e-6f,
                                 .beta = c->accumulate ? 1.0f : 0.0f,
                                 .ab_dtype = SW_BF16,
                                 .c_dtype = c->c_dtype};
    b->ops->kernels->gemm(b->stream, &gemm);
}

static void run_norm(struct bench *b, const struct call *c)
{
    const struct sw_norm norm = {.rows = c->m, .width = MODEL, .eps = 1e-6f, .dtype = SW_BF16};
    b->ops->kernels->rmsnorm_forward(b->stream, &norm, b->buffer[2], b->statistics, b->buffer[0],
                                     b->buffer[1]);
}

static void run_norm_backward(struct bench *b, const struct call *c)
{
    const struct sw_norm norm = {.rows = c->m, .width = MODEL, .eps = 1e-6f, .dtype = SW_BF16};
    b->ops->kernels->rmsnorm_backward(b->stream, &norm, b->buffer[2], b->buffer[4], b->buffer[0],
                                      b->buffer[3], b->statistics, b->buffer[1], b->workspace);
}

static struct sw_ffn ffn_of(struct bench *b, const struct call *c)
{
    struct sw_ffn ffn = {.rows = TOKENS,
                         .width = c->gated ? INNER / 2 : INNER,
                         .gated = c->gated,
                         .activation = c->gated ? SW_ACT_GELU_TANH : SW_ACT_RELU,
                         .dtype = SW_BF16,
                         .layout = &b->encoder,
                         .dropout = b->dropout};
    ffn.dropout.p = c->p;
    return ffn;
}

static void run_ffn(struct bench *b, const struct call *c)
{
    const struct sw_ffn ffn = ffn_of(b, c);
    b->ops->kernels->ffn_forward(b->stream, &ffn, b->buffer[2], b->buffer[0]);
}

static void run_ffn_backward(struct bench *b, const struct call *c)
{
    const struct sw_ffn ffn = ffn_of(b, c);
    b->ops->kernels->ffn_backward(b->stream, &ffn, b->buffer[2], b->buffer[1], b->buffer[0]);
}

static void run_residual(struct bench *b, const struct call *c)
{
    struct sw_dropout dropout = b->dropout;
    dropout.p = c->p;
    b->ops->kernels->residual_forward(b->stream, b->buffer[2], b->buffer[0], b->buffer[1], MODEL,
                                      &b->encoder, &dropout, SW_BF16);
}

static void run_gemm_and_residual(struct bench *b, const struct call *c)
{
    run_gemm(b, c);
    run_residual(b, c);
}

static void run_embedding(struct bench *b, const struct call *c)
{
    b->ops->kernels->embedding_forward(b->stream, b->buffer[2], b->buffer[0], b->ids, c->m, MODEL,
                                       SW_BF16);
}

static void run_embedding_backward(struct bench *b, const struct call *c)
{
    b->ops->kernels->embedding_backward(b->stream, b->buffer[2], b->buffer[0], b->ids, c->m, MODEL,
                                        VOCABULARY, SW_BF16, b->workspace);
}

static void run_bias(struct bench *b, const struct call *c)
{
    (void)c;
    b->ops->kernels->bias_expand(b->stream, b->buffer[2], b->buffer[0], SW_BF16, b->buckets,
                                 BUCKETS, HEADS, REACH);
}

static void run_bias_reduce(struct bench *b, const struct call *c)
{
    (void)c;
    b->ops->kernels->bias_reduce(b->stream, b->buffer[2], b->bias, b->buckets, BUCKETS, HEADS,
                                 REACH);
}

static void run_entropy(struct bench *b, const struct call *c)
{
    const struct sw_cross_entropy entropy = {
        .rows = c->m, .vocabulary = VOCABULARY, .gradient_scale = 1e-3f};
    b->ops->kernels->cross_entropy(b->stream, &entropy, b->statistics, b->buffer[2], SW_BF16,
                                   b->buffer[0], b->labels);
}

static void run_log_softmax(struct bench *b, const struct call *c)
{
    b->ops->kernels->log_softmax(b->stream, b->buffer[2], b->buffer[0], c->m, VOCABULARY);
}

static void run_sum(struct bench *b, const struct call *c)
{
    b->ops->kernels->sum_in_order(b->stream, b->sum, b->statistics, c->m);
}

static void run_convert(struct bench *b, const struct call *c)
{
    b->ops->kernels->convert(b->stream, b->buffer[2], SW_BF16, b->buffer[0], SW_F32, c->m);
}

static struct sw_attention attention_of(struct bench *b, const struct call *c)
{
    const uint16_t *q = b->buffer[0], *kv = c->cross ? b->buffer[1] : q + WIDTH;
    struct sw_attention a = {
        .heads = HEADS,
        .head_dim = HEAD,
        .scale = 0.1f,
        .causal = c->causal,
        .queries = c->causal || c->cross ? b->decoder : b->encoder,
        .keys = c->cross    ? b->source
                : c->causal ? b->decoder
                            : b->encoder,
        .q = q,
        .k = kv,
        .v = kv + WIDTH,
        .q_stride = c->cross ? WIDTH : 3 * WIDTH,
        .kv_stride = c->cross ? 2 * WIDTH : 3 * WIDTH,
        .o_stride = WIDTH,
        .bias = c->cross ? NULL : b->bias,
        .bias_reach = c->cross ? 0 : REACH,
        .dropout = b->dropout,
        .dtype = SW_BF16,
    };
    a.dropout.p = c->p;
    return a;
}

static void run_attention(struct bench *b, const struct call *c)
{
    const struct sw_attention a = attention_of(b, c);
    b->ops->kernels->attention_forward(b->stream, &a, b->buffer[2], b->statistics, b->workspace);
}

static void run_attention_backward(struct bench *b, const struct call *c)
{
    const struct sw_attention a = attention_of(b, c);
    uint16_t *dq = b->buffer[3], *dkv = c->cross ? b->buffer[4] : dq + WIDTH;
    b->ops->kernels->attention_backward(b->stream, &a, dq, dkv, dkv + WIDTH,
                                        c->cross ? NULL : (float *)b->buffer[5], b->buffer[2],
                                        b->buffer[2], b->statistics, b->workspace);
}

static void run_adamw(struct bench *b, const struct call *c)
{
    const struct sw_adamw_run run = {
        .scalars = {.clip_scale = 1.0f,
                    .beta1_rest = 0.1f,
                    .beta2 = 0.999f,
                    .beta2_rest = 0.001f,
                    .root_scale = 1.0f,
                    .eps = 1e-8f,
                    .step_size = 1e-4f,
                    .number = 1},
        .keep = 1.0f,
        .count = c->m,
        .gradient = b->buffer[0],
        .gradient_dtype = SW_F32,
        .weights = {.master = b->buffer[1], .copy = b->buffer[2], .copy_dtype = SW_BF16},
        .exp_avg = b->buffer[3],
        .exp_avg_sq = b->buffer[4],
        .moments_dtype = c->dtype,
    };
    b->ops->kernels->adamw(b->stream, &run);
}

static void run_squares(struct bench *b, const struct call *c)
{
    b->ops->kernels->square_sums(b->stream, b->buffer[2], b->buffer[0], SW_F32, 0, c->m);
}

/* --- Memory ------------------------------------------------------------------------------------*/

static void *alloc(struct bench *b, int64_t bytes)
{
    struct sw_err err = {0};
    void *memory = NULL;
    must(b->ops->alloc(b->device, bytes, &memory, &err), &err);
    return memory;
}

static void send(struct bench *b, void *device, int64_t bytes)
{
    b->ops->copy(b->up, device, b->pinned, bytes);
    finish(b);
}

/* Numbers in [-1, 1) as bf16; two of them are an fp32 number of that size. */
static void fill_buffers(struct bench *b)
{
    static const uint32_t key[2] = {1, 2};
    uint16_t *values = (uint16_t *)(void *)b->pinned;
    for (int64_t i = 0; i < PATTERN_BYTES / 2; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t words[4];
        sw_philox(key, counter, words);
        for (int w = 0; w < 4; w++)
            values[i + w] = sw_float_to_bf16(2.0f * sw_random_unit(words[w]) - 1.0f);
    }
    for (int i = 0; i < BUFFERS; i++) {
        b->buffer[i] = alloc(b, BUFFER_BYTES);
        for (int64_t at = 0; at < BUFFER_BYTES; at += PATTERN_BYTES)
            send(b, (char *)b->buffer[i] + at, PATTERN_BYTES);
    }
    b->statistics = alloc(b, (int64_t)HEADS * 4 * TOKENS * 4);
    send(b, b->statistics, (int64_t)HEADS * 4 * TOKENS * 4);
    b->bias = alloc(b, (int64_t)HEADS * (2 * REACH - 1) * 4);
    send(b, b->bias, (int64_t)HEADS * (2 * REACH - 1) * 4);
}

static int32_t *fill_indices(struct bench *b, int64_t count, int64_t below, int64_t step)
{
    int32_t *values = (int32_t *)(void *)b->pinned;
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)(i * step % below);
    int32_t *device = alloc(b, count * 4);
    send(b, device, count * 4);
    return device;
}

/* `count` rows of `length` tokens. */
static struct sw_rows fill_rows(struct bench *b, int64_t count, int64_t length)
{
    int32_t *values = (int32_t *)(void *)b->pinned;
    struct sw_rows rows = {.count = count, .tokens = count * length, .longest = length};
    int32_t *starts = fill_indices(b, count, INT32_MAX, length), *lengths = alloc(b, count * 4);
    int32_t *row_of_token = alloc(b, rows.tokens * 4);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)length;
    send(b, lengths, count * 4);
    for (int64_t i = 0; i < rows.tokens; i++)
        values[i] = (int32_t)(i / length);
    send(b, row_of_token, rows.tokens * 4);
    rows.starts = starts;
    rows.lengths = lengths;
    rows.row_of_token = row_of_token;
    return rows;
}

static int64_t largest(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static void fill_rest(struct bench *b)
{
    const struct sw_kernels *kernels = b->ops->kernels;
    const struct sw_norm norm = {.rows = TOKENS, .width = MODEL, .dtype = SW_BF16};
    b->sum = alloc(b, sizeof *b->sum);
    b->ids = fill_indices(b, TOKENS, VOCABULARY, 7919);
    b->labels = fill_indices(b, CHUNK, VOCABULARY, 7919);
    b->buckets = fill_indices(b, 2 * REACH - 1, BUCKETS, 1);
    b->encoder = fill_rows(b, 8, 512);
    b->decoder = fill_rows(b, 32, 128);
    b->source = fill_rows(b, 32, 512);
    b->dropout = (struct sw_dropout){.key = {5, 6}, .site = 11};
    b->dropout.global_rows = fill_indices(b, 64, 1000, 1);
    int64_t bytes = kernels->rmsnorm_backward_workspace_bytes(&norm);
    bytes = largest(bytes, kernels->embedding_backward_workspace_bytes(TOKENS, MODEL, VOCABULARY));
    for (int kind = 0; kind < 3; kind++) {
        const struct call call = {.causal = kind == 1, .cross = kind == 2};
        const struct sw_attention a = attention_of(b, &call);
        bytes = largest(bytes, kernels->attention_forward_workspace_bytes(&a));
        bytes = largest(bytes, kernels->attention_backward_workspace_bytes(&a));
    }
    b->workspace = alloc(b, bytes);
}

static void open_bench(struct bench *b)
{
    struct sw_err err = {0};
    const struct sw_device_config config = {.memory_bytes = DEVICE_BYTES};
    void *pinned = NULL;
    must(b->ops->open(&b->device, &config, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_COMPUTE, &b->stream, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_H2D, &b->up, &err), &err);
    must(b->ops->stream_open(b->device, SW_STREAM_D2H, &b->down, &err), &err);
    must(b->ops->host_alloc(b->device, PATTERN_BYTES, &pinned, &err), &err);
    b->pinned = pinned;
    fill_buffers(b);
    fill_rest(b);
}

static void close_bench(struct bench *b)
{
    b->ops->host_free(b->device, b->pinned, PATTERN_BYTES);
    b->ops->stream_close(b->stream);
    b->ops->stream_close(b->up);
    b->ops->stream_close(b->down);
    b->ops->close(b->device);
}

/* --- The table ---------------------------------------------------------------------------------*/

/* y = x w^T, d(x) = d(y) w and d(w) += d(y)^T x of a matrix [out, in]. */
static void measure_matrix(struct bench *b, const char *name, int64_t tokens, int64_t out,
                           int64_t in)
{
    char text[64];
    double flops = 2.0 * (double)tokens * (double)out * (double)in;
    double x = 2.0 * (double)tokens * (double)in, y = 2.0 * (double)tokens * (double)out;
    double w = 2.0 * (double)out * (double)in;
    struct call call = {
        .name = text, .run = run_gemm, .flops = flops, .bytes = x + y + w, .c_dtype = SW_BF16};
    call.m = tokens, call.n = out, call.k = in, call.trans_b = true;
    snprintf(text, sizeof text, "gemm %s", name);
    measure(b, &call);
    call.n = in, call.k = out, call.trans_b = false;
    snprintf(text, sizeof text, "gemm %s, input's gradient", name);
    measure(b, &call);
    call.m = out, call.n = in, call.k = tokens, call.trans_a = true;
    call.accumulate = true, call.c_dtype = SW_F32, call.bytes = x + y + 4.0 * w;
    snprintf(text, sizeof text, "gemm %s, weight's gradient", name);
    measure(b, &call);
}

/* y = x w^T, then y added to a residual, against one product that adds to it. */
static void measure_residual(struct bench *b, const char *name, int64_t tokens, int64_t out,
                             int64_t in)
{
    char text[64];
    double x = 2.0 * (double)tokens * (double)in, y = 2.0 * (double)tokens * (double)out;
    struct call call = {.name = text,
                        .run = run_gemm_and_residual,
                        .flops = 2.0 * (double)tokens * (double)out * (double)in,
                        .bytes = x + 2.0 * y + 2.0 * (double)out * (double)in,
                        .c_dtype = SW_BF16,
                        .m = tokens,
                        .n = out,
                        .k = in,
                        .trans_b = true};
    snprintf(text, sizeof text, "gemm %s, then residual", name);
    measure(b, &call);
    call.run = run_gemm, call.accumulate = true, call.apart = true;
    snprintf(text, sizeof text, "gemm %s + residual", name);
    measure(b, &call);
}

/* Scores are `seen` of queries x keys; forward has two products over them, backward five. */
static void measure_attention(struct bench *b, const char *name, struct call call, double seen,
                              double keys)
{
    char text[64];
    double product = 2.0 * seen * HEAD * HEADS, q = 2.0 * TOKENS * WIDTH, kv = 2.0 * keys * WIDTH;
    call.name = text;
    call.run = run_attention;
    call.flops = 2.0 * product;
    call.bytes = 2.0 * q + 2.0 * kv;
    snprintf(text, sizeof text, "attention %s", name);
    measure(b, &call);
    call.run = run_attention_backward;
    call.flops = 5.0 * product;
    call.bytes = 4.0 * q + 4.0 * kv;
    snprintf(text, sizeof text, "attention %s, backward", name);
    measure(b, &call);
}

static void measure_attentions(struct bench *b)
{
    const double encoder = 8.0 * 512 * 512, causal = 32.0 * 128 * 129 / 2, cross = 32.0 * 128 * 512;
    for (int dropped = 0; dropped < 2; dropped++) {
        float p = dropped ? 0.1f : 0.0f;
        measure_attention(b, dropped ? "encoder, dropout" : "encoder", (struct call){.p = p},
                          encoder, TOKENS);
        measure_attention(b, dropped ? "causal, dropout" : "causal",
                          (struct call){.p = p, .causal = true}, causal, TOKENS);
        measure_attention(b, dropped ? "cross, dropout" : "cross",
                          (struct call){.p = p, .cross = true}, cross, 4.0 * TOKENS);
    }
}

static void measure_rest(struct bench *b)
{
    const double x = 2.0 * TOKENS * MODEL, h = 2.0 * TOKENS * INNER,
                 logits = 4.0 * CHUNK * VOCABULARY;
    const double n = (double)UNIT_ELEMENTS;
    const struct call calls[] = {
        {.name = "rmsnorm", .run = run_norm, .bytes = 2 * x, .m = TOKENS},
        {.name = "rmsnorm backward", .run = run_norm_backward, .bytes = 4 * x, .m = TOKENS},
        {.name = "residual", .run = run_residual, .bytes = 3 * x},
        {.name = "residual, dropout", .run = run_residual, .bytes = 3 * x, .p = 0.1f},
        {.name = "ffn relu", .run = run_ffn, .bytes = 2 * h},
        {.name = "ffn relu, dropout", .run = run_ffn, .bytes = 2 * h, .p = 0.1f},
        {.name = "ffn relu backward, dropout", .run = run_ffn_backward, .bytes = 3 * h, .p = 0.1f},
        {.name = "ffn gated gelu, dropout",
         .run = run_ffn,
         .bytes = 1.5 * h,
         .gated = true,
         .p = 0.1f},
        {.name = "ffn gated gelu backward, dropout",
         .run = run_ffn_backward,
         .bytes = 2.5 * h,
         .gated = true,
         .p = 0.1f},
        {.name = "embedding", .run = run_embedding, .bytes = 2 * x, .m = TOKENS},
        {.name = "embedding backward", .run = run_embedding_backward, .bytes = 5 * x, .m = TOKENS},
        {.name = "bias expand", .run = run_bias, .bytes = 4.0 * HEADS * (2 * REACH - 1)},
        {.name = "bias reduce", .run = run_bias_reduce, .bytes = 4.0 * HEADS * (2 * REACH - 1)},
        {.name = "cross-entropy, 512 tokens",
         .run = run_entropy,
         .bytes = 1.5 * logits,
         .m = CHUNK},
        {.name = "log-softmax, 512 rows", .run = run_log_softmax, .bytes = 2 * logits, .m = CHUNK},
        {.name = "sum in order, 512 losses", .run = run_sum, .bytes = 4.0 * CHUNK, .m = CHUNK},
        {.name = "convert to bf16", .run = run_convert, .bytes = 6 * n, .m = UNIT_ELEMENTS},
        {.name = "adamw, fp32 moments", .run = run_adamw, .bytes = 30 * n, .m = UNIT_ELEMENTS},
        {.name = "adamw, bf16 moments",
         .run = run_adamw,
         .bytes = 22 * n,
         .m = UNIT_ELEMENTS,
         .dtype = SW_BF16},
        {.name = "sums of squares", .run = run_squares, .bytes = 4 * n, .m = UNIT_ELEMENTS},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        measure(b, &calls[i]);
}

/* What bounds the rest: measured first, and always. */
static void measure_bounds(struct bench *b)
{
    const struct call copy = {.name = "copy of 1 GiB",
                              .run = run_copy,
                              .bytes = 2.0 * (double)BUFFER_BYTES,
                              .m = BUFFER_BYTES};
    const struct call product = {.name = "product of 8192 x 8192 x 8192, bf16",
                                 .run = run_gemm,
                                 .flops = 2.0 * 8192 * 8192 * 8192,
                                 .m = 8192,
                                 .n = 8192,
                                 .k = 8192,
                                 .trans_b = true,
                                 .c_dtype = SW_BF16};
    const struct call up = {.name = "host to device",
                            .run = run_up,
                            .bytes = (double)PATTERN_BYTES,
                            .m = PATTERN_BYTES};
    const struct call down = {.name = "device to host",
                              .run = run_down,
                              .bytes = (double)PATTERN_BYTES,
                              .m = PATTERN_BYTES};
    b->bytes_per_second = copy.bytes / measure(b, &copy);
    b->flops_per_second = product.flops / measure(b, &product);
    measure(b, &up);
    measure(b, &down);
}

int main(int argc, char **argv)
{
    struct bench b = {.ops = sw_test_cuda(), .filter = argc > 1 ? argv[1] : NULL};
    if (b.ops == NULL)
        return 1;
    open_bench(&b);
    measure_bounds(&b);
    measure_matrix(&b, "q, k, v", TOKENS, 3 * WIDTH, MODEL);
    measure_matrix(&b, "o", TOKENS, MODEL, WIDTH);
    measure_matrix(&b, "ffn in", TOKENS, INNER, MODEL);
    measure_matrix(&b, "ffn out", TOKENS, MODEL, INNER);
    measure_residual(&b, "o", TOKENS, MODEL, WIDTH);
    measure_residual(&b, "ffn out", TOKENS, MODEL, INNER);
    measure_matrix(&b, "k, v of the source", 4 * TOKENS, 2 * WIDTH, MODEL);
    measure_matrix(&b, "o, 1024 tokens", TOKENS / 4, MODEL, WIDTH);
    measure_attentions(&b);
    measure_rest(&b);
    close_bench(&b);
    return 0;
}
