/* Reading and writing safetensors. */
#include "support.h"

#include "base/random.h"
#include "base/text.h"
#include "io/safetensors.h"
#include "io/safetensors_write.h"

#include <math.h>

static char *scratch;
static char *path;

/* A file of `header` and `data_bytes` bytes of data that count up; `padding` says how many spaces
 * follow the header, `lie` is added to its length. */
static void write_file(const char *header, int64_t data_bytes, int padding, int64_t lie)
{
    struct sw_text text = {0};
    uint64_t length = strlen(header) + (uint64_t)padding;
    uint64_t told = length + (uint64_t)lie;
    sw_text_add_bytes(&text, (const char *)&told, sizeof told);
    sw_text_add_bytes(&text, header, (int64_t)strlen(header));
    for (int i = 0; i < padding; i++)
        sw_text_add_bytes(&text, " ", 1);
    for (int64_t i = 0; i < data_bytes; i++)
        sw_text_add(&text, "%c", (char)(i % 127 + 1));
    assert_ok(sw_file_write_atomic(path, text.bytes, text.used_bytes, NULL), &(struct sw_err){0});
    free(text.bytes);
}

static void test_values_at_any_alignment(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    for (int padding = 0; padding < 8; padding++) {
        float values[6], expected;
        unsigned char bytes[4];
        write_file("{\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[1,25]},"
                   "\"a\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]},"
                   "\"none\":{\"dtype\":\"F32\",\"shape\":[4,0,9],\"data_offsets\":[25,25]},"
                   "\"__metadata__\":{\"format\":\"pt\"}}",
                   25, padding, 0);
        assert_ok(sw_safetensors_open(path, &file, &err), &err);
        assert_int_equal(file->tensor_count, 3);
        const struct sw_tensor *a = &file->tensors[0], *b = &file->tensors[1];
        assert_string_equal(a->name, "a");
        assert_int_equal(a->dims, 0);
        assert_int_equal(a->elements, 1);
        assert_string_equal(b->name, "b");
        assert_int_equal(b->elements, 6);
        assert_int_equal(b->stride[0], 3);
        assert_int_equal(file->tensors[2].elements, 0);
        assert_ok(sw_tensor_read_float(&file->tensors[2], 0, 0, values, &err), &err);
        assert_ok(sw_tensor_read_float(b, 0, 6, values, &err), &err);
        for (int i = 0; i < 6; i++) {
            for (int k = 0; k < 4; k++)
                bytes[k] = (unsigned char)(1 + 4 * i + k + 1);
            memcpy(&expected, bytes, 4);
            assert_memory_equal(&values[i], &expected, 4);
        }
        assert_ok(sw_tensor_read_float(b, 4, 2, &values[0], &err), &err);
        assert_memory_equal(&values[0], &values[4], 8);
        assert_ok(sw_tensor_read_raw(a, 0, 1, bytes, &err), &err);
        assert_int_equal(bytes[0], 1);
        assert_refused(sw_tensor_read_float(a, 0, 1, values, &err), SW_E_FORMAT,
                       "has dtype U8; only F32, F16 and BF16", &err);
        sw_tensor_file_close(file);
    }
}

static void test_half_dtypes(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    struct sw_safetensors_writer *writer;
    static const uint16_t f16[] = {0x0000, 0x8000, 0x3C00, 0x0001, 0x83FF,
                                   0x7BFF, 0x7C00, 0xFC00, 0x7E01, 0x3555};
    static const uint32_t f16_bits[] = {0x00000000, 0x80000000, 0x3F800000, 0x33800000, 0xB87FC000,
                                        0x477FE000, 0x7F800000, 0xFF800000, 0x7FC02000, 0x3EAAA000};
    static const uint16_t bf16[] = {0x3F80, 0x0001, 0x7F80, 0x7FC1};
    const struct sw_safetensors_entry entries[] = {{"h", "F16", 1, {10}}, {"b", "BF16", 1, {4}}};
    float values[10];
    assert_ok(sw_safetensors_create(path, entries, 2, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, f16, sizeof f16, &err), &err);
    assert_ok(sw_safetensors_append(writer, bf16, sizeof bf16, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    assert_ok(sw_tensor_read_float(&file->tensors[0], 0, 10, values, &err), &err);
    assert_memory_equal(values, f16_bits, sizeof f16_bits);
    for (int i = 0; i < 10; i++)
        assert_int_equal(sw_float_to_f16(values[i]), f16[i]);
    assert_ok(sw_tensor_read_float(&file->tensors[1], 0, 4, values, &err), &err);
    for (int i = 0; i < 4; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], sizeof bits);
        assert_int_equal(bits, (uint32_t)bf16[i] << 16);
    }
    sw_tensor_file_close(file);
    unlink(path);
}

