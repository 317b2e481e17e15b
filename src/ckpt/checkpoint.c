#include "ckpt/checkpoint.h"

#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "io/model_dir.h"
#include "io/safetensors.h"
#include "io/safetensors_write.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    FORMAT = 1,
    PIECE_ELEMENTS = 1 << 20,
    NAME_BYTES = SW_PARAM_NAME_BYTES + 32,
    SMALL_FILES_BYTES = 4 << 20, /* headers, config.json, the tokenizer */
};

static const char STATES_FILE[] = "optimizer.safetensors", STATE_FILE[] = "state.json";

/* One state of one parameter, as it stands in the file. */
struct state_entry {
    int64_t param;
    int state;
    struct sw_optim_state described;
    char name[NAME_BYTES];
};

/* The states of all parameters, in order; *out is owned. */
static sw_code list_states(const struct sw_model *model, const struct sw_optim_settings *optim,
                           struct state_entry **out, int64_t *out_count, struct sw_err *err)
{
    struct state_entry *entries =
        sw_calloc(model->param_count * SW_OPTIM_STATES_MAX, sizeof *entries);
    struct sw_optim_param *params = sw_calloc(model->param_count, sizeof *params);
    int64_t count = 0;
    if (entries == NULL || params == NULL) {
        free(entries);
        free(params);
        return SW_FAIL(err, SW_E_MEMORY, "no memory to list optimizer states");
    }
    for (int64_t i = 0; i < model->param_count; i++)
        params[i] = sw_engine_optim_param(&model->params[i]);
    for (int64_t i = 0; i < model->param_count; i++) {
        const struct sw_unit *unit = &model->units[model->params[i].unit];
        const struct sw_optim_unit described = {.params = params + unit->first_param,
                                                .param_count = unit->param_count,
                                                .elements = unit->elements,
                                                .index = model->params[i].unit};
        int states = sw_optim_state_count(optim, &params[i]);
        for (int s = 0; s < states; s++) {
            struct state_entry *entry = &entries[count++];
            entry->param = i;
            entry->state = s;
            sw_optim_state_describe(optim, &described, i - unit->first_param, s, &entry->described);
            snprintf(entry->name, sizeof entry->name, "%s/%s", model->params[i].name,
                     entry->described.name);
        }
    }
    free(params);
    *out = entries;
    *out_count = count;
    return SW_OK;
}

/* Saving and loading walk the same pieces. */
typedef sw_code (*piece_fn)(void *context, const struct state_entry *entry, int64_t index,
                            int64_t first, int64_t count, void *piece, struct sw_err *err);

