/* Pieces of JSON lines that commands print: ids and texts. */
#ifndef SPILLWAY_DATA_JSONL_OUT_H
#define SPILLWAY_DATA_JSONL_OUT_H

#include "base/text.h"

#include <stdint.h>

/* [1, 2, 3] */
void sw_jsonl_add_ids(struct sw_text *text, const int32_t *ids, int64_t count);
/* `bytes` as a JSON string, quotes included. What is not UTF-8 becomes U+FFFD, so that the line is
 * always valid; control characters and NUL are escaped. */
void sw_jsonl_add_string(struct sw_text *text, const char *bytes, int64_t count);

#endif
