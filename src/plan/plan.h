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
enum sw_schedule { SW_SCHEDULE_AUTO, SW_SCHEDULE_LAYERED, SW_SCHEDULE_1F1B, SW_SCHEDULE_GPIPE };
/* Where what is not at home on the device is stepped (optimizer.where). */
enum sw_step_where { SW_STEP_AUTO, SW_STEP_HOST, SW_STEP_DEVICE, SW_STEP_STREAM };
/* How replicas get weights that are not at home on the device: each all of them over its link; or
 * each its range, which are then gathered. */
enum sw_uploads { SW_UPLOADS_AUTO, SW_UPLOADS_WHOLE, SW_UPLOADS_RANGES };
enum sw_purpose { SW_FOR_TRAINING, SW_FOR_EVALUATION, SW_FOR_GENERATION };

/* Of memory that is available this much is planned with; the rest is left to libraries, data and
 * the page cache. */
enum { SW_PLAN_SHARE_PERCENT = 90 };

/* What the plan is made from. */
struct sw_plan_request {
    const struct sw_model *model;
    const struct sw_optim_settings *optim; /* NULL unless training */
    const struct sw_kernels *kernels;      /* for workspace sizes */
    enum sw_purpose purpose;               /* training plans evaluate, too */
    enum sw_dtype compute;
    float dropout;                                                /* in training */
    int64_t global_batch;                                         /* rows per optimizer step */
    int64_t micro_batch;                                          /* rows; 0: the planner chooses */
    int64_t source_length, target_length;                         /* bounds, tokens */
    int64_t generation_rows, generation_beams, generation_length; /* SW_FOR_GENERATION */
    enum sw_recompute recompute;
    enum sw_tier params, optimizer, grads, activations; /* offload.* */
    int64_t device_memory_bytes;                        /* cap of a rank; 0: not bounded */
    int64_t host_memory_bytes;                          /* 0: not bounded */
    int64_t total_memory_bytes; /* of both, where the device is the host; 0: not bounded */
    int64_t device_extra_bytes; /* of a rank's cap that device_memory_bytes does not count, for
                                   messages */
    int64_t nvme_bytes;         /* of the spill directories; 0: none */
    int nvme_directories;
    bool device_is_remote;    /* the host cannot work in the device's memory: what is at home there
                                 is stepped there, which Adafactor cannot be */
    enum sw_step_where where; /* host: no state is at home on a remote device, either */
    int64_t prefetch_depth;   /* units read ahead of the one in use; 0: the planner chooses */
    int64_t chunk_bytes;      /* of a state's array that moves at once; 0: the planner chooses */
    /* The grid: rank = replica * pipeline + stage. 0 counts as 1. */
    int32_t pipeline, data;
    int zero; /* stage of ZeRO over the replicas, 0 .. 3 */
    enum sw_schedule schedule;
    enum sw_uploads uploads; /* auto but in tests */
    const int32_t *devices;  /* borrowed [pipeline * data]: physical device of each rank; NULL: all
                                of them share one */
    bool mailbox; /* devices cannot copy to each other: activations go through host memory */
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
    bool streamed; /* states, off the device, pass through it to be stepped */
};

/* Weights that are not at home on the device, and gradients that do not stay there, share slots: a
 * pool for the units of blocks, one for the vocabulary's tables. The common unit is always at home
 * on the device. */
enum sw_pool_kind { SW_POOL_BLOCKS, SW_POOL_TABLES, SW_POOL_KINDS };
struct sw_slot_pool {
    int64_t slots, elements; /* of the largest unit */
};

/* Fixed places of one size each: activations of the source and of the target side, and the insides
 * of blocks by kind. */
enum {
    SW_SLOTS_SOURCE,
    SW_SLOTS_TARGET,
    SW_SLOTS_CONTEXT, /* + enum sw_block_kind */
    SW_SLOT_CLASSES = SW_SLOTS_CONTEXT + SW_BLOCK_HEAD + 1
};

/* What every rank of a stage has. Its replicas are alike. */
struct sw_stage_plan {
    struct sw_slot_pool weight_pools[SW_POOL_KINDS], gradient_pools[SW_POOL_KINDS];
    int64_t slots[SW_SLOT_CLASSES];    /* most that are in use at once */
    int64_t item_bytes[SW_PLAN_ITEMS]; /* device memory of one rank */
    int64_t device_bytes;              /* sum of them */
    int64_t layers;                    /* encoder and decoder blocks */
    int64_t stepping_buffers;          /* that states pass through to be stepped */
    bool *keeps;                       /* owned [block_count]: holds outputs of this block */
};

struct sw_agenda;

