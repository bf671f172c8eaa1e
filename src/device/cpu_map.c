/* Small maps of f32: quotients and roots for DoRA's norms, and the softening of logits in inference. */
#include "device/kernel.h"

#include <math.h>

int PL_CPU(divide)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b)
{
    (void)device;
    (void)err;
    float *to = y.data;
    const float *above = a.data, *below = b.data;
    for (int64_t i = 0; i < y.shape[0]; i++) to[i] = above[i] / below[i];
    return 0;
}

int PL_CPU(root)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    (void)device;
    (void)err;
    float *to = y.data;
    const float *from = x.data;
    for (int64_t i = 0; i < y.shape[0]; i++) to[i] = sqrtf(from[i]);
    return 0;
}

int PL_CPU(soften)(pl_device *device, pl_error *err, pl_tensor y, float scale, float softcap)
{
    (void)err;
    int team = pl_team(device, pl_tensor_bytes(y));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < y.shape[0]; t++) {
        float *row = (float *)y.data + t * y.stride;
        for (int64_t i = 0; i < y.shape[1]; i++) {
            float z = scale * row[i];
            row[i] = softcap > 0 ? softcap * tanhf(z / softcap) : z;
        }
    }
    return 0;
}
