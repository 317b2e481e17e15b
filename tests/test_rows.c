#include "support.h"

#include "data/jsonl_out.h"
#include "data/rows.h"
#include "data/utf8.h"

/* Everything that a file holds, as text: fields in [..], rows one behind the other, then "!" and
 * the number of rows skipped, or the error. */
struct reading {
    enum sw_rows_format format;
    bool skip;
    int fields; /* 0: two */
    int64_t max_row_bytes;
    const char *bytes;
    int64_t count; /* 0: strlen */
};

static void read_all(const struct reading *reading, char *out, size_t room)
{
    struct sw_err err = {0};
    struct sw_rows *rows;
    struct sw_rows_options options = {.format = reading->format,
                                      .fields = {"source", "target"},
                                      .fields_count = reading->fields > 0 ? reading->fields : 2,
                                      .skip_bad = reading->skip,
                                      .max_row_bytes = reading->max_row_bytes};
    int64_t count = reading->count > 0 ? reading->count : (int64_t)strlen(reading->bytes);
    out[0] = '\0';
    if (sw_rows_open_memory(reading->bytes, count, "f", &options, &rows, &err) != SW_OK) {
        snprintf(out, room, "E %s", err.text);
        return;
    }
    for (;;) {
        struct sw_rows_field fields[2] = {{0}};
        bool end;
        size_t used = strlen(out);
        if (sw_rows_next(rows, fields, &end, &err) != SW_OK) {
            snprintf(out + used, room - used, "E %s", err.text);
            break;
        }
        if (end && sw_rows_skipped(rows) > 0)
            snprintf(out + used, room - used, "! %d, %s", (int)sw_rows_skipped(rows),
                     sw_rows_first_skipped(rows));
        if (end)
            break;
        for (int i = 0; i < options.fields_count; i++) {
            assert_int_equal(strlen(fields[i].text), fields[i].bytes);
            used = strlen(out);
            snprintf(out + used, room - used, "[%s]", fields[i].text);
        }
    }
    sw_rows_close(rows);
}

static void check(const struct reading *cases, size_t count, const char *const *wanted)
{
    for (size_t i = 0; i < count; i++) {
        char got[4096];
        read_all(&cases[i], got, sizeof got);
        if (strcmp(got, wanted[i]) != 0)
            fail_msg("case %d: got \"%s\", wanted \"%s\"", (int)i, got, wanted[i]);
    }
}

#define JSONL .format = SW_ROWS_JSONL, .bytes
#define TSV .format = SW_ROWS_TSV, .bytes
#define CSV .format = SW_ROWS_CSV, .bytes

static void test_jsonl(void **state)
{
    (void)state;
    static const struct reading cases[] = {
        {JSONL = ""},
        {JSONL = "{\"source\": \"a\", \"target\": \"b\"}"},
        {JSONL = "\xEF\xBB\xBF{\"target\": \"b\", \"x\": 1, \"source\": \"a\"}\r\n\r\n \t\n"
                 "{\"source\": \"\", \"target\": \"\\u00e9\\ud83d\\ude42\"}\n"},
        {JSONL = "{\"source\": \"a\"}\n", .fields = 1},
        {JSONL = "\n{\"source\": \"a\"}\n"},
        {JSONL = "{\"source\": 7, \"target\": \"b\"}\n"},
        {JSONL = "{\"source\": \"a\", \"target\": null}\n"},
        {JSONL = "\n\xEF\xBB\xBF{}"},
        {JSONL = "[1]\n"},
        {JSONL = "{}\n"},
        {JSONL = "\n\n{\"source\": \"a\", }\n"},
        {JSONL = "{\"source\": \"a\", \"target\": \"b\"}\n{\"source\": \"\xFF\"}\n"},
        {JSONL = "\xFF\xFE{\0", .count = 4, .skip = true},
        {JSONL = "{\"source\": \"a\0\", \"target\": \"b\"}", .count = 30},
        {JSONL = "{\"source\": \"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"}\n"
                 "{\"source\": \"a\", \"target\": \"b\"}\n",
         .max_row_bytes = 40, .skip = true},
        {JSONL = "{\n{\"source\": \"a\", \"target\": \"b\"}\n[]\n{\"source\": \"c\", \"target\": "
                 "\"d\"}",
         .skip = true},
    };
    static const char *const wanted[] = {
        "",
        "[a][b]",
        "[a][b][][\xC3\xA9\xF0\x9F\x99\x82]",
        "[a]",
        "E f, line 2: no field \"target\"; the row has source (data.source_field, "
        "data.target_field)",
        "E f, line 1: field \"source\" is a whole number, not a string",
        "E f, line 1: field \"target\" is null, not a string",
        "E f, line 2: not valid JSON: column 1: '[' or '{' expected near '\xEF\xBB\xBF'",
        "E f, line 1: a list, where an object with fields is expected",
        "E f, line 1: no field \"source\"; the row has no field at all",
        "E f, line 3: not valid JSON: column 17: string or '}' expected near '}'",
        "[a][b]E f, line 2: byte 13 is not UTF-8",
        "E f is text in UTF-16: save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
        "E f, line 1: not valid JSON: column 13: control character 0x0 near '\"a'",
        "[a][b]! 1, f, line 1: the row is longer than 40 bytes (every row has to stand on a line "
        "of "
        "its own)",
        ("[a][b][c][d]! 2, f, line 1: not valid JSON: column 1: string or '}' expected near end of "
         "file; an object has to stand on one line (jq -c . makes it so)"),
    };
    check(cases, sizeof cases / sizeof cases[0], wanted);
}

