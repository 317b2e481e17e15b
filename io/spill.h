/* Spilled state: file space over one or more directories, for data that lives on drives while a
 * run lasts.
 *
 *   open     checks the directories (writable, enough free space) and opens a nameless file in
 * each: whatever ends the process, nothing is left behind reserve  gives a region; its chunks are
 * striped over the directories by their weights pin      (optional) names memory that transfers
 * will use, to be registered with the kernel seal     allocates and writes all of the file space
 * once (unwritten extents are slow, and a full drive shows here), starts one thread and one queue a
 * directory read, write, wait   from any thread, any number at once; nothing is allocated
 *
 * A region reads as zeros until it is written. Any offset and length work; fast are transfers whose
 * offset in the region is a multiple of the block (4096 without checksums), whose memory is aligned
 * to SW_AIO_ALIGNMENT_BYTES, and that end on a multiple of the block or at the region's end: they
 * go straight between drive and memory (but for the last block of a region of odd length). Others
 * pass through small registered staging buffers.
 *
 * Transfers that overlap and of which one writes must not be in flight at once; the caller orders
 * them. Neighbours that merely share a block may. */
#ifndef SPILLWAY_IO_SPILL_H
#define SPILLWAY_IO_SPILL_H

#include "base/err.h"
#include "io/aio.h"

#include <stddef.h>
#include <stdint.h>

struct sw_spill;

enum {
    SW_SPILL_BLOCK_BYTES = 64 << 10 /* the default */,
    SW_SPILL_MAX_DIRECTORIES = 16,
    SW_SPILL_LINES = 4
};

struct sw_spill_directory {
    const char *path;
    double weight;    /* share of the bytes, relative to the others: measured bytes/s; 0 means 1 */
    const char *cpus; /* CPUs for its thread, "0-3,8"; NULL: anywhere */
};

/* `done_bytes` of `total_bytes` are written. Called by the thread in sw_spill_seal(). */
typedef void (*sw_spill_progress_fn)(void *context, int64_t done_bytes, int64_t total_bytes);

struct sw_spill_config {
    const struct sw_spill_directory *directories;
    int directory_count;    /* 1 .. SW_SPILL_MAX_DIRECTORIES */
    int64_t capacity_bytes; /* most that will be reserved; must be free now */
    int64_t block_bytes;    /* what one checksum (XXH3, 64 bit) covers; rounded up to 4096; 0:
                               SW_SPILL_BLOCK_BYTES */
    int64_t chunk_bytes;    /* stripe; rounded up to the block; 0: 1 MiB */
    int64_t request_bytes;  /* largest transfer in flight; rounded up; 0: 1 MiB */
    int queue_depth;        /* transfers in flight a directory; 0: 32 */
    const struct sw_aio_method *method; /* NULL: the best that is allowed */
    bool verify;                        /* checksums of all blocks, checked on every read */
    bool buffered;                      /* no O_DIRECT, for tests */
    struct sw_aio_fault *fault;         /* for tests, or NULL */
    sw_aio_note_fn note;                /* words to the user, each said once; may be NULL */
    void *note_context;
    sw_spill_progress_fn progress; /* may be NULL */
    void *progress_context;
};

/* A region. Its fields are the store's; `bytes` may be read. */
struct sw_spill_region {
    int64_t bytes;
    int64_t chunk_index; /* of its first chunk, in the store's table */
    int64_t block_index; /* of its first checksum */
};

/* SW_E_USAGE for a directory that cannot be written, SW_E_FIT when free space is short (with the
 * numbers); nothing is left behind. Strings of `config` are copied. */
sw_code sw_spill_open(struct sw_spill **out, const struct sw_spill_config *config,
                      struct sw_err *err) SW_WARN_UNUSED;
/* No transfer may be in flight. NULL is fine. */
void sw_spill_close(struct sw_spill *spill);

