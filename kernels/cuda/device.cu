/* A GPU as a device: an arena of the rank's memory cap, pinned host memory, streams, events. Never
 * resets the GPU, for other ranks of this process, and other users, may be on it. */
#include "kernels/cuda/cuda.cuh"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

enum { DEVICE_ALIGNMENT = 256, OLDEST_MAJOR = 8 };
/* Left alone when a rank takes what is free: the context grows as kernels are loaded. */
static constexpr int64_t SPARE_BYTES = 512 << 20;

struct sw_device {
    int ordinal;
    int processors, shared_bytes;
    bool has_wgmma;
    char name[256];
    struct sw_cuda_gemm_state *gemm;
    std::mutex lock; /* of used_bytes */
    char *arena;
    int64_t cap_bytes;
    int64_t used_bytes; /* nothing is freed before close, so this is the high water too */
};

struct sw_event {
    struct sw_device *device;
    cudaEvent_t event;
    std::mutex lock;     /* of error */
    struct sw_err error; /* of the stream it was recorded on */
};

static sw_code cuda_failed(struct sw_err *err, cudaError_t error, const char *what)
{
    return SW_FAIL(err, SW_E_DEVICE, "CUDA: %s: %s (%s)", what, cudaGetErrorString(error),
                   cudaGetErrorName(error));
}

/* --- Streams and their failures ------------------------------------------------------------------
 */

static struct sw_cuda_stream *own(struct sw_stream *stream)
{
    return reinterpret_cast<struct sw_cuda_stream *>(stream);
}

void sw_cuda_fail(struct sw_stream *stream, cudaError_t error, const char *what)
{
    if (stream->error.code == SW_OK)
        (void)SW_FAIL(&stream->error, SW_E_DEVICE, "GPU %d (%s): %s: %s (%s)",
                      stream->device->ordinal, stream->device->name, what,
                      cudaGetErrorString(error), cudaGetErrorName(error));
}

bool sw_cuda_begin(struct sw_stream *stream)
{
    if (stream->error.code != SW_OK)
        return false;
    (void)cudaGetLastError(); /* what went wrong elsewhere on this thread is not this stream's */
    cudaError_t error = cudaSetDevice(stream->device->ordinal);
    if (error != cudaSuccess)
        sw_cuda_fail(stream, error, "choosing the GPU");
    return error == cudaSuccess;
}

void sw_cuda_end(struct sw_stream *stream, const char *what)
{
    cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess)
        sw_cuda_fail(stream, error, what);
}

int sw_cuda_processors(const struct sw_stream *stream)
{
    return stream->device->processors;
}

int sw_cuda_shared_bytes(const struct sw_stream *stream)
{
    return stream->device->shared_bytes;
}

bool sw_cuda_has_wgmma(const struct sw_stream *stream)
{
    return stream->device->has_wgmma;
}

struct sw_cuda_gemm_state *sw_cuda_gemm_state_of(const struct sw_stream *stream)
{
    return stream->device->gemm;
}

static void stream_close(struct sw_stream *stream)
{
    if (stream == nullptr)
        return;
    struct sw_cuda_stream *cuda = own(stream);
    (void)cudaSetDevice(stream->device->ordinal);
    if (cuda->stream != nullptr) {
        (void)cudaStreamSynchronize(cuda->stream);
        (void)cudaStreamDestroy(cuda->stream);
    }
    (void)cudaFree(cuda->gemm_workspace);
    free(cuda);
}

