/* Host optimizers: AdamW and Adafactor, learning-rate schedules, the gradient norm. Pure over the
 * memory they are given: no I/O, no allocation, no engine.
 *
 * What is stepped is a unit (model/spec.h), described here by `struct sw_optim_unit`, or a chunk of
 * it: `count` elements from element `first` of the unit, with every array's pointer at the chunk's
 * first element. Results do not depend on how a unit is cut, on the number of threads, or on the
 * instruction set: docs/NUMERICS.md, "Optimizers", has the order of every operation, so that
 * another device can give the same bits.
 *
 * The step of a unit, resident or not:
 *
 *     sw_norm_partials() of every unit → sw_norm_finish() → scale of clipping
 *     AdamW:     sw_adamw_step() of every chunk, in any order
 *     Adafactor: for each phase: sw_adafactor_visit() of every chunk in ascending order, then
 *                sw_adafactor_finish()
 *     either, when the whole unit is in memory: sw_optim_step_unit()
 */
#ifndef SPILLWAY_OPTIM_OPTIM_H
#define SPILLWAY_OPTIM_OPTIM_H

#include "base/dtype.h"
#include "base/err.h"
#include "base/pool.h"
#include "kernels/kernels.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- settings ---- */

enum sw_optim_name { SW_OPTIM_ADAMW, SW_OPTIM_ADAFACTOR };
enum sw_optim_schedule {
    SW_SCHEDULE_CONSTANT,
    SW_SCHEDULE_LINEAR,
    SW_SCHEDULE_COSINE,
    SW_SCHEDULE_INVERSE_SQRT,
};
enum sw_optim_master {
    SW_MASTER_FP32,
    SW_MASTER_SPLIT, /* 16 high bits (the bf16 weight) and 16 low bits apart */
};

/* Keys that a person gave, so that a clash with a default is none. */
enum sw_optim_given {
    SW_OPTIM_GIVEN_LR = 1 << 0,
    SW_OPTIM_GIVEN_BETAS = 1 << 1,
    SW_OPTIM_GIVEN_EPS = 1 << 2,
    SW_OPTIM_GIVEN_SCHEDULE = 1 << 3,
    SW_OPTIM_GIVEN_WARMUP_STEPS = 1 << 4,
    SW_OPTIM_GIVEN_SCALE_PARAMETER = 1 << 5,
    SW_OPTIM_GIVEN_RELATIVE_STEP = 1 << 6,
};

struct sw_optim_settings {
    enum sw_optim_name name;
    uint32_t given;       /* sw_optim_given bits */
    double lr;            /* peak; unused with relative_step */
    double beta1, beta2;  /* AdamW */
    double eps;           /* AdamW: added to the root of the second moment */
    double eps1, eps2;    /* Adafactor: added to squared gradients; least size of a parameter */
    double weight_decay;  /* decoupled; only where a parameter decays */
    double max_grad_norm; /* 0: no clipping */
    enum sw_optim_schedule schedule;
    int64_t warmup_steps;
    int64_t total_steps;   /* of the run; what linear and cosine end at. 0: not known yet */
    bool scale_parameter;  /* Adafactor: lr times the root mean square of the parameter */
    bool relative_step;    /* Adafactor: lr = min(0.01, 1 / sqrt(step)) */
    bool early_step;       /* step units during backward; needs max_grad_norm = 0 */
    enum sw_dtype moments; /* AdamW: fp32, or bf16 with stochastic rounding */
    enum sw_dtype grads;   /* of held gradients */
    enum sw_optim_master master;
    uint64_t seed; /* of stochastic rounding */
};

/* The defaults: lr 1e-4 (Adafactor 1e-3), betas 0.9 0.999, eps 1e-8, eps1 1e-30, eps2 1e-3, weight
 * decay 0, max_grad_norm 1 (Adafactor 0: it clips updates itself), constant, fp32 everything. */
