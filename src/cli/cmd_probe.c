#include "base/file.h"
#include "cli/back_end.h"
#include "cli/command.h"
#include "cli/measure_args.h"
#include "cli/probe.h"
#include "train/preflight.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t default_file_bytes = (int64_t)1 << 30;

/* Directories to measure: as given, else this one. */
static sw_code take_directories(const struct sw_cli_args *args, char **out_copy, const char **names,
                                int *out_count, struct sw_err *err)
{
    static const char here[] = ".";
    const char *list = sw_cli_value(&sw_command_probe, args, "dir");
    *out_copy = NULL;
    *out_count = 0;
    if (list != NULL) {
        sw_code code =
            sw_cli_split("dir", list, SW_MACHINE_MAX_DRIVES, out_copy, names, out_count, err);
        for (int i = 0; i < *out_count && code == SW_OK; i++)
            code = sw_cli_directory("dir", names[i], err);
        return code;
    }
    names[0] = here;
    *out_count = 1;
    return SW_OK;
}

/* Measuring must not fill a drive: by default a quarter of the least free space at most. */
static int64_t bounded_file_bytes(const char *const *names, int count)
{
    int64_t bytes = default_file_bytes;
    for (int i = 0; i < count; i++) {
        int64_t free_bytes = sw_directory_free_bytes(names[i]);
        if (free_bytes >= 0 && free_bytes / 4 < bytes)
            bytes = free_bytes / 4;
    }
    return bytes;
}

/* Only where there is a choice of nodes. */
static sw_code print_map(const struct sw_machine *machine, struct sw_text *out, struct sw_err *err)
{
    struct sw_topo *topo;
    if (machine->numa_nodes < 2)
        return SW_OK;
    sw_code code = sw_topo_open(&topo, NULL, err);
    if (code == SW_OK) {
        sw_probe_print_map(topo, machine, out);
        sw_topo_close(topo);
    }
    return code;
}

static sw_code run_probe(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_command *command = &sw_command_probe;
    const char *out_path = sw_cli_value(command, args, "out");
    const char *names[SW_MACHINE_MAX_DRIVES];
    struct sw_cli_progress progress = {.percent = -1};
    struct sw_probe_options options = {
        .directories = names, .progress = sw_cli_progress_show, .progress_context = &progress};
    struct sw_text text = {0};
    char *copy = NULL;
    struct sw_machine *machine = calloc(1, sizeof *machine);
    if (machine == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for the description of a machine");
    sw_code code = out_path != NULL ? sw_preflight_output("--out", out_path, err) : SW_OK;
    if (code == SW_OK)
        code = take_directories(args, &copy, names, &options.directory_count, err);
    if (code == SW_OK)
        code = sw_cli_size("size", sw_cli_value(command, args, "size"), 4 << 20, INT64_MAX / 4,
                           bounded_file_bytes(names, options.directory_count), &options.file_bytes,
                           err);
    if (sw_cli_value(command, args, "quick") != NULL)
        options.file_bytes = 0;
    if (code == SW_OK)
        code = sw_back_end_cuda(&options.gpus, &options.why_no_gpus, err);
    if (code == SW_OK)
        code = sw_probe_machine(&options, machine, err);
    sw_cli_progress_end(&progress);
    if (code == SW_OK && out_path != NULL)
        code = sw_machine_write(out_path, machine, err);
    if (code == SW_OK)
        code = print_map(machine, &text, err);
    if (code == SW_OK) {
        sw_probe_print(machine, &text);
        code = sw_text_check(&text, "the description of a machine", err);
    }
    if (code == SW_OK)
        fputs(text.bytes, stdout);
    free(text.bytes);
    free(copy);
    free(machine);
    return code;
}

const struct sw_command sw_command_probe = {
    .name = "probe",
    .summary = "this machine: GPUs, NUMA, drives, limits, measured rates, what will hurt",
    .options = {{"out", "FILE", "write the machine as JSON, for plan --machine"},
                {"dir", "DIR,...", "directories for spilling, to measure (default: this one)"},
                {"size", "SIZE",
                 "file to measure each with (default: 1GiB or a quarter of what is "
                 "free); it has no name and is gone afterwards"},
                {"quick", NULL, "measure nothing"}},
    .help = "docs/MACHINE.md explains the fields of the file.\n",
    .run = run_probe,
};