static sw_code walk_states(const struct state_entry *entries, int64_t count, piece_fn visit,
                           void *context, struct sw_err *err)
{
    void *piece = sw_aligned_alloc(PIECE_ELEMENTS * 4);
    if (piece == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to move optimizer states");
    sw_code code = SW_OK;
    for (int64_t i = 0; i < count && code == SW_OK; i++) {
        int64_t elements = entries[i].described.elements;
        for (int64_t first = 0; first < elements && code == SW_OK; first += PIECE_ELEMENTS) {
            int64_t n = elements - first < PIECE_ELEMENTS ? elements - first : PIECE_ELEMENTS;
            code = visit(context, &entries[i], i, first, n, piece, err);
        }
    }
    free(piece);
    return code;
}

sw_code sw_checkpoint_bytes(const struct sw_model *model, const struct sw_optim_settings *optim,
                            int64_t *out, struct sw_err *err)
{
    struct state_entry *entries = NULL;
    int64_t count = 0, bytes = SMALL_FILES_BYTES + model->elements * sw_dtype_bytes(SW_F32);
    sw_code code = list_states(model, optim, &entries, &count, err);
    if (code != SW_OK)
        return code;
    for (int64_t i = 0; i < count; i++)
        bytes += entries[i].described.elements * sw_dtype_bytes(entries[i].described.dtype);
    free(entries);
    *out = bytes;
    return SW_OK;
}

/* ---- saving ---- */

struct saving {
    struct sw_engine *engine;
    const struct sw_model *model;
    const struct sw_optim_settings *optim;
    const struct sw_run_state *state;
    struct sw_safetensors_writer *writer;
};

static sw_code save_piece(void *context, const struct state_entry *entry, int64_t index,
                          int64_t first, int64_t count, void *piece, struct sw_err *err)
{
    struct saving *saving = context;
    (void)index;
    sw_code code =
        sw_engine_read_state(saving->engine, entry->param, entry->state, first, count, piece, err);
    if (code != SW_OK)
        return code;
    return sw_safetensors_append(saving->writer, piece,
                                 count * sw_dtype_bytes(entry->described.dtype), err);
}

static sw_code save_states(struct saving *saving, const char *path, struct sw_err *err)
{
    struct state_entry *entries = NULL;
    struct sw_safetensors_entry *files = NULL;
    int64_t count = 0;
    sw_code code = list_states(saving->model, saving->optim, &entries, &count, err);
    if (code != SW_OK)
        return code;
    files = sw_calloc(count + 1, sizeof *files);
    if (files == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to save optimizer states");
    for (int64_t i = 0; i < count && code == SW_OK; i++) {
        const struct sw_optim_state *described = &entries[i].described;
        files[i] = (struct sw_safetensors_entry){.name = entries[i].name,
                                                 .dtype_name =
                                                     described->dtype == SW_BF16 ? "BF16" : "F32",
                                                 .dims = described->dims};
        memcpy(files[i].shape, described->shape, (size_t)described->dims * sizeof(int64_t));
    }
    if (code == SW_OK)
        code = sw_safetensors_create(path, files, count, NULL, &saving->writer, err);
    if (code == SW_OK) {
        code = walk_states(entries, count, save_piece, saving, err);
        if (code == SW_OK)
            code = sw_safetensors_finish(saving->writer, err);
        else
            sw_safetensors_discard(saving->writer);
    }
    free(files);
    free(entries);
    return code;
}

static sw_code save_state(const struct sw_run_state *state, const char *path, struct sw_err *err)
{
    struct sw_text text = {0};
    sw_text_add(
        &text,
        "{\"format\": %d, \"step\": %lld, \"updates\": %lld, \"nonfinite_steps\": %lld, "
        "\"micro_batch\": %lld, \"rows\": %lld, \"global_batch\": %lld, \"compute\": \"%s\", "
        "\"pipeline\": %lld, \"data\": %lld, \"schedule\": \"%s\", "
        "\"optimizer\": \"%s\", \"moments\": \"%s\"}\n",
        FORMAT, (long long)state->step, (long long)state->updates,
        (long long)state->nonfinite_steps, (long long)state->micro_batch, (long long)state->rows,
        (long long)state->global_batch, sw_dtype_name(state->compute), (long long)state->pipeline,
        (long long)state->data, sw_schedule_name(state->schedule),
        sw_optim_name_text(state->optimizer), sw_dtype_name(state->moments));
    sw_code code = sw_text_check(&text, path, err);
    if (code == SW_OK)
        code = sw_file_write_atomic(path, text.bytes, text.used_bytes, err);
    free(text.bytes);
    return code;
}

static sw_code save_extra(void *context, const char *directory, struct sw_err *err)
{
    struct saving *saving = context;
    char *states = sw_path_join(directory, STATES_FILE);
    char *state = sw_path_join(directory, STATE_FILE);
    sw_code code = states != NULL && state != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory");
    if (code == SW_OK)
        code = save_states(saving, states, err);
    if (code == SW_OK)
        code = save_state(saving->state, state, err);
    free(states);
    free(state);
    return code;
}

sw_code sw_checkpoint_save(struct sw_engine *engine, const struct sw_model *model,
                           const struct sw_optim_settings *optim, const char *source,
                           const char *directory, const struct sw_run_state *state,
                           const struct sw_transfer *transfer, struct sw_err *err)
{
    struct saving saving = {engine, model, optim, state, NULL};
    return sw_weights_export(engine, model, source, directory, SW_F32, save_extra, &saving,
                             transfer, err);
}

/* ---- loading ---- */

static sw_code read_integer(const struct sw_json *json, const char *key, const char *path,
                            int64_t *out, struct sw_err *err)
{
    if (sw_json_to_integer(sw_json_get(json, key), out) && *out >= 0)
        return SW_OK;
    return SW_FAIL(err, SW_E_FORMAT, "%s: %s is missing or no count", path, key);
}

/* Older checkpoints have none. */
static void read_grid(const struct sw_json *json, struct sw_run_state *state)
{
    const char *schedule = sw_json_to_string(sw_json_get(json, "schedule"));
    if (schedule == NULL || !sw_json_to_integer(sw_json_get(json, "pipeline"), &state->pipeline) ||
        !sw_json_to_integer(sw_json_get(json, "data"), &state->data))
        return;
    for (int i = SW_SCHEDULE_LAYERED; i <= SW_SCHEDULE_GPIPE; i++)
        if (strcmp(schedule, sw_schedule_name((enum sw_schedule)i)) == 0)
            state->schedule = (enum sw_schedule)i;
}

static sw_code parse_state(const struct sw_json *json, const char *path, struct sw_run_state *out,
                           struct sw_err *err)
{
    struct sw_run_state state = {0};
    int64_t format = 0;
    const struct {
        const char *key;
        int64_t *to;
    } integers[] = {{"format", &format},
                    {"step", &state.step},
                    {"updates", &state.updates},
                    {"nonfinite_steps", &state.nonfinite_steps},
                    {"micro_batch", &state.micro_batch},
                    {"rows", &state.rows}};
    for (size_t i = 0; i < sizeof integers / sizeof *integers; i++)
        if (read_integer(json, integers[i].key, path, integers[i].to, err) != SW_OK)
            return err->code;
    /* Older checkpoints have neither. */
    const char *compute = sw_json_to_string(sw_json_get(json, "compute"));
    if (compute != NULL &&
        read_integer(json, "global_batch", path, &state.global_batch, err) != SW_OK)
        return err->code;
    read_grid(json, &state);
    state.compute =
        compute != NULL && strcmp(compute, sw_dtype_name(SW_BF16)) == 0 ? SW_BF16 : SW_F32;
    const char *optimizer = sw_json_to_string(sw_json_get(json, "optimizer"));
    const char *moments = sw_json_to_string(sw_json_get(json, "moments"));
    if (format != FORMAT)
        return SW_FAIL(err, SW_E_FORMAT, "%s: format %lld; this version knows %d", path,
                       (long long)format, FORMAT);
    if (optimizer == NULL || moments == NULL)
        return SW_FAIL(err, SW_E_FORMAT, "%s: optimizer or moments are missing", path);
    bool adamw = strcmp(optimizer, sw_optim_name_text(SW_OPTIM_ADAMW)) == 0;
    state.optimizer = adamw ? SW_OPTIM_ADAMW : SW_OPTIM_ADAFACTOR;
    state.moments = strcmp(moments, sw_dtype_name(SW_BF16)) == 0 ? SW_BF16 : SW_F32;
    *out = state;
    return SW_OK;
}

sw_code sw_checkpoint_read(const char *directory, struct sw_run_state *out, struct sw_err *err)
{
    enum { MAX_BYTES = 1 << 16 };
    char *path = sw_path_join(directory, STATE_FILE);
    struct sw_json *json = NULL;
    sw_code code = SW_OK;
    if (path == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (!sw_file_exists(path))
        code = SW_FAIL(err, SW_E_USAGE, "%s is no checkpoint: it has no %s", directory, STATE_FILE);
    if (code == SW_OK)
        code = sw_json_read_file(path, MAX_BYTES, &json, err);
    if (code == SW_OK)
        code = parse_state(json, path, out, err);
    sw_json_free(json);
    free(path);
    return code;
}

/* Readers of model files tell whoever has half of one to download it; these were not. */
static void drop_advice(struct sw_err *err)
{
    static const char *const advice[] = {": download it again", ": half a download?"};
    for (size_t i = 0; err != NULL && i < sizeof advice / sizeof *advice; i++) {
        char *at = strstr(err->text, advice[i]);
        if (at != NULL)
            *at = '\0';
    }
}

sw_code sw_checkpoint_check(const char *directory, struct sw_err *err)
{
    struct sw_run_state state;
    struct sw_model_dir *model = NULL;
    struct sw_tensor_file *states = NULL;
    char *path = sw_path_join(directory, STATES_FILE);
    sw_code code = path != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (code == SW_OK)
        code = sw_checkpoint_read(directory, &state, err);
    if (code == SW_OK)
        code = sw_model_dir_open(directory, &model, err);
    if (code == SW_OK)
        code = sw_safetensors_open(path, &states, err);
    if (code != SW_OK)
        drop_advice(err);
    sw_tensor_file_close(states);
    sw_model_dir_close(model);
    free(path);
    return code;
}

struct loading {
    struct sw_engine *engine;
    const struct sw_tensor **tensors; /* [entries] */
};

static sw_code load_piece(void *context, const struct state_entry *entry, int64_t index,
                          int64_t first, int64_t count, void *piece, struct sw_err *err)
{
    struct loading *loading = context;
    sw_code code = sw_tensor_read_raw(loading->tensors[index], first, count, piece, err);
    if (code != SW_OK)
        return code;
    return sw_engine_write_state(loading->engine, entry->param, entry->state, first, count, piece,
                                 err);
}

/* Find every state among the file's tensors: same name, type and number of elements. */
static sw_code match_states(const struct sw_tensor_file *file, const struct state_entry *entries,
                            int64_t count, const struct sw_tensor **out, struct sw_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        for (int64_t t = 0; t < file->tensor_count && out[i] == NULL; t++)
            if (strcmp(file->tensors[t].name, entries[i].name) == 0)
                out[i] = &file->tensors[t];
        if (out[i] == NULL)
            return SW_FAIL(err, SW_E_FORMAT,
                           "%s lacks %s: was the checkpoint made with another optimizer or other "
                           "frozen parameters?",
                           file->path, entries[i].name);
        if (!out[i]->readable || out[i]->dtype != entries[i].described.dtype ||
            out[i]->elements != entries[i].described.elements)
            return SW_FAIL(err, SW_E_FORMAT, "%s: %s has another type or shape than this run's",
                           file->path, entries[i].name);
    }
    return SW_OK;
}

sw_code sw_checkpoint_load_states(struct sw_engine *engine, const struct sw_model *model,
                                  const struct sw_optim_settings *optim, const char *directory,
                                  struct sw_err *err)
{
    struct state_entry *entries = NULL;
    struct loading loading = {engine, NULL};
    struct sw_tensor_file *file = NULL;
    int64_t count = 0;
    char *path = sw_path_join(directory, STATES_FILE);
    sw_code code = path != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for a path");
    if (code == SW_OK)
        code = list_states(model, optim, &entries, &count, err);
    if (code == SW_OK)
        code = sw_safetensors_open(path, &file, err);
    if (code == SW_OK && (loading.tensors = sw_calloc(count + 1, sizeof(void *))) == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to load optimizer states");
    if (code == SW_OK)
        code = match_states(file, entries, count, loading.tensors, err);
    if (code == SW_OK)
        code = walk_states(entries, count, load_piece, &loading, err);
    free(loading.tensors);
    sw_tensor_file_close(file);
    free(entries);
    free(path);
    return code;
}
