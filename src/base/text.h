/* Text that is built up piece by piece: JSON lines, headers, tables. A failed allocation sticks:
 * later calls do nothing, and the one check is at the end. */
#ifndef SPILLWAY_BASE_TEXT_H
#define SPILLWAY_BASE_TEXT_H

#include "base/err.h"

#include <stdint.h>

/* Start with `struct sw_text text = {0}`; end with free(text.bytes). */
struct sw_text {
    char *bytes;        /* owned; NUL-terminated once anything was added, else NULL */
    int64_t used_bytes; /* without the NUL */
    int64_t capacity_bytes;
    bool failed; /* an allocation failed: the text is not whole */
};

void sw_text_add(struct sw_text *text, const char *format, ...) SW_PRINTF(2, 3);
void sw_text_add_bytes(struct sw_text *text, const char *bytes, int64_t count);
/* `string` as a JSON string, quotes included. UTF-8 goes through as it is; control characters are
 * escaped. */
void sw_text_add_json_string(struct sw_text *text, const char *string);
/* A number as JSON: the shortest decimal that reads back as the same double; null when it is not
 * finite. */
void sw_text_add_json_double(struct sw_text *text, double value);
/* Bytes for a person: "512 bytes", "3.2 MiB", "101.5 GiB". */
void sw_text_add_size(struct sw_text *text, int64_t bytes);
/* A time for a person, to three digits behind the point: "1.250 s", "12.500 ms", "3.000 us". */
void sw_text_add_seconds(struct sw_text *text, double seconds);
/* A size of sw_text_add_size's units: "4096", "512 MiB", "22.7GiB" (KiB, MiB, GiB, TiB), up to 2^53
 * bytes. A part of a unit is rounded down to whole bytes; false for a part of a byte, or what is no
 * size. */
bool sw_text_parse_size(const char *text, int64_t *out_bytes);
/* What makes a noun behind `count` a plural: "s", or nothing behind 1. */
const char *sw_text_plural(int64_t count);
/* Letters to insert, remove, change or swap with their neighbour to make `b` of `a`: how far a
 * mistyped word is off. Of longer words the first 64 bytes count. */
int sw_text_distance(const char *a, const char *b);
/* SW_E_MEMORY naming `what` when an allocation failed on the way. */
sw_code sw_text_check(const struct sw_text *text, const char *what,
                      struct sw_err *err) SW_WARN_UNUSED;

#endif
