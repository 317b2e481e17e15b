#include "op_cases.h"

#include "op_reference.h"
#include "op_session.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* fp32 rounds to a relative 2^-24. n terms of size t with random signs make partial sums of about
 * sqrt(n) t, each of which rounds once: at worst n sqrt(n) t 2^-24, and that only if all errors
 * had one sign. The bounds below take `size` for the partial sums, and 8 more roundings for what
 * goes on around a sum. */
static double rounding(int64_t terms, double size)
{
    return (double)(terms + 8) * size * 0x1p-24;
}

/* bf16 operands are products of fp32 rounding only; results round once more (op_result_check). */

/* --- Rows ----------------------------------------------------------------------------------------
 */

/* Host arrays of a layout, and its device side. */
struct layout {
    int32_t starts[OP_ROWS], lengths[OP_ROWS], row_of_token[2048];
    struct sw_rows device, host;
};

static void layout_of(struct op_session *s, const struct op_case *c, bool keys, struct layout *out)
{
    struct sw_rows rows = {.count = c->rows};
    int32_t start = keys ? c->key_gap : 0;
    for (int64_t r = 0; r < c->rows; r++) {
        out->lengths[r] = keys ? c->keys[c->same_keys ? 0 : r] : c->queries[r];
        out->starts[r] = keys && c->same_keys ? c->key_gap : start;
        for (int32_t t = 0; !keys && t < out->lengths[r]; t++)
            out->row_of_token[start + t] = (int32_t)r;
        start += out->lengths[r] + (keys ? c->key_gap : 0);
        rows.tokens += out->lengths[r];
        rows.longest = out->lengths[r] > rows.longest ? out->lengths[r] : rows.longest;
    }
    out->host = rows;
    out->host.starts = out->starts;
    out->host.lengths = out->lengths;
    out->host.row_of_token = keys ? NULL : out->row_of_token;
    out->device = rows;
    out->device.starts = op_indices(s, out->starts, c->rows);
    out->device.lengths = op_indices(s, out->lengths, c->rows);
    if (!keys)
        out->device.row_of_token = op_indices(s, out->row_of_token, rows.tokens);
}

/* Tokens that the memory of keys has, gaps included. */
static int64_t key_tokens(const struct op_case *c)
{
    int64_t tokens = c->key_gap;
    for (int64_t r = 0; r < c->rows; r++)
        tokens += c->keys[r] + c->key_gap;
    return tokens;
}

static const int32_t global_rows[OP_ROWS] = {7, 3, 4, 100000, 0, 12};

static struct sw_dropout dropout_of(struct op_session *s, const struct op_case *c, bool device)
{
    struct sw_dropout dropout = {.p = c->p, .key = {123456789u, 987654321u}, .site = 43};
    dropout.global_rows = device ? op_indices(s, global_rows, c->rows) : global_rows;
    return dropout;
}

static double token_factor(const struct sw_dropout *dropout, const struct layout *layout,
                           int64_t token, int64_t channel)
{
    int32_t row = layout->row_of_token[token];
    return op_dropout_factor(dropout, channel, token - layout->starts[row], row, dropout->site);
}

/* --- Products ------------------------------------------------------------------------------------
 */

/* C before the product, where that is added to something else: NaN, but for the gaps. */
static double *unread(const struct op_case *c, struct op_session *s, const double *addend,
                      int64_t ldc)
{
    double *values = op_zeros(s, c->m * ldc);
    for (int64_t i = 0; i < c->m * ldc; i++)
        values[i] = i % ldc < c->n ? (double)NAN : addend[i];
    return values;
}

