/* Optimizers however they are run: the same bits over instruction sets, threads, chunks and
 * masters, on a unit that has everything in it. */
#include "tests/support.h"

#include "base/mem.h"
#include "base/random.h"
#include "optim/optim.h"

#include <float.h>
#include <math.h>

static struct sw_optim_settings adamw_settings(void)
{
    struct sw_optim_settings s;
    sw_optim_settings_init(&s, SW_OPTIM_ADAMW);
    return s;
}

static struct sw_optim_settings adafactor_settings(void)
{
    struct sw_optim_settings s;
    sw_optim_settings_init(&s, SW_OPTIM_ADAFACTOR);
    return s;
}

/* ---- a unit with everything in it ---- */

enum {
    FROZEN = 1,
    VECTOR = 2,
    LONG_ROWS = 3,
    PARAMS = 5,
    ELEMENTS = 299136, /* five blocks, the last one short */
};

/* Odd sizes; a frozen parameter between two trained ones without padding; rows that cross blocks;
 * padding behind parameters 1, 2 and 4. */
static const struct sw_optim_param world_params[PARAMS] = {
    {0, 97, 509, true, true, true},     {49373, 300, 131, true, true, false},
    {88704, 1, 77, false, false, true}, {88832, 3, 70001, true, true, true},
    {298835, 32, 8, true, false, true},
};
static const struct sw_optim_unit world_unit = {world_params, PARAMS, ELEMENTS, 3};

/* How to run it. */
struct way {
    int threads;
    enum sw_optim_isa isa;
    int64_t chunk; /* elements */
    bool descending;
};

struct world {
    struct sw_optim_settings settings;
    float *master, *gradient, *factors;
    uint16_t *high, *low, *gradient_bf16, *weights;
    void *exp_avg, *exp_avg_sq, *scratch;
    int64_t state_bytes; /* of exp_avg, of exp_avg_sq */
};

static void *memory(int64_t count, int64_t size_bytes)
{
    void *p = sw_aligned_alloc(count * size_bytes);
    if (p == NULL)
        abort();
    return p;
}

static uint32_t word_of(uint32_t index, uint32_t sequence)
{
    static const uint32_t key[2] = {7, 11};
    uint32_t counter[4] = {index, sequence, 0, 0}, out[4];
    sw_philox(key, counter, out);
    return out[0];
}

/* From 2^-140 (subnormal, its square vanishes) to 1, some zero. */
static float varied(uint32_t index, uint32_t sequence)
{
    uint32_t word = word_of(index, sequence);
    float size = (word & 15) == 0 ? ldexpf(1.0F, -(int)(word >> 4 & 127) - 13) : 1.0F;
    return (word & 31) == 31 ? 0.0F : (sw_random_unit(word) - 0.5F) * size;
}

static bool is_padding(int64_t i)
{
    for (int p = 0; p < PARAMS; p++)
        if (i >= world_params[p].offset &&
            i < world_params[p].offset + world_params[p].rows * world_params[p].columns)
            return false;
    return true;
}

static struct world world_open(struct sw_pool *pool, struct sw_optim_settings settings)
{
    struct world w = {.settings = settings};
    w.master = memory(ELEMENTS, 4);
    w.gradient = memory(ELEMENTS, 4);
    w.gradient_bf16 = memory(ELEMENTS, 2);
    w.high = memory(ELEMENTS, 2);
    w.low = memory(ELEMENTS, 2);
    w.weights = memory(ELEMENTS, 2);
    w.state_bytes = ELEMENTS * sw_dtype_bytes(settings.moments);
    w.exp_avg = memory(w.state_bytes, 1);
    w.exp_avg_sq = memory(w.state_bytes, 1);
    w.factors = memory(sw_adafactor_state_elements(&world_unit), 4);
    w.scratch = memory(sw_adafactor_scratch_bytes(&world_unit), 1);
    for (int64_t i = 0; i < ELEMENTS; i++)
        w.master[i] = is_padding(i) ? 0.0F : varied((uint32_t)i, 0);
    sw_weights_split(pool, w.master, w.high, w.low, ELEMENTS);
    return w;
}

static void world_close(struct world *w)
{
    free(w->master);
    free(w->gradient);
    free(w->gradient_bf16);
    free(w->high);
    free(w->low);
    free(w->weights);
    free(w->exp_avg);
    free(w->exp_avg_sq);
    free(w->factors);
    free(w->scratch);
}

