#include "train/session.h"

#include "base/file.h"
#include "base/json.h"
#include "base/text.h"
#include "io/measure.h"
#include "train/links.h"

#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 1 << 24 };

/* Config alone: the weights will be random. */
static sw_code open_config(struct sw_session *session, struct sw_err *err)
{
    struct sw_json *json = NULL;
    sw_code code = sw_model_dir_check_config(session->model_path, err);
    if (code != SW_OK)
        return code;
    char *path = sw_path_join(session->model_path, "config.json");
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    code = sw_json_read_file(path, CONFIG_MAX_BYTES, &json, err);
    if (code == SW_OK)
        code = sw_model_open(json, path, SW_HEAD_BY_CONFIG, &session->model, err);
    sw_json_free(json);
    free(path);
    return code;
}

static sw_code open_weights(struct sw_session *session, struct sw_err *err)
{
    struct sw_json *json = NULL;
    sw_code code = sw_model_dir_open(session->model_path, &session->dir, err);
    if (code == SW_OK)
        code = sw_json_read_file(session->dir->config_path, CONFIG_MAX_BYTES, &json, err);
    if (code == SW_OK)
        code = sw_mapping_open(json, session->dir->config_path, session->model_path,
                               session->dir->tensors, session->dir->tensor_count, sw_tensor_equal,
                               &session->model, &session->mapping, err);
    sw_json_free(json);
    return code;
}

sw_code sw_session_check(const struct sw_config *config, const struct sw_device_ops *device,
                         struct sw_err *err)
{
    bool alone = !device->asynchronous; /* the host itself */
    int where = config->optimizer.where;
    const struct {
        const char *key, *why;
        bool asked;
    } later[] = {
        {"optimizer.where", "on the cpu there is no device beside the host; use auto or host",
         alone && where == SW_CFG_WHERE_DEVICE},
    };
    for (size_t i = 0; i < sizeof later / sizeof *later; i++)
        if (later[i].asked) {
            (void)SW_FAIL(err, SW_E_USAGE, "%s: %s", later[i].key, later[i].why);
            return sw_config_locate(config, err);
        }
    return SW_OK;
}

/* What the directory holds. */
static sw_code open_model(struct sw_session *session, struct sw_err *err)
{
    const struct sw_config *config = session->config;
    bool random = config->model.random_init && config->model.path != NULL &&
                  strcmp(config->model.path, session->model_path) == 0;
    sw_code code = random ? open_config(session, err) : open_weights(session, err);
    return code == SW_OK ? sw_tokenizer_open(session->model_path, session->model->t5.vocab_size,
                                             &session->tokenizer, err)
                         : code;
}

/* The worker pool, each thread where the topology says. */
static sw_code open_workers(struct sw_session *session, struct sw_err *err)
{
    const struct sw_config *config = session->config;
    int threads = (int)config->devices.threads;
    int gpu = config->devices.list.count > 0 ? (int)config->devices.list.items[0] : 0;
    char bus_id[64];
    bool known =
        session->device->bus_id != NULL && session->device->bus_id(gpu, bus_id, (int)sizeof bus_id);
    sw_code code = sw_numa_open(&session->numa, NULL, threads > 0 ? threads : sw_cpus_available(),
                                (const char *const *)config->offload.nvme.items,
                                config->offload.nvme.count, known ? bus_id : NULL, err);
    if (code == SW_OK)
        code = sw_pool_open_with(&session->pool, threads, sw_numa_bind_worker, &session->numa, err);
    return code;
}

sw_code sw_session_open(struct sw_session *session, const struct sw_config *config,
                        const struct sw_device_ops *device, const char *model_path,
                        const char *named_by, struct sw_err *err)
{
    memset(session, 0, sizeof *session);
    session->config = config;
    session->device = device;
    session->model_path = model_path;
    sw_progress_init(&session->progress);
    sw_code code = sw_session_check(config, device, err);
    if (code == SW_OK && open_model(session, err) != SW_OK) {
        (void)sw_err_blame(err, named_by);
        code = err->code == SW_E_USAGE ? sw_config_locate(config, err) : err->code;
    }
    if (code == SW_OK && config->train.freeze.count > 0 &&
        sw_model_freeze(session->model, (const char *const *)config->train.freeze.items,
                        config->train.freeze.count, err) != SW_OK)
        code = sw_config_locate(config, err);
    if (code == SW_OK && sw_tokenizer_eos(session->tokenizer) != session->model->t5.eos_id)
        sw_progress_say(&session->progress,
                        "warning: config.json's eos_token_id is %d, the tokenizer's </s> is %d: "
                        "rows end with one, generation waits for the other",
                        session->model->t5.eos_id, sw_tokenizer_eos(session->tokenizer));
    if (code == SW_OK)
        code = open_workers(session, err);
    if (code != SW_OK)
        sw_session_close(session);
    return code;
}

