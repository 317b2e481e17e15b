/* Arguments that probe and bench share, and their progress line. */
#ifndef SPILLWAY_CLI_MEASURE_ARGS_H
#define SPILLWAY_CLI_MEASURE_ARGS_H

#include "base/err.h"

#include <stdint.h>

/* "4096", "512KiB", "1.5GiB" as bytes in least .. most; NULL text gives `otherwise`. `option` is
 * for messages. */
sw_code sw_cli_size(const char *option, const char *text, int64_t least, int64_t most,
                    int64_t otherwise, int64_t *out, struct sw_err *err) SW_WARN_UNUSED;

/* A directory that is there and can be written; `option` is for messages. */
sw_code sw_cli_directory(const char *option, const char *path, struct sw_err *err) SW_WARN_UNUSED;

/* Cut "a,b,c" at its commas into at most `most` names that point into *out_copy, which the caller
 * frees. */
sw_code sw_cli_split(const char *option, const char *text, int most, char **out_copy,
                     const char **out_names, int *out_count, struct sw_err *err) SW_WARN_UNUSED;

/* A progress line on standard error: rewritten in place on a terminal, else one line for each new
 * `what`. A struct sw_cli_progress starts as all zero and ends with sw_cli_progress_end(). */
struct sw_cli_progress {
    char what[256];
    int percent;
    bool shown; /* there is a line on the terminal to be ended */
};
void sw_cli_progress_show(void *progress, const char *what, double fraction);
void sw_cli_progress_end(struct sw_cli_progress *progress);

/* A sw_aio_note_fn that writes to standard error. */
void sw_cli_note(void *context, const char *text);

#endif
