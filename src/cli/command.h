/* The command line: a table of commands, each with a table of options that also makes its help. */
#ifndef SPILLWAY_CLI_COMMAND_H
#define SPILLWAY_CLI_COMMAND_H

#include "base/err.h"

#include <stdint.h>

enum { SW_CLI_OPTIONS = 12, SW_CLI_SETS = 128, SW_CLI_NEEDED = 2 };

/* "--name VALUE" or "--name=VALUE"; a flag when `value` is NULL. */
struct sw_cli_option {
    const char *name;  /* without dashes */
    const char *value; /* what the help calls the value; NULL: a flag */
    const char *help;
};

/* What the command line gave. Strings are borrowed from argv. */
struct sw_cli_args {
    const char *positional;             /* NULL when there is none */
    const char *second;                 /* likewise, of two */
    const char *values[SW_CLI_OPTIONS]; /* by position in the command's table; flags: "" */
    const char *sets[SW_CLI_SETS];      /* of --set, in order */
    int64_t set_count;
};

struct sw_command {
    const char *name, *summary;
    const char *positional; /* what the help calls it; NULL: none */
    bool positional_needed;
    const char *second; /* what the help calls another behind it, never needed; NULL: none */
    bool takes_set;     /* --set key=value */
    struct sw_cli_option options[SW_CLI_OPTIONS]; /* ends with a NULL name */
    const char *needed[SW_CLI_NEEDED];            /* names of those that must be given; or NULL */
    const char *help;                             /* further lines; NULL: none */
    sw_code (*run)(const struct sw_cli_args *args, struct sw_err *err);
};

extern const struct sw_command *const sw_commands[]; /* ends with NULL */

extern const struct sw_command sw_command_train, sw_command_plan, sw_command_eval,
    sw_command_generate, sw_command_tokenize, sw_command_init, sw_command_inspect, sw_command_probe,
    sw_command_bench;

/* Value of an option by name, or NULL when it was not given (of a needed one it always was). */
const char *sw_cli_value(const struct sw_command *command, const struct sw_cli_args *args,
                         const char *name);
/* The same as a whole number in least .. most, or `otherwise` when it was not given. */
sw_code sw_cli_integer(const struct sw_command *command, const struct sw_cli_args *args,
                       const char *name, int64_t least, int64_t most, int64_t otherwise,
                       int64_t *out, struct sw_err *err) SW_WARN_UNUSED;

/* Everything: parse, run, print what went wrong. Returns the exit status. */
int sw_main(int argc, char **argv);

#endif