/* Read only outside src/plan. */
struct sw_plan {
    struct sw_plan_request request;
    struct sw_bounds bounds;
    int64_t microbatches; /* at most, of a step and replica */
    int32_t stages, replicas, ranks;
    enum sw_schedule schedule;
    int32_t *block_stage;        /* owned [block_count] */
    int32_t *unit_stage;         /* owned [unit_count]; of the common unit, which all have: 0 */
    struct sw_stage_plan *stage; /* owned [stages] */
    bool recompute;
    bool uploads_ranges;
    enum sw_tier params, optimizer, grads, activations; /* farthest home in use */
    struct sw_unit_homes *homes;                        /* owned [unit_count] */
    struct sw_block_sizes *sizes;                       /* owned [block_count] */
    struct sw_optim_param *optim_params;                /* owned [param_count], by unit */
    struct sw_optim_unit *optim_units;                  /* owned [unit_count] */

    int64_t activation_slots; /* where kept outputs are not at home on the device: slots that they
                                 share */
    int64_t class_bytes[SW_SLOT_CLASSES];                     /* of one */
    int64_t context_bytes, activation_bytes, workspace_bytes; /* the largest */
    int64_t mailboxes, mailbox_bytes;                         /* of each rank, in host memory */
    int64_t ends_workspace_bytes; /* of stage 0, for the lane of the model's ends; 0: none */
    int64_t batch_bytes;          /* ids and rows of a micro-batch */
    int64_t reach;                /* of the relative bias tables */

    /* Pieces in which units move (elements), and the buffers they pass through. */
    int64_t state_chunk, gradient_chunk, weight_chunk;
    int64_t state_buffers, fetch_buffers, spill_buffers;
    int64_t state_buffer_bytes, fetch_buffer_bytes, spill_buffer_bytes; /* of one */
    int64_t state_buffer_offset[SW_PARTS];                              /* -1: not in it */
    int64_t stepping_bytes, stepping_offset[SW_PARTS]; /* the same of a stepping buffer */

    struct sw_plan_item items[SW_PLAN_ITEMS];
    int item_count;
    int64_t total_bytes[SW_TIERS]; /* [device]: of the fullest rank */
    int64_t devices_bytes;         /* of all ranks' devices together */
    int32_t fullest_stage;
    double step_flops; /* of all micro-batches at their bounds, recomputation included */
    struct sw_simulation predicted;
    bool has_prediction;
    double schedule_seconds[SW_SCHEDULE_GPIPE + 1]; /* as predicted; 0: not looked at, or no fit */
    bool chosen_by_rates; /* several candidates fitted, and differed in how long they take */
    /* SW_FOR_TRAINING: step, drain, evaluation. SW_FOR_EVALUATION: evaluation. SW_FOR_GENERATION:
     * begin, decode. */
    struct sw_program *step, *drain, *evaluation, *begin, *decode;
    /* What computes, in the order of the programs; NULL where there is no such program. Owned. */
    struct sw_agenda *step_agenda, *evaluation_agenda, *begin_agenda, *decode_agenda;
};

/* SW_E_FIT, with the numbers and the smallest change that fits; SW_E_USAGE for clashing settings.
 */
sw_code sw_plan_make(struct sw_plan **out, const struct sw_plan_request *request,
                     struct sw_err *err) SW_WARN_UNUSED;
void sw_plan_free(struct sw_plan *plan);

/* Memory of the process when a run starts: what the plan has in host memory, and where that is the
 * device, on all ranks; and the program with its threads and tables. Rows come on top. */
int64_t sw_plan_process_bytes(const struct sw_plan *plan);

const char *sw_tier_name(enum sw_tier tier);
/* Predict anew, by other rates; of those that are not known, by nominal ones. What goes where stays
 * as it is. */
sw_code sw_plan_price(struct sw_plan *plan, const struct sw_plan_rates *rates,
                      struct sw_err *err) SW_WARN_UNUSED;
/* And what the other schedules that were looked at would take, by the rates that the plan has now;
 * `request` is what it was made from. */
sw_code sw_plan_price_schedules(struct sw_plan *plan, const struct sw_plan_request *request,
                                struct sw_err *err) SW_WARN_UNUSED;
/* The rates that a prediction goes by, nominal ones marked: "products 80 GFLOP/s, ...". */
void sw_plan_print_rates(const struct sw_plan *plan, struct sw_text *out);
/* Tables for a person; one JSON object. */
void sw_plan_print(const struct sw_plan *plan, struct sw_text *out);
void sw_plan_print_json(const struct sw_plan *plan, struct sw_text *out);

/* sw_simulation's drives_mixing by the rates of reads, of writes and of both; 0 where they are not
 * known. */
