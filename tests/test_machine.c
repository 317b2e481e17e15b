#include "support.h"

#include "topo/machine.h"

static struct sw_machine machine, back;

static void make_machine(void)
{
    sw_machine_init(&machine);
    snprintf(machine.host_name, sizeof machine.host_name, "work \"station\"");
    machine.cpus = 16;
    machine.cpus_total = 32;
    machine.numa_nodes = 2;
    machine.memory_total_bytes = 137438953472;
    machine.memory_available_bytes = 120000000000;
    machine.memlock_bytes = 65536;
    machine.io_uring = true;
    machine.triad_bytes_per_second = 41.25e9;
    machine.memory_bytes_per_second = 1.5e11;
    machine.optimizer_bytes_per_second = 0.1;
    snprintf(machine.gpu_versions, sizeof machine.gpu_versions, "driver CUDA 13.0");
    machine.gpu_count = 2;
    for (int i = 0; i < 2; i++) {
        snprintf(machine.gpus[i].name, sizeof machine.gpus[i].name, "GPU %d", i);
        machine.gpus[i].memory_bytes = 25769803776;
        machine.gpus[i].free_bytes = 24000000000;
        machine.gpus[i].peers = 1;
        machine.gpus[i].numa_node = i - 1;
        machine.gpus[i].h2d_bytes_per_second = 2.5e10 / 3;
        machine.gpus[i].both_bytes_per_second = 4e10;
        machine.gpus[i].peer_bytes_per_second = 2.5e11 / 3;
    }
    machine.drive_count = 1;
    machine.drives[0].both_bytes_per_second = 3e9;
    snprintf(machine.drives[0].directory, sizeof machine.drives[0].directory, "/mnt/nvme");
    snprintf(machine.drives[0].device, sizeof machine.drives[0].device, "nvme0n1");
    machine.drives[0].free_bytes = 1000;
    machine.drives[0].direct = true;
    machine.drives[0].queue_depth = 32;
    machine.drives[0].read_bytes_per_second = 7.1e9;
}

static sw_code parse(const char *text, struct sw_err *err)
{
    return sw_machine_from_json(text, (int64_t)strlen(text), "m.json", &back, err);
}

static void test_round_trip(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *text, *again;
    make_machine();
    assert_ok(sw_machine_to_json(&machine, &text, &err), &err);
    assert_ok(parse(text, &err), &err);
    /* every field survives, doubles to the bit: what is read is written as the same text */
    assert_ok(sw_machine_to_json(&back, &again, &err), &err);
    assert_string_equal(text, again);
    assert_string_equal(back.host_name, machine.host_name);
    assert_int_equal(back.gpus[1].numa_node, 0);
    assert_int_equal(back.gpus[1].free_bytes, 24000000000);
    assert_int_equal(back.gpus[1].peers, 1);
    assert_string_equal(back.gpu_versions, machine.gpu_versions);
    assert_int_equal(back.memory_limit_bytes, -1);
    assert_true(back.optimizer_bytes_per_second == machine.optimizer_bytes_per_second);
    assert_true(back.gpus[1].both_bytes_per_second == 4e10);
    assert_true(back.drives[0].both_bytes_per_second == 3e9);
    assert_true(back.gpus[1].h2d_bytes_per_second == machine.gpus[1].h2d_bytes_per_second);
    assert_true(back.gpus[0].peer_bytes_per_second == 2.5e11 / 3);
    free(text);
    free(again);
}

static void test_file(void **state)
{
    (void)state;
    struct sw_err err = {0};
    char *scratch = sw_test_scratch(), *path = sw_path_join(scratch, "machine.json");
    make_machine();
    assert_ok(sw_machine_write(path, &machine, &err), &err);
    assert_ok(sw_machine_read(path, &back, &err), &err);
    assert_int_equal(back.drives[0].queue_depth, 32);
    assert_true(back.drives[0].direct);
    free(path);
    sw_test_scratch_remove(scratch);
}

static void test_short_files(void **state)
{
    (void)state;
    struct sw_err err = {0};
    assert_ok(parse("{\"cpus\": 4, \"memory_total_bytes\": 1000}", &err), &err);
    assert_int_equal(back.memory_limit_bytes, -1);
    assert_int_equal(back.gpu_count, 0);
    assert_int_equal(sw_machine_host_bytes(&back), 1000);
    assert_ok(parse("{\"cpus\": 4, \"memory_total_bytes\": 1000, \"memory_available_bytes\": 900, "
                    "\"memory_limit_bytes\": 800, \"triad_bytes_per_second\": 5}",
                    &err),
              &err);
    assert_int_equal(sw_machine_host_bytes(&back), 800);
    assert_true(back.triad_bytes_per_second == 5);
    /* whole numbers as other programs write them */
    assert_ok(parse("{\"cpus\": 4.0, \"memory_total_bytes\": 6.4e10}", &err), &err);
    assert_int_equal(back.cpus, 4);
    assert_true(back.memory_total_bytes == 64000000000);
}

static void test_refusals(void **state)
{
    static const struct {
        const char *text, *part;
    } cases[] = {
        {"[]", "object"},
        {"{\"memory_total_bytes\": 1}", "m.json: cpus is missing"},
        {"{\"cpus\": 1}", "memory_total_bytes is missing"},
        {"{\"cpus\": 0, \"memory_total_bytes\": 1}", "cpus must be at least 1"},
        {"{\"cpus\": 1.5, \"memory_total_bytes\": 1}", "cpus must be a whole number"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1e300}", "must be a whole number"},
        {"{\"cpus\": 99999999999, \"memory_total_bytes\": 1}", "cpus is out of range"},
        {"{\"cpus\": 1, \"memory_total_bytes\": -5}", "memory_total_bytes is out of range"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"cpu\": 1}", "cpu is not a key"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"io_uring\": 1}", "true or false"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"host_name\": 1}", "must be a string"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"triad_bytes_per_second\": -1}",
         "out of range"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"format\": 2}", "format is not one"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"gpus\": {}}", "gpus must be an array"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"gpus\": [1]}", "must be an object"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"gpus\": [{\"memory_bytes\": 1}, {}]}",
         "gpus[1].memory_bytes is missing"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"drives\": [{\"directory\": \"x\", "
         "\"numa_node\": "
         "-2}]}",
         "drives[0].numa_node is out of range"},
        {"{\"cpus\": 1, \"memory_total_bytes\": 1, \"drives\": "
         "[{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{},{}]}",
         "too many"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sw_err err = {0};
        back.cpus = 1234;
        assert_refused(parse(cases[i].text, &err), SW_E_FORMAT, cases[i].part, &err);
        assert_int_equal(back.cpus, 1234); /* outputs only on success */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_short_files),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
