/* Norm, feed-forward and element-wise rows. Included by lanes_body.inc.h only.
 *
 * Inner functions take the type as an argument that is constant where they are inlined, so that
 * each type gets a loop of its own. */

#define FOR_DTYPE(dtype_, CALL)                                                                    \
    do {                                                                                           \
        if ((dtype_) == SW_F32)                                                                    \
            CALL(SW_F32);                                                                          \
        else                                                                                       \
            CALL(SW_BF16);                                                                         \
    } while (0)

/* --- RMS norm ------------------------------------------------------------------------------------
 */

ALWAYS_INLINE void norm_row(enum sw_dtype dtype, const struct sw_norm *norm, void *y, float *rstd,
                            const void *x, const void *w)
{
    lanes squares = lanes_set(0.0f);
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes v = load(x, dtype, at, n);                                                           \
        squares = lanes_add(squares, lanes_mul(v, v));                                             \
    } while (0)
    FOR_LANES(norm->width, BODY);
#undef BODY
    float mean = lanes_sum(squares) / (float)norm->width;
    *rstd = 1.0f / sqrtf(mean + norm->eps);
    lanes r = lanes_set(*rstd);
#define BODY(at, n)                                                                                \
    store(y, dtype, at, lanes_mul(load(w, dtype, at, n), lanes_mul(load(x, dtype, at, n), r)), n)
    FOR_LANES(norm->width, BODY);
#undef BODY
}

static void rmsnorm_forward(const struct sw_norm *norm, int64_t first, int64_t end, void *y,
                            float *rstd, const void *x, const void *w)
{
    for (int64_t row = first; row < end; row++) {
        int64_t at = row * norm->width;
#define CALL(dtype)                                                                                \
    norm_row(dtype, norm, sw_cpu_at_mutable(y, at, dtype), rstd + row, sw_cpu_at(x, at, dtype), w)
        FOR_DTYPE(norm->dtype, CALL);
#undef CALL
    }
}

/* With g = w dy and z = x rstd: dx += rstd (g - z mean(g z)), partial += dy z. */
ALWAYS_INLINE void norm_row_backward(enum sw_dtype dtype, const struct sw_norm *norm, void *dx,
                                     float *partial, const void *dy, const void *x, float rstd,
                                     const void *w)
{
    lanes r = lanes_set(rstd);
    lanes products = lanes_set(0.0f);
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes z = lanes_mul(load(x, dtype, at, n), r);                                             \
        lanes dz = lanes_mul(load(dy, dtype, at, n), z);                                           \
        products = lanes_add(products, lanes_mul(load(w, dtype, at, n), dz));                      \
        store(partial, SW_F32, at, lanes_add(load(partial, SW_F32, at, n), dz), n);                \
    } while (0)
    FOR_LANES(norm->width, BODY);
#undef BODY
    lanes mean = lanes_set(lanes_sum(products) / (float)norm->width);
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes z = lanes_mul(load(x, dtype, at, n), r);                                             \
        lanes g = lanes_mul(load(w, dtype, at, n), load(dy, dtype, at, n));                        \
        lanes d = lanes_mul(r, lanes_sub(g, lanes_mul(z, mean)));                                  \
        store(dx, dtype, at, lanes_add(load(dx, dtype, at, n), d), n);                             \
    } while (0)
    FOR_LANES(norm->width, BODY);
#undef BODY
}

static void rmsnorm_backward(const struct sw_norm *norm, int64_t first, int64_t end, void *dx,
                             float *partial, const void *dy, const void *x, const float *rstd,
                             const void *w)
{
    memset(partial, 0, (size_t)norm->width * sizeof *partial);
    for (int64_t row = first; row < end; row++) {
        int64_t at = row * norm->width;
#define CALL(dtype)                                                                                \
    norm_row_backward(dtype, norm, sw_cpu_at_mutable(dx, at, dtype), partial,                      \
                      sw_cpu_at(dy, at, dtype), sw_cpu_at(x, at, dtype), rstd[row], w)
        FOR_DTYPE(norm->dtype, CALL);
#undef CALL
    }
}

