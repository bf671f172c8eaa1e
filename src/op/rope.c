#include "op/check.h"

int pl_rope(pl_run *run, pl_rope_args a)
{
    PL_TRY(pl_check_matrix(run, "rope: x", a.x.t, PL_ANY, -1, -1));
    PL_TRY(pl_check_matrix(run, "rope: cos", a.cos, PL_ONLY_F32, -1, -1));
    PL_TRY(pl_check_matrix(run, "rope: sin", a.sin, PL_ONLY_F32, a.cos.shape[0], a.cos.shape[1]));
    PL_TRY(pl_check_vector(run, "rope: positions", a.positions, PL_ONLY_I32, a.x.t.shape[0]));
    PL_TRY(pl_check_that(run, 2 * a.cos.shape[1] <= a.x.head_dim, "rope turns at most head_dim dims"));
    PL_TRY(pl_check_that(run, a.x.heads > 0 && a.x.stride >= a.x.head_dim, "heads lie apart"));
    PL_TRY(pl_check_that(run, (a.x.heads - 1) * a.x.stride + a.x.head_dim <= a.x.t.stride || a.x.t.shape[0] <= 1,
        "a row's heads end within the row"));
    double pairs = (double)a.x.t.shape[0] * a.x.heads * (double)a.cos.shape[1];
    pl_count(run, 6 * pairs, 4 * pairs * pl_dtype_size(a.x.t.dtype));
    return run->device->ops->rope(run->device, run->err, &a);
}