/* apart: once added to another buffer, and once in place; op_result_check wants the same bits. */
static void run_gemm(const struct op_case *c, struct op_session *s)
{
    int64_t gap = c->aligned ? 0 : 3; /* between rows as stored */
    int64_t a_rows = c->trans_a ? c->k : c->m, lda = (c->trans_a ? c->m : c->k) + gap;
    int64_t b_rows = c->trans_b ? c->n : c->k, ldb = (c->trans_b ? c->k : c->n) + gap;
    int64_t ldc = c->n + gap;
    double *a = op_values(s, a_rows * lda, c->dtype, 1.0);
    double *b = op_values(s, b_rows * ldb, c->dtype, 1.0);
    double *initial = op_values(s, c->m * ldc, c->c_dtype, 1.0);
    struct sw_gemm gemm = {
        .m = c->m,
        .n = c->n,
        .k = c->k,
        .trans_a = c->trans_a,
        .trans_b = c->trans_b,
        .a = op_input(s, a, a_rows * lda, c->dtype),
        .lda = lda,
        .b = op_input(s, b, b_rows * ldb, c->dtype),
        .ldb = ldb,
        .c = op_output(s, "c", c->apart ? unread(c, s, initial, ldc) : initial, c->m * ldc,
                       c->c_dtype),
        .ldc = ldc,
        .addend = c->apart ? op_input(s, initial, c->m * ldc, c->c_dtype) : NULL,
        .alpha = c->alpha,
        .beta = c->beta,
        .ab_dtype = c->dtype,
        .c_dtype = c->c_dtype,
    };
    s->kernels->gemm(s->stream, &gemm);
    if (c->apart) {
        gemm.c = op_output(s, "c in place", initial, c->m * ldc, c->c_dtype);
        gemm.addend = NULL;
        s->kernels->gemm(s->stream, &gemm);
    }
    if (!s->expect)
        return;
    /* cuBLASLt may round a product to bf16 before adding it to bf16 */
    bool twice = c->c_dtype == SW_BF16 && c->beta != 0.0f && s->ops->asynchronous;
    double tolerance = rounding(c->k, 1.0 + sqrt((double)c->k));
    double *want = op_want(s, "c", tolerance), most = 0.0;
    for (int64_t i = 0; i < c->m; i++)
        for (int64_t j = 0; j < c->n; j++) {
            double sum = 0.0;
            for (int64_t p = 0; p < c->k; p++)
                sum += a[c->trans_a ? p * lda + i : i * lda + p] *
                       b[c->trans_b ? j * ldb + p : p * ldb + j];
            want[i * ldc + j] = (double)c->alpha * sum + (double)c->beta * initial[i * ldc + j];
            most = fmax(most, fabs((double)c->alpha * sum));
        }
    tolerance += twice ? most * 0x1p-8 : 0.0;
    (void)op_want(s, "c", tolerance);
    if (c->apart)
        memcpy(op_want(s, "c in place", tolerance), want, (size_t)(c->m * ldc) * sizeof *want);
}

/* --- Norm ----------------------------------------------------------------------------------------
 */

static struct sw_norm norm_of(const struct op_case *c)
{
    return (struct sw_norm){.rows = c->m, .width = c->width, .eps = 1e-6f, .dtype = c->dtype};
}

static void run_norm(const struct op_case *c, struct op_session *s)
{
    int64_t count = c->m * c->width;
    const struct sw_norm norm = norm_of(c);
    double *x = op_values(s, count, c->dtype, 2.0), *w = op_values(s, c->width, c->dtype, 2.0);
    void *y = op_output(s, "y", NULL, count, c->dtype);
    float *rstd = op_output(s, "rstd", NULL, c->m, SW_F32);
    s->kernels->rmsnorm_forward(s->stream, &norm, y, rstd, op_input(s, x, count, c->dtype),
                                op_input(s, w, c->width, c->dtype));
    /* a row of one element is +-w whatever x is: sizes are those of w and 1 / x */
    if (s->expect)
        op_rmsnorm(op_want(s, "y", rounding(c->width, 4.0)),
                   op_want(s, "rstd", rounding(c->width, 400.0)), x, w, c->m, c->width,
                   (double)norm.eps);
}

