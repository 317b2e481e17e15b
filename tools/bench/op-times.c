/* Times every CPU kernel at the shapes of a t5-small training step (8 rows of 128 source and 32
 * target tokens) against its bound: bytes at the rate of a copying loop, flops at the rate of big
 * products. Build with `make tools/bench/op-times`.
 *
 * usage: op-times [THREADS [FILTER]]     THREADS 0: all CPUs; FILTER: a part of the names to run */
#include "base/mem.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROWS = 8, SOURCE = 128, TARGET = 32, MODEL = 512, INNER = 2048, HEADS = 8, HEAD = 64 };
enum { VOCABULARY = 32128, BUFFERS = 12, TIMES = 9 /* the best of which counts */ };

struct bench {
    const struct sw_kernels *kernels;
    struct sw_stream *stream;
    float *buffer[BUFFERS]; /* each VOCABULARY x MODEL, small values */
    int32_t *ids, *labels;
    struct sw_rows source, target;
    struct sw_dropout dropout;
    const char *filter;
    double bytes_per_second, flops_per_second;
    double total, work_total, bound_total; /* seconds of a step */
    int64_t threads;
};

static double now(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* One kind of call: how often a step makes it, what it moves and computes. */
struct call {
    const char *name;
    void (*run)(struct bench *, const struct call *);
    int64_t times;
    double bytes, flops;
    int64_t m, n, k;
    bool trans_a, trans_b, accumulate;
    const struct sw_rows *queries, *keys;
    bool causal;
    float p;
};

/* The best of TIMES runs: seconds by the clock, and of work per thread (less, when other programs
 * want the CPUs or threads wait for each other). */
static void time_call(struct bench *b, const struct call *call, double *wall, double *work)
{
    double walls[TIMES], works[TIMES];
    call->run(b, call);
    for (int i = 0; i < TIMES; i++) {
        double start = now(CLOCK_MONOTONIC), busy = now(CLOCK_PROCESS_CPUTIME_ID);
        call->run(b, call);
        works[i] = (now(CLOCK_PROCESS_CPUTIME_ID) - busy) / (double)b->threads;
        walls[i] = now(CLOCK_MONOTONIC) - start;
    }
    qsort(walls, TIMES, sizeof *walls, compare);
    qsort(works, TIMES, sizeof *works, compare);
    *wall = walls[0];
    *work = works[0];
}

static void measure(struct bench *b, const struct call *call)
{
    double wall, work, bound = 0.0;
    if (b->filter != NULL && strstr(call->name, b->filter) == NULL)
        return;
    time_call(b, call, &wall, &work);
    if (b->bytes_per_second > 0.0)
        bound = call->bytes / b->bytes_per_second + call->flops / b->flops_per_second;
    b->total += wall * (double)call->times;
    b->work_total += work * (double)call->times;
    b->bound_total += bound * (double)call->times;
    printf("%-42s %9.1f us, work %9.1f us (%5.1f GB/s, %5.1f GFLOP/s), bound %9.1f us; x%-2lld "
           "%6.2f ms a step\n",
           call->name, 1e6 * wall, 1e6 * work, 1e-9 * call->bytes / work, 1e-9 * call->flops / work,
           1e6 * bound, (long long)call->times, 1e3 * work * (double)call->times);
}

/* --- Calls ---------------------------------------------------------------------------------------
 */

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
                                 .alpha = 1e-6f,
                                 .beta = c->accumulate ? 1.0f : 0.0f};
    b->kernels->gemm(b->stream, &gemm);
}

static void run_norm(struct bench *b, const struct call *c)
{
    const struct sw_norm norm = {.rows = c->m, .width = MODEL, .eps = 1e-6f};
    b->kernels->rmsnorm_forward(b->stream, &norm, b->buffer[2], b->buffer[3], b->buffer[0],
                                b->buffer[1]);
}

