#include "optim_on_device.h"

#include "base/mem.h"
#include "base/random.h"
#include "optim/optim.h"
#include "support.h"

#include <math.h>

/* Odd sizes; a frozen parameter between two trained ones without padding; rows that cross blocks;
 * padding behind parameters 1, 2 and 4. */
enum { PARAMS = 5, ELEMENTS = 299136, BLOCKS = 5, DEVICE_BYTES = 64 << 20 };

static const struct sw_optim_param params[PARAMS] = {
    {0, 97, 509, true, true, true},     {49373, 300, 131, true, true, false},
    {88704, 1, 77, false, false, true}, {88832, 3, 70001, true, true, true},
    {298835, 32, 8, true, false, true},
};
static const struct sw_optim_unit unit = {params, PARAMS, ELEMENTS, 3};

struct rig {
    const struct sw_device_ops *ops;
    struct sw_pool *pool;
    struct sw_device *device;
    struct sw_stream *compute, *up, *down;
};

static void rig_open(struct rig *rig, const struct sw_device_ops *ops, struct sw_pool *pool)
{
    struct sw_err err = {0};
    const struct sw_device_config config = {.memory_bytes = DEVICE_BYTES, .pool = pool};
    *rig = (struct rig){.ops = ops, .pool = pool};
    assert_ok(ops->open(&rig->device, &config, &err), &err);
    assert_ok(ops->stream_open(rig->device, SW_STREAM_COMPUTE, &rig->compute, &err), &err);
    assert_ok(ops->stream_open(rig->device, SW_STREAM_H2D, &rig->up, &err), &err);
    assert_ok(ops->stream_open(rig->device, SW_STREAM_D2H, &rig->down, &err), &err);
}

static void rig_close(struct rig *rig)
{
    rig->ops->stream_close(rig->compute);
    rig->ops->stream_close(rig->up);
    rig->ops->stream_close(rig->down);
    rig->ops->close(rig->device);
}

/* An array here and there. */
struct array {
    void *host, *device;
    int64_t bytes;
};

static void array_send(const struct rig *rig, const struct array *array)
{
    struct sw_err err = {0};
    rig->ops->copy(rig->up, array->device, array->host, array->bytes);
    assert_ok(rig->ops->stream_sync(rig->up, &err), &err);
}

static struct array array_open(const struct rig *rig, int64_t bytes)
{
    struct sw_err err = {0};
    struct array array = {.bytes = bytes};
    array.host = sw_aligned_alloc(bytes);
    assert_non_null(array.host);
    assert_ok(rig->ops->alloc(rig->device, bytes, &array.device, &err), &err);
    return array;
}

static void array_compare(const struct rig *rig, const struct array *array, const char *name,
                          const char *what)
{
    struct sw_err err = {0};
    unsigned char *there = sw_aligned_alloc(array->bytes);
    const unsigned char *here = array->host;
    assert_non_null(there);
    rig->ops->copy(rig->down, there, array->device, array->bytes);
    assert_ok(rig->ops->stream_sync(rig->down, &err), &err);
    for (int64_t i = 0; i < array->bytes; i++)
        if (here[i] != there[i])
            fail_msg("%s: %s differs at byte %lld of %lld", what, name, (long long)i,
                     (long long)array->bytes);
    free(there);
}

/* From 2^-140 (subnormal, its square vanishes) to 1, some zero. */
static float varied(uint32_t index, uint32_t sequence)
{
    static const uint32_t key[2] = {7, 11};
    const uint32_t counter[4] = {index, sequence, 0, 0};
    uint32_t out[4];
    sw_philox(key, counter, out);
    uint32_t word = out[0];
    float size = (word & 15) == 0 ? ldexpf(1.0F, -(int)(word >> 4 & 127) - 13) : 1.0F;
    return (word & 31) == 31 ? 0.0F : (sw_random_unit(word) - 0.5F) * size;
}

static void fill(float *values, uint32_t sequence)
{
    for (int64_t i = 0; i < ELEMENTS; i++)
        values[i] = varied((uint32_t)i, sequence);
}

static void fill_gradient(const struct rig *rig, const struct array *gradient, enum sw_dtype dtype,
                          uint32_t sequence)
{
    float *values = sw_aligned_alloc(ELEMENTS * (int64_t)sizeof *values);
    assert_non_null(values);
    fill(values, sequence);
    if (dtype == SW_F32)
        memcpy(gradient->host, values, (size_t)gradient->bytes);
    else
        sw_gradients_to_bf16(rig->pool, values, gradient->host, ELEMENTS);
    free(values);
    array_send(rig, gradient);
}

/* --- Steps -------------------------------------------------------------------------------------*/

struct variant {
    enum sw_dtype gradient, moments;
    enum sw_optim_master master;
    bool copied;
    enum sw_dtype copy;
    int64_t chunk;
};

enum { GRADIENT, MASTER, HIGH, LOW, EXP_AVG, EXP_AVG_SQ, COPY, ARRAYS };

static const char *const array_names[ARRAYS] = {"gradient", "master",     "high", "low",
                                                "exp_avg",  "exp_avg_sq", "copy"};

static void *part(void *base, int64_t first, enum sw_dtype dtype)
{
    return (char *)base + first * sw_dtype_bytes(dtype);
}

