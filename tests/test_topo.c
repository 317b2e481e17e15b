/* Decisions on machines made up: two packages with a GPU and a drive each, restricted CPU sets,
 * forbidden nodes; and what must hold on any machine this runs on. */
#include "support.h"

#include "base/cgroup.h"
#include "topo/topo.h"

#include <sched.h>
#include <unistd.h>

static const char two_packages[] = "package:2 [numa(memory=68719476736)] core:2 pu:2";
static const char with_devices[] = SW_SOURCE_DIRECTORY "/tests/data/two-packages.xml";

static struct sw_topo *open_topo(const struct sw_topo_config *config)
{
    struct sw_err err = {0};
    struct sw_topo *topo = NULL;
    assert_ok(sw_topo_open(&topo, config, &err), &err);
    return topo;
}

static void assert_worker(const struct sw_topo *topo, int node, int worker, int worker_count,
                          const char *wanted)
{
    struct sw_err err = {0};
    char *cpus;
    assert_ok(sw_topo_worker_cpus(topo, node, worker, worker_count, &cpus, &err), &err);
    assert_string_equal(cpus, wanted);
    free(cpus);
}

static void assert_ring(const struct sw_topo *topo, int node, const char *wanted)
{
    struct sw_err err = {0};
    char *cpus;
    assert_ok(sw_topo_ring_cpus(topo, node, &cpus, &err), &err);
    assert_string_equal(cpus, wanted);
    free(cpus);
}

static void test_two_packages(void **state)
{
    (void)state;
    struct sw_topo *topo = open_topo(&(struct sw_topo_config){.synthetic = two_packages});
    assert_int_equal(sw_topo_node_count(topo), 2);
    assert_int_equal(sw_topo_cpu_count(topo), 8);
    assert_int_equal(sw_topo_cpu_total(topo), 8);
    assert_int_equal(sw_topo_node_cpu_count(topo, 0), 4);
    assert_int_equal(sw_topo_node_cpu_count(topo, 1), 4);
    assert_int_equal(sw_topo_node_memory_bytes(topo, 1), 68719476736);
    assert_int_equal(sw_topo_node_os_index(topo, 1), 1);
    /* without GPUs: neighbours together */
    for (int rank = 0; rank < 4; rank++)
        assert_int_equal(sw_topo_slab_node(topo, -1, rank, 4), rank / 2);
    assert_int_equal(sw_topo_slab_node(topo, -1, 0, 1), 0);
    /* near the GPU whatever the rank */
    assert_int_equal(sw_topo_slab_node(topo, 1, 0, 4), 1);
    assert_ring(topo, 1, "4-7");
    assert_ring(topo, -1, "0-7");
    /* cores before their second threads; nodes even */
    assert_worker(topo, -1, 0, 4, "0");
    assert_worker(topo, -1, 1, 4, "2");
    assert_worker(topo, -1, 2, 4, "4");
    assert_worker(topo, -1, 3, 4, "6");
    assert_worker(topo, 1, 2, 4, "5");
    assert_worker(topo, 1, 0, 9, "4-7"); /* more workers than CPUs: they share them */
    assert_int_equal(sw_topo_node_workers(topo, 0, 5) + sw_topo_node_workers(topo, 1, 5), 5);
    sw_topo_close(topo);
}

static void test_devices(void **state)
{
    (void)state;
    struct sw_topo *topo = open_topo(&(struct sw_topo_config){.xml = with_devices});
    assert_int_equal(sw_topo_node_count(topo), 2);
    assert_int_equal(sw_topo_node_of_pci(topo, "0000:10:00.0"), 0);
    assert_int_equal(sw_topo_node_of_pci(topo, "0000:80:00.0"), 1);
    assert_int_equal(sw_topo_node_of_pci(topo, "0000:99:00.0"), -1);
    assert_int_equal(sw_topo_node_of_block_device(topo, "nvme0n1"), 0);
    assert_int_equal(sw_topo_node_of_block_device(topo, "nvme1n1"), 1);
    assert_int_equal(sw_topo_node_of_block_device(topo, "sda"), -1);
    assert_ring(topo, sw_topo_node_of_block_device(topo, "nvme1n1"), "4-7");
    assert_int_equal(sw_topo_slab_node(topo, sw_topo_node_of_pci(topo, "0000:80:00.0"), 0, 2), 1);
    sw_topo_close(topo);
}

