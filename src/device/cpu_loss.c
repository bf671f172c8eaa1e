#include "device/cpu.h"

int PL_CPU(loss)(pl_device *device, pl_error *err, const pl_loss_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "loss is not there yet");
}
