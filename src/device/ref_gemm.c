#include "device/ref.h"

int pl_ref_gemm(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "gemm is not there yet");
}