static void run_norm_backward(const struct op_case *c, struct op_session *s)
{
    int64_t count = c->m * c->width;
    const struct sw_norm norm = norm_of(c);
    double *x = op_values(s, count, c->dtype, 2.0), *w = op_values(s, c->width, c->dtype, 2.0);
    double *dy = op_values(s, count, c->dtype, 1.0), *dx = op_values(s, count, c->dtype, 1.0);
    double *dw = op_values(s, c->width, SW_F32, 1.0);
    double *rstd = op_zeros(s, c->m), *y = op_zeros(s, count);
    op_rmsnorm(y, rstd, x, w, c->m, c->width, (double)norm.eps);
    double most = 0.0;
    for (int64_t i = 0; i < c->m; i++)
        most = rstd[i] > most ? rstd[i] : most;
    void *dx_out = op_output(s, "dx", dx, count, c->dtype);
    float *dw_out = op_output(s, "dw", dw, c->width, SW_F32);
    s->kernels->rmsnorm_backward(
        s->stream, &norm, dx_out, dw_out, op_input(s, dy, count, c->dtype),
        op_input(s, x, count, c->dtype), op_input(s, rstd, c->m, SW_F32),
        op_input(s, w, c->width, c->dtype),
        op_workspace(s, s->kernels->rmsnorm_backward_workspace_bytes(&norm)));
    if (s->expect)
        op_rmsnorm_backward(op_want(s, "dx", rounding(c->width, 8.0 * most)),
                            op_want(s, "dw", rounding(c->m, 4.0)), dy, x, w, c->m, c->width,
                            (double)norm.eps);
}

/* --- Feed-forward --------------------------------------------------------------------------------
 */

struct ffn {
    struct layout layout;
    struct sw_ffn shape;
    struct sw_dropout dropout; /* host side */
    int64_t h_width, h_count, g_count;
    double *h;
};

static void ffn_of(const struct op_case *c, struct op_session *s, struct ffn *out)
{
    layout_of(s, c, false, &out->layout);
    int64_t tokens = out->layout.host.tokens;
    out->dropout = dropout_of(s, c, false);
    out->h_width = c->gated ? 2 * c->width : c->width;
    out->h_count = tokens * out->h_width;
    out->g_count = tokens * c->width;
    out->h = op_values(s, out->h_count, c->dtype, c->size > 0.0f ? (double)c->size : 4.0);
    out->shape = (struct sw_ffn){.rows = tokens,
                                 .width = c->width,
                                 .gated = c->gated,
                                 .activation = c->activation,
                                 .dtype = c->dtype,
                                 .dropout = dropout_of(s, c, true),
                                 .layout = &out->layout.device};
}

static void run_ffn(const struct op_case *c, struct op_session *s)
{
    struct ffn f;
    ffn_of(c, s, &f);
    void *g = op_output(s, "g", NULL, f.g_count, c->dtype);
    s->kernels->ffn_forward(s->stream, &f.shape, g, op_input(s, f.h, f.h_count, c->dtype));
    if (!s->expect)
        return;
    double size = c->size > 0.0f ? (double)c->size : 4.0;
    double *want = op_want(s, "g", rounding(8, 2.0 * size * size));
    for (int64_t i = 0; i < f.g_count; i++) {
        const double *h = f.h + i / c->width * f.h_width + i % c->width;
        want[i] = op_activation(c->activation, h[0]) * (c->gated ? h[c->width] : 1.0) *
                  token_factor(&f.dropout, &f.layout, i / c->width, i % c->width);
    }
}

