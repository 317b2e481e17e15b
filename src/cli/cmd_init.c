/* spillway init */
#include "base/file.h"
#include "base/json.h"
#include "base/mem.h"
#include "ckpt/export.h"
#include "ckpt/weights.h"
#include "cli/command.h"
#include "cli/stop.h"
#include "data/tokenizer.h"
#include "model/config.h"
#include "model/init.h"
#include "model/presets.h"
#include "train/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONFIG_MAX_BYTES = 1 << 24 };

struct init {
    const char *preset, *config, *tokenizer, *out;
    bool weights;
    uint64_t seed;
    struct sw_text text; /* of config.json */
    struct sw_model *model;
};

static sw_code read_config(struct init *init, struct sw_err *err)
{
    if (init->preset != NULL)
        return sw_preset_config(init->preset, &init->text, err);
    char *bytes;
    int64_t count;
    sw_code code = sw_file_read(init->config, CONFIG_MAX_BYTES, &bytes, &count, err);
    if (code != SW_OK)
        return sw_err_blame(err, "--config");
    sw_text_add_bytes(&init->text, bytes, count);
    free(bytes);
    return sw_text_check(&init->text, init->config, err);
}

/* Refuses a tokenizer with more ids than the model, with all that there is to change. */
static sw_code check_vocabulary(const struct init *init, const char *what,
                                const struct sw_tokenizer *tokenizer, struct sw_err *err)
{
    struct sw_text advice = {0};
    long long vocabulary = (long long)init->model->t5.vocab_size;
    long long ids = (long long)sw_tokenizer_vocabulary(tokenizer);
    long long sentinels = (long long)sw_tokenizer_sentinels(tokenizer);
    if (ids <= vocabulary)
        return SW_OK;
    if (init->preset == NULL)
        sw_text_add(&advice, ": make vocab_size %lld or more, or", ids);
    else
        sw_text_add(&advice, ":");
    if (vocabulary > sentinels)
        sw_text_add(&advice, " take a tokenizer of at most %lld pieces", vocabulary - sentinels);
    else
        sw_text_add(&advice, " take another tokenizer");
    sw_code code = sw_text_check(&advice, "a message", err);
    if (code == SW_OK)
        code = SW_FAIL(err, SW_E_USAGE,
                       "%s has %lld pieces and %lld extra ids, that is %lld ids; %s has vocab_size "
                       "%lld%s",
                       init->tokenizer, ids - sentinels, sentinels, ids, what, vocabulary,
                       advice.bytes);
    free(advice.bytes);
    return code;
}

static sw_code check_tokenizer(const struct init *init, const char *what, struct sw_err *err)
{
    struct sw_tokenizer *tokenizer = NULL;
    sw_code code = sw_tokenizer_open(init->tokenizer, 0, &tokenizer, err);
    if (code == SW_OK)
        code = check_vocabulary(init, what, tokenizer, err);
    if (code == SW_OK && sw_tokenizer_eos(tokenizer) != init->model->t5.eos_id)
        fprintf(
            stderr,
            "warning: eos_token_id of %s is %d, </s> of %s is %d: rows end with one, generation "
            "waits for the other\n",
            what, init->model->t5.eos_id, init->tokenizer, sw_tokenizer_eos(tokenizer));
    sw_tokenizer_close(tokenizer);
    return code == SW_OK ? SW_OK : sw_err_blame(err, "--tokenizer");
}

static sw_code open_model(struct init *init, struct sw_err *err)
{
    const char *what = init->preset != NULL ? init->preset : init->config;
    struct sw_json *json = NULL;
    sw_code code = sw_json_parse(init->text.bytes, init->text.used_bytes, what, &json, err);
    if (code == SW_OK)
        code = sw_model_open(json, what, SW_HEAD_BY_CONFIG, &init->model, err);
    sw_json_free(json);
    return code == SW_OK ? check_tokenizer(init, what, err) : sw_err_blame(err, "--config");
}

static sw_code check_space(const struct init *init, struct sw_err *err)
{
    int64_t needed = init->weights ? init->model->elements * sw_dtype_bytes(SW_F32) : 0;
    int64_t there = sw_directory_free_bytes(init->out);
    if (there < 0 || needed <= there)
        return SW_OK;
    struct sw_text text = {0};
    sw_text_add(&text, "does not fit: the weights take ");
    sw_text_add_size(&text, needed);
    sw_text_add(&text, ", the file system of --out %s has ", init->out);
    sw_text_add_size(&text, there);
    sw_text_add(&text, " free; choose an --out with more room, or --no-weights (random weights "
                       "are made when training begins, model.random_init: true)");
    sw_code code = sw_text_check(&text, "a message", err);
    if (code == SW_OK)
        code = SW_FAIL(err, SW_E_FIT, "%s", text.bytes);
    free(text.bytes);
    return code;
}

struct making {
    const struct init *init;
    struct sw_export *export;
};