static void run_norm_backward(struct bench *b, const struct call *c)
{
    const struct sw_norm norm = {.rows = c->m, .width = MODEL, .eps = 1e-6f};
    b->kernels->rmsnorm_backward(b->stream, &norm, b->buffer[2], b->buffer[4], b->buffer[0],
                                 b->buffer[1], b->buffer[3], b->buffer[5], b->buffer[6]);
}

static struct sw_ffn ffn_of(struct bench *b, const struct call *c)
{
    struct sw_ffn ffn = {.rows = c->m,
                         .width = INNER,
                         .gated = c->k != 0,
                         .activation = c->k != 0 ? SW_ACT_GELU_TANH : SW_ACT_RELU,
                         .layout = c->queries,
                         .dropout = b->dropout};
    ffn.dropout.p = c->p;
    return ffn;
}

static void run_ffn(struct bench *b, const struct call *c)
{
    const struct sw_ffn ffn = ffn_of(b, c);
    b->kernels->ffn_forward(b->stream, &ffn, b->buffer[2], b->buffer[0]);
}

static void run_ffn_backward(struct bench *b, const struct call *c)
{
    const struct sw_ffn ffn = ffn_of(b, c);
    b->kernels->ffn_backward(b->stream, &ffn, b->buffer[2], b->buffer[1], b->buffer[0]);
}

static void run_residual(struct bench *b, const struct call *c)
{
    struct sw_dropout dropout = b->dropout;
    dropout.p = c->p;
    b->kernels->residual_forward(b->stream, b->buffer[2], b->buffer[0], b->buffer[1], MODEL,
                                 c->queries, &dropout, SW_F32);
}

static struct sw_attention attention_of(struct bench *b, const struct call *c)
{
    bool self = c->queries == c->keys;
    int64_t inner = HEADS * HEAD;
    struct sw_attention a = {.heads = HEADS,
                             .head_dim = HEAD,
                             .scale = 1.0f,
                             .causal = c->causal,
                             .queries = *c->queries,
                             .keys = *c->keys,
                             .q = b->buffer[0],
                             .k = self ? b->buffer[0] + inner : b->buffer[1],
                             .v = self ? b->buffer[0] + 2 * inner : b->buffer[1] + inner,
                             .q_stride = self ? 3 * inner : inner,
                             .kv_stride = self ? 3 * inner : 2 * inner,
                             .o_stride = inner,
                             .bias = self ? b->buffer[2] : NULL,
                             .bias_reach = self ? c->queries->longest : 0,
                             .dropout = b->dropout};
    a.dropout.p = c->p;
    return a;
}

static void run_attention(struct bench *b, const struct call *c)
{
    const struct sw_attention a = attention_of(b, c);
    b->kernels->attention_forward(b->stream, &a, b->buffer[3], b->buffer[4], b->buffer[5]);
}

static void run_attention_backward(struct bench *b, const struct call *c)
{
    const struct sw_attention a = attention_of(b, c);
    bool self = c->queries == c->keys;
    int64_t inner = HEADS * HEAD;
    float *dq = b->buffer[6];
    float *dk = self ? dq + inner : b->buffer[7];
    b->kernels->attention_backward(b->stream, &a, dq, dk, dk + inner, self ? b->buffer[8] : NULL,
                                   b->buffer[9], b->buffer[3], b->buffer[4], b->buffer[5]);
}

static void run_embedding(struct bench *b, const struct call *c)
{
    b->kernels->embedding_forward(b->stream, b->buffer[2], b->buffer[0], b->ids, c->m, MODEL,
                                  SW_F32);
}

static void run_embedding_backward(struct bench *b, const struct call *c)
{
    b->kernels->embedding_backward(b->stream, b->buffer[3], b->buffer[0], b->ids, c->m, MODEL,
                                   VOCABULARY, SW_F32, b->buffer[5]);
}