/* Ties to even at every step of the format, carries into the exponent, overflow. */
static void test_rounding_to_f16(void **state)
{
    (void)state;
    assert_int_equal(sw_float_to_f16(1.0f + 0x1p-11f), 0x3C00);
    assert_int_equal(sw_float_to_f16(1.0f + 3 * 0x1p-11f), 0x3C02);
    assert_int_equal(sw_float_to_f16(2047.6f), 0x6800);
    assert_int_equal(sw_float_to_f16(65519.996f), 0x7BFF);
    assert_int_equal(sw_float_to_f16(65520.0f), 0x7C00);
    assert_int_equal(sw_float_to_f16(-1e9f), 0xFC00);
    assert_int_equal(sw_float_to_f16(0x1p-25f), 0x0000);
    assert_int_equal(sw_float_to_f16(3 * 0x1p-25f), 0x0002);
    assert_int_equal(sw_float_to_f16(0x1.ffcp-15f), 0x0400);
    assert_int_equal(sw_float_to_f16((float)NAN) & 0x7C00, 0x7C00);
    assert_true((sw_float_to_f16((float)NAN) & 0x3FF) != 0);
}

#define T(dtype, shape, begin, end)                                                                \
    "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct {
    const char *header;
    int64_t data_bytes;
    int64_t lie;
    const char *message;
} lies[] = {
    {"{\"a\":" T("F32", "[2]", 0, 8) "}", 4, 0, "cut short: its tensors take 8 bytes, 4 are"},
    {"{\"a\":" T("F32", "[2]", 0, 8) "}", 9, 0, "1 bytes that belong to no tensor"},
    {"{\"a\":" T("F32", "[2]", 0, 4) "}", 8, 0,
     "tensor a: shape [2] of F32 takes 8 bytes, its data_offsets give 4"},
    {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 4, 8) "}", 8, 0,
     "tensor b starts at byte 4, overlapping another that ends at byte 8"},
    {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 12, 16) "}", 16, 0,
     "tensor b starts at byte 12, leaving a gap from byte 8"},
    {"{\"a\":" T("F32", "[1]", 4, 8) "}", 8, 0, "leaving a gap from byte 0"},
    {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8, 0, "duplicate"},
    {"{\"a\":" T("F4", "[2]", 0, 1) "}", 1, 0, "unknown dtype F4"},
    {"{\"a\":" T("F32", "[-1]", 0, 4) "}", 4, 0, "dimension 0 of its shape is not"},
    {"{\"a\":" T("F32", "[1.0]", 0, 4) "}", 4, 0, "dimension 0 of its shape is not"},
    {"{\"a\":" T("F32", "[4294967296,4294967296]", 0, 4) "}", 4, 0,
     "the size of shape [4294967296, 4294967296] overflows"},
    {"{\"a\":" T("F32", "[2305843009213693952]", 0, 0) "}", 0, 0, "overflows"},
    {"{\"a\":" T("F32", "[1,1,1,1,1,1,1,1,1]", 0, 4) "}", 4, 0, "9 dimensions"},
    {"{\"a\":" T("F32", "7", 0, 4) "}", 4, 0, "no list as its shape"},
    {"{\"a\":" T("F32", "[1]", 8, 4) "}", 4, 0, "not two rising whole numbers"},
    {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4, 0, "not two rising whole numbers"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4, 0, "not two rising"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, 0, "not two rising"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, 0, "a has no dtype"},
    {"{\"a\":[]}", 0, 0, "tensor a is a list, not an object"},
    {"{\"__metadata__\":{\"n\":1}}", 0, 0, "__metadata__ n is a whole number, not a string"},
    {"{\"__metadata__\":\"x\"}", 0, 0, "__metadata__ is a string, not an object"},
    {"{\"a\\u001b[2J\":" T("F32", "[1]", 0, 4) "}", 4, 0, "control character (byte 27)"},
    {"[]", 0, 0, "does not start with '{'"},
    {" {}", 0, 0, "does not start with '{'"},
    {"{", 0, 0, "is damaged: its header is not valid JSON"},
    {"{} x", 0, 0, "is not valid JSON"},
    {"{}", 0, 1, "cut short: its header takes 3 bytes, the file has 10"},
    {"{}", 0, INT64_MAX, "the format allows 100000000"},
    {"{}", 0, -3, "the format allows 100000000"},
};

