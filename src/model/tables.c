#include "model/tables.h"

#include <math.h>

/* In float, in this order, as mesh-tensorflow and transformers do it: a distance at which the
 * logarithm is a whole number must fall into the same bucket. */
static int32_t distance_bucket(int64_t distance, int64_t buckets, int64_t max_distance)
{
    int64_t exact = buckets / 2;
    if (distance < exact)
        return (int32_t)distance;
    float growth = logf((float)distance / (float)exact);
    growth /= (float)log((double)max_distance / (double)exact);
    int64_t bucket = exact + (int64_t)(growth * (float)(buckets - exact));
    return (int32_t)(bucket < buckets - 1 ? bucket : buckets - 1);
}

int32_t sw_relative_bucket(int64_t relative, bool bidirectional, int64_t buckets,
                           int64_t max_distance)
{
    if (!bidirectional)
        return relative < 0 ? distance_bucket(-relative, buckets, max_distance) : 0;
    int64_t half = buckets / 2;
    int32_t bucket = distance_bucket(relative < 0 ? -relative : relative, half, max_distance);
    return relative > 0 ? (int32_t)half + bucket : bucket;
}

int64_t sw_model_tables_reach(int64_t source_length, int64_t target_length)
{
    return source_length > target_length ? source_length : target_length;
}

int64_t sw_model_tables_bytes(int64_t reach)
{
    return 2 * (2 * reach - 1) * (int64_t)sizeof(int32_t);
}

void sw_model_tables_fill(const struct sw_model *model, int64_t reach, int32_t *host)
{
    const struct sw_t5_config *t5 = &model->t5;
    int64_t entries = 2 * reach - 1;
    for (int64_t i = 0; i < entries; i++) {
        int64_t relative = i - (reach - 1);
        host[i] = sw_relative_bucket(relative, true, t5->bias_buckets, t5->bias_max_distance);
        host[entries + i] =
            sw_relative_bucket(relative, false, t5->bias_buckets, t5->bias_max_distance);
    }
}

void sw_model_tables_at(struct sw_model_tables *out, int64_t reach, const void *device_copy)
{
    const int32_t *tables = device_copy;
    out->reach = reach;
    out->encoder_buckets = tables;
    out->decoder_buckets = tables + (2 * reach - 1);
}
