#include "optim/walk.h"

struct conversion {
    enum { ROUND, SPLIT, JOIN, NEAREST_EVEN } kind;
    struct sw_lanes_in in;
    struct sw_lanes_weights out;
    int64_t count, task_elements;
};

static void convert(void *context, int64_t index, int64_t worker)
{
    (void)worker;
    const struct conversion *c = context;
    int64_t first = index * c->task_elements;
    int64_t count = sw_min(c->task_elements, c->count - first);
    struct sw_lanes_in in = sw_lanes_in_at(c->in, first);
    struct sw_lanes_weights out = sw_lanes_weights_at(c->out, first);
    switch (c->kind) {
    case ROUND:
        sw_lanes()->copy(&in, &out, count);
        break;
    case SPLIT:
    case JOIN:
        sw_lanes()->store(&in, &out, count);
        break;
    case NEAREST_EVEN:
        sw_lanes()->to_bf16(in.f32, out.out_bf16, count);
        break;
    }
}

static void run(struct sw_pool *pool, struct conversion *c)
{
    c->task_elements = sw_task_elements(pool, c->count);
    sw_pool_run(pool, convert, c, (c->count + c->task_elements - 1) / c->task_elements);
}

void sw_weights_round(struct sw_pool *pool, const float *master, uint16_t *bf16, int64_t count)
{
    struct conversion c = {.kind = ROUND, .in.f32 = master, .out.out_bf16 = bf16, .count = count};
    run(pool, &c);
}

void sw_weights_split(struct sw_pool *pool, const float *master, uint16_t *high, uint16_t *low,
                      int64_t count)
{
    struct conversion c = {
        .kind = SPLIT, .in.f32 = master, .out.high = high, .out.low = low, .count = count};
    run(pool, &c);
}

void sw_weights_join(struct sw_pool *pool, const uint16_t *high, const uint16_t *low, float *master,
                     int64_t count)
{
    struct conversion c = {
        .kind = JOIN, .in.high = high, .in.low = low, .out.f32 = master, .count = count};
    run(pool, &c);
}

void sw_gradients_to_bf16(struct sw_pool *pool, const float *gradient, uint16_t *out, int64_t count)
{
    struct conversion c = {
        .kind = NEAREST_EVEN, .in.f32 = gradient, .out.out_bf16 = out, .count = count};
    run(pool, &c);
}
