/* Attention backward: probabilities made again from lse, a block of queries by a block of keys at a
 * time. A task is one head of a group of rows: it goes through rows, blocks of queries and blocks
 * of keys in order, so every gradient is summed in one order. Rows of keys must not overlap. */
#include "kernels/cpu/attention.h"

#include "base/mem.h"

#include <string.h>

enum { TASKS_WANTED = 64 };

struct backward {
    const struct sw_attention *attention; /* fp32 */
    float *dq, *dk, *dv;
    float *dbias;    /* NULL: not wanted */
    float *partials; /* [groups][heads][2 * bias_reach - 1] */
    const float *d_o, *o, *lse;
    int64_t groups, rows_per_group;
};

/* One block of queries while it goes over the keys. */
struct block {
    struct sw_cpu_attention_row at;
    int64_t first, count; /* queries */
    const float *q, *d_o, *o, *lse;
    float *dq;
    float delta[SW_CPU_QUERY_BLOCK]; /* d(o) . o */
    float p[SW_CPU_QUERY_BLOCK * SW_CPU_KEY_BLOCK];
    float dp[SW_CPU_QUERY_BLOCK * SW_CPU_KEY_BLOCK];
};

static int64_t groups_of(int64_t rows, int64_t heads)
{
    return sw_cpu_max(1, sw_cpu_min(rows, sw_cpu_ceil_div(TASKS_WANTED, heads)));
}

/* Scores in p and d(probabilities) in dp become what softmax_backward says. */
static void softmax_rows(const struct sw_attention *a, struct block *b, int64_t first_key,
                         int64_t keys, float *dbias)
{
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    for (int64_t i = 0; i < b->count; i++) {
        float *p = b->p + i * keys, *dp = b->dp + i * keys;
        struct sw_cpu_softmax_row row =
            sw_cpu_softmax_row(a, &b->at, b->first + i, first_key, keys);
        int64_t position = sw_cpu_query_position(a, &b->at, b->first + i);
        float *entries = NULL;
        if (dbias != NULL && row.visible > 0)
            entries = dbias + first_key - position + a->bias_reach - 1;
        lanes->softmax_backward(&row, p, dp, b->lse[i], b->delta[i], entries);
    }
}

static void run_block(const struct backward *job, struct block *b, float *dbias)
{
    const struct sw_attention *a = job->attention;
    int64_t n = b->count, d = a->head_dim;
    int64_t end = sw_cpu_visible_keys(a, &b->at, b->first + n - 1);
    for (int64_t i = 0; i < n; i++)
        b->delta[i] = sw_cpu_lanes()->dot(b->d_o + i * a->o_stride, b->o + i * a->o_stride, d);
    for (int64_t i = 0; end == 0 && i < n; i++)
        memset(b->dq + i * a->q_stride, 0, (size_t)d * sizeof(float));
    for (int64_t key = 0; key < end; key += SW_CPU_KEY_BLOCK) {
        int64_t keys = sw_cpu_min(SW_CPU_KEY_BLOCK, end - key);
        int64_t offset = (b->at.first_key + key) * a->kv_stride + b->at.head * d;
        const float *k = (const float *)a->k + offset, *v = (const float *)a->v + offset;
        sw_cpu_sgemm(false, true, n, keys, d, 1.0f, b->q, a->q_stride, k, a->kv_stride, 0.0f, b->p,
                     keys);
        sw_cpu_sgemm(false, true, n, keys, d, 1.0f, b->d_o, a->o_stride, v, a->kv_stride, 0.0f,
                     b->dp, keys);
        softmax_rows(a, b, key, keys, dbias);
        sw_cpu_sgemm(true, false, keys, d, n, 1.0f, b->p, keys, b->d_o, a->o_stride, 1.0f,
                     job->dv + offset, a->kv_stride);
        sw_cpu_sgemm(true, false, keys, d, n, a->scale, b->dp, keys, b->q, a->q_stride, 1.0f,
                     job->dk + offset, a->kv_stride);
        sw_cpu_sgemm(false, false, n, d, keys, a->scale, b->dp, keys, k, a->kv_stride,
                     key > 0 ? 1.0f : 0.0f, b->dq, a->q_stride);
    }
}

static void run_row(const struct backward *job, const struct sw_cpu_attention_row *at, float *dbias)
{
    const struct sw_attention *a = job->attention;
    struct block b = {.at = *at};
    size_t bytes = (size_t)a->head_dim * sizeof(float);
    for (int64_t key = 0; key < at->keys; key++) {
        int64_t offset = (at->first_key + key) * a->kv_stride + at->head * a->head_dim;
        memset(job->dk + offset, 0, bytes);
        memset(job->dv + offset, 0, bytes);
    }
    for (b.first = 0; b.first < at->queries; b.first += SW_CPU_QUERY_BLOCK) {
        int64_t token = at->first_query + b.first;
        int64_t q = token * a->q_stride + at->head * a->head_dim;
        int64_t o = token * a->o_stride + at->head * a->head_dim;
        b.count = sw_cpu_min(SW_CPU_QUERY_BLOCK, at->queries - b.first);
        b.q = (const float *)a->q + q;
        b.dq = job->dq + q;
        b.d_o = job->d_o + o;
        b.o = job->o + o;
        b.lse = job->lse + at->head * a->queries.tokens + token;
        run_block(job, &b, dbias);
    }
}