static void run_cross_entropy(struct bench *b, const struct call *c)
{
    const struct sw_cross_entropy entropy = {
        .rows = c->m, .vocabulary = VOCABULARY, .gradient_scale = 1e-3f};
    b->kernels->cross_entropy(b->stream, &entropy, b->buffer[3], b->buffer[4], SW_F32,
                              b->buffer[c->k], b->labels);
}

static void run_log_softmax(struct bench *b, const struct call *c)
{
    b->kernels->log_softmax(b->stream, b->buffer[2], b->buffer[0], c->m, VOCABULARY);
}

static void run_add(struct bench *b, const struct call *c)
{
    b->kernels->add(b->stream, b->buffer[2], b->buffer[0], c->m, SW_F32);
}

/* --- Setting up ----------------------------------------------------------------------------------
 */

static void *take(int64_t bytes)
{
    void *memory = sw_aligned_alloc(bytes);
    if (memory == NULL) {
        fprintf(stderr, "no memory\n");
        exit(1);
    }
    return memory;
}

static struct sw_rows rows_of(int64_t length)
{
    int32_t *starts = take(ROWS * 4), *lengths = take(ROWS * 4), *row = take(ROWS * length * 4);
    for (int32_t r = 0; r < ROWS; r++) {
        starts[r] = r * (int32_t)length;
        lengths[r] = (int32_t)length;
        for (int64_t t = 0; t < length; t++)
            row[starts[r] + t] = r;
    }
    return (struct sw_rows){ROWS, ROWS * length, length, starts, lengths, row};
}

static void set_up(struct bench *b, int threads)
{
    static struct sw_err err;
    static int32_t global_rows[ROWS];
    struct sw_device_config config = {.memory_bytes = (int64_t)1 << 30};
    struct sw_device *device = NULL;
    if (sw_pool_open(&config.pool, threads, &err) != SW_OK ||
        sw_cpu_device_ops.open(&device, &config, &err) != SW_OK ||
        sw_cpu_device_ops.stream_open(device, SW_STREAM_COMPUTE, &b->stream, &err) != SW_OK) {
        fprintf(stderr, "%s\n", err.text);
        exit(1);
    }
    b->kernels = &sw_cpu_kernels;
    b->threads = sw_pool_workers(config.pool);
    for (int i = 0; i < BUFFERS; i++) {
        void *memory = NULL;
        if (sw_cpu_device_ops.alloc(device, (int64_t)VOCABULARY * MODEL * 4, &memory, &err) !=
            SW_OK) {
            fprintf(stderr, "%s\n", err.text);
            exit(1);
        }
        b->buffer[i] = memory;
        for (int64_t e = 0; e < VOCABULARY * MODEL; e++)
            b->buffer[i][e] = (float)(e * 7919 % 1009 - 504) * 2e-4f;
    }
    b->source = rows_of(SOURCE);
    b->target = rows_of(TARGET);
    b->ids = take(ROWS * SOURCE * 4);
    b->labels = take(ROWS * SOURCE * 4);
    for (int32_t i = 0; i < ROWS * SOURCE; i++)
        b->ids[i] = b->labels[i] = i * 37 % 997;
    b->dropout.global_rows = global_rows;
}

/* A product as forward, d(input) and d(weight) of a layer in -> out over `tokens`. */
static void measure_linear(struct bench *b, const char *name, int64_t tokens, int64_t in,
                           int64_t out, int64_t times)
{
    char text[64];
    struct call call = {.name = text,
                        .run = run_gemm,
                        .times = times,
                        .flops = 2.0 * (double)tokens * (double)in * (double)out,
                        .m = tokens,
                        .n = out,
                        .k = in,
                        .trans_b = true};
    snprintf(text, sizeof text, "gemm %s forward", name);
    measure(b, &call);
    call.n = in;
    call.k = out;
    call.trans_b = false;
    snprintf(text, sizeof text, "gemm %s d(input)", name);
    measure(b, &call);
    call.m = out;
    call.k = tokens;
    call.trans_a = true;
    call.accumulate = true;
    snprintf(text, sizeof text, "gemm %s d(weight)", name);
    measure(b, &call);
}

