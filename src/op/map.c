#include "op/check.h"

int pl_divide(pl_run *run, pl_tensor y, pl_tensor a, pl_tensor b)
{
    PL_TRY(pl_check_vector(run, "divide: y", y, PL_ONLY_F32, -1));
    PL_TRY(pl_check_vector(run, "divide: a", a, PL_ONLY_F32, y.shape[0]));
    PL_TRY(pl_check_vector(run, "divide: b", b, PL_ONLY_F32, y.shape[0]));
    pl_count(run, (double)y.shape[0], 12 * (double)y.shape[0]);
    return run->device->ops->divide(run->device, run->err, y, a, b);
}

int pl_root(pl_run *run, pl_tensor y, pl_tensor x)
{
    PL_TRY(pl_check_vector(run, "root: y", y, PL_ONLY_F32, -1));
    PL_TRY(pl_check_vector(run, "root: x", x, PL_ONLY_F32, y.shape[0]));
    pl_count(run, (double)y.shape[0], 8 * (double)y.shape[0]);
    return run->device->ops->root(run->device, run->err, y, x);
}

int pl_soften(pl_run *run, pl_tensor y, float scale, float softcap)
{
    PL_TRY(pl_check_matrix(run, "soften: y", y, PL_ONLY_F32, -1, -1));
    if (scale == 1 && softcap <= 0) return 0;
    pl_count(run, 2 * (double)pl_tensor_numel(y), 2 * (double)pl_tensor_bytes(y));
    return run->device->ops->soften(run->device, run->err, y, scale, softcap);
}