void sw_session_close(struct sw_session *session)
{
    sw_progress_end(&session->progress);
    sw_engine_close(session->engine);
    sw_plan_free(session->plan);
    if (session->pool != NULL)
        sw_pool_close(session->pool);
    sw_numa_close(&session->numa);
    sw_tokenizer_close(session->tokenizer);
    sw_mapping_close(session->mapping);
    sw_model_close(session->model);
    sw_model_dir_close(session->dir);
    memset(session, 0, sizeof *session);
}

sw_code sw_session_optimizer(const struct sw_config *config, int64_t total_steps,
                             struct sw_optim_settings *out, struct sw_err *err)
{
    bool adafactor = config->optimizer.name == SW_CFG_ADAFACTOR;
    static const struct {
        const char *key;
        uint32_t bit;
    } bits[] = {{"optimizer.lr", SW_OPTIM_GIVEN_LR},
                {"optimizer.betas", SW_OPTIM_GIVEN_BETAS},
                {"optimizer.eps", SW_OPTIM_GIVEN_EPS},
                {"optimizer.schedule", SW_OPTIM_GIVEN_SCHEDULE},
                {"optimizer.warmup_steps", SW_OPTIM_GIVEN_WARMUP_STEPS},
                {"optimizer.scale_parameter", SW_OPTIM_GIVEN_SCALE_PARAMETER},
                {"optimizer.relative_step", SW_OPTIM_GIVEN_RELATIVE_STEP}};
    sw_optim_settings_init(out, adafactor ? SW_OPTIM_ADAFACTOR : SW_OPTIM_ADAMW);
    for (size_t i = 0; i < sizeof bits / sizeof *bits; i++)
        if (sw_config_given(config, bits[i].key))
            out->given |= bits[i].bit;
    out->lr = config->optimizer.lr;
    out->max_grad_norm = config->optimizer.max_grad_norm;
    /* Adafactor's own defaults are no clash under another name, what a person gave is. */
    if (adafactor || (out->given & SW_OPTIM_GIVEN_SCALE_PARAMETER) != 0)
        out->scale_parameter = config->optimizer.scale_parameter;
    if (adafactor || (out->given & SW_OPTIM_GIVEN_RELATIVE_STEP) != 0)
        out->relative_step = config->optimizer.relative_step;
    if (!adafactor || (out->given & SW_OPTIM_GIVEN_BETAS) != 0) {
        out->beta1 = config->optimizer.betas[0];
        out->beta2 = config->optimizer.betas[1];
    }
    if (!adafactor || (out->given & SW_OPTIM_GIVEN_EPS) != 0)
        out->eps = config->optimizer.eps;
    out->weight_decay = config->optimizer.weight_decay;
    out->schedule = (enum sw_optim_schedule)config->optimizer.schedule;
    out->warmup_steps = config->optimizer.warmup_steps;
    out->total_steps = total_steps;
    out->early_step = config->optimizer.early_step;
    out->moments = config->precision.moments == SW_CFG_BF16 ? SW_BF16 : SW_F32;
    out->grads = config->precision.grads == SW_CFG_BF16 ? SW_BF16 : SW_F32;
    out->master =
        config->precision.master == SW_CFG_MASTER_SPLIT ? SW_MASTER_SPLIT : SW_MASTER_FP32;
    out->seed = (uint64_t)config->train.seed;
    sw_code code = sw_optim_settings_check(out, err);
    return code == SW_OK ? SW_OK : sw_config_locate(config, err);
}

