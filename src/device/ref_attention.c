#include "device/ref.h"

int pl_ref_attention(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "attention is not there yet");
}

int pl_ref_attention_backward(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "attention_backward is not there yet");
}
