#include "train/metrics.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 30 };

struct sw_metrics {
    int descriptor;
    char *path;
    int64_t bytes;
    int64_t last_step; /* 0: there is no line */
};

/* Bytes of the leading lines that are whole and belong to steps up to `keep_steps`; *last is the
 * last of these steps, or 0. */
static int64_t kept_bytes(const char *text, int64_t bytes, int64_t keep_steps, int64_t *last)
{
    int64_t kept = 0;
    *last = 0;
    while (kept < bytes) {
        const char *end = memchr(text + kept, '\n', (size_t)(bytes - kept));
        struct sw_json *json = NULL;
        int64_t step = 0;
        if (end == NULL)
            break;
        bool read =
            sw_json_parse(text + kept, end - (text + kept), "metrics", &json, NULL) == SW_OK &&
            sw_json_to_integer(sw_json_get(json, "step"), &step);
        sw_json_free(json);
        if (!read || step > keep_steps)
            break;
        kept = end - text + 1;
        *last = step;
    }
    return kept;
}

/* The same of a file, which need not be there. */
static sw_code read_lines(const char *path, int64_t keep_steps, int64_t *kept, int64_t *last,
                          struct sw_err *err)
{
    char *text = NULL;
    int64_t bytes = 0;
    *kept = *last = 0;
    if (!sw_file_exists(path))
        return SW_OK;
    sw_code code = sw_file_read(path, MAX_BYTES, &text, &bytes, err);
    if (code == SW_OK)
        *kept = kept_bytes(text, bytes, keep_steps, last);
    free(text);
    return code;
}

sw_code sw_metrics_last_step(const char *path, int64_t *out, struct sw_err *err)
{
    int64_t kept;
    return read_lines(path, INT64_MAX, &kept, out, err);
}

sw_code sw_metrics_open(struct sw_metrics **out, const char *path, int64_t keep_steps,
                        struct sw_err *err)
{
    struct sw_metrics *metrics = sw_calloc(1, sizeof *metrics);
    if (metrics == NULL || (metrics->path = sw_strdup(path)) == NULL) {
        free(metrics);
        return SW_FAIL(err, SW_E_MEMORY, "no memory for metrics");
    }
    sw_code code = SW_OK;
    if (keep_steps > 0)
        code = read_lines(path, keep_steps, &metrics->bytes, &metrics->last_step, err);
    metrics->descriptor = -1;
    if (code == SW_OK) {
        metrics->descriptor = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
        if (metrics->descriptor < 0 || ftruncate(metrics->descriptor, metrics->bytes) != 0)
            code = SW_FAIL_OS(err, SW_E_IO, errno, "cannot write %s", path);
    }
    if (code != SW_OK) {
        sw_metrics_close(metrics);
        return code;
    }
    *out = metrics;
    return SW_OK;
}

void sw_metrics_close(struct sw_metrics *metrics)
{
    if (metrics == NULL)
        return;
    if (metrics->descriptor >= 0)
        close(metrics->descriptor);
    free(metrics->path);
    free(metrics);
}

static void add(struct sw_text *line, const char *key, double value)
{
    sw_text_add(line, ", \"%s\": ", key);
    sw_text_add_json_double(line, value);
}

/* Frees the text. */
static sw_code write_line(struct sw_metrics *metrics, int64_t step, struct sw_text *line,
                          struct sw_err *err)
{
    sw_code code = sw_text_check(line, metrics->path, err);
    if (code == SW_OK)
        code = sw_file_pwrite(metrics->descriptor, line->bytes, line->used_bytes, metrics->bytes,
                              metrics->path, err);
    if (code == SW_OK) {
        metrics->bytes += line->used_bytes;
        metrics->last_step = step;
    }
    free(line->bytes);
    return code;
}

sw_code sw_metrics_step(struct sw_metrics *metrics, int64_t step, double lr, int64_t target_tokens,
                        double tokens_per_second, const struct sw_step_result *result,
                        struct sw_err *err)
{
    struct sw_text line = {0};
    sw_text_add(&line, "{\"step\": %lld", (long long)step);
    add(&line, "loss", result->loss);
    add(&line, "grad_norm", result->grad_norm);
    add(&line, "lr", lr);
    sw_text_add(&line, ", \"target_tokens\": %lld", (long long)target_tokens);
    add(&line, "step_seconds", result->seconds);
    add(&line, "tokens_per_second", tokens_per_second);
    if (!result->finite)
        sw_text_add(&line, ", \"skipped\": true");
    if (result->nvme_read_bytes > 0 || result->nvme_written_bytes > 0)
        sw_text_add(&line, ", \"nvme_read_bytes\": %lld, \"nvme_written_bytes\": %lld",
                    (long long)result->nvme_read_bytes, (long long)result->nvme_written_bytes);
    sw_text_add(&line, ", \"busy_seconds\": {");
    const char *comma = "";
    for (int lane = 0; lane < SW_LANES; lane++)
        if (result->busy_seconds[lane] > 0) {
            sw_text_add(&line, "%s\"%s\": ", comma, sw_lane_name((enum sw_lane)lane));
            sw_text_add_json_double(&line, result->busy_seconds[lane]);
            comma = ", ";
        }
    sw_text_add(&line, "}}\n");
    return write_line(metrics, step, &line, err);
}

sw_code sw_metrics_evaluation(struct sw_metrics *metrics, int64_t step, double loss, int64_t tokens,
                              double seconds, struct sw_err *err)
{
    struct sw_text line = {0};
    sw_text_add(&line, "{\"step\": %lld", (long long)step);
    add(&line, "loss", loss);
    sw_text_add(&line, ", \"tokens\": %lld", (long long)tokens);
    add(&line, "seconds", seconds);
    sw_text_add(&line, "}\n");
    return write_line(metrics, step, &line, err);
}

int64_t sw_metrics_at(const struct sw_metrics *metrics)
{
    return metrics->last_step;
}
