/* What every computation carries: where it runs, where its memory comes from, what it has cost, and its first error. */
#ifndef PL_OP_RUN_H
#define PL_OP_RUN_H

#include "base/log.h"
#include "device/device.h"
#include "mem/mem.h"

/* A multiply and an add are two FLOPs. Bytes are what an operator must read and write at least. */
typedef struct pl_counters {
    double gemm_flops, attention_flops, other_flops;
    double bytes;
    int64_t calls;
} pl_counters;

typedef struct pl_run {
    pl_error *err;
    const pl_log *log;
    pl_device *device;
    pl_mem *mem;
    pl_stack *work; /* scratch: popped by whoever pushed, before it returns */
    pl_counters counters;
    int (*meanwhile)(void *user); /* operators that take long call it before they begin: what goes on beside the
                                     computing needs the thread now and then. NULL: nothing does */
    void *meanwhile_user;
} pl_run;

static inline int pl_run_meanwhile(pl_run *run)
{
    return run->meanwhile ? run->meanwhile(run->meanwhile_user) : 0;
}

#endif
