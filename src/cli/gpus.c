/* GPUs for `spillway probe`: what they are, and their rates by the code that training runs. */
#include "base/mem.h"
#include "base/random.h"
#include "base/timing.h"
#include "cli/probe.h"
#include "kernels/kernels.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 5, SIDE = 8192, PIECE_BYTES = 1 << 20, HOST_PARTS = 4 };
static const int64_t copy_bytes = 256 << 20, matrix_bytes = (int64_t)SIDE * SIDE * 2;

/* One GPU while it is measured. */
struct rig {
    const struct sw_device_ops *ops;
    struct sw_device *device;
    struct sw_stream *compute, *up, *down;
    void *buffers[3]; /* the first two of copy_bytes, all of a matrix */
    void *pinned;     /* copy_bytes */
    void *peer;       /* a buffer of another GPU */
};

static void rig_close(struct rig *rig)
{
    struct sw_stream *streams[] = {rig->compute, rig->up, rig->down};
    if (rig->device == NULL)
        return;
    if (rig->pinned != NULL)
        rig->ops->host_free(rig->device, rig->pinned, copy_bytes);
    for (int i = 0; i < 3; i++)
        if (streams[i] != NULL)
            rig->ops->stream_close(streams[i]);
    rig->ops->close(rig->device);
}

/* Random numbers: a GPU multiplies zeros faster, at less power. */
static void fill(void *memory, int64_t bytes)
{
    static const uint32_t key[2] = {3, 5};
    uint32_t *words = memory;
    for (int64_t i = 0; i < bytes / 4; i += 4) {
        const uint32_t counter[4] = {(uint32_t)i, 0, 0, 0};
        sw_philox(key, counter, words + i);
        for (int k = 0; k < 4; k++) /* two bf16 numbers of size 1 */
            words[i + k] = (words[i + k] & 0x80FF80FFu) | 0x3F003F00u;
    }
}

static sw_code rig_open(struct rig *rig, int index, struct sw_err *err)
{
    const struct sw_device_ops *ops = rig->ops;
    const struct sw_device_config config = {.physical_index = index,
                                            .memory_bytes = 2 * copy_bytes + matrix_bytes + 4096};
    sw_code code = ops->open(&rig->device, &config, err);
    if (code == SW_OK)
        code = ops->stream_open(rig->device, SW_STREAM_COMPUTE, &rig->compute, err);
    if (code == SW_OK)
        code = ops->stream_open(rig->device, SW_STREAM_H2D, &rig->up, err);
    if (code == SW_OK)
        code = ops->stream_open(rig->device, SW_STREAM_D2H, &rig->down, err);
    for (int i = 0; i < 3 && code == SW_OK; i++)
        code = ops->alloc(rig->device, i < 2 ? copy_bytes : matrix_bytes, &rig->buffers[i], err);
    if (code == SW_OK)
        code = ops->host_alloc(rig->device, copy_bytes, &rig->pinned, err);
    if (code != SW_OK)
        return code;
    fill(rig->pinned, copy_bytes);
    ops->copy(rig->up, rig->buffers[0], rig->pinned, copy_bytes);
    ops->copy(rig->up, rig->buffers[1], rig->pinned, copy_bytes);
    return ops->stream_sync(rig->up, err);
}

static void run_up(const struct rig *rig)
{
    rig->ops->copy(rig->up, rig->buffers[0], rig->pinned, copy_bytes);
}

static void run_down(const struct rig *rig)
{
    rig->ops->copy(rig->down, rig->pinned, rig->buffers[0], copy_bytes);
}

/* A failure of the stream that this waits for stays there until run_down() is timed. */
static void run_both(const struct rig *rig)
{
    struct sw_err err = {0};
    rig->ops->copy(rig->up, rig->buffers[0], rig->pinned, copy_bytes);
    rig->ops->copy(rig->down, rig->pinned, rig->buffers[1], copy_bytes);
    (void)rig->ops->stream_sync(rig->down, &err);
}

static void run_copy(const struct rig *rig)
{
    rig->ops->copy(rig->compute, rig->buffers[1], rig->buffers[0], copy_bytes);
}

