#include "base/pool.h"
#include "base/text.h"
#include "cli/bench_comm.h"
#include "cli/bench_step.h"
#include "cli/command.h"
#include "cli/measure_args.h"
#include "cli/rates.h"
#include "io/measure.h"
#include "optim/optim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- io
 * --------------------------------------------------------------------------------------------*/

static void show(void *context, double fraction)
{
    sw_cli_progress_show(context, "the drive", fraction);
}

static sw_code bench_io(const struct sw_cli_args *args, struct sw_err *err)
{
    const struct sw_command *command = &sw_command_bench;
    const char *directory = sw_cli_value(command, args, "dir");
    const char *method = sw_cli_value(command, args, "method");
    struct sw_cli_progress progress = {.percent = -1};
    struct sw_measure_config config = {.directory = directory != NULL ? directory : ".",
                                       .note = sw_cli_note,
                                       .progress = show,
                                       .progress_context = &progress};
    struct sw_measure_rates rates;
    int64_t depth = 0;
    sw_code code = sw_cli_integer(command, args, "depth", 1, SW_AIO_MAX_DEPTH, 32, &depth, err);
    config.queue_depth = (int)depth;
    if (code == SW_OK)
        code = sw_cli_size("block", sw_cli_value(command, args, "block"), SW_AIO_ALIGNMENT_BYTES,
                           1 << 30, 1 << 20, &config.request_bytes, err);
    if (code == SW_OK && config.request_bytes % SW_AIO_ALIGNMENT_BYTES != 0)
        code = SW_FAIL(err, SW_E_USAGE, "--block: %lld is not a multiple of %d",
                       (long long)config.request_bytes, (int)SW_AIO_ALIGNMENT_BYTES);
    if (code == SW_OK)
        code = sw_cli_size("size", sw_cli_value(command, args, "size"), config.request_bytes,
                           INT64_MAX / 4, (int64_t)1 << 30, &config.file_bytes, err);
    if (code == SW_OK && !sw_aio_method_find(method != NULL ? method : "auto", &config.method))
        code = SW_FAIL(err, SW_E_USAGE,
                       "--method: there is no %s; there are auto, io_uring, threads, sync", method);
    if (code == SW_OK)
        code = sw_cli_directory("dir", config.directory, err);
    if (code == SW_OK)
        code = sw_measure_drive(&config, &rates, err);
    sw_cli_progress_end(&progress);
    if (code == SW_OK)
        printf("write %10.1f MB/s\nread  %10.1f MB/s\n%s, %s, block %lld KiB, depth %d\n",
               rates.write_bytes_per_second / 1e6, rates.read_bytes_per_second / 1e6, rates.method,
               rates.direct ? "O_DIRECT" : "through the page cache",
               (long long)(config.request_bytes >> 10), config.queue_depth);
    return code;
}

/* --- optimizer, gemm
 * -------------------------------------------------------------------------------*/

static sw_code open_pool(const struct sw_cli_args *args, struct sw_pool **out, struct sw_err *err)
{
    int64_t threads = 0;
    sw_code code = sw_cli_integer(&sw_command_bench, args, "threads", 1, 1024, sw_cpus_available(),
                                  &threads, err);
    return code == SW_OK ? sw_pool_open(out, (int)threads, err) : code;
}

static sw_code bench_optimizer(const struct sw_cli_args *args, struct sw_err *err)
{
    int64_t bytes = 0;
    struct sw_pool *pool;
    struct sw_optim_bench bench;
    sw_code code = sw_cli_size("size", sw_cli_value(&sw_command_bench, args, "size"), 1024,
                               INT64_MAX / 4, 256 << 20, &bytes, err);
    if (code == SW_OK)
        code = open_pool(args, &pool, err);
    if (code != SW_OK)
        return code;
    code = sw_optim_bench(pool, bytes / 1024 * 64, &bench, err); /* 16 bytes an element */
    if (code == SW_OK)
        printf(
            "adamw %8.2f GB/s\ntriad %8.2f GB/s\nratio %8.3f\n%s, %lld thread%s, %lld elements\n",
            bench.adamw_bytes_per_second / 1e9, bench.triad_bytes_per_second / 1e9, bench.ratio,
            sw_optim_isa_text(sw_optim_isa()), (long long)sw_pool_workers(pool),
            sw_text_plural(sw_pool_workers(pool)), (long long)bench.elements);
    sw_pool_close(pool);
    return code;
}

