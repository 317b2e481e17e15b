/* Loss over a whole file of rows. */
#ifndef SPILLWAY_TRAIN_EVALUATE_H
#define SPILLWAY_TRAIN_EVALUATE_H

#include "data/dataset.h"
#include "train/session.h"

/* Read and tokenize `path`, which sw_preflight_rows() took, as the configuration says. */
sw_code sw_session_dataset(struct sw_session *session, const char *path, struct sw_dataset **out,
                           struct sw_err *err) SW_WARN_UNUSED;

/* SW_E_STOPPED when that was requested. Mean token loss over the data set (no dropout, no
 * smoothing), and its number of tokens. */
sw_code sw_session_evaluate(struct sw_session *session, const struct sw_dataset *dataset,
                            double *loss, int64_t *tokens, struct sw_err *err) SW_WARN_UNUSED;

#endif