static void run_peer(const struct rig *rig)
{
    rig->ops->copy(rig->compute, rig->buffers[0], rig->peer, copy_bytes);
}

static void run_gemm(const struct rig *rig)
{
    const struct sw_gemm gemm = {.m = SIDE,
                                 .n = SIDE,
                                 .k = SIDE,
                                 .trans_b = true,
                                 .a = rig->buffers[0],
                                 .b = rig->buffers[1],
                                 .c = rig->buffers[2],
                                 .lda = SIDE,
                                 .ldb = SIDE,
                                 .ldc = SIDE,
                                 .alpha = 1e-3F,
                                 .ab_dtype = SW_BF16,
                                 .c_dtype = SW_BF16};
    rig->ops->kernels->gemm(rig->compute, &gemm);
}

/* The best of some times; the first one does not count. */
static sw_code rate(const struct rig *rig, void (*run)(const struct rig *),
                    struct sw_stream *stream, double amount, double *out, struct sw_err *err)
{
    for (int i = 0; i <= REPEATS; i++) {
        double begin = sw_seconds_now();
        run(rig);
        sw_code code = rig->ops->stream_sync(stream, err);
        if (code != SW_OK)
            return code;
        double here = amount / (sw_seconds_now() - begin);
        if (i > 0 && here > *out)
            *out = here;
    }
    return SW_OK;
}

static sw_code measure_gpu(const struct sw_device_ops *ops, int index, struct sw_machine_gpu *gpu,
                           struct sw_err *err)
{
    struct rig rig = {.ops = ops};
    double bytes = (double)copy_bytes, side = SIDE;
    sw_code code = rig_open(&rig, index, err);
    if (code == SW_OK)
        code = rate(&rig, run_up, rig.up, bytes, &gpu->h2d_bytes_per_second, err);
    if (code == SW_OK)
        code = rate(&rig, run_both, rig.up, 2 * bytes, &gpu->both_bytes_per_second, err);
    if (code == SW_OK)
        code = rate(&rig, run_down, rig.down, bytes, &gpu->d2h_bytes_per_second, err);
    if (code == SW_OK)
        code = rate(&rig, run_copy, rig.compute, 2 * bytes, &gpu->memory_bytes_per_second, err);
    if (code == SW_OK)
        code = rate(&rig, run_gemm, rig.compute, 2 * side * side * side,
                    &gpu->gemm_flops_per_second, err);
    rig_close(&rig);
    return code != SW_OK ? sw_err_while(err, "measuring GPU %d", index) : SW_OK;
}

/* Into a GPU from its neighbour. */
static sw_code measure_peer(const struct sw_device_ops *ops, int index, int other,
                            struct sw_machine_gpu *gpu, struct sw_err *err)
{
    struct rig rig = {.ops = ops}, neighbour = {.ops = ops};
    sw_code code = rig_open(&rig, index, err);
    if (code == SW_OK)
        code = rig_open(&neighbour, other, err);
    rig.peer = neighbour.buffers[0];
    if (code == SW_OK)
        code =
            rate(&rig, run_peer, rig.compute, (double)copy_bytes, &gpu->peer_bytes_per_second, err);
    rig_close(&neighbour);
    rig_close(&rig);
    return code != SW_OK ? sw_err_while(err, "measuring GPU %d from GPU %d", index, other) : SW_OK;
}

sw_code sw_probe_gpus(const struct sw_device_ops *ops, const struct sw_topo *topo, bool measure,
                      struct sw_machine *out, struct sw_err *err)
{
    int count = 0;
    sw_code code = ops->count(&count, err);
    if (count > SW_MACHINE_MAX_GPUS)
        count = SW_MACHINE_MAX_GPUS;
    for (int i = 0; i < count && code == SW_OK; i++) {
        struct sw_machine_gpu *gpu = &out->gpus[i];
        struct sw_device_info info;
        code = ops->describe(i, &info, err);
        if (code != SW_OK)
            return code;
        snprintf(gpu->name, sizeof gpu->name, "%s", info.name);
        snprintf(out->gpu_versions, sizeof out->gpu_versions, "%s", info.versions);
        gpu->memory_bytes = info.total_bytes;
        gpu->free_bytes = info.free_bytes > 0 ? info.free_bytes : 0;
        for (int other = 0; other < count; other++)
            gpu->peers += other != i && ops->reaches(i, other);
        gpu->numa_node = sw_topo_node_of_pci(topo, info.bus_id);
        out->gpu_count = i + 1;
        if (measure)
            code = measure_gpu(ops, i, gpu, err);
        int neighbour = i > 0 ? i - 1 : count - 1;
        if (measure && code == SW_OK && neighbour != i && ops->reaches(i, neighbour))
            code = measure_peer(ops, i, neighbour, gpu, err);
    }
    return code;
}

