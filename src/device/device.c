#include "device/device.h"

void pl_device_close(pl_device *device)
{
    if (device) device->ops->destroy(device);
}
