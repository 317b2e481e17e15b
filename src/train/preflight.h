/* What can be refused before anything is read, made or allocated: paths that cannot be had. Errors
 * are SW_E_USAGE and name the key. */
#ifndef SPILLWAY_TRAIN_PREFLIGHT_H
#define SPILLWAY_TRAIN_PREFLIGHT_H

#include "config/config.h"

/* A file of rows that can be read. `setting` (a key or an option) begins the message. */
sw_code sw_preflight_input(const char *setting, const char *path,
                           struct sw_err *err) SW_WARN_UNUSED;
/* A file that can be made, or replaced. */
sw_code sw_preflight_output(const char *setting, const char *path,
                            struct sw_err *err) SW_WARN_UNUSED;
/* `key` is set and names a file that can be read. */
sw_code sw_preflight_rows(const struct sw_config *config, const char *key, const char *path,
                          struct sw_err *err) SW_WARN_UNUSED;
/* All paths of a training run; `trace` may be NULL. */
sw_code sw_preflight_train(const struct sw_config *config, const char *trace,
                           struct sw_err *err) SW_WARN_UNUSED;

#endif