static void test_lies_are_refused(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        write_file(lies[i].header, lies[i].data_bytes, 0, lies[i].lie);
        assert_refused(sw_safetensors_open(path, &file, &err), SW_E_FORMAT, lies[i].message, &err);
    }
}

static void test_files_that_are_no_files(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n";
    assert_ok(sw_file_write_atomic(path, pointer, sizeof pointer - 1, &err), &err);
    assert_refused(sw_safetensors_open(path, &file, &err), SW_E_FORMAT, "is a Git LFS pointer",
                   &err);
    assert_ok(sw_file_write_atomic(path, "", 0, &err), &err);
    assert_refused(sw_safetensors_open(path, &file, &err), SW_E_FORMAT, "is empty", &err);
    assert_ok(sw_file_write_atomic(path, "abc", 3, &err), &err);
    assert_refused(sw_safetensors_open(path, &file, &err), SW_E_FORMAT, "has 3 bytes only", &err);
    assert_refused(sw_safetensors_open(scratch, &file, &err), SW_E_FORMAT, "not a regular file",
                   &err);
    assert_refused(sw_safetensors_open("/nowhere/x", &file, &err), SW_E_IO, "cannot open /nowhere",
                   &err);
}

static void test_shrinking_file(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    float values[2];
    write_file("{\"a\":" T("F32", "[2]", 0, 8) "}", 8, 0, 0);
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    assert_int_equal(truncate(path, file->bytes - 1), 0);
    assert_refused(sw_tensor_read_float(&file->tensors[0], 0, 2, values, &err), SW_E_FORMAT,
                   "1 bytes too early, while reading tensor a", &err);
    sw_tensor_file_close(file);
}

/* Any tensor that strides make from a storage, against element by element arithmetic. */
/* 75000 floats of a file seen as other shapes; every range of a view against `all`. */
static void check_view(const struct sw_tensor *whole, const float *all, int32_t dims,
                       const int64_t *shape, const int64_t *stride)
{
    static float out[1024], expected[1024];
    struct sw_err err = {0};
    struct sw_tensor view = *whole;
    int64_t span;
    view.dims = dims;
    memcpy(view.shape, shape, 4 * sizeof *shape);
    memcpy(view.stride, stride, 4 * sizeof *stride);
    view.offset += 4 * 8;
    assert_true(sw_tensor_measure(&view, true));
    assert_true(sw_tensor_span(&view, &span));
    assert_true(span <= 75000 - 8);
    assert_false(view.contiguous);
    for (int64_t i = 0; i < view.elements; i++) {
        int64_t at = 8, rest = i;
        for (int32_t d = view.dims - 1; d >= 0; d--) {
            at += rest % view.shape[d] * view.stride[d];
            rest /= view.shape[d];
        }
        expected[i] = all[at];
    }
    for (int64_t first = 0; first < view.elements; first += 1 + view.elements / 13)
        for (int64_t count = 0; count <= view.elements - first; count += 1 + count / 7) {
            memset(out, 0xA5, sizeof out);
            assert_ok(sw_tensor_read_float(&view, first, count, out, &err), &err);
            assert_memory_equal(out, expected + first, (size_t)count * 4);
            assert_int_equal(((unsigned char *)(out + count))[0], 0xA5);
        }
}

