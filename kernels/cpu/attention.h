/* What attention forward and backward share: where rows lie, which keys a query sees, and the
 * fp32 copy of bf16 operands. */
#ifndef SPILLWAY_KERNELS_CPU_ATTENTION_H
#define SPILLWAY_KERNELS_CPU_ATTENTION_H

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/mask.h"

/* A block of scores is on the stack: 64 KiB. Key blocks start at multiples of 4 (dropout). */
enum { SW_CPU_QUERY_BLOCK = 64, SW_CPU_KEY_BLOCK = 256 };

/* One head of one row. */
struct sw_cpu_attention_row {
    int64_t row, head;
    int64_t first_query, queries; /* tokens */
    int64_t first_key, keys;
};

static inline struct sw_cpu_attention_row sw_cpu_attention_row(const struct sw_attention *a,
                                                               int64_t row, int64_t head)
{
    return (struct sw_cpu_attention_row){
        .row = row,
        .head = head,
        .first_query = a->queries.starts[row],
        .queries = a->queries.lengths[row],
        .first_key = a->keys.starts[row],
        .keys = a->keys.lengths[row],
    };
}

static inline int64_t sw_cpu_query_position(const struct sw_attention *a,
                                            const struct sw_cpu_attention_row *at, int64_t query)
{
    return a->causal ? query + at->keys - at->queries : query;
}

/* The first so many keys are what `query` sees. */
static inline int64_t sw_cpu_visible_keys(const struct sw_attention *a,
                                          const struct sw_cpu_attention_row *at, int64_t query)
{
    int64_t position = sw_cpu_query_position(a, at, query);
    if (!a->causal || position >= at->keys)
        return at->keys;
    return position < 0 ? 0 : position + 1;
}

/* Key `key` of the row within `base`, which is a->k or a->v or laid out like them. */
static inline const float *sw_cpu_key(const struct sw_attention *a, const void *base,
                                      const struct sw_cpu_attention_row *at, int64_t key)
{
    return (const float *)base + (at->first_key + key) * a->kv_stride + at->head * a->head_dim;
}

/* Row `query` of a block of scores over `keys` keys from first_key on. */
static inline struct sw_cpu_softmax_row sw_cpu_softmax_row(const struct sw_attention *a,
                                                           const struct sw_cpu_attention_row *at,
                                                           int64_t query, int64_t first_key,
                                                           int64_t keys)
{
    int64_t position = sw_cpu_query_position(a, at, query);
    int64_t visible = sw_cpu_visible_keys(a, at, query) - first_key;
    struct sw_cpu_softmax_row row = {
        .keys = keys,
        .visible = sw_cpu_max(0, sw_cpu_min(keys, visible)),
        .first_key = first_key,
        .scale = a->scale,
    };
    if (row.visible == 0)
        return row;
    if (a->bias != NULL)
        row.bias =
            a->bias + at->head * (2 * a->bias_reach - 1) + first_key - position + a->bias_reach - 1;
    row.mask = sw_cpu_mask(&a->dropout, (uint32_t)position, at->row,
                           a->dropout.site | (uint32_t)at->head << 16);
    return row;
}

/* bf16 operands copied to fp32, rows packed one behind the other. */
struct sw_cpu_attention_fp32 {
    struct sw_attention attention; /* q, k, v in the workspace */
    float *o, *d_o;                /* [queries.tokens, heads * head_dim] */
    float *dq, *dk, *dv;           /* as q, k, v */
    int32_t *starts[2];
};

/* For backward (o, d_o, dq, dk, dv all there) and forward (o alone) alike. */
int64_t sw_cpu_attention_fp32_bytes(const struct sw_attention *bound);
void sw_cpu_attention_fp32(struct sw_stream *stream, const struct sw_attention *attention,
                           void *workspace, struct sw_cpu_attention_fp32 *out);
/* One operand between its place (bf16, rows as in `rows`, `stride` elements between tokens) and a
 * packed fp32 copy: in when `to_fp32`, else out. */
void sw_cpu_attention_copy(struct sw_stream *stream, const struct sw_attention *attention,
                           const struct sw_rows *rows, void *there, int64_t stride, float *packed,
                           const int32_t *packed_starts, bool to_fp32);

#endif