static void add_partials(float *y, const float *partials, int64_t count, int64_t stride,
                         int64_t partial_count)
{
#define BODY(at, n)                                                                                \
    do {                                                                                           \
        lanes sum = lanes_set(0.0f);                                                               \
        for (int64_t p = 0; p < partial_count; p++)                                                \
            sum = lanes_add(sum, load(partials + p * stride, SW_F32, at, n));                      \
        store(y, SW_F32, at, lanes_add(load(y, SW_F32, at, n), sum), n);                           \
    } while (0)
    FOR_LANES(count, BODY);
#undef BODY
}

/* --- Feed-forward --------------------------------------------------------------------------------
 */

/* The activation and its derivative. gelu_tanh: 0.5 x (1 + tanh u) = x sigmoid(2 u), u = sqrt(2 /
 * pi) (x + 0.044715 x^3) (Hendrycks and Gimpel, arXiv 1606.08415). */
ALWAYS_INLINE lanes activate(enum sw_activation activation, lanes x, bool backward, lanes *slope)
{
    lanes zero = lanes_set(0.0f), one = lanes_set(1.0f);
    if (activation == SW_ACT_RELU) {
        *slope = lanes_select(lanes_less(zero, x), one, zero);
        return lanes_max(zero, x); /* NaN stays */
    }
    if (activation == SW_ACT_GELU_ERF) {
        lanes density;
        lanes below = normal_distribution(x, &density);
        if (backward)
            *slope = lanes_add(below, lanes_mul(lanes_mul(x, density), lanes_set(0.39894228f)));
        return lanes_mul(x, below);
    }
    /* x sigmoid(v(x)); v = x for silu */
    lanes v = x, dv = one;
    if (activation == SW_ACT_GELU_TANH) {
        lanes xx = lanes_mul(x, x);
        lanes c = lanes_set(1.59576912f),
              d = lanes_set(0.0713548163f); /* 2 sqrt(2/pi) (, 0.044..) */
        v = lanes_mul(x, lanes_add(c, lanes_mul(d, xx)));
        dv = lanes_add(c, lanes_mul(lanes_mul(d, lanes_set(3.0f)), xx));
    }
    lanes s = sigmoid(v);
    if (backward) {
        lanes rise = lanes_mul(lanes_mul(s, lanes_sub(one, s)), dv);
        *slope = lanes_add(s, lanes_mul(x, rise));
    }
    return lanes_mul(x, s);
}

ALWAYS_INLINE void ffn_row(enum sw_dtype dtype, enum sw_activation activation, bool gated,
                           int64_t width, const struct sw_cpu_mask *m, void *g, const void *h)
{
#define BODY(at, n, factors)                                                                       \
    do {                                                                                           \
        lanes slope;                                                                               \
        lanes y = activate(activation, load(h, dtype, at, n), false, &slope);                      \
        if (gated)                                                                                 \
            y = lanes_mul(y, load(h, dtype, width + at, n));                                       \
        store(g, dtype, at, masked(y, factors), n);                                                \
    } while (0)
    FOR_MASKED_LANES(m, 0, width, BODY);
#undef BODY
}

ALWAYS_INLINE void ffn_row_backward(enum sw_dtype dtype, enum sw_activation activation, bool gated,
                                    int64_t width, const struct sw_cpu_mask *m, void *dh,
                                    const void *dg, const void *h)
{
#define BODY(at, n, factors)                                                                       \
    do {                                                                                           \
        lanes slope;                                                                               \
        lanes d = masked(load(dg, dtype, at, n), factors);                                         \
        lanes y = activate(activation, load(h, dtype, at, n), true, &slope);                       \
        if (gated) {                                                                               \
            lanes linear = load(h, dtype, width + at, n);                                          \
            store(dh, dtype, width + at, lanes_mul(d, y), n);                                      \
            d = lanes_mul(d, linear);                                                              \
        }                                                                                          \
        store(dh, dtype, at, lanes_mul(d, slope), n);                                              \
    } while (0)
    FOR_MASKED_LANES(m, 0, width, BODY);
#undef BODY
}

