#include "op/check.h"

/* An exponential, a division and a handful of products. */
#define ACT_FLOPS 20

int pl_activation(pl_run *run, pl_act_args a)
{
    PL_TRY(pl_check_matrix(run, "act: x", a.x, PL_ANY, -1, -1));
    PL_TRY(pl_check_like(run, "act: y", a.y, pl_only(a.x.dtype), "x", a.x));
    if (!pl_tensor_none(a.up)) PL_TRY(pl_check_like(run, "act: up", a.up, pl_only(a.x.dtype), "x", a.x));
    PL_TRY(pl_check_that(run, (int)a.act >= 0 && a.act < PL_ACT_COUNT, "act is one of pl_act"));
    pl_count(run, ACT_FLOPS * (double)pl_tensor_numel(a.x),
        (double)(pl_tensor_bytes(a.x) + pl_tensor_bytes(a.y) + pl_tensor_bytes(a.up)));
    return run->device->ops->act(run->device, run->err, &a);
}

int pl_activation_backward(pl_run *run, pl_act_backward_args a)
{
    PL_TRY(pl_check_matrix(run, "act_backward: x", a.x, PL_ANY, -1, -1));
    unsigned dtype = pl_only(a.x.dtype);
    PL_TRY(pl_check_like(run, "act_backward: dy", a.dy, dtype, "x", a.x));
    PL_TRY(pl_check_like(run, "act_backward: dx", a.dx, dtype, "x", a.x));
    PL_TRY(
        pl_check_that(run, pl_tensor_none(a.up) == pl_tensor_none(a.dup), "act_backward has both up and dup, or none"));
    if (!pl_tensor_none(a.up)) {
        PL_TRY(pl_check_like(run, "act_backward: up", a.up, dtype, "x", a.x));
        PL_TRY(pl_check_like(run, "act_backward: dup", a.dup, dtype, "x", a.x));
    }
    if (!pl_tensor_none(a.y)) PL_TRY(pl_check_like(run, "act_backward: y", a.y, dtype, "x", a.x));
    PL_TRY(pl_check_that(run, (int)a.act >= 0 && a.act < PL_ACT_COUNT, "act is one of pl_act"));
    pl_count(run, 2 * ACT_FLOPS * (double)pl_tensor_numel(a.x),
        (double)(pl_tensor_bytes(a.x) + pl_tensor_bytes(a.dx) + pl_tensor_bytes(a.dy) + pl_tensor_bytes(a.up) +
                 pl_tensor_bytes(a.dup) + pl_tensor_bytes(a.y)));
    return run->device->ops->act_backward(run->device, run->err, &a);
}