static void run_ffn_backward(const struct op_case *c, struct op_session *s)
{
    struct ffn f;
    ffn_of(c, s, &f);
    double *dg = op_values(s, f.g_count, c->dtype, 1.0);
    void *dh = op_output(s, "dh", c->in_place ? f.h : NULL, f.h_count, c->dtype);
    s->kernels->ffn_backward(s->stream, &f.shape, dh, op_input(s, dg, f.g_count, c->dtype),
                             c->in_place ? dh : op_input(s, f.h, f.h_count, c->dtype));
    if (!s->expect)
        return;
    double size = c->size > 0.0f ? (double)c->size : 4.0;
    double *want = op_want(s, "dh", rounding(16, 4.0 * size));
    for (int64_t i = 0; i < f.g_count; i++) {
        int64_t at = i / c->width * f.h_width + i % c->width;
        double d = dg[i] * token_factor(&f.dropout, &f.layout, i / c->width, i % c->width);
        want[at] =
            d * op_activation_slope(c->activation, f.h[at]) * (c->gated ? f.h[at + c->width] : 1.0);
        if (c->gated)
            want[at + c->width] = d * op_activation(c->activation, f.h[at]);
    }
}

/* --- Residuals and what else goes element by element ---------------------------------------------
 */

/* in_place: y is x (or r when there is no x); without: no x. */
static void run_residual(const struct op_case *c, struct op_session *s)
{
    struct layout layout;
    layout_of(s, c, false, &layout);
    const struct sw_dropout dropout = dropout_of(s, c, true), host = dropout_of(s, c, false);
    int64_t count = layout.host.tokens * c->width;
    double *x = op_values(s, count, c->dtype, 1.0), *r = op_values(s, count, c->dtype, 1.0);
    const double *initial = !c->in_place ? NULL : c->without ? r : x;
    void *y = op_output(s, "y", initial, count, c->dtype);
    const void *r_in = c->in_place && c->without ? y : op_input(s, r, count, c->dtype);
    const void *x_in = c->without ? NULL : c->in_place ? y : op_input(s, x, count, c->dtype);
    s->kernels->residual_forward(s->stream, y, x_in, r_in, c->width, &layout.device, &dropout,
                                 c->dtype);
    if (!s->expect)
        return;
    double *want = op_want(s, "y", rounding(1, 2.0));
    for (int64_t i = 0; i < count; i++)
        want[i] = (c->without ? 0.0 : x[i]) +
                  r[i] * token_factor(&host, &layout, i / c->width, i % c->width);
}

static void run_residual_backward(const struct op_case *c, struct op_session *s)
{
    struct layout layout;
    layout_of(s, c, false, &layout);
    const struct sw_dropout dropout = dropout_of(s, c, true), host = dropout_of(s, c, false);
    int64_t count = layout.host.tokens * c->width;
    double *dy = op_values(s, count, c->dtype, 1.0);
    void *dr = op_output(s, "dr", NULL, count, c->dtype);
    s->kernels->residual_backward(s->stream, dr, op_input(s, dy, count, c->dtype), c->width,
                                  &layout.device, &dropout, c->dtype);
    if (!s->expect)
        return;
    double *want = op_want(s, "dr", rounding(1, 2.0));
    for (int64_t i = 0; i < count; i++)
        want[i] = dy[i] * token_factor(&host, &layout, i / c->width, i % c->width);
}

static void run_add(const struct op_case *c, struct op_session *s)
{
    double *x = op_values(s, c->m, c->dtype, 1.0), *y = op_values(s, c->m, c->dtype, 1.0);
    void *out = op_output(s, "y", y, c->m, c->dtype);
    s->kernels->add(s->stream, out, op_input(s, x, c->m, c->dtype), c->m, c->dtype);
    if (!s->expect)
        return;
    double *want = op_want(s, "y", rounding(1, 1.0));
    for (int64_t i = 0; i < c->m; i++)
        want[i] = x[i] + y[i];
}

