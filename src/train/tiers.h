/* From the configuration to the memory and drives that a plan may use, and to the store of spilled
 * state. */
#ifndef SPILLWAY_TRAIN_TIERS_H
#define SPILLWAY_TRAIN_TIERS_H

#include "config/config.h"
#include "io/spill.h"
#include "plan/plan.h"
#include "train/numa.h"
#include "train/progress.h"

/* What the engine is given; strings are the configuration's. */
struct sw_tiers {
    struct sw_spill_directory directories[SW_SPILL_MAX_DIRECTORIES];
    struct sw_spill_config spill;
};

/* Homes and limits of `request`, from settings and this machine: memory that is available, cut to
 * what the cgroup leaves, and free space of the spill directories, which must exist and
 * be writable, whether anything will spill or not. */
sw_code sw_tiers_limits(const struct sw_config *config, bool device_is_host,
                        struct sw_plan_request *request, struct sw_err *err) SW_WARN_UNUSED;
/* Fill `out`; false when there are no directories. Words to the user go through `progress`, which
 * is borrowed. */
bool sw_tiers_spill(const struct sw_config *config, const struct sw_numa *numa,
                    struct sw_progress *progress, struct sw_tiers *out);

/* A line of `text`; for engines and spill stores that have something to say. */
void sw_tiers_say(void *progress, const char *text);
/* Lines that name the settings that were given and do nothing under this plan, if any. */
void sw_tiers_note_unused(const struct sw_config *config, const struct sw_plan *plan,
                          struct sw_progress *progress);
/* A line where several placements fitted and nominal rates chose: what lets measured ones do it. */
void sw_tiers_note_rates(const struct sw_plan *plan, struct sw_progress *progress);

#endif