/* Generation runs on one rank. */
static void set_grid(const struct sw_session *session, enum sw_purpose purpose,
                     struct sw_plan_request *out)
{
    static const enum sw_schedule schedules[] = {SW_SCHEDULE_AUTO, SW_SCHEDULE_LAYERED,
                                                 SW_SCHEDULE_1F1B, SW_SCHEDULE_GPIPE};
    const struct sw_config *config = session->config;
    bool grid = purpose != SW_FOR_GENERATION;
    out->pipeline = grid ? (int32_t)config->parallel.pipeline : 1;
    out->data = grid ? (int32_t)config->parallel.data : 1;
    out->zero = (int)config->parallel.zero;
    out->schedule = schedules[config->parallel.schedule];
    out->devices = session->devices;
}

/* Physical devices of all ranks: as listed, else one each. The CPU back end has one, which all
 * share. */
static sw_code list_devices(struct sw_session *session, const struct sw_plan_request *request,
                            struct sw_err *err)
{
    const struct sw_config *config = session->config;
    const struct sw_integers *list = &config->devices.list;
    int64_t ranks = (int64_t)request->pipeline * request->data;
    int count = 1;
    if (ranks > SW_SESSION_RANKS)
        return SW_FAIL(err, SW_E_USAGE, "parallel.pipeline x parallel.data: %lld ranks; at most %d",
                       (long long)ranks, (int)SW_SESSION_RANKS);
    if (config->devices.count > 0 && config->devices.count != ranks &&
        request->purpose != SW_FOR_GENERATION)
        return SW_FAIL(
            err, SW_E_USAGE,
            "devices.count: %lld, but parallel.pipeline x parallel.data make %lld rank%s",
            (long long)config->devices.count, (long long)ranks, sw_text_plural(ranks));
    sw_code code = session->device->count(&count, err);
    for (int64_t i = 0; i < list->count && code == SW_OK; i++)
        if (session->device->asynchronous && list->items[i] >= count)
            code = SW_FAIL(err, SW_E_USAGE, "devices.list: there is no device %lld (of %d)",
                           (long long)list->items[i], count);
    if (code == SW_OK && list->count > 0 && list->count < ranks)
        code =
            SW_FAIL(err, SW_E_USAGE, "devices.list: %lld device%s for %lld ranks; name one a rank",
                    (long long)list->count, sw_text_plural(list->count), (long long)ranks);
    if (code == SW_OK && list->count == 0 && session->device->asynchronous && ranks > count)
        code =
            SW_FAIL(err, SW_E_USAGE,
                    "parallel.pipeline x parallel.data: %lld ranks, but %d GPU%s; ranks share one "
                    "when devices.list repeats it",
                    (long long)ranks, count, sw_text_plural(count));
    for (int64_t i = 0; i < ranks && code == SW_OK; i++)
        session->devices[i] = !session->device->asynchronous ? 0
                              : list->count > 0              ? (int32_t)list->items[i]
                                                             : (int32_t)i;
    return code;
}

static sw_code too_little(int32_t device, const struct sw_device_info *info, bool given,
                          int64_t share_bytes, struct sw_err *err)
{
    const double mib = 1 << 20;
    double share = (double)share_bytes / mib, extra = (double)info->extra_bytes / mib;
    if (given)
        return SW_FAIL(
            err, SW_E_FIT,
            "devices.memory: %.0f MiB a rank, of which %.0f MiB are taken beside what is "
            "planned (GPU %d, %s); more of it would help",
            share, extra, (int)device, info->name);
    return SW_FAIL(err, SW_E_FIT,
                   "GPU %d (%s): %.0f of its %.0f MiB are free for a rank, which takes %.0f MiB "
                   "beside what is planned; other programs have the rest (nvidia-smi), or "
                   "devices.list names another GPU",
                   (int)device, info->name, share > 0 ? share : 0.0,
                   (double)info->total_bytes / mib, extra);
}

/* What the plan may take of each rank's GPU: the cap, or else an even share of what is free on the
 * fullest; less what a rank takes beside it. */
