/* What a model directory, a checkpoint, a run directory or a weights file holds, as text for a
 * person. Reads headers only, except where two tensors have to be compared to tell whether a head
 * is tied. */
#ifndef SPILLWAY_CKPT_INSPECT_H
#define SPILLWAY_CKPT_INSPECT_H

#include "base/err.h"
#include "base/text.h"

/* Append lines on `path` to *out. SW_E_USAGE when it is nothing that is known, otherwise the errors
 * of whatever cannot be read. A model of a family that is not known is described all the same. */
sw_code sw_inspect(const char *path, struct sw_text *out, struct sw_err *err) SW_WARN_UNUSED;

#endif
