#include "optim/optim.h"

#include "base/text.h"

#include <float.h>
#include <math.h>

void sw_optim_settings_init(struct sw_optim_settings *settings, enum sw_optim_name name)
{
    bool adamw = name == SW_OPTIM_ADAMW;
    *settings = (struct sw_optim_settings){
        .name = name,
        .lr = adamw ? 1e-4 : 1e-3,
        .beta1 = 0.9,
        .beta2 = 0.999,
        .eps = 1e-8,
        .eps1 = 1e-30,
        .eps2 = 1e-3,
        .max_grad_norm = adamw ? 1.0 : 0.0,
        .schedule = SW_SCHEDULE_CONSTANT,
        .moments = SW_F32,
        .grads = SW_F32,
        .master = SW_MASTER_FP32,
    };
}

const char *sw_optim_name_text(enum sw_optim_name name)
{
    return name == SW_OPTIM_ADAMW ? "adamw" : "adafactor";
}

const char *sw_optim_schedule_text(enum sw_optim_schedule schedule)
{
    static const char *const texts[] = {"constant", "linear", "cosine", "inverse_sqrt"};
    return texts[schedule];
}

/* Whether fp32 can hold it and it is in [low, high). */
static bool within(double value, double low, double high)
{
    return value >= low && value < high && value <= (double)FLT_MAX;
}

static sw_code check_ranges(const struct sw_optim_settings *s, struct sw_err *err)
{
    if (!within(s->lr, 0.0, (double)INFINITY))
        return SW_FAIL(err, SW_E_USAGE, "optimizer.lr: %g is not a number from 0", s->lr);
    if (!within(s->beta1, 0.0, 1.0) || !within(s->beta2, 0.0, 1.0) || (float)s->beta1 >= 1.0F ||
        (float)s->beta2 >= 1.0F)
        return SW_FAIL(err, SW_E_USAGE, "optimizer.betas: [%g, %g] are not both from 0 to below 1",
                       s->beta1, s->beta2);
    /* The least fp32 that is not subnormal: a smaller one would let 0 / 0 happen on some devices.
     */
    if (!within(s->eps, (double)FLT_MIN, (double)INFINITY))
        return SW_FAIL(err, SW_E_USAGE, "optimizer.eps: %g is not a number from %g", s->eps,
                       (double)FLT_MIN);
    if (!within(s->eps1, (double)FLT_MIN, (double)INFINITY) ||
        !within(s->eps2, 0.0, (double)INFINITY))
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.eps: [%g, %g] are not numbers from %g and from 0", s->eps1,
                       s->eps2, (double)FLT_MIN);
    if (!within(s->weight_decay, 0.0, (double)INFINITY))
        return SW_FAIL(err, SW_E_USAGE, "optimizer.weight_decay: %g is not a number from 0",
                       s->weight_decay);
    if (!within(s->max_grad_norm, 0.0, (double)INFINITY))
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.max_grad_norm: %g is not a number from 0 (0: no clipping)",
                       s->max_grad_norm);
    if (s->warmup_steps < 0 || s->total_steps < 0)
        return SW_FAIL(err, SW_E_USAGE, "optimizer.warmup_steps: %lld is below 0",
                       (long long)s->warmup_steps);
    return SW_OK;
}

static sw_code check_adamw(const struct sw_optim_settings *s, struct sw_err *err)
{
    if (s->relative_step)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.relative_step is adafactor's; remove it or set optimizer.name: "
                       "adafactor");
    if (s->scale_parameter)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.scale_parameter is adafactor's; remove it or set "
                       "optimizer.name: adafactor");
    return SW_OK;
}

static sw_code check_adafactor(const struct sw_optim_settings *s, struct sw_err *err)
{
    static const struct {
        uint32_t bit;
        const char *key;
    } own_rate[] = {
        {SW_OPTIM_GIVEN_LR, "lr"},
        {SW_OPTIM_GIVEN_SCHEDULE, "schedule"},
        {SW_OPTIM_GIVEN_WARMUP_STEPS, "warmup_steps"},
    };
    if (s->given & SW_OPTIM_GIVEN_BETAS)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.betas are adamw's; remove them or set optimizer.name: adamw");
    if (s->given & SW_OPTIM_GIVEN_EPS)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.eps is adamw's (adafactor's are fixed, %g and %g); remove it or "
                       "set optimizer.name: adamw",
                       s->eps1, s->eps2);
    if (s->moments != SW_F32)
        return SW_FAIL(err, SW_E_USAGE,
                       "precision.moments: bf16 is for adamw, adafactor's factors are small and "
                       "stay fp32; remove it or set optimizer.name: adamw");
    for (int i = 0; s->relative_step && i < 3; i++)
        if (s->given & own_rate[i].bit)
            return SW_FAIL(err, SW_E_USAGE,
                           "optimizer.relative_step sets the learning rate itself; remove "
                           "optimizer.%s",
                           own_rate[i].key);
    return SW_OK;
}

sw_code sw_optim_settings_check(const struct sw_optim_settings *s, struct sw_err *err)
{
    sw_code code = check_ranges(s, err);
    if (code != SW_OK)
        return code;
    code = s->name == SW_OPTIM_ADAMW ? check_adamw(s, err) : check_adafactor(s, err);
    if (code != SW_OK)
        return code;
    if (s->early_step && s->max_grad_norm > 0.0)
        return SW_FAIL(err, SW_E_USAGE,
                       "optimizer.early_step steps before the gradient norm is known; set "
                       "optimizer.max_grad_norm: 0");
    bool ends = s->schedule == SW_SCHEDULE_LINEAR || s->schedule == SW_SCHEDULE_COSINE;
    if (ends && s->total_steps > 0 && s->warmup_steps > s->total_steps)
        return SW_FAIL(
            err, SW_E_USAGE, "optimizer.warmup_steps: %lld is more than the run's %lld step%s",
            (long long)s->warmup_steps, (long long)s->total_steps, sw_text_plural(s->total_steps));
    return SW_OK;
}

/* Factors of transformers/optimization.py at `done` = step - 1 steps done; every operation in the
 * same order, in double. */
static double schedule_factor(const struct sw_optim_settings *s, int64_t done)
{
    double at = (double)done, warmup = (double)s->warmup_steps;
    double rest =
        s->total_steps > s->warmup_steps ? (double)(s->total_steps - s->warmup_steps) : 1.0;
    if (done < s->warmup_steps)
        return at / warmup;
    switch (s->schedule) {
    case SW_SCHEDULE_LINEAR:
        sw_assert(s->total_steps > 0);
        return fmax(0.0, (double)(s->total_steps - done) / rest);
    case SW_SCHEDULE_COSINE:
        sw_assert(s->total_steps > 0);
        return fmax(0.0, 0.5 * (1.0 + cos(3.14159265358979323846 * ((at - warmup) / rest))));
    case SW_SCHEDULE_INVERSE_SQRT: {
        double scale = s->warmup_steps > 0 ? warmup : 10000.0;
        return 1.0 / sqrt((at + (scale - warmup)) / scale);
    }
    case SW_SCHEDULE_CONSTANT:
        break;
    }
    return 1.0;
}

double sw_optim_lr(const struct sw_optim_settings *settings, int64_t step)
{
    sw_assert(step >= 1);
    if (settings->name == SW_OPTIM_ADAFACTOR && settings->relative_step)
        return fmin(1e-2, 1.0 / sqrt((double)step));
    return settings->lr * schedule_factor(settings, step - 1);
}
