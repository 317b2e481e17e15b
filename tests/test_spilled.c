/* Spilled training is resident training, bit for bit: wherever weights, states, gradients and kept
 * activations are at home, however they travel. */
#include "tests/engine_rig.h"

/* The resident run that all others of a kind are compared with. */
static struct outcome resident(struct setup setup)
{
    setup.params = setup.optimizer = setup.grads = setup.activations = SW_TIER_DEVICE;
    setup.threads = 1;
    return train(&setup);
}

struct variant {
    const char *what;
    struct setup setup; /* tiers and travel only */
};

static void compare(const struct setup *base, const struct variant *variants, size_t count)
{
    struct outcome want = resident(*base);
    for (size_t i = 0; i < count; i++) {
        struct setup setup = variants[i].setup;
        struct setup merged = *base;
        merged.params = setup.params;
        merged.optimizer = setup.optimizer;
        merged.grads = setup.grads;
        merged.activations = setup.activations;
        merged.prefetch_depth = setup.prefetch_depth;
        merged.chunk_bytes = setup.chunk_bytes;
        merged.method = setup.method;
        merged.verify = setup.verify;
        merged.serial = setup.serial;
        merged.threads = setup.threads > 0 ? setup.threads : 2;
        merged.recompute = setup.recompute || base->recompute;
        if (setup.split)
            merged.split = true;
        struct outcome have = train(&merged);
        assert_same_outcome(&want, &have, variants[i].what);
        free_outcome(&have);
    }
    free_outcome(&want);
}

#define HOST SW_TIER_HOST
#define NVME SW_TIER_NVME
#define DEVICE SW_TIER_DEVICE

static const struct variant TIERS[] = {
    {"states on the host",
     {.params = DEVICE, .optimizer = HOST, .grads = DEVICE, .activations = DEVICE}},
    {"states and gradients on the host",
     {.params = DEVICE, .optimizer = HOST, .grads = HOST, .activations = DEVICE}},
    {"everything on the host",
     {.params = HOST, .optimizer = HOST, .grads = HOST, .activations = HOST, .prefetch_depth = 1}},
    {"everything on the host, deep",
     {.params = HOST, .optimizer = HOST, .grads = HOST, .activations = HOST, .prefetch_depth = 7}},
    {"everything on the host, one at a time",
     {.params = HOST, .optimizer = HOST, .grads = HOST, .activations = HOST, .serial = true}},
    {"everything on drives",
     {.params = NVME,
      .optimizer = NVME,
      .grads = NVME,
      .activations = NVME,
      .prefetch_depth = 1,
      .chunk_bytes = 4096,
      .verify = true}},
    {"everything on drives, deep, by pread and pwrite",
     {.params = NVME,
      .optimizer = NVME,
      .grads = NVME,
      .activations = NVME,
      .prefetch_depth = 5,
      .chunk_bytes = 4096,
      .method = &sw_aio_sync}},
    {"everything on drives, one at a time, recomputed",
     {.params = NVME,
      .optimizer = NVME,
      .grads = NVME,
      .activations = NVME,
      .recompute = true,
      .serial = true,
      .threads = 1}},
    {"weights on the device, the rest on drives",
     {.params = DEVICE, .optimizer = NVME, .grads = NVME, .activations = HOST, .recompute = true}},
    {"weights on the host, states on drives",
     {.params = HOST, .optimizer = NVME, .grads = DEVICE, .activations = NVME, .verify = true}},
    {"weights on drives, states on the host",
     {.params = NVME, .optimizer = HOST, .grads = NVME, .activations = DEVICE}},
    {"weights and states on drives, gradients on the host",
     {.params = NVME, .optimizer = NVME, .grads = HOST, .activations = HOST, .chunk_bytes = 1024}},
};

enum { TIER_COUNT = sizeof TIERS / sizeof *TIERS };

static void tiers_change_no_bit(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .dropout = 0.1f};
    compare(&base, TIERS, TIER_COUNT);
}

static void nor_with_an_untied_head_in_bf16(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 3, .dropout = 0.1f, .untied = true, .bf16 = true};
    compare(&base, TIERS, TIER_COUNT);
}

static void nor_with_a_split_master(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 2, .bf16 = true, .split = true, .bf16_moments = true};
    compare(&base, TIERS, TIER_COUNT);
}

static void nor_with_gradients_held_in_bf16(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 4, .bf16_grads = true, .freeze = "decoder.block.1.*"};
    compare(&base, TIERS, TIER_COUNT);
}

static void nor_with_adafactor(void **state)
{
    (void)state;
    const struct setup base = {.micro_batch = 4, .adafactor = true, .scale_parameter = true};
    compare(&base, TIERS, TIER_COUNT);
}

static void nor_when_stepping_early(void **state)
{
    (void)state;
    const struct setup adamw = {.micro_batch = 4, .early = true, .dropout = 0.1f};
    compare(&adamw, TIERS, TIER_COUNT);
    const struct setup adafactor = {
        .micro_batch = 4, .early = true, .adafactor = true, .bf16 = true};
    compare(&adafactor, TIERS, TIER_COUNT);
    /* Early or late, without clipping: the same. */
    const struct setup late = {
        .micro_batch = 4, .threads = 2, .no_clipping = true, .dropout = 0.1f};
    const struct setup early = {.micro_batch = 4, .threads = 2, .early = true, .dropout = 0.1f};
    assert_same_bits(&late, &early);
}

/* A split master is the same weight in two halves. */
static void a_split_master_changes_no_bit(void **state)
{
    (void)state;
    struct setup setup = {.micro_batch = 4, .threads = 2, .bf16 = true};
    struct outcome want = resident(setup);
    setup.split = true;
    setup.params = setup.optimizer = setup.grads = NVME;
    struct outcome have = train(&setup);
    assert_same_outcome(&want, &have, "split");
    free_outcome(&want);
    free_outcome(&have);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiers_change_no_bit),
        cmocka_unit_test(nor_with_an_untied_head_in_bf16),
        cmocka_unit_test(nor_with_a_split_master),
        cmocka_unit_test(nor_with_gradients_held_in_bf16),
        cmocka_unit_test(nor_with_adafactor),
        cmocka_unit_test(nor_when_stepping_early),
        cmocka_unit_test(a_split_master_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
