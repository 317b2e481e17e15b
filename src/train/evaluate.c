#include "train/evaluate.h"

#include "base/text.h"
#include "data/batcher.h"

static void show_rows(void *context, int64_t rows, int64_t bytes_read, int64_t file_bytes)
{
    (void)rows;
    sw_progress_share(context, bytes_read, file_bytes);
}

sw_code sw_session_dataset(struct sw_session *session, const char *path, struct sw_dataset **out,
                           struct sw_err *err)
{
    const struct sw_config *config = session->config;
    session->progress.what = "tokenizing";
    const struct sw_dataset_options options = {
        .source_field = config->data.source_field,
        .target_field = config->data.target_field,
        .max_source_length = config->data.max_source_length,
        .max_target_length = config->data.max_target_length,
        .skip_bad = config->data.on_bad_row == SW_CFG_SKIP,
        .progress = show_rows,
        .progress_context = &session->progress,
        .stop_requested = session->stop_requested,
    };
    sw_code code = sw_dataset_load(path, session->tokenizer, session->pool, &options, out, err);
    if (code != SW_OK)
        return code;
    const struct sw_dataset_statistics *statistics = sw_dataset_statistics(*out);
    sw_progress_say(&session->progress,
                    "%s: %lld row%s, %lld source and %lld target tokens, the longest %lld and %lld",
                    path, (long long)statistics->rows, sw_text_plural(statistics->rows),
                    (long long)statistics->source_tokens, (long long)statistics->target_tokens,
                    (long long)statistics->longest_source, (long long)statistics->longest_target);
    if (statistics->truncated_sources + statistics->truncated_targets > 0)
        sw_progress_say(
            &session->progress,
            "  cut to data.max_source_length %lld: %lld row%s; to "
            "data.max_target_length %lld: %lld row%s",
            (long long)config->data.max_source_length, (long long)statistics->truncated_sources,
            sw_text_plural(statistics->truncated_sources),
            (long long)config->data.max_target_length, (long long)statistics->truncated_targets,
            sw_text_plural(statistics->truncated_targets));
    if (statistics->skipped > 0)
        sw_progress_say(&session->progress, "  skipped %lld bad row%s, the first: %s",
                        (long long)statistics->skipped, sw_text_plural(statistics->skipped),
                        sw_dataset_first_skipped(*out));
    return SW_OK;
}

sw_code sw_session_evaluate(struct sw_session *session, const struct sw_dataset *dataset,
                            double *loss, int64_t *tokens, struct sw_err *err)
{
    int64_t rows =
        session->plan->bounds.rows * session->plan->microbatches * session->plan->replicas;
    int64_t total = sw_dataset_rows(dataset);
    const struct sw_batcher_options options = {.global_batch = rows};
    struct sw_batcher *batcher = NULL;
    double sum = 0;
    *tokens = 0;
    session->progress.what = "evaluating";
    sw_code code = sw_batcher_open(dataset, &options, &batcher, err);
    for (int64_t first = 0; first < total && code == SW_OK; first += rows) {
        if (session->stop_requested != NULL && session->stop_requested()) {
            code = SW_FAIL(err, SW_E_STOPPED, "stopped while evaluating");
            break;
        }
        const struct sw_batch batch = sw_batcher_in_order(batcher, first, rows);
        double part = 0;
        int64_t part_tokens = 0;
        code = sw_engine_evaluate(session->engine, &batch, &part, &part_tokens, NULL, err);
        sum += part;
        *tokens += part_tokens;
        sw_progress_share(&session->progress, first + batch.count, total);
    }
    sw_batcher_close(batcher);
    *loss = sum / (double)*tokens;
    return code;
}
