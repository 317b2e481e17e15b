/* Changing one value of a config.json and no other byte of it. */
#ifndef SPILLWAY_CKPT_CONFIG_TEXT_H
#define SPILLWAY_CKPT_CONFIG_TEXT_H

#include "base/err.h"
#include "base/text.h"

/* Append `text`, a JSON object, to *out with the values of its own keys "torch_dtype" and "dtype",
 * those that are there, replaced by the string `dtype`; `what` names it in messages. SW_E_FORMAT
 * when it is no JSON object. */
sw_code sw_config_text_set_dtype(const char *text, const char *what, const char *dtype,
                                 struct sw_text *out, struct sw_err *err) SW_WARN_UNUSED;

#endif
