/* The insides of io/spill.h, shared by io/spill*.c. */
#ifndef SPILLWAY_IO_SPILL_INTERNAL_H
#define SPILLWAY_IO_SPILL_INTERNAL_H

#include "io/spill.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/types.h>

enum { SW_SPILL_MAX_PINS = 256, SW_SPILL_MAX_NOTES = 32 };

/* One directory: its file, and the file system under it. */
struct sw_spill_place {
    char *path;      /* owned, as are the strings below */
    char *file_name; /* for messages */
    char *cpus;      /* or NULL */
    double weight;
    int descriptor; /* of a file without a name; -1 */
    dev_t file_system;
    int64_t free_bytes; /* of the file system when it was opened */
    int64_t used_bytes; /* of the file, by chunks */
};

/* Where a chunk lies. */
struct sw_spill_chunk {
    int64_t file_offset_bytes;
    int place;
};

enum sw_spill_op_kind {
    SW_SPILL_DIRECT,      /* whole blocks between the caller's memory and the file */
    SW_SPILL_STAGED_READ, /* a block into a staging buffer, then a part of it to the caller */
    SW_SPILL_MERGE_READ,  /* a block into a staging buffer, to be changed in part and written */
    SW_SPILL_STAGED_WRITE,
};

/* A transfer in flight. */
struct sw_spill_op {
    struct sw_aio_request request; /* of the block or blocks */
    enum sw_spill_op_kind kind;
    struct sw_spill_part *part;
    int64_t region_offset_bytes; /* of the first block */
    int64_t block_index;         /* its checksum; that of the block, when staged */
    int64_t skip_bytes;          /* staged: the caller's part of the block begins here */
    int64_t bytes;               /* and has this many */
    char *memory;                /* the caller's */
    int staging;                 /* its buffer, or -1 */
    struct sw_spill_op *next_free;
};

/* A directory's thread and queue. */
struct sw_spill_ring {
    struct sw_spill *spill;
    int index; /* of the place */
    pthread_t thread;
    bool thread_started;
    struct sw_aio *aio; /* the thread's */
    struct sw_spill_op *ops;
    struct sw_spill_op *free_ops;
    char *staging; /* staging_count blocks, aligned; zeros until the file is prepared */
    int staging_count;
    struct sw_spill_op **staged; /* which op holds each staging buffer */

    /* Under the store's lock. */
    int64_t flying; /* operations of tickets */
    struct sw_spill_line {
        struct sw_spill_part *first, *last;
    } lines[SW_SPILL_LINES]; /* of parts that have pieces to start */
    int turn;                /* the line whose piece is next */
    bool wake_sent;          /* since the thread last looked at the queue */
    bool ready, stop, broken;
    struct sw_err err; /* why it is broken */
};

struct sw_spill {
    struct sw_spill_place places[SW_SPILL_MAX_DIRECTORIES];
    struct sw_spill_ring rings[SW_SPILL_MAX_DIRECTORIES];
    int place_count;
    int64_t capacity_bytes, reserved_bytes;
    int64_t block_bytes, chunk_bytes, request_bytes;
    int queue_depth;
    const struct sw_aio_method *method;
    bool verify, buffered, sealed;

    struct sw_spill_chunk *chunks;
    int64_t chunk_count, chunk_capacity;
    uint64_t *sums; /* a block each; 0: never written, the block is zero */
    int64_t block_count;
    struct sw_aio_buffer pins[SW_SPILL_MAX_PINS];
    int pin_count;

    pthread_mutex_t lock;
    pthread_cond_t done; /* a ticket is done, or a ring got on with its start */
    atomic_llong read_bytes, written_bytes, prepared_bytes;

    struct sw_aio_fault *fault;
    sw_aio_note_fn note;
    void *note_context;
    pthread_mutex_t note_lock;
    uint64_t notes_said[SW_SPILL_MAX_NOTES]; /* checksums of their texts */
    int note_count;
    sw_spill_progress_fn progress;
    void *progress_context;
};

/* Say something once; an sw_aio_note_fn over a store. */
void sw_spill_note(void *spill, const char *text);

/* spill_place.c: check a directory and open its file; allocate the file's space. */
sw_code sw_spill_place_open(struct sw_spill *spill, struct sw_spill_place *place,
                            const struct sw_spill_directory *directory, struct sw_err *err);
void sw_spill_place_close(struct sw_spill_place *place);
sw_code sw_spill_places_check_free(const struct sw_spill *spill, struct sw_err *err);
/* Free bytes that the place's file system had, less what all files on it use. */
int64_t sw_spill_place_left_bytes(const struct sw_spill *spill, int index);
sw_code sw_spill_place_allocate(struct sw_spill *spill, struct sw_spill_place *place,
                                struct sw_err *err);

/* spill_block.c: blocks, checksums and the cutting of transfers. */
/* End of the block that begins at `offset_bytes` of a region. */
int64_t sw_spill_block_end(const struct sw_spill *spill, const struct sw_spill_region *region,
                           int64_t offset_bytes);
void sw_spill_sum_set(struct sw_spill *spill, int64_t block_index, const void *data, int64_t bytes);
bool sw_spill_sum_matches(const struct sw_spill *spill, int64_t block_index, const void *data,
                          int64_t bytes);
/* Set, or check, the sums of all blocks that lie wholly inside a transfer. The check returns the
 * region's offset of the first that differs, or -1. */
void sw_spill_transfer_set_sums(const struct sw_spill_ticket *ticket);
int64_t sw_spill_transfer_check_sums(const struct sw_spill_ticket *ticket);
sw_code sw_spill_sum_fail(const struct sw_spill *spill, const struct sw_spill_region *region,
                          int64_t region_offset_bytes, int64_t bytes, struct sw_err *err);
/* Fill `op` with the next piece of `part` on place `index`, without a staging buffer; moves the
 * cursor past it. False when there is no more. */
bool sw_spill_next_piece(struct sw_spill_part *part, int index, struct sw_spill_op *op);

/* spill_ring.c: the thread. Under the lock: queue a part, which fails at once on a broken ring. */
sw_code sw_spill_ring_start(struct sw_spill_ring *ring, struct sw_err *err);
void sw_spill_ring_stop(struct sw_spill_ring *ring);
void sw_spill_ring_push(struct sw_spill_ring *ring, struct sw_spill_part *part);
int sw_spill_staging_count(const struct sw_spill *spill);

#endif
