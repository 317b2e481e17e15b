/* Reading pytorch_model.bin: files that PyTorch made (tests/data/make_torch_files.py), and pickles
 * made by hand. */
#include "support.h"

#include "base/random.h"
#include "base/text.h"
#include "io/pickle.h"
#include "io/safetensors.h"
#include "io/torch_bin.h"

#define DATA SW_SOURCE_DIRECTORY "/tests/data/"

static char *scratch;
static char *path;

static const struct sw_tensor *find(const struct sw_tensor_file *file, const char *name)
{
    for (int64_t i = 0; i < file->tensor_count; i++)
        if (strcmp(file->tensors[i].name, name) == 0)
            return &file->tensors[i];
    fail_msg("%s has no tensor %s", file->path, name);
    return NULL;
}

static void test_files_of_pytorch(void **state)
{
    (void)state;
    static const struct {
        const char *path, *format;
    } cases[] = {{DATA "weights-zip.bin", "PyTorch (zip)"},
                 {DATA "weights-zip4.bin", "PyTorch (zip)"},
                 {DATA "weights-legacy.bin", "PyTorch (legacy)"}};
    struct sw_err err = {0};
    struct sw_tensor_file *plain, *file;
    float values[64];
    assert_ok(sw_safetensors_open(DATA "weights.safetensors", &plain, &err), &err);
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        assert_ok(sw_torch_bin_open(cases[c].path, &file, &err), &err);
        assert_string_equal(file->format, cases[c].format);
        assert_int_equal(file->tensor_count, plain->tensor_count);
        for (int64_t i = 0; i < file->tensor_count; i++) {
            const struct sw_tensor *tensor = &file->tensors[i], *same = find(plain, tensor->name);
            bool equal;
            assert_ok(sw_tensor_equal(tensor, same, &equal, &err), &err);
            if (!equal)
                fail_msg("%s of %s differs", tensor->name, file->path);
        }
        assert_false(find(file, "transposed")->contiguous);
        assert_false(find(file, "expanded")->contiguous);
        assert_true(find(file, "parameter")->contiguous);
        assert_int_equal(find(file, "shared.part")->offset,
                         find(file, "shared.whole")->offset + 8 * 4);
        assert_int_equal(find(file, "scalar")->dims, 0);
        assert_int_equal(find(file, "empty")->elements, 0);
        assert_ok(sw_tensor_read_float(find(file, "permuted"), 0, 24, values, &err), &err);
        assert_true(values[1] >= 4.5f && values[1] <= 4.5f); /* [0, 0, 1]: element 4 of the base */
        assert_refused(sw_tensor_read_float(find(file, "counts"), 0, 3, values, &err), SW_E_FORMAT,
                       "tensor counts of", &err);
        sw_tensor_file_close(file);
    }
    sw_tensor_file_close(plain);
}

static void test_nothing_is_executed(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    assert_refused(sw_torch_bin_open(DATA "evil-zip.bin", &file, &err), SW_E_FORMAT,
                   "asks for the Python object posix.system", &err);
    assert_refused(sw_torch_bin_open(DATA "evil-legacy.bin", &file, &err), SW_E_FORMAT,
                   "refused, nothing was executed", &err);
    assert_refused(sw_torch_bin_open(DATA "nested.bin", &file, &err), SW_E_FORMAT,
                   "its entry step is an int, not a tensor", &err);
}

/* --- pickles by hand: \200 PROTO, \206 TUPLE2, \205 TUPLE1, \211 False, \214 SHORT_BINUNICODE ----
 */

#define WORD(length, text) "\214" length text
#define STORAGE(type, key, count)                                                                  \
    "(" WORD("\7", "storage") "ctorch\n" type "\n" key WORD("\3", "cpu") "K" count "NtQ"
#define KEY_0 WORD("\1", "0")
#define HOOKS "\211ccollections\nOrderedDict\n)R"
#define TENSOR(storage, offset, size, stride)                                                      \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage "K" offset size stride HOOKS "tR"
#define PAIR(a, b) "K" a "K" b "\206"
#define W WORD("\1", "w")
#define FLOATS(count) STORAGE("FloatStorage", KEY_0, count)
#define GOOD TENSOR(FLOATS("\4"), "\0", PAIR("\2", "\2"), PAIR("\2", "\1"))
#define KEYS "\200\2]" KEY_0 "a."
#define BYTES(literal) literal, sizeof(literal) - 1

