/* The option table, inside src/config. */
#ifndef SPILLWAY_CONFIG_TABLE_H
#define SPILLWAY_CONFIG_TABLE_H

#include "config/config.h"

#include <stddef.h>

enum sw_option_type {
    SW_OPTION_STRING,
    SW_OPTION_BOOL,
    SW_OPTION_INTEGER,
    SW_OPTION_SIZE, /* bytes; KiB, MiB, GiB, TiB */
    SW_OPTION_REAL,
    SW_OPTION_PAIR,     /* two reals */
    SW_OPTION_DURATION, /* seconds; 90, 90s, 15m, 8h30m, 2d */
    SW_OPTION_CHOICE,
    SW_OPTION_STRINGS,
    SW_OPTION_INTEGERS,
};

struct sw_option {
    const char *key;
    enum sw_option_type type;
    size_t offset;       /* in struct sw_config */
    const char *initial; /* default, as one would write it; NULL: none, must be given */
    const char *choices; /* "auto on off"; a|b: two spellings. NULL unless SW_OPTION_CHOICE */
    double least, most;  /* of numbers, inclusive */
    const char *help;
};

extern const struct sw_option sw_options[];
extern const int sw_option_count;

/* A default that is another one where the choice `when_key` is `when_value`. */
struct sw_option_default {
    const char *key, *when_key, *when_value;
    const char *initial;
};

extern const struct sw_option_default sw_option_defaults[];
extern const int sw_option_default_count;

/* Where a value comes from. */
struct sw_option_source {
    const char *text; /* for messages: "job.yaml:12" or "--set" */
    int32_t line;     /* 0: --set */
    bool quoted;      /* a scalar stood in quotes: not a number */
    bool verbatim;    /* from the command line, where strings need no quotes */
};

/* Set an option from scalars: one, or for lists any number. */
sw_code sw_option_assign(struct sw_config *config, int index, const char *const *values,
                         int64_t count, bool is_list, const struct sw_option_source *source,
                         struct sw_err *err) SW_WARN_UNUSED;
/* What it takes, in words: "a whole number from 1", "auto, on or off". */
void sw_option_describe(const struct sw_option *option, struct sw_text *out);
/* Does the choice `key` stand at `value`? */
bool sw_option_is(const struct sw_config *config, const char *key, const char *value);
/* The value as YAML. */
void sw_option_print(const struct sw_config *config, int index, struct sw_text *out);
/* Refuse an unknown key, naming the nearest one. */
sw_code sw_option_unknown(const char *key, const char *where, struct sw_err *err);

#endif
