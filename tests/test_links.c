/* What a grid's GPUs can do together: who passes activations by host memory, who communicates how,
 * what that takes, and what is refused; on GPUs of which a table says who reaches whom. */
#include "kernels/comm.h"
#include "support.h"
#include "train/links.h"

enum { GPUS = 4, MIB = 1 << 20 };

static bool table[GPUS][GPUS];
static int asked;

static bool reaches(int one, int other)
{
    assert_int_not_equal(one, other);
    asked++;
    return table[one][other];
}

static int64_t member_bytes(int size)
{
    return (int64_t)size * MIB;
}

static const struct sw_comm_ops nccl = {.name = "nccl", .member_bytes = member_bytes};
static bool there;

static const struct sw_comm_ops *comm(const char **why)
{
    *why = there ? "" : "this build has no NCCL";
    return there ? &nccl : NULL;
}

static const struct sw_device_ops gpus = {.name = "gpus", .reaches = reaches, .comm = comm};

static void all_reach(bool yes)
{
    asked = 0;
    for (int i = 0; i < GPUS; i++)
        for (int j = 0; j < GPUS; j++)
            table[i][j] = yes;
}

static void cut(int one, int other)
{
    table[one][other] = table[other][one] = false;
}

static struct sw_links find(const int32_t *devices, int32_t stages, int32_t replicas)
{
    struct sw_links links;
    struct sw_err err = {0};
    assert_ok(sw_links_find(&links, &gpus, devices, stages, replicas, &err), &err);
    return links;
}

static void mailboxes_where_neighbours_do_not_reach(void **state)
{
    (void)state;
    static const int32_t four[4] = {0, 1, 2, 3}, shared[4] = {0, 0, 0, 0}, turned[4] = {0, 1, 0, 1};
    all_reach(true);
    assert_false(find(four, 4, 1).mailbox);
    cut(1, 2);
    assert_true(find(four, 4, 1).mailbox);
    all_reach(true);
    cut(0, 3); /* the last stage's activations go round to the first */
    assert_true(find(four, 4, 1).mailbox);
    all_reach(true);
    cut(1, 3); /* they pass nothing to each other */
    assert_false(find(four, 4, 1).mailbox);
    all_reach(false);
    assert_true(find(four, 4, 1).mailbox);
    asked = 0;
    assert_false(find(shared, 4, 1).mailbox);
    assert_int_equal(asked, 0);
    assert_true(find(turned, 2, 2).mailbox);
}

/* Of two pipelines of two, the second one's stages are apart. */
static void every_pipeline_counts(void **state)
{
    (void)state;
    static const int32_t four[4] = {0, 1, 2, 3};
    there = true;
    all_reach(true);
    cut(2, 3);
    assert_true(find(four, 2, 2).mailbox);
    all_reach(true);
    cut(0, 2); /* replicas: NCCL's business */
    assert_false(find(four, 2, 2).mailbox);
    assert_true(find(four, 1, 4).mailbox);
    all_reach(true);
    assert_false(find(four, 1, 4).mailbox);
}

static void groups_with_a_gpu_each_take_nccl(void **state)
{
    (void)state;
    static const int32_t four[4] = {0, 1, 2, 3}, shared[4] = {0, 1, 0, 1}, one[4] = {2, 2, 2, 2};
    there = true;
    all_reach(false);
    assert_int_equal(find(four, 1, 4).group_bytes, 4 * MIB);
    assert_int_equal(find(four, 2, 2).group_bytes, 2 * MIB);
    assert_null(find(four, 1, 4).without);
    assert_int_equal(find(shared, 2, 2).group_bytes, 0);
    assert_null(find(shared, 2, 2).without);
    assert_int_equal(find(one, 1, 4).group_bytes, 0);
    assert_int_equal(find(four, 4, 1).group_bytes, 0);
}

static void without_nccl_they_copy_and_it_is_said(void **state)
{
    (void)state;
    static const int32_t four[4] = {0, 1, 2, 3}, one[4] = {2, 2, 2, 2};
    there = false;
    all_reach(true);
    assert_string_equal(find(four, 1, 4).without, "this build has no NCCL");
    assert_int_equal(find(four, 1, 4).group_bytes, 0);
    assert_null(find(one, 1, 4).without);
    assert_null(find(four, 4, 1).without);
}

static void sums_out_of_reach_are_refused(void **state)
{
    (void)state;
    static const int32_t four[4] = {0, 1, 2, 3}, mixed[4] = {0, 0, 1, 2};
    struct sw_links links;
    struct sw_err err = {0};
    there = false;
    all_reach(true);
    cut(1, 3);
    assert_refused(sw_links_find(&links, &gpus, four, 1, 4, &err), SW_E_USAGE,
                   "GPUs 1 and 3 do not reach each other's memory, and this build has no NCCL",
                   &err);
    assert_refused(sw_links_find(&links, &gpus, four, 2, 2, &err), SW_E_USAGE, "devices.list",
                   &err);
    there = true;
    assert_ok(sw_links_find(&links, &gpus, mixed, 1, 4, &err), &err);
    assert_null(links.without);
    cut(1, 2);
    assert_refused(sw_links_find(&links, &gpus, mixed, 1, 4, &err), SW_E_USAGE,
                   "a GPU for every replica", &err);
}

static void on_the_cpu_nothing_is_asked(void **state)
{
    (void)state;
    static const int32_t all[4] = {0};
    struct sw_links links;
    struct sw_err err = {0};
    assert_ok(sw_links_find(&links, &sw_cpu_device_ops, all, 2, 2, &err), &err);
    assert_false(links.mailbox);
    assert_int_equal(links.group_bytes, 0);
    assert_null(links.without);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mailboxes_where_neighbours_do_not_reach),
        cmocka_unit_test(every_pipeline_counts),
        cmocka_unit_test(groups_with_a_gpu_each_take_nccl),
        cmocka_unit_test(without_nccl_they_copy_and_it_is_said),
        cmocka_unit_test(sums_out_of_reach_are_refused),
        cmocka_unit_test(on_the_cpu_nothing_is_asked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
