/* Reading safetensors: 8 bytes of header length, a JSON header, the data.
 *
 * Everything is checked when the file is opened, before anything of the size of its contents is
 * allocated: header length against file size and the format's bound, strict JSON, dtype, shape *
 * dtype = bytes, offsets without overlaps or gaps, end of data = end of file, unique names.
 * Format: https://huggingface.co/docs/safetensors */
#ifndef SPILLWAY_IO_SAFETENSORS_H
#define SPILLWAY_IO_SAFETENSORS_H

#include "io/tensor_file.h"

enum { SW_SAFETENSORS_HEADER_MAX_BYTES = 100000000 };

/* Open and validate. *out is owned: sw_tensor_file_close(). SW_E_FORMAT names the file, the tensor
 * and what is wrong; SW_E_IO when it cannot be read. */
sw_code sw_safetensors_open(const char *path, struct sw_tensor_file **out,
                            struct sw_err *err) SW_WARN_UNUSED;

#endif
