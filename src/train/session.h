/* What train, eval and generate share: from a configuration and a model directory to a planned,
 * loaded and started engine. */
#ifndef SPILLWAY_TRAIN_SESSION_H
#define SPILLWAY_TRAIN_SESSION_H

#include "ckpt/checkpoint.h"
#include "config/config.h"
#include "data/tokenizer.h"
#include "io/model_dir.h"
#include "model/config.h"
#include "train/progress.h"
#include "train/tiers.h"

enum { SW_SESSION_RANKS = 64 };

struct sw_session {
    const struct sw_config *config;
    const struct sw_device_ops *device;
    bool (*stop_requested)(void); /* for what takes long; NULL: never. Set it after opening */
    const char *model_path;       /* where weights, config.json and tokenizer come from */
    struct sw_progress progress;
    struct sw_numa numa;
    struct sw_pool *pool;
    struct sw_model_dir *dir; /* NULL with random weights */
    struct sw_model *model;
    struct sw_mapping *mapping;
    struct sw_tokenizer *tokenizer;
    struct sw_optim_settings optim; /* training */
    struct sw_tiers tiers;
    int32_t devices[SW_SESSION_RANKS]; /* physical device of each rank */
    struct sw_plan *plan;
    struct sw_engine *engine;
};

/* What the back end does not do, whatever the model: SW_E_USAGE. sw_session_open() asks it first.
 */
sw_code sw_session_check(const struct sw_config *config, const struct sw_device_ops *device,
                         struct sw_err *err) SW_WARN_UNUSED;
/* Read and check the model directory, which setting or option `named_by` names, and the tokenizer;
 * start the workers. Loads no weights. SW_E_USAGE when the directory cannot be used. */
sw_code sw_session_open(struct sw_session *session, const struct sw_config *config,
                        const struct sw_device_ops *device, const char *model_path,
                        const char *named_by, struct sw_err *err) SW_WARN_UNUSED;
void sw_session_close(struct sw_session *session);

/* A request as configuration and machine say; the caller fills in rows and lengths. */
sw_code sw_session_request(struct sw_session *session, enum sw_purpose purpose,
                           struct sw_plan_request *out, struct sw_err *err) SW_WARN_UNUSED;
/* Plan; allocates nothing of the size of the model. */
sw_code sw_session_plan(struct sw_session *session, const struct sw_plan_request *request,
                        struct sw_err *err) SW_WARN_UNUSED;
/* Allocate as planned and load weights. The engine is not started, so that states can follow. */
sw_code sw_session_load(struct sw_session *session, struct sw_err *err) SW_WARN_UNUSED;

/* Optimizer settings of the configuration, checked. */
sw_code sw_session_optimizer(const struct sw_config *config, int64_t total_steps,
                             struct sw_optim_settings *out, struct sw_err *err) SW_WARN_UNUSED;

/* Of the weights in output.dir/final. */
enum sw_dtype sw_session_output_dtype(const struct sw_config *config);

/* For sw_weights_*(): shows "what 43 %". */
struct sw_transfer sw_session_transfer(struct sw_session *session, const char *what);

#endif
