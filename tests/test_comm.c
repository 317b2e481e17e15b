/* Groups of ranks on the CPU over the local method; and which method a group takes. */
#include "comm_suite.h"
#include "kernels/kernels.h"
#include "support.h"

static const struct sw_comm_ops *own_method; /* of the back end below */

static const struct sw_comm_ops *method(const char **why)
{
    *why = own_method == NULL ? "it is not here" : "";
    return own_method;
}

static void devices_of_their_own_take_the_back_ends_method(void **state)
{
    (void)state;
    static const struct sw_comm_ops another = {.name = "another"};
    struct sw_device_ops ops = sw_cpu_device_ops;
    static const int32_t apart[3] = {2, 0, 1}, shared[3] = {2, 0, 2};
    assert_ptr_equal(sw_comm_choose(&ops, apart, 3), &sw_comm_local);
    ops.comm = method;
    assert_ptr_equal(sw_comm_choose(&ops, apart, 3), &sw_comm_local);
    own_method = &another;
    assert_ptr_equal(sw_comm_choose(&ops, apart, 3), &another);
    assert_ptr_equal(sw_comm_choose(&ops, shared, 3), &sw_comm_local);
    assert_ptr_equal(sw_comm_choose(&ops, shared, 2), &another);
    assert_ptr_equal(sw_comm_choose(&ops, apart, 1), &sw_comm_local);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(devices_of_their_own_take_the_back_ends_method),
    };
    const struct comm_rig rig = {.ops = &sw_cpu_device_ops,
                                 .comms = &sw_comm_local,
                                 .name = "local",
                                 .smallest = 1,
                                 .largest = 5,
                                 .devices = 1,
                                 .process = -1};
    int failed = comm_suite_run(&rig);
    return failed + cmocka_run_group_tests(tests, NULL, NULL);
}