/* From dtype to c_dtype. */
static void run_convert(const struct op_case *c, struct op_session *s)
{
    double *x = op_values(s, c->m, c->dtype, 100.0);
    void *out = op_output(s, "y", NULL, c->m, c->c_dtype);
    s->kernels->convert(s->stream, out, c->c_dtype, op_input(s, x, c->m, c->dtype), c->dtype, c->m);
    if (!s->expect)
        return;
    double *want = op_want(s, "y", 0.0);
    for (int64_t i = 0; i < c->m; i++)
        want[i] =
            c->c_dtype == SW_F32 ? x[i] : (double)sw_bf16_to_float(sw_float_to_bf16((float)x[i]));
}

static void run_gather(const struct op_case *c, struct op_session *s)
{
    int32_t index[64] = {0};
    int64_t count = c->m * c->width;
    double *x = op_values(s, count, c->dtype, 1.0);
    for (int64_t i = 0; i < c->m; i++)
        index[i] = (int32_t)((i * 5 + 2) % c->m / 2 * 2 % c->m);
    void *y = op_output(s, "y", NULL, count, c->dtype);
    s->kernels->gather_rows(s->stream, y, op_input(s, x, count, c->dtype),
                            op_indices(s, index, c->m), c->m, c->width * sw_dtype_bytes(c->dtype));
    if (!s->expect)
        return;
    double *want = op_want(s, "y", 0.0);
    for (int64_t i = 0; i < count; i++)
        want[i] = x[index[i / c->width] * c->width + i % c->width];
}

/* --- Embeddings and the relative bias ------------------------------------------------------------
 */

/* m tokens out of a vocabulary of n, some of them often. */
static int32_t *ids_of(const struct op_case *c, int32_t ids[static 2048])
{
    for (int64_t t = 0; t < c->m; t++)
        ids[t] = (int32_t)(t % 3 == 0 ? 1 : (t * t + 3 * t) % c->n);
    return ids;
}

static void run_embedding(const struct op_case *c, struct op_session *s)
{
    int32_t ids[2048] = {0};
    double *table = op_values(s, c->n * c->width, c->dtype, 1.0);
    void *x = op_output(s, "x", NULL, c->m * c->width, c->dtype);
    s->kernels->embedding_forward(s->stream, x, op_input(s, table, c->n * c->width, c->dtype),
                                  op_indices(s, ids_of(c, ids), c->m), c->m, c->width, c->dtype);
    if (!s->expect)
        return;
    double *want = op_want(s, "x", 0.0);
    for (int64_t i = 0; i < c->m * c->width; i++)
        want[i] = table[ids[i / c->width] * c->width + i % c->width];
}

static void run_embedding_backward(const struct op_case *c, struct op_session *s)
{
    int32_t ids[2048] = {0};
    double *dx = op_values(s, c->m * c->width, c->dtype, 1.0);
    double *before = op_values(s, c->n * c->width, SW_F32, 1.0);
    float *dtable = op_output(s, "dtable", before, c->n * c->width, SW_F32);
    s->kernels->embedding_backward(
        s->stream, dtable, op_input(s, dx, c->m * c->width, c->dtype),
        op_indices(s, ids_of(c, ids), c->m), c->m, c->width, c->n, c->dtype,
        op_workspace(s, s->kernels->embedding_backward_workspace_bytes(c->m, c->width, c->n)));
    if (!s->expect)
        return;
    double *want = op_want(s, "dtable", rounding(c->m, 1.0));
    for (int64_t i = 0; i < c->m * c->width; i++)
        want[ids[i / c->width] * c->width + i % c->width] += dx[i];
}

/* n buckets; distances far apart share one. */
static int32_t *buckets_of(const struct op_case *c, int32_t buckets[static 2048])
{
    for (int64_t e = 0; e < 2 * c->reach - 1; e++) {
        int64_t distance = e - (c->reach - 1);
        int64_t far = llabs(distance) / 2 < c->n / 2 ? llabs(distance) / 2 : c->n / 2 - 1;
        buckets[e] = (int32_t)(distance > 0 ? c->n / 2 + far : far);
    }
    return buckets;
}

