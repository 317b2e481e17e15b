/* A (virtual) device: capped memory, streams, events, copies. Implemented by kernels/cpu (an arena
 * with a cap; every call is done when it returns) and by kernels/cuda (a loadable module).
 *
 * A stream carries its first failure: once one is recorded, later calls on it do nothing, and
 * sw_stream_check() returns it. So kernels return void and a sequence of them needs one check. A
 * device failure is never retried: the run drains and stops. */
#ifndef SPILLWAY_KERNELS_DEVICE_H
#define SPILLWAY_KERNELS_DEVICE_H

#include "base/err.h"
#include "base/pool.h"

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct sw_device;
struct sw_event;
struct sw_kernels;
struct sw_comm_ops;

enum sw_stream_kind {
    SW_STREAM_COMPUTE,
    SW_STREAM_H2D,
    SW_STREAM_D2H,
    SW_STREAM_SEND,
    SW_STREAM_RECV,
    SW_STREAM_COLLECTIVE,
    SW_STREAM_OPTIMIZER, /* steps and norms, beside what computes */
    SW_STREAM_KINDS
};

/* Common head of every back end's stream; back ends embed it first. */
struct sw_stream {
    struct sw_device *device;
    enum sw_stream_kind kind;
    struct sw_err error; /* first failure on this stream */
};

struct sw_device_config {
    int physical_index;   /* which GPU; ignored by the CPU */
    int64_t memory_bytes; /* cap of this rank; 0: what is free */
    struct sw_pool *pool; /* borrowed; the CPU back end computes on it */
};

/* What a physical device is, and what a rank may have of it. */
struct sw_device_info {
    char name[256];
    char bus_id[32];     /* "0000:3b:00.0" */
    char versions[128];  /* of the driver and the toolkit, for people */
    int64_t total_bytes; /* of its memory */
    int64_t free_bytes;  /* for ranks' caps, now: what a context will want is left out */
    int64_t extra_bytes; /* that a rank takes beside its cap */
};

/* Copies know their direction from the stream kind; host memory given to an asynchronous copy must
 * be pinned (from host_alloc). */
struct sw_device_ops {
    const char *name;  /* "cpu", "cuda" */
    bool asynchronous; /* calls return before the work is done */
    const struct sw_kernels *kernels;

    /* Number of physical devices that can be used; 1 for the CPU. */
    sw_code (*count)(int *out, struct sw_err *err);
    /* After a count of 0: the reason, in a few words. NULL where there always is a device. */
    const char *(*why_none)(void);
    /* NULL where there is nothing to tell (the CPU). */
    sw_code (*describe)(int physical_index, struct sw_device_info *out, struct sw_err *err);
    /* PCI bus id of a physical device ("0000:3b:00.0"); false where it is not known. NULL where a
     * device has none. */
    bool (*bus_id)(int physical_index, char *out, int out_bytes);
    /* Whether two physical devices reach each other's memory directly: tried once, with a copy each
     * way that must arrive whole, and switched on where it works. NULL where all memory is one. */
    bool (*reaches)(int one, int other);
    /* How groups of ranks that have a device each communicate (kernels/comm.h); NULL with the
     * reason, in a few words, where they copy and add like any others. The member is NULL where
     * nothing else is needed. */
    const struct sw_comm_ops *(*comm)(const char **why);
    sw_code (*open)(struct sw_device **out, const struct sw_device_config *config,
                    struct sw_err *err);
    void (*close)(struct sw_device *device);

    /* `bytes` of device memory aligned to 256, freed by close. SW_E_FIT when the cap is passed. */
    sw_code (*alloc)(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err);
    /* Highest sum of bytes allocated so far. */
    int64_t (*high_water_bytes)(const struct sw_device *device);
    /* Pinned host memory that copies of this back end may use. */
    sw_code (*host_alloc)(struct sw_device *device, int64_t bytes, void **out, struct sw_err *err);
    void (*host_free)(struct sw_device *device, void *memory, int64_t bytes);

    sw_code (*stream_open)(struct sw_device *device, enum sw_stream_kind kind,
                           struct sw_stream **out, struct sw_err *err);
    void (*stream_close)(struct sw_stream *stream);
    /* Wait until everything submitted is done; returns the stream's failure if it has one. */
    sw_code (*stream_sync)(struct sw_stream *stream, struct sw_err *err);
    void (*copy)(struct sw_stream *stream, void *destination, const void *source, int64_t bytes);
    void (*zero)(struct sw_stream *stream, void *destination, int64_t bytes);

    sw_code (*event_open)(struct sw_device *device, struct sw_event **out, struct sw_err *err);
    void (*event_close)(struct sw_event *event);
    void (*event_record)(struct sw_event *event, struct sw_stream *stream);
    /* Later work on `stream` waits for the event. */
    void (*event_wait)(struct sw_event *event, struct sw_stream *stream);
    /* The calling thread waits for the event. */
    sw_code (*event_sync)(struct sw_event *event, struct sw_err *err);
};

/* The CPU back end. */
extern const struct sw_device_ops sw_cpu_device_ops;

/* The stream's first failure copied to `err`, or SW_OK. Does not wait. */
sw_code sw_stream_check(const struct sw_stream *stream, struct sw_err *err) SW_WARN_UNUSED;

#ifdef __cplusplus
}
#endif
#endif