static void test_strided_reads(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    static const struct {
        int32_t dims;
        int64_t shape[4], stride[4];
    } views[] = {
        {2, {7, 5}, {1, 7}},
        {2, {5, 7}, {40, 3}},
        {3, {3, 4, 5}, {1, 60, 3}},
        {3, {2, 3, 4}, {0, 5, 1}},
        {2, {6, 4}, {1, 0}},
        {1, {9}, {11}},
        {4, {2, 3, 2, 3}, {1, 2, 18, 6}},
        {2, {1, 8}, {999, 2}},
        {2, {3, 200}, {1, 300}},
        {2, {4, 3}, {20000, 7000}},
    };
    write_file("{\"a\":" T("F32", "[75000]", 0, 300000) "}", 300000, 3, 0);
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    float *all = calloc(75000, sizeof *all);
    assert_non_null(all);
    assert_ok(sw_tensor_read_float(&file->tensors[0], 0, 75000, all, &err), &err);
    for (size_t v = 0; v < sizeof views / sizeof views[0]; v++)
        check_view(&file->tensors[0], all, views[v].dims, views[v].shape, views[v].stride);
    free(all);
    sw_tensor_file_close(file);
}

enum { WRITTEN = 5, WRITTEN_BYTES = 3 + 4 + 16 + 4 };
static const struct sw_safetensors_entry written[WRITTEN] = {
    {"flag", "U8", 1, {3}},
    {"scalar", "F32", 0, {0}},
    {"empty", "F32", 2, {3, 0}},
    {"steps", "I64", 1, {2}},
    {"we\"ird \xc3\xa9", "BF16", 2, {2, 1}},
};

static const unsigned char *written_data(void)
{
    static unsigned char data[WRITTEN_BYTES];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (unsigned char)(i * 37 + 5);
    return data;
}

