/* The configuration: one table of options (options.c) says key, type, default, unit and help of
 * everything; YAML files, `--set key=value`, the dump in the run directory and `spillway help
 * config` come from it.
 *
 * Errors are SW_E_USAGE and name the key, the file and line (or --set), and the nearest valid key.
 * Later settings replace earlier ones. */
#ifndef SPILLWAY_CONFIG_CONFIG_H
#define SPILLWAY_CONFIG_CONFIG_H

#include "base/err.h"
#include "base/text.h"

#include <stdint.h>

enum { SW_CONFIG_LIST = 64, SW_CONFIG_KEYS_MAX = 96 };

/* Values of enumerated keys, in the order of their names in the table. */
enum sw_cfg_bad_row { SW_CFG_STOP, SW_CFG_SKIP };
enum sw_cfg_recompute { SW_CFG_RECOMPUTE_AUTO, SW_CFG_RECOMPUTE_ON, SW_CFG_RECOMPUTE_OFF };
enum sw_cfg_optimizer { SW_CFG_ADAMW, SW_CFG_ADAFACTOR };
enum sw_cfg_schedule { SW_CFG_CONSTANT, SW_CFG_LINEAR, SW_CFG_COSINE, SW_CFG_INVERSE_SQRT };
enum sw_cfg_where {
    SW_CFG_WHERE_AUTO,
    SW_CFG_WHERE_HOST,
    SW_CFG_WHERE_DEVICE,
    SW_CFG_WHERE_STREAM
};
enum sw_cfg_dtype { SW_CFG_DTYPE_AUTO, SW_CFG_FP32, SW_CFG_BF16, SW_CFG_FP16 };
enum sw_cfg_master { SW_CFG_MASTER_FP32, SW_CFG_MASTER_SPLIT };
enum sw_cfg_device { SW_CFG_DEVICE_AUTO, SW_CFG_CUDA, SW_CFG_CPU };
enum sw_cfg_pipeline { SW_CFG_PIPE_AUTO, SW_CFG_LAYERED, SW_CFG_1F1B, SW_CFG_GPIPE };
enum sw_cfg_home { SW_CFG_HOME_AUTO, SW_CFG_HOME_DEVICE, SW_CFG_HOME_HOST, SW_CFG_HOME_NVME };
enum sw_cfg_io { SW_CFG_IO_AUTO, SW_CFG_IO_URING, SW_CFG_IO_SYNC };

struct sw_strings {
    char **items; /* owned */
    int64_t count;
};
struct sw_integers {
    int64_t items[SW_CONFIG_LIST];
    int64_t count;
};

struct sw_config {
    struct {
        char *path;
        bool random_init;
    } model;
    struct {
        char *train, *eval, *source_field, *target_field, *text_field;
        int64_t max_source_length, max_target_length;
        bool shuffle;
        int64_t seed;
        bool group_by_length;
        int on_bad_row; /* enum sw_cfg_bad_row */
    } data;
    struct {
        int64_t steps, epochs, global_batch, micro_batch;
        double dropout; /* negative: the model's */
        int64_t seed;
        int recompute; /* enum sw_cfg_recompute */
        double label_smoothing;
        struct sw_strings freeze;
    } train;
    struct {
        int name; /* enum sw_cfg_optimizer */
        double lr;
        double betas[2];
        double eps, weight_decay, max_grad_norm;
        int schedule; /* enum sw_cfg_schedule */
        int64_t warmup_steps;
        bool scale_parameter, relative_step, early_step;
        int where; /* enum sw_cfg_where */
    } optimizer;
    struct {
        int compute, moments, grads; /* enum sw_cfg_dtype */
        int master;                  /* enum sw_cfg_master */
    } precision;
    struct {
        int kind; /* enum sw_cfg_device */
        int64_t count;
        struct sw_integers list;
        int64_t memory_bytes, threads;
    } devices;
    struct {
        int64_t pipeline, data, zero;
        int schedule; /* enum sw_cfg_pipeline */
    } parallel;
    struct {
        int params, optimizer, grads, activations; /* enum sw_cfg_home */
        int64_t host_memory_bytes;
        struct sw_strings nvme;
        int64_t nvme_capacity_bytes, prefetch_depth;
    } offload;
    struct {
        int method; /* enum sw_cfg_io */
        int64_t queue_depth;
        bool verify;
    } io;
    struct {
        char *dir;
        bool final;
        int dtype; /* enum sw_cfg_dtype */
        int64_t save_every, keep_last, eval_every, log_every;
    } output;
    struct {
        double max_time_seconds; /* 0: none */
        bool overlap;
        char *machine; /* "": none */
    } run;
    /* By position in the table: set by a file or --set; the line it stands in, 0 for --set. */
    bool given[SW_CONFIG_KEYS_MAX];
    int32_t lines[SW_CONFIG_KEYS_MAX];
    char *path; /* of the file read; owned, NULL: none */
};

/* All defaults. End with sw_config_deinit(). */
sw_code sw_config_init(struct sw_config *config, struct sw_err *err) SW_WARN_UNUSED;
void sw_config_deinit(struct sw_config *config);

/* Read a YAML file; the same from memory, `path` names it in messages. */
sw_code sw_config_read(struct sw_config *config, const char *path,
                       struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_config_parse(struct sw_config *config, const char *text, int64_t bytes, const char *path,
                        struct sw_err *err) SW_WARN_UNUSED;
/* "key=value"; a list is written [a, b]. */
sw_code sw_config_set(struct sw_config *config, const char *assignment,
                      struct sw_err *err) SW_WARN_UNUSED;
/* After the last setting: defaults that follow from other keys take their place. */
sw_code sw_config_settle(struct sw_config *config, struct sw_err *err) SW_WARN_UNUSED;
/* What clashes whatever the model is. */
sw_code sw_config_check(const struct sw_config *config, struct sw_err *err) SW_WARN_UNUSED;
/* SW_E_USAGE, with an example, unless the key was set. */
sw_code sw_config_require(const struct sw_config *config, const char *key,
                          struct sw_err *err) SW_WARN_UNUSED;
/* Was the key set by a file or --set? */
bool sw_config_given(const struct sw_config *config, const char *key);

/* Begin the message of a refusal that names keys with where the first of them that was set stands
 * ("job.yaml:7: optimizer.lr ..."); for failures found behind sw_config_check(). Returns err->code.
 */
sw_code sw_config_locate(const struct sw_config *config, struct sw_err *err);

/* All keys and their values as YAML, which reads back as the same configuration: what was not set
 * stands there as a comment. */
void sw_config_dump(const struct sw_config *config, struct sw_text *out);
/* The value of one key, by position, as YAML. */
void sw_config_print(const struct sw_config *config, int index, struct sw_text *out);
/* Every key with type, default and help, for the terminal. */
void sw_config_help(struct sw_text *out);
/* The same as the tables of docs/CONFIG.md. */
void sw_config_help_markdown(struct sw_text *out);
/* Position of a key in the table, or -1; names by position. */
int sw_config_find(const char *key);
int sw_config_count(void);
const char *sw_config_key(int index);
const char *sw_config_key_help(int index);

#endif