static void measure_attention(struct bench *b, const char *name, const struct sw_rows *queries,
                              const struct sw_rows *keys, bool causal, float p)
{
    char text[64];
    double product = 2.0 * (double)queries->tokens * (double)keys->longest * HEADS * HEAD;
    struct call call = {.name = text,
                        .run = run_attention,
                        .times = p > 0.0f ? 0 : 6,
                        .flops = 2.0 * product,
                        .queries = queries,
                        .keys = keys,
                        .causal = causal,
                        .p = p};
    snprintf(text, sizeof text, "attention %s", name);
    measure(b, &call);
    call.run = run_attention_backward;
    call.flops = 5.0 * product;
    snprintf(text, sizeof text, "attention %s backward", name);
    measure(b, &call);
}

static void measure_rows(struct bench *b, const char *side, const struct sw_rows *rows,
                         int64_t norms)
{
    char text[64];
    int64_t tokens = rows->tokens;
    double stream = 4.0 * (double)tokens * MODEL, inner = 4.0 * (double)tokens * INNER;
    struct call calls[] = {
        {"rmsnorm", run_norm, norms, 2.0 * stream, 0.0, .m = tokens},
        {"rmsnorm backward", run_norm_backward, norms, 4.0 * stream, 0.0, .m = tokens},
        {"residual", run_residual, norms, 3.0 * stream, 0.0, .queries = rows},
        {"residual dropout", run_residual, 0, 3.0 * stream, 0.0, .queries = rows, .p = 0.1f},
        {"ffn relu", run_ffn, 12, 2.0 * inner, 0.0, .m = tokens, .queries = rows},
        {"ffn relu dropout", run_ffn, 0, 2.0 * inner, 0.0, .m = tokens, .queries = rows, .p = 0.1f},
        {"ffn relu backward", run_ffn_backward, 6, 3.0 * inner, 0.0, .m = tokens, .queries = rows},
        {"ffn gated gelu", run_ffn, 0, 3.0 * inner, 0.0, .m = tokens, .queries = rows, .k = 1},
        {"ffn gated gelu backward", run_ffn_backward, 0, 5.0 * inner, 0.0, .m = tokens,
         .queries = rows, .k = 1},
        {"embedding", run_embedding, 1, 2.0 * stream, 0.0, .m = tokens},
        {"embedding backward", run_embedding_backward, 1, 3.0 * stream, 0.0, .m = tokens},
    };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(text, sizeof text, "%s %s", calls[i].name, side);
        calls[i].name = text;
        measure(b, &calls[i]);
    }
}

/* Products of a step of generation, over so many hypotheses. */
static void measure_decoding(struct bench *b, int64_t rows)
{
    static const int64_t sizes[][2] = {
        {MODEL, MODEL}, {MODEL, INNER}, {INNER, MODEL}, {MODEL, VOCABULARY}};
    for (int i = 0; i < 4; i++) {
        char text[64];
        int64_t in = sizes[i][0], out = sizes[i][1];
        struct call call = {.name = text,
                            .run = run_gemm,
                            .bytes = 4.0 * (double)in * (double)out,
                            .flops = 2.0 * (double)rows * (double)in * (double)out,
                            .m = rows,
                            .n = out,
                            .k = in,
                            .trans_b = true};
        snprintf(text, sizeof text, "decoding %lld rows, %lld -> %lld", (long long)rows,
                 (long long)in, (long long)out);
        measure(b, &call);
    }
    /* attention over the source: keys of 8 rows of 128 tokens, one query a hypothesis */
    int32_t *starts = take(rows * 4), *lengths = take(rows * 4);
    for (int32_t r = 0; r < rows; r++) {
        starts[r] = r;
        lengths[r] = 1;
    }
    struct sw_rows queries = {rows, rows, 1, starts, lengths, NULL}, keys = queries;
    int32_t *key_starts = take(rows * 4), *key_lengths = take(rows * 4);
    for (int32_t r = 0; r < rows; r++) {
        key_starts[r] = r % ROWS * SOURCE;
        key_lengths[r] = SOURCE;
    }
    keys.starts = key_starts;
    keys.lengths = key_lengths;
    keys.tokens = rows * SOURCE;
    keys.longest = SOURCE;
    char text[64];
    struct call call = {.name = text,
                        .run = run_attention,
                        .bytes = 8.0 * (double)rows * SOURCE * HEADS * HEAD,
                        .queries = &queries,
                        .keys = &keys};
    snprintf(text, sizeof text, "decoding %lld rows, cross-attention", (long long)rows);
    measure(b, &call);
    free(starts);
    free(lengths);
    free(key_starts);
    free(key_lengths);
}