void sw_optim_settings_init(struct sw_optim_settings *settings, enum sw_optim_name name);
/* SW_E_USAGE with the configuration keys ("optimizer.lr") of what is out of range or clashes. */
sw_code sw_optim_settings_check(const struct sw_optim_settings *settings,
                                struct sw_err *err) SW_WARN_UNUSED;
const char *sw_optim_name_text(enum sw_optim_name name);             /* "adamw" */
const char *sw_optim_schedule_text(enum sw_optim_schedule schedule); /* "inverse_sqrt" */

/* Learning rate of step `step` (from 1): a function of the step number alone, the same as
 * transformers.optimization's get_*_schedule_with_warmup at current_step = step - 1 (linear and
 * cosine need total_steps > 0), or Adafactor's relative step. Adafactor's scale_parameter comes on
 * top, per parameter. */
double sw_optim_lr(const struct sw_optim_settings *settings, int64_t step);

/* ---- what is stepped ---- */

struct sw_optim_param {
    int64_t offset;        /* elements from the start of the unit */
    int64_t rows, columns; /* columns adjoin; a vector has rows = 1 */
    bool factored;         /* two-dimensional: Adafactor keeps row and column factors */
    bool decays;
    bool trainable; /* else weights and states stay as they are */
};

/* Parameters ascend by offset and do not overlap; elements between them are padding, which is
 * never looked at and never written but to `weights` (below). */
struct sw_optim_unit {
    const struct sw_optim_param *params; /* borrowed */
    int64_t param_count;
    int64_t elements; /* with padding, a multiple of 64 */
    int64_t index;    /* in the model: keys the random numbers of stochastic rounding; < 2^32 */
};

/* A chunk's memory: every pointer at its first element, 64-byte aligned. */
struct sw_optim_chunk {
    int64_t first; /* within the unit; AdamW: a multiple of 64, Adafactor: of SW_OPTIM_BLOCK */
    int64_t count; /* the same multiple, or up to the unit's end */
    const void *gradient;
    enum sw_dtype gradient_dtype; /* fp32, or bf16 as sw_gradients_to_bf16() makes it */
    float *master;                /* SW_MASTER_FP32: weights, updated in place */
    uint16_t *high, *low;         /* SW_MASTER_SPLIT: the same in two halves */
    /* AdamW: moments of settings.moments, laid out like the weights */
    void *exp_avg, *exp_avg_sq;
    /* The weights that blocks compute with, written for every element of the chunk, frozen ones and
     * padding too. NULL: none wanted (fp32 compute reads `master`, bf16 compute with a split master
     * reads `high`). */
    void *weights;
    enum sw_dtype weights_dtype;
};

/* One optimizer step, the same for all units. */
struct sw_optim_update {
    int64_t number;   /* updates applied so far, this one counted: from 1. Steps that were skipped
                         because of a non-finite gradient do not count */
    double lr;        /* sw_optim_lr() of the step */
    float clip_scale; /* gradients are multiplied by it; 1: no clipping */
};

/* ---- bf16 weights and the split master ---- */

/* bf16 of a master weight: rounded to nearest, halves away from zero, so that 16 low bits undo it
 * (sw_weight_join). Every bf16 compute weight is made this way, whatever the master. */
static inline uint16_t sw_weight_to_bf16(uint32_t bits)
{
    return (uint16_t)((bits + 0x8000u) >> 16);
}
static inline uint32_t sw_weight_join(uint16_t high, uint16_t low)
{
    return ((uint32_t)high << 16) + (uint32_t)(int32_t)(int16_t)low;
}

/* Arrays of `count`, threaded; no two may overlap. */
void sw_weights_round(struct sw_pool *pool, const float *master, uint16_t *bf16, int64_t count);
void sw_weights_split(struct sw_pool *pool, const float *master, uint16_t *high, uint16_t *low,
                      int64_t count);
void sw_weights_join(struct sw_pool *pool, const uint16_t *high, const uint16_t *low, float *master,
                     int64_t count);

