/* train-tokenizer: a SentencePiece model for rows of one's own.
 *
 * usage: train-tokenizer [--split-digits] [--source-field NAME] [--target-field NAME] ROWS PIECES
 * OUT
 *
 * learns PIECES pieces from the sources and targets of ROWS (JSONL, TSV or CSV) and writes the
 * model file OUT, for `spillway init --tokenizer OUT`. */
#include "data/rows.h"
#include "data/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The texts of a file, source and target in turn. */
struct texts {
    struct sw_rows *rows;
    struct sw_rows_field fields[2];
    bool target_next;
    struct sw_err err; /* reading may fail half way */
};

static bool next_text(void *context, const char **text, int64_t *bytes)
{
    struct texts *texts = context;
    bool end = false;
    if (!texts->target_next &&
        (sw_rows_next(texts->rows, texts->fields, &end, &texts->err) != SW_OK || end))
        return false;
    const struct sw_rows_field *field = &texts->fields[texts->target_next ? 1 : 0];
    texts->target_next = !texts->target_next;
    *text = field->text;
    *bytes = field->bytes;
    return true;
}

static sw_code train(const char *path, const struct sw_rows_options *options, int64_t pieces,
                     bool split_digits, const char *out, struct sw_err *err)
{
    struct texts texts = {0};
    struct sw_tokenizer_training training = {.next = next_text,
                                             .context = &texts,
                                             .pieces = pieces,
                                             .split_digits = split_digits,
                                             .character_coverage = 0};
    sw_code code = sw_rows_open(path, options, &texts.rows, err);
    if (code != SW_OK)
        return code;
    code = sw_tokenizer_train(&training, out, err);
    sw_rows_close(texts.rows);
    if (texts.err.code != SW_OK) { /* it learnt from a part of the file only */
        remove(out);
        *err = texts.err;
        return err->code;
    }
    return code;
}

int main(int argc, char **argv)
{
    struct sw_rows_options options = {.fields = {"source", "target"}, .fields_count = 2};
    struct sw_err err;
    bool split_digits = false;
    int at = 1;
    sw_err_init(&err);
    for (; at < argc && strncmp(argv[at], "--", 2) == 0; at++) {
        if (strcmp(argv[at], "--split-digits") == 0)
            split_digits = true;
        else if (strcmp(argv[at], "--source-field") == 0 && at + 1 < argc)
            options.fields[0] = argv[++at];
        else if (strcmp(argv[at], "--target-field") == 0 && at + 1 < argc)
            options.fields[1] = argv[++at];
        else
            break;
    }
    char *rest = NULL;
    long long pieces = argc - at == 3 ? strtoll(argv[at + 1], &rest, 10) : 0;
    if (argc - at != 3 || *rest != '\0') {
        fputs("usage: train-tokenizer [--split-digits] [--source-field NAME] [--target-field NAME] "
              "ROWS PIECES OUT\n",
              stderr);
        return 2;
    }
    if (train(argv[at], &options, pieces, split_digits, argv[at + 2], &err) != SW_OK) {
        fprintf(stderr, "train-tokenizer: %s\n", err.text);
        return sw_code_exit_status(err.code);
    }
    return 0;
}
