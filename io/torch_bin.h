/* Reading pytorch_model.bin in both its forms: a zip archive (since PyTorch 1.6), and the plain
 * stream of pickles before. The pickle is read by a restricted reader (io/pickle.h) that knows
 * tensors and plain containers, refuses anything else by name and executes nothing. Tensor data is
 * read in place, so shared and strided storages cost nothing.
 *
 * Checked on opening: archive and pickles, every storage within the file and stored uncompressed,
 * every tensor within its storage, unique names. */
#ifndef SPILLWAY_IO_TORCH_BIN_H
#define SPILLWAY_IO_TORCH_BIN_H

#include "io/tensor_file.h"

/* Open and validate. *out is owned: sw_tensor_file_close(). */
sw_code sw_torch_bin_open(const char *path, struct sw_tensor_file **out,
                          struct sw_err *err) SW_WARN_UNUSED;

#endif