/* ---- states ---- */

enum { SW_OPTIM_STATES_MAX = 2 };

/* One state array of a parameter, as a checkpoint names it. Initially all states are zero bytes. */
struct sw_optim_state {
    const char *name; /* exp_avg, exp_avg_sq, exp_avg_sq_row, exp_avg_sq_col */
    enum sw_dtype dtype;
    int dims;
    int64_t shape[2];
    int64_t elements;
    /* Where it lies. AdamW: in array 0 (exp_avg) or 1 (exp_avg_sq) of the unit, which have
     * unit.elements each. Adafactor: array is 0; one fp32 array of
     * sw_adafactor_state_elements() a unit holds the factors of all its parameters. */
    int array;
    int64_t offset; /* elements from the start of that array */
};

/* States of a parameter: 0 for a frozen one, else AdamW 2; Adafactor 2 if factored, else 1. */
int sw_optim_state_count(const struct sw_optim_settings *settings,
                         const struct sw_optim_param *param);
/* State `state` (0 .. count-1) of parameter `param` of `unit`. */
void sw_optim_state_describe(const struct sw_optim_settings *settings,
                             const struct sw_optim_unit *unit, int64_t param, int state,
                             struct sw_optim_state *out);
/* Bytes of states per element that lie parallel to the weights: AdamW 8 or 4, Adafactor 0. */
int64_t sw_optim_parallel_state_bytes(const struct sw_optim_settings *settings);
/* fp32 elements of the unit's factors (always in host memory). */
int64_t sw_adafactor_state_elements(const struct sw_optim_unit *unit);

/* ---- gradient norm ---- */

/* Statistics are taken over blocks of SW_OPTIM_BLOCK elements of a unit, counted from its start:
 * the number of a unit's. */
int64_t sw_norm_partial_count(int64_t elements);
/* Sums of the squares of trainable elements, of the blocks of [first, first + count): partials
 * [count / SW_OPTIM_BLOCK, rounded up], in double. first: a multiple of SW_OPTIM_BLOCK; count: too,
 * or up to the unit's end. gradient points at element `first`. Not finite exactly when a trainable
 * element is not. */
void sw_norm_partials(struct sw_pool *pool, const struct sw_optim_unit *unit, const void *gradient,
                      enum sw_dtype dtype, int64_t first, int64_t count, double *partials);
/* Partials of one unit, added in order. The sum over units is taken in unit order, starting from
 * 0.0. */
double sw_norm_sum(const double *partials, int64_t count);

struct sw_gradient_norm {
    double norm;
    bool finite;
    float clip_scale; /* min(1, max_grad_norm / (norm + 1e-6)); 1 with max_grad_norm = 0 */
};
void sw_norm_finish(const struct sw_optim_settings *settings, double sum_of_squares,
                    struct sw_gradient_norm *out);

/* Round held gradients to bf16, nearest even. Take the norm afterwards, of what will be applied: a
 * finite gradient above 3.39e38 becomes infinite here. */
void sw_gradients_to_bf16(struct sw_pool *pool, const float *gradient, uint16_t *out,
                          int64_t count);

/* ---- AdamW ---- */

/* What every element's update needs (kernels/kernels.h). */
void sw_adamw_scalars(const struct sw_optim_settings *settings,
                      const struct sw_optim_update *update, struct sw_adamw_scalars *out);

/* Step the chunk. Chunks are independent: any order, any number at once. */
void sw_adamw_step(struct sw_pool *pool, const struct sw_optim_settings *settings,
                   const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                   const struct sw_optim_chunk *chunk);

/* ---- Adafactor ---- */

/* Shazeer and Stern 2018, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", with the
 * choices of transformers.optimization.Adafactor: no first moment, decay 1 - number^-0.8, clip
 * threshold 1. A step of a unit takes three passes over its gradient. */
