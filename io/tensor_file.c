#include "io/tensor_file.h"

#include "base/file.h"
#include "base/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "model files are little-endian");

enum { SCRATCH_BYTES = 1 << 16 };

static const struct {
    const char *name;
    int32_t bytes;
    bool readable;
    enum sw_dtype dtype;
} dtypes[] = {
    {"F32", 4, true, SW_F32},      {"F16", 2, true, SW_F16},      {"BF16", 2, true, SW_BF16},
    {"F64", 8, false, SW_F32},     {"I64", 8, false, SW_F32},     {"U64", 8, false, SW_F32},
    {"C64", 8, false, SW_F32},     {"I32", 4, false, SW_F32},     {"U32", 4, false, SW_F32},
    {"I16", 2, false, SW_F32},     {"U16", 2, false, SW_F32},     {"I8", 1, false, SW_F32},
    {"U8", 1, false, SW_F32},      {"BOOL", 1, false, SW_F32},    {"F8_E4M3", 1, false, SW_F32},
    {"F8_E5M2", 1, false, SW_F32}, {"F8_E8M0", 1, false, SW_F32},
};

bool sw_tensor_set_dtype(struct sw_tensor *tensor, const char *name)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) != 0)
            continue;
        tensor->dtype_name = dtypes[i].name;
        tensor->element_bytes = dtypes[i].bytes;
        tensor->readable = dtypes[i].readable;
        tensor->dtype = dtypes[i].dtype;
        return true;
    }
    return false;
}

