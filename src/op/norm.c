#include "op/check.h"

/* The length of a group of neighbours: the weight's, or `size` without one. */
static int check_size(pl_run *run, pl_tensor x, pl_tensor weight, int64_t size, int64_t *groups, int64_t *out)
{
    PL_TRY(pl_check_matrix(run, "norm: x", x, PL_ANY, -1, -1));
    if (!pl_tensor_none(weight)) PL_TRY(pl_check_vector(run, "norm: weight", weight, PL_ANY, -1));
    *out = pl_tensor_none(weight) ? size : weight.shape[0];
    PL_TRY(pl_check_that(run, *out > 0 && x.shape[1] % *out == 0, "a norm's size divides the columns of x"));
    *groups = x.shape[1] / *out;
    return 0;
}

int pl_norm(pl_run *run, pl_norm_args a)
{
    int64_t size, groups;
    PL_TRY(check_size(run, a.x, a.weight, a.size, &groups, &size));
    int64_t rows = a.x.shape[0];
    PL_TRY(pl_check_like(run, "norm: y", a.y, pl_only(a.x.dtype), "x", a.x));
    PL_TRY(pl_check_vector(run, "norm: inv", a.inv, PL_ONLY_F32, rows * groups));
    if (!pl_tensor_none(a.mean)) PL_TRY(pl_check_vector(run, "norm: mean", a.mean, PL_ONLY_F32, rows * groups));
    if (!pl_tensor_none(a.bias)) PL_TRY(pl_check_vector(run, "norm: bias", a.bias, PL_ANY, size));
    int64_t passes = 2;
    if (!pl_tensor_none(a.residual)) {
        PL_TRY(pl_check_like(run, "norm: residual", a.residual, PL_ANY, "x", a.x));
        PL_TRY(pl_check_that(run, !a.y.data || a.y.data != a.x.data, "y of a norm with a residual is not x"));
        passes = 3;
    }
    pl_count(run, (pl_tensor_none(a.mean) ? 4 : 7) * (double)pl_tensor_numel(a.x),
        (double)(passes * pl_tensor_bytes(a.x) + pl_tensor_bytes(a.residual) + pl_tensor_bytes(a.inv) +
                 pl_tensor_bytes(a.mean) + pl_tensor_bytes(a.weight) + pl_tensor_bytes(a.bias)));
    return run->device->ops->norm(run->device, run->err, &a);
}

int pl_norm_backward(pl_run *run, pl_norm_backward_args a)
{
    int64_t size, groups;
    PL_TRY(check_size(run, a.x, a.weight, a.size, &groups, &size));
    int64_t rows = a.x.shape[0];
    PL_TRY(pl_check_like(run, "norm_backward: dy", a.dy, pl_only(a.x.dtype), "x", a.x));
    PL_TRY(pl_check_like(run, "norm_backward: dx", a.dx, pl_only(a.x.dtype), "x", a.x));
    PL_TRY(pl_check_vector(run, "norm_backward: inv", a.inv, PL_ONLY_F32, rows * groups));
    if (!pl_tensor_none(a.mean))
        PL_TRY(pl_check_vector(run, "norm_backward: mean", a.mean, PL_ONLY_F32, rows * groups));
    if (!pl_tensor_none(a.dweight))
        PL_TRY(pl_check_vector(run, "norm_backward: dweight", a.dweight, PL_ONLY_F32, size));
    if (!pl_tensor_none(a.dbias)) PL_TRY(pl_check_vector(run, "norm_backward: dbias", a.dbias, PL_ONLY_F32, size));
    PL_TRY(pl_check_that(run, !a.accumulate || !a.dx.data || a.dx.data != a.dy.data,
        "dx of a norm's backward that accumulates is not dy"));
    pl_device *device = run->device;
    int64_t mark = pl_stack_mark(run->work);
    void *scratch;
    PL_TRY(pl_stack_push_bytes(run->err, run->work, device->ops->norm_backward_scratch(device, &a), &scratch));
    pl_count(run, 12 * (double)pl_tensor_numel(a.x),
        (double)((a.accumulate ? 4 : 3) * pl_tensor_bytes(a.x) + pl_tensor_bytes(a.inv) + pl_tensor_bytes(a.mean) +
                 2 * pl_tensor_bytes(a.dweight) + 2 * pl_tensor_bytes(a.dbias)));
    int rc = device->ops->norm_backward(device, run->err, &a, scratch);
    pl_stack_pop(run->work, mark);
    return rc;
}
