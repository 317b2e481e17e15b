/* The relative position buckets of T5, as tables in device memory that all blocks share.
 *
 * Entry r + reach - 1 is the bucket of relative position r = key - query, |r| < reach. */
#ifndef SPILLWAY_MODEL_TABLES_H
#define SPILLWAY_MODEL_TABLES_H

#include "model/spec.h"

struct sw_model_tables {
    int64_t reach;
    const int32_t *encoder_buckets; /* device [2 * reach - 1], bidirectional */
    const int32_t *decoder_buckets; /* device [2 * reach - 1], causal */
};

/* Bucket of a relative position (Raffel et al., "Exploring the limits of transfer learning with a
 * unified text-to-text transformer", JMLR 2020; the arithmetic of mesh-tensorflow). */
int32_t sw_relative_bucket(int64_t relative, bool bidirectional, int64_t buckets,
                           int64_t max_distance);

/* Reach for micro-batches within these bounds: the longer of source and target (for generation,
 * target_length is the number of new tokens). */
int64_t sw_model_tables_reach(int64_t source_length, int64_t target_length);
/* Bytes of both tables. Fill `host` (that many bytes), copy it to device memory as it is, and point
 * `out` into the copy. */
int64_t sw_model_tables_bytes(int64_t reach);
void sw_model_tables_fill(const struct sw_model *model, int64_t reach, int32_t *host);
void sw_model_tables_at(struct sw_model_tables *out, int64_t reach, const void *device_copy);

#endif
