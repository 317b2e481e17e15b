/* From config.json to struct sw_t5_config. For src/model only. */
#ifndef SPILLWAY_MODEL_CONFIG_READ_H
#define SPILLWAY_MODEL_CONFIG_READ_H

#include "base/json.h"
#include "model/spec.h"

/* `tied` and `scale_head` are what config.json says; weights may still ask for a separate head. */
sw_code sw_t5_config_read(const struct sw_json *config, const char *path, struct sw_t5_config *out,
                          struct sw_err *err) SW_WARN_UNUSED;

#endif
