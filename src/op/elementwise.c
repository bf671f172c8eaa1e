#include "op/check.h"

static double bytes_of(pl_tensor t)
{
    return (double)pl_tensor_bytes(t);
}

int pl_fill(pl_run *run, pl_tensor y, float value)
{
    PL_TRY(pl_check_there(run, "fill: y", y, PL_EVERY));
    pl_count(run, 0, bytes_of(y));
    return run->device->ops->fill(run->device, run->err, y, value);
}

int pl_copy(pl_run *run, pl_tensor y, pl_tensor x)
{
    PL_TRY(pl_check_there(run, "copy: x", x, PL_EVERY));
    bool floats = PL_ANY_FLOAT >> x.dtype & 1;
    PL_TRY(pl_check_like(run, "copy: y", y, floats ? PL_ANY_FLOAT : pl_only(x.dtype), "x", x));
    pl_count(run, 0, bytes_of(y) + bytes_of(x));
    return run->device->ops->copy(run->device, run->err, y, x);
}

int pl_add(pl_run *run, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale)
{
    PL_TRY(pl_check_there(run, "add: y", y, PL_ANY));
    PL_TRY(pl_check_like(run, "add: b", b, PL_ANY, "y", y));
    if (!pl_tensor_none(a)) PL_TRY(pl_check_like(run, "add: a", a, PL_ANY, "y", y));
    pl_count(run, 2 * (double)pl_tensor_numel(y), bytes_of(y) + bytes_of(a) + bytes_of(b));
    return run->device->ops->add(run->device, run->err, y, a, b, b_scale);
}

int pl_scale_columns(pl_run *run, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend)
{
    PL_TRY(pl_check_matrix(run, "scale_columns: x", x, PL_ANY, -1, -1));
    PL_TRY(pl_check_matrix(run, "scale_columns: y", y, PL_ANY, x.shape[0], x.shape[1]));
    PL_TRY(pl_check_vector(run, "scale_columns: factor", factor, PL_ANY, x.shape[1]));
    if (!pl_tensor_none(addend)) PL_TRY(pl_check_vector(run, "scale_columns: addend", addend, PL_ANY, x.shape[1]));
    pl_count(run, 2 * (double)pl_tensor_numel(x), bytes_of(y) + bytes_of(x) + bytes_of(factor) + bytes_of(addend));
    return run->device->ops->scale_columns(run->device, run->err, y, x, factor, addend);
}
