/* Attention forward: softmax over blocks of keys with a running maximum (Milakov and Gimelshein,
 * arXiv 1805.02867; Dao et al., arXiv 2205.14135), so that a block of scores is all that exists at
 * once. A task is a block of queries of one head of one row. */
#include "kernels/cpu/attention.h"

#include <math.h>
#include <string.h>

struct forward {
    const struct sw_attention *attention; /* fp32 */
    float *o, *lse;
    int64_t blocks; /* of queries, in the longest row */
};

/* One block of queries while it goes over the keys. */
struct block {
    struct sw_cpu_attention_row at;
    int64_t first, count; /* queries */
    const float *q;
    float *o;
    float greatest[SW_CPU_QUERY_BLOCK]; /* score so far */
    float sum[SW_CPU_QUERY_BLOCK];      /* of exp(score - greatest) */
    float scores[SW_CPU_QUERY_BLOCK * SW_CPU_KEY_BLOCK];
};

/* Turns the scores of the keys from first_key on into probabilities times exp(greatest); rescales
 * what stands in o when the maximum grew. */
static void softmax_rows(const struct sw_attention *a, struct block *b, int64_t first_key,
                         int64_t keys)
{
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    for (int64_t i = 0; i < b->count; i++) {
        float *s = b->scores + i * keys;
        struct sw_cpu_softmax_row row =
            sw_cpu_softmax_row(a, &b->at, b->first + i, first_key, keys);
        if (row.visible == 0) {
            memset(s, 0, (size_t)keys * sizeof *s);
            continue;
        }
        float before = b->greatest[i];
        float most = lanes->scores(&row, s); /* NaN makes p, sum and o NaN */
        if (before > most)
            most = before;
        float part = lanes->softmax(&row, s, most);
        float shrink = first_key > 0 ? expf(before - most) : 0.0f;
        b->sum[i] = b->sum[i] * shrink + part;
        b->greatest[i] = most;
        if (first_key > 0 && before < most)
            lanes->multiply(b->o + i * a->o_stride, shrink, a->head_dim);
    }
}

static void finish_rows(const struct sw_attention *a, struct block *b, float *lse)
{
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    for (int64_t i = 0; i < b->count; i++) {
        float *o = b->o + i * a->o_stride;
        if (b->greatest[i] == -INFINITY) { /* no key was visible */
            memset(o, 0, (size_t)a->head_dim * sizeof *o);
            lse[i] = 0.0f;
            continue;
        }
        lanes->multiply(o, 1.0f / b->sum[i], a->head_dim);
        lse[i] = b->greatest[i] + logf(b->sum[i]);
    }
}

static void run_block(const struct sw_attention *a, struct block *b, float *lse)
{
    for (int64_t i = 0; i < b->count; i++) {
        b->greatest[i] = -INFINITY;
        b->sum[i] = 0.0f;
    }
    int64_t end = sw_cpu_visible_keys(a, &b->at, b->first + b->count - 1);
    for (int64_t key = 0; key < end; key += SW_CPU_KEY_BLOCK) {
        int64_t keys = sw_cpu_min(SW_CPU_KEY_BLOCK, end - key);
        const float *k = sw_cpu_key(a, a->k, &b->at, key);
        sw_cpu_sgemm(false, true, b->count, keys, a->head_dim, 1.0f, b->q, a->q_stride, k,
                     a->kv_stride, 0.0f, b->scores, keys);
        softmax_rows(a, b, key, keys);
        sw_cpu_sgemm(false, false, b->count, a->head_dim, keys, 1.0f, b->scores, keys,
                     sw_cpu_key(a, a->v, &b->at, key), a->kv_stride, key > 0 ? 1.0f : 0.0f, b->o,
                     a->o_stride);
    }
    finish_rows(a, b, lse);
}

static void forward_task(void *context, int64_t index, int64_t worker)
{
    const struct forward *job = context;
    const struct sw_attention *a = job->attention;
    struct block b;
    (void)worker;
    int64_t row = index / job->blocks / a->heads;
    b.at = sw_cpu_attention_row(a, row, index / job->blocks % a->heads);
    b.first = index % job->blocks * SW_CPU_QUERY_BLOCK;
    b.count = sw_cpu_min(SW_CPU_QUERY_BLOCK, b.at.queries - b.first);
    if (b.count <= 0)
        return;
    int64_t token = b.at.first_query + b.first;
    b.q = (const float *)a->q + token * a->q_stride + b.at.head * a->head_dim;
    b.o = job->o + token * a->o_stride + b.at.head * a->head_dim;
    run_block(a, &b, job->lse + b.at.head * a->queries.tokens + token);
}

static void forward_fp32(struct sw_stream *stream, const struct sw_attention *attention, float *o,
                         float *lse)
{
    struct forward job = {.attention = attention, .o = o, .lse = lse};
    job.blocks = sw_cpu_ceil_div(attention->queries.longest, SW_CPU_QUERY_BLOCK);
    sw_cpu_run(stream, forward_task, &job,
               attention->queries.count * attention->heads * job.blocks);
}

void sw_cpu_attention_forward(struct sw_stream *stream, const struct sw_attention *attention,
                              void *o, float *lse, void *workspace)
{
    if (attention->dtype == SW_F32) {
        forward_fp32(stream, attention, o, lse);
        return;
    }
    struct sw_cpu_attention_fp32 copy;
    if (sw_cpu_failed(stream))
        return;
    sw_cpu_attention_fp32(stream, attention, workspace, &copy);
    forward_fp32(stream, &copy.attention, copy.o, lse);
    sw_cpu_attention_copy(stream, attention, &attention->queries, o, attention->o_stride, copy.o,
                          copy.attention.queries.starts, false);
}

int64_t sw_cpu_attention_forward_workspace_bytes(const struct sw_attention *bound)
{
    return bound->dtype == SW_F32 ? 0 : sw_cpu_attention_fp32_bytes(bound);
}
