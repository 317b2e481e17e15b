/* Matrix products: cuBLASLt, with the algorithm that its heuristic names for a shape, never one
 * chosen by timing; so equal shapes give equal bits. What it does not serve (rows at odd addresses)
 * goes to a plain tiled kernel. The only file that knows cuBLASLt. */
#include "kernels/cuda/cuda.cuh"

#include <cstring>
#include <cublasLt.h>
#include <mutex>
#include <new>

/* --- What was found before -----------------------------------------------------------------------
 */

/* Everything an algorithm's choice depends on. */
struct shape {
    int64_t m, n, k, lda, ldb, ldc;
    int32_t a_alignment, b_alignment, c_alignment; /* bytes; C's addend has C's */
    int32_t form; /* trans_a, trans_b, beta, ab_dtype, c_dtype: a bit each */
};

struct entry {
    struct shape shape;
    cublasLtMatmulAlgo_t algorithm;
    bool used, plain; /* plain: cuBLASLt has none */
};

enum { SETS = 1024, WAYS = 4 };

struct sw_cuda_gemm_state {
    cublasLtHandle_t handle;
    std::mutex lock; /* of what follows */
    struct entry entries[SETS][WAYS];
    int next[SETS]; /* way that is replaced next */
};

struct sw_cuda_gemm_state *sw_cuda_gemm_open(struct sw_err *err)
{
    struct sw_cuda_gemm_state *state = new (std::nothrow) sw_cuda_gemm_state();
    if (state == nullptr) {
        (void)SW_FAIL(err, SW_E_MEMORY, "no memory for the algorithms of products");
        return nullptr;
    }
    cublasStatus_t status = cublasLtCreate(&state->handle);
    if (status != CUBLAS_STATUS_SUCCESS) {
        (void)SW_FAIL(err, SW_E_DEVICE, "cuBLASLt: %s", cublasLtGetStatusName(status));
        delete state;
        return nullptr;
    }
    return state;
}

void sw_cuda_gemm_close(struct sw_cuda_gemm_state *state)
{
    if (state == nullptr)
        return;
    (void)cublasLtDestroy(state->handle);
    delete state;
}

static uint64_t hash_of(const struct shape *shape)
{
    uint64_t hash = 0xCBF29CE484222325u; /* FNV-1a over the words */
    uint64_t words[sizeof *shape / sizeof(uint64_t)];
    memcpy(words, shape, sizeof words);
    for (uint64_t word : words)
        hash = (hash ^ word) * 0x100000001B3u;
    return hash ^ hash >> 32;
}

/* --- The problem in cuBLASLt's words -------------------------------------------------------------
 */

/* Columns first: what is C, row by row, is C transposed for it; so B comes first and A second. */
struct problem {
    cublasLtMatmulDescOpaque_t operation;
    cublasLtMatrixLayoutOpaque_t first, second, result;
};

static cudaDataType_t type_of(enum sw_dtype dtype)
{
    return dtype == SW_F32 ? CUDA_R_32F : CUDA_R_16BF;
}

static void put_layout(cublasLtMatrixLayoutOpaque_t *out, enum sw_dtype dtype, int64_t rows,
                       int64_t columns, int64_t stride)
{
    (void)cublasLtMatrixLayoutInit(out, type_of(dtype), static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(columns), stride);
}

/* What a product is added to. */
static const void *addend_of(const struct sw_gemm *g)
{
    return g->addend != nullptr ? g->addend : g->c;
}

static bool describe(struct problem *out, const struct sw_gemm *g)
{
    cublasOperation_t first = g->trans_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasOperation_t second = g->trans_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (cublasLtMatmulDescInit(&out->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F) !=
        CUBLAS_STATUS_SUCCESS)
        return false;
    (void)cublasLtMatmulDescSetAttribute(&out->operation, CUBLASLT_MATMUL_DESC_TRANSA, &first,
                                         sizeof first);
    (void)cublasLtMatmulDescSetAttribute(&out->operation, CUBLASLT_MATMUL_DESC_TRANSB, &second,
                                         sizeof second);
    put_layout(&out->first, g->ab_dtype, g->trans_b ? g->k : g->n, g->trans_b ? g->n : g->k,
               g->ldb);
    put_layout(&out->second, g->ab_dtype, g->trans_a ? g->m : g->k, g->trans_a ? g->k : g->m,
               g->lda);
    put_layout(&out->result, g->c_dtype, g->n, g->m, g->ldc);
    return true;
}

/* The largest power of two up to 256 that divides the address and the bytes between rows. */
static int32_t alignment_of(const void *pointer, int64_t stride, enum sw_dtype dtype)
{
    uint64_t bits = reinterpret_cast<uintptr_t>(pointer) |
                    static_cast<uint64_t>(stride * sw_dtype_bytes(dtype)) | 256u;
    return static_cast<int32_t>(bits & (~bits + 1));
}

