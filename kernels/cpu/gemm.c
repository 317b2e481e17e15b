/* Matrix products: CBLAS on fixed tiles of C, one tile a task, the whole of k at once. The only
 * file that knows the BLAS. */
#include "kernels/cpu/cpu.h"

#include <cblas.h>
#include <limits.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifdef HAVE_BLI_THREAD_SET_NUM_THREADS
void bli_thread_set_num_threads(long threads);
#endif

/* OpenBLAS knows CPUs by model number, and takes its SSE3 kernels for a model that is newer than
 * itself: more than ten times slower than what the CPU can do. Where that happened, have it choose
 * again by what the CPU has. The environment's OPENBLAS_CORETYPE, if set, is left to decide. */
#if defined(SW_X86_64) && defined(HAVE_OPENBLAS_GET_CORENAME) &&                                   \
    defined(HAVE_GOTOBLAS_DYNAMIC_INIT) && defined(HAVE_GOTOBLAS_DYNAMIC_QUIT)
void gotoblas_dynamic_init(void);
void gotoblas_dynamic_quit(void);

static void choose_core(void)
{
    static const char variable[] = "OPENBLAS_CORETYPE";
    const char *core = openblas_get_corename();
    bool wide = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (getenv(variable) != NULL || !wide)
        return;
    if (strcmp(core, "Prescott") != 0 && strcmp(core, "Nehalem") != 0 &&
        strcmp(core, "Barcelona") != 0)
        return;
    bool wider = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    if (setenv(variable, wider ? "SkylakeX" : "Haswell", 0) != 0)
        return;
    gotoblas_dynamic_quit();
    gotoblas_dynamic_init();
    unsetenv(variable);
}
#else
static void choose_core(void)
{
}
#endif

static void blas_init(void)
{
    choose_core();
#if defined(HAVE_OPENBLAS_SET_NUM_THREADS)
    openblas_set_num_threads(1);
#elif defined(HAVE_BLI_THREAD_SET_NUM_THREADS)
    bli_thread_set_num_threads(1);
#endif
}

void sw_cpu_blas_init(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, blas_init);
}

void sw_cpu_sgemm(bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k, float alpha,
                  const float *a, int64_t lda, const float *b, int64_t ldb, float beta, float *c,
                  int64_t ldc)
{
    cblas_sgemm(CblasRowMajor, trans_a ? CblasTrans : CblasNoTrans,
                trans_b ? CblasTrans : CblasNoTrans, (int)m, (int)n, (int)k, alpha, a, (int)lda, b,
                (int)ldb, beta, c, (int)ldc);
}

struct job {
    const struct sw_gemm *gemm;
    int64_t tile_m, tile_n, tiles_n;
    int64_t piece_n; /* columns of a tile that one call of the BLAS makes */
};

/* What a product is added to. */
static const void *addend_of(const struct sw_gemm *g)
{
    return g->addend != NULL ? g->addend : g->c;
}

/* Puts rows x columns of the addend at (row, column) where the BLAS adds to them: in C. */
static void bring_addend(const struct sw_gemm *g, int64_t row, int64_t column, int64_t rows,
                         int64_t columns)
{
    const float *from = addend_of(g);
    float *to = g->c;
    if (g->beta == 0.0f || from == to)
        return;
    for (int64_t i = row; i < row + rows; i++)
        memcpy(to + i * g->ldc + column, from + i * g->ldc + column, (size_t)columns * sizeof *to);
}

static void tile_fp32(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_gemm *g = job->gemm;
    int64_t row = index / job->tiles_n * job->tile_m;
    int64_t column = index % job->tiles_n * job->tile_n;
    int64_t end = sw_cpu_min(column + job->tile_n, g->n);
    const float *a = (const float *)g->a + (g->trans_a ? row : row * g->lda);
    (void)worker;
    bring_addend(g, row, column, sw_cpu_min(job->tile_m, g->m - row), end - column);
    for (int64_t j = column; j < end; j += job->piece_n)
        sw_cpu_sgemm(g->trans_a, g->trans_b, sw_cpu_min(job->tile_m, g->m - row),
                     sw_cpu_min(job->piece_n, end - j), g->k, g->alpha, a, g->lda,
                     (const float *)g->b + (g->trans_b ? j * g->ldb : j), g->ldb, g->beta,
                     (float *)g->c + row * g->ldc + j, g->ldc);
}

/* --- bf16: tiles and pieces of k converted to fp32, which is simple and right, not fast ----------
 */

enum { SMALL_TILE = 64, PIECE_K = 256 };

/* rows x columns of a matrix at (row, column), as fp32 with rows `columns` apart. */
static void unpack(float *out, const void *matrix, int64_t stride, enum sw_dtype dtype, int64_t row,
                   int64_t column, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        sw_cpu_lanes()->convert(out + i * columns, SW_F32,
                                sw_cpu_at(matrix, (row + i) * stride + column, dtype), dtype,
                                columns);
}

