#include "kernels/device.h"

#include <stddef.h>

sw_code sw_stream_check(const struct sw_stream *stream, struct sw_err *err)
{
    if (stream->error.code == SW_OK)
        return SW_OK;
    if (err != NULL && err->code == SW_OK)
        *err = stream->error;
    return stream->error.code;
}
