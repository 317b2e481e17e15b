/* Optimizers: settings, formulas against torch and transformers, rounding. */
#include "tests/support.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/random.h"
#include "optim/optim.h"

#include <float.h>
#include <math.h>

/* ---- settings ---- */

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

static void refused(struct sw_optim_settings s, const char *part)
{
    struct sw_err err;
    sw_err_init(&err);
    assert_refused(sw_optim_settings_check(&s, &err), SW_E_USAGE, part, &err);
}

static void defaults_are_accepted(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_optim_settings s = adamw_settings();
    assert_ok(sw_optim_settings_check(&s, &err), &err);
    s.early_step = true;
    s.max_grad_norm = 0.0;
    s.moments = s.grads = SW_BF16;
    s.master = SW_MASTER_SPLIT;
    assert_ok(sw_optim_settings_check(&s, &err), &err);
    s = adafactor_settings();
    s.relative_step = s.scale_parameter = true;
    s.given = SW_OPTIM_GIVEN_RELATIVE_STEP | SW_OPTIM_GIVEN_SCALE_PARAMETER;
    assert_ok(sw_optim_settings_check(&s, &err), &err);
}

static void clashes_are_refused_by_key(void **state)
{
    (void)state;
    struct sw_optim_settings s = adafactor_settings();
    s.relative_step = true;
    s.given = SW_OPTIM_GIVEN_LR;
    refused(s, "optimizer.relative_step sets the learning rate itself; remove optimizer.lr");
    s.given = SW_OPTIM_GIVEN_SCHEDULE;
    refused(s, "remove optimizer.schedule");
    s.given = SW_OPTIM_GIVEN_WARMUP_STEPS;
    refused(s, "remove optimizer.warmup_steps");
    s = adafactor_settings();
    s.given = SW_OPTIM_GIVEN_BETAS;
    refused(s, "optimizer.betas");
    s.given = SW_OPTIM_GIVEN_EPS;
    refused(s, "optimizer.eps");
    s.given = 0;
    s.moments = SW_BF16;
    refused(s, "precision.moments");
    s = adamw_settings();
    s.relative_step = true;
    refused(s, "optimizer.relative_step");
    s.relative_step = false;
    s.scale_parameter = true;
    refused(s, "optimizer.scale_parameter");
    s = adamw_settings();
    s.early_step = true;
    refused(s, "optimizer.max_grad_norm: 0");
    s = adamw_settings();
    s.schedule = SW_SCHEDULE_LINEAR;
    s.warmup_steps = 11;
    s.total_steps = 10;
    refused(s, "optimizer.warmup_steps: 11 is more than the run's 10 steps");
}