static sw_code stream_open(struct sw_device *device, enum sw_stream_kind kind,
                           struct sw_stream **out, struct sw_err *err)
{
    struct sw_cuda_stream *cuda = static_cast<struct sw_cuda_stream *>(calloc(1, sizeof *cuda));
    if (cuda == nullptr)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a stream");
    cuda->head.device = device;
    cuda->head.kind = kind;
    int least = 0, greatest = 0;
    cudaError_t error = cudaSetDevice(device->ordinal);
    if (error == cudaSuccess)
        error = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    /* What others wait for goes before what fills the GPU anyway. */
    if (error == cudaSuccess)
        error = cudaStreamCreateWithPriority(&cuda->stream, cudaStreamNonBlocking,
                                             kind == SW_STREAM_COMPUTE ? least : greatest);
    if (error == cudaSuccess && kind == SW_STREAM_COMPUTE)
        error = cudaMalloc(&cuda->gemm_workspace, SW_CUDA_GEMM_WORKSPACE_BYTES);
    if (error == cudaSuccess && kind == SW_STREAM_COMPUTE)
        error =
            cudaMemsetAsync(cuda->gemm_workspace, 0, SW_CUDA_GEMM_WORKSPACE_BYTES, cuda->stream);
    if (error != cudaSuccess) {
        stream_close(&cuda->head);
        return cuda_failed(err, error, "opening a stream");
    }
    *out = &cuda->head;
    return SW_OK;
}

static sw_code stream_sync(struct sw_stream *stream, struct sw_err *err)
{
    if (sw_cuda_begin(stream)) {
        cudaError_t error = cudaStreamSynchronize(sw_cuda_stream(stream));
        if (error != cudaSuccess)
            sw_cuda_fail(stream, error, "running what was submitted");
    }
    return sw_stream_check(stream, err);
}

/* --- Copies ------------------------------------------------------------------------------------*/

/* Bytes from `address` to the end of the piece of pinned memory that it is in. */
static int64_t left_of_piece(const void *address)
{
    return SW_CUDA_PIECE_BYTES -
           static_cast<int64_t>(reinterpret_cast<uintptr_t>(address) % SW_CUDA_PIECE_BYTES);
}

/* A copy may not go from one piece of pinned memory into the next: they were registered apart. */
static void copy_memory(struct sw_stream *stream, void *destination, const void *source,
                        int64_t bytes)
{
    char *to = static_cast<char *>(destination);
    const char *from = static_cast<const char *>(source);
    sw_assert(bytes >= 0);
    if (bytes == 0 || to == from || !sw_cuda_begin(stream))
        return;
    while (bytes > 0) {
        int64_t piece = sw_cuda_min(left_of_piece(to), left_of_piece(from));
        piece = sw_cuda_min(piece, bytes);
        cudaError_t error = cudaMemcpyAsync(to, from, static_cast<size_t>(piece), cudaMemcpyDefault,
                                            sw_cuda_stream(stream));
        if (error != cudaSuccess) {
            (void)cudaGetLastError();
            sw_cuda_fail(stream, error, "copying");
            return;
        }
        to += piece;
        from += piece;
        bytes -= piece;
    }
}

static void zero_memory(struct sw_stream *stream, void *destination, int64_t bytes)
{
    sw_assert(bytes >= 0);
    if (bytes == 0 || !sw_cuda_begin(stream))
        return;
    (void)cudaMemsetAsync(destination, 0, static_cast<size_t>(bytes), sw_cuda_stream(stream));
    sw_cuda_end(stream, "clearing memory");
}

/* --- Which GPUs there are ------------------------------------------------------------------------
 */

static char why_there_is_none[256] = "";

static const char *why_none(void)
{
    return why_there_is_none;
}