/* A legacy file of the weights' pickle `body`, the keys' pickle `keys`, and storages of 4 floats 1,
 * 2, 3, 4, each said to have `count` elements; `data_bytes` of them are there. */
static void write_legacy(const char *body, size_t body_bytes, const char *keys, size_t keys_bytes,
                         int64_t count, int64_t data_bytes)
{
    static const char start[] = "\200\2\212\12\154\374\234\106\371\40\152\250\120\31."
                                "\200\2M\351\3."
                                "\200\2}" WORD("\15", "little_endian") "\210s.";
    static const float data[] = {1, 2, 3, 4};
    struct sw_text text = {0};
    sw_text_add_bytes(&text, BYTES(start));
    sw_text_add_bytes(&text, body, (int64_t)body_bytes);
    sw_text_add_bytes(&text, keys, (int64_t)keys_bytes);
    sw_text_add_bytes(&text, (const char *)&count, sizeof count);
    sw_text_add_bytes(&text, (const char *)data, data_bytes);
    assert_ok(sw_file_write_atomic(path, text.bytes, text.used_bytes, NULL), &(struct sw_err){0});
    free(text.bytes);
}

static void test_older_ways_to_write_it(void **state)
{
    (void)state;
    static const struct {
        const char *body;
        size_t bytes;
        float second;
    } cases[] = {
        {BYTES("\200\2}" W GOOD "s."), 2},
        {BYTES("\200\2}(" W GOOD "u."), 2},
        /* Python 2: an OrderedDict from a list of pairs, byte strings, its attributes set after */
        {BYTES("\200\2ccollections\nOrderedDict\n]](U\1w" GOOD "ea\205R}b."), 2},
        /* before 0.4: _rebuild_tensor */
        {BYTES("\200\2}" W "ctorch._utils\n_rebuild_tensor\n(" FLOATS("\4") "K\0" PAIR("\2", "\2")
                   PAIR("\1", "\2") "tRs."),
         3},
        /* a parameter */
        {BYTES("\200\2}" W "ctorch._utils\n_rebuild_parameter\n(" GOOD HOOKS "tRs."), 2},
        /* a storage that is a view of another: elements 1 and 2 of it, a tensor on the second */
        {BYTES("\200\2}" W TENSOR("(" WORD("\7", "storage") "ctorch\nFloatStorage\n" KEY_0 WORD(
                                      "\3", "cpu") "K\4(" WORD("\1", "v") "K\1K\2ttQ",
                                  "\0", PAIR("\1", "\2"), PAIR("\2", "\1")) "s."),
         3},
        /* memo both ways, a value popped, a duplicate popped */
        {BYTES("\200\4\225\5\0\0\0\0\0\0\0}q\1N02"
               "0" W "\224r\3\0\0\0"
               "0h\2" GOOD "s0j\1\0\0\0."),
         2},
        {BYTES("\200\2}" W "\214\14torch._utils\214\22_rebuild_tensor_v2\223(" FLOATS(
             "\4") "J\0\0\0\0M\2\0M\2\0\206M\2\0\212\1\1\206" HOOKS "tRs."),
         2},
    };
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    float values[4];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        write_legacy(cases[i].body, cases[i].bytes, BYTES(KEYS), 4, 16);
        if (sw_torch_bin_open(path, &file, &err) != SW_OK)
            fail_msg("case %d: %s", (int)i, err.text);
        assert_int_equal(file->tensor_count, 1);
        assert_string_equal(file->tensors[0].name, "w");
        assert_ok(
            sw_tensor_read_float(&file->tensors[0], 0, file->tensors[0].elements, values, &err),
            &err);
        assert_true(values[1] >= cases[i].second && values[1] <= cases[i].second);
        sw_tensor_file_close(file);
    }
}

