/* metrics.jsonl and eval.jsonl: one object per optimizer step, or evaluation, written and flushed
 * as it ends. Numbers read back as the same doubles; what is not finite is null. */
#ifndef SPILLWAY_TRAIN_METRICS_H
#define SPILLWAY_TRAIN_METRICS_H

#include "exec/engine.h"

struct sw_metrics;

/* Open for appending. Lines of steps after `keep_steps`, which a resumed run does again, are
 * dropped; 0: all of them. */
sw_code sw_metrics_open(struct sw_metrics **out, const char *path, int64_t keep_steps,
                        struct sw_err *err) SW_WARN_UNUSED;
/* Step of the last whole line of the file; 0 when there is none, or no file. */
sw_code sw_metrics_last_step(const char *path, int64_t *out, struct sw_err *err) SW_WARN_UNUSED;
/* NULL is fine. */
void sw_metrics_close(struct sw_metrics *metrics);

sw_code sw_metrics_step(struct sw_metrics *metrics, int64_t step, double lr, int64_t target_tokens,
                        double tokens_per_second, const struct sw_step_result *result,
                        struct sw_err *err) SW_WARN_UNUSED;

/* A line of eval.jsonl: the mean loss over `tokens` target tokens after `step`, in `seconds`. */
sw_code sw_metrics_evaluation(struct sw_metrics *metrics, int64_t step, double loss, int64_t tokens,
                              double seconds, struct sw_err *err) SW_WARN_UNUSED;
/* Step of the last line: one that was kept or one written; 0: there is none. */
int64_t sw_metrics_at(const struct sw_metrics *metrics);

#endif