static sw_code count_devices(int *out, struct sw_err *err)
{
    *out = 0;
    cudaError_t error = cudaGetDeviceCount(out);
    if (error == cudaSuccess && *out > 0)
        return SW_OK;
    (void)cudaGetLastError();
    *out = 0;
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (error == cudaErrorInsufficientDriver) {
        int driver = 0;
        (void)cudaDriverGetVersion(&driver);
        if (driver == 0)
            snprintf(why_there_is_none, sizeof why_there_is_none,
                     "no NVIDIA driver is installed here");
        else
            snprintf(why_there_is_none, sizeof why_there_is_none,
                     "the NVIDIA driver is too old: it serves CUDA %d.%d, this build needs %d.%d",
                     driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                     CUDART_VERSION % 1000 / 10);
        return SW_OK;
    }
    if (error == cudaSuccess || error == cudaErrorNoDevice) {
        if (visible != nullptr)
            snprintf(why_there_is_none, sizeof why_there_is_none,
                     "no GPU is visible with CUDA_VISIBLE_DEVICES=\"%.100s\"", visible);
        else
            snprintf(why_there_is_none, sizeof why_there_is_none, "no GPU is there");
        return SW_OK;
    }
    if (visible != nullptr)
        return SW_FAIL(
            err, SW_E_DEVICE,
            "CUDA: looking for GPUs with CUDA_VISIBLE_DEVICES=\"%.100s\": %s (%s); each may be "
            "named once; devices.kind: cpu goes without",
            visible, cudaGetErrorString(error), cudaGetErrorName(error));
    (void)cuda_failed(err, error, "looking for GPUs");
    return sw_err_while(err, "starting; devices.kind: cpu goes without");
}

/* --- Devices -----------------------------------------------------------------------------------*/

static void close_device(struct sw_device *device)
{
    if (device == nullptr)
        return;
    if (device->gemm != nullptr) { /* opened as far as that the GPU is there */
        (void)cudaSetDevice(device->ordinal);
        sw_cuda_gemm_close(device->gemm);
        (void)cudaFree(device->arena);
    }
    delete device;
}

/* What the GPU is; one that is too old is refused. */
static sw_code describe(struct sw_device *device, struct sw_err *err)
{
    cudaDeviceProp properties;
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && (device->ordinal < 0 || device->ordinal >= count))
        return SW_FAIL(err, SW_E_USAGE, "GPU %d is not there: %d visible (devices.list)",
                       device->ordinal, count);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, device->ordinal);
    if (error != cudaSuccess)
        return cuda_failed(err, error, "reading the GPU's properties");
    snprintf(device->name, sizeof device->name, "%s", properties.name);
    device->processors = properties.multiProcessorCount;
    device->shared_bytes = static_cast<int>(properties.sharedMemPerBlockOptin);
#ifdef SW_CUDA_WGMMA
    device->has_wgmma = properties.major == 9 && properties.minor == 0;
#endif
    if (properties.major < OLDEST_MAJOR)
        return SW_FAIL(err, SW_E_USAGE,
                       "GPU %d (%s) has compute capability %d.%d; 8.0 is the least, for bf16: "
                       "choose another in devices.list or devices.kind: cpu",
                       device->ordinal, device->name, properties.major, properties.minor);
    return SW_OK;
}

static sw_code take_arena(struct sw_device *device, int64_t wanted_bytes, struct sw_err *err)
{
    size_t free_bytes = 0, total_bytes = 0;
    cudaError_t error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error != cudaSuccess)
        return cuda_failed(err, error, "reading free memory");
    const double mib = 1 << 20;
    int64_t available = static_cast<int64_t>(free_bytes) - SW_CUDA_RANK_WORKSPACE_BYTES;
    int64_t cap = wanted_bytes > 0 ? wanted_bytes : available - SPARE_BYTES;
    cap = cap / DEVICE_ALIGNMENT * DEVICE_ALIGNMENT;
    if (cap <= 0 || cap > available)
        return SW_FAIL(
            err, SW_E_FIT,
            "GPU %d (%s) has %.0f of %.0f MiB free, %.0f are wanted and %.0f for "
            "products; a lower devices.memory would help, or an end of what else runs there",
            device->ordinal, device->name, static_cast<double>(free_bytes) / mib,
            static_cast<double>(total_bytes) / mib, static_cast<double>(wanted_bytes) / mib,
            SW_CUDA_RANK_WORKSPACE_BYTES / mib);
    error = cudaMalloc(&device->arena, static_cast<size_t>(cap));
    if (error != cudaSuccess) {
        (void)cudaGetLastError();
        return SW_FAIL(err, SW_E_FIT,
                       "GPU %d (%s): %.0f MiB are free, but %.0f were not given: %s; a lower "
                       "devices.memory would help",
                       device->ordinal, device->name, static_cast<double>(free_bytes) / mib,
                       static_cast<double>(cap) / mib, cudaGetErrorString(error));
    }
    device->cap_bytes = cap;
    return SW_OK;
}

