/* How fast a directory's drive reads and writes, through the same queues that spilling uses. */
#ifndef SPILLWAY_IO_MEASURE_H
#define SPILLWAY_IO_MEASURE_H

#include "base/err.h"
#include "io/aio.h"
#include "io/spill.h"
#include "topo/machine.h"

#include <stdint.h>

/* `fraction` of the work is done. */
typedef void (*sw_measure_progress_fn)(void *context, double fraction);

struct sw_measure_config {
    const char *directory;
    int64_t file_bytes;    /* rounded down to whole requests; the file is gone afterwards */
    int64_t request_bytes; /* a multiple of SW_AIO_ALIGNMENT_BYTES */
    int queue_depth;
    double max_seconds;                 /* of a pass; 0: the whole file, however long */
    const struct sw_aio_method *method; /* NULL: the best that is allowed */
    sw_aio_note_fn note;                /* may be NULL */
    void *note_context;
    sw_measure_progress_fn progress; /* may be NULL */
    void *progress_context;
};

struct sw_measure_rates {
    double read_bytes_per_second, write_bytes_per_second;
    const char *method;
    bool direct; /* O_DIRECT: the page cache did not help */
};

/* Write a file once, then time writing it again and reading it, from its begin to its end. SW_E_FIT
 * when the file system has no room for it. */
sw_code sw_measure_drive(const struct sw_measure_config *config, struct sw_measure_rates *out,
                         struct sw_err *err) SW_WARN_UNUSED;

/* Find the smallest request size and depth that read within 5 % of the best, measure writes, reads
 * and both in turn with them, and fill `drive`'s direct, request_bytes, queue_depth and rates;
 * then, through a spill store, chunks one at a time, and what they take longer: transfer_seconds.
 * `config` gives all but those two. */
sw_code sw_measure_drive_best(const struct sw_measure_config *config,
                              struct sw_machine_drive *drive, struct sw_err *err) SW_WARN_UNUSED;

/* What a spill store over `directories` goes best with: their weights, where they are 0 and there
 * are several (bytes a second of a write followed by a read), the largest request size and the
 * largest depth that one of them wants. Times each drive for about a second with a file of 128 MiB.
 * Directories that cannot be used are refused by name. */
enum {
    SW_MEASURE_LEAST_BYTES = 512 << 20, /* spilled: below, it is not worth the time */
    SW_MEASURE_MOST_REQUEST_BYTES = 4 << 20,
    SW_MEASURE_MOST_DEPTH = 32,
};
struct sw_measure_settings {
    int64_t request_bytes;
    int queue_depth;
};
sw_code sw_measure_directories(struct sw_spill_directory *directories, int count,
                               const struct sw_aio_method *method, struct sw_measure_settings *out,
                               struct sw_err *err) SW_WARN_UNUSED;

#endif
