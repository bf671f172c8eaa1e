#include "op/check.h"

int pl_column_sums(pl_run *run, pl_tensor out, pl_tensor x, pl_tensor y)
{
    PL_TRY(pl_check_matrix(run, "column_sums: x", x, PL_ANY, -1, -1));
    PL_TRY(pl_check_vector(run, "column_sums: out", out, PL_ONLY_F32, x.shape[1]));
    if (!pl_tensor_none(y)) PL_TRY(pl_check_matrix(run, "column_sums: y", y, PL_ANY, x.shape[0], x.shape[1]));
    pl_device *device = run->device;
    int64_t mark = pl_stack_mark(run->work);
    void *scratch;
    PL_TRY(pl_stack_push_bytes(run->err, run->work, device->ops->column_sums_scratch(device, x), &scratch));
    pl_count(run, (pl_tensor_none(y) ? 1 : 2) * (double)pl_tensor_numel(x),
        (double)(pl_tensor_bytes(x) + pl_tensor_bytes(y) + 2 * pl_tensor_bytes(out)));
    int rc = device->ops->column_sums(device, run->err, out, x, y, scratch);
    pl_stack_pop(run->work, mark);
    return rc;
}

int pl_row_dots(pl_run *run, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed)
{
    PL_TRY(pl_check_matrix(run, "row_dots: a", a, PL_ANY, -1, -1));
    PL_TRY(pl_check_matrix(run, "row_dots: b", b, PL_ANY, a.shape[0], a.shape[1]));
    PL_TRY(pl_check_vector(run, "row_dots: out", out, PL_ONLY_F32, a.shape[transposed ? 1 : 0]));
    int64_t second = a.data && a.data == b.data ? 0 : pl_tensor_bytes(b);
    pl_count(run, 2 * (double)pl_tensor_numel(a), (double)(pl_tensor_bytes(a) + second + pl_tensor_bytes(out)));
    return run->device->ops->row_dots(run->device, run->err, out, a, b, transposed);
}

int pl_sum_squares(pl_run *run, double *out, pl_tensor x)
{
    PL_TRY(pl_check_there(run, "sum_squares: x", x, PL_ANY));
    pl_count(run, 2 * (double)pl_tensor_numel(x), (double)pl_tensor_bytes(x));
    return run->device->ops->sum_squares(run->device, run->err, out, x);
}

int pl_sum(pl_run *run, double *out, pl_tensor x)
{
    PL_TRY(pl_check_there(run, "sum: x", x, PL_ANY));
    pl_count(run, (double)pl_tensor_numel(x), (double)pl_tensor_bytes(x));
    return run->device->ops->sum(run->device, run->err, out, x);
}

int pl_count_nonfinite(pl_run *run, int64_t *out, pl_tensor x)
{
    PL_TRY(pl_check_there(run, "count_nonfinite: x", x, PL_ANY));
    pl_count(run, 0, (double)pl_tensor_bytes(x));
    return run->device->ops->count_nonfinite(run->device, run->err, out, x);
}