/* What is forbidden changes the decision and is no error. */
static void test_restricted(void **state)
{
    (void)state;
    struct sw_topo *topo =
        open_topo(&(struct sw_topo_config){.synthetic = two_packages, .cpuset = "1,3-5"});
    assert_int_equal(sw_topo_cpu_count(topo), 4);
    assert_int_equal(sw_topo_cpu_total(topo), 8);
    assert_int_equal(sw_topo_node_cpu_count(topo, 0), 2);
    assert_ring(topo, 0, "1,3");
    assert_worker(topo, 1, 0, 2, "4");
    assert_worker(topo, 1, 1, 2, "5"); /* the same core's second thread */
    sw_topo_close(topo);

    /* all workers go where the CPUs are, and a drive's thread anywhere */
    topo = open_topo(&(struct sw_topo_config){.synthetic = two_packages, .cpuset = "6,7"});
    assert_int_equal(sw_topo_node_workers(topo, 0, 3), 0);
    assert_int_equal(sw_topo_node_workers(topo, 1, 3), 3);
    assert_ring(topo, 0, "6-7");
    assert_worker(topo, 0, 1, 2, "6-7");
    assert_worker(topo, -1, 1, 2, "7");
    sw_topo_close(topo);

    topo = open_topo(&(struct sw_topo_config){.xml = with_devices, .nodeset = "1"});
    assert_int_equal(sw_topo_node_count(topo), 1);
    assert_int_equal(sw_topo_node_os_index(topo, 0), 1);
    assert_int_equal(sw_topo_node_of_pci(topo, "0000:10:00.0"), -1);
    assert_int_equal(sw_topo_slab_node(topo, -1, 3, 4), 0);
    sw_topo_close(topo);

    topo = open_topo(&(struct sw_topo_config){.synthetic = two_packages, .cpu_quota = 3});
    assert_int_equal(sw_topo_cpu_count(topo), 3);
    assert_int_equal(sw_topo_node_cpu_count(topo, -1), 8);
    sw_topo_close(topo);
}

/* Shares follow the CPUs, and together they are all workers. */
static void test_workers_of_nodes(void **state)
{
    (void)state;
    struct sw_topo *topo = open_topo(
        &(struct sw_topo_config){.synthetic = "package:3 [numa] core:4 pu:1", .cpuset = "0-4,8"});
    for (int workers = 1; workers < 40; workers++) {
        int sum = 0;
        for (int node = 0; node < 3; node++) {
            int here = sw_topo_node_workers(topo, node, workers);
            int cpus = sw_topo_node_cpu_count(topo, node); /* 4, 1, 1 of 6 */
            assert_true(6 * here > workers * cpus - 6 && 6 * here < workers * cpus + 6);
            sum += here;
        }
        assert_int_equal(sum, workers);
    }
    sw_topo_close(topo);
}

static void test_refusals(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_topo *topo = NULL;
    assert_refused(sw_topo_open(&topo, &(struct sw_topo_config){.synthetic = "wheels:4"}, &err),
                   SW_E_USAGE, "does not describe", &err);
    assert_refused(sw_topo_open(&topo, &(struct sw_topo_config){.xml = "/nowhere.xml"}, &err),
                   SW_E_USAGE, "/nowhere.xml", &err);
    struct sw_topo_config config = {.synthetic = two_packages, .cpuset = "one"};
    assert_refused(sw_topo_open(&topo, &config, &err), SW_E_USAGE, "not a list of CPUs", &err);
    config.cpuset = "90";
    assert_refused(sw_topo_open(&topo, &config, &err), SW_E_USAGE, "no CPU may be used", &err);
    config = (struct sw_topo_config){.synthetic = two_packages, .nodeset = "7"};
    assert_refused(sw_topo_open(&topo, &config, &err), SW_E_USAGE, "no NUMA node", &err);
    assert_null(topo);
}