static sw_code bench_gemm(const struct sw_cli_args *args, struct sw_err *err)
{
    struct sw_pool *pool;
    double rate = 0;
    sw_code code = open_pool(args, &pool, err);
    if (code != SW_OK)
        return code;
    code = sw_rates_measure_gemm(pool, &rate, err);
    if (code == SW_OK)
        printf("gemm %10.1f GFLOP/s\nfp32, %lld thread%s\n", rate / 1e9,
               (long long)sw_pool_workers(pool), sw_text_plural(sw_pool_workers(pool)));
    sw_pool_close(pool);
    return code;
}

static sw_code bench_comm(const struct sw_cli_args *args, struct sw_err *err)
{
    return sw_cli_bench_comm(sw_cli_value(&sw_command_bench, args, "size"), err);
}

static sw_code run_bench(const struct sw_cli_args *args, struct sw_err *err)
{
    static const struct {
        const char *name;
        sw_code (*run)(const struct sw_cli_args *args, struct sw_err *err);
    } benches[] = {{"io", bench_io},
                   {"optimizer", bench_optimizer},
                   {"gemm", bench_gemm},
                   {"comm", bench_comm},
                   {"step", sw_cli_bench_step}};
    bool step = strcmp(args->positional, "step") == 0;
    if (!step && (args->second != NULL || args->set_count > 0))
        return SW_FAIL(err, SW_E_USAGE, "bench %s: what is %s for? (only step takes it)",
                       args->positional, args->second != NULL ? args->second : "--set");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++)
        if (strcmp(args->positional, benches[i].name) == 0)
            return benches[i].run(args, err);
    return SW_FAIL(err, SW_E_USAGE,
                   "there is no benchmark %s; there are io, optimizer, gemm, comm, step",
                   args->positional);
}

const struct sw_command sw_command_bench = {
    .name = "bench",
    .summary = "how fast a part of this machine is: io, optimizer, gemm, comm; or a training step",
    .positional = "io|optimizer|gemm|comm|step",
    .positional_needed = true,
    .second = "CONFIG.yaml",
    .takes_set = true,
    .options = {{"dir", "DIR", "io: directory on the drive (default: this one)"},
                {"size", "SIZE",
                 "io: of the file (default: 1GiB), which has no name and is gone "
                 "afterwards; optimizer: of the states (default: 256MiB); comm: of a member's "
                 "array (default: 64MiB)"},
                {"block", "SIZE", "io: of a request (default: 1MiB)"},
                {"depth", "N", "io: requests in flight (default: 32)"},
                {"method", "NAME", "io: auto, io_uring, threads or sync"},
                {"threads", "N", "optimizer, gemm: default: the CPUs that may be used"},
                {"machine", "FILE",
                 "step: rates of this file (spillway probe --out); default: measured"},
                {"run", "N", "step: run N steps, too, on random rows as long as may be"}},
    .help =
        "io writes the file once, then times writing it again and reading it. "
        "tools/bench/io-vs-fio "
        "compares\nit with fio. comm times what replicas exchange, a member a GPU, two on one GPU "
        "or on the CPU.\nstep runs the plan's program of a training step on a virtual clock, by "
        "the machine's rates: how\nlong it takes, which resource is busiest, what every lane is "
        "busy with, and how long ranks compute\nnothing; --machine plans for that machine, GPUs "
        "that are not here and up to 64 ranks included;\n--run compares with real steps.\n",
    .run = run_bench,
};
