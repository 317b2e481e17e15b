/* Faults for tests: one object counts the calls of all queues it is given to. */
#include "io/aio_method.h"

#include "base/mem.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>

struct sw_aio_fault {
    enum sw_aio_fault_kind kind;
    int64_t position;
    bool stays;
    atomic_llong count;
    atomic_llong counts[SW_AIO_CALLS];
};

sw_code sw_aio_fault_open(struct sw_aio_fault **out, enum sw_aio_fault_kind kind, int64_t position,
                          struct sw_err *err)
{
    struct sw_aio_fault *fault = sw_calloc(1, sizeof *fault);
    if (fault == NULL)
        return SW_FAIL(err, SW_E_MEMORY, "no memory for a fault");
    fault->kind = kind;
    fault->position = position;
    *out = fault;
    return SW_OK;
}

void sw_aio_fault_stay(struct sw_aio_fault *fault)
{
    fault->stays = true;
}

void sw_aio_fault_close(struct sw_aio_fault *fault)
{
    free(fault);
}

int64_t sw_aio_fault_count(const struct sw_aio_fault *fault)
{
    return atomic_load(&fault->count);
}

int64_t sw_aio_fault_count_of(const struct sw_aio_fault *fault, enum sw_aio_call call)
{
    return atomic_load(&fault->counts[call]);
}

/* Counts a call; the kind of fault it shall have. */
static enum sw_aio_fault_kind count_call(struct sw_aio_fault *fault, enum sw_aio_call call)
{
    if (fault == NULL)
        return SW_AIO_FAULT_NONE;
    atomic_fetch_add(&fault->counts[call], 1);
    int64_t at = atomic_fetch_add(&fault->count, 1) + 1;
    bool hit = at == fault->position || (fault->stays && at > fault->position);
    return hit ? fault->kind : SW_AIO_FAULT_NONE;
}

static int errno_of(enum sw_aio_fault_kind kind)
{
    switch (kind) {
    case SW_AIO_FAULT_NONE:
        break;
    case SW_AIO_FAULT_EAGAIN:
        return EAGAIN;
    case SW_AIO_FAULT_EINTR:
    case SW_AIO_FAULT_SHORT:
        return EINTR;
    case SW_AIO_FAULT_EIO:
        return EIO;
    case SW_AIO_FAULT_ENOSPC:
        return ENOSPC;
    }
    return 0;
}

int sw_aio_fault_check(struct sw_aio_fault *fault, enum sw_aio_call call)
{
    return errno_of(count_call(fault, call));
}

int sw_aio_fault_transfer(struct sw_aio_fault *fault, bool write, int64_t *bytes)
{
    enum sw_aio_fault_kind kind = count_call(fault, write ? SW_AIO_CALL_WRITE : SW_AIO_CALL_READ);
    if (kind != SW_AIO_FAULT_SHORT)
        return errno_of(kind);
    /* Half of it; of what is aligned an aligned half, as a drive would. */
    int64_t half = *bytes / 2;
    if (*bytes % SW_AIO_ALIGNMENT_BYTES == 0)
        half &= ~(int64_t)(SW_AIO_ALIGNMENT_BYTES - 1);
    if (half == 0)
        return EINTR;
    *bytes = half;
    return 0;
}