static void test_stage_order(void **state)
{
    static const struct {
        int nodes[8], count, order[8];
    } cases[] = {
        {{0, 0, 1, 1}, 4, {0, 2, 1, 3}}, {{0, 1, 0, 1}, 4, {0, 1, 2, 3}},
        {{0, 0, 0, 0}, 4, {0, 1, 2, 3}}, {{1, 0, 0, 0}, 4, {1, 0, 2, 3}},
        {{-1, -1}, 2, {0, 1}},           {{0, 0, 0, 1, 1, 1, 2, 2}, 8, {0, 3, 1, 4, 6, 2, 5, 7}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int order[8];
        sw_topo_stage_order(cases[i].nodes, cases[i].count, order);
        for (int s = 0; s < cases[i].count; s++)
            assert_int_equal(order[s], cases[i].order[s]);
    }
}

static void test_this_machine(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_machine machine;
    struct sw_topo *topo = open_topo(NULL);
    sw_machine_init(&machine);
    sw_topo_describe(topo, &machine);
    assert_true(machine.cpus >= 1 && machine.cpus <= machine.cpus_total);
    assert_true(machine.numa_nodes >= 1);
    assert_true(machine.memory_total_bytes > machine.memory_available_bytes);
    assert_true(machine.memory_available_bytes > 0);
    char *cpus;
    cpu_set_t before, after;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_ok(sw_topo_worker_cpus(topo, -1, 0, 1, &cpus, &err), &err);
    assert_true(sw_topo_bind_thread(cpus));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    assert_false(sw_topo_bind_thread("x"));
    assert_false(sw_topo_bind_thread("1-"));
    assert_false(sw_topo_bind_thread("3-1"));
    free(cpus);
    char *memory = aligned_alloc(4096, 1 << 20);
    assert_non_null(memory);
    (void)sw_topo_bind_memory(topo, memory, 1 << 20, 0); /* may be refused: never an error */
    memset(memory, 1, 1 << 20);
    free(memory);
    sw_topo_close(topo);

    topo = open_topo(&(struct sw_topo_config){.synthetic = two_packages});
    assert_false(sw_topo_bind_memory(topo, &machine, 1, 1)); /* not this machine's node */
    sw_topo_close(topo);
}

/* The affinity of the process cuts what may be used. */
static void test_affinity(void **state)
{
    (void)state;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    CPU_ZERO(&one);
    for (size_t cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    struct sw_topo *topo = open_topo(NULL);
    assert_int_equal(sw_topo_cpu_count(topo), 1);
    sw_topo_close(topo);
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

/* --- Limits of cgroups, from files made up
 * -----------------------------------------------------------*/

static char *root;

static void put(const char *path, const char *text)
{
    struct sw_err err = {0};
    char *whole = sw_path_join(root, path), *parent = sw_path_parent(whole);
    assert_ok(sw_directory_make(parent, &err), &err);
    assert_ok(sw_file_write_atomic(whole, text, (int64_t)strlen(text), &err), &err);
    free(whole);
    free(parent);
}

static void assert_limits(int64_t limit, int64_t left)
{
    int64_t got_limit, got_left;
    sw_topo_memory_limit_under(root, &got_limit, &got_left);
    assert_int_equal(got_limit, limit);
    assert_int_equal(got_left, left);
}

static void test_cgroup_limits(void **state)
{
    (void)state;
    root = sw_test_scratch();
    assert_limits(-1, -1);
    /* version 2: the least of the group and those above; cache that can go does not count */
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/memory.max", "max\n");
    put("sys/fs/cgroup/a/b/memory.current", "500\n");
    assert_limits(-1, -1);
    put("sys/fs/cgroup/a/memory.max", "10000\n");
    put("sys/fs/cgroup/a/memory.current", "4000\n");
    put("sys/fs/cgroup/a/memory.stat", "anon 1000\ninactive_file 1000\n");
    assert_limits(10000, 7000);
    put("sys/fs/cgroup/a/b/memory.max", "3000\n");
    assert_limits(3000, 2500);
    /* more used than the limit */
    put("sys/fs/cgroup/a/b/memory.current", "9999\n");
    assert_limits(3000, 0);
    sw_test_scratch_remove(root);
    /* version 1, in a container that sees its group as the root */
    root = sw_test_scratch();
    put("proc/self/cgroup", "5:cpu:/x\n4:memory:/docker/0123\n");
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    assert_limits(-1, -1);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "8000\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "3000\n");
    put("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 500\n");
    assert_limits(8000, 5500);
    sw_test_scratch_remove(root);
}

static void test_cpu_quotas(void **state)
{
    (void)state;
    root = sw_test_scratch();
    assert_int_equal(sw_cgroup_quota_cpus(root), 0);
    /* version 2: the least of the group and those above, rounded up */
    put("proc/self/cgroup", "0::/a/b\n");
    put("sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 0);
    put("sys/fs/cgroup/a/cpu.max", "250000 100000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 3);
    put("sys/fs/cgroup/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 1);
    sw_test_scratch_remove(root);
    /* version 1, one of two controllers of a mount; in a container that sees its group as the root
     */
    root = sw_test_scratch();
    put("proc/self/cgroup", "5:cpu,cpuacct:/docker/0123\n4:memory:/x\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 0);
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 2);
    put("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/docker/0123/cpu.cfs_period_us", "100000\n");
    assert_int_equal(sw_cgroup_quota_cpus(root), 1);
    sw_test_scratch_remove(root);
}

static void test_drives(void **state)
{
    (void)state;
    struct sw_err err = {0};
    struct sw_machine_drive drive;
    char *scratch = sw_test_scratch();
    assert_ok(sw_topo_describe_drive(NULL, scratch, &drive, &err), &err);
    assert_string_equal(drive.directory, scratch);
    assert_true(strlen(drive.file_system) > 0 && strlen(drive.device) > 0);
    assert_true(drive.free_bytes > 0);
    sw_test_scratch_remove(scratch);
    if (sw_file_is_directory("/dev/shm") &&
        sw_topo_describe_drive(NULL, "/dev/shm", &drive, NULL) == SW_OK &&
        strcmp(drive.file_system, "tmpfs") == 0)
        assert_true(drive.memory_backed && !drive.rotational);
    assert_refused(sw_topo_describe_drive(NULL, "/nowhere", &drive, &err), SW_E_USAGE, "/nowhere",
                   &err);
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
        cmocka_unit_test(test_two_packages),  cmocka_unit_test(test_devices),
        cmocka_unit_test(test_restricted),    cmocka_unit_test(test_workers_of_nodes),
        cmocka_unit_test(test_refusals),      cmocka_unit_test(test_stage_order),
        cmocka_unit_test(test_this_machine),  cmocka_unit_test(test_affinity),
        cmocka_unit_test(test_cgroup_limits), cmocka_unit_test(test_cpu_quotas),
        cmocka_unit_test(test_drives),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
