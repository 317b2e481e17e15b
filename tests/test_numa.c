/* Decisions of the topology, kept and applied: workers, slabs; and nothing at all on one node. */
#include "tests/support.h"

#include "base/pool.h"
#include "train/numa.h"

#include <pthread.h>
#include <sched.h>

static const char with_devices[] = SW_SOURCE_DIRECTORY "/tests/data/two-packages.xml";

static void workers_and_slabs_have_their_nodes(void **state)
{
    (void)state;
    struct sw_err err;
    struct sw_numa numa;
    sw_err_init(&err);
    char *scratch = sw_test_scratch();
    const char *const directories[] = {scratch, "/no/such/directory"};
    const struct sw_topo_config machine = {.xml = with_devices};
    assert_ok(sw_numa_open(&numa, &machine, 4, directories, 2, "0000:80:00.0", &err), &err);
    assert_non_null(numa.topo);
    /* Worker 0 is whoever calls; half of them on either node. */
    assert_int_equal(numa.worker_count, 3);
    static const char *const wanted[] = {"0-3", "4-7", "4-7"};
    for (int i = 0; i < 3; i++)
        assert_string_equal(numa.worker_cpus[i], wanted[i]);
    assert_int_equal(numa.slab_node, 1);
    assert_null(numa.ring_cpus[1]);
    sw_numa_bind_slabs(&numa, NULL); /* not this system: nothing happens */
    sw_numa_bind_slabs(&numa, "0000:80:00.0");
    sw_numa_unbind_slabs(&numa);
    sw_numa_close(&numa);
    sw_test_scratch_remove(scratch);
}

/* A CPU each: cores before their second threads. */
static void a_pool_with_all_cpus_has_one_each(void **state)
{
    (void)state;
    struct sw_err err;
    struct sw_numa numa;
    sw_err_init(&err);
    const struct sw_topo_config machine = {.xml = with_devices};
    static const char *const wanted[] = {"2", "1", "3", "4", "6", "5", "7"};
    assert_ok(sw_numa_open(&numa, &machine, 8, NULL, 0, NULL, &err), &err);
    assert_int_equal(numa.worker_count, 7);
    for (int i = 0; i < 7; i++)
        assert_string_equal(numa.worker_cpus[i], wanted[i]);
    sw_numa_close(&numa);
}

static void one_node_leaves_all_as_it_is(void **state)
{
    (void)state;
    struct sw_err err;
    struct sw_numa numa;
    sw_err_init(&err);
    const struct sw_topo_config machine = {.xml = with_devices, .nodeset = "0"};
    assert_ok(sw_numa_open(&numa, &machine, 4, NULL, 0, "0000:80:00.0", &err), &err);
    assert_null(numa.topo);
    assert_int_equal(numa.slab_node, -1);
    sw_numa_bind_worker(&numa, 1);
    sw_numa_close(&numa);
    assert_true(sw_topo_nodes_online() >= 1);
}

/* Where a pool's threads may run, as they see it. */
struct seen {
    struct sw_numa *numa;
    pthread_mutex_t lock;
    int begun, bound;
};

static void begin(void *context, int64_t index)
{
    struct seen *seen = context;
    cpu_set_t set;
    CPU_ZERO(&set);
    sw_numa_bind_worker(seen->numa, index);
    pthread_mutex_lock(&seen->lock);
    seen->begun++;
    seen->bound += sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1;
    pthread_mutex_unlock(&seen->lock);
}

static void a_worker_is_bound_before_it_works(void **state)
{
    (void)state;
    struct sw_err err;
    struct sw_numa numa;
    struct sw_pool *pool;
    cpu_set_t set;
    CPU_ZERO(&set);
    sw_err_init(&err);
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    if (!CPU_ISSET(0, &set) || CPU_COUNT(&set) < 2) {
        print_message("skipped: CPU 0 and another are needed\n");
        skip();
    }
    const struct sw_topo_config machine = {.xml = with_devices};
    assert_ok(sw_numa_open(&numa, &machine, 2, NULL, 0, NULL, &err), &err);
    assert_int_equal(numa.slab_node, -1);
    free(numa.worker_cpus[0]);
    numa.worker_cpus[0] = strdup("0"); /* a CPU that there is */
    struct seen seen = {.numa = &numa, .lock = PTHREAD_MUTEX_INITIALIZER};
    assert_ok(sw_pool_open_with(&pool, 2, begin, &seen, &err), &err);
    sw_pool_close(pool);
    assert_int_equal(seen.begun, 1);
    assert_int_equal(seen.bound, 1);
    sw_numa_close(&numa);
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
        cmocka_unit_test(workers_and_slabs_have_their_nodes),
        cmocka_unit_test(a_pool_with_all_cpus_has_one_each),
        cmocka_unit_test(one_node_leaves_all_as_it_is),
        cmocka_unit_test(a_worker_is_bound_before_it_works),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