/* Whether C is its own addend has no part in it: a block that keeps its context adds to another
 * buffer where one that keeps none adds in place, and both must get the same bits. */
static struct shape shape_of(const struct sw_gemm *g)
{
    struct shape shape;
    memset(&shape, 0, sizeof shape);
    shape.m = g->m;
    shape.n = g->n;
    shape.k = g->k;
    shape.lda = g->lda;
    shape.ldb = g->ldb;
    shape.ldc = g->ldc;
    shape.a_alignment = alignment_of(g->a, g->lda, g->ab_dtype);
    shape.b_alignment = alignment_of(g->b, g->ldb, g->ab_dtype);
    shape.c_alignment = alignment_of(g->c, g->ldc, g->c_dtype);
    if (g->beta != 0.0f) {
        int32_t addend = alignment_of(addend_of(g), g->ldc, g->c_dtype);
        shape.c_alignment = addend < shape.c_alignment ? addend : shape.c_alignment;
    }
    shape.form = (g->trans_a ? 1 : 0) | (g->trans_b ? 2 : 0) | (g->beta != 0.0f ? 4 : 0) |
                 (g->ab_dtype == SW_BF16 ? 8 : 0) | (g->c_dtype == SW_BF16 ? 16 : 0);
    return shape;
}

static void prefer(cublasLtMatmulPreferenceOpaque_t *out, const struct shape *shape)
{
    size_t workspace = SW_CUDA_GEMM_WORKSPACE_BYTES;
    /* Partial sums over k only in fp32, added in one order. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    uint32_t first = static_cast<uint32_t>(shape->b_alignment);
    uint32_t second = static_cast<uint32_t>(shape->a_alignment);
    uint32_t result = static_cast<uint32_t>(shape->c_alignment);
    (void)cublasLtMatmulPreferenceInit(out);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                               &workspace, sizeof workspace);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                               &reductions, sizeof reductions);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
                                               &first, sizeof first);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                                               &second, sizeof second);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
                                               &result, sizeof result);
    (void)cublasLtMatmulPreferenceSetAttribute(out, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES,
                                               &result, sizeof result);
}

static void look_for(struct sw_cuda_gemm_state *state, struct problem *problem, struct entry *entry)
{
    cublasLtMatmulPreferenceOpaque_t preference;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    prefer(&preference, &entry->shape);
    cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        state->handle, &problem->operation, &problem->first, &problem->second, &problem->result,
        &problem->result, &preference, 1, &result, &found);
    entry->used = true;
    entry->plain =
        status != CUBLAS_STATUS_SUCCESS || found == 0 || result.state != CUBLAS_STATUS_SUCCESS;
    if (!entry->plain)
        entry->algorithm = result.algo;
}

/* A copy, for another thread may replace the entry. */
static struct entry find(struct sw_cuda_gemm_state *state, struct problem *problem,
                         const struct sw_gemm *g)
{
    struct shape shape = shape_of(g);
    int set = static_cast<int>(hash_of(&shape) % SETS);
    std::lock_guard<std::mutex> guard(state->lock);
    struct entry *entries = state->entries[set];
    for (int way = 0; way < WAYS; way++)
        if (entries[way].used && memcmp(&entries[way].shape, &shape, sizeof shape) == 0)
            return entries[way];
    struct entry *entry = &entries[state->next[set]];
    state->next[set] = (state->next[set] + 1) % WAYS;
    entry->shape = shape;
    look_for(state, problem, entry);
    return *entry;
}

/* --- The plain kernel ----------------------------------------------------------------------------
 */

enum { TILE = 16 };

/* One element of C a thread, tiles of A and B through shared memory; k in order, in fp32. */
template <typename AB, typename C>
static __global__ void __launch_bounds__(TILE *TILE) plain(struct sw_gemm g)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    int64_t tiles = (g.n + TILE - 1) / TILE;
    int64_t row = blockIdx.x / tiles * TILE + threadIdx.y;
    int64_t column = blockIdx.x % tiles * TILE + threadIdx.x;
    const AB *from_a = static_cast<const AB *>(g.a), *from_b = static_cast<const AB *>(g.b);
    float sum = 0.0f;
    for (int64_t p = 0; p < g.k; p += TILE) {
        int64_t ka = p + threadIdx.x, kb = p + threadIdx.y;
        a[threadIdx.y][threadIdx.x] =
            row < g.m && ka < g.k
                ? sw_to_float(from_a[g.trans_a ? ka * g.lda + row : row * g.lda + ka])
                : 0.0f;
        b[threadIdx.y][threadIdx.x] =
            column < g.n && kb < g.k
                ? sw_to_float(from_b[g.trans_b ? column * g.ldb + kb : kb * g.ldb + column])
                : 0.0f;
        __syncthreads();
        for (int i = 0; i < TILE; i++)
            sum += a[threadIdx.y][i] * b[i][threadIdx.x];
        __syncthreads();
    }
    if (row >= g.m || column >= g.n)
        return;
    int64_t at = row * g.ldc + column;
    const C *addend = static_cast<const C *>(g.addend != nullptr ? g.addend : g.c);
    float before = g.beta != 0.0f ? sw_to_float(addend[at]) : 0.0f;
    sw_from_float(static_cast<C *>(g.c) + at, g.alpha * sum + before);
}

