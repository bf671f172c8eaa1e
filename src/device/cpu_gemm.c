#include "device/cpu.h"

int PL_CPU(gemm)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "gemm is not there yet");
}

int64_t PL_CPU(gemm_scratch)(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "gemm_scratch is not there yet");
}
