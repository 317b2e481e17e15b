/* Inside the program builder: what programs.c (the order of things), moves.c (bytes between tiers
 * and ranks) and window.c (the optimizer's) share. */
#ifndef SPILLWAY_PLAN_BUILD_H
#define SPILLWAY_PLAN_BUILD_H

#include "plan/agenda.h"
#include "plan/plan.h"
#include "plan/residency.h"

/* Resource numbers of a rank: the first of each sort. */
struct sw_build_rank {
    int64_t batch;            /* [microbatches] */
    int64_t activation;       /* slots, of the source side and of the target side; or shared */
    int64_t activation_home;  /* [block_count * microbatches] off the device */
    int64_t context;          /* slots by class */
    int64_t gradient;         /* [microbatches] of a micro-batch's activations */
    int64_t encoder_gradient; /* likewise */
    int64_t weight_slot[SW_POOL_KINDS];
    int64_t accumulator; /* [unit_count] unit gradients that accumulate in a place of their own */
    int64_t gradient_slot[SW_POOL_KINDS]; /* or here */
    int64_t stepping;                     /* [stepping buffers] */
    int64_t mailbox;
    int64_t bias, loss, decode;
};

/* Those of the machine, or of all replicas together. */
struct sw_build_resources {
    int64_t weights; /* [unit_count] at home */
    int64_t held;    /* [unit_count] held gradients, where not accumulators */
    int64_t states;  /* chunks of units: sw_build.first_chunk */
    int64_t state_buffer, fetch_buffer, spill_buffer;
    int64_t norm, count;
};

struct sw_build {
    const struct sw_plan *plan;
    const struct sw_model *model;
    const struct sw_agenda *agenda; /* NULL: a drain */
    struct sw_build_resources r;
    struct sw_build_rank *ranks; /* [ranks] */
    struct sw_program_builder *program;
    int64_t *first_chunk;          /* [unit_count] of its states */
    struct sw_residency **weights; /* [stages][SW_POOL_KINDS]; objects: units */
    struct sw_residency **kept;    /* [stages]; objects: activation indices. NULL: at home */
    bool *written_back;            /* [stages][activation index] lose their slot, come back */
    struct sw_slots *slots;        /* fixed places */
    bool trains;                   /* this program makes gradients */
    bool windowed;                 /* held gradients are applied in this program */
    bool *stepped;                 /* [unit_count] in this program's window */
    int32_t *order;                /* [unit_count] units as the window takes them */
    int64_t order_count, order_next;
    int32_t *gradient_slot;                   /* [unit_count] that it accumulates in now; -1 */
    int64_t *gradient_begins, *gradient_ends; /* [unit_count] agenda indices; -1: never */
    int64_t *next_gradient_slot;              /* [stages][SW_POOL_KINDS] */
    int64_t *next_mailbox;                    /* [ranks] */
    int64_t *next_stepping;                   /* [ranks] */
    int64_t next_state_buffer, next_fetch_buffer, next_spill_buffer;
    bool failed; /* no memory */
};

static inline bool sw_build_trains(const struct sw_build *b, int64_t unit)
{
    return b->plan->request.purpose == SW_FOR_TRAINING && b->model->units[unit].trainable;
}
static inline bool sw_build_early(const struct sw_build *b)
{
    return b->plan->request.optim != NULL && b->plan->request.optim->early_step;
}
/* The rank of a unit's stage in a replica. */
static inline int32_t sw_build_rank_of(const struct sw_build *b, int64_t unit, int32_t replica)
{
    return sw_plan_rank(b->plan, b->plan->unit_stage[unit], replica);
}

/* programs.c */
/* The resource in which a unit's gradient accumulates on a rank. */
int64_t sw_build_accumulator(const struct sw_build *b, int64_t unit, int32_t rank);
int64_t sw_build_chunks(const struct sw_build *b, int64_t unit);

/* moves.c */
void sw_build_fetch_weights(struct sw_build *b, int32_t unit, int32_t slot);
void sw_build_fetch_activation(struct sw_build *b, int32_t stage, int32_t index, int32_t slot);
void sw_build_write_back(struct sw_build *b, int32_t stage, int32_t index, int32_t slot);
/* Of an agenda's SEND; the slots are of the activation on both sides. */
void sw_build_send(struct sw_build *b, const struct sw_agenda_op *item, int32_t from_slot,
                   int32_t to_slot);
/* Partials of the bias tables come together on stage 0. */
void sw_build_send_bias(struct sw_build *b);
/* After a step on devices or uploads: all replicas' (and stages') copies of a unit's weights. */
void sw_build_share_weights(struct sw_build *b, int64_t unit);
/* The op that adds a micro-batch's gradient to the sums that replicas have; `first`: it begins
 * them.
 */
void sw_build_sum_gradient(struct sw_build *b, int64_t unit, bool first);
/* Ops that reduce and hold a unit's complete gradient and take its norm partials; or step it at
 * once. */
void sw_build_complete_gradient(struct sw_build *b, int64_t unit);

/* The programs of a plan, and its step alone: for sw_plan_make(). */
sw_code sw_plan_build_programs(struct sw_plan *plan, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_plan_build_step(struct sw_plan *plan, struct sw_err *err) SW_WARN_UNUSED;

/* window.c */
/* Steps of units in the window's order, up to `unit`; of all for unit < 0. */
void sw_build_window_until(struct sw_build *b, int64_t unit);
void sw_build_step_unit(struct sw_build *b, int64_t unit);

#endif
