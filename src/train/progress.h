/* What a person sees while something long runs: one line that is rewritten on a terminal, plain
 * flushed lines otherwise (a log that is read the next morning). Everything goes to stderr. */
#ifndef SPILLWAY_TRAIN_PROGRESS_H
#define SPILLWAY_TRAIN_PROGRESS_H

#include "base/err.h"

#include <stdint.h>

struct sw_progress {
    bool terminal;
    int columns;
    const char *what;        /* of the transfer under way */
    double shown_at_seconds; /* when the line was last written */
    bool line_open;          /* a line without its newline stands on the terminal */
};

void sw_progress_init(struct sw_progress *progress);
/* A line that stays. */
void sw_progress_say(struct sw_progress *progress, const char *format, ...) SW_PRINTF(2, 3);
/* The line that is rewritten; elsewhere it is written only when `due`. At most some ten a second.
 */
void sw_progress_line(struct sw_progress *progress, bool due, const char *format, ...)
    SW_PRINTF(3, 4);
/* Share of a long transfer: a context for sw_transfer. total 0: not known. */
void sw_progress_share(void *progress, int64_t done, int64_t total);
/* End the open line. */
void sw_progress_end(struct sw_progress *progress);

/* "2 h 03 min", "41 s" into `out`. */
enum { SW_DURATION_BYTES = 32 };
const char *sw_duration_text(double seconds, char out[SW_DURATION_BYTES]);

#endif