static void run_plain(struct sw_stream *stream, const struct sw_gemm *g)
{
    int64_t tiles = sw_cuda_ceil_div(g->m, TILE) * sw_cuda_ceil_div(g->n, TILE);
    unsigned int grid = static_cast<unsigned int>(tiles);
    dim3 block(TILE, TILE);
    cudaStream_t cuda = sw_cuda_stream(stream);
    sw_assert(tiles <= INT32_MAX);
    if (g->ab_dtype == SW_F32 && g->c_dtype == SW_F32)
        plain<float, float><<<grid, block, 0, cuda>>>(*g);
    else if (g->ab_dtype == SW_F32)
        plain<float, sw_bf16><<<grid, block, 0, cuda>>>(*g);
    else if (g->c_dtype == SW_F32)
        plain<sw_bf16, float><<<grid, block, 0, cuda>>>(*g);
    else
        plain<sw_bf16, sw_bf16><<<grid, block, 0, cuda>>>(*g);
    sw_cuda_end(stream, "a plain product");
}

/* --- The product ---------------------------------------------------------------------------------
 */

static void run_found(struct sw_stream *stream, struct sw_cuda_gemm_state *state,
                      struct problem *problem, const struct entry *entry, const struct sw_gemm *g)
{
    void *workspace = reinterpret_cast<struct sw_cuda_stream *>(stream)->gemm_workspace;
    cublasStatus_t status = cublasLtMatmul(
        state->handle, &problem->operation, &g->alpha, g->b, &problem->first, g->a,
        &problem->second, &g->beta, addend_of(g), &problem->result, g->c, &problem->result,
        &entry->algorithm, workspace, workspace != nullptr ? SW_CUDA_GEMM_WORKSPACE_BYTES : 0,
        sw_cuda_stream(stream));
    sw_cuda_end(stream, "a product");
    if (status != CUBLAS_STATUS_SUCCESS && stream->error.code == SW_OK)
        (void)SW_FAIL(&stream->error, SW_E_DEVICE,
                      "cuBLASLt: a product of %lld x %lld x %lld failed: %s",
                      static_cast<long long>(g->m), static_cast<long long>(g->n),
                      static_cast<long long>(g->k), cublasLtGetStatusName(status));
}

/* A sum of no terms: C is its addend, or 0. */
static void run_empty(struct sw_stream *stream, const struct sw_gemm *g)
{
    size_t element = static_cast<size_t>(sw_dtype_bytes(g->c_dtype));
    size_t pitch = static_cast<size_t>(g->ldc) * element;
    size_t width = static_cast<size_t>(g->n) * element, rows = static_cast<size_t>(g->m);
    const void *addend = addend_of(g);
    if (g->beta == 0.0f)
        (void)cudaMemset2DAsync(g->c, pitch, 0, width, rows, sw_cuda_stream(stream));
    else if (addend != g->c)
        (void)cudaMemcpy2DAsync(g->c, pitch, addend, pitch, width, rows, cudaMemcpyDeviceToDevice,
                                sw_cuda_stream(stream));
    sw_cuda_end(stream, "an empty product");
}

/* struct sw_gemm. fp32 accumulation; fp32 operands are multiplied as fp32, not TF32. Needs a
 * compute stream's workspace. Deterministic: by the shape and where the operands are aligned. */
void sw_cuda_gemm(struct sw_stream *stream, const struct sw_gemm *g)
{
    struct problem problem;
    struct sw_cuda_gemm_state *state = sw_cuda_gemm_state_of(stream);
    sw_assert(g->beta == 0.0f || g->beta == 1.0f);
    if (g->m <= 0 || g->n <= 0 || !sw_cuda_begin(stream))
        return;
    if (g->k <= 0) {
        run_empty(stream, g);
        return;
    }
    if (!describe(&problem, g)) {
        run_plain(stream, g);
        return;
    }
    struct entry entry = find(state, &problem, g);
    if (entry.plain)
        run_plain(stream, g);
    else
        run_found(stream, state, &problem, &entry, g);
}