static void backward_task(void *context, int64_t index, int64_t worker)
{
    const struct backward *job = context;
    const struct sw_attention *a = job->attention;
    int64_t group = index / a->heads, head = index % a->heads;
    int64_t first = group * job->rows_per_group;
    int64_t end = sw_cpu_min(first + job->rows_per_group, a->queries.count);
    int64_t entries = 2 * a->bias_reach - 1;
    float *dbias = NULL;
    (void)worker;
    if (job->dbias != NULL) {
        dbias = job->partials + index * entries;
        memset(dbias, 0, (size_t)entries * sizeof *dbias);
    }
    for (int64_t row = first; row < end; row++) {
        struct sw_cpu_attention_row at = sw_cpu_attention_row(a, row, head);
        run_row(job, &at, dbias);
    }
}

static void bias_task(void *context, int64_t head, int64_t worker)
{
    const struct backward *job = context;
    int64_t entries = 2 * job->attention->bias_reach - 1;
    (void)worker;
    sw_cpu_lanes()->add_partials(job->dbias + head * entries, job->partials + head * entries,
                                 entries, job->attention->heads * entries, job->groups);
}

static void backward_fp32(struct sw_stream *stream, struct backward *job)
{
    const struct sw_attention *a = job->attention;
    int64_t rows = a->queries.count;
    if (rows <= 0)
        return;
    job->rows_per_group = sw_cpu_ceil_div(rows, groups_of(rows, a->heads));
    job->groups = sw_cpu_ceil_div(rows, job->rows_per_group);
    sw_cpu_run(stream, backward_task, job, job->groups * a->heads);
    if (job->dbias != NULL)
        sw_cpu_run(stream, bias_task, job, a->heads);
}

static int64_t partials_bytes(const struct sw_attention *a)
{
    if (a->bias_reach <= 0)
        return 0;
    int64_t entries = groups_of(a->queries.count, a->heads) * a->heads * (2 * a->bias_reach - 1);
    return sw_align_up(entries * (int64_t)sizeof(float), SW_ALIGNMENT_BYTES);
}

static void copy_out(struct sw_stream *stream, const struct sw_attention *a,
                     const struct sw_cpu_attention_fp32 *copy, void *dq, void *dk, void *dv)
{
    sw_cpu_attention_copy(stream, a, &a->queries, dq, a->q_stride, copy->dq, copy->starts[0],
                          false);
    sw_cpu_attention_copy(stream, a, &a->keys, dk, a->kv_stride, copy->dk, copy->starts[1], false);
    sw_cpu_attention_copy(stream, a, &a->keys, dv, a->kv_stride, copy->dv, copy->starts[1], false);
}

void sw_cpu_attention_backward(struct sw_stream *stream, const struct sw_attention *attention,
                               void *dq, void *dk, void *dv, float *dbias, const void *d_o,
                               const void *o, const float *lse, void *workspace)
{
    const struct sw_attention *a = attention;
    struct backward job = {.attention = a,
                           .dq = dq,
                           .dk = dk,
                           .dv = dv,
                           .dbias = dbias,
                           .partials = workspace,
                           .d_o = d_o,
                           .o = o,
                           .lse = lse};
    sw_assert(dbias == NULL || a->bias_reach > 0);
    if (sw_cpu_failed(stream))
        return;
    if (a->dtype == SW_F32) {
        backward_fp32(stream, &job);
        return;
    }
    struct sw_cpu_attention_fp32 copy;
    sw_cpu_attention_fp32(stream, a, (char *)workspace + partials_bytes(a), &copy);
    sw_cpu_attention_copy(stream, a, &a->queries, (void *)(uintptr_t)o, a->o_stride, copy.o,
                          copy.starts[0], true);
    sw_cpu_attention_copy(stream, a, &a->queries, (void *)(uintptr_t)d_o, a->o_stride, copy.d_o,
                          copy.starts[0], true);
    job.attention = &copy.attention;
    job.dq = copy.dq;
    job.dk = copy.dk;
    job.dv = copy.dv;
    job.o = copy.o;
    job.d_o = copy.d_o;
    backward_fp32(stream, &job);
    copy_out(stream, a, &copy, dq, dk, dv);
}

int64_t sw_cpu_attention_backward_workspace_bytes(const struct sw_attention *bound)
{
    return partials_bytes(bound) +
           (bound->dtype == SW_F32 ? 0 : sw_cpu_attention_fp32_bytes(bound));
}
