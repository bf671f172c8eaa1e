#include "device/ref.h"

#include <math.h>

int pl_ref_divide(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < y.shape[0]; i++) pl_ref_set1(y, i, pl_ref_get1(a, i) / pl_ref_get1(b, i));
    pl_ref_end(device);
    return 0;
}

int pl_ref_root(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < y.shape[0]; i++) pl_ref_set1(y, i, sqrt(pl_ref_get1(x, i)));
    pl_ref_end(device);
    return 0;
}

int pl_ref_soften(pl_device *device, pl_error *err, pl_tensor y, float scale, float softcap)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t t = 0; t < y.shape[0]; t++) {
        for (int64_t i = 0; i < y.shape[1]; i++) {
            double z = (double)scale * pl_ref_get(y, t, i);
            pl_ref_set(y, t, i, softcap > 0 ? softcap * tanh(z / softcap) : z);
        }
    }
    pl_ref_end(device);
    return 0;
}
