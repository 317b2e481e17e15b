#include "op_session.h"

#include "base/random.h"
#include "support.h"

#include <math.h>

enum { GUARD_BYTES = 256, GUARD = 0xA5, BLOCKS = 40, DEVICE_BYTES = 64 << 20 };

struct block {
    char *memory;  /* device; GUARD_BYTES before and behind `bytes` */
    char *content; /* host copy of what was put there; NULL: free to change */
    int64_t bytes;
    int output; /* index, or -1 */
};

struct whole_session {
    struct op_session session;
    struct block blocks[BLOCKS];
    double *values[BLOCKS];
    int block_count, value_count;
};

static struct whole_session *whole_of(struct op_session *s)
{
    return (struct whole_session *)s;
}

static double *keep(struct op_session *s, double *values)
{
    struct whole_session *whole = whole_of(s);
    assert_true(values != NULL && whole->value_count < BLOCKS);
    whole->values[whole->value_count++] = values;
    return values;
}

double *op_zeros(struct op_session *s, int64_t count)
{
    return keep(s, calloc((size_t)count + 1, sizeof(double)));
}

double *op_values(struct op_session *s, int64_t count, enum sw_dtype dtype, double size)
{
    double *values = op_zeros(s, count);
    const uint32_t key[2] = {17, (uint32_t)whole_of(s)->value_count};
    for (int64_t i = 0; i < count; i++) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        uint32_t words[4];
        sw_philox(key, counter, words);
        float value = (float)(size * (2.0 * (double)sw_random_unit(words[0]) - 1.0));
        values[i] = (double)(dtype == SW_BF16 ? sw_bf16_to_float(sw_float_to_bf16(value)) : value);
    }
    return values;
}

/* --- Device memory -----------------------------------------------------------------------------*/

static void transfer(struct op_session *s, bool up, void *device, void *host, int64_t bytes)
{
    struct sw_err err = {0};
    struct sw_stream *stream = up ? s->up : s->down;
    void *pinned = NULL;
    assert_ok(s->ops->host_alloc(s->device, bytes, &pinned, &err), &err);
    if (up)
        memcpy(pinned, host, (size_t)bytes);
    s->ops->copy(stream, up ? device : pinned, up ? pinned : device, bytes);
    assert_ok(s->ops->stream_sync(stream, &err), &err);
    if (!up)
        memcpy(host, pinned, (size_t)bytes);
    s->ops->host_free(s->device, pinned, bytes);
}

/* A block holding `content`, which is taken over. */
static void *put(struct op_session *s, char *content, int64_t bytes, int output, bool may_change)
{
    struct whole_session *whole = whole_of(s);
    struct sw_err err = {0};
    void *memory = NULL;
    assert_true(whole->block_count < BLOCKS);
    assert_ok(s->ops->alloc(s->device, bytes + 2 * GUARD_BYTES, &memory, &err), &err);
    char *all = malloc((size_t)bytes + 2 * GUARD_BYTES);
    assert_non_null(all);
    memset(all, GUARD, (size_t)bytes + 2 * GUARD_BYTES);
    memcpy(all + GUARD_BYTES, content, (size_t)bytes);
    transfer(s, true, memory, all, bytes + 2 * GUARD_BYTES);
    free(all);
    if (may_change) {
        free(content);
        content = NULL;
    }
    whole->blocks[whole->block_count++] = (struct block){memory, content, bytes, output};
    return (char *)memory + GUARD_BYTES;
}

static char *encode(const double *values, int64_t count, enum sw_dtype dtype)
{
    char *bits = malloc((size_t)(count * sw_dtype_bytes(dtype)) + 1);
    assert_non_null(bits);
    for (int64_t i = 0; i < count; i++) {
        float value = values != NULL ? (float)values[i] : NAN;
        uint16_t half = sw_float_to_bf16(value);
        if (dtype == SW_F32)
            memcpy(bits + 4 * i, &value, 4);
        else
            memcpy(bits + 2 * i, &half, 2);
    }
    return bits;
}

