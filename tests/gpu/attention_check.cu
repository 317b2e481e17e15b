/* The tiled attention kernels alone on a GPU: against sums in double on the host, for the same bits
 * twice, and for their speed. Needs the toolkit only:
 *
 *     nvcc -std=c++17 -O3 -gencode arch=compute_90a,code=sm_90a -Isrc -I. -o attention_check \
 *         tests/gpu/attention_check.cu kernels/cuda/attention_*.cu kernels/cuda/dropout.cu
 *     ./attention_check [check|time|all [mma]]
 *
 * On a GPU of capability 9.0 kernels made of wgmma.cuh are used, but with `mma` those that all GPUs
 * have.
 *
 * Exit status 0 when everything is within its tolerance. */
#include "kernels/cuda/attention.cuh"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace
{

/* --- What the kernels need of the back end ------------------------------------------------------
 */

void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

} // namespace

bool sw_cuda_begin(struct sw_stream *)
{
    return true;
}

void sw_cuda_end(struct sw_stream *, const char *what)
{
    must(cudaGetLastError(), what);
}

static int attribute(cudaDeviceAttr which)
{
    int value = 0;
    must(cudaDeviceGetAttribute(&value, which, 0), "attribute");
    return value;
}

int sw_cuda_processors(const struct sw_stream *)
{
    return attribute(cudaDevAttrMultiProcessorCount);
}

static bool only_mma;

