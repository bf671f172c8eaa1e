#include "op/check.h"

int pl_dropout(pl_run *run, pl_dropout_args a)
{
    PL_TRY(pl_check_matrix(run, "dropout: x", a.x, PL_ANY, -1, -1));
    PL_TRY(pl_check_matrix(run, "dropout: y", a.y, PL_ANY, a.x.shape[0], a.x.shape[1]));
    PL_TRY(pl_check_that(run, a.p >= 0 && a.p < 1, "dropout's p is in [0, 1)"));
    double n = (double)pl_tensor_numel(a.x);
    pl_count(run, 2 * n, (double)pl_tensor_bytes(a.x) + (a.accumulate ? 2 : 1) * (double)pl_tensor_bytes(a.y));
    return run->device->ops->dropout(run->device, run->err, &a);
}
