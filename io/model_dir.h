/* A HuggingFace model directory, open for reading: config.json and all its tensors, wherever they
 * lie: model.safetensors, its shards by model.safetensors.index.json, pytorch_model.bin, its shards
 * by pytorch_model.bin.index.json; the first of these that is there.
 *
 * Refused with one clear line: a path that is no directory, no config.json, no weights or weights
 * of other frameworks only, Git LFS pointers, halves of downloads, missing shards, an index that
 * disagrees with its shards or points out of the directory, and whatever the file readers refuse.
 * Nothing of the size of the weights is allocated. */
#ifndef SPILLWAY_IO_MODEL_DIR_H
#define SPILLWAY_IO_MODEL_DIR_H

#include "io/tensor_file.h"

struct sw_model_dir {
    char *path;
    char *config_path; /* path/config.json, which exists */
    const char *format;
    struct sw_tensor *tensors; /* owned; sorted by name, which is unique; strings borrowed */
    int64_t tensor_count;
    struct sw_tensor_file **files; /* owned */
    int64_t file_count;
};

/* Open and validate config.json's presence and every weights file. *out is owned:
 * sw_model_dir_close(). */
sw_code sw_model_dir_open(const char *path, struct sw_model_dir **out,
                          struct sw_err *err) SW_WARN_UNUSED;
void sw_model_dir_close(struct sw_model_dir *dir); /* NULL is fine */

/* Borrowed from `dir`; NULL when there is none of that name. */
const struct sw_tensor *sw_model_dir_find(const struct sw_model_dir *dir, const char *name);

/* Is `path` a directory with a config.json? What makes a model directory without weights
 * (random initialisation). */
sw_code sw_model_dir_check_config(const char *path, struct sw_err *err) SW_WARN_UNUSED;

#endif
