/* bf16 attention on the CPU: operands copied to fp32 and back. Simple and right, not fast. */
#include "base/mem.h"
#include "kernels/cpu/attention.h"

struct copy {
    const struct sw_rows *rows;
    char *there;
    int64_t stride, width;
    float *packed;
    const int32_t *starts;
    bool to_fp32;
};

static void copy_row(void *context, int64_t row, int64_t worker)
{
    const struct copy *copy = context;
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    (void)worker;
    for (int64_t t = 0; t < copy->rows->lengths[row]; t++) {
        void *there = copy->there + (copy->rows->starts[row] + t) * copy->stride * 2;
        float *here = copy->packed + (copy->starts[row] + t) * copy->width;
        if (copy->to_fp32)
            lanes->convert(here, SW_F32, there, SW_BF16, copy->width);
        else
            lanes->convert(there, SW_BF16, here, SW_F32, copy->width);
    }
}

void sw_cpu_attention_copy(struct sw_stream *stream, const struct sw_attention *attention,
                           const struct sw_rows *rows, void *there, int64_t stride, float *packed,
                           const int32_t *packed_starts, bool to_fp32)
{
    struct copy copy = {rows,   there,         stride, attention->heads * attention->head_dim,
                        packed, packed_starts, to_fp32};
    sw_cpu_run(stream, copy_row, &copy, rows->count);
}

/* The next `count` elements of 4 bytes, 64-byte aligned. */
static void *take(char **at, int64_t count)
{
    void *block = *at;
    *at += sw_align_up(count * 4, SW_ALIGNMENT_BYTES);
    return block;
}

static void pack_starts(int32_t *out, const struct sw_rows *rows)
{
    int64_t start = 0;
    for (int64_t row = 0; row < rows->count; row++) {
        out[row] = (int32_t)start;
        start += rows->lengths[row];
    }
    sw_assert(start <= rows->tokens);
}

/* A copy_row of an input: `there` is only read. */
static float *copy_in(struct sw_stream *stream, const struct sw_attention *a,
                      const struct sw_rows *rows, const void *there, int64_t stride, float *packed,
                      const int32_t *starts)
{
    sw_cpu_attention_copy(stream, a, rows, (void *)(uintptr_t)there, stride, packed, starts, true);
    return packed;
}

void sw_cpu_attention_fp32(struct sw_stream *stream, const struct sw_attention *attention,
                           void *workspace, struct sw_cpu_attention_fp32 *out)
{
    const struct sw_attention *a = attention;
    int64_t width = a->heads * a->head_dim;
    int64_t queries = a->queries.tokens * width, keys = a->keys.tokens * width;
    char *at = workspace;
    out->attention = *a;
    out->starts[0] = take(&at, a->queries.count);
    out->starts[1] = take(&at, a->keys.count);
    pack_starts(out->starts[0], &a->queries);
    pack_starts(out->starts[1], &a->keys);
    float *q = take(&at, queries), *k = take(&at, keys), *v = take(&at, keys);
    out->o = take(&at, queries);
    out->d_o = take(&at, queries);
    out->dq = take(&at, queries);
    out->dk = take(&at, keys);
    out->dv = take(&at, keys);
    out->attention.q = copy_in(stream, a, &a->queries, a->q, a->q_stride, q, out->starts[0]);
    out->attention.k = copy_in(stream, a, &a->keys, a->k, a->kv_stride, k, out->starts[1]);
    out->attention.v = copy_in(stream, a, &a->keys, a->v, a->kv_stride, v, out->starts[1]);
    out->attention.q_stride = out->attention.kv_stride = out->attention.o_stride = width;
    out->attention.queries.starts = out->starts[0];
    out->attention.keys.starts = out->starts[1];
    out->attention.dtype = SW_F32;
}

int64_t sw_cpu_attention_fp32_bytes(const struct sw_attention *bound)
{
    int64_t width = bound->heads * bound->head_dim;
    int64_t queries = sw_align_up(bound->queries.tokens * width * 4, SW_ALIGNMENT_BYTES);
    int64_t keys = sw_align_up(bound->keys.tokens * width * 4, SW_ALIGNMENT_BYTES);
    int64_t starts = sw_align_up(bound->queries.count * 4, SW_ALIGNMENT_BYTES) +
                     sw_align_up(bound->keys.count * 4, SW_ALIGNMENT_BYTES);
    return starts + 4 * queries + 4 * keys;
}