/* One loop per type, activation and gate: FUNCTION(type, activation, gated, ...). */
#define FOR_ACTIVATION(ffn, FUNCTION, ...)                                                         \
    do {                                                                                           \
        if ((ffn)->dtype == SW_F32)                                                                \
            WITH_ACTIVATION(SW_F32, ffn, FUNCTION, __VA_ARGS__);                                   \
        else                                                                                       \
            WITH_ACTIVATION(SW_BF16, ffn, FUNCTION, __VA_ARGS__);                                  \
    } while (0)
#define WITH_ACTIVATION(type, ffn, FUNCTION, ...)                                                  \
    do {                                                                                           \
        if ((ffn)->activation == SW_ACT_RELU)                                                      \
            FUNCTION(type, SW_ACT_RELU, (ffn)->gated, __VA_ARGS__);                                \
        else if ((ffn)->activation == SW_ACT_GELU_TANH)                                            \
            FUNCTION(type, SW_ACT_GELU_TANH, (ffn)->gated, __VA_ARGS__);                           \
        else if ((ffn)->activation == SW_ACT_GELU_ERF)                                             \
            FUNCTION(type, SW_ACT_GELU_ERF, (ffn)->gated, __VA_ARGS__);                            \
        else                                                                                       \
            FUNCTION(type, SW_ACT_SILU, (ffn)->gated, __VA_ARGS__);                                \
    } while (0)

static void ffn_forward(const struct sw_ffn *ffn, const struct sw_cpu_mask *m, void *g,
                        const void *h)
{
    FOR_ACTIVATION(ffn, ffn_row, ffn->width, m, g, h);
}

static void ffn_backward(const struct sw_ffn *ffn, const struct sw_cpu_mask *m, void *dh,
                         const void *dg, const void *h)
{
    FOR_ACTIVATION(ffn, ffn_row_backward, ffn->width, m, dh, dg, h);
}

/* --- Element-wise --------------------------------------------------------------------------------
 */

ALWAYS_INLINE void residual_row(enum sw_dtype dtype, const struct sw_cpu_mask *m, void *y,
                                const void *x, const void *r, int64_t count)
{
#define BODY(at, n, factors)                                                                       \
    do {                                                                                           \
        lanes v = masked(load(r, dtype, at, n), factors);                                          \
        if (x != NULL)                                                                             \
            v = lanes_add(load(x, dtype, at, n), v);                                               \
        store(y, dtype, at, v, n);                                                                 \
    } while (0)
    FOR_MASKED_LANES(m, 0, count, BODY);
#undef BODY
}

static void residual(enum sw_dtype dtype, const struct sw_cpu_mask *m, void *y, const void *x,
                     const void *r, int64_t count)
{
#define CALL(type) residual_row(type, m, y, x, r, count)
    FOR_DTYPE(dtype, CALL);
#undef CALL
}

ALWAYS_INLINE void convert_row(void *y, enum sw_dtype to, const void *x, enum sw_dtype from,
                               int64_t count)
{
#define BODY(at, n) store(y, to, at, load(x, from, at, n), n)
    FOR_LANES(count, BODY);
#undef BODY
}

static void convert(void *y, enum sw_dtype y_dtype, const void *x, enum sw_dtype x_dtype,
                    int64_t count)
{
    if (y_dtype == x_dtype)
        memcpy(y, x, (size_t)(count * sw_dtype_bytes(x_dtype)));
    else if (y_dtype == SW_F32)
        convert_row(y, SW_F32, x, SW_BF16, count);
    else
        convert_row(y, SW_BF16, x, SW_F32, count);
}

static void accumulate(float *y, const void *x, enum sw_dtype x_dtype, int64_t count)
{
#define BODY(at, n)                                                                                \
    store(y, SW_F32, at, lanes_add(load(y, SW_F32, at, n), load(x, SW_F32, at, n)), n)
    if (x_dtype == SW_F32) {
        FOR_LANES(count, BODY);
        return;
    }
#undef BODY
#define BODY(at, n)                                                                                \
    store(y, SW_F32, at, lanes_add(load(y, SW_F32, at, n), load(x, SW_BF16, at, n)), n)
    FOR_LANES(count, BODY);
#undef BODY
}