static sw_code make_piece(void *context, int64_t param, int64_t first, int64_t count, float *piece,
                          struct sw_err *err)
{
    const struct making *making = context;
    if (sw_stop_asked())
        return SW_FAIL(err, SW_E_STOPPED, "stopped; %s was not made", making->init->out);
    sw_init_fill(making->init->model, making->init->seed, param, first, count, piece);
    return sw_export_write(making->export, piece, count, err);
}

static sw_code write_weights(const struct init *init, struct sw_export *export, struct sw_err *err)
{
    struct making making = {init, export};
    struct sw_progress progress;
    sw_progress_init(&progress);
    sw_stop_watch("\nstopping; again: at once\n");
    progress.what = "making weights";
    const struct sw_transfer transfer = {sw_progress_share, &progress};
    sw_code code = sw_weights_walk(init->model, make_piece, &making, &transfer, err);
    sw_progress_end(&progress);
    return code;
}

/* The tokenizer's file under the name that model directories have for it. */
static sw_code copy_tokenizer(const struct init *init, const char *directory, struct sw_err *err)
{
    char *to = sw_path_join(directory, "spiece.model");
    char *from = sw_file_is_directory(init->tokenizer)
                     ? sw_path_join(init->tokenizer, "spiece.model")
                     : sw_strdup(init->tokenizer);
    sw_code code = to != NULL && from != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory");
    if (code == SW_OK)
        code = sw_file_copy(from, to, err);
    free(to);
    free(from);
    return code;
}

static sw_code write_directory(const struct init *init, struct sw_err *err)
{
    const struct sw_model *model = init->model;
    int64_t count = init->weights ? model->param_count : 0;
    struct sw_export_tensor *tensors = sw_calloc(count + 1, sizeof *tensors);
    struct sw_export *export = NULL;
    if (tensors == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to write %s", init->out);
    for (int64_t i = 0; i < count; i++) {
        tensors[i] =
            (struct sw_export_tensor){.name = model->params[i].name, .dims = model->params[i].dims};
        memcpy(tensors[i].shape, model->params[i].shape,
               (size_t)model->params[i].dims * sizeof(int64_t));
    }
    const struct sw_export_options options = {
        .directory = init->out, .config_text = init->text.bytes, .dtype = SW_F32};
    sw_code code = sw_export_begin(&export, &options, tensors, count, err);
    if (code == SW_OK && init->weights)
        code = write_weights(init, export, err);
    if (code == SW_OK)
        code = copy_tokenizer(init, sw_export_directory(export), err);
    if (code == SW_OK)
        code = sw_export_commit(export, err);
    else
        sw_export_abort(export);
    free(tensors);
    return code;
}

static sw_code parse(struct init *init, const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_command *command = &sw_command_init;
    init->preset = sw_cli_value(command, args, "preset");
    init->config = sw_cli_value(command, args, "config");
    init->tokenizer = sw_cli_value(command, args, "tokenizer");
    init->out = sw_cli_value(command, args, "out");
    init->weights = sw_cli_value(command, args, "no-weights") == NULL;
    int64_t seed = 0;
    if ((init->preset == NULL) == (init->config == NULL))
        return SW_FAIL(err, SW_E_USAGE, "init needs one of --preset and --config");
    sw_code code = sw_cli_integer(command, args, "seed", 0, INT64_MAX, 0, &seed, err);
    init->seed = (uint64_t)seed;
    if (code == SW_OK && sw_file_exists(init->out) && !sw_directory_is_empty(init->out))
        code = SW_FAIL(err, SW_E_USAGE, "--out: %s is there already and not empty; choose another",
                       init->out);
    if (code == SW_OK && sw_directory_check(init->out, err) != SW_OK)
        code = sw_err_blame(err, "--out");
    return code;
}

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    struct init init = {0};
    sw_code code = parse(&init, args, err);
    if (code == SW_OK)
        code = read_config(&init, err);
    if (code == SW_OK)
        code = open_model(&init, err);
    if (code == SW_OK)
        code = check_space(&init, err);
    if (code == SW_OK)
        code = write_directory(&init, err);
    if (code == SW_OK)
        fprintf(stderr, "%s: %.1f M parameters%s\n", init.out, (double)init.model->elements / 1e6,
                init.weights ? ", random weights" : ", no weights (model.random_init: true)");
    sw_model_close(init.model);
    free(init.text.bytes);
    return code;
}

const struct sw_command sw_command_init = {
    .name = "init",
    .summary = "make a model directory with random weights",
    .options = {{"preset", "NAME",
                 "a published model's shape: t5-small ... t5-11b, t5-v1_1-*, "
                 "flan-t5-*, mt5-*"},
                {"config", "FILE", "or a config.json"},
                {"tokenizer", "FILE",
                 "a SentencePiece model (spiece.model), or a directory with one"},
                {"out", "DIR", "the directory to make"},
                {"seed", "N", "of the weights (0)"},
                {"no-weights", NULL, "config and tokenizer only"}},
    .needed = {"tokenizer", "out"},
    .help = "Ctrl-C leaves nothing behind (exit status 75).\n",
    .run = run,
};
