/* make-task: the quickstart's task. Dates written in many ways, to be turned into ISO 8601:
 *
 *     {"source": "3rd of March 2021", "target": "2021-03-03"}
 *
 * usage: make-task DIRECTORY [TRAIN_ROWS [TEST_ROWS]]
 *
 * writes train.jsonl and test.jsonl. One day in 16 is kept for the test: no day is in both files,
 * so no text is either. Days are those of 1970 to 2039, so that '70 to '99 and '00 to '39 are never
 * in doubt; numbers between slashes are month/day/year, between dots day.month.year. The same files
 * every time. */
#include "base/file.h"
#include "base/random.h"
#include "base/text.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_YEAR = 1970, DAYS = 25567 /* to the end of 2039 */, HELD_OUT = 16 };

struct date {
    int year, month, day, weekday; /* weekday 0: Monday */
};

/* --- random numbers: a stream for each file ------------------------------------------ */

struct stream {
    uint32_t key[2], words[4];
    uint32_t block, used;
};

static uint32_t draw(struct stream *stream, uint32_t bound)
{
    if (stream->used == 0) {
        const uint32_t counter[4] = {stream->block++};
        sw_philox(stream->key, counter, stream->words);
    }
    uint32_t word = stream->words[stream->used];
    stream->used = (stream->used + 1) % 4;
    return (uint32_t)(((uint64_t)word * bound) >> 32);
}

/* --- dates --------------------------------------------------------------------------- */

static bool is_leap(int year)
{
    return year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
}

