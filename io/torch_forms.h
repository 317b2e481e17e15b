/* Inside of the pytorch_model.bin reader: its two forms. Each reads the pickle of an open file and
 * finds every storage: file_offset is set, and the whole storage lies within the file. */
#ifndef SPILLWAY_IO_TORCH_FORMS_H
#define SPILLWAY_IO_TORCH_FORMS_H

#include "io/pickle.h"
#include "io/tensor_file.h"

/* *out is owned: sw_pickle_free(). */
sw_code sw_torch_zip_read(const struct sw_tensor_file *file, struct sw_pickle **out,
                          struct sw_err *err) SW_WARN_UNUSED;
sw_code sw_torch_legacy_read(const struct sw_tensor_file *file, struct sw_pickle **out,
                             struct sw_err *err) SW_WARN_UNUSED;

/* Called by both before they look for storages: the weights are a dict of names and tensors. */
sw_code sw_torch_check_weights(const struct sw_tensor_file *file, const struct sw_pickle *weights,
                               struct sw_err *err) SW_WARN_UNUSED;

#endif
