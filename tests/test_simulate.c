/* The virtual clock on programs of a few ops, whose times are known by hand. */
#include "support.h"

#include "plan/plan.h"
#include "plan/simulate.h"

#include <math.h>

/* Reads take as many seconds as they have elements, and so do writes; each all of the drives. */
static void drive_seconds(const struct sw_op *op, void *context, struct sw_op_cost *out)
{
    (void)context;
    out->seconds = (double)op->count;
    out->load[SW_RESOURCE_DRIVES] = 1;
    out->writes = op->kind == SW_OP_WRITE;
}

struct times {
    double makespan, drives;
};

/* Of a read, or two, and a write that do not wait for each other; 0 seconds: there is none. */
static struct times run(const int reads[2], int write, double mixing, bool overlap)
{
    struct sw_err err = {0};
    struct sw_program *program = NULL;
    struct sw_simulation simulation = {.drives_mixing = mixing};
    struct sw_program_builder *builder = sw_program_begin("test", 1, 1, 0);
    static const enum sw_lane lanes[] = {SW_LANE_STATE_READ, SW_LANE_FETCH};
    for (int i = 0; i < 2; i++)
        if (reads[i] > 0)
            sw_program_add(builder, SW_OP_READ, lanes[i], 0)->count = reads[i];
    if (write > 0)
        sw_program_add(builder, SW_OP_WRITE, SW_LANE_STATE_WRITE, 0)->count = write;
    assert_ok(sw_program_end(builder, &program, &err), &err);
    assert_ok(sw_program_simulate(program, drive_seconds, NULL, overlap, &simulation, &err), &err);
    sw_program_free(program);
    return (struct times){simulation.makespan_seconds,
                          simulation.resource_seconds[SW_RESOURCE_DRIVES]};
}

static void assert_times(struct times times, double makespan, double drives)
{
    assert_true(fabs(times.makespan - makespan) < 1e-9);
    assert_true(fabs(times.drives - drives) < 1e-9);
}

static void drives_that_read_and_write_take_longer(void **state)
{
    (void)state;
    static const int one[2] = {1, 0}, two[2] = {1, 2};
    assert_times(run(one, 1, 0, true), 2, 2);
    /* half as long again while both are under way: all the time, or until the read is over */
    assert_times(run(one, 1, 0.5, true), 3, 3);
    assert_times(run(one, 3, 0.5, true), 3 + 2, 3 + 2);
    /* as fast as alone: the drive does both */
    assert_times(run(one, 1, -0.5, true), 1, 1);
    assert_times(run(one, 3, -0.5, true), 1 + 2, 1 + 2);
    /* reads alone are not hindered; nor is anything without overlap */
    assert_times(run(two, 0, 0.5, true), 3, 3);
    assert_times(run(two, 3, 0.5, false), 6, 6);
    /* of three that share it, a third writes: 4 x 1/3 x 2/3 of the half */
    double longer = 1 + 0.5 * 8 / 9;
    assert_times(run(two, 1, 0.5, true), 3 * longer + 1, 3 * longer + 1);
}

/* What was measured comes out: as many bytes read as written, at once, take what `both` says. */
static void the_measured_rate_of_both_is_met(void **state)
{
    (void)state;
    static const double measured[][3] = {{4, 4, 4}, {4, 4, 2},   {4, 4, 8},
                                         {6, 2, 3}, {6, 2, 2.4}, {2, 3, 1.8}};
    for (size_t i = 0; i < sizeof measured / sizeof *measured; i++) {
        double read = measured[i][0], write = measured[i][1], both = measured[i][2];
        struct sw_plan_rates rates = {
            .nvme_read_bytes = read, .nvme_write_bytes = write, .nvme_both_bytes = both};
        double share = read / (read + write); /* of the time, that goes to writes */
        double longer = 1 + sw_plan_drives_mixing(&rates) * 4 * share * (1 - share);
        assert_true(fabs(longer * (1 / read + 1 / write) - 2 / both) < 1e-9);
    }
    struct sw_plan_rates unknown = {.nvme_read_bytes = 6, .nvme_write_bytes = 2};
    assert_true(sw_plan_drives_mixing(&unknown) == 0);
    /* more than both alone is a bad measurement */
    struct sw_plan_rates bad = {
        .nvme_read_bytes = 2, .nvme_write_bytes = 2, .nvme_both_bytes = 100};
    assert_true(sw_plan_drives_mixing(&bad) == -0.5);
}

/* One drive whose rate of both is not known, and of all together it is not. */
static void rates_of_both_add_up_where_all_are_known(void **state)
{
    (void)state;
    struct sw_machine machine;
    struct sw_plan_rates rates;
    sw_machine_init(&machine);
    machine.drive_count = 2;
    for (int i = 0; i < 2; i++)
        machine.drives[i].read_bytes_per_second = machine.drives[i].write_bytes_per_second = 2;
    machine.drives[0].both_bytes_per_second = 3;
    sw_plan_rates_of_machine(&machine, false, &rates);
    assert_true(rates.nvme_both_bytes == 0 && rates.nvme_read_bytes == 4);
    machine.drives[1].both_bytes_per_second = 1;
    sw_plan_rates_of_machine(&machine, false, &rates);
    assert_true(rates.nvme_both_bytes == 4);
    machine.drive_count = 0;
    sw_plan_rates_of_machine(&machine, false, &rates);
    assert_true(rates.nvme_both_bytes == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drives_that_read_and_write_take_longer),
        cmocka_unit_test(the_measured_rate_of_both_is_met),
        cmocka_unit_test(rates_of_both_add_up_where_all_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