struct lie {
    const char *body;
    size_t body_bytes;
    const char *keys;
    size_t key_bytes;
    int64_t count, data_bytes;
    const char *message;
};

/* Whole pickles whose tensors and storages do not go together. */
static const struct lie tensor_lies[] = {
    {BYTES("\200\2}" W GOOD "s."), BYTES(KEYS), 4, 15, "is cut short: storage 0 of 4"},
    {BYTES("\200\2}" W GOOD "s."), BYTES(KEYS), 3, 16, "storage 0 has 3 elements, not the 4"},
    {BYTES("\200\2}" W GOOD "s."), BYTES(KEYS), INT64_MAX, 16, "not the 4 of F32"},
    {BYTES("\200\2}" W GOOD "s."), BYTES("\200\2]."), 4, 16, "storage 0 is missing"},
    {BYTES("\200\2}" W GOOD "s."), BYTES("\200\2](" KEY_0 KEY_0 "e."), 4, 16,
     "lists storage 0 twice"},
    {BYTES("\200\2}" W GOOD "s."), BYTES("\200\2](" KEY_0 W "e."), 4, 16,
     "storage w belongs to no tensor"},
    {BYTES("\200\2}" W GOOD "s."), BYTES("\200\2}."), 4, 16, "its storages are a dict"},
    {BYTES("\200\2}" W GOOD "s" W GOOD "s."), BYTES(KEYS), 4, 16, "tensor w is there twice"},
    {BYTES("\200\2}" W TENSOR(FLOATS("\4"), "\1", PAIR("\2", "\2"), PAIR("\2", "\1")) "s."),
     BYTES(KEYS), 4, 16, "w of shape [2, 2] reaches beyond the 4 elements of its storage"},
    {BYTES("\200\2}" W TENSOR(FLOATS("\4"), "\0", PAIR("\2", "\2"), PAIR("\3", "\1")) "s."),
     BYTES(KEYS), 4, 16, "reaches beyond the 4 elements"},
    {BYTES("\200\2}" W TENSOR(FLOATS("\4"), "\0",
                              "\212\10\0\0\0\0\0\0\0\100"
                              "K\4\206",
                              PAIR("\0", "\0")) "s."),
     BYTES(KEYS), 4, 16, "the size of shape [4611686018427387904, 4] overflows"},
    {BYTES("\200\2}" W TENSOR(FLOATS("\4"), "\0", PAIR("\2", "\2"), "K\1\205") "s."), BYTES(KEYS),
     4, 16, "a tensor is not (storage, offset, size, stride)"},
    {BYTES("\200\2}" W TENSOR(FLOATS("\4"), "\0", "J\377\377\377\377\205", "K\1\205") "s."),
     BYTES(KEYS), 4, 16, "a tensor is not (storage, offset, size, stride)"},
    {BYTES("\200\2}" W TENSOR(STORAGE("QInt8Storage", KEY_0, "\4"), "\0", ")", ")") "s."),
     BYTES(KEYS), 4, 16, "asks for the Python object torch.QInt8Storage"},
    {BYTES("\200\2}" W "K\1s."), BYTES(KEYS), 4, 16, "its entry w is an int, not a tensor"},
    {BYTES("\200\2}K\1" GOOD "s."), BYTES(KEYS), 4, 16, "the name of a tensor is an int"},
    {BYTES("\200\2}" WORD("\2", "a\33") GOOD "s."), BYTES(KEYS), 4, 16, "control characters"},
};