/* What cannot be rows at all ends reading, bad rows skipped or not. */
static void test_foreign(void **state)
{
    (void)state;
    static const struct reading cases[] = {
        {JSONL = "\x1F\x8B\x08\0\nabc", .count = 8, .skip = true},
        {TSV = "\x28\xB5\x2F\xFD\n"},
        {CSV = "PK\x03\x04\n"},
        {CSV = "PAR1\x15\n"},
        {TSV = "PAR1\n"},
        {JSONL = "{\0\"\0s\0", .count = 6},
        {CSV = "\0s\0o", .count = 4},
        {TSV = "\xFE\xFF\0s", .count = 4},
        {JSONL = "version https://git-lfs.github.com/spec/v1\noid sha256:00\n"},
        {JSONL = "[{\"source\": \"a\", \"target\": \"b\"}]", .skip = true},
        {JSONL = "\n [\n  {\"source\": \"a\", \"target\": \"b\"}\n]\n", .skip = true},
        {JSONL = "{\"source\": \"a\", \"target\": \"b\"}\n[{\"source\": \"a\"}]\n"},
        {JSONL = "[]\n"},
        {JSONL = "\xFF\n[{}\n", .skip = true},
    };
    static const char *const wanted[] = {
        "E f is compressed by gzip: gunzip it first",
        "E f is compressed by zstd: unzstd it first",
        "E f is a zip archive or a spreadsheet: unpack it, or save its rows as CSV",
        "E f is a Parquet file: write its rows as JSONL first",
        "E f, line 1: no field \"source\"; the header line names PAR1 (data.source_field, "
        "data.target_field)",
        "E f is text in UTF-16: save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
        "E f is text in UTF-16: save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
        "E f is text in UTF-16: save it as UTF-8 first (iconv -f UTF-16 -t UTF-8)",
        "E f is a Git LFS pointer, not the file itself: git lfs pull fetches it",
        "E f is one JSON list, where every line has to be an object of its own (JSONL): jq -c "
        "'.[]' makes it so",
        "E f is one JSON list, where every line has to be an object of its own (JSONL): jq -c "
        "'.[]' makes it so",
        "[a][b]E f, line 2: a list, where an object with fields is expected",
        "E f, line 1: a list, where an object with fields is expected",
        "! 2, f, line 1: byte 1 is not UTF-8",
    };
    check(cases, sizeof cases / sizeof cases[0], wanted);
}