static void values_out_of_range_are_refused(void **state)
{
    (void)state;
    static const struct {
        size_t offset;
        double value;
        const char *key;
    } cases[] = {
        {offsetof(struct sw_optim_settings, lr), -1e-3, "optimizer.lr"},
        {offsetof(struct sw_optim_settings, lr), (double)NAN, "optimizer.lr"},
        {offsetof(struct sw_optim_settings, lr), (double)INFINITY, "optimizer.lr"},
        {offsetof(struct sw_optim_settings, beta1), 1.0, "optimizer.betas"},
        {offsetof(struct sw_optim_settings, beta2), -0.1, "optimizer.betas"},
        {offsetof(struct sw_optim_settings, beta2), 0.999999999, "optimizer.betas"},
        {offsetof(struct sw_optim_settings, eps), 0.0, "optimizer.eps"},
        {offsetof(struct sw_optim_settings, eps), 1e-50, "optimizer.eps"},
        {offsetof(struct sw_optim_settings, weight_decay), -1.0, "optimizer.weight_decay"},
        {offsetof(struct sw_optim_settings, max_grad_norm), (double)NAN, "optimizer.max_grad_norm"},
        {offsetof(struct sw_optim_settings, max_grad_norm), 1e39, "optimizer.max_grad_norm"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_optim_settings s = adamw_settings();
        memcpy((char *)&s + cases[i].offset, &cases[i].value, sizeof(double));
        refused(s, cases[i].key);
    }
    struct sw_optim_settings s = adamw_settings();
    s.warmup_steps = -1;
    refused(s, "optimizer.warmup_steps");
}

/* transformers 5.17, lr 0.002, 3 warm-up steps of 10:
 *     o = SGD([p], lr=0.002); s = get_linear_schedule_with_warmup(o, 3, 10)
 *     s.get_last_lr()[0] before each of 10 steps, printed with %.17g */
static void schedules_agree_with_transformers(void **state)
{
    (void)state;
    static const struct {
        enum sw_optim_schedule schedule;
        int64_t warmup;
        double lr[10];
    } cases[] = {
        {SW_SCHEDULE_CONSTANT,
         3,
         {0, 0.00066666666666666664, 0.0013333333333333333, 0.002, 0.002, 0.002, 0.002, 0.002,
          0.002, 0.002}},
        {SW_SCHEDULE_LINEAR,
         3,
         {0, 0.00066666666666666664, 0.0013333333333333333, 0.002, 0.0017142857142857142,
          0.0014285714285714286, 0.0011428571428571427, 0.0008571428571428571,
          0.00057142857142857136, 0.00028571428571428568}},
        {SW_SCHEDULE_COSINE,
         3,
         {0, 0.00066666666666666664, 0.0013333333333333333, 0.002, 0.001900968867902419,
          0.0016234898018587336, 0.0012225209339563144, 0.00077747906604368569,
          0.00037651019814126651, 9.9031132097580969e-05}},
        {SW_SCHEDULE_INVERSE_SQRT,
         3,
         {0, 0.00066666666666666664, 0.0013333333333333333, 0.002, 0.0017320508075688774,
          0.0015491933384829668, 0.001414213562373095, 0.0013093073414159541, 0.0012247448713915889,
          0.0011547005383792518}},
        {SW_SCHEDULE_INVERSE_SQRT,
         0,
         {0.002, 0.0019999000074993755, 0.0019998000299950012, 0.0019997000674831294,
          0.0019996001199600144, 0.0019995001874219091, 0.001999400269865071, 0.0019993003672857564,
          0.0019992004796802239, 0.0019991006070447337}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_optim_settings s = adamw_settings();
        s.lr = 0.002;
        s.schedule = cases[i].schedule;
        s.warmup_steps = cases[i].warmup;
        s.total_steps = 10;
        for (int64_t step = 1; step <= 10; step++) {
            double want = cases[i].lr[step - 1];
            /* The same operations in double: only cos() may differ, in its last place. */
            double room = s.schedule == SW_SCHEDULE_COSINE ? 4 * DBL_EPSILON * 0.002 : 0.0;
            if (!(fabs(sw_optim_lr(&s, step) - want) <= room))
                fail_msg("%s step %lld: %.17g, not %.17g", sw_optim_schedule_text(s.schedule),
                         (long long)step, sw_optim_lr(&s, step), want);
        }
    }
}

/* The learning rates of the reference runs, to the bit. */
static void schedules_agree_with_the_reference_cases(void **state)
{
    (void)state;
    static const char *const names[] = {"t5v10-relu-tied", "t5v11-adamw-linear"};
    const char *golden = sw_test_golden_dir();
    if (golden == NULL)
        skip();
    for (int i = 0; i < 2; i++) {
        struct sw_err err;
        sw_err_init(&err);
        char *folder = sw_path_join(golden, names[i]), *path = sw_path_join(folder, "expect.json");
        struct sw_json *root;
        assert_ok(sw_json_read_file(path, INT64_C(1) << 30, &root, &err), &err);
        const struct sw_json *optimizer = sw_json_get(root, "optimizer");
        const struct sw_json *rates = sw_json_get(root, "lr_per_step");
        struct sw_optim_settings s = adamw_settings();
        assert_true(sw_json_to_double(sw_json_get(optimizer, "lr"), &s.lr));
        assert_true(sw_json_to_integer(sw_json_get(optimizer, "warmup_steps"), &s.warmup_steps));
        s.total_steps = sw_json_count(rates);
        s.schedule = i == 0 ? SW_SCHEDULE_CONSTANT : SW_SCHEDULE_LINEAR;
        assert_true(s.total_steps > 0);
        for (int64_t step = 1; step <= s.total_steps; step++) {
            double want;
            assert_true(sw_json_to_double(sw_json_at(rates, step - 1), &want));
            assert_true(sw_optim_lr(&s, step) == want);
        }
        sw_json_free(root);
        free(path);
        free(folder);
    }
}

static void relative_step_is_a_rate_of_its_own(void **state)
{
    (void)state;
    struct sw_optim_settings s = adafactor_settings();
    s.relative_step = true;
    assert_true(sw_optim_lr(&s, 1) == 1e-2);
    assert_true(sw_optim_lr(&s, 10000) == 1e-2);
    assert_true(sw_optim_lr(&s, 40000) == 1.0 / 200.0);
}

/* ---- against torch and transformers ---- */

/* Small exact values: data(n, k)[i] = ((37 i + 11 k) mod 64 - 31) / 32 */
static void data(float *out, int n, int k)
{
    for (int i = 0; i < n; i++)
        out[i] = (float)((i * 37 + k * 11) % 64 - 31) / 32.0F;
}

/* A step's change is at most 0.05 here and goes through fewer than 10 roundings, a weight (at most
 * 1) through 2; three steps: 3 (10 * 0.05 + 2) 2^-24 = 4.5e-7, and torch's the same again. States
 * have fewer roundings of smaller numbers. */
static void assert_near(const float *have, const float *want, int count, const char *what)
{
    for (int i = 0; i < count; i++)
        if (!(fabsf(have[i] - want[i]) <= 9e-7F))
            fail_msg("%s[%d]: %.9g, not %.9g", what, i, (double)have[i], (double)want[i]);
}

/* Step one parameter three times with data(n, 2 .. 4); whole unit of 64 elements. */
struct small {
    struct sw_optim_param param;
    _Alignas(64) float weights[64], gradient[64], first[64], second[64], factors[64];
};

static void run_small(struct small *t, const struct sw_optim_settings *s, int n)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 1, &err), &err);
    struct sw_optim_unit unit = {.params = &t->param, .param_count = 1, .elements = 64};
    struct sw_optim_chunk chunk = {.count = 64,
                                   .gradient = t->gradient,
                                   .master = t->weights,
                                   .exp_avg = t->first,
                                   .exp_avg_sq = t->second};
    void *scratch = sw_aligned_alloc(sw_adafactor_scratch_bytes(&unit));
    assert_non_null(scratch);
    assert_true(sw_adafactor_state_elements(&unit) <= 64);
    data(t->weights, n, 1);
    for (int k = 2; k <= 4; k++) {
        data(t->gradient, n, k);
        double partial;
        struct sw_gradient_norm norm;
        sw_norm_partials(pool, &unit, t->gradient, SW_F32, 0, 64, &partial);
        sw_norm_finish(s, partial, &norm);
        struct sw_optim_update update = {
            .number = k - 1, .lr = sw_optim_lr(s, k - 1), .clip_scale = norm.clip_scale};
        sw_optim_step_unit(pool, s, &update, &unit, &chunk, t->factors, scratch);
    }
    free(scratch);
    sw_pool_close(pool);
}