double sw_plan_drives_mixing(const struct sw_plan_rates *rates);
/* The step (or, without training, what there is) on a virtual clock, by the request's rates; those
 * that are not known are a plain desktop's. `overlap` false: one op after the other. */
sw_code sw_plan_simulate(const struct sw_plan *plan, bool overlap, struct sw_simulation *out,
                         struct sw_err *err) SW_WARN_UNUSED;
/* Bytes that a program of the plan moves, by lane, at the bounds: docs/PLAN.md. */
void sw_plan_lane_bytes(const struct sw_plan *plan, const struct sw_program *program,
                        int64_t out[SW_LANES]);
/* The same, by queue: out[program->queue_count]. What a group of replicas moves is in the queue of
 * its first member: bytes that each of them receives. */
void sw_plan_queue_bytes(const struct sw_plan *plan, const struct sw_program *program,
                         int64_t *out);

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
/* Whether an array at home on the device is cut into ranges over the replicas: by the stage of
 * ZeRO; never the common unit's. */
bool sw_plan_is_sharded(const struct sw_plan *plan, int64_t unit, enum sw_part part);
/* Elements of a unit that belong to `replica`: whole blocks of the optimizers' sums. */
struct sw_range {
    int64_t first, count;
};
struct sw_range sw_plan_range(const struct sw_plan *plan, int64_t unit, int32_t replica);
/* The elements that `replica` has of an array: its range, or all. */
struct sw_range sw_plan_part_range(const struct sw_plan *plan, int64_t unit, enum sw_part part,
                                   int32_t replica);
/* Whether a rank of `stage` computes with a unit. */
bool sw_plan_stage_has(const struct sw_plan *plan, int32_t stage, int64_t unit);
/* Whether blocks read a unit's weights from a slot, not from where they are at home. */
bool sw_plan_is_slotted(const struct sw_plan *plan, int64_t unit);
/* Whether a unit is stepped on every replica alike, where all of it is. */
bool sw_plan_steps_everywhere(const struct sw_plan *plan, int64_t unit);
/* Elements that every rank has room for: of the largest range where ranges differ. */
int64_t sw_plan_part_elements(const struct sw_plan *plan, int64_t unit, enum sw_part part);
/* The same of sums of gradients: see sw_plan_gradient_sums(). */
int64_t sw_plan_sum_elements(const struct sw_plan *plan, int64_t unit);
/* Sets of Adafactor's factors that a unit has. */
int64_t sw_plan_factor_sets(const struct sw_plan *plan, int64_t unit);
/* Buffers for the gradients of expanded bias tables that a rank of `stage` has. */
int64_t sw_plan_bias_gradients(const struct sw_plan *plan, int32_t stage);
static inline int32_t sw_plan_rank(const struct sw_plan *plan, int32_t stage, int32_t replica)
{
    return replica * plan->stages + stage;
}
/* Whether each replica uploads its range of a unit's weights, and gathers the others'. */
bool sw_plan_uploads_ranges(const struct sw_plan *plan, int64_t unit);
/* Whether a unit's gradient is summed up where it is held. */
bool sw_plan_gradient_stays(const struct sw_plan *plan, int64_t unit);
/* Whether a block's gradient is reduced after every micro-batch, each replica's range added to what
 * it has: with ZeRO 2 and 3 under schedules in which all blocks' gradients grow at the same time.
 */
bool sw_plan_gradient_sums(const struct sw_plan *plan, int64_t unit);
/* Whether blocks add to a unit's gradient in a slot. */
bool sw_plan_gradient_slotted(const struct sw_plan *plan, int64_t unit);

/* Whether a unit whose states are on the device can be stepped: by the host, or there. */
bool sw_plan_may_step_on_device(const struct sw_plan_request *request);
/* Bytes in which a remote device takes norm partials of a unit; 0: it takes none. */
int64_t sw_plan_partials_bytes(const struct sw_plan *plan);

/* How a unit is stepped. Bits of parts: 1 << enum sw_part. */
struct sw_unit_flow {
    bool streamed;       /* through the stepping buffers of a device: pieces of plan->state_chunk */
    uint32_t up_parts;   /* host (rotating buffer where they are on drives) → stepping buffer */
    uint32_t down_parts; /* and back */
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

const char *sw_schedule_name(enum sw_schedule schedule);
/* Number of a kept output: of block_count * microbatches. */
int64_t sw_plan_activation_index(const struct sw_plan *plan, int64_t block, int64_t microbatch);
/* Index of the block that makes the encoder output. */
int64_t sw_plan_encoder_end(const struct sw_model *model);

#endif