static void test_tsv(void **state)
{
    (void)state;
    static const struct reading cases[] = {
        {TSV = "\xEF\xBB\xBFsource\ttarget\r\na b\tc\r\n\r\n\t\nx\ty"},
        {TSV = "id\ttarget\tsource\n1\tt\t\"s\"\n"},
        {TSV = "source\ttarget\na\nb\tc\n"},
        {TSV = "source\ttarget\na\nb\tc\n", .skip = true},
        {TSV = "source\tTarget\n"},
        {TSV = "source\ttarget\tsource\n"},
        {TSV = "source\n\xC3\n", .fields = 1},
        {TSV = "source\na\0b\n", .fields = 1, .count = 11},
        {TSV = ""},
        {TSV = "\n\nsource\ttarget"},
    };
    static const char *const wanted[] = {
        "[a b][c][][][x][y]",
        "[\"s\"][t]",
        "E f, line 2: 1 fields, but the header line names 2",
        "[b][c]! 1, f, line 2: 1 fields, but the header line names 2",
        ("E f, line 1: no field \"target\"; the header line names source, Target "
         "(data.source_field, data.target_field)"),
        "E f, line 1: the header names \"source\" twice",
        "E f, line 2: byte 1 is not UTF-8",
        "E f, line 2: it holds a NUL byte",
        "E f is empty: its first line has to name the fields of the rows",
        "",
    };
    check(cases, sizeof cases / sizeof cases[0], wanted);
}

static void test_csv(void **state)
{
    (void)state;
    static const struct reading cases[] = {
        {CSV = "source,target\r\na,b\r\n\"a, \"\"b\"\"\",\"\"\r\n,\n"},
        {CSV = "\"source\",x,\"target\"\n\"one\r\ntwo\n\nfour\",,t\n\"\",\"\",\"\"\n"},
        {CSV = "source,target\n\"a\nb\",c,d\ne,f\n"},
        {CSV = "source,target\na\"b\",c\n"},
        {CSV = "source,target\n\"a\nb\"x,c\n"},
        {CSV = "source,target\nz,z\n\"a\nb,c\n"},
        {CSV = "source,target\n\"a\"x,c\na,b\n\"q\n,", .skip = true},
        {CSV = "source,target\n\"a\n\xFF\",b\n\nc,d\n", .skip = true},
        {CSV = "source,target\n\"a\"\r,b\n"},
        {CSV = "source,target\n\"0123456789\n0123456789\",b\nc,d\n", .skip = true,
         .max_row_bytes = 16},
        {CSV = "\"source"},
    };
    static const char *const wanted[] = {
        "[a][b][a, \"b\"][][][]",
        "[one\r\ntwo\n\nfour][t][][]",
        "E f, line 2: 3 fields, but the header line names 2",
        ("E f, line 2: a quote in a field that does not begin with one (quote the whole field, and "
         "double the quotes in it)"),
        ("E f, line 3: something other than a comma behind a closing quote (quotes inside a quoted "
         "field are doubled)"),
        "[z][z]E f, line 3: a quoted field begins here and is never closed",
        ("[a][b]! 2, f, line 2: something other than a comma behind a closing quote (quotes inside "
         "a quoted field are doubled)"),
        "[c][d]! 1, f, line 3: byte 1 is not UTF-8",
        ("E f, line 2: something other than a comma behind a closing quote (quotes inside a quoted "
         "field are doubled)"),
        "[c][d]! 1, f, line 3: the row is longer than 16 bytes",
        ("E f, line 1: a quoted field begins here and is never closed, while reading the header "
         "line"),
    };
    check(cases, sizeof cases / sizeof cases[0], wanted);
}