void *op_input(struct op_session *s, const double *values, int64_t count, enum sw_dtype dtype)
{
    return put(s, encode(values, count, dtype), count * sw_dtype_bytes(dtype), -1, false);
}

int32_t *op_indices(struct op_session *s, const int32_t *values, int64_t count)
{
    char *bits = malloc((size_t)count * sizeof *values + 1);
    assert_non_null(bits);
    memcpy(bits, values, (size_t)count * sizeof *values);
    return put(s, bits, count * (int64_t)sizeof *values, -1, false);
}

static struct op_output *add_output(struct op_session *s, const char *name, int64_t count)
{
    struct op_result *result = s->result;
    assert_true(result->count < OP_OUTPUTS);
    struct op_output *output = &result->outputs[result->count++];
    *output = (struct op_output){.name = name, .count = count};
    output->want = calloc((size_t)count + 1, sizeof(double));
    assert_non_null(output->want);
    return output;
}

void *op_output(struct op_session *s, const char *name, const double *initial, int64_t count,
                enum sw_dtype dtype)
{
    struct op_output *output = add_output(s, name, count);
    output->dtype = dtype;
    output->bytes = count * sw_dtype_bytes(dtype);
    for (int64_t i = 0; i < count; i++)
        output->want[i] = initial != NULL ? initial[i] : 0.0;
    return put(s, encode(initial, count, dtype), output->bytes, s->result->count - 1, true);
}

double *op_output_double(struct op_session *s, const char *name, double initial)
{
    struct op_output *output = add_output(s, name, 1);
    output->is_double = true;
    output->bytes = (int64_t)sizeof initial;
    char *bits = malloc((size_t)output->bytes);
    assert_non_null(bits);
    memcpy(bits, &initial, (size_t)output->bytes);
    output->want[0] = initial;
    return put(s, bits, output->bytes, s->result->count - 1, true);
}

void *op_workspace(struct op_session *s, int64_t bytes)
{
    char *bits = malloc((size_t)bytes + 1);
    assert_non_null(bits);
    memset(bits, 0xFF, (size_t)bytes); /* NaN: must not be read before it is written */
    return put(s, bits, bytes, -1, true);
}

double *op_want(struct op_session *s, const char *name, double tolerance)
{
    for (int i = 0; i < s->result->count; i++) {
        struct op_output *output = &s->result->outputs[i];
        if (strcmp(output->name, name) == 0) {
            output->tolerance = tolerance;
            return output->want;
        }
    }
    fail_msg("no output %s", name);
    return NULL;
}

/* --- A whole case --------------------------------------------------------------------------------
 */

static void check_block(struct op_session *s, const struct op_case *c, struct block *block)
{
    int64_t bytes = block->bytes + 2 * GUARD_BYTES;
    unsigned char *all = malloc((size_t)bytes);
    assert_non_null(all);
    transfer(s, false, block->memory, all, bytes);
    for (int64_t i = 0; i < GUARD_BYTES; i++)
        if (all[i] != GUARD || all[bytes - 1 - i] != GUARD)
            fail_msg("%s: written beyond a block of %lld bytes", c->name, (long long)block->bytes);
    if (block->content != NULL &&
        memcmp(all + GUARD_BYTES, block->content, (size_t)block->bytes) != 0)
        fail_msg("%s: an input of %lld bytes changed", c->name, (long long)block->bytes);
    if (block->output >= 0) {
        struct op_output *output = &s->result->outputs[block->output];
        output->bits = malloc((size_t)block->bytes + 1);
        assert_non_null(output->bits);
        memcpy(output->bits, all + GUARD_BYTES, (size_t)block->bytes);
    }
    free(all);
    free(block->content);
}

