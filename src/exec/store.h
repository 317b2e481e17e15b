/* The store of unit state: every array of every unit in its home, and the device slots through
 * which weights that are not at home on the device pass. It moves bytes and obeys; what to move
 * when is the program's business. Invariants, asserted:
 *   S1  who gets a unit's weights from a slot finds that unit there,
 *   S2  whole,
 *   S3  and as its last step left it;
 *   S4  pieces of a unit arrive in a slot in order and without gaps. */
#ifndef SPILLWAY_EXEC_STORE_H
#define SPILLWAY_EXEC_STORE_H

#include "io/spill.h"
#include "kernels/device.h"
#include "plan/plan.h"

/* Where an array lives. */
struct sw_place {
    enum sw_tier tier; /* SW_TIER_AUTO: there is no such array */
    enum sw_dtype dtype;
    int64_t bytes;
    char *memory; /* device or host */
    struct sw_spill_region region;
};

/* A slot of a pool. */
struct sw_slot {
    void *memory;
    int32_t unit;    /* -1: none */
    int64_t arrived; /* elements */
    int64_t version; /* the unit's when its first piece left home */
};

struct sw_unit_state {
    struct sw_place parts[SW_PARTS]; /* memory of those on devices: of the ranks */
    enum sw_part weights_part;
    struct sw_unit_flow flow;
    float **factors; /* owned [factor sets] Adafactor; NULL else */
    int64_t version; /* steps begun */
};

/* What a rank has of a unit in its device's memory; NULL: nothing. */
struct sw_rank_unit {
    char *parts[SW_PARTS]; /* from the first element that it has: sw_plan_part_range() */
    float *accumulator;    /* its gradient's own place, or that of the rank's range of the sum
                              (sw_plan_gradient_sums()); NULL: in slots, or frozen */
};

struct sw_rank_store {
    struct sw_device *device;      /* borrowed, like the stream */
    struct sw_stream *load_stream; /* for writing and reading from outside programs */
    int32_t stage, replica;
    struct sw_rank_unit *units;   /* owned [unit_count] */
    struct sw_place *activations; /* owned [block_count * microbatches]; NULL: on the device */
    struct sw_slot *weight_slots[SW_POOL_KINDS];
    void **gradient_slots[SW_POOL_KINDS];
    void *convert_buffer;   /* device: a piece of a gradient in bf16 */
    char *stepping_buffers; /* device slab; NULL: none */
};

struct sw_store {
    const struct sw_plan *plan;
    const struct sw_device_ops *ops;
    struct sw_pool *pool;
    void (*near)(void *context, int32_t rank); /* struct sw_engine_config */
    void *near_context;
    struct sw_rank_store *ranks; /* owned [plan->ranks]; devices and streams are set before open */
    struct sw_unit_state *units; /* owned [unit_count] */
    char *state_buffers, *fetch_buffers, *spill_buffers; /* slabs; the plan has counts and sizes */
    char *bounce;                                        /* SW_PLAN_BOUNCE_BYTES */
    void *factor_scratch;                                /* Adafactor */
    struct sw_spill *spill;
    struct sw_host_block {
        void *memory;
        int64_t bytes;
    } * host_blocks; /* owned: what to free */
    int64_t host_block_count, host_block_capacity;
};

/* Allocate everything, from what the plan says; all memory is touched. `spill`: directories and
 * settings (the capacity is the plan's); NULL: none. */
sw_code sw_store_open(struct sw_store *store, const struct sw_spill_config *spill,
                      struct sw_err *err) SW_WARN_UNUSED;
void sw_store_close(struct sw_store *store);

/* Device and host memory that is freed with the store, touched. */
sw_code sw_store_alloc_device(struct sw_store *store, int32_t rank, int64_t bytes, void *out,
                              struct sw_err *err) SW_WARN_UNUSED;
/* What is allocated from now on is `rank`'s to copy from and to. */
void sw_store_near(const struct sw_store *store, int32_t rank);
sw_code sw_store_alloc_host(struct sw_store *store, int64_t bytes, void *out,
                            struct sw_err *err) SW_WARN_UNUSED;

/* Elements [first, first + count) of an array, from or to host memory; for loading and saving, not
 * while a program runs. */
sw_code sw_store_put(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                     int64_t count, const void *values, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_store_get(struct sw_store *store, int64_t unit, enum sw_part part, int64_t first,
                     int64_t count, void *values, struct sw_err *err) SW_WARN_UNUSED;
/* Master weights as fp32; putting also makes the compute weights. */
sw_code sw_store_put_master(struct sw_store *store, int64_t unit, int64_t first, int64_t count,
                            const float *values, struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_store_get_master(struct sw_store *store, int64_t unit, int64_t first, int64_t count,
                            float *values, struct sw_err *err) SW_WARN_UNUSED;

/* Element `first` of a part at home on the device of `rank`, or in host memory. */
char *sw_store_part(const struct sw_store *store, int32_t rank, int64_t unit, enum sw_part part,
                    int64_t first);
/* The weights that an op's block computes with: at home, or in slot `slot`. */
const void *sw_store_weights(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot);
/* A rank's own copy of the weights that are used all over. */
char *sw_store_common_weights(const struct sw_store *store, int32_t rank);
/* Where blocks add to a unit's gradient: its own place, or slot `slot`. */
float *sw_store_gradient(const struct sw_store *store, int32_t rank, int64_t unit, int32_t slot);
/* Element `first` of the complete gradient: there, or in the rank's range of the sum. */
float *sw_store_complete_gradient(const struct sw_store *store, int32_t rank, int64_t unit,
                                  int32_t slot, int64_t first);
/* A piece of weights arrives in a slot; returns where it goes. */
char *sw_store_arrive(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot,
                      int64_t first, int64_t count);
/* A part of stepping buffer `buffer` of a rank's device. */
char *sw_store_stepping_buffer(const struct sw_store *store, int32_t rank, int32_t buffer,
                               enum sw_part part);
/* All of a unit's weights will be in a slot: where; of what is uploaded in ranges, the rank's has
 * arrived. */
char *sw_store_gather(struct sw_store *store, int32_t rank, int64_t unit, int32_t slot);
/* A part of rotating buffer `buffer`. */
char *sw_store_state_buffer(const struct sw_store *store, int32_t buffer, enum sw_part part);

#endif