static void world_gradient(struct world *w, struct sw_pool *pool, uint32_t number)
{
    const struct sw_optim_param *first = &world_params[0], *frozen = &world_params[FROZEN];
    float growth = (float)(number * number); /* so that Adafactor's updates are cut */
    for (int64_t i = 0; i < ELEMENTS; i++)
        w->gradient[i] = is_padding(i) ? NAN : varied((uint32_t)i, number) * growth;
    for (int64_t i = 0; i < first->columns; i++) /* a row and a column never see a gradient */
        w->gradient[5 * first->columns + i] = 0.0F;
    for (int64_t i = 0; i < first->rows; i++)
        w->gradient[i * first->columns + 17] = 0.0F;
    for (int64_t i = 0; i < frozen->rows * frozen->columns; i++)
        w->gradient[frozen->offset + i] = NAN;
    sw_gradients_to_bf16(pool, w->gradient, w->gradient_bf16, ELEMENTS);
}

static struct sw_optim_chunk world_chunk(const struct world *w, int64_t first, int64_t elements)
{
    int64_t moment_bytes = sw_dtype_bytes(w->settings.moments);
    bool split = w->settings.master == SW_MASTER_SPLIT;
    const void *gradient = w->gradient + first;
    if (w->settings.grads == SW_BF16)
        gradient = w->gradient_bf16 + first;
    return (struct sw_optim_chunk){
        .first = first,
        .count = ELEMENTS - first < elements ? ELEMENTS - first : elements,
        .gradient = gradient,
        .gradient_dtype = w->settings.grads,
        .master = split ? NULL : w->master + first,
        .high = split ? w->high + first : NULL,
        .low = split ? w->low + first : NULL,
        .exp_avg = (char *)w->exp_avg + first * moment_bytes,
        .exp_avg_sq = (char *)w->exp_avg_sq + first * moment_bytes,
        .weights = w->weights + first,
        .weights_dtype = SW_BF16,
    };
}

static void world_step(struct world *w, struct sw_pool *pool, const struct way *way, int64_t number)
{
    double partials[8];
    int64_t blocks = sw_norm_partial_count(ELEMENTS);
    struct sw_gradient_norm norm;
    const void *gradient = w->gradient;
    if (w->settings.grads == SW_BF16)
        gradient = w->gradient_bf16;
    sw_norm_partials(pool, &world_unit, gradient, w->settings.grads, 0, ELEMENTS, partials);
    sw_norm_finish(&w->settings, sw_norm_sum(partials, blocks), &norm);
    assert_true(norm.finite);
    struct sw_optim_update update = {
        .number = number, .lr = sw_optim_lr(&w->settings, number), .clip_scale = norm.clip_scale};
    int64_t chunks = (ELEMENTS + way->chunk - 1) / way->chunk;
    if (w->settings.name == SW_OPTIM_ADAMW) {
        for (int64_t i = 0; i < chunks; i++) {
            int64_t at = way->descending ? chunks - 1 - i : i;
            struct sw_optim_chunk chunk = world_chunk(w, at * way->chunk, way->chunk);
            sw_adamw_step(pool, &w->settings, &update, &world_unit, &chunk);
        }
        return;
    }
    struct sw_adafactor a = {&w->settings, &update, &world_unit, w->factors, w->scratch};
    sw_adafactor_begin(&a);
    for (int phase = 0; phase < SW_ADAFACTOR_PHASES; phase++) {
        for (int64_t i = 0; i < chunks; i++) {
            struct sw_optim_chunk chunk = world_chunk(w, i * way->chunk, way->chunk);
            if (!sw_adafactor_phase_reads_weights(&w->settings, (enum sw_adafactor_phase)phase))
                chunk.master = NULL, chunk.high = chunk.low = NULL;
            sw_adafactor_visit(pool, &a, (enum sw_adafactor_phase)phase, &chunk);
        }
        sw_adafactor_finish(pool, &a, (enum sw_adafactor_phase)phase);
    }
}

static struct world world_run(struct sw_optim_settings settings, struct way way)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, way.threads, &err), &err);
    enum sw_optim_isa best = sw_optim_isa();
    assert_true(sw_optim_isa_choose(way.isa));
    struct world w = world_open(pool, settings);
    for (uint32_t number = 1; number <= 3; number++) {
        memset(w.weights, 0xA5, ELEMENTS * sizeof *w.weights);
        world_gradient(&w, pool, number);
        world_step(&w, pool, &way, number);
    }
    if (settings.master == SW_MASTER_SPLIT)
        sw_weights_join(pool, w.high, w.low, w.master, ELEMENTS);
    sw_optim_isa_choose(best);
    sw_pool_close(pool);
    return w;
}