static void run_bias_expand(const struct op_case *c, struct op_session *s)
{
    int32_t buckets[2048] = {0};
    int64_t entries = 2 * c->reach - 1;
    double *table = op_values(s, c->n * c->heads, c->dtype, 1.0);
    float *bias = op_output(s, "bias", NULL, c->heads * entries, SW_F32);
    s->kernels->bias_expand(s->stream, bias, op_input(s, table, c->n * c->heads, c->dtype),
                            c->dtype, op_indices(s, buckets_of(c, buckets), entries), c->n,
                            c->heads, c->reach);
    if (!s->expect)
        return;
    double *want = op_want(s, "bias", 0.0);
    for (int64_t i = 0; i < c->heads * entries; i++)
        want[i] = table[buckets[i % entries] * c->heads + i / entries];
}

static void run_bias_reduce(const struct op_case *c, struct op_session *s)
{
    int32_t buckets[2048] = {0};
    int64_t entries = 2 * c->reach - 1;
    double *dbias = op_values(s, c->heads * entries, SW_F32, 1.0);
    double *before = op_values(s, c->n * c->heads, SW_F32, 1.0);
    float *dtable = op_output(s, "dtable", before, c->n * c->heads, SW_F32);
    s->kernels->bias_reduce(s->stream, dtable, op_input(s, dbias, c->heads * entries, SW_F32),
                            op_indices(s, buckets_of(c, buckets), entries), c->n, c->heads,
                            c->reach);
    if (!s->expect)
        return;
    double *want = op_want(s, "dtable", rounding(entries, 1.0));
    for (int64_t i = 0; i < c->heads * entries; i++)
        want[buckets[i % entries] * c->heads + i / entries] += dbias[i];
}

/* --- Loss ----------------------------------------------------------------------------------------
 */

static void run_cross_entropy(const struct op_case *c, struct op_session *s)
{
    int32_t labels[64] = {0};
    int64_t count = c->m * c->width;
    double size = c->size > 0.0f ? (double)c->size : 5.0;
    double *x = op_values(s, count, SW_F32, size);
    for (int64_t i = 0; i < c->m; i++)
        labels[i] = (int32_t)(i * 7 % c->width);
    const struct sw_cross_entropy entropy = {
        .rows = c->m, .vocabulary = c->width, .smoothing = c->smoothing, .gradient_scale = 0.125f};
    float *loss = op_output(s, "loss", NULL, c->m, SW_F32);
    void *d = NULL;
    if (!c->without)
        d = op_output(s, "dlogits", c->in_place ? x : NULL, count, c->c_dtype);
    s->kernels->cross_entropy(s->stream, &entropy, loss, d, c->c_dtype,
                              c->in_place ? d : op_input(s, x, count, SW_F32),
                              op_indices(s, labels, c->m));
    if (!s->expect)
        return;
    double *want = op_want(s, "loss", rounding(16, 2.0 * size + log((double)c->width)));
    double *want_d =
        c->without ? NULL : op_want(s, "dlogits", rounding(c->width + 2 * (int64_t)size, 0.125));
    for (int64_t i = 0; i < c->m; i++)
        want[i] = op_cross_entropy(want_d != NULL ? want_d + i * c->width : NULL, x + i * c->width,
                                   c->width, labels[i], (double)c->smoothing, 0.125);
}

static void run_log_softmax(const struct op_case *c, struct op_session *s)
{
    int64_t count = c->m * c->width;
    double size = c->size > 0.0f ? (double)c->size : 5.0;
    double *x = op_values(s, count, SW_F32, size);
    float *y = op_output(s, "y", NULL, count, SW_F32);
    s->kernels->log_softmax(s->stream, y, op_input(s, x, count, SW_F32), c->m, c->width);
    if (!s->expect)
        return;
    double *want = op_want(s, "y", rounding(16, 2.0 * size + log((double)c->width)));
    for (int64_t i = 0; i < count; i++)
        want[i] =
            -op_cross_entropy(NULL, x + i / c->width * c->width, c->width, i % c->width, 0.0, 1.0);
}