/* The rates that bounds are worked out with. */
static void find_rates(struct bench *b)
{
    const char *filter = b->filter;
    struct call add = {"add (16 Mi elements)", run_add, 0, 12.0 * 16e6, 0.0, .m = 16000000};
    struct call gemm = {"gemm 2048 x 2048 x 2048",
                        run_gemm,
                        0,
                        0.0,
                        2.0 * 2048 * 2048 * 2048,
                        .m = 2048,
                        .n = 2048,
                        .k = 2048,
                        .trans_b = true};
    double wall, work;
    b->filter = NULL;
    measure(b, &add);
    measure(b, &gemm);
    time_call(b, &add, &wall, &work);
    b->bytes_per_second = add.bytes / work;
    time_call(b, &gemm, &wall, &work);
    b->flops_per_second = gemm.flops / work;
    b->filter = filter;
}

int main(int argc, char **argv)
{
    static struct bench b;
    int threads = argc > 1 ? atoi(argv[1]) : 0;
    b.filter = argc > 2 ? argv[2] : NULL;
    set_up(&b, threads);
    find_rates(&b);
    int64_t source = ROWS * SOURCE, target = ROWS * TARGET;
    measure_linear(&b, "source qkv", source, MODEL, 3 * MODEL, 6);
    measure_linear(&b, "source o", source, MODEL, MODEL, 6);
    measure_linear(&b, "source wi", source, MODEL, INNER, 6);
    measure_linear(&b, "source wo", source, INNER, MODEL, 6);
    measure_linear(&b, "source cross kv", source, MODEL, 2 * MODEL, 6);
    measure_linear(&b, "target qkv", target, MODEL, 3 * MODEL, 6);
    measure_linear(&b, "target o, cross q, cross o", target, MODEL, MODEL, 18);
    measure_linear(&b, "target wi", target, MODEL, INNER, 6);
    measure_linear(&b, "target wo", target, INNER, MODEL, 6);
    measure_linear(&b, "head", target, MODEL, VOCABULARY, 1);
    measure_attention(&b, "encoder", &b.source, &b.source, false, 0.0f);
    measure_attention(&b, "encoder dropout", &b.source, &b.source, false, 0.1f);
    measure_attention(&b, "decoder", &b.target, &b.target, true, 0.0f);
    measure_attention(&b, "cross", &b.target, &b.source, false, 0.0f);
    measure_rows(&b, "source", &b.source, 13);
    measure_rows(&b, "target", &b.target, 19);
    double logits = 4.0 * (double)target * VOCABULARY;
    measure(&b, &(struct call){"cross-entropy", run_cross_entropy, 1, 2.0 * logits, 0.0,
                               .m = target, .k = 0});
    measure(&b, &(struct call){"log-softmax", run_log_softmax, 0, 2.0 * logits, 0.0, .m = target});
    measure_decoding(&b, 4);
    measure_decoding(&b, 32);
    printf("a step: %.1f ms, work %.1f ms, bound %.1f ms\n", 1e3 * b.total, 1e3 * b.work_total,
           1e3 * b.bound_total);
    return 0;
}