static void assert_same(const struct world *a, const struct world *b)
{
    assert_memory_equal(a->master, b->master, ELEMENTS * sizeof *a->master);
    assert_memory_equal(a->weights, b->weights, ELEMENTS * sizeof *a->weights);
    assert_memory_equal(a->exp_avg, b->exp_avg, (size_t)a->state_bytes);
    assert_memory_equal(a->exp_avg_sq, b->exp_avg_sq, (size_t)a->state_bytes);
    assert_memory_equal(a->factors, b->factors,
                        (size_t)sw_adafactor_state_elements(&world_unit) * sizeof *a->factors);
    /* The sums in double, which rounding to fp32 could hide. */
    assert_memory_equal(a->scratch, b->scratch, (size_t)sw_adafactor_scratch_bytes(&world_unit));
}

/* Trained weights moved and are finite; frozen ones and padding did not; the copy follows. */
static void assert_sane(const struct world *w)
{
    int64_t moved = 0, trained = 0;
    for (int64_t i = 0; i < ELEMENTS; i++) {
        float start = is_padding(i) ? 0.0F : varied((uint32_t)i, 0);
        uint32_t bits;
        memcpy(&bits, &w->master[i], sizeof bits);
        assert_true(isfinite(w->master[i]));
        assert_int_equal(w->weights[i], sw_weight_to_bf16(bits));
        bool frozen = i >= world_params[FROZEN].offset && i < world_params[VECTOR].offset;
        if (frozen || is_padding(i))
            assert_memory_equal(&w->master[i], &start, sizeof start);
        else
            moved += memcmp(&w->master[i], &start, sizeof start) != 0, trained++;
    }
    assert_true(moved > trained * 9 / 10);
}

static const struct way plain_way = {1, SW_ISA_SCALAR, ELEMENTS, false};

/* Every instruction set the CPU has, thread counts, chunk sizes: the same bits. */
static void same_however_run(struct sw_optim_settings settings, int64_t least_chunk)
{
    struct world want = world_run(settings, plain_way);
    assert_sane(&want);
    for (int isa = SW_ISA_SCALAR; isa <= SW_ISA_AVX512; isa++) {
        enum sw_optim_isa best = sw_optim_isa();
        if (!sw_optim_isa_choose((enum sw_optim_isa)isa)) {
            printf("skipped: this CPU has no %s\n", sw_optim_isa_text((enum sw_optim_isa)isa));
            continue;
        }
        sw_optim_isa_choose(best);
        const struct way ways[] = {
            {1, (enum sw_optim_isa)isa, ELEMENTS, false},
            {3, (enum sw_optim_isa)isa, least_chunk, true},
            {2, (enum sw_optim_isa)isa, 2 * SW_OPTIM_BLOCK, false},
        };
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            struct world have = world_run(settings, ways[i]);
            assert_same(&want, &have);
            world_close(&have);
        }
    }
    world_close(&want);
}

static struct sw_optim_settings world_adamw(void)
{
    struct sw_optim_settings s = adamw_settings();
    s.lr = 0.01;
    s.weight_decay = 0.1;
    s.seed = 42;
    return s;
}

static struct sw_optim_settings world_adafactor(void)
{
    struct sw_optim_settings s = adafactor_settings();
    s.lr = 0.01;
    s.weight_decay = 0.1;
    s.scale_parameter = true;
    return s;
}

static void adamw_is_the_same_however_run(void **state)
{
    (void)state;
    same_however_run(world_adamw(), 4096);
}

static void adamw_bf16_is_the_same_however_run(void **state)
{
    (void)state;
    struct sw_optim_settings s = world_adamw();
    s.moments = s.grads = SW_BF16;
    same_however_run(s, 4096);
}

static void adafactor_is_the_same_however_run(void **state)
{
    (void)state;
    same_however_run(world_adafactor(), SW_OPTIM_BLOCK);
    struct sw_optim_settings s = world_adafactor();
    s.scale_parameter = false;
    s.grads = SW_BF16;
    s.max_grad_norm = 1.0;
    same_however_run(s, SW_OPTIM_BLOCK);
}

static void split_master_changes_nothing(void **state)
{
    (void)state;
    const struct way way = {2, sw_optim_isa(), SW_OPTIM_BLOCK, false};
    struct sw_optim_settings all[] = {world_adamw(), world_adamw(), world_adafactor()};
    all[1].moments = all[1].grads = SW_BF16;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        struct sw_optim_settings split = all[i];
        split.master = SW_MASTER_SPLIT;
        struct world want = world_run(all[i], way), have = world_run(split, way);
        assert_same(&want, &have);
        /* The high half is the bf16 compute weight. */
        assert_memory_equal(have.high, have.weights, ELEMENTS * sizeof *have.high);
        world_close(&want);
        world_close(&have);
    }
}

