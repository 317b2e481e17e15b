/* Softmax rows: the loss, log-probabilities, blocks of attention. Included by lanes_body.inc.h
 * only. */

/* Lanes from n on replaced by `filler`. */
ALWAYS_INLINE lanes filled(lanes x, int64_t n, float filler)
{
    return n == LANES ? x : lanes_keep_first(x, n, lanes_set(filler));
}

static float greatest_of(const float *x, int64_t count)
{
    lanes most = lanes_set(-INFINITY);
#define BODY(at, n) most = lanes_max(most, filled(load(x, SW_F32, at, n), n, -INFINITY))
    FOR_LANES(count, BODY);
#undef BODY
    return lanes_greatest(most);
}

/* Sum of exp(x - shift) over the row, by lanes; of x itself into *plain. y, when there is one,
 * gets the exponentials. */
ALWAYS_INLINE float sum_of_exp(float *y, const float *x, int64_t count, float shift, float *plain)
{
    lanes sum = lanes_set(0.0f), plain_sum = lanes_set(0.0f), s = lanes_set(shift);
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes v = load(x, SW_F32, at, n);                                                          \
        lanes e = exp_of(lanes_sub(v, s));                                                         \
        if (plain != NULL)                                                                         \
            plain_sum = lanes_add(plain_sum, v);                                                   \
        if (y != NULL)                                                                             \
            store(y, SW_F32, at, e, n);                                                            \
        sum = lanes_add(sum, filled(e, n, 0.0f));                                                  \
    } while (0)
    FOR_LANES(count, BODY);
#undef BODY
    if (plain != NULL)
        *plain = lanes_sum(plain_sum);
    return lanes_sum(sum);
}

/* d = a * e - b, for fp32 rows whose exponentials stand in d already. */
static void scale_exponentials(float *d, int64_t count, float a, float b)
{
    lanes factor = lanes_set(a), offset = lanes_set(b);
#define BODY(at, n)                                                                                \
    store(d, SW_F32, at, lanes_sub(lanes_mul(load(d, SW_F32, at, n), factor), offset), n)
    FOR_LANES(count, BODY);
#undef BODY
}

static void gradient_bf16(uint16_t *d, const float *x, int64_t count, float shift, float a, float b)
{
    lanes factor = lanes_set(a), offset = lanes_set(b), s = lanes_set(shift);
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes e = exp_of(lanes_sub(load(x, SW_F32, at, n), s));                                    \
        store(d, SW_BF16, at, lanes_sub(lanes_mul(e, factor), offset), n);                         \
    } while (0)
    FOR_LANES(count, BODY);
#undef BODY
}

static float cross_entropy(const struct sw_cross_entropy *entropy, void *d, enum sw_dtype d_dtype,
                           const float *x, int32_t label)
{
    int64_t count = entropy->vocabulary;
    float s = entropy->smoothing, scale = entropy->gradient_scale, plain = 0.0f, sum;
    float shift = greatest_of(x, count);
    float own = x[label]; /* before d overwrites it */
    float *e = d != NULL && d_dtype == SW_F32 ? d : NULL;
    if (s > 0.0f)
        sum = sum_of_exp(e, x, count, shift, &plain);
    else
        sum = sum_of_exp(e, x, count, shift, NULL);
    /* log-sum-exp is shift + log(sum), kept in two parts: large logits lose nothing */
    float log_sum = logf(sum);
    float loss = (shift - own) + log_sum;
    if (s > 0.0f)
        loss = (1.0f - s) * loss + s * ((shift - plain / (float)count) + log_sum);
    if (d == NULL)
        return loss;
    float a = scale / sum, b = scale * s / (float)count;
    if (d_dtype == SW_F32) {
        scale_exponentials(d, count, a, b);
        e[label] = e[label] - scale * (1.0f - s);
        return loss;
    }
    uint16_t *half = d;
    lanes at_label = exp_of(lanes_set(own - shift));
    gradient_bf16(half, x, count, shift, a, b);
    float value[LANES];
    lanes_store(value, at_label);
    half[label] = sw_float_to_bf16((value[0] * a - b) - scale * (1.0f - s));
    return loss;
}