static sw_code limit_devices(const struct sw_session *session, struct sw_plan_request *request,
                             int64_t group_bytes, struct sw_err *err)
{
    int32_t ranks = request->pipeline * request->data;
    int64_t least = request->device_memory_bytes > 0 ? request->device_memory_bytes : INT64_MAX;
    bool given = request->device_memory_bytes > 0;
    if (session->device->describe == NULL)
        return SW_OK;
    for (int32_t i = 0; i < ranks; i++) {
        struct sw_device_info info;
        int64_t sharing = 0;
        sw_code code = session->device->describe(session->devices[i], &info, err);
        if (code != SW_OK)
            return code;
        for (int32_t other = 0; other < ranks; other++)
            sharing += session->devices[other] == session->devices[i];
        int64_t share = given ? least : info.free_bytes / sharing;
        info.extra_bytes += group_bytes;
        if (share <= info.extra_bytes)
            return too_little(session->devices[i], &info, given, share, err);
        if (share - info.extra_bytes >= request->device_memory_bytes && i > 0)
            continue;
        request->device_memory_bytes = share - info.extra_bytes;
        request->device_extra_bytes = info.extra_bytes;
    }
    return SW_OK;
}

/* How the ranks' devices reach each other. */
static sw_code find_links(struct sw_session *session, struct sw_plan_request *request,
                          int64_t *group_bytes, struct sw_err *err)
{
    struct sw_links links;
    sw_code code = sw_links_find(&links, session->device, session->devices, request->pipeline,
                                 request->data, err);
    if (code == SW_OK && links.without != NULL)
        sw_progress_say(&session->progress, "note: %s: ranks on different GPUs copy and add",
                        links.without);
    request->mailbox = links.mailbox;
    *group_bytes = links.group_bytes;
    return code;
}

/* Rates of the file that run.machine names. Those of a GPU stay unknown where it has none. */
static sw_code read_rates(const struct sw_config *config, bool cpu, struct sw_plan_rates *out,
                          struct sw_err *err)
{
    struct sw_machine *machine = calloc(1, sizeof *machine);
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    sw_code code = sw_machine_read(config->run.machine, machine, err);
    bool gpu = !cpu && code == SW_OK && machine->gpu_count > 0;
    if (code == SW_OK) {
        sw_plan_rates_of_machine(machine, gpu, out);
        out->origin = config->run.machine;
        out->device_is_host = cpu;
        if (!cpu && !gpu)
            out->gemm_flops = out->device_bytes = out->h2d_bytes = out->d2h_bytes =
                out->both_bytes = 0;
    } else {
        code = sw_err_blame(err, "run.machine");
    }
    free(machine);
    return code;
}

static float dropout_of(const struct sw_session *session)
{
    double wanted = session->config->train.dropout;
    return wanted >= 0 ? (float)wanted : session->model->t5.dropout;
}

sw_code sw_session_request(struct sw_session *session, enum sw_purpose purpose,
                           struct sw_plan_request *out, struct sw_err *err)
{
    const struct sw_config *config = session->config;
    bool cpu = !session->device->asynchronous;
    *out = (struct sw_plan_request){
        .model = session->model,
        .optim = purpose == SW_FOR_TRAINING ? &session->optim : NULL,
        .kernels = session->device->kernels,
        .purpose = purpose,
        .compute = config->precision.compute == SW_CFG_BF16 ||
                           (config->precision.compute == SW_CFG_DTYPE_AUTO && !cpu)
                       ? SW_BF16
                       : SW_F32,
        .dropout = dropout_of(session),
        .global_batch = config->train.global_batch,
        .micro_batch = config->train.micro_batch,
        .source_length = config->data.max_source_length,
        .target_length = config->data.max_target_length,
        .recompute = config->train.recompute == SW_CFG_RECOMPUTE_ON    ? SW_RECOMPUTE_ON
                     : config->train.recompute == SW_CFG_RECOMPUTE_OFF ? SW_RECOMPUTE_OFF
                                                                       : SW_RECOMPUTE_AUTO,
    };
    out->rates.device_is_host = cpu;
    out->device_is_remote = !cpu;
    out->where = config->optimizer.where == SW_CFG_WHERE_HOST     ? SW_STEP_HOST
                 : config->optimizer.where == SW_CFG_WHERE_DEVICE ? SW_STEP_DEVICE
                 : config->optimizer.where == SW_CFG_WHERE_STREAM ? SW_STEP_STREAM
                                                                  : SW_STEP_AUTO;
    set_grid(session, purpose, out);
    sw_code code = list_devices(session, out, err);
    if (code == SW_OK && config->run.machine[0] != '\0')
        code = read_rates(config, cpu, &out->rates, err);
    if (code != SW_OK)
        return sw_config_locate(config, err);
    int64_t group_bytes = 0;
    code = sw_tiers_limits(config, cpu, out, err);
    if (code == SW_OK)
        code = find_links(session, out, &group_bytes, err);
    if (code == SW_OK)
        code = limit_devices(session, out, group_bytes, err);
    return code == SW_OK ? SW_OK : sw_config_locate(config, err);
}