static void run_sum(const struct op_case *c, struct op_session *s)
{
    double *x = op_values(s, c->m, SW_F32, 1.0);
    double *sum = op_output_double(s, "sum", 0.1);
    s->kernels->sum_in_order(s->stream, sum, op_input(s, x, c->m, SW_F32), c->m);
    double *want = op_want(s, "sum", 0.0);
    for (int64_t i = 0; i < c->m; i++)
        want[0] += x[i];
}

/* --- Attention ---------------------------------------------------------------------------------*/

struct attention {
    struct layout queries, keys;
    struct sw_attention shape, host; /* device and host arrays */
    struct op_attention math;
    double *q, *k, *v, *bias;
    int64_t width, q_count, kv_count, o_count, bias_count;
};

static void attention_of(const struct op_case *c, struct op_session *s, struct attention *out)
{
    layout_of(s, c, false, &out->queries);
    layout_of(s, c, true, &out->keys);
    out->width = c->heads * c->head_dim;
    struct sw_attention *a = &out->host;
    *a = (struct sw_attention){
        .heads = c->heads,
        .head_dim = c->head_dim,
        .scale = c->scale,
        .causal = c->causal,
        .queries = out->queries.host,
        .keys = out->keys.host,
        .q_stride = out->width + (c->aligned ? 24 : 5),
        .kv_stride = out->width + (c->aligned ? 16 : 3),
        .o_stride = out->width + (c->aligned ? 8 : 2),
        .bias_reach = c->reach,
        .dropout = dropout_of(s, c, false),
        .dtype = c->dtype,
    };
    out->q_count = a->queries.tokens * a->q_stride;
    out->kv_count = key_tokens(c) * a->kv_stride;
    out->o_count = a->queries.tokens * a->o_stride;
    out->bias_count = c->reach > 0 ? c->heads * (2 * c->reach - 1) : 0;
    double size = c->size > 0.0f ? (double)c->size : 1.0;
    out->q = op_values(s, out->q_count, c->dtype, size);
    out->k = op_values(s, out->kv_count, c->dtype, size);
    out->v = op_values(s, out->kv_count, c->dtype, 1.0);
    out->bias = c->reach > 0 ? op_values(s, out->bias_count, SW_F32, 2.0) : NULL;
    out->math = (struct op_attention){a, out->q, out->k, out->v, out->bias};
    out->shape = *a;
    out->shape.queries = out->queries.device;
    out->shape.keys = out->keys.device;
    out->shape.dropout = dropout_of(s, c, true);
    out->shape.q = op_input(s, out->q, out->q_count, c->dtype);
    out->shape.k = op_input(s, out->k, out->kv_count, c->dtype);
    out->shape.v = op_input(s, out->v, out->kv_count, c->dtype);
    if (c->reach > 0)
        out->shape.bias = op_input(s, out->bias, out->bias_count, SW_F32);
}

/* Scores are off by the rounding of a product of head_dim terms of size^2; probabilities by that
 * relatively; outputs are averages of values of size 1, gradients sums over so many keys. */
static double score_error(const struct op_case *c)
{
    double size = c->size > 0.0f ? (double)c->size : 1.0;
    return rounding(c->head_dim, size * size * (double)c->scale + 2.0);
}

/* Tensor cores take probabilities and gradients of scores as bf16, each off by up to 2^-9; what is
 * summed is of size 1. */
static double bf16_error(const struct op_case *c, const struct op_session *s)
{
    return c->dtype == SW_BF16 && s->ops->asynchronous ? 0x1p-8 : 0.0;
}

