/* What computes and what passes between stages, in one order for all stages: the agenda of a
 * program. It depends on shapes, grid, schedule and recomputation, not on where anything is kept.
 * Replicas of a stage do the same. docs/PLAN.md describes the schedules. */
#ifndef SPILLWAY_PLAN_AGENDA_H
#define SPILLWAY_PLAN_AGENDA_H

#include "plan/plan.h"

struct sw_agenda_op {
    enum sw_op_kind kind;
    int32_t stage;
    int32_t to;                /* SEND: stage; else -1 */
    int32_t block, microbatch; /* SEND of an activation: the block that made it. -1: none */
    enum sw_cargo cargo;       /* SEND */
    uint8_t sides;             /* SEND of activation gradients */
    int64_t start, end;        /* on the schedule's clock: a place is free again when the op that
                                  used it last has ended */
};

struct sw_agenda {
    struct sw_agenda_op *ops; /* owned */
    int64_t count, capacity;
};

/* Stages of blocks and units for plan->schedule; SW_E_USAGE when there are more stages than
 * blocks. */
sw_code sw_plan_assign_stages(struct sw_plan *plan, struct sw_err *err) SW_WARN_UNUSED;

/* Make plan->*_agenda for the plan's purpose, schedule and micro-batches. */
sw_code sw_plan_make_agendas(struct sw_plan *plan, struct sw_err *err) SW_WARN_UNUSED;
void sw_plan_free_agendas(struct sw_plan *plan);

/* A kept output that an op reads or makes, on a stage. */
struct sw_agenda_access {
    int32_t stage, block;
    bool makes;
};
enum { SW_AGENDA_ACCESSES = 3 };
int sw_agenda_accesses(const struct sw_plan *plan, const struct sw_agenda_op *op,
                       struct sw_agenda_access out[SW_AGENDA_ACCESSES]);

/* Fixed places for kept outputs and blocks' insides, handed out along an agenda: taken when a thing
 * is made, free again after its last use. */
struct sw_slots;
/* activations, contexts: which of the two are wanted. NULL: no memory. */
struct sw_slots *sw_slots_open(const struct sw_plan *plan, const struct sw_agenda *agenda,
                               bool activations, bool contexts);
void sw_slots_close(struct sw_slots *slots);
/* Before and after agenda op `index`, in order. */
void sw_slots_before(struct sw_slots *slots, int64_t index);
void sw_slots_after(struct sw_slots *slots, int64_t index);
int32_t sw_slots_activation(const struct sw_slots *slots, int32_t stage, int32_t block,
                            int32_t microbatch);
int32_t sw_slots_context(const struct sw_slots *slots, int32_t stage, int32_t block,
                         int32_t microbatch);
/* Most places of a class in use at once on a stage, so far. */
int64_t sw_slots_most(const struct sw_slots *slots, int32_t stage, int slot_class);
/* The class of a block's output. */
int sw_slots_class(const struct sw_plan *plan, int32_t block);

#endif
