#include "device/ref.h"

int pl_ref_loss(pl_device *device, pl_error *err, const pl_loss_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "loss is not there yet");
}
