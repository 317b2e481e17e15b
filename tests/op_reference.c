#include "op_reference.h"

#include "base/random.h"

#include <math.h>
#include <stdlib.h>

double op_dropout_factor(const struct sw_dropout *dropout, int64_t element, int64_t position,
                         int64_t row, uint32_t c3)
{
    if (!(dropout->p > 0.0f))
        return 1.0;
    const uint32_t counter[4] = {(uint32_t)(element / 4), (uint32_t)position,
                                 (uint32_t)dropout->global_rows[row], c3};
    uint32_t words[4];
    sw_philox(dropout->key, counter, words);
    if (sw_random_unit(words[element % 4]) < dropout->p)
        return 0.0;
    return 1.0 / (1.0 - (double)dropout->p);
}

void op_rmsnorm(double *y, double *rstd, const double *x, const double *w, int64_t rows,
                int64_t width, double eps)
{
    for (int64_t r = 0; r < rows; r++) {
        double squares = 0.0;
        for (int64_t i = 0; i < width; i++)
            squares += x[r * width + i] * x[r * width + i];
        rstd[r] = 1.0 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++)
            y[r * width + i] = w[i] * x[r * width + i] * rstd[r];
    }
}

void op_rmsnorm_backward(double *dx, double *dw, const double *dy, const double *x, const double *w,
                         int64_t rows, int64_t width, double eps)
{
    for (int64_t r = 0; r < rows; r++, dx += width, dy += width, x += width) {
        double squares = 0.0, products = 0.0;
        for (int64_t i = 0; i < width; i++)
            squares += x[i] * x[i];
        double rstd = 1.0 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++)
            products += w[i] * dy[i] * x[i] * rstd;
        for (int64_t i = 0; i < width; i++) {
            dx[i] += rstd * (w[i] * dy[i] - x[i] * rstd * products / (double)width);
            dw[i] += dy[i] * x[i] * rstd;
        }
    }
}

static const double sqrt_2_over_pi = 0.79788456080286535588;

double op_activation(enum sw_activation activation, double x)
{
    switch (activation) {
    case SW_ACT_RELU:
        return x > 0.0 ? x : 0.0;
    case SW_ACT_GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x)));
    case SW_ACT_GELU_ERF:
        return 0.5 * x * erfc(-x * 0.70710678118654752440);
    case SW_ACT_SILU:
    default:
        return x / (1.0 + exp(-x));
    }
}

double op_activation_slope(enum sw_activation activation, double x)
{
    switch (activation) {
    case SW_ACT_RELU:
        return x > 0.0 ? 1.0 : 0.0;
    case SW_ACT_GELU_TANH: {
        double t = tanh(sqrt_2_over_pi * (x + 0.044715 * x * x * x));
        return 0.5 * (1.0 + t) +
               0.5 * x * (1.0 - t * t) * sqrt_2_over_pi * (1.0 + 3.0 * 0.044715 * x * x);
    }
    case SW_ACT_GELU_ERF:
        return 0.5 * erfc(-x * 0.70710678118654752440) +
               x * exp(-0.5 * x * x) * 0.39894228040143267794;
    case SW_ACT_SILU:
    default: {
        double s = 1.0 / (1.0 + exp(-x));
        return s * (1.0 + x * (1.0 - s));
    }
    }
}

double op_cross_entropy(double *dlogits, const double *logits, int64_t vocabulary, int64_t label,
                        double smoothing, double gradient_scale)
{
    double most = logits[0], sum = 0.0, mean = 0.0, count = (double)vocabulary;
    for (int64_t i = 1; i < vocabulary; i++)
        most = logits[i] > most ? logits[i] : most;
    for (int64_t i = 0; i < vocabulary; i++) {
        sum += exp(logits[i] - most);
        mean += logits[i] / count;
    }
    double lse = most + log(sum);
    for (int64_t i = 0; dlogits != NULL && i < vocabulary; i++) {
        double own = i == label ? 1.0 - smoothing : 0.0;
        dlogits[i] = gradient_scale * (exp(logits[i] - lse) - own - smoothing / count);
    }
    return (1.0 - smoothing) * (lse - logits[label]) + smoothing * (lse - mean);
}

/* --- Attention ---------------------------------------------------------------------------------*/

/* What query i of a row sees. */
struct seen {
    int64_t position, keys;
    double *score; /* [keys] */
    double lse;
};

