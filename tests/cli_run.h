/* For tests that run whole commands: output into files, and reading those. Every function fails the
 * test when it cannot do what it says. */
#ifndef SPILLWAY_TESTS_CLI_RUN_H
#define SPILLWAY_TESTS_CLI_RUN_H

#include "tests/support.h"

#include "base/json.h"

#include <sys/types.h>

/* Run a command with standard output into a file; stderr too, so that tests stay readable. Standard
 * input comes from `in` (NULL: nothing). `arguments` begins with the program's name and ends with
 * NULL. Returns the exit status. */
int spillway(const char *out, const char *log, const char *in, char **arguments);

#define RUN(out, log, in, ...)                                                                     \
    spillway(out, log, in, (char *[]){(char[]){"spillway"}, __VA_ARGS__, NULL})

/* The same for a command line without the program's name, cut at spaces. */
int spillway_words(const char *out, const char *log, const char *in, const char *words);

/* Start such a command in a process of its own, with pipes to its input and from its output. */
pid_t spillway_start(const char *log, const char *words, int *in, int *out);

/* All owned by the caller. */
char *at(const char *directory, const char *name); /* a path */
char *read_text(const char *path);
struct sw_json *read_json(const char *path);
/* Lines of a JSONL file, *count of them. */
struct sw_json **read_lines(const char *path, int64_t *count);
void free_lines(struct sw_json **lines, int64_t count);

void write_text(const char *path, const char *text);
double number(const struct sw_json *object, const char *key);
/* File `name` of both directories holds the same bytes. */
void same_file(const char *a, const char *b, const char *name);

#endif