void op_case_run(const struct op_case *c, const struct sw_device_ops *ops, struct sw_pool *pool,
                 bool expect, struct op_result *result)
{
    struct whole_session whole = {
        .session = {.ops = ops, .kernels = ops->kernels, .expect = expect, .result = result}};
    struct op_session *s = &whole.session;
    struct sw_err err = {0};
    const struct sw_device_config config = {.memory_bytes = DEVICE_BYTES, .pool = pool};
    *result = (struct op_result){0};
    assert_ok(ops->open(&s->device, &config, &err), &err);
    assert_ok(ops->stream_open(s->device, SW_STREAM_COMPUTE, &s->stream, &err), &err);
    assert_ok(ops->stream_open(s->device, SW_STREAM_H2D, &s->up, &err), &err);
    assert_ok(ops->stream_open(s->device, SW_STREAM_D2H, &s->down, &err), &err);
    c->run(c, s);
    assert_ok(ops->stream_sync(s->stream, &err), &err);
    for (int i = 0; i < whole.block_count; i++)
        check_block(s, c, &whole.blocks[i]);
    for (int i = 0; i < whole.value_count; i++)
        free(whole.values[i]);
    ops->stream_close(s->stream);
    ops->stream_close(s->up);
    ops->stream_close(s->down);
    ops->close(s->device);
}

double op_output_at(const struct op_output *output, int64_t index)
{
    double wide;
    float value;
    uint16_t half;
    if (output->is_double) {
        memcpy(&wide, (char *)output->bits + 8 * index, sizeof wide);
        return wide;
    }
    if (output->dtype == SW_F32) {
        memcpy(&value, (char *)output->bits + 4 * index, sizeof value);
        return (double)value;
    }
    memcpy(&half, (char *)output->bits + 2 * index, sizeof half);
    return (double)sw_bf16_to_float(half);
}

/* half a unit in the last of bf16's 8 bits is 2^-9; once more for what was rounded on the way */
static double tolerance_at(const struct op_output *output, int64_t index)
{
    if (output->is_double || output->dtype != SW_BF16)
        return output->tolerance;
    return output->tolerance + fabs(output->want[index]) * 0x1p-8;
}

/* The element that is furthest off in its tolerances; -1: all are within. */
static int64_t worst_of(const struct op_output *output, int64_t *count)
{
    int64_t worst = -1;
    double most = 1.0;
    *count = 0;
    for (int64_t i = 0; i < output->count; i++) {
        double off = fabs(op_output_at(output, i) - output->want[i]);
        double allowed = tolerance_at(output, i);
        if (off <= allowed)
            continue;
        (*count)++;
        double ratio = allowed > 0.0 ? off / allowed : HUGE_VAL;
        if (worst < 0 || !(ratio <= most)) {
            worst = i;
            most = ratio;
        }
    }
    return worst;
}

bool op_result_agrees(const struct op_case *c, const struct op_result *result)
{
    bool agrees = true;
    for (int o = 0; o < result->count; o++) {
        const struct op_output *output = &result->outputs[o];
        int64_t count, i = worst_of(output, &count);
        if (i < 0)
            continue;
        printf("%s: %s[%lld] is %.9g, not %.9g (within %.3g); %lld of %lld are off\n", c->name,
               output->name, (long long)i, op_output_at(output, i), output->want[i],
               tolerance_at(output, i), (long long)count, (long long)output->count);
        agrees = false;
    }
    return agrees;
}

void op_result_check(const struct op_case *c, const struct op_result *result)
{
    assert_true(op_result_agrees(c, result));
    if (c->apart && memcmp(result->outputs[0].bits, result->outputs[1].bits,
                           (size_t)result->outputs[0].bytes) != 0)
        fail_msg("%s: adding in place gives other bits", c->name);
}

void op_result_free(struct op_result *result)
{
    for (int i = 0; i < result->count; i++) {
        free(result->outputs[i].bits);
        free(result->outputs[i].want);
    }
    result->count = 0;
}