/*     p = Parameter(data(8, 1)); o = torch.optim.AdamW([p], lr=0.01, betas=(0.8, 0.95), eps=1e-8,
 *                                                      weight_decay=decay)
 *     for k in 2, 3, 4: p.grad = data(8, k); clip_grad_norm_([p], 1.0); o.step()      torch 2.11 */
static void adamw_agrees_with_torch(void **state)
{
    (void)state;
    static const float decayed[8] = {-0.605000556F,  0.5165115F,    -0.334882408F, 0.858126104F,
                                     -0.0186064634F, -0.809499264F, 0.284981042F,  -0.519710839F};
    static const float plain[8] = {-0.614206314F,  0.524342597F,  -0.339687556F, 0.870865822F,
                                   -0.0187551752F, -0.821950674F, 0.289495498F,  -0.527540267F};
    static const float m[8] = {0.0337457769F,  -0.0607699342F, 0.130736023F,  -0.131137624F,
                               -0.0231093969F, -0.0341473855F, 0.0738808513F, 0.0628428459F};
    static const float v[8] = {0.00484484807F, 0.0301436763F,  0.0128523251F, 0.0172199644F,
                               0.0297257211F,  0.00597719895F, 0.0358029939F, 0.00605810573F};
    struct sw_optim_settings s = adamw_settings();
    s.lr = 0.01;
    s.beta1 = 0.8;
    s.beta2 = 0.95;
    s.weight_decay = 0.5;
    for (int decays = 0; decays < 2; decays++) {
        struct small t = {
            .param = {.rows = 1, .columns = 8, .decays = decays != 0, .trainable = true}};
        run_small(&t, &s, 8);
        assert_near(t.weights, decays ? decayed : plain, 8, "weights");
        assert_near(t.first, m, 8, "exp_avg");
        assert_near(t.second, v, 8, "exp_avg_sq");
    }
}

