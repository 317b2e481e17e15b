/* tools/logits CONFIG.yaml MODEL OUT [key=value]...: the logits of every target token of data.eval,
 * by the engine that trains, as raw fp32 [tokens][vocabulary]. For tools/check-export.py. */
#include "cli/back_end.h"
#include "data/batcher.h"
#include "kernels/cpu/cpu.h"
#include "tests/cuda_module.h"
#include "train/evaluate.h"

#include <errno.h>

static sw_code write_all(const char *path, const float *values, int64_t count, struct sw_err *err)
{
    FILE *file = fopen(path, "wb");
    bool well =
        file != NULL && fwrite(values, sizeof *values, (size_t)count, file) == (size_t)count;
    if (file != NULL && fclose(file) != 0)
        well = false;
    return well ? SW_OK : SW_FAIL_OS(err, SW_E_IO, errno, "%s: cannot be written", path);
}

/* All rows as one batch. Devices write logits where `device` pinned memory for them. */
static sw_code evaluate(struct sw_session *session, struct sw_device *device,
                        const struct sw_dataset *dataset, const char *path, struct sw_err *err)
{
    int64_t rows = sw_dataset_rows(dataset), tokens = 0;
    const struct sw_batcher_options options = {.global_batch = rows};
    struct sw_batcher *batcher = NULL;
    double loss = 0;
    sw_code code = sw_batcher_open(dataset, &options, &batcher, err);
    if (code != SW_OK)
        return code;
    const struct sw_batch batch = sw_batcher_in_order(batcher, 0, rows);
    int64_t count = batch.target_tokens * session->model->t5.vocab_size;
    int64_t bytes = count * (int64_t)sizeof(float);
    void *logits = NULL;
    code = session->device->host_alloc(device, bytes, &logits, err);
    if (code == SW_OK) {
        code = sw_engine_evaluate(session->engine, &batch, &loss, &tokens, logits, err);
        if (code == SW_OK)
            code = write_all(path, logits, count, err);
        session->device->host_free(device, logits, bytes);
    }
    sw_batcher_close(batcher);
    return code;
}

static sw_code run(struct sw_session *session, const char *path, struct sw_err *err)
{
    const struct sw_device_config holder = {.memory_bytes = 1 << 20, .pool = session->pool};
    struct sw_plan_request request;
    struct sw_dataset *dataset = NULL;
    struct sw_device *device = NULL;
    sw_code code = sw_session_request(session, SW_FOR_EVALUATION, &request, err);
    if (code == SW_OK)
        code = sw_session_dataset(session, session->config->data.eval, &dataset, err);
    if (code == SW_OK) {
        request.global_batch = sw_dataset_rows(dataset);
        code = sw_session_plan(session, &request, err);
    }
    if (code == SW_OK)
        code = sw_session_load(session, err);
    if (code == SW_OK)
        code = sw_engine_start(session->engine, err);
    if (code == SW_OK)
        code = session->device->open(&device, &holder, err);
    if (code == SW_OK) {
        code = evaluate(session, device, dataset, path, err);
        session->device->close(device);
    }
    sw_dataset_free(dataset);
    return code;
}

int main(int argc, char **argv)
{
    struct sw_err err = {0};
    struct sw_config config;
    struct sw_session session;
    const struct sw_device_ops *device = NULL;
    struct sw_cli_args args = {0};
    if (argc < 4 || argc > 4 + SW_CLI_SETS) {
        fputs("usage: logits CONFIG.yaml MODEL OUT [key=value]...\n", stderr);
        return 2;
    }
    for (int i = 4; i < argc; i++)
        args.sets[args.set_count++] = argv[i];
    sw_code code = sw_cli_config(&args, argv[1], &config, &err);
    if (code == SW_OK) {
        device = config.devices.kind == SW_CFG_CUDA ? sw_test_cuda() : &sw_cpu_device_ops;
        if (device == NULL)
            code = SW_FAIL(&err, SW_E_DEVICE, "devices.kind cuda: there is none");
        if (code == SW_OK)
            code = sw_session_open(&session, &config, device, argv[2], "MODEL", &err);
        if (code == SW_OK) {
            code = run(&session, argv[3], &err);
            sw_session_close(&session);
        }
        sw_config_deinit(&config);
    }
    if (code != SW_OK)
        fprintf(stderr, "logits: %s\n", err.text);
    return code == SW_OK ? 0 : 1;
}