enum sw_adafactor_phase {
    SW_ADAFACTOR_STATISTICS, /* squares of gradients; sizes of parameters (scale_parameter) */
    SW_ADAFACTOR_SIZE,       /* root mean square of the update */
    SW_ADAFACTOR_APPLY,
    SW_ADAFACTOR_PHASES,
};

/* Whether a phase reads the weights of a chunk beside its gradient (APPLY writes them too). */
bool sw_adafactor_phase_reads_weights(const struct sw_optim_settings *settings,
                                      enum sw_adafactor_phase phase);

/* A unit's step in progress: borrowed memory, no ownership. */
struct sw_adafactor {
    const struct sw_optim_settings *settings;
    const struct sw_optim_update *update;
    const struct sw_optim_unit *unit;
    float *state;  /* sw_adafactor_state_elements(unit), 64-byte aligned */
    void *scratch; /* sw_adafactor_scratch_bytes(unit), 64-byte aligned; needs no contents before
                      the first phase, and must be kept until the last */
};
int64_t sw_adafactor_scratch_bytes(const struct sw_optim_unit *unit);

/* Before the first phase. */
void sw_adafactor_begin(const struct sw_adafactor *adafactor);
/* One phase over one chunk; chunks of a phase in ascending order, without gaps. */
void sw_adafactor_visit(struct sw_pool *pool, const struct sw_adafactor *adafactor,
                        enum sw_adafactor_phase phase, const struct sw_optim_chunk *chunk);
/* After the last chunk of a phase: combines. Updates the states after STATISTICS. */
void sw_adafactor_finish(struct sw_pool *pool, const struct sw_adafactor *adafactor,
                         enum sw_adafactor_phase phase);

/* ---- either, all in memory ---- */

/* Step a whole unit; `chunk` has first = 0 and count = unit.elements. factors and scratch: as in
 * struct sw_adafactor; NULL for AdamW. */
void sw_optim_step_unit(struct sw_pool *pool, const struct sw_optim_settings *settings,
                        const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                        const struct sw_optim_chunk *chunk, float *factors, void *scratch);

/* ---- on a device ---- */

/* As sw_adamw_step() and sw_norm_partials(), for memory of the stream's device; `ops` are its back
 * end's. The same bits. Partials are in its memory too. Both return when the work is submitted. */
void sw_adamw_step_on(struct sw_stream *stream, const struct sw_device_ops *ops,
                      const struct sw_optim_settings *settings,
                      const struct sw_optim_update *update, const struct sw_optim_unit *unit,
                      const struct sw_optim_chunk *chunk);
void sw_norm_partials_on(struct sw_stream *stream, const struct sw_device_ops *ops,
                         const struct sw_optim_unit *unit, const void *gradient,
                         enum sw_dtype dtype, int64_t first, int64_t count, double *partials);

/* ---- instruction sets ---- */

/* Which code runs: the best the CPU has, unless a test chooses another (not while anything runs).
 * All give the same bits. */
enum sw_optim_isa { SW_ISA_SCALAR, SW_ISA_AVX2, SW_ISA_AVX512 };
enum sw_optim_isa sw_optim_isa(void);
/* False, and nothing changes, when the CPU lacks it. */
bool sw_optim_isa_choose(enum sw_optim_isa isa);
const char *sw_optim_isa_text(enum sw_optim_isa isa);

/* ---- benchmark ---- */

struct sw_optim_bench {
    int64_t elements;
    double adamw_bytes_per_second; /* read and written: 28 bytes an element with fp32 states */
    double triad_bytes_per_second; /* STREAM triad, a = b + s * c: 12 bytes an element */
    double ratio;                  /* of the two */
};
/* Median of interleaved repetitions over `elements` (a multiple of 64) random elements; allocates
 * 16 bytes an element meanwhile. */
sw_code sw_optim_bench(struct sw_pool *pool, int64_t elements, struct sw_optim_bench *out,
                       struct sw_err *err) SW_WARN_UNUSED;

#endif
