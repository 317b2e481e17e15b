/* Published models by name: t5-*, t5-v1_1-*, flan-t5-*, mt5-*. */
#ifndef SPILLWAY_MODEL_PRESETS_H
#define SPILLWAY_MODEL_PRESETS_H

#include "base/text.h"

#include <stdint.h>

int64_t sw_preset_count(void);
/* Name of a preset, 0 <= index < count; static. */
const char *sw_preset_name(int64_t index);
/* Append the whole text of its config.json to `out`. SW_E_USAGE, with the names there are, for an
 * unknown one. */
sw_code sw_preset_config(const char *name, struct sw_text *out, struct sw_err *err) SW_WARN_UNUSED;

#endif
