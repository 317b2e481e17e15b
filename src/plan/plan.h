/* The plan: what goes where, how much of it, in what micro-batches; made before anything is
 * allocated, from configuration, model shapes and the machine. If it fits, no step runs out of
 * memory. docs/PLAN.md has the formulas. */
#ifndef SPILLWAY_PLAN_PLAN_H
#define SPILLWAY_PLAN_PLAN_H

#include "base/text.h"
#include "model/block.h"
#include "model/decode.h"
#include "optim/optim.h"
#include "plan/program.h"
#include "plan/simulate.h"

enum sw_tier { SW_TIER_AUTO, SW_TIER_DEVICE, SW_TIER_HOST, SW_TIER_NVME, SW_TIERS };
enum sw_recompute { SW_RECOMPUTE_AUTO, SW_RECOMPUTE_ON, SW_RECOMPUTE_OFF };
enum sw_purpose { SW_FOR_TRAINING, SW_FOR_EVALUATION, SW_FOR_GENERATION };

/* What the plan is made from. */
struct sw_plan_request {
    const struct sw_model *model;
    const struct sw_optim_settings *optim; /* NULL unless training */
    const struct sw_kernels *kernels;      /* for workspace sizes */
    enum sw_purpose purpose;               /* training plans evaluate, too */
    enum sw_dtype compute;
    int64_t global_batch;                                         /* rows per optimizer step */
    int64_t micro_batch;                                          /* rows; 0: the planner chooses */
    int64_t source_length, target_length;                         /* bounds, tokens */
    int64_t generation_rows, generation_beams, generation_length; /* SW_FOR_GENERATION */
    enum sw_recompute recompute;
    enum sw_tier params, optimizer, grads, activations; /* offload.* */
    int64_t device_memory_bytes;                        /* cap of a rank; 0: not bounded */
    int64_t host_memory_bytes;                          /* 0: not bounded */
    int64_t total_memory_bytes; /* of both, where the device is the host; 0: not bounded */
    int64_t nvme_bytes;         /* of the spill directories; 0: none */
    int nvme_directories;
    bool device_is_remote;  /* the host's optimizer cannot work in the device's memory */
    int64_t prefetch_depth; /* units read ahead of the one in use; 0: the planner chooses */
    int64_t chunk_bytes;    /* of a state's array that moves at once; 0: the planner chooses */
    bool overlap;
    bool checksums; /* of what is on drives: they take host memory */
    struct sw_plan_rates rates;
};

/* One line of the budget. */
struct sw_plan_item {
    const char *name;
    int64_t bytes[SW_TIERS]; /* per tier; [SW_TIER_AUTO] unused */
};
enum { SW_PLAN_ITEMS = 24, SW_PLAN_BOUNCE_BYTES = 1 << 20 /* for loading and saving */ };
enum { SW_PLAN_PROGRAM_BYTES = 16 << 20 /* the program, its threads and tables */ };

/* The arrays of a unit, all of unit.elements; which of them there are depends on the settings. */
enum sw_part {
    SW_PART_WEIGHTS,    /* what blocks read, when no other part is just that */
    SW_PART_MASTER,     /* fp32 */
    SW_PART_HIGH,       /* or split: bf16 weights */
    SW_PART_LOW,        /* and 16 low bits */
    SW_PART_EXP_AVG,    /* AdamW's moments */
    SW_PART_EXP_AVG_SQ, /* (Adafactor's factors are small and always in host memory) */
    SW_PART_GRADIENT,   /* as held */
    SW_PARTS
};

struct sw_unit_homes {
    enum sw_tier weights, states, gradient;
};

/* Weights that are not at home on the device, and gradients that do not stay there, share slots: a
 * pool for the units of blocks, one for the vocabulary's tables. The common unit is always at home
 * on the device. */
enum sw_pool_kind { SW_POOL_BLOCKS, SW_POOL_TABLES, SW_POOL_KINDS };
struct sw_slot_pool {
    int64_t slots, elements; /* of the largest unit */
};

/* Read only outside src/plan. */
struct sw_plan {
    struct sw_plan_request request;
    struct sw_bounds bounds;
    int64_t microbatches; /* at most, of a step */
    bool recompute;
    enum sw_tier params, optimizer, grads, activations; /* farthest home in use */
    struct sw_unit_homes *homes;                        /* owned [unit_count] */
    struct sw_block_sizes *sizes;                       /* owned [block_count] */
    struct sw_optim_param *optim_params;                /* owned [param_count], by unit */
    struct sw_optim_unit *optim_units;                  /* owned [unit_count] */
    struct sw_slot_pool weight_pools[SW_POOL_KINDS], gradient_pools[SW_POOL_KINDS];

    int64_t activation_slots; /* at home on the device: kept block outputs per micro-batch. Else
                                 slots in all, which objects share */
    int64_t context_slots;
    int64_t context_bytes, activation_bytes, workspace_bytes; /* of one */
    int64_t batch_bytes;                                      /* ids and rows of a micro-batch */
    int64_t reach;                                            /* of the relative bias tables */