static void test_files(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *directory = sw_test_scratch();
    char *path = sw_path_join(directory, "big.CSV");
    struct sw_rows_options options = {.fields = {"n", "text"}, .fields_count = 2};
    struct sw_rows *rows;
    struct sw_rows_field fields[2];
    bool end = false;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("n,text\n", file);
    for (int i = 0; i < 30000; i++) /* over many buffers, whose ends fall anywhere in a row */
        fprintf(file, "%d,\"%.*s\n\"\"%d\"\r\n", i, i % 60,
                "\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9\xC3\xA9 0123456789 0123456789 0123456789 "
                "0123456789 0123",
                i);
    fclose(file);
    options.skip_bad = true; /* an odd precision cuts a character in two */
    assert_ok(sw_rows_open(path, &options, &rows, &err), &err);
    int64_t kept = 0;
    for (;;) {
        char tail[32];
        assert_ok(sw_rows_next(rows, fields, &end, &err), &err);
        if (end)
            break;
        int number = atoi(fields[0].text);
        snprintf(tail, sizeof tail, "\n\"%d", number);
        assert_int_equal(fields[1].bytes, number % 60 + (int)strlen(tail));
        assert_string_equal(fields[1].text + number % 60, tail);
        assert_int_equal(sw_rows_line(rows), number * 2 + 2);
        kept++;
    }
    assert_int_equal(kept, 30000 / 60 * 54);
    assert_int_equal(sw_rows_bytes_read(rows), sw_rows_file_bytes(rows));
    sw_rows_close(rows);
    assert_refused(sw_rows_open("/nowhere/x.tsv", &options, &rows, &err), SW_E_IO,
                   "cannot open /nowhere/x.tsv", &err);
    assert_refused(sw_rows_open(directory, &options, &rows, &err), SW_E_IO, "is a directory", &err);
    free(path);
    sw_test_scratch_remove(directory);
}

static void test_standard_input(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_rows_options options = {.fields = {"source"}, .fields_count = 1};
    struct sw_rows *rows;
    struct sw_rows_field field;
    bool end;
    int pipes[2], kept = dup(STDIN_FILENO);
    static const char text[] = "{\"source\": \"from a pipe\"}\n7";
    assert_int_equal(pipe(pipes), 0);
    assert_int_equal(write(pipes[1], text, sizeof text - 1), sizeof text - 1);
    close(pipes[1]);
    dup2(pipes[0], STDIN_FILENO);
    close(pipes[0]);
    assert_ok(sw_rows_open("-", &options, &rows, &err), &err);
    assert_ok(sw_rows_next(rows, &field, &end, &err), &err);
    assert_string_equal(field.text, "from a pipe");
    assert_int_equal(sw_rows_file_bytes(rows), -1);
    assert_refused(sw_rows_next(rows, &field, &end, &err), SW_E_FORMAT, "standard input, line 2",
                   &err);
    sw_rows_close(rows);
    dup2(kept, STDIN_FILENO);
    close(kept);
}

static void test_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t wrong;
    } cases[] = {
        {"", -1},
        {"plain ascii, more than eight", -1},
        {"\xC2\x80 \xDF\xBF \xE0\xA0\x80 \xED\x9F\xBF \xEE\x80\x80 \xEF\xBF\xBF \xF0\x90\x80\x80 "
         "\xF4\x8F\xBF\xBF",
         -1},
        {"\x80", 0},
        {"a\xC1\x80", 1},
        {"\xE0\x9F\xBF", 0},
        {"\xED\xA0\x80", 0},
        {"\xF0\x8F\xBF\xBF", 0},
        {"\xF4\x90\x80\x80", 0},
        {"\xF5\x80\x80\x80", 0},
        {"01234567\xE2\x82", 8},
        {"\xE2\x28\xA1", 0},
        {"\xF0\x9F\x99", 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(sw_utf8_check(cases[i].text, (int64_t)strlen(cases[i].text)),
                         cases[i].wrong);
}

static void test_output(void **state)
{
    (void)state;
    struct sw_text text = {0};
    static const int32_t ids[] = {0, 12, 2147483647};
    sw_jsonl_add_ids(&text, ids, 3);
    sw_jsonl_add_ids(&text, ids, 0);
    sw_jsonl_add_string(&text, "q\" b\\ n\n t\t \0 \x1b \x7f \xC3\xA9 \xFF \xE2\x82", 25);
    assert_string_equal(text.bytes, "[0, 12, 2147483647][]\"q\\\" b\\\\ n\\n t\\t \\u0000 \\u001b "
                                    "\\u007f \xC3\xA9 \xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\"");
    free(text.bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_jsonl), cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_tsv),   cmocka_unit_test(test_csv),
        cmocka_unit_test(test_files), cmocka_unit_test(test_standard_input),
        cmocka_unit_test(test_utf8),  cmocka_unit_test(test_output),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