bool sw_cuda_has_wgmma(const struct sw_stream *)
{
    return !only_mma && attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

int sw_cuda_shared_bytes(const struct sw_stream *)
{
    return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
}

extern "C" void sw_assert_failed(const char *condition, const char *file, int line)
{
    fprintf(stderr, "%s:%d: %s\n", file, line, condition);
    abort();
}

namespace
{

/* --- Device arrays
 * --------------------------------------------------------------------------------
 */

/* An array on host and device, with a margin on both sides that must stay as it is. */
template <typename T> struct array {
    static constexpr size_t MARGIN = 64;
    std::vector<T> host; /* margins included */
    T *memory = nullptr;

    void open(size_t count)
    {
        host.resize(count + 2 * MARGIN);
        memset(static_cast<void *>(host.data()), 0xA5, host.size() * sizeof(T));
        must(cudaMalloc(&memory, host.size() * sizeof(T)), "cudaMalloc");
    }
    void close()
    {
        must(cudaFree(memory), "cudaFree");
    }
    T *device() const
    {
        return memory + MARGIN;
    }
    T &at(size_t i)
    {
        return host[MARGIN + i];
    }
    size_t count() const
    {
        return host.size() - 2 * MARGIN;
    }
    void up()
    {
        must(cudaMemcpy(memory, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
             "copy");
    }
    void down()
    {
        must(cudaMemcpy(host.data(), memory, host.size() * sizeof(T), cudaMemcpyDeviceToHost),
             "copy");
    }
    bool margins_hold() const
    {
        const unsigned char *bytes = reinterpret_cast<const unsigned char *>(host.data());
        const size_t margin = MARGIN * sizeof(T), end = host.size() * sizeof(T);
        for (size_t i = 0; i < margin; i++)
            if (bytes[i] != 0xA5 || bytes[end - 1 - i] != 0xA5)
                return false;
        return true;
    }
};

uint64_t random_state = 1;

float random_float(void) /* -1 .. 1, roughly normal in the middle */
{
    float sum = 0.0f;
    for (int i = 0; i < 3; i++) {
        random_state = random_state * 6364136223846793005u + 1442695040888963407u;
        sum += static_cast<float>(random_state >> 40) * 0x1p-24f - 0.5f;
    }
    return sum;
}

/* The period is long enough for every checked shape, and short enough for those that are timed. */
void fill(array<uint16_t> &x, float size)
{
    const size_t period = 1000003;
    for (size_t i = 0; i < x.count(); i++)
        x.at(i) = i < period ? sw_float_to_bf16(size * random_float()) : x.at(i - period);
    x.up();
}

/* --- A case
 * ---------------------------------------------------------------------------------------
 */

enum { MOST_ROWS = 32 };

struct shape {
    const char *name;
    int heads, head_dim, rows;
    int queries[MOST_ROWS], keys[MOST_ROWS];
    bool causal, bias, bias_gradient;
    float p;
    float size; /* of queries */
    int pad;    /* elements more than needed between tokens */
};

struct operands {
    struct sw_attention a;
    array<uint16_t> q, k, v, o, d_o, dq, dk, dv;
    array<float> bias, dbias, lse;
    array<int32_t> q_starts, q_lengths, k_starts, k_lengths, global_rows;
    array<unsigned char> workspace;
};

void open_rows(struct sw_rows *out, array<int32_t> &starts, array<int32_t> &lengths,
               const int *wanted, int count, int gap)
{
    *out = {};
    out->count = count;
    starts.open(static_cast<size_t>(count));
    lengths.open(static_cast<size_t>(count));
    for (int r = 0; r < count; r++) {
        starts.at(static_cast<size_t>(r)) = static_cast<int32_t>(out->tokens);
        lengths.at(static_cast<size_t>(r)) = wanted[r];
        out->tokens += wanted[r] + gap;
        out->longest = wanted[r] > out->longest ? wanted[r] : out->longest;
    }
    starts.up();
    lengths.up();
    out->starts = starts.device();
    out->lengths = lengths.device();
}

void open_case(const struct shape *s, struct operands *x)
{
    struct sw_attention *a = &x->a;
    *a = {};
    a->heads = s->heads;
    a->head_dim = s->head_dim;
    a->scale = s->bias ? 1.0f : 0.5f;
    a->causal = s->causal;
    open_rows(&a->queries, x->q_starts, x->q_lengths, s->queries, s->rows, 0);
    open_rows(&a->keys, x->k_starts, x->k_lengths, s->keys, s->rows, 0);
    a->q_stride = s->heads * s->head_dim + s->pad;
    a->kv_stride = s->heads * s->head_dim + 2 * s->pad;
    a->o_stride = s->heads * s->head_dim + s->pad;
    const size_t queries = static_cast<size_t>(a->queries.tokens);
    const size_t keys = static_cast<size_t>(a->keys.tokens);
    for (array<uint16_t> *y : {&x->q, &x->dq})
        y->open(queries * static_cast<size_t>(a->q_stride));
    for (array<uint16_t> *y : {&x->o, &x->d_o})
        y->open(queries * static_cast<size_t>(a->o_stride));
    for (array<uint16_t> *y : {&x->k, &x->v, &x->dk, &x->dv})
        y->open(keys * static_cast<size_t>(a->kv_stride));
    fill(x->q, s->size);
    fill(x->k, 1.0f);
    fill(x->v, 1.0f);
    fill(x->d_o, 1.0f);
    x->lse.open(static_cast<size_t>(s->heads) * queries);
    a->bias_reach = a->queries.longest > a->keys.longest ? a->queries.longest : a->keys.longest;
    x->bias.open(static_cast<size_t>(s->heads * (2 * a->bias_reach - 1)));
    x->dbias.open(x->bias.count());
    for (size_t i = 0; i < x->bias.count(); i++)
        x->bias.at(i) = 3.0f * random_float();
    x->bias.up();
    x->global_rows.open(static_cast<size_t>(s->rows));
    for (int r = 0; r < s->rows; r++)
        x->global_rows.at(static_cast<size_t>(r)) = 100 + 3 * r;
    x->global_rows.up();
    a->q = x->q.device();
    a->k = x->k.device();
    a->v = x->v.device();
    a->bias = s->bias ? x->bias.device() : NULL;
    a->dropout.p = s->p;
    a->dropout.key[0] = 0x12345678u;
    a->dropout.key[1] = 0x9ABCDEF0u;
    a->dropout.site = 77;
    a->dropout.global_rows = x->global_rows.device();
    a->dtype = SW_BF16;
    const int64_t forward = sw_cuda_attention_forward_workspace_bytes(a);
    const int64_t backward = sw_cuda_attention_backward_workspace_bytes(a);
    x->workspace.open(static_cast<size_t>(forward > backward ? forward : backward));
    x->workspace.up();
}

void close_case(struct operands *x)
{
    for (array<uint16_t> *y : {&x->q, &x->k, &x->v, &x->o, &x->d_o, &x->dq, &x->dk, &x->dv})
        y->close();
    for (array<float> *y : {&x->bias, &x->dbias, &x->lse})
        y->close();
    for (array<int32_t> *y :
         {&x->q_starts, &x->q_lengths, &x->k_starts, &x->k_lengths, &x->global_rows})
        y->close();
    x->workspace.close();
}

/* --- What should come out
 * -------------------------------------------------------------------------
 */

/* Values and how far off they may be: rounding of probabilities and d(scores) to bf16, each within
 * 2^-8, and of o within delta, carried through the sums with absolute values. */
struct expected {
    std::vector<double> value, slack;

    explicit expected(size_t count) : value(count), slack(count)
    {
    }
    void add(size_t i, double x, double error)
    {
        value[i] += x;
        slack[i] += error;
    }
};

struct outcome {
    expected o, lse, dq, dk, dv, dbias;
};

double value_of(array<uint16_t> &x, int64_t i)
{
    return static_cast<double>(sw_bf16_to_float(x.at(static_cast<size_t>(i))));
}

double dot(array<uint16_t> &x, int64_t i, array<uint16_t> &y, int64_t j, int64_t count)
{
    double sum = 0.0;
    for (int64_t d = 0; d < count; d++)
        sum += value_of(x, i + d) * value_of(y, j + d);
    return sum;
}

const double HALF_BF16 = 0x1p-8; /* relative error of a rounding to bf16 */

/* One query of one head of a row. */
struct query {
    struct operands *x;
    struct outcome *out;
    int64_t row, head, position, visible, keys;
    int64_t token, first_key; /* tokens */
    int64_t q, o, k;          /* elements; k: of key 0 */
    std::vector<double> p, factor;
};

void probabilities_of(struct query *at)
{
    struct operands *x = at->x;
    const struct sw_attention *a = &x->a;
    double most = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < at->visible; j++) {
        double s = static_cast<double>(a->scale) *
                   dot(x->q, at->q, x->k, at->k + j * a->kv_stride, a->head_dim);
        if (a->bias != NULL)
            s += static_cast<double>(x->bias.at(static_cast<size_t>(
                at->head * (2 * a->bias_reach - 1) + j - at->position + a->bias_reach - 1)));
        at->p[static_cast<size_t>(j)] = s;
        most = s > most ? s : most;
        uint32_t words[4];
        const uint32_t counter[4] = {
            static_cast<uint32_t>(j / 4), static_cast<uint32_t>(at->position),
            static_cast<uint32_t>(x->global_rows.at(static_cast<size_t>(at->row))),
            a->dropout.site | static_cast<uint32_t>(at->head) << 16};
        sw_philox(a->dropout.key, counter, words);
        at->factor[static_cast<size_t>(j)] =
            sw_random_unit(words[j % 4]) < a->dropout.p
                ? 0.0
                : static_cast<double>(1.0f / (1.0f - a->dropout.p));
    }
    for (int64_t j = 0; j < at->visible; j++)
        sum += at->p[static_cast<size_t>(j)] = exp(at->p[static_cast<size_t>(j)] - most);
    for (int64_t j = 0; j < at->visible; j++)
        at->p[static_cast<size_t>(j)] /= sum;
    const int64_t lse = at->head * a->queries.tokens + at->token;
    if (at->visible > 0)
        at->out->lse.add(static_cast<size_t>(lse), most + log(sum), 2e-5 + 1e-6 * fabs(most));
}

void expect_query(struct query *at)
{
    struct operands *x = at->x;
    const struct sw_attention *a = &x->a;
    const int64_t d = a->head_dim;
    double delta = 0.0, delta_slack = 0.0;
    for (int64_t c = 0; c < d; c++) {
        double o = 0.0, size = 0.0;
        for (int64_t j = 0; j < at->visible; j++) {
            const double pv = at->p[static_cast<size_t>(j)] * at->factor[static_cast<size_t>(j)] *
                              value_of(x->v, at->k + j * a->kv_stride + c);
            o += pv;
            size += fabs(pv);
        }
        const double slack = HALF_BF16 * (size + fabs(o));
        at->out->o.add(static_cast<size_t>(at->o + c), o, slack);
        delta += o * value_of(x->d_o, at->o + c);
        delta_slack += slack * fabs(value_of(x->d_o, at->o + c));
    }
    for (int64_t j = 0; j < at->visible; j++) {
        const int64_t key = at->k + j * a->kv_stride;
        const double p = at->p[static_cast<size_t>(j)], factor = at->factor[static_cast<size_t>(j)];
        const double dp = dot(x->d_o, at->o, x->v, key, d);
        const double ds = p * (factor * dp - delta);
        const double ds_slack = HALF_BF16 * fabs(ds) + p * delta_slack + 1e-6 * p;
        const double scale = static_cast<double>(a->scale);
        for (int64_t c = 0; c < d; c++) {
            const double q = value_of(x->q, at->q + c), k = value_of(x->k, key + c);
            const double d_o = value_of(x->d_o, at->o + c);
            at->out->dq.add(static_cast<size_t>(at->q + c), scale * ds * k,
                            fabs(scale * k) * ds_slack);
            at->out->dk.add(static_cast<size_t>(key + c), scale * ds * q,
                            fabs(scale * q) * ds_slack);
            at->out->dv.add(static_cast<size_t>(key + c), p * factor * d_o,
                            HALF_BF16 * p * factor * fabs(d_o));
        }
        at->out->dbias.add(static_cast<size_t>(at->head * (2 * a->bias_reach - 1) + j -
                                               at->position + a->bias_reach - 1),
                           ds, ds_slack);
    }
}

void expect(struct operands *x, struct outcome *out)
{
    const struct sw_attention *a = &x->a;
    for (int64_t row = 0; row < a->queries.count; row++)
        for (int64_t head = 0; head < a->heads; head++)
            for (int64_t i = 0; i < x->q_lengths.at(static_cast<size_t>(row)); i++) {
                struct query at = {};
                at.x = x;
                at.out = out;
                at.row = row;
                at.head = head;
                at.keys = x->k_lengths.at(static_cast<size_t>(row));
                at.position =
                    a->causal ? i + at.keys - x->q_lengths.at(static_cast<size_t>(row)) : i;
                at.visible = at.keys;
                if (a->causal && at.position + 1 < at.keys)
                    at.visible = at.position < 0 ? 0 : at.position + 1;
                at.token = x->q_starts.at(static_cast<size_t>(row)) + i;
                at.first_key = x->k_starts.at(static_cast<size_t>(row));
                at.q = at.token * a->q_stride + head * a->head_dim;
                at.o = at.token * a->o_stride + head * a->head_dim;
                at.k = at.first_key * a->kv_stride + head * a->head_dim;
                at.p.resize(static_cast<size_t>(at.keys));
                at.factor.resize(static_cast<size_t>(at.keys));
                probabilities_of(&at);
                expect_query(&at);
            }
}

/* --- Comparison
 * -----------------------------------------------------------------------------------
 */

int failures;

/* The worst error as a part of what is allowed. `rounding`: of the output itself. */
template <typename F>
void compare(const char *name, const expected &want, F got, double rounding, const char *shape)
{
    double worst = 0.0, most = 0.0;
    size_t where = 0;
    for (size_t i = 0; i < want.value.size(); i++) {
        const double error = fabs(got(i) - want.value[i]);
        const double allowed = want.slack[i] + rounding * fabs(want.value[i]) + 1e-6;
        most = error > most ? error : most;
        if (!(error / allowed <= worst)) {
            worst = error / allowed;
            where = i;
            if (!(worst <= 1.0))
                break;
        }
    }
    printf("  %s %.2g (%.2f of allowed)", name, most, worst);
    if (worst <= 1.0)
        return;
    failures++;
    printf("\nWRONG: %s: %s[%zu] is %g, should be %g within %g\n", shape, name, where, got(where),
           want.value[where], want.slack[where]);
}

/* Rows of `width` elements, `stride` apart: what lies between stays as it was. */
bool gaps_hold(array<uint16_t> &x, int64_t stride, int64_t width)
{
    for (size_t i = 0; i < x.count(); i++)
        if (static_cast<int64_t>(i) % stride >= width && x.at(i) != 0xA5A5)
            return false;
    return true;
}

void say_wrong(bool right, const char *shape, const char *what)
{
    if (right)
        return;
    failures++;
    printf("\nWRONG: %s: %s\n", shape, what);
}

void run_forward(struct operands *x)
{
    struct sw_cuda_stream stream = {};
    sw_cuda_attention_forward(&stream.head, &x->a, x->o.device(), x->lse.device(),
                              x->workspace.device());
}

void run_backward(struct operands *x, bool bias_gradient)
{
    struct sw_cuda_stream stream = {};
    sw_cuda_attention_backward(&stream.head, &x->a, x->dq.device(), x->dk.device(), x->dv.device(),
                               bias_gradient ? x->dbias.device() : NULL, x->d_o.device(),
                               x->o.device(), x->lse.device(), x->workspace.device());
}

void fetch(struct operands *x)
{
    must(cudaDeviceSynchronize(), "run");
    for (array<uint16_t> *y : {&x->o, &x->dq, &x->dk, &x->dv})
        y->down();
    x->lse.down();
    x->dbias.down();
    x->workspace.down();
}

void check_around(struct operands *x, const char *name)
{
    const struct sw_attention *a = &x->a;
    const int64_t width = a->heads * a->head_dim;
    say_wrong(x->o.margins_hold() && gaps_hold(x->o, a->o_stride, width), name, "around o");
    say_wrong(x->dq.margins_hold() && gaps_hold(x->dq, a->q_stride, width), name, "around dq");
    say_wrong(x->dk.margins_hold() && gaps_hold(x->dk, a->kv_stride, width), name, "around dk");
    say_wrong(x->dv.margins_hold() && gaps_hold(x->dv, a->kv_stride, width), name, "around dv");
    say_wrong(x->lse.margins_hold(), name, "around lse");
    say_wrong(x->dbias.margins_hold(), name, "around dbias");
    say_wrong(x->workspace.margins_hold(), name, "around the workspace");
}

void prepare(struct operands *x, struct outcome *out)
{
    for (array<uint16_t> *y : {&x->o, &x->dq, &x->dk, &x->dv})
        y->up();
    x->lse.up();
    for (size_t i = 0; i < x->dbias.count(); i++) { /* is added to */
        x->dbias.at(i) = 0.25f;
        out->dbias.value[i] = 0.25;
    }
    x->dbias.up();
}

void check_values(struct operands *x, const struct outcome *out, const struct shape *s)
{
    const struct sw_attention *a = &x->a;
    const int64_t width = a->heads * a->head_dim;
    const auto of = [width](array<uint16_t> *y, int64_t stride) {
        return [=](size_t i) {
            return static_cast<int64_t>(i) % stride < width
                       ? static_cast<double>(sw_bf16_to_float(y->at(i)))
                       : 0.0;
        };
    };
    compare("o", out->o, of(&x->o, a->o_stride), HALF_BF16, s->name);
    compare(
        "lse", out->lse, [x](size_t i) { return static_cast<double>(x->lse.at(i)); }, 0.0, s->name);
    compare("dq", out->dq, of(&x->dq, a->q_stride), HALF_BF16, s->name);
    compare("dk", out->dk, of(&x->dk, a->kv_stride), HALF_BF16, s->name);
    compare("dv", out->dv, of(&x->dv, a->kv_stride), HALF_BF16, s->name);
    if (s->bias_gradient)
        compare(
            "dbias", out->dbias, [x](size_t i) { return static_cast<double>(x->dbias.at(i)); },
            0x1p-20, s->name);
    printf("\n");
}

void check(const struct shape *s)
{
    struct operands x;
    open_case(s, &x);
    struct outcome out = {expected(x.o.count()),  expected(x.lse.count()),
                          expected(x.dq.count()), expected(x.dk.count()),
                          expected(x.dv.count()), expected(x.dbias.count())};
    printf("%s\n", s->name);
    prepare(&x, &out);
    run_forward(&x);
    run_backward(&x, s->bias_gradient);
    fetch(&x);
    expect(&x, &out);
    check_around(&x, s->name);
    check_values(&x, &out, s);
    const std::vector<uint16_t> o = x.o.host, dq = x.dq.host, dk = x.dk.host, dv = x.dv.host;
    const std::vector<float> dbias = x.dbias.host;
    prepare(&x, &out);
    run_forward(&x);
    run_backward(&x, s->bias_gradient);
    fetch(&x);
    say_wrong(o == x.o.host && dq == x.dq.host && dk == x.dk.host && dv == x.dv.host &&
                  memcmp(dbias.data(), x.dbias.host.data(), dbias.size() * sizeof(float)) == 0,
              s->name, "other bits the second time");
    close_case(&x);
}

#define MIXED                                                                                      \
    {                                                                                              \
        1, 3, 17, 64, 65, 128, 129, 33                                                             \
    }

const struct shape shapes[] = {
    {"encoder, 64", 3, 64, 8, MIXED, MIXED, false, true, true, 0.0f, 2.0f, 0},
    {"encoder, 128", 2, 128, 8, MIXED, MIXED, false, true, true, 0.0f, 1.0f, 8},
    {"encoder, 128, dropout", 2, 128, 8, MIXED, MIXED, false, true, true, 0.1f, 1.0f, 8},
    {"encoder, 64, dropout", 2, 64, 8, MIXED, MIXED, false, true, true, 0.25f, 2.0f, 24},
    {"decoder, 64", 2, 64, 8, MIXED, MIXED, true, true, true, 0.0f, 2.0f, 8},
    {"decoder, 128, dropout", 2, 128, 8, MIXED, MIXED, true, true, true, 0.1f, 2.0f, 0},
    {"cross, 64",
     2,
     64,
     6,
     {5, 100, 0, 64, 129, 31},
     {70, 33, 9, 0, 200, 1},
     false,
     false,
     false,
     0.0f,
     2.0f,
     16},
    {"cross, 128, dropout",
     2,
     128,
     6,
     {5, 100, 0, 64, 129, 31},
     {70, 33, 9, 0, 200, 1},
     false,
     false,
     false,
     0.1f,
     1.0f,
     16},
    {"causal with more keys or queries",
     2,
     64,
     5,
     {3, 80, 130, 1, 7},
     {65, 140, 40, 90, 3},
     true,
     true,
     true,
     0.1f,
     2.0f,
     8},
    {"short rows", 2, 64, 4, {1, 9, 30, 64}, {64, 9, 33, 2}, false, true, true, 0.1f, 2.0f, 8},
    {"short rows, 128", 2, 128, 4, {1, 9, 30, 64}, {64, 9, 33, 2}, true, true, true, 0.1f, 1.0f, 8},
    {"bias gradient without a bias",
     1,
     64,
     2,
     {40, 150},
     {77, 12},
     false,
     false,
     true,
     0.0f,
     2.0f,
     0},
    {"large scores", 1, 128, 2, {70, 130}, {150, 130}, false, true, true, 0.0f, 30.0f, 0},
    {"512, 64", 2, 64, 2, {512, 300}, {512, 300}, false, true, true, 0.0f, 2.0f, 0},
    {"512, 128, dropout", 2, 128, 2, {512, 300}, {512, 300}, false, true, true, 0.1f, 1.0f, 0},
    {"decoder, 512, 128", 2, 128, 2, {512, 300}, {512, 300}, true, true, true, 0.0f, 1.0f, 0},
    {"all rows at once, 64, dropout", 16, 64, 8, MIXED, MIXED, false, true, true, 0.1f, 2.0f, 8},
    {"all rows at once, 128, causal", 16, 128, 8, MIXED, MIXED, true, true, true, 0.0f, 1.0f, 8},
    {"all rows at once, cross",
     22,
     128,
     6,
     {5, 100, 0, 64, 129, 31},
     {70, 33, 9, 0, 300, 1},
     false,
     false,
     false,
     0.1f,
     1.0f,
     16},
    {"all rows at once, causal, more keys or queries",
     24,
     64,
     5,
     {3, 80, 330, 1, 7},
     {65, 340, 140, 290, 3},
     true,
     true,
     true,
     0.1f,
     2.0f,
     8},
    {"many heads", 700, 64, 3, {33, 2, 70}, {20, 65, 70}, false, true, true, 0.0f, 2.0f, 0},
};

/* --- Speed
 * ----------------------------------------------------------------------------------------
 */

struct speed {
    const char *name;
    int heads, head_dim, rows, queries, keys;
    bool causal, bias;
    float p;
};

/* Milliseconds, the least of 5 times 10 runs. */
template <typename F> double time_of(F run)
{
    cudaEvent_t from, to;
    must(cudaEventCreate(&from), "event");
    must(cudaEventCreate(&to), "event");
    double best = INFINITY;
    run();
    for (int i = 0; i < 5; i++) {
        float milliseconds = 0.0f;
        must(cudaEventRecord(from, 0), "event");
        for (int j = 0; j < 10; j++)
            run();
        must(cudaEventRecord(to, 0), "event");
        must(cudaEventSynchronize(to), "event");
        must(cudaEventElapsedTime(&milliseconds, from, to), "event");
        best = fmin(best, static_cast<double>(milliseconds) / 10);
    }
    must(cudaEventDestroy(from), "event");
    must(cudaEventDestroy(to), "event");
    return best;
}

void measure(const struct speed *s)
{
    struct shape shape = {};
    shape.name = s->name;
    shape.heads = s->heads;
    shape.head_dim = s->head_dim;
    shape.rows = s->rows;
    for (int r = 0; r < s->rows; r++) {
        shape.queries[r] = s->queries;
        shape.keys[r] = s->keys;
    }
    shape.causal = s->causal;
    shape.bias = s->bias;
    shape.p = s->p;
    shape.size = 1.0f;
    struct operands x;
    open_case(&shape, &x);
    const double products = 2.0 * s->heads * s->rows * static_cast<double>(s->queries) * s->keys *
                            s->head_dim * (s->causal ? 0.5 : 1.0);
    const double forward = time_of([&x] { run_forward(&x); });
    const double backward = time_of([&x, s] { run_backward(&x, s->bias); });
    printf("%-40s forward %7.3f ms %6.1f TFLOP/s, backward %7.3f ms %6.1f TFLOP/s, workspace %.1f "
           "MB\n",
           s->name, forward, 2e-9 * products / forward, backward, 5e-9 * products / backward,
           static_cast<double>(x.workspace.count()) / 1e6);
    close_case(&x);
}

const struct speed speeds[] = {
    {"t5-11b encoder 8 x 512", 128, 128, 8, 512, 512, false, true, 0.0f},
    {"t5-11b encoder 8 x 512, dropout", 128, 128, 8, 512, 512, false, true, 0.1f},
    {"t5-11b decoder 32 x 128", 128, 128, 32, 128, 128, true, true, 0.0f},
    {"t5-11b decoder 32 x 128, dropout", 128, 128, 32, 128, 128, true, true, 0.1f},
    {"t5-11b cross 32 x 128 over 512", 128, 128, 32, 128, 512, false, false, 0.0f},
    {"t5-11b cross 32 x 128 over 512, dropout", 128, 128, 32, 128, 512, false, false, 0.1f},
    {"t5-3b encoder 8 x 512", 32, 128, 8, 512, 512, false, true, 0.0f},
    {"t5-large encoder 32 x 512", 16, 64, 32, 512, 512, false, true, 0.0f},
    {"encoder 2 x 4096", 32, 128, 2, 4096, 4096, false, true, 0.0f},
};

} // namespace

int main(int count, char **arguments)
{
    const bool all = count < 2 || strcmp(arguments[1], "all") == 0;
    only_mma = count > 2 && strcmp(arguments[2], "mma") == 0;
    if (all || strcmp(arguments[1], "check") == 0)
        for (const struct shape &s : shapes)
            check(&s);
    if (all || strcmp(arguments[1], "time") == 0)
        for (const struct speed &s : speeds)
            measure(&s);
    printf(failures == 0 ? "all is well\n" : "%d WRONG\n", failures);
    return failures == 0 ? 0 : 1;
}
