/* Physical lines of a file, standard input or memory, one at a time in bounded memory. */
#ifndef SPILLWAY_DATA_LINE_INPUT_H
#define SPILLWAY_DATA_LINE_INPUT_H

#include "base/err.h"
#include "base/text.h"

#include <stdint.h>

struct sw_line_input;

/* Open `path`, or standard input for "-". */
sw_code sw_line_input_open(const char *path, struct sw_line_input **out,
                           struct sw_err *err) SW_WARN_UNUSED;
/* Lines of `bytes`, borrowed; `what` names it in messages. */
sw_code sw_line_input_open_memory(const char *bytes, int64_t count, const char *what,
                                  struct sw_line_input **out, struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_line_input_close(struct sw_line_input *input);

/* While a pipe is silent in the middle of a line, ask whether to stop: then taking a line fails
 * with SW_E_STOPPED. NULL: never. */
void sw_line_input_heed(struct sw_line_input *input, bool (*stop_requested)(void));

enum sw_line { SW_LINE_TAKEN, SW_LINE_TOO_LONG, SW_LINE_END, SW_LINE_FAILED };

/* Append the next line to `line`, without its '\n' (a '\r' before it stays) and without a byte
 * order mark at the file's start. TOO_LONG: the line does not fit in max_bytes of `line`; it is
 * passed over to its end. END: there is no further line; one that the file ends in without '\n'
 * counts, an empty one behind the last '\n' does not. FAILED: `err` says why; a file that is no
 * text in UTF-8 (foreign.h) fails before its first line. */
enum sw_line sw_line_input_take(struct sw_line_input *input, struct sw_text *line,
                                int64_t max_bytes, struct sw_err *err);

/* Wait until a line, or the end, may be taken without waiting: at most so many milliseconds, -1:
 * without limit. False when the time is over or a signal came. Files never wait. */
bool sw_line_input_wait(struct sw_line_input *input, int milliseconds);

const char *sw_line_input_name(const struct sw_line_input *input); /* for messages */
int64_t sw_line_input_line(const struct sw_line_input *input);     /* of the last taken, from 1 */
int64_t sw_line_input_bytes_read(const struct sw_line_input *input);
int64_t sw_line_input_file_bytes(const struct sw_line_input *input); /* -1: a pipe */

#endif
