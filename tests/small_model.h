/* Small models of both kinds with rows and a tokenizer, made for a test by the commands themselves.
 */
#ifndef SPILLWAY_TESTS_SMALL_MODEL_H
#define SPILLWAY_TESTS_SMALL_MODEL_H

#include "tests/cli_run.h"

enum { ROWS = 40, SMALL_VOCABULARY = 211, KINDS = 2 };

/* A directory with rows.jsonl, spiece.model and, for each kind, a model directory NAME and a job
 * NAME.yaml: 7 steps of 8 rows in micro-batches of 3, with dropout, on one thread. */
struct world {
    char *directory, *rows, *out, *log; /* out and log: of the last command */
};

struct kind {
    const char *name, *config, *optimizer;
};

/* "v10": relu, tied, Adafactor. "v11": gated, untied, AdamW. Sizes that no vector and no tile
 * divides. */
extern const struct kind kinds[KINDS];

/* For cmocka_run_group_tests: *state is the world. */
int make_world(void **state);
int remove_world(void **state);

/* Run a command that must end with `status`; `format` makes its words. */
__attribute__((format(printf, 4, 5))) void run(const struct world *world, int status,
                                               const char *in, const char *format, ...);
/* The last command's log holds `part`; its output is empty. */
void expect_in_log(const struct world *world, const char *part);
void expect_no_output(const struct world *world);

#endif