/* ---- Adafactor over blocks, against its formulas in double ---- */

struct reference {
    int64_t rows, columns;
    double *weights, *row, *column;
};

static void reference_step(struct reference *r, const float *gradient, double lr, int number)
{
    int64_t n = r->rows * r->columns;
    double keep = 1.0 - pow(number, -0.8), mean = 0.0, squares = 0.0, size = 0.0;
    double *u = memory(n, 8);
    for (int64_t i = 0; i < r->rows; i++) {
        double sum = 0.0;
        for (int64_t j = 0; j < r->columns; j++)
            sum += pow((double)gradient[i * r->columns + j], 2) + 1e-30;
        r->row[i] = keep * r->row[i] + (1 - keep) * sum / (double)r->columns;
        mean += r->row[i] / (double)r->rows;
    }
    for (int64_t j = 0; j < r->columns; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < r->rows; i++)
            sum += pow((double)gradient[i * r->columns + j], 2) + 1e-30;
        r->column[j] = keep * r->column[j] + (1 - keep) * sum / (double)r->rows;
    }
    for (int64_t k = 0; k < n; k++) {
        double row = r->row[k / r->columns], column = r->column[k % r->columns];
        u[k] = (double)gradient[k] / sqrt(row / mean * column);
        squares += u[k] * u[k];
        size += r->weights[k] * r->weights[k];
    }
    double rate = lr * fmax(1e-3, sqrt(size / (double)n));
    for (int64_t k = 0; k < n; k++)
        r->weights[k] -=
            rate * 0.1 * r->weights[k] + rate * u[k] / fmax(1.0, sqrt(squares / (double)n));
    free(u);
}

static void adafactor_over_blocks_follows_its_formulas(void **state)
{
    (void)state;
    const struct way way = {2, sw_optim_isa(), SW_OPTIM_BLOCK, false};
    struct world w = world_run(world_adafactor(), way);
    const int which[] = {0, LONG_ROWS};
    for (int p = 0; p < 2; p++) {
        const struct sw_optim_param *param = &world_params[which[p]];
        int64_t n = param->rows * param->columns;
        struct reference r = {param->rows, param->columns, memory(n, 8), memory(param->rows, 8),
                              memory(param->columns, 8)};
        struct sw_err err;
        struct sw_pool *pool;
        sw_err_init(&err);
        assert_ok(sw_pool_open(&pool, 1, &err), &err);
        for (int64_t i = 0; i < n; i++)
            r.weights[i] = (double)varied((uint32_t)(param->offset + i), 0);
        for (uint32_t number = 1; number <= 3; number++) {
            world_gradient(&w, pool, number);
            reference_step(&r, w.gradient + param->offset, 0.01, (int)number);
        }
        /* Three steps, each with fewer than 10 roundings of a change below 0.05 (0.01 * 0.3 *
         * the largest u, which is 8) and 2 of a weight below 0.5. */
        for (int64_t i = 0; i < n; i++)
            if (!(fabs((double)w.master[param->offset + i] - r.weights[i]) <= 3e-7))
                fail_msg("parameter %d element %lld: %.9g, not %.9g", which[p], (long long)i,
                         (double)w.master[param->offset + i], r.weights[i]);
        sw_pool_close(pool);
        free(r.weights);
        free(r.row);
        free(r.column);
    }
    world_close(&w);
}

/* ---- states, norm ---- */

static void states_are_described(void **state)
{
    (void)state;
    struct sw_optim_settings s = adamw_settings();
    struct sw_optim_state d;
    s.moments = SW_BF16;
    assert_int_equal(sw_optim_state_count(&s, &world_params[0]), 2);
    assert_int_equal(sw_optim_state_count(&s, &world_params[FROZEN]), 0);
    assert_int_equal(sw_optim_parallel_state_bytes(&s), 4);
    sw_optim_state_describe(&s, &world_unit, LONG_ROWS, 1, &d);
    assert_string_equal(d.name, "exp_avg_sq");
    assert_true(d.dtype == SW_BF16 && d.dims == 2 && d.shape[0] == 3 && d.shape[1] == 70001);
    assert_true(d.array == 1 && d.offset == 88832 && d.elements == 210003);
    s = adafactor_settings();
    assert_int_equal(sw_optim_parallel_state_bytes(&s), 0);
    assert_int_equal(sw_optim_state_count(&s, &world_params[VECTOR]), 1);
    assert_int_equal(sw_optim_state_count(&s, &world_params[LONG_ROWS]), 2);
    sw_optim_state_describe(&s, &world_unit, LONG_ROWS, 0, &d);
    assert_string_equal(d.name, "exp_avg_sq_row");
    assert_true(d.dtype == SW_F32 && d.dims == 1 && d.elements == 3);
    /* 97 and 509 rounded up to 16, nothing for the frozen one, 77 rounded up */
    assert_int_equal(d.offset, 112 + 512 + 80);
    sw_optim_state_describe(&s, &world_unit, LONG_ROWS, 1, &d);
    assert_string_equal(d.name, "exp_avg_sq_col");
    assert_int_equal(d.offset, 112 + 512 + 80 + 16);
    assert_int_equal(sw_adafactor_state_elements(&world_unit),
                     112 + 512 + 80 + 16 + 70016 + 32 + 16);
}