/* File space that `bytes` of region take: rounded up to SW_AIO_ALIGNMENT_BYTES. */
int64_t sw_spill_region_space_bytes(int64_t bytes);
/* Host memory that a store of `capacity_bytes` in `regions` regions takes, staging buffers and
 * checksums included. For the planner. */
int64_t sw_spill_overhead_bytes(const struct sw_spill_config *config, int64_t regions);

/* Before the seal. SW_E_FIT when the capacity is passed. bytes > 0. */
sw_code sw_spill_reserve(struct sw_spill *spill, int64_t bytes, struct sw_spill_region *out,
                         struct sw_err *err) SW_WARN_UNUSED;
/* Before the seal: transfers from and to this memory (borrowed until close, aligned to
 * SW_AIO_ALIGNMENT_BYTES) will be many. */
sw_code sw_spill_pin(struct sw_spill *spill, void *memory, int64_t bytes,
                     struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_spill_seal(struct sw_spill *spill, struct sw_err *err) SW_WARN_UNUSED;

/* A transfer under way: caller's storage, must not move until waited for. No initialisation. */
struct sw_spill_ticket {
    struct sw_spill *spill;
    struct sw_spill_region region;
    int64_t offset_bytes, bytes;
    char *memory;
    bool write;
    int line;
    int64_t parts_left; /* directories that have something of it still to do; under the lock */
    struct sw_spill_part {
        struct sw_spill_ticket *ticket;
        struct sw_spill_part *next;
        int64_t cursor_bytes; /* where its directory goes on looking for pieces */
        int64_t flying_pieces;
    } parts[SW_SPILL_MAX_DIRECTORIES];
    struct sw_err err; /* first failure */
};

/* Start moving `bytes` (>= 0) between `memory` (borrowed until waited for) and the region, from
 * `offset_bytes` on. Out of range is a bug. Failures come out of the wait. */
void sw_spill_read(struct sw_spill *spill, const struct sw_spill_region *region,
                   int64_t offset_bytes, void *memory, int64_t bytes,
                   struct sw_spill_ticket *ticket);
void sw_spill_write(struct sw_spill *spill, const struct sw_spill_region *region,
                    int64_t offset_bytes, const void *memory, int64_t bytes,
                    struct sw_spill_ticket *ticket);
/* The same, with a line of its own: transfers of one line are begun in the order in which they were
 * started, pieces of several lines in turn, so that lines share a drive. The two above use line 0.
 */
struct sw_spill_transfer {
    const struct sw_spill_region *region;
    int64_t offset_bytes, bytes;
    void *memory; /* only read if `write` */
    bool write;
    int line; /* 0 .. SW_SPILL_LINES-1 */
};
void sw_spill_start(struct sw_spill *spill, const struct sw_spill_transfer *transfer,
                    struct sw_spill_ticket *ticket);
/* Block until the transfer is done, and check what was read against its checksums. Once a ticket,
 * by one thread. SW_E_IO names file, offset and bytes; SW_E_FORMAT is a checksum that differs.
 * After a failed write the region's contents are undefined. */
sw_code sw_spill_wait(struct sw_spill_ticket *ticket, struct sw_err *err) SW_WARN_UNUSED;
/* Whether sw_spill_wait() would not block. */
bool sw_spill_ready(struct sw_spill_ticket *ticket);

struct sw_spill_counters {
    int64_t read_bytes;     /* asked for by callers and done */
    int64_t written_bytes;  /* likewise */
    int64_t prepared_bytes; /* file space written by the seal */
};
void sw_spill_counters(struct sw_spill *spill, struct sw_spill_counters *out);
/* For a person who wonders what it waits for: transfers under way in every directory, into `text`
 * of `size` bytes. Nothing is allocated. */
void sw_spill_describe(struct sw_spill *spill, char *text, size_t size);
/* Of directory `index`: file space in use, and its name as configured. */
int64_t sw_spill_directory_bytes(const struct sw_spill *spill, int index);
/* The method in use: "io_uring", "threads" or "sync"; after the seal. */
const char *sw_spill_method_name(const struct sw_spill *spill);

#endif