/*     p = Parameter(data(15, 1).view(3, 5)); o = transformers.optimization.Adafactor([p],
 *         lr=None if relative else 0.01, scale_parameter=scale, relative_step=relative,
 *         weight_decay=decay)
 *     for k in 2, 3, 4: p.grad = data(15, k).view(3, 5); o.step()            transformers 5.24 */
static const struct adafactor_case {
    int64_t rows, columns;
    bool scale, relative;
    double decay;
    float weights[15];
    float first[7], second[5]; /* row and column factors; or exp_avg_sq and nothing */
} adafactor_cases[] = {
    {3,
     5,
     false,
     false,
     0.0,
     {-0.632765412F, 0.534367979F, -0.346773803F, 0.861211002F, -0.017558191F, -0.836045444F,
      0.299380392F, -0.542663217F, 0.62771368F, -0.24835138F, 0.962211013F, 0.0886038244F,
      -0.738220572F, 0.417601138F, -0.448942274F},
     {0.329800993F, 0.324174523F, 0.307760268F},
     {0.116924524F, 0.555821538F, 0.152661979F, 0.411074817F, 0.366410136F}},
    {3,
     5,
     true,
     false,
     0.1,
     {-0.628339112F, 0.532098711F, -0.331356764F, 0.852193952F, -0.00990196317F, -0.837965369F,
      0.304567903F, -0.536806166F, 0.625463128F, -0.235125765F, 0.949882925F, 0.0907013863F,
      -0.742066205F, 0.411970913F, -0.443230093F},
     {0.329800993F, 0.324174523F, 0.307760268F},
     {0.116924524F, 0.555821538F, 0.152661979F, 0.411074817F, 0.366410136F}},
    {3,
     5,
     true,
     true,
     0.0,
     {-0.629404962F, 0.533002377F, -0.331909209F, 0.853637278F, -0.00991321821F, -0.839392602F,
      0.305089921F, -0.537715197F, 0.62652576F, -0.235516042F, 0.951489985F, 0.0908572078F,
      -0.743331552F, 0.412667722F, -0.443979979F},
     {0.329800993F, 0.324174523F, 0.307760268F},
     {0.116924524F, 0.555821538F, 0.152661979F, 0.411074817F, 0.366410136F}},
    {1,
     7,
     false,
     false,
     0.0,
     {-0.631863356F, 0.537091076F, -0.349691361F, 0.863621056F, -0.00938706193F, -0.835672379F,
      0.299326152F},
     {0.0895318985F, 0.475035071F, 0.261988103F, 0.244598553F, 0.577851355F, 0.0850234851F,
      0.621878028F},
     {0}},
    {1,
     7,
     true,
     true,
     0.1,
     {-0.627844989F, 0.533662319F, -0.333198458F, 0.853649855F, -0.00534734875F, -0.837694347F,
      0.304452538F},
     {0.0895318985F, 0.475035071F, 0.261988103F, 0.244598553F, 0.577851355F, 0.0850234851F,
      0.621878028F},
     {0}},
};

static void adafactor_agrees_with_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof adafactor_cases / sizeof adafactor_cases[0]; i++) {
        const struct adafactor_case *c = &adafactor_cases[i];
        struct sw_optim_settings s = adafactor_settings();
        s.lr = 0.01;
        s.scale_parameter = c->scale;
        s.relative_step = c->relative;
        s.weight_decay = c->decay;
        struct small t = {.param = {.rows = c->rows,
                                    .columns = c->columns,
                                    .factored = c->rows > 1,
                                    .decays = true,
                                    .trainable = true}};
        int n = (int)(c->rows * c->columns);
        run_small(&t, &s, n);
        assert_near(t.weights, c->weights, n, "weights");
        if (c->rows > 1) {
            assert_near(t.factors, c->first, 3, "exp_avg_sq_row");
            assert_near(t.factors + 16, c->second, 5, "exp_avg_sq_col");
        } else {
            assert_near(t.factors, c->first, 7, "exp_avg_sq");
        }
    }
}

/* ---- stochastic rounding ---- */

static void *memory(int64_t count, int64_t size_bytes)
{
    void *p = sw_aligned_alloc(count * size_bytes);
    if (p == NULL)
        abort();
    return p;
}

