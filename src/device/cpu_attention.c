#include "device/cpu.h"

int PL_CPU(attention)(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "attention is not there yet");
}

int64_t PL_CPU(attention_scratch)(pl_device *device, const pl_attention_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

int PL_CPU(attention_backward)(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "attention_backward is not there yet");
}

int64_t PL_CPU(attention_backward_scratch)(pl_device *device, const pl_attention_backward_args *args)
{
    (void)device;
    (void)args;
    return 0;
}