static struct date date_of(int days) /* since 1 January 1970, a Thursday */
{
    static const int lengths[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    struct date date = {FIRST_YEAR, 1, 1, (days + 3) % 7};
    for (;; date.year++) {
        int length = is_leap(date.year) ? 366 : 365;
        if (days < length)
            break;
        days -= length;
    }
    for (;; date.month++) {
        int length = lengths[date.month - 1] + (date.month == 2 && is_leap(date.year));
        if (days < length)
            break;
        days -= length;
    }
    date.day = days + 1;
    return date;
}

static bool is_held_out(int days)
{
    uint32_t key[2], word[4];
    const uint32_t counter[4] = {(uint32_t)days};
    sw_random_key(0, 0, key);
    sw_philox(key, counter, word);
    return word[0] % HELD_OUT == 0;
}

/* --- ways of writing ----------------------------------------------------------------- */

static const char *const months[] = {"January",   "February", "March",    "April",
                                     "May",       "June",     "July",     "August",
                                     "September", "October",  "November", "December"};
static const char *const weekdays[] = {"Monday", "Tuesday",  "Wednesday", "Thursday",
                                       "Friday", "Saturday", "Sunday"};
static const char *const ordinals[] = {
    "first",        "second",         "third",         "fourth",        "fifth",
    "sixth",        "seventh",        "eighth",        "ninth",         "tenth",
    "eleventh",     "twelfth",        "thirteenth",    "fourteenth",    "fifteenth",
    "sixteenth",    "seventeenth",    "eighteenth",    "nineteenth",    "twentieth",
    "twenty-first", "twenty-second",  "twenty-third",  "twenty-fourth", "twenty-fifth",
    "twenty-sixth", "twenty-seventh", "twenty-eighth", "twenty-ninth",  "thirtieth",
    "thirty-first"};

/* A form is a text in which %x stands for a part of the date:
 * d 3, D 03, o 3rd, w third; m 3, M 03, b Mar, B March; y 21, Y 2021; a Wed, A Wednesday;
 * t a time of day. */
static const char *const forms[] = {
    "%d %B %Y",      "%o of %B %Y",     "the %o of %B, %Y", "%B %d, %Y",   "%B %o, %Y",
    "%b %d, '%y",    "%b %d %Y",        "%d %b %Y",         "%d %b '%y",   "%d-%b-%Y",
    "%D-%b-%y",      "%Y/%M/%D",        "%Y-%M-%D",         "%Y.%M.%D",    "%Y%M%D",
    "%d.%m.%Y",      "%D.%M.%Y",        "%D.%M.%y",         "%m/%d/%Y",    "%M/%D/%Y",
    "%m/%d/%y",      "%A, %B %d, %Y",   "%a, %d %b %Y",     "%A %o %B %Y", "%a %b %d %Y",
    "%B the %o, %Y", "the %w of %B %Y", "%w of %B, %Y",     "%Y %B %d",    "%Y, %b %o",
    "%Y-%M-%DT%tZ",  "%a %b %d %t %Y",  "%d. %B %Y",        "on %B %o %Y", "%A the %w of %B, %Y",
    "%o %b, %Y",
};

static void put(char *out, size_t room, const char *text)
{
    size_t used = strlen(out);
    snprintf(out + used, room - used, "%s", text);
}

static const char *suffix(int day)
{
    if (day / 10 == 1)
        return "th";
    return day % 10 == 1 ? "st" : day % 10 == 2 ? "nd" : day % 10 == 3 ? "rd" : "th";
}

static void put_part(char *out, size_t room, char part, const struct date *date,
                     struct stream *stream)
{
    char text[32] = "";
    switch (part) {
    case 'd':
        snprintf(text, sizeof text, "%d", date->day);
        break;
    case 'D':
        snprintf(text, sizeof text, "%02d", date->day);
        break;
    case 'o':
        snprintf(text, sizeof text, "%d%s", date->day, suffix(date->day));
        break;
    case 'w':
        snprintf(text, sizeof text, "%s", ordinals[date->day - 1]);
        break;
    case 'm':
        snprintf(text, sizeof text, "%d", date->month);
        break;
    case 'M':
        snprintf(text, sizeof text, "%02d", date->month);
        break;
    case 'b':
        snprintf(text, sizeof text, "%.3s", months[date->month - 1]);
        break;
    case 'B':
        snprintf(text, sizeof text, "%s", months[date->month - 1]);
        break;
    case 'y':
        snprintf(text, sizeof text, "%02d", date->year % 100);
        break;
    case 'Y':
        snprintf(text, sizeof text, "%d", date->year);
        break;
    case 'a':
        snprintf(text, sizeof text, "%.3s", weekdays[date->weekday]);
        break;
    case 'A':
        snprintf(text, sizeof text, "%s", weekdays[date->weekday]);
        break;
    case 't':
        snprintf(text, sizeof text, "%02u:%02u", draw(stream, 24), draw(stream, 60));
        break;
    default:
        abort();
    }
    put(out, room, text);
}

/* Now and then as people type: all small or all capital letters. */
static void put_case(char *text, uint32_t chance)
{
    for (; *text != '\0' && chance < 2; text++)
        *text = (char)(chance == 0 ? tolower((unsigned char)*text) : toupper((unsigned char)*text));
}

static void write_date(char *out, size_t room, const struct date *date, struct stream *stream)
{
    out[0] = '\0';
    for (const char *at = forms[draw(stream, sizeof forms / sizeof forms[0])]; *at != '\0'; at++) {
        const char plain[2] = {*at, '\0'};
        if (*at == '%')
            put_part(out, room, *++at, date, stream);
        else
            put(out, room, plain);
    }
    put_case(out, draw(stream, 12));
}

/* --- files --------------------------------------------------------------------------- */

static sw_code write_rows(const char *directory, const char *name, int rows, bool held_out,
                          struct sw_err *err)
{
    struct stream stream = {0};
    struct sw_text text = {0};
    char *path = sw_path_join(directory, name);
    sw_code code;
    sw_random_key(1, held_out ? 2 : 1, stream.key);
    for (int row = 0; row < rows;) {
        char source[128], target[32];
        int days = (int)draw(&stream, DAYS);
        if (is_held_out(days) != held_out)
            continue;
        struct date date = date_of(days);
        write_date(source, sizeof source, &date, &stream);
        snprintf(target, sizeof target, "%04d-%02d-%02d", date.year, date.month, date.day);
        sw_text_add(&text, "{\"source\": \"%s\", \"target\": \"%s\"}\n", source, target);
        row++;
    }
    code = path == NULL ? SW_FAIL(err, SW_E_MEMORY, "no memory for a path")
                        : sw_text_check(&text, name, err);
    if (code == SW_OK)
        code =
            sw_file_write_atomic(path, text.bytes != NULL ? text.bytes : "", text.used_bytes, err);
    free(path);
    free(text.bytes);
    return code;
}

static int rows_of(const char *argument, int otherwise)
{
    return argument != NULL ? atoi(argument) : otherwise;
}

int main(int argc, char **argv)
{
    struct sw_err err;
    sw_err_init(&err);
    int train = rows_of(argc > 2 ? argv[2] : NULL, 24000);
    int test = rows_of(argc > 3 ? argv[3] : NULL, 1000);
    if (argc < 2 || argc > 4 || train < 1 || test < 1) {
        fputs("usage: make-task DIRECTORY [TRAIN_ROWS [TEST_ROWS]]\n", stderr);
        return 2;
    }
    if (sw_directory_make(argv[1], &err) != SW_OK ||
        write_rows(argv[1], "train.jsonl", train, false, &err) != SW_OK ||
        write_rows(argv[1], "test.jsonl", test, true, &err) != SW_OK) {
        fprintf(stderr, "make-task: %s\n", err.text);
        return sw_code_exit_status(err.code);
    }
    return 0;
}
