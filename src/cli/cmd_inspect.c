/* spillway inspect */
#include "ckpt/inspect.h"
#include "cli/command.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static sw_code run(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_text text = {0};
    sw_code code = sw_inspect(args->positional, &text, err);
    if (code == SW_E_IO && access(args->positional, R_OK) != 0)
        code = err->code = SW_E_USAGE; /* a wrong path on the command line */
    if (code == SW_OK)
        code = sw_text_check(&text, args->positional, err);
    if (code == SW_OK)
        fputs(text.bytes, stdout);
    free(text.bytes);
    return code;
}

const struct sw_command sw_command_inspect = {
    .name = "inspect",
    .summary = "what a model, checkpoint or run directory holds",
    .positional = "PATH",
    .positional_needed = true,
    .run = run,
};