static void log_softmax(float *y, const float *x, int64_t count)
{
    float shift = greatest_of(x, count);
    float log_sum = logf(sum_of_exp(NULL, x, count, shift, NULL));
    lanes s = lanes_set(shift), l = lanes_set(log_sum);
#define BODY(at, n) store(y, SW_F32, at, lanes_sub(lanes_sub(load(x, SW_F32, at, n), s), l), n)
    FOR_LANES(count, BODY);
#undef BODY
}

/* --- Attention ---------------------------------------------------------------------------------*/

/* What is not finite must come through, but a maximum drops NaN and exp makes 0 of -infinity: so
 * the sum of score x 0, which is 0 or NaN, goes onto the result. */
static float scores(const struct sw_cpu_softmax_row *row, float *s)
{
    lanes scale = lanes_set(row->scale), most = lanes_set(-INFINITY);
    lanes zero = lanes_set(0.0f), zeros = zero;
    const float *bias = row->bias;
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes v = lanes_mul(load(s, SW_F32, at, n), scale);                                        \
        if (bias != NULL)                                                                          \
            v = lanes_add(v, load(bias, SW_F32, at, n));                                           \
        store(s, SW_F32, at, v, n);                                                                \
        most = lanes_max(most, filled(v, n, -INFINITY));                                           \
        zeros = lanes_add(zeros, lanes_mul(v, zero));                                              \
    } while (0)
    FOR_LANES(row->visible, BODY);
#undef BODY
    return lanes_greatest(most) + lanes_sum(zeros);
}

static float softmax(const struct sw_cpu_softmax_row *row, float *p, float shift)
{
    lanes sum = lanes_set(0.0f), s = lanes_set(shift);
#define BODY(at, n, factors)                                                                       \
    do {                                                                                           \
        lanes e = exp_of(lanes_sub(load(p, SW_F32, at, n), s));                                    \
        sum = lanes_add(sum, filled(e, n, 0.0f));                                                  \
        store(p, SW_F32, at, masked(e, factors), n);                                               \
    } while (0)
    FOR_MASKED_LANES(&row->mask, row->first_key / 4, row->visible, BODY);
#undef BODY
    if (row->visible < row->keys)
        memset(p + row->visible, 0, (size_t)(row->keys - row->visible) * sizeof *p);
    return lanes_sum(sum);
}

static void softmax_backward(const struct sw_cpu_softmax_row *row, float *p, float *dp, float lse,
                             float delta, float *dbias)
{
    lanes shift = lanes_set(lse), d = lanes_set(delta), scale = lanes_set(row->scale);
    const float *bias = row->bias;
#define BODY(at, n, factors)                                                                       \
    do {                                                                                           \
        lanes v = lanes_mul(load(p, SW_F32, at, n), scale);                                        \
        if (bias != NULL)                                                                          \
            v = lanes_add(v, load(bias, SW_F32, at, n));                                           \
        lanes e = exp_of(lanes_sub(v, shift));                                                     \
        lanes g = lanes_mul(e, lanes_sub(masked(load(dp, SW_F32, at, n), factors), d));            \
        store(p, SW_F32, at, masked(e, factors), n);                                               \
        store(dp, SW_F32, at, g, n);                                                               \
        if (dbias != NULL)                                                                         \
            store(dbias, SW_F32, at, lanes_add(load(dbias, SW_F32, at, n), g), n);                 \
    } while (0)
    FOR_MASKED_LANES(&row->mask, row->first_key / 4, row->visible, BODY);
#undef BODY
    if (row->visible < row->keys) {
        size_t bytes = (size_t)(row->keys - row->visible) * sizeof *p;
        memset(p + row->visible, 0, bytes);
        memset(dp + row->visible, 0, bytes);
    }
}

static float dot(const float *a, const float *b, int64_t count)
{
    lanes sum = lanes_set(0.0f);
#define BODY(at, n) sum = lanes_add(sum, lanes_mul(load(a, SW_F32, at, n), load(b, SW_F32, at, n)))
    FOR_LANES(count, BODY);
#undef BODY
    return lanes_sum(sum);
}

static void multiply(float *y, float a, int64_t count)
{
    lanes factor = lanes_set(a);
#define BODY(at, n) store(y, SW_F32, at, lanes_mul(load(y, SW_F32, at, n), factor), n)
    FOR_LANES(count, BODY);
#undef BODY
}