static double score_of(const struct op_attention *at, int64_t row, int64_t head, int64_t i,
                       int64_t j, int64_t position)
{
    const struct sw_attention *a = at->shape;
    const double *q = at->q + (a->queries.starts[row] + i) * a->q_stride + head * a->head_dim;
    const double *k = at->k + (a->keys.starts[row] + j) * a->kv_stride + head * a->head_dim;
    double sum = 0.0;
    for (int64_t d = 0; d < a->head_dim; d++)
        sum += q[d] * k[d];
    sum *= (double)a->scale;
    if (at->bias != NULL)
        sum += at->bias[head * (2 * a->bias_reach - 1) + j - position + a->bias_reach - 1];
    return sum;
}

static struct seen see(const struct op_attention *at, int64_t row, int64_t head, int64_t i)
{
    const struct sw_attention *a = at->shape;
    int64_t keys = a->keys.lengths[row];
    struct seen s = {.position = i, .keys = keys};
    if (a->causal) {
        s.position = i + keys - a->queries.lengths[row];
        s.keys = s.position + 1 < 0 ? 0 : s.position + 1;
    }
    s.score = malloc((size_t)(s.keys + 1) * sizeof(double));
    double most = -HUGE_VAL, sum = 0.0;
    for (int64_t j = 0; j < s.keys; j++) {
        s.score[j] = score_of(at, row, head, i, j, s.position);
        most = s.score[j] > most ? s.score[j] : most;
    }
    for (int64_t j = 0; j < s.keys; j++)
        sum += exp(s.score[j] - most);
    s.lse = s.keys > 0 ? most + log(sum) : 0.0;
    return s;
}

static double factor_of(const struct sw_attention *a, int64_t row, int64_t head, int64_t position,
                        int64_t j)
{
    return op_dropout_factor(&a->dropout, j, position, row, a->dropout.site | (uint32_t)head << 16);
}

void op_attention_forward(const struct op_attention *at, double *o, double *lse)
{
    const struct sw_attention *a = at->shape;
    for (int64_t row = 0; row < a->queries.count; row++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < a->queries.lengths[row]; i++) {
                struct seen s = see(at, row, head, i);
                int64_t token = a->queries.starts[row] + i;
                double *out = o + token * a->o_stride + head * a->head_dim;
                lse[head * a->queries.tokens + token] = s.lse;
                for (int64_t d = 0; d < a->head_dim; d++)
                    out[d] = 0.0;
                for (int64_t j = 0; j < s.keys; j++) {
                    const double *v =
                        at->v + (a->keys.starts[row] + j) * a->kv_stride + head * a->head_dim;
                    double p = exp(s.score[j] - s.lse) * factor_of(a, row, head, s.position, j);
                    for (int64_t d = 0; d < a->head_dim; d++)
                        out[d] += p * v[d];
                }
                free(s.score);
            }
}

/* One query of one head: everything it adds to. */
static void query_backward(const struct op_attention *at, int64_t row, int64_t head, int64_t i,
                           double *dq, double *dk, double *dv, double *dbias, const double *d_o)
{
    const struct sw_attention *a = at->shape;
    struct seen s = see(at, row, head, i);
    int64_t token = a->queries.starts[row] + i;
    int64_t q_at = token * a->q_stride + head * a->head_dim;
    const double *out = d_o + token * a->o_stride + head * a->head_dim;
    double *dp = malloc((size_t)(s.keys + 1) * sizeof(double)), delta = 0.0;
    for (int64_t j = 0; j < s.keys; j++) {
        int64_t kv = (a->keys.starts[row] + j) * a->kv_stride + head * a->head_dim;
        double p = exp(s.score[j] - s.lse), factor = factor_of(a, row, head, s.position, j);
        dp[j] = 0.0;
        for (int64_t d = 0; d < a->head_dim; d++) {
            dp[j] += factor * out[d] * at->v[kv + d];
            dv[kv + d] += factor * p * out[d];
        }
        delta += p * dp[j];
    }
    for (int64_t j = 0; j < s.keys; j++) {
        int64_t kv = (a->keys.starts[row] + j) * a->kv_stride + head * a->head_dim;
        double ds = exp(s.score[j] - s.lse) * (dp[j] - delta);
        if (dbias != NULL)
            dbias[head * (2 * a->bias_reach - 1) + j - s.position + a->bias_reach - 1] += ds;
        for (int64_t d = 0; d < a->head_dim; d++) {
            dq[q_at + d] += (double)a->scale * ds * at->k[kv + d];
            dk[kv + d] += (double)a->scale * ds * at->q[q_at + d];
        }
    }
    free(dp);
    free(s.score);
}

void op_attention_backward(const struct op_attention *at, double *dq, double *dk, double *dv,
                           double *dbias, const double *d_o)
{
    const struct sw_attention *a = at->shape;
    for (int64_t row = 0; row < a->queries.count; row++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < a->queries.lengths[row]; i++)
                query_backward(at, row, head, i, dq, dk, dv, dbias, d_o);
}
