#include "support.h"

#include "cli/command.h"
#include "cli/measure_args.h"
#include "cli/probe.h"
#include "cli/rates.h"

static struct sw_machine machine;

static char *warnings_of(void)
{
    struct sw_err err = {0};
    struct sw_text text = {0};
    sw_text_add(&text, "%s", "");
    sw_probe_warnings(&machine, &text);
    assert_ok(sw_text_check(&text, "warnings", &err), &err);
    return text.bytes;
}

/* A machine of which there is nothing to say. */
static void make_good(void)
{
    sw_machine_init(&machine);
    machine.cpus = machine.cpus_total = 16;
    machine.memory_total_bytes = machine.memory_available_bytes = (int64_t)128 << 30;
    machine.io_uring = true;
    machine.gpu_count = 1;
    machine.drive_count = 1;
    snprintf(machine.drives[0].directory, sizeof machine.drives[0].directory, "/mnt/fast");
    machine.drives[0].direct = true;
    machine.drives[0].free_bytes = (int64_t)1 << 40;
    machine.drives[0].read_bytes_per_second = 7e9;
}

static void assert_warned(const char *part)
{
    char *text = warnings_of();
    int lines = 0;
    for (const char *at = text; *at != '\0'; at++)
        lines += *at == '\n';
    if (lines != 1 || strstr(text, part) == NULL)
        fail_msg("\"%s\" lacks \"%s\" or is not one line", text, part);
    free(text);
}

static void test_what_will_hurt(void **state)
{
    (void)state;
    make_good();
    char *text = warnings_of();
    assert_string_equal(text, "");
    free(text);
    machine.memlock_bytes = 8 << 20;
    assert_warned("`ulimit -l` lets 8.0 MiB");
    make_good();
    machine.io_uring = false;
    assert_warned("io_uring is forbidden");
    make_good();
    machine.drives[0].memory_backed = true;
    snprintf(machine.drives[0].file_system, sizeof machine.drives[0].file_system, "tmpfs");
    assert_warned("/mnt/fast is tmpfs");
    make_good();
    machine.drives[0].rotational = true; /* a virtual disk: fast */
    text = warnings_of();
    assert_string_equal(text, "");
    free(text);
    machine.drives[0].read_bytes_per_second = 2e8;
    assert_warned("spinning");
    make_good();
    machine.drives[0].direct = false;
    assert_warned("O_DIRECT");
    make_good();
    machine.drives[0].read_bytes_per_second = 2e8;
    assert_warned("reads 200 MB/s");
    make_good();
    machine.drives[0].free_bytes = 3 << 29;
    assert_warned("1.5 GiB free");
    make_good();
    machine.cpus = 2;
    assert_warned("2 of 16 CPUs");
    make_good();
    machine.memory_limit_bytes = (int64_t)32 << 30;
    assert_warned("the cgroup allows 32.0 GiB");
    make_good();
    machine.memory_available_bytes = (int64_t)4 << 30;
    assert_warned("4.0 GiB of memory");
    make_good();
    machine.gpu_count = 0;
    assert_warned("no GPU");
}

static char last_what[256];

static void test_what_will_hurt_on_gpus(void **state)
{
    (void)state;
    make_good();
    machine.gpu_count = 2;
    for (int i = 0; i < 2; i++) {
        machine.gpus[i] = (struct sw_machine_gpu){.memory_bytes = (int64_t)24 << 30,
                                                  .free_bytes = (int64_t)23 << 30,
                                                  .peers = 1,
                                                  .h2d_bytes_per_second = 25e9};
        snprintf(machine.gpus[i].name, sizeof machine.gpus[i].name, "GPU");
    }
    char *text = warnings_of();
    assert_string_equal(text, "");
    free(text);
    machine.gpus[1].free_bytes = (int64_t)10 << 30;
    assert_warned("GPU 1 is in use: 10.0 of 24.0 GiB");
    machine.gpus[1].free_bytes = machine.gpus[0].free_bytes;
    machine.gpus[0].peers = 0;
    assert_warned("GPU 0 reaches 0 of 1 other");
    machine.gpus[0].peers = 1;
    machine.gpus[0].h2d_bytes_per_second = 3e9;
    assert_warned("takes 3.0 GB/s");
}