enum { MANY = 65536 };

/* One step of `count` equal elements from zero moments; returns exp_avg. */
static uint16_t *rounded_moments(float gradient, int64_t number, uint64_t seed, uint16_t **squares)
{
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    struct sw_optim_param param = {.rows = 1, .columns = MANY, .trainable = true};
    struct sw_optim_unit unit = {&param, 1, MANY, 9};
    struct sw_optim_settings s = adamw_settings();
    s.moments = SW_BF16;
    s.seed = seed;
    float *weights = memory(MANY, 4), *gradients = memory(MANY, 4);
    uint16_t *m = memory(MANY, 2), *v = memory(MANY, 2);
    for (int i = 0; i < MANY; i++)
        gradients[i] = gradient;
    struct sw_optim_update update = {.number = number, .lr = 0.1, .clip_scale = 1.0F};
    struct sw_optim_chunk chunk = {
        .count = MANY, .gradient = gradients, .master = weights, .exp_avg = m, .exp_avg_sq = v};
    sw_adamw_step(pool, &s, &update, &unit, &chunk);
    sw_pool_close(pool);
    free(weights);
    free(gradients);
    if (squares != NULL)
        *squares = v;
    else
        free(v);
    return m;
}

/* Values fall on the two neighbours, a distance d apart, with the probabilities that make the mean
 * exact: the mean of N has a deviation of at most d / (2 sqrt(N)). Six of them: 2e-9 to fail. */
static void assert_unbiased(const uint16_t *have, float exact)
{
    uint32_t bits;
    memcpy(&bits, &exact, sizeof bits);
    uint16_t below = (uint16_t)(bits >> 16), above = (uint16_t)(below + 1);
    double distance = (double)sw_bf16_to_float(above) - (double)sw_bf16_to_float(below);
    double mean = 0.0;
    for (int i = 0; i < MANY; i++) {
        assert_true(have[i] == below || have[i] == above);
        mean += (double)sw_bf16_to_float(have[i]) / MANY;
    }
    assert_true(fabs(mean - (double)exact) <= 6.0 * fabs(distance) / (2.0 * sqrt(MANY)));
}

static void stochastic_rounding_is_unbiased(void **state)
{
    (void)state;
    static const float gradients[] = {1.2345F, -0.7F, 1e-3F, 3e-19F};
    for (int i = 0; i < 4; i++) {
        float g = gradients[i];
        uint16_t *v, *m = rounded_moments(g, 1, 5, &v);
        assert_unbiased(m, (float)(1.0 - 0.9) * g);
        assert_unbiased(v, (float)(1.0 - 0.999) * g * g);
        free(m);
        free(v);
    }
}

/* The words are those that the interface documents: another device can draw the same. */
static void stochastic_rounding_is_reproducible(void **state)
{
    (void)state;
    uint16_t *v, *m = rounded_moments(1.2345F, 4, 77, &v);
    float exact_m = (float)(1.0 - 0.9) * 1.2345F;
    float exact_v = (float)(1.0 - 0.999) * 1.2345F * 1.2345F;
    uint32_t key[2], m_bits, v_bits;
    sw_random_key(77, SW_RANDOM_ROUNDING, key);
    memcpy(&m_bits, &exact_m, sizeof m_bits);
    memcpy(&v_bits, &exact_v, sizeof v_bits);
    for (uint32_t i = 0; i < MANY; i++) {
        uint32_t counter[4] = {i / 64 * 16 + i % 16, 0, 9, 4}, words[4];
        sw_philox(key, counter, words);
        uint32_t word = words[i % 64 / 16];
        assert_int_equal(m[i], (m_bits + (word & 0xFFFFu)) >> 16);
        assert_int_equal(v[i], (v_bits + (word >> 16)) >> 16);
    }
    uint16_t *other = rounded_moments(1.2345F, 5, 77, NULL);
    assert_memory_not_equal(m, other, MANY * sizeof *m);
    free(other);
    free(m);
    free(v);
}

/* ---- conversions ---- */