/* Of the driver in the kernel ("580.95.05"), as people know it; "" where it does not tell. */
static void driver_release(char *out, int out_bytes)
{
    FILE *file = fopen("/sys/module/nvidia/version", "re");
    out[0] = '\0';
    if (file == nullptr)
        return;
    if (fgets(out, out_bytes, file) == nullptr)
        out[0] = '\0';
    out[strcspn(out, "\n")] = '\0';
    fclose(file);
}

static sw_code describe_device(int physical_index, struct sw_device_info *out, struct sw_err *err)
{
    cudaDeviceProp properties;
    size_t free_bytes = 0, total_bytes = 0;
    int driver = 0;
    memset(out, 0, sizeof *out);
    cudaError_t error = cudaSetDevice(physical_index);
    if (error == cudaSuccess)
        error = cudaGetDeviceProperties(&properties, physical_index);
    if (error == cudaSuccess)
        error = cudaDeviceGetPCIBusId(out->bus_id, sizeof out->bus_id, physical_index);
    if (error == cudaSuccess)
        error = cudaMemGetInfo(&free_bytes, &total_bytes);
    if (error == cudaSuccess)
        error = cudaDriverGetVersion(&driver);
    if (error != cudaSuccess)
        return cuda_failed(err, error, "describing a GPU");
    snprintf(out->name, sizeof out->name, "%.240s (sm_%d%d)", properties.name, properties.major,
             properties.minor);
    char release[64];
    driver_release(release, static_cast<int>(sizeof release));
    snprintf(out->versions, sizeof out->versions, "driver %s%sserves CUDA %d.%d, built with %d.%d",
             release, release[0] != '\0' ? " " : "", driver / 1000, driver % 1000 / 10,
             CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    out->total_bytes = static_cast<int64_t>(total_bytes);
    out->free_bytes = static_cast<int64_t>(free_bytes) - SPARE_BYTES;
    out->extra_bytes = SW_CUDA_RANK_WORKSPACE_BYTES;
    return SW_OK;
}

static sw_code open_device(struct sw_device **out, const struct sw_device_config *config,
                           struct sw_err *err)
{
    struct sw_device *device = new (std::nothrow) sw_device();
    if (device == nullptr)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a device");
    device->ordinal = config->physical_index;
    sw_code code = describe(device, err);
    if (code == SW_OK) { /* threads that wait for the GPU sleep */
        cudaError_t error = cudaInitDevice(device->ordinal, cudaDeviceScheduleBlockingSync,
                                           cudaInitDeviceFlagsAreValid);
        if (error == cudaSuccess)
            error = cudaSetDevice(device->ordinal);
        if (error != cudaSuccess)
            code = cuda_failed(err, error, "starting the GPU");
    }
    if (code == SW_OK) {
        sw_cuda_reach_others(device->ordinal);
        device->gemm = sw_cuda_gemm_open(err);
        code = device->gemm != nullptr ? SW_OK : SW_E_DEVICE;
    }
    if (code == SW_OK)
        code = take_arena(device, config->memory_bytes, err);
    if (code != SW_OK) {
        close_device(device);
        return code;
    }
    *out = device;
    return SW_OK;
}

static sw_code alloc(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    sw_assert(bytes >= 0);
    std::lock_guard<std::mutex> guard(device->lock);
    int64_t left = device->cap_bytes - device->used_bytes;
    if (bytes > left || sw_cuda_align_up(bytes) > left)
        return SW_FAIL(err, SW_E_FIT,
                       "%lld bytes do not fit GPU %d (%s): %lld of %lld are in use; a higher "
                       "devices.memory would help",
                       static_cast<long long>(bytes), device->ordinal, device->name,
                       static_cast<long long>(device->used_bytes),
                       static_cast<long long>(device->cap_bytes));
    *out = device->arena + device->used_bytes;
    device->used_bytes += sw_cuda_align_up(bytes);
    return SW_OK;
}

static int64_t high_water_bytes(const struct sw_device *device)
{
    return device->used_bytes;
}

static sw_code host_alloc(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err)
{
    cudaError_t error = cudaSetDevice(device->ordinal);
    if (error != cudaSuccess)
        return cuda_failed(err, error, "choosing the GPU");
    return sw_cuda_pinned_alloc(bytes, out, err);
}

static void host_free(struct sw_device *device, void *memory, int64_t bytes)
{
    (void)cudaSetDevice(device->ordinal);
    sw_cuda_pinned_free(memory, bytes);
}

/* --- Events ------------------------------------------------------------------------------------*/

static sw_code event_open(struct sw_device *device, struct sw_event **out, struct sw_err *err)
{
    struct sw_event *event = new (std::nothrow) sw_event();
    if (event == nullptr)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for an event");
    event->device = device;
    cudaError_t error = cudaSetDevice(device->ordinal);
    if (error == cudaSuccess) /* a waiting thread sleeps */
        error =
            cudaEventCreateWithFlags(&event->event, cudaEventDisableTiming | cudaEventBlockingSync);
    if (error != cudaSuccess) {
        delete event;
        return cuda_failed(err, error, "making an event");
    }
    *out = event;
    return SW_OK;
}

static void event_close(struct sw_event *event)
{
    if (event == nullptr)
        return;
    (void)cudaSetDevice(event->device->ordinal);
    (void)cudaEventDestroy(event->event);
    delete event;
}

static void event_record(struct sw_event *event, struct sw_stream *stream)
{
    if (sw_cuda_begin(stream)) {
        (void)cudaEventRecord(event->event, sw_cuda_stream(stream));
        sw_cuda_end(stream, "recording an event");
    }
    std::lock_guard<std::mutex> guard(event->lock);
    event->error = stream->error;
}

static void event_wait(struct sw_event *event, struct sw_stream *stream)
{
    {
        std::lock_guard<std::mutex> guard(event->lock);
        if (event->error.code != SW_OK && stream->error.code == SW_OK)
            stream->error = event->error;
    }
    if (!sw_cuda_begin(stream))
        return;
    (void)cudaStreamWaitEvent(sw_cuda_stream(stream), event->event, 0);
    sw_cuda_end(stream, "waiting for an event");
}

static sw_code event_sync(struct sw_event *event, struct sw_err *err)
{
    {
        std::lock_guard<std::mutex> guard(event->lock);
        if (event->error.code != SW_OK) {
            if (err != nullptr && err->code == SW_OK)
                *err = event->error;
            return event->error.code;
        }
    }
    cudaError_t error = cudaSetDevice(event->device->ordinal);
    if (error == cudaSuccess)
        error = cudaEventSynchronize(event->event);
    return error == cudaSuccess ? SW_OK : cuda_failed(err, error, "running what was submitted");
}

static bool bus_id(int physical_index, char *out, int out_bytes)
{
    return cudaDeviceGetPCIBusId(out, out_bytes, physical_index) == cudaSuccess;
}

static const struct sw_device_ops ops = {
    .name = "cuda",
    .asynchronous = true,
    .kernels = &sw_cuda_kernels,
    .count = count_devices,
    .why_none = why_none,
    .describe = describe_device,
    .bus_id = bus_id,
    .reaches = sw_cuda_reaches,
    .comm = sw_cuda_comm,
    .open = open_device,
    .close = close_device,
    .alloc = alloc,
    .high_water_bytes = high_water_bytes,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .stream_open = stream_open,
    .stream_close = stream_close,
    .stream_sync = stream_sync,
    .copy = copy_memory,
    .zero = zero_memory,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
};

/* What the binary looks up in this module. Before any context is made, it asks for as many hardware
 * queues as there may be: streams that share one wait for each other. */
extern "C" __attribute__((visibility("default"))) const struct sw_device_ops *
sw_cuda_device_ops_get(void)
{
    (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
    return &ops;
}
