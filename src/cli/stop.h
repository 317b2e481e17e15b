/* Stopping on request: Ctrl-C, SIGTERM, and SIGHUP, when a terminal is closed. */
#ifndef SPILLWAY_CLI_STOP_H
#define SPILLWAY_CLI_STOP_H

#include <stdbool.h>

/* From now on the first signal prints `words` (borrowed for good) and ends the process at once,
 * with the status of a stop: for as long as nothing is written that would be left half done. */
void sw_stop_end_at_once(const char *words);
/* From now on the first signal prints `words` (borrowed for good) and is noted; a second one ends
 * the process at once, with 128 + its number (but for SIGHUP, which comes twice). */
void sw_stop_watch(const char *words);
bool sw_stop_asked(void);

#endif