static void a_split_undoes_itself(void **state)
{
    (void)state;
    static const uint32_t highs[] = {0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F7F, 0x7F80, 0x0001};
    for (size_t h = 0; h < sizeof highs / sizeof highs[0]; h++)
        for (uint32_t low = 0; low < 65536; low++) {
            uint32_t bits = highs[h] << 16 | low;
            assert_int_equal(sw_weight_join(sw_weight_to_bf16(bits), (uint16_t)low), bits);
        }
    /* Nearest, halves away from zero. */
    assert_int_equal(sw_weight_to_bf16(0x3F807FFFu), 0x3F80);
    assert_int_equal(sw_weight_to_bf16(0x3F808000u), 0x3F81);
    assert_int_equal(sw_weight_to_bf16(0xBF808000u), 0xBF81);
}

static uint32_t word_of(uint32_t index, uint32_t sequence)
{
    static const uint32_t key[2] = {7, 11};
    uint32_t counter[4] = {index, sequence, 0, 0}, out[4];
    sw_philox(key, counter, out);
    return out[0];
}

/* Every count from 1 to 70, at every instruction set, nothing written behind. */
static void conversions_write_what_they_should(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 1, &err), &err);
    enum sw_optim_isa best = sw_optim_isa();
    float in[72], back[72];
    uint16_t rounded[72], high[72], low[72], nearest[72];
    for (uint32_t i = 0; i < 72; i++) {
        static const uint32_t special[] = {0x7F800000u, 0xFF800000u, 0x7FFFFFFFu, 0x7F800001u,
                                           0x3F808000u, 0x3F818000u, 0x80000001u, 0x7F7FFFFFu};
        uint32_t bits = i < 8 ? special[i] : word_of(i, 99);
        memcpy(&in[i], &bits, sizeof bits);
    }
    for (int64_t run = 0; run < 3 * 70; run++) {
        int64_t count = run % 70 + 1;
        if (!sw_optim_isa_choose((enum sw_optim_isa)(run / 70)))
            continue;
        uint16_t *const outs[] = {rounded, high, low, nearest};
        for (int i = 0; i < 4; i++)
            memset(outs[i], 0x5A, sizeof rounded);
        memset(back, 0x5A, sizeof back);
        sw_weights_round(pool, in, rounded, count);
        sw_weights_split(pool, in, high, low, count);
        sw_weights_join(pool, high, low, back, count);
        sw_gradients_to_bf16(pool, in, nearest, count);
        for (int64_t i = 0; i < count; i++) {
            uint32_t bits;
            memcpy(&bits, &in[i], sizeof bits);
            assert_int_equal(rounded[i], sw_weight_to_bf16(bits));
            assert_int_equal(high[i], rounded[i]);
            assert_int_equal(low[i], bits & 0xFFFFu);
            assert_int_equal(nearest[i], sw_float_to_bf16(in[i]));
        }
        assert_memory_equal(back, in, (size_t)count * sizeof *in);
        for (int i = 0; i < 4; i++)
            assert_int_equal(outs[i][count], 0x5A5A);
        uint32_t behind;
        memcpy(&behind, &back[count], sizeof behind);
        assert_int_equal(behind, 0x5A5A5A5A);
    }
    sw_optim_isa_choose(best);
    sw_pool_close(pool);
}

static void the_benchmark_runs(void **state)
{
    (void)state;
    struct sw_err err;
    sw_err_init(&err);
    struct sw_pool *pool;
    struct sw_optim_bench bench;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    assert_ok(sw_optim_bench(pool, 65536 + 64, &bench, &err), &err);
    assert_true(bench.adamw_bytes_per_second > 0.0 && bench.triad_bytes_per_second > 0.0);
    assert_refused(sw_optim_bench(pool, 65, &bench, &err), SW_E_USAGE, "65 elements", &err);
    sw_pool_close(pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_are_accepted),
        cmocka_unit_test(clashes_are_refused_by_key),
        cmocka_unit_test(values_out_of_range_are_refused),
        cmocka_unit_test(schedules_agree_with_transformers),
        cmocka_unit_test(schedules_agree_with_the_reference_cases),
        cmocka_unit_test(relative_step_is_a_rate_of_its_own),
        cmocka_unit_test(adamw_agrees_with_torch),
        cmocka_unit_test(adafactor_agrees_with_transformers),
        cmocka_unit_test(stochastic_rounding_is_unbiased),
        cmocka_unit_test(stochastic_rounding_is_reproducible),
        cmocka_unit_test(a_split_undoes_itself),
        cmocka_unit_test(conversions_write_what_they_should),
        cmocka_unit_test(the_benchmark_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