static void take_progress(void *context, const char *what, double fraction)
{
    (void)context;
    assert_true(fraction >= 0 && fraction <= 1.0001);
    snprintf(last_what, sizeof last_what, "%s", what);
}

/* What is measured grows with the workers, whose caches it must not fit, and with memory. */
static void test_elements(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 3, &err), &err);
    const int64_t mib = 1 << 20, plenty = 1024 * 1024 * mib;
    assert_int_equal(sw_rates_elements(pool, 256 * mib, plenty), 768 * mib / 16);
    assert_int_equal(sw_rates_elements(pool, 16 * mib, plenty), 64 * mib / 16);
    assert_int_equal(sw_rates_elements(pool, 4096 * mib, plenty), 4096 * mib / 16);
    assert_int_equal(sw_rates_elements(pool, 256 * mib, 1024 * mib), 128 * mib / 16);
    sw_pool_close(pool);
}

/* Finds this machine out, and a person and the planner can read it. */
static void test_this_machine(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *scratch = sw_test_scratch();
    const char *directory = scratch;
    struct sw_probe_options options = {.directories = &directory,
                                       .directory_count = 1,
                                       .file_bytes = 8 << 20,
                                       .host_elements = 1 << 18,
                                       .progress = take_progress};
    assert_ok(sw_probe_machine(&options, &machine, &err), &err);
    assert_string_equal(last_what, "CPUs and memory");
    assert_true(machine.triad_bytes_per_second > 0 && machine.optimizer_bytes_per_second > 0);
    assert_true(machine.memcpy_bytes_per_second > 0 && machine.gemm_flops_per_second > 0);
    assert_true(machine.drive_count == 1 && machine.drives[0].read_bytes_per_second > 0);
    struct sw_text text = {0};
    sw_probe_print(&machine, &text);
    assert_ok(sw_text_check(&text, "a machine", &err), &err);
    assert_non_null(strstr(text.bytes, scratch));
    free(text.bytes);

    options.file_bytes = 0;
    assert_ok(sw_probe_machine(&options, &machine, &err), &err);
    assert_true(machine.triad_bytes_per_second == 0);
    directory = "/nowhere";
    assert_refused(sw_probe_machine(&options, &machine, &err), SW_E_USAGE, "/nowhere", &err);
    assert_int_equal(rmdir(scratch), 0);
    free(scratch);
}

/* By the CPU back end for a GPU: what is measured is said. */
static void test_shared_memory(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_pool *pool;
    assert_ok(sw_pool_open(&pool, 2, &err), &err);
    sw_machine_init(&machine);
    machine.gpu_count = 1;
    machine.gpus[0].h2d_bytes_per_second = 1e9;
    machine.triad_bytes_per_second = 2e9;
    assert_ok(sw_probe_shared_memory(&sw_cpu_device_ops, pool, &machine, &err), &err);
    assert_true(machine.memory_bytes_per_second > 0);
    struct sw_text text = {0};
    sw_probe_print(&machine, &text);
    assert_ok(sw_text_check(&text, "a machine", &err), &err);
    assert_non_null(strstr(text.bytes, "CPUs and GPUs' links at once"));
    free(text.bytes);
    sw_pool_close(pool);
}

static void test_map(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_topo *topo;
    struct sw_text text = {0};
    struct sw_topo_config config = {.xml = SW_SOURCE_DIRECTORY "/tests/data/two-packages.xml",
                                    .cpuset = "0-4"};
    assert_ok(sw_topo_open(&topo, &config, &err), &err);
    make_good();
    machine.gpus[0].numa_node = 1;
    machine.drives[0].numa_node = sw_topo_node_of_block_device(topo, "nvme0n1");
    snprintf(machine.drives[0].device, sizeof machine.drives[0].device, "nvme0n1");
    sw_probe_print_map(topo, &machine, &text);
    assert_ok(sw_text_check(&text, "the map", &err), &err);
    assert_string_equal(text.bytes, "Node 0    CPUs 0-3, 64.0 GiB, nvme0n1\n"
                                    "Node 1    CPUs 4, 64.0 GiB, GPU 0\n");
    free(text.bytes);
    sw_topo_close(topo);
}