/* The norm is that of trainable elements, to the rounding of a sum in double; and it shows any
 * element that is not finite. */
static void the_norm_is_of_what_trains(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    struct sw_optim_settings s = adamw_settings();
    struct world w = world_open(pool, s);
    world_gradient(&w, pool, 1);
    double want = 0.0, partials[5], apart[5];
    for (int p = 0; p < PARAMS; p++)
        for (int64_t i = 0; i < world_params[p].rows * world_params[p].columns; i++)
            if (world_params[p].trainable)
                want += pow((double)w.gradient[world_params[p].offset + i], 2);
    sw_norm_partials(pool, &world_unit, w.gradient, SW_F32, 0, ELEMENTS, partials);
    double sum = sw_norm_sum(partials, 5);
    /* ELEMENTS additions, each off by at most half of 2^-52 of the sum */
    assert_true(fabs(sum - want) <= ELEMENTS * DBL_EPSILON * want);
    for (int64_t b = 0; b < 5; b++) {
        int64_t first = b * SW_OPTIM_BLOCK;
        int64_t count = ELEMENTS - first < SW_OPTIM_BLOCK ? ELEMENTS - first : SW_OPTIM_BLOCK;
        sw_norm_partials(pool, &world_unit, w.gradient + first, SW_F32, first, count, &apart[b]);
    }
    assert_memory_equal(apart, partials, sizeof partials);
    world_close(&w);
    sw_pool_close(pool);
}

static void the_norm_clips(void **state)
{
    (void)state;
    struct sw_optim_settings s = adamw_settings();
    struct sw_gradient_norm norm;
    sw_norm_finish(&s, 16.0, &norm);
    assert_true(norm.norm == 4.0 && norm.finite && norm.clip_scale == (float)(1.0 / 4.000001));
    sw_norm_finish(&s, 0.25, &norm);
    assert_true(norm.clip_scale == 1.0F);
    s.max_grad_norm = 0.0;
    sw_norm_finish(&s, 1e60, &norm);
    assert_true(norm.finite && norm.clip_scale == 1.0F);
}

static void a_norm_of_what_is_not_finite_is_not(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    const struct sw_optim_settings s = adamw_settings();
    struct world w = world_open(pool, s);
    struct sw_gradient_norm norm;
    double partials[5];
    world_gradient(&w, pool, 1);
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const int64_t places[] = {0, 88704 + 76, 298834, 299090};
    for (size_t i = 0; i < 12; i++) {
        float old = w.gradient[places[i % 4]];
        w.gradient[places[i % 4]] = bad[i / 4];
        sw_norm_partials(pool, &world_unit, w.gradient, SW_F32, 0, ELEMENTS, partials);
        sw_norm_finish(&s, sw_norm_sum(partials, 5), &norm);
        assert_false(norm.finite);
        w.gradient[places[i % 4]] = old;
    }
    /* The largest there is does not count as infinite. */
    w.gradient[0] = FLT_MAX;
    sw_norm_partials(pool, &world_unit, w.gradient, SW_F32, 0, ELEMENTS, partials);
    sw_norm_finish(&s, sw_norm_sum(partials, 5), &norm);
    assert_true(norm.finite);
    world_close(&w);
    sw_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adamw_is_the_same_however_run),
        cmocka_unit_test(adamw_bf16_is_the_same_however_run),
        cmocka_unit_test(adafactor_is_the_same_however_run),
        cmocka_unit_test(split_master_changes_nothing),
        cmocka_unit_test(adafactor_over_blocks_follows_its_formulas),
        cmocka_unit_test(states_are_described),
        cmocka_unit_test(the_norm_is_of_what_trains),
        cmocka_unit_test(the_norm_clips),
        cmocka_unit_test(a_norm_of_what_is_not_finite_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