static void test_writer_round_trip(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    struct sw_safetensors_writer *writer;
    static const char *const metadata[] = {"format", "pt", "note", "a \"b\"", NULL};
    const unsigned char *data = written_data();
    unsigned char back[WRITTEN_BYTES];
    bool equal;
    assert_ok(sw_safetensors_create(path, written, WRITTEN, metadata, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, data, 5, &err), &err);
    assert_ok(sw_safetensors_append(writer, data + 5, WRITTEN_BYTES - 5, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    assert_int_equal(file->tensor_count, WRITTEN);
    assert_int_equal((file->tensors[0].offset) % 8, 0);
    int64_t at = 0;
    for (int64_t i = 0; i < WRITTEN; i++) {
        const struct sw_tensor *tensor = &file->tensors[i];
        assert_string_equal(tensor->name, written[i].name);
        assert_string_equal(tensor->dtype_name, written[i].dtype_name);
        assert_int_equal(tensor->dims, written[i].dims);
        assert_ok(sw_tensor_read_raw(tensor, 0, tensor->elements, back + at, &err), &err);
        at += tensor->bytes;
        assert_ok(sw_tensor_equal(tensor, tensor, &equal, &err), &err);
        assert_true(equal);
    }
    assert_memory_equal(back, data, WRITTEN_BYTES);
    assert_ok(sw_tensor_equal(&file->tensors[0], &file->tensors[1], &equal, &err), &err);
    assert_false(equal);
    sw_tensor_file_close(file);
    assert_refused(sw_safetensors_create(path, written, WRITTEN, NULL, &writer, &err), SW_E_IO,
                   "cannot create", &err);
    unlink(path);
}

static void test_writer_in_any_order(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    struct sw_safetensors_writer *writer;
    const unsigned char *data = written_data();
    unsigned char back[4];
    assert_ok(sw_safetensors_create(path, written, WRITTEN, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_put(writer, 4, 1, data + 24, 3, &err), &err);
    assert_ok(sw_safetensors_put(writer, 3, 0, data + 7, 16, &err), &err);
    assert_ok(sw_safetensors_put(writer, 4, 0, data + 23, 1, &err), &err);
    assert_ok(sw_safetensors_put(writer, 0, 0, data, 3, &err), &err);
    assert_ok(sw_safetensors_put(writer, 1, 0, data + 3, 4, &err), &err);
    assert_ok(sw_safetensors_finish(writer, &err), &err);
    assert_ok(sw_safetensors_open(path, &file, &err), &err);
    assert_ok(sw_tensor_read_raw(&file->tensors[4], 0, 2, back, &err), &err);
    assert_memory_equal(back, data + 23, 4);
    sw_tensor_file_close(file);
    unlink(path);
}

static void test_equal_sees_one_bit(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    struct sw_safetensors_writer *writer;
    bool equal;
    const struct sw_safetensors_entry entries[] = {{"a", "F32", 1, {50000}},
                                                   {"b", "F32", 1, {50000}}};
    char *data = calloc(200000, 1);
    assert_non_null(data);
    for (int flip = 0; flip < 2; flip++) {
        assert_ok(sw_safetensors_create(path, entries, 2, NULL, &writer, &err), &err);
        assert_ok(sw_safetensors_append(writer, data, 200000, &err), &err);
        data[199999] = (char)flip;
        assert_ok(sw_safetensors_append(writer, data, 200000, &err), &err);
        assert_ok(sw_safetensors_finish(writer, &err), &err);
        assert_ok(sw_safetensors_open(path, &file, &err), &err);
        assert_ok(sw_tensor_equal(&file->tensors[0], &file->tensors[1], &equal, &err), &err);
        assert_int_equal(equal, !flip);
        sw_tensor_file_close(file);
        unlink(path);
    }
    free(data);
}

static void test_unfinished_files_go(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_safetensors_writer *writer;
    const struct sw_safetensors_entry entry = {"a", "F32", 1, {4}};
    const struct sw_safetensors_entry huge = {"a", "F32", 2, {INT64_C(1) << 40, 1 << 20}};
    assert_ok(sw_safetensors_create(path, &entry, 1, NULL, &writer, &err), &err);
    assert_ok(sw_safetensors_append(writer, "12345678", 8, &err), &err);
    assert_refused(sw_safetensors_finish(writer, &err), SW_E_FAILED, "8 of 16 bytes were written",
                   &err);
    assert_false(sw_file_exists(path));
    assert_ok(sw_safetensors_create(path, &entry, 1, NULL, &writer, &err), &err);
    sw_safetensors_discard(writer);
    assert_false(sw_file_exists(path));
    assert_refused(sw_safetensors_create(path, &huge, 1, NULL, &writer, &err), SW_E_IO,
                   "its file system has", &err);
    assert_false(sw_file_exists(path));
}

/* Flip bytes of a good file: it opens or it is refused, and what opens can be read. */
static void test_mutations(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"w\":" T("F32", "[2,3]", 0, 24) ",\"h\":" T("F16", "[5]", 24, 34) "}";
    uint32_t key[2], counter[4] = {0}, random[4];
    float values[64];
    sw_random_key(1, 1, key);
    for (uint32_t round = 0; round < 3000; round++) {
        char changed[sizeof header];
        struct sw_tensor_file *file;
        struct sw_err err = {0};
        counter[0] = round;
        sw_philox(key, counter, random);
        memcpy(changed, header, sizeof header);
        for (uint32_t i = 0; i <= random[0] % 3; i++)
            changed[random[i + 1] % (sizeof header - 1)] = (char)(random[i + 1] >> 24 | 1);
        write_file(changed, 34, 0, random[0] % 16 == 0 ? (int64_t)(random[0] % 5) - 2 : 0);
        if (sw_safetensors_open(path, &file, &err) != SW_OK) {
            assert_true(strlen(err.text) > 0);
            continue;
        }
        for (int64_t i = 0; i < file->tensor_count; i++)
            if (file->tensors[i].readable)
                assert_ok(sw_tensor_read_float(&file->tensors[i], 0, file->tensors[i].elements,
                                               values, &err),
                          &err);
        sw_tensor_file_close(file);
    }
}

/* The path is free before each test. */
static int clear(void **state)
{
    (void)state;
    unlink(path);
    return 0;
}

static int set_up(void **state)
{
    (void)state;
    scratch = sw_test_scratch();
    path = sw_path_join(scratch, "x.safetensors");
    return path == NULL;
}

static int tear_down(void **state)
{
    (void)state;
    free(path);
    sw_test_scratch_remove(scratch);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_values_at_any_alignment, clear),
        cmocka_unit_test_setup(test_lies_are_refused, clear),
        cmocka_unit_test_setup(test_files_that_are_no_files, clear),
        cmocka_unit_test_setup(test_shrinking_file, clear),
        cmocka_unit_test_setup(test_strided_reads, clear),
        cmocka_unit_test_setup(test_mutations, clear),
        cmocka_unit_test_setup(test_half_dtypes, clear),
        cmocka_unit_test_setup(test_rounding_to_f16, clear),
        cmocka_unit_test_setup(test_writer_round_trip, clear),
        cmocka_unit_test_setup(test_writer_in_any_order, clear),
        cmocka_unit_test_setup(test_equal_sees_one_bit, clear),
        cmocka_unit_test_setup(test_unfinished_files_go, clear),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