/* Elements [first, first + count) of the arrays here, or of those on the device. */
static struct sw_optim_chunk chunk_of(const struct array *arrays, const struct variant *v,
                                      bool device, int64_t first, int64_t count)
{
    void *at[ARRAYS];
    for (int i = 0; i < ARRAYS; i++)
        at[i] = device ? arrays[i].device : arrays[i].host;
    return (struct sw_optim_chunk){
        .first = first,
        .count = count,
        .gradient = part(at[GRADIENT], first, v->gradient),
        .gradient_dtype = v->gradient,
        .master = part(at[MASTER], first, SW_F32),
        .high = part(at[HIGH], first, SW_BF16),
        .low = part(at[LOW], first, SW_BF16),
        .exp_avg = part(at[EXP_AVG], first, v->moments),
        .exp_avg_sq = part(at[EXP_AVG_SQ], first, v->moments),
        .weights = v->copied ? part(at[COPY], first, v->copy) : NULL,
        .weights_dtype = v->copy,
    };
}

static void step(const struct rig *rig, const struct array *arrays, const struct variant *v,
                 const struct sw_optim_settings *settings, const struct sw_optim_update *update)
{
    const struct sw_optim_chunk whole = chunk_of(arrays, v, false, 0, ELEMENTS);
    sw_adamw_step(rig->pool, settings, update, &unit, &whole);
    for (int64_t first = 0; first < ELEMENTS; first += v->chunk) {
        int64_t count = ELEMENTS - first < v->chunk ? ELEMENTS - first : v->chunk;
        const struct sw_optim_chunk there = chunk_of(arrays, v, true, first, count);
        sw_adamw_step_on(rig->compute, rig->ops, settings, update, &unit, &there);
    }
}

static void run_variant(const struct sw_device_ops *ops, struct sw_pool *pool,
                        const struct variant *v)
{
    struct rig rig;
    struct sw_err err = {0};
    struct sw_optim_settings settings;
    struct array arrays[ARRAYS];
    const int64_t widths[ARRAYS] = {sw_dtype_bytes(v->gradient),
                                    4,
                                    2,
                                    2,
                                    sw_dtype_bytes(v->moments),
                                    sw_dtype_bytes(v->moments),
                                    sw_dtype_bytes(v->copy)};
    char what[128];
    snprintf(what, sizeof what, "gradient %s, moments %s, %s master, copy %s, chunks of %lld",
             sw_dtype_name(v->gradient), sw_dtype_name(v->moments),
             v->master == SW_MASTER_FP32 ? "fp32" : "split",
             v->copied ? sw_dtype_name(v->copy) : "none", (long long)v->chunk);
    rig_open(&rig, ops, pool);
    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = array_open(&rig, ELEMENTS * widths[i]);
    sw_optim_settings_init(&settings, SW_OPTIM_ADAMW);
    settings.weight_decay = 0.1;
    settings.moments = v->moments;
    settings.master = v->master;
    settings.seed = 5;
    fill(arrays[MASTER].host, 0);
    sw_weights_split(pool, arrays[MASTER].host, arrays[HIGH].host, arrays[LOW].host, ELEMENTS);
    for (int i = MASTER; i < ARRAYS; i++)
        array_send(&rig, &arrays[i]);
    for (uint32_t n = 1; n <= 2; n++) {
        const struct sw_optim_update update = {n, 1e-2, 0.75F};
        fill_gradient(&rig, &arrays[GRADIENT], v->gradient, n);
        step(&rig, arrays, v, &settings, &update);
        assert_ok(ops->stream_sync(rig.compute, &err), &err);
    }
    for (int i = 0; i < ARRAYS; i++) {
        array_compare(&rig, &arrays[i], array_names[i], what);
        free(arrays[i].host);
    }
    rig_close(&rig);
}

void optim_on_device_steps(const struct sw_device_ops *ops, struct sw_pool *pool)
{
    for (int bits = 0; bits < 16; bits++) {
        struct variant v = {
            .gradient = (bits & 1) != 0 ? SW_BF16 : SW_F32,
            .moments = (bits & 2) != 0 ? SW_BF16 : SW_F32,
            .master = (bits & 4) != 0 ? SW_MASTER_SPLIT : SW_MASTER_FP32,
            .copied = (bits & 8) != 0,
            .copy = (bits & 1) != 0 ? SW_F32 : SW_BF16,
            .chunk = (bits & 2) != 0 ? 64 * 1001 : ELEMENTS,
        };
        run_variant(ops, pool, &v);
    }
}

/* --- Norms -------------------------------------------------------------------------------------*/

static void run_norm(const struct rig *rig, enum sw_dtype dtype, int64_t chunk)
{
    struct sw_err err = {0};
    struct array gradient = array_open(rig, ELEMENTS * sw_dtype_bytes(dtype));
    struct array partials = array_open(rig, BLOCKS * (int64_t)sizeof(double));
    assert_int_equal(sw_norm_partial_count(ELEMENTS), BLOCKS);
    fill_gradient(rig, &gradient, dtype, 9);
    sw_norm_partials(rig->pool, &unit, gradient.host, dtype, 0, ELEMENTS, partials.host);
    for (int64_t first = 0; first < ELEMENTS; first += chunk) {
        int64_t count = ELEMENTS - first < chunk ? ELEMENTS - first : chunk;
        double *there = partials.device;
        sw_norm_partials_on(rig->compute, rig->ops, &unit, part(gradient.device, first, dtype),
                            dtype, first, count, there + first / SW_OPTIM_BLOCK);
    }
    assert_ok(rig->ops->stream_sync(rig->compute, &err), &err);
    array_compare(rig, &partials, "partials", sw_dtype_name(dtype));
    free(gradient.host);
    free(partials.host);
}

void optim_on_device_norms(const struct sw_device_ops *ops, struct sw_pool *pool)
{
    struct rig rig;
    rig_open(&rig, ops, pool);
    run_norm(&rig, SW_F32, ELEMENTS);
    run_norm(&rig, SW_F32, 2 * SW_OPTIM_BLOCK);
    run_norm(&rig, SW_BF16, ELEMENTS);
    run_norm(&rig, SW_BF16, SW_OPTIM_BLOCK);
    rig_close(&rig);
}