    /* Pieces in which units move (elements), and the buffers they pass through. */
    int64_t state_chunk, gradient_chunk, weight_chunk;
    int64_t state_buffers, fetch_buffers, spill_buffers;
    int64_t state_buffer_bytes, fetch_buffer_bytes, spill_buffer_bytes; /* of one */
    int64_t state_buffer_offset[SW_PARTS];                              /* -1: not in it */

    struct sw_plan_item items[SW_PLAN_ITEMS];
    int item_count;
    int64_t total_bytes[SW_TIERS];
    double step_flops; /* of all micro-batches at their bounds, recomputation included */
    struct sw_simulation predicted;
    bool has_prediction;
    /* SW_FOR_TRAINING: step, drain, evaluation. SW_FOR_EVALUATION: evaluation. SW_FOR_GENERATION:
     * begin, decode. */
    struct sw_program *step, *drain, *evaluation, *begin, *decode;
};

/* SW_E_FIT, with the numbers and the smallest change that fits; SW_E_USAGE for clashing settings.
 */
sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_plan_free(struct sw_plan *plan);

/* Memory of the process when a run starts: what the plan has in host memory, and where that is the
 * device, there; and the program with its threads and tables. Rows come on top. */
int64_t sw_plan_process_bytes(const struct sw_plan *plan);

const char *sw_tier_name(enum sw_tier tier);
/* Predict anew, by other rates; of those that are not known, by nominal ones. What goes where stays
 * as it is. */
sw_code sw_plan_price(struct sw_plan *plan, const struct sw_plan_rates *rates,
                      struct sw_err *err) SW_WARN_UNUSED;
/* Tables for a person; one JSON object. */
void sw_plan_print(const struct sw_plan *plan, struct sw_text *out);
void sw_plan_print_json(const struct sw_plan *plan, struct sw_text *out);

/* The step (or, without training, what there is) on a virtual clock, by the request's rates; those
 * that are not known are a plain desktop's. `overlap` false: one op after the other. */
sw_code sw_plan_simulate(const struct sw_plan *plan, bool overlap, struct sw_simulation *out,
                         struct sw_err *err) SW_WARN_UNUSED;
/* Bytes that a program of the plan moves, by lane, at the bounds: docs/PLAN.md. */
void sw_plan_lane_bytes(const struct sw_plan *plan, const struct sw_program *program,
                        int64_t out[SW_LANES]);

/* The optimizer's view of a parameter. */
struct sw_optim_param sw_plan_optim_param(const struct sw_param *param);

/* ---- for the engine: parts.c ---- */

/* Where a part of a unit is at home; SW_TIER_AUTO: there is no such part. */
enum sw_tier sw_plan_part_tier(const struct sw_plan *plan, int64_t unit, enum sw_part part);
enum sw_dtype sw_plan_part_dtype(const struct sw_plan *plan, enum sw_part part);
/* The part that blocks' weights are read from: SW_PART_WEIGHTS, or the master or its high half
 * where that is the same and has the same home. */
enum sw_part sw_plan_weights_part(const struct sw_plan *plan, int64_t unit);
/* The pool of a unit's slots. */
enum sw_pool_kind sw_plan_pool(const struct sw_plan *plan, int64_t unit);
/* Whether a unit's gradient accumulates where it is held. */
bool sw_plan_gradient_stays(const struct sw_plan *plan, int64_t unit);

/* How a unit is stepped. Bits of parts: 1 << enum sw_part. */
struct sw_unit_flow {
    bool chunked;        /* through the rotating buffers, in pieces of plan->state_chunk */
    uint32_t read_parts; /* drives → buffer, before each phase that needs them */
    uint32_t write_parts;
    bool gradient_down; /* device → buffer, likewise */
    bool weights_up;    /* buffer → device, after the step */
    bool weights_whole; /* not chunked: host array → device, after the step */
};
void sw_plan_unit_flow(const struct sw_plan *plan, int64_t unit, struct sw_unit_flow *out);
/* Does phase `phase` of the optimizer read the parts of the master? */
bool sw_plan_phase_reads_master(const struct sw_plan *plan, int phase);
int sw_plan_phases(const struct sw_plan *plan);

/* Where block `block` keeps its output, of activation_slots: when those are at home on the device.
 */
int64_t sw_plan_activation_slot(const struct sw_plan *plan, int64_t block);
/* Number of a kept output, where they are not: of block_count * microbatches. */
int64_t sw_plan_activation_index(const struct sw_plan *plan, int64_t block, int64_t microbatch);
/* Where block `block` keeps its context for micro-batch `microbatch`, of context_slots. */
int64_t sw_plan_context_slot(const struct sw_plan *plan, int64_t block, int64_t microbatch);
/* Index of the block that makes the encoder output. */
int64_t sw_plan_encoder_end(const struct sw_model *model);

#endif