static void tile_mixed(void *context, int64_t index, int64_t worker)
{
    const struct job *job = context;
    const struct sw_gemm *g = job->gemm;
    const struct sw_cpu_lanes *lanes = sw_cpu_lanes();
    float a[SMALL_TILE * PIECE_K], b[SMALL_TILE * PIECE_K], c[SMALL_TILE * SMALL_TILE];
    int64_t row = index / job->tiles_n * job->tile_m;
    int64_t column = index % job->tiles_n * job->tile_n;
    int64_t m = sw_cpu_min(job->tile_m, g->m - row);
    int64_t n = sw_cpu_min(job->tile_n, g->n - column);
    (void)worker;
    memset(c, 0, (size_t)(m * n) * sizeof *c);
    for (int64_t p = 0; p < g->k; p += PIECE_K) {
        int64_t k = sw_cpu_min(PIECE_K, g->k - p);
        if (g->trans_a)
            unpack(a, g->a, g->lda, g->ab_dtype, p, row, k, m);
        else
            unpack(a, g->a, g->lda, g->ab_dtype, row, p, m, k);
        if (g->trans_b)
            unpack(b, g->b, g->ldb, g->ab_dtype, column, p, n, k);
        else
            unpack(b, g->b, g->ldb, g->ab_dtype, p, column, k, n);
        sw_cpu_sgemm(g->trans_a, g->trans_b, m, n, k, g->alpha, a, g->trans_a ? m : k, b,
                     g->trans_b ? k : n, 1.0f, c, n);
    }
    for (int64_t i = 0; i < m; i++) {
        int64_t at = (row + i) * g->ldc + column;
        if (g->beta != 0.0f)
            lanes->accumulate(c + i * n, sw_cpu_at(addend_of(g), at, g->c_dtype), g->c_dtype, n);
        lanes->convert(sw_cpu_at_mutable(g->c, at, g->c_dtype), g->c_dtype, c + i * n, SW_F32, n);
    }
}

/* Tiles of 256 x 512, on which OpenBLAS comes near its best; smaller ones, down to 128 x 128, until
 * there are several: a narrow product must not keep all cores but one waiting. A function of the
 * shape alone, because edges of tiles may round in their own way. */
static void choose_tiles(struct job *job, int64_t m, int64_t n)
{
    enum { LARGE_M = 256, LARGE_N = 512, SMALL = 128, TILES_WANTED = 4 };
    job->tile_m = LARGE_M;
    job->tile_n = LARGE_N;
    while (sw_cpu_ceil_div(m, job->tile_m) * sw_cpu_ceil_div(n, job->tile_n) < TILES_WANTED) {
        if (job->tile_n > SMALL && job->tile_n >= job->tile_m)
            job->tile_n /= 2;
        else if (job->tile_m > SMALL)
            job->tile_m /= 2;
        else
            break;
    }
}

/* A step of decoding multiplies a few rows by a whole matrix. OpenBLAS packs the matrix first,
 * which takes longer than multiplying, unless the product is small (a million multiplications). */
static void choose_pieces(struct job *job, int64_t m, int64_t k)
{
    enum { FEW_ROWS = 16, SMALL_PRODUCT = 800000, LEAST = 16 };
    job->piece_n = job->tile_n;
    if (m > FEW_ROWS || m * k > SMALL_PRODUCT / LEAST)
        return;
    int64_t columns = SMALL_PRODUCT / sw_cpu_max(1, m * k) / LEAST * LEAST;
    job->piece_n = sw_cpu_min(columns, job->tile_n);
}

void sw_cpu_gemm(struct sw_stream *stream, const struct sw_gemm *gemm)
{
    bool plain = gemm->ab_dtype == SW_F32 && gemm->c_dtype == SW_F32;
    struct job job = {.gemm = gemm, .tile_m = SMALL_TILE, .tile_n = SMALL_TILE};
    sw_assert(gemm->beta == 0.0f || gemm->beta == 1.0f);
    sw_assert(gemm->k <= INT_MAX && gemm->lda <= INT_MAX && gemm->ldb <= INT_MAX &&
              gemm->ldc <= INT_MAX);
    if (gemm->m <= 0 || gemm->n <= 0)
        return;
    if (plain)
        choose_tiles(&job, gemm->m, gemm->n);
    choose_pieces(&job, gemm->m, gemm->k);
    job.tiles_n = sw_cpu_ceil_div(gemm->n, job.tile_n);
    sw_cpu_run(stream, plain ? tile_fp32 : tile_mixed, &job,
               sw_cpu_ceil_div(gemm->m, job.tile_m) * job.tiles_n);
}