/* Pickles that are none, or want what a reader of tensors does not do. */
static const struct lie pickle_lies[] = {
    {BYTES("\200\2]."), BYTES(KEYS), 4, 16, "holds a list, not a dict of tensors"},
    {BYTES("\200\2cos\nsystem\n."), BYTES(KEYS), 4, 16, "the Python object os.system"},
    {BYTES("\200\4\214\2os\214\6system\223."), BYTES(KEYS), 4, 16, "Python object os.system"},
    {BYTES("\200\2ccollections\nOrderedDict\n)\201."), BYTES(KEYS), 4, 16,
     "wants to make an object (NEWOBJ)"},
    {BYTES("\200\2G12345678."), BYTES(KEYS), 4, 16, "hold a float (BINFLOAT)"},
    {BYTES("\200\2P1\n."), BYTES(KEYS), 4, 16, "opcode 0x50 at byte"},
    {BYTES("\200\11."), BYTES(KEYS), 4, 16, "its protocol is unknown"},
    {BYTES("\200\2h\1."), BYTES(KEYS), 4, 16, "recalls a value that it never remembered"},
    {BYTES("\200\2Nr\377\377\377\377."), BYTES(KEYS), 4, 16, "memo index is larger"},
    {BYTES("\200\2q\1."), BYTES(KEYS), 4, 16, "remembers a value where there is none"},
    {BYTES("\200\2."), BYTES(KEYS), 4, 16, "takes a value where there is none"},
    {BYTES("\200\2NN."), BYTES(KEYS), 4, 16, "leaves values behind"},
    {BYTES("\200\2Nt."), BYTES(KEYS), 4, 16, "looks for a mark"},
    {BYTES("\200\2(0."), BYTES(KEYS), 4, 16, "takes a value where there is none"},
    {BYTES("\200\2}(Nu."), BYTES(KEYS), 4, 16, "a key has no value"},
    {BYTES("\200\2](NNu."), BYTES(KEYS), 4, 16, "it needs a dict here"},
    {BYTES("\200\2N)R."), BYTES(KEYS), 4, 16, "calls what is no function"},
    {BYTES("\200\2ctorch\nFloatStorage\n)R."), BYTES(KEYS), 4, 16, "calls a storage type"},
    {BYTES("\200\2NQ."), BYTES(KEYS), 4, 16, "persistent id is not a storage"},
    {BYTES("\200\2]}b."), BYTES(KEYS), 4, 16, "it needs a dict here"},
    {BYTES("\200\2\214\3a\0b."), BYTES(KEYS), 4, 16, "a string has a zero byte"},
    {BYTES("\200\2\215\377\377\377\377\377\377\377\377."), BYTES(KEYS), 4, 16, "longer than"},
    {BYTES("\200\2X\377\377\377\0."), BYTES(KEYS), 4, 16, "ends in the middle"},
    {BYTES("\200\2\212\21aaaaaaaaaaaaaaaaa."), BYTES(KEYS), 4, 16, "an integer is too large"},
    {BYTES("\200\2ctorch"), BYTES(""), 4, 0, "a name has no end"},
};

static void check_lies(const struct lie *lies, size_t count)
{
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    for (size_t i = 0; i < count; i++) {
        write_legacy(lies[i].body, lies[i].body_bytes, lies[i].keys, lies[i].key_bytes,
                     lies[i].count, lies[i].data_bytes);
        assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, lies[i].message, &err);
    }
}

static void test_lies_are_refused(void **state)
{
    (void)state;
    check_lies(tensor_lies, sizeof tensor_lies / sizeof *tensor_lies);
    check_lies(pickle_lies, sizeof pickle_lies / sizeof *pickle_lies);
}

static void write_bytes(const char *bytes, int64_t count)
{
    assert_ok(sw_file_write_atomic(path, bytes, count, NULL), &(struct sw_err){0});
}

/* Small inputs that would make a careless reader take much memory. */
static void test_bombs(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_text text = {0};
    struct sw_pickle *pickle;
    for (int i = 0; i < 3 << 20; i++)
        sw_text_add_bytes(&text, ")", 1);
    assert_refused(sw_pickle_parse(text.bytes, text.used_bytes, "x", &pickle, NULL, &err),
                   SW_E_FORMAT, "more values than weights need", &err);
    /* one list of many pairs, copied into one OrderedDict after another */
    text.used_bytes = 0;
    sw_text_add_bytes(&text, BYTES("\200\2]q\1("));
    for (int i = 0; i < 10000; i++)
        sw_text_add_bytes(&text, BYTES("NN\206"));
    sw_text_add_bytes(&text, BYTES("eccollections\nOrderedDict\nq\2"));
    for (int i = 0; i < 10000; i++)
        sw_text_add_bytes(&text, BYTES("h\2h\1\205R"));
    sw_text_add_bytes(&text, ".", 1);
    assert_refused(sw_pickle_parse(text.bytes, text.used_bytes, "x", &pickle, NULL, &err),
                   SW_E_FORMAT, "more values than weights need", &err);
    /* a list inside itself */
    assert_ok(sw_pickle_parse(BYTES("\200\2]q\1h\1a."), "x", &pickle, NULL, &err), &err);
    assert_ptr_equal(sw_pickle_root(pickle)->list.items[0], sw_pickle_root(pickle));
    sw_pickle_free(pickle);
    free(text.bytes);
}