/* ---- host memory that CPUs and links share ---- */

static void add_to_piece(void *context, int64_t index, int64_t worker)
{
    float *values = (float *)context + index * (PIECE_BYTES / 4);
    (void)worker;
    for (int64_t i = 0; i < PIECE_BYTES / 4; i++)
        values[i] += 1.0F;
}

/* All links both ways, and CPUs that read and write for about as long, in place, so that nothing is
 * moved that is not counted: what they move a second. */
static sw_code time_all(const struct rig *rigs, int gpus, struct sw_pool *pool, float *host,
                        int64_t rounds, double *out, struct sw_err *err)
{
    double begin = sw_seconds_now();
    double bytes = 2.0 * (double)gpus * (double)copy_bytes;
    sw_code code = SW_OK;
    for (int i = 0; i < gpus; i++) {
        run_up(&rigs[i]);
        rigs[i].ops->copy(rigs[i].down, rigs[i].pinned, rigs[i].buffers[1], copy_bytes);
    }
    for (int64_t i = 0; i < rounds; i++) { /* never what caches still have */
        float *part = host + i % HOST_PARTS * (copy_bytes / 4);
        sw_pool_run(pool, add_to_piece, part, copy_bytes / PIECE_BYTES);
        bytes += 2.0 * (double)copy_bytes;
    }
    for (int i = 0; i < gpus && code == SW_OK; i++) {
        code = rigs[i].ops->stream_sync(rigs[i].up, err);
        if (code == SW_OK)
            code = rigs[i].ops->stream_sync(rigs[i].down, err);
    }
    *out = bytes / (sw_seconds_now() - begin);
    return code;
}

/* Rounds of the CPUs that take as long as a link's copy. */
static int64_t rounds_of(const struct sw_machine *machine)
{
    double link = machine->gpus[0].h2d_bytes_per_second;
    double rounds = link > 0 ? machine->triad_bytes_per_second / (2 * link) : 1;
    return rounds < 1 ? 1 : (int64_t)(rounds + 0.5);
}

sw_code sw_probe_shared_memory(const struct sw_device_ops *ops, struct sw_pool *pool,
                               struct sw_machine *machine, struct sw_err *err)
{
    enum { MOST_GPUS = 8 };
    struct rig rigs[MOST_GPUS] = {0};
    int gpus = machine->gpu_count < MOST_GPUS ? machine->gpu_count : MOST_GPUS;
    float *host = sw_aligned_alloc(HOST_PARTS * copy_bytes);
    sw_code code = host != NULL ? SW_OK : SW_FAIL(err, SW_E_MEMORY, "no memory for 1 GiB");
    if (code == SW_OK)
        memset(host, 0, (size_t)(HOST_PARTS * copy_bytes));
    for (int i = 0; i < gpus && code == SW_OK; i++) {
        rigs[i].ops = ops;
        code = rig_open(&rigs[i], i, err);
    }
    double best = 0;
    for (int i = 0; i <= REPEATS && code == SW_OK; i++) { /* the first one does not count */
        double rate = 0;
        code = time_all(rigs, gpus, pool, host, rounds_of(machine), &rate, err);
        if (i > 0 && rate > best)
            best = rate;
    }
    for (int i = 0; i < gpus; i++)
        rig_close(&rigs[i]);
    free(host);
    if (code == SW_OK)
        machine->memory_bytes_per_second = best;
    return code != SW_OK ? sw_err_while(err, "measuring what CPUs and GPUs share") : SW_OK;
}