static void run_attention(const struct op_case *c, struct op_session *s)
{
    struct attention a;
    attention_of(c, s, &a);
    double *before = op_values(s, a.o_count, c->dtype, 1.0); /* what is between rows must stay */
    int64_t lse_count = c->heads * a.host.queries.tokens;
    void *o = op_output(s, "o", before, a.o_count, c->dtype);
    float *lse = op_output(s, "lse", NULL, lse_count, SW_F32);
    void *workspace = op_workspace(s, s->kernels->attention_forward_workspace_bytes(&a.shape));
    s->kernels->attention_forward(s->stream, &a.shape, o, lse, workspace);
    if (s->expect)
        op_attention_forward(
            &a.math,
            op_want(s, "o",
                    4.0 * score_error(c) + rounding(a.host.keys.longest, 1.0) + bf16_error(c, s)),
            op_want(s, "lse", 2.0 * score_error(c) + rounding(32, 1.0)));
}

static void run_attention_backward(const struct op_case *c, struct op_session *s)
{
    struct attention a;
    attention_of(c, s, &a);
    int64_t lse_count = c->heads * a.host.queries.tokens;
    double *d_o = op_values(s, a.o_count, c->dtype, 1.0), *o = op_zeros(s, a.o_count);
    double *lse = op_zeros(s, lse_count);
    double *dq_before = op_values(s, a.q_count, c->dtype, 1.0);
    double *dk_before = op_values(s, a.kv_count, c->dtype, 1.0);
    double *dbias_before = op_values(s, a.bias_count, SW_F32, 1.0);
    op_attention_forward(&a.math, o, lse);
    void *dq = op_output(s, "dq", dq_before, a.q_count, c->dtype);
    void *dk = op_output(s, "dk", dk_before, a.kv_count, c->dtype);
    void *dv = op_output(s, "dv", dk_before, a.kv_count, c->dtype);
    float *dbias = c->reach > 0 ? op_output(s, "dbias", dbias_before, a.bias_count, SW_F32) : NULL;
    s->kernels->attention_backward(
        s->stream, &a.shape, dq, dk, dv, dbias, op_input(s, d_o, a.o_count, c->dtype),
        op_input(s, o, a.o_count, c->dtype), op_input(s, lse, lse_count, SW_F32),
        op_workspace(s, s->kernels->attention_backward_workspace_bytes(&a.shape)));
    if (!s->expect)
        return;
    double size = c->size > 0.0f ? (double)c->size : 1.0;
    double terms = (double)(c->head_dim + a.host.keys.longest + a.host.queries.longest);
    double one = 2.0 * score_error(c) + rounding(c->head_dim, 1.0); /* of a score's gradient */
    /* o is rounded to bf16 before delta is made of it */
    if (c->dtype == SW_BF16)
        one += 0x1p-8 * sqrt((double)c->head_dim) + bf16_error(c, s);
    double *want_q = op_want(s, "dq", one * size * sqrt(terms));
    double *want_k = op_want(s, "dk", one * size * sqrt(terms));
    double *want_v = op_want(s, "dv", one * sqrt(terms));
    double *want_bias = c->reach > 0 ? op_want(s, "dbias", one * terms) : NULL;
    /* overwritten where there are rows */
    for (int64_t r = 0; r < c->rows; r++) {
        for (int64_t t = 0; t < a.queries.lengths[r]; t++)
            memset(want_q + (a.queries.starts[r] + t) * a.host.q_stride, 0,
                   (size_t)a.width * sizeof(double));
        for (int64_t t = 0; t < a.keys.lengths[r]; t++) {
            int64_t at = (a.keys.starts[r] + t) * a.host.kv_stride;
            memset(want_k + at, 0, (size_t)a.width * sizeof(double));
            memset(want_v + at, 0, (size_t)a.width * sizeof(double));
        }
    }
    op_attention_backward(&a.math, want_q, want_k, want_v, want_bias, d_o);
}

#include "op_table.inc.h"