static void test_sizes(void **state)
{
    static const struct {
        const char *text;
        int64_t bytes; /* -1: refused */
    } cases[] = {{"4096", 4096},
                 {"512KiB", 524288},
                 {"1.5GiB", 1610612736},
                 {"2 MiB", 2097152},
                 {"", -1},
                 {"-5", -1},
                 {"5kB", -1},
                 {"0.3", -1},
                 {"99999GiB", -1},
                 {"1e99", -1},
                 {"0x10", -1},
                 {"3", -1},
                 {"0.3KiB", 307},
                 {"0.1 GiB", 107374182},
                 {"0.0001TiB", 109951162},
                 {".5MiB", 524288},
                 {".MiB", -1},
                 {"0.0001KiB", -1}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_err err = {0};
        int64_t bytes = -1;
        sw_code code = sw_cli_size("size", cases[i].text, 4, (int64_t)1 << 40, 7, &bytes, &err);
        assert_int_equal(bytes, cases[i].bytes);
        assert_int_equal(code, cases[i].bytes < 0 ? SW_E_USAGE : SW_OK);
    }
    int64_t bytes;
    struct sw_err err = {0};
    assert_ok(sw_cli_size("size", NULL, 0, 10, 7, &bytes, &err), &err);
    assert_int_equal(bytes, 7);
}

static void test_split(void **state)
{
    (void)state;
    struct sw_err err = {0};
    const char *names[2];
    char *copy;
    int count;
    assert_ok(sw_cli_split("dir", "/a,/b c", 2, &copy, names, &count, &err), &err);
    assert_int_equal(count, 2);
    assert_string_equal(names[0], "/a");
    assert_string_equal(names[1], "/b c");
    free(copy);
    assert_refused(sw_cli_split("dir", "1,2,3", 2, &copy, names, &count, &err), SW_E_USAGE,
                   "more than 2", &err);
}

/* By the command line: exit status, and the file for the planner. */
static int run(const char *const *words)
{
    char copy[16][256], *argv[16];
    int argc = 0;
    for (; words[argc] != NULL; argc++) {
        snprintf(copy[argc], sizeof copy[argc], "%s", words[argc]);
        argv[argc] = copy[argc];
    }
    return sw_main(argc, argv);
}

static void test_commands(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *scratch = sw_test_scratch(), *out = sw_path_join(scratch, "machine.json");
    const char *const probe[] = {"spillway", "probe", "--quick", "--dir",
                                 scratch,    "--out", out,       NULL};
    assert_int_equal(run(probe), 0);
    assert_ok(sw_machine_read(out, &machine, &err), &err);
    assert_string_equal(machine.drives[0].directory, scratch);
    assert_int_equal(unlink(out), 0);
    const char *const io[] = {"spillway", "bench", "io",      "--dir", scratch,    "--size", "1MiB",
                              "--block",  "64KiB", "--depth", "4",     "--method", "sync",   NULL};
    assert_int_equal(run(io), 0);
    const char *const unaligned[] = {"spillway", "bench", "io", "--block", "5000", NULL};
    assert_int_equal(run(unaligned), 2);
    const char *const method[] = {"spillway", "bench", "io", "--method", "fast", NULL};
    assert_int_equal(run(method), 2);
    const char *const comm[] = {"spillway", "bench", "comm", "--size", "64KiB", NULL};
    assert_int_equal(run(comm), 0);
    const char *const short_of[] = {"spillway", "bench", "comm", "--size", "1", NULL};
    assert_int_equal(run(short_of), 2);
    const char *const nowhere[] = {"spillway", "probe", "--dir", "/nowhere", NULL};
    assert_int_equal(run(nowhere), 2);
    const char *const what[] = {"spillway", "bench", "luck", NULL};
    assert_int_equal(run(what), 2);
    free(out);
    assert_int_equal(rmdir(scratch), 0);
    free(scratch);
}

/* hwloc's plugins are unloaded with what they allocated: leaks of ours cannot be told from theirs.
 */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "detect_leaks=0";
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_will_hurt), cmocka_unit_test(test_what_will_hurt_on_gpus),
        cmocka_unit_test(test_elements),       cmocka_unit_test(test_this_machine),
        cmocka_unit_test(test_shared_memory),  cmocka_unit_test(test_map),
        cmocka_unit_test(test_sizes),          cmocka_unit_test(test_split),
        cmocka_unit_test(test_commands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