static void test_files_that_are_no_files(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    char *zip;
    int64_t bytes;
    write_bytes(BYTES("version https://git-lfs.github.com/spec/v1\n"));
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "Git LFS pointer", &err);
    write_bytes(BYTES("hello"));
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "starts neither as", &err);
    write_bytes(BYTES("\200\2}."));
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "no magic number", &err);
    assert_ok(sw_file_read(DATA "weights-zip.bin", 1 << 20, &zip, &bytes, &err), &err);
    write_bytes(zip, bytes - 200);
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "half a download", &err);
    free(zip);
    assert_ok(sw_file_read(DATA "weights-legacy.bin", 1 << 20, &zip, &bytes, &err), &err);
    write_bytes(zip, bytes - 1);
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "cut short", &err);
    write_bytes(zip, bytes / 3);
    assert_refused(sw_torch_bin_open(path, &file, &err), SW_E_FORMAT, "ends in the middle", &err);
    free(zip);
}

/* Read every tensor of the file at `path`, if it opens. */
static bool opens(void)
{
    struct sw_err err = {0};
    struct sw_tensor_file *file;
    static char data[1 << 16];
    if (sw_torch_bin_open(path, &file, &err) != SW_OK) {
        assert_true(strlen(err.text) > 0);
        return false;
    }
    for (int64_t i = 0; i < file->tensor_count; i++)
        if (file->tensors[i].bytes <= (int64_t)sizeof data)
            assert_ok(
                sw_tensor_read_raw(&file->tensors[i], 0, file->tensors[i].elements, data, &err),
                &err);
    sw_tensor_file_close(file);
    return true;
}

static void mutate(const char *original, uint32_t sequence, int rounds)
{
    struct sw_err err = {0};
    char *bytes;
    int64_t count;
    int opened = 0;
    uint32_t key[2], counter[4] = {0}, random[4];
    sw_random_key(1, sequence, key);
    assert_ok(sw_file_read(original, 1 << 20, &bytes, &count, &err), &err);
    FILE *file = fopen(path, "w+b");
    assert_non_null(file);
    for (counter[0] = 0; counter[0] < (uint32_t)rounds; counter[0]++) {
        char kept[3];
        sw_philox(key, counter, random);
        for (int i = 0; i < 3; i++) {
            kept[i] = bytes[random[i] % count];
            bytes[random[i] % count] = (char)(random[3] >> (8 * i));
        }
        rewind(file);
        assert_int_equal(fwrite(bytes, 1, (size_t)count, file), count);
        fflush(file);
        opened += opens();
        for (int i = 2; i >= 0; i--)
            bytes[random[i] % count] = kept[i];
    }
    fclose(file);
    assert_true(opened > 0 && opened < rounds);
    free(bytes);
}

static void test_mutations(void **state)
{
    (void)state;
    mutate(DATA "weights-legacy.bin", 1, 3000);
    unlink(path);
    mutate(DATA "weights-zip.bin", 2, 3000);
}

static int set_up(void **state)
{
    (void)state;
    scratch = sw_test_scratch();
    path = sw_path_join(scratch, "pytorch_model.bin");
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
        cmocka_unit_test(test_files_of_pytorch),
        cmocka_unit_test(test_nothing_is_executed),
        cmocka_unit_test(test_older_ways_to_write_it),
        cmocka_unit_test(test_lies_are_refused),
        cmocka_unit_test(test_bombs),
        cmocka_unit_test(test_files_that_are_no_files),
        cmocka_unit_test(test_mutations),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