sw_code sw_tensor_file_open(const char *path, const char *format, struct sw_tensor_file **out,
                            struct sw_err *err)
{
    static const char pointer[] = "version https://git-lfs";
    char start[sizeof pointer - 1];
    struct sw_tensor_file *file = sw_calloc(1, sizeof *file);
    if (file == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", path);
    file->descriptor = -1;
    file->format = format;
    sw_code code = sw_file_open(path, &file->descriptor, &file->bytes, err);
    if (code != SW_OK)
        goto out;
    file->path = sw_strdup(path);
    if (file->path == NULL)
        code = SW_FAIL(err, SW_E_MEMORY, "no memory to open %s", path);
    else if (file->bytes == 0)
        code = SW_FAIL(err, SW_E_FORMAT, "%s is empty: download it again", path);
    else if (file->bytes >= (int64_t)sizeof start)
        code = sw_file_pread(file->descriptor, start, sizeof start, 0, path, err);
    if (code == SW_OK && file->bytes >= (int64_t)sizeof start &&
        memcmp(start, pointer, sizeof start) == 0)
        code = SW_FAIL(err, SW_E_FORMAT,
                       "%s is a Git LFS pointer, not the file itself: run `git lfs pull` in its "
                       "directory",
                       path);
out:
    if (code == SW_OK)
        *out = file;
    else
        sw_tensor_file_close(file);
    return code;
}

void sw_tensor_file_close(struct sw_tensor_file *file)
{
    if (file == NULL)
        return;
    if (file->descriptor >= 0)
        close(file->descriptor);
    free(file->path);
    free(file->tensors);
    free(file->strings);
    free(file);
}

bool sw_tensor_measure(struct sw_tensor *tensor, bool strides)
{
    int64_t elements = 1, dense = 1, bytes;
    bool contiguous = true;
    /* A dimension of 0 makes the tensor empty, however large the others are. */
    for (int32_t i = 0; i < tensor->dims; i++)
        if (tensor->shape[i] == 0)
            elements = 0;
    for (int32_t i = tensor->dims - 1; i >= 0; i--) {
        if (!strides)
            tensor->stride[i] = dense;
        else if (tensor->shape[i] > 1 && tensor->stride[i] != dense)
            contiguous = false;
        if (elements == 0)
            continue;
        if (!sw_size_mul(dense, tensor->shape[i], &dense))
            return false;
    }
    if (elements > 0)
        elements = dense;
    if (!sw_size_mul(elements, tensor->element_bytes, &bytes))
        return false;
    tensor->elements = elements;
    tensor->bytes = bytes;
    tensor->contiguous = contiguous || elements == 0;
    return true;
}

bool sw_tensor_span(const struct sw_tensor *tensor, int64_t *out_elements)
{
    int64_t span = 1;
    for (int32_t i = 0; i < tensor->dims; i++) {
        int64_t reach;
        if (tensor->shape[i] == 0) {
            *out_elements = 0;
            return true;
        }
        if (!sw_size_mul(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            !sw_size_add(span, reach, &span))
            return false;
    }
    *out_elements = span;
    return true;
}

char *sw_tensor_shape_text(const struct sw_tensor *tensor, char *out)
{
    size_t used = 0;
    for (int32_t i = 0; i < tensor->dims; i++)
        used += (size_t)snprintf(out + used, SW_TENSOR_SHAPE_TEXT_BYTES - used, "%s%lld",
                                 i == 0 ? "[" : ", ", (long long)tensor->shape[i]);
    snprintf(out + used, SW_TENSOR_SHAPE_TEXT_BYTES - used, tensor->dims == 0 ? "[]" : "]");
    return out;
}

sw_code sw_tensor_check_readable(const struct sw_tensor *tensor, struct sw_err *err)
{
    if (tensor->readable)
        return SW_OK;
    return SW_FAIL(err, SW_E_FORMAT,
                   "tensor %s of %s has dtype %s; only F32, F16 and BF16 can be used: convert it",
                   tensor->name, tensor->path, tensor->dtype_name);
}

/* A part of a strided tensor in which every dimension has a full range of its own: element
 * (i0, i1, ...) lies at `base` + sum of i * file_stride in the file, at sum of i * out_stride in
 * the output; both in elements. */
struct box {
    int32_t dims;
    int64_t base;
    int64_t extent[SW_TENSOR_DIMS], file_stride[SW_TENSOR_DIMS], out_stride[SW_TENSOR_DIMS];
};

/* Read `count` elements `stride` apart from element `from` of the file on; they go `out_stride`
 * apart. One read covers as many as fit the scratch memory. */
static sw_code read_run(const struct sw_tensor *tensor, int64_t from, int64_t stride, int64_t count,
                        char *out, int64_t out_stride, struct sw_err *err)
{
    char scratch[SCRATCH_BYTES];
    const int64_t width = tensor->element_bytes;
    int64_t step = stride < SCRATCH_BYTES / width ? (SCRATCH_BYTES / width - 1) / stride + 1 : 1;
    if (stride == 1 && out_stride == 1)
        return sw_file_pread(tensor->descriptor, out, count * width, tensor->offset + from * width,
                             tensor->path, err);
    for (int64_t done = 0; done < count; done += step) {
        int64_t part = count - done < step ? count - done : step;
        sw_code code =
            sw_file_pread(tensor->descriptor, scratch, ((part - 1) * stride + 1) * width,
                          tensor->offset + (from + done * stride) * width, tensor->path, err);
        if (code != SW_OK)
            return code;
        for (int64_t i = 0; i < part; i++)
            memcpy(out + (done + i) * out_stride * width, scratch + i * stride * width,
                   (size_t)width);
    }
    return SW_OK;
}

/* The dimension whose neighbours lie closest in the file goes last: it makes the longest reads. */
static void sort_box(struct box *box)
{
    int32_t best = -1;
    for (int32_t i = 0; i < box->dims; i++)
        if (box->extent[i] > 1 && box->file_stride[i] > 0 &&
            (best < 0 || box->file_stride[i] <= box->file_stride[best]))
            best = i;
    if (best < 0)
        return;
    int32_t last = box->dims - 1;
    int64_t extent = box->extent[best], from = box->file_stride[best], to = box->out_stride[best];
    box->extent[best] = box->extent[last];
    box->file_stride[best] = box->file_stride[last];
    box->out_stride[best] = box->out_stride[last];
    box->extent[last] = extent;
    box->file_stride[last] = from;
    box->out_stride[last] = to;
}

static sw_code read_box(const struct sw_tensor *tensor, struct box *box, char *out,
                        struct sw_err *err)
{
    int64_t index[SW_TENSOR_DIMS] = {0};
    sort_box(box);
    const int32_t last = box->dims - 1;
    for (;;) {
        int64_t from = box->base, to = 0;
        for (int32_t i = 0; i < last; i++) {
            from += index[i] * box->file_stride[i];
            to += index[i] * box->out_stride[i];
        }
        int64_t stride = box->file_stride[last] > 0 ? box->file_stride[last] : 1;
        int64_t count = box->file_stride[last] > 0 ? box->extent[last] : 1;
        char *run = out + to * tensor->element_bytes;
        sw_code code = read_run(tensor, from, stride, count, run, box->out_stride[last], err);
        if (code != SW_OK)
            return code;
        /* A dimension of stride 0 repeats one element. */
        for (int64_t i = count; i < box->extent[last]; i++)
            memcpy(run + i * box->out_stride[last] * tensor->element_bytes, run,
                   (size_t)tensor->element_bytes);
        int32_t i = last - 1;
        while (i >= 0 && ++index[i] == box->extent[i])
            index[i--] = 0;
        if (i < 0)
            return SW_OK;
    }
}

/* Whole rows `row` .. `row` + `rows` - 1 of dimension `dim`, all of the dimensions behind it. */
static sw_code read_rows(const struct sw_tensor *tensor, int32_t dim, int64_t base, int64_t row,
                         int64_t rows, char *out, struct sw_err *err)
{
    struct box box = {.dims = tensor->dims - dim};
    int64_t dense = 1;
    for (int32_t i = box.dims - 1; i >= 0; i--) {
        box.extent[i] = i == 0 ? rows : tensor->shape[dim + i];
        box.file_stride[i] = tensor->stride[dim + i];
        box.out_stride[i] = dense;
        dense *= box.extent[i];
    }
    box.base = base + row * tensor->stride[dim];
    return read_box(tensor, &box, out, err);
}

/* A range of a strided tensor: at each dimension a last part of the first row, whole rows, and a
 * first part of the last row; the parts of rows are ranges one dimension further in. */
static sw_code read_strided(const struct sw_tensor *tensor, int32_t dim, int64_t base,
                            int64_t first, int64_t count, char *out, struct sw_err *err)
{
    int64_t inner = 1;
    sw_code code = SW_OK;
    for (int32_t i = dim + 1; i < tensor->dims; i++)
        inner *= tensor->shape[i];
    while (count > 0 && code == SW_OK) {
        int64_t row = first / inner, within = first % inner, part;
        if (within == 0 && count >= inner) {
            part = count / inner * inner;
            code = read_rows(tensor, dim, base, row, count / inner, out, err);
        } else {
            part = inner - within < count ? inner - within : count;
            code = read_strided(tensor, dim + 1, base + row * tensor->stride[dim], within, part,
                                out, err);
        }
        first += part;
        count -= part;
        out += part * tensor->element_bytes;
    }
    return code;
}

sw_code sw_tensor_read_raw(const struct sw_tensor *tensor, int64_t first, int64_t count, void *out,
                           struct sw_err *err)
{
    sw_code code;
    sw_assert(first >= 0 && count >= 0 && first <= tensor->elements - count);
    if (count == 0)
        return SW_OK;
    if (tensor->contiguous)
        code = sw_file_pread(tensor->descriptor, out, count * tensor->element_bytes,
                             tensor->offset + first * tensor->element_bytes, tensor->path, err);
    else
        code = read_strided(tensor, 0, 0, first, count, out, err);
    if (code != SW_OK)
        return sw_err_while(err, "reading tensor %s", tensor->name);
    return SW_OK;
}

sw_code sw_tensor_read_float(const struct sw_tensor *tensor, int64_t first, int64_t count,
                             float *out, struct sw_err *err)
{
    uint16_t halves[SCRATCH_BYTES / sizeof(uint16_t)];
    const int64_t step = (int64_t)(sizeof halves / sizeof halves[0]);
    sw_code code = sw_tensor_check_readable(tensor, err);
    if (code != SW_OK)
        return code;
    if (tensor->dtype == SW_F32)
        return sw_tensor_read_raw(tensor, first, count, out, err);
    for (int64_t done = 0; done < count; done += step) {
        int64_t part = count - done < step ? count - done : step;
        code = sw_tensor_read_raw(tensor, first + done, part, halves, err);
        if (code != SW_OK)
            return code;
        if (tensor->dtype == SW_BF16)
            for (int64_t i = 0; i < part; i++)
                out[done + i] = sw_bf16_to_float(halves[i]);
        else
            for (int64_t i = 0; i < part; i++)
                out[done + i] = sw_f16_to_float(halves[i]);
    }
    return SW_OK;
}

sw_code sw_tensor_equal(const struct sw_tensor *a, const struct sw_tensor *b, bool *out,
                        struct sw_err *err)
{
    char of_a[SCRATCH_BYTES], of_b[SCRATCH_BYTES];
    bool equal = strcmp(a->dtype_name, b->dtype_name) == 0 && a->dims == b->dims;
    for (int32_t i = 0; equal && i < a->dims; i++)
        equal = a->shape[i] == b->shape[i];
    const int64_t step = SCRATCH_BYTES / a->element_bytes;
    for (int64_t done = 0; equal && done < a->elements; done += step) {
        int64_t part = a->elements - done < step ? a->elements - done : step;
        sw_code code = sw_tensor_read_raw(a, done, part, of_a, err);
        if (code == SW_OK)
            code = sw_tensor_read_raw(b, done, part, of_b, err);
        if (code != SW_OK)
            return code;
        equal = memcmp(of_a, of_b, (size_t)(part * a->element_bytes)) == 0;
    }
    *out = equal;
    return SW_OK;
}