enum sw_dtype sw_session_output_dtype(const struct sw_config *config)
{
    return config->output.dtype == SW_CFG_BF16   ? SW_BF16
           : config->output.dtype == SW_CFG_FP16 ? SW_F16
                                                 : SW_F32;
}

struct sw_transfer sw_session_transfer(struct sw_session *session, const char *what)
{
    session->progress.what = what;
    return (struct sw_transfer){sw_progress_share, &session->progress};
}

sw_code sw_session_plan(struct sw_session *session, const struct sw_plan_request *request,
                        struct sw_err *err)
{
    sw_code code = sw_plan_make(&session->plan, request, err);
    if (code == SW_E_USAGE)
        return sw_config_locate(session->config, err);
    if (code == SW_OK && request->purpose == SW_FOR_TRAINING) {
        sw_tiers_note_unused(session->config, session->plan, &session->progress);
        sw_tiers_note_rates(session->plan, &session->progress);
    }
    return code;
}

/* Request size, depth and weights of the drives; a drive is timed where much will be spilled. */
static sw_code time_drives(struct sw_session *session, struct sw_err *err)
{
    struct sw_tiers *tiers = &session->tiers;
    struct sw_measure_settings best;
    if (session->plan->total_bytes[SW_TIER_NVME] < SW_MEASURE_LEAST_BYTES)
        return SW_OK;
    sw_code code = sw_measure_directories(tiers->directories, tiers->spill.directory_count,
                                          tiers->spill.method, &best, err);
    if (code != SW_OK)
        return code;
    tiers->spill.request_bytes = best.request_bytes;
    if (tiers->spill.queue_depth == 0)
        tiers->spill.queue_depth = best.queue_depth;
    return SW_OK;
}

/* Host memory of a rank lies near its GPU; the workers of the pool, which touch what the CPU back
 * end has, are where they are. */
static void bind_near(void *context, int32_t rank)
{
    const struct sw_session *session = context;
    char bus_id[64];
    bool known = session->device->bus_id != NULL &&
                 session->device->bus_id(session->devices[rank], bus_id, (int)sizeof bus_id);
    sw_numa_bind_slabs(&session->numa, known ? bus_id : NULL);
}

sw_code sw_session_load(struct sw_session *session, struct sw_err *err)
{
    const struct sw_config *config = session->config;
    session->progress.what = "preparing spill files";
    bool spills = sw_tiers_spill(config, &session->numa, &session->progress, &session->tiers);
    if (spills && time_drives(session, err) != SW_OK)
        return sw_err_while(err, "timing the directories of offload.nvme");
    const struct sw_engine_config engine = {
        .plan = session->plan,
        .model = session->model,
        .optim = session->plan->request.optim,
        .device = session->device,
        .pool = session->pool,
        .devices = session->devices,
        .seed = (uint64_t)config->train.seed,
        .dropout = dropout_of(session),
        .smoothing = (float)config->train.label_smoothing,
        .overlap = config->run.overlap,
        .near = bind_near,
        .near_context = session,
        .note = sw_tiers_say,
        .note_context = &session->progress,
        .spill = spills ? &session->tiers.spill : NULL,
    };
    sw_code code = sw_engine_open(&session->engine, &engine, err);
    sw_numa_unbind_slabs(&session->numa);
    if (code != SW_OK)
        return code;
    struct sw_transfer transfer = sw_session_transfer(
        session, session->mapping != NULL ? "reading weights" : "making weights");
    if (session->mapping != NULL)
        code = sw_weights_load(session->engine, session->model, session->mapping, &transfer, err);
    else
        code = sw_weights_random(session->engine, session->model, (uint64_t)config->train.seed,
                                 session->pool, &transfer, err);
    if (session->progress.terminal)
        sw_progress_end(&session->progress);
    return code;
}
