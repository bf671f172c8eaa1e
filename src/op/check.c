#include "op/check.h"

int pl_check_there(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes)
{
    if (pl_tensor_none(t)) return PL_FAIL(run->err, PL_EBUG, "%s is missing", operand);
    if (dtypes >> t.dtype & 1) return 0;
    char text[96];
    return PL_FAIL(
        run->err, PL_EBUG, "%s is %s, whose type is not allowed there", operand, pl_tensor_describe(t, text));
}

int pl_check_vector(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, int64_t n)
{
    PL_TRY(pl_check_there(run, operand, t, dtypes));
    if (t.ndim == 1 && t.stride == 1 && (n < 0 || t.shape[0] == n)) return 0;
    char text[96];
    return PL_FAIL(run->err, PL_EBUG, "%s is %s; [%lld] was expected (-1: any)", operand, pl_tensor_describe(t, text),
        (long long)n);
}

int pl_check_matrix(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, int64_t rows, int64_t columns)
{
    PL_TRY(pl_check_there(run, operand, t, dtypes));
    bool fits = t.ndim == 2 && (rows < 0 || t.shape[0] == rows) && (columns < 0 || t.shape[1] == columns) &&
                (t.stride >= t.shape[1] || t.shape[0] <= 1);
    if (fits) return 0;
    char text[96];
    return PL_FAIL(run->err, PL_EBUG, "%s is %s with a stride of %lld; [%lld, %lld] was expected (-1: any)", operand,
        pl_tensor_describe(t, text), (long long)t.stride, (long long)rows, (long long)columns);
}

int pl_check_like(pl_run *run, const char *operand, pl_tensor t, unsigned dtypes, const char *model, pl_tensor like)
{
    PL_TRY(pl_check_there(run, operand, t, dtypes));
    if (pl_tensor_same_shape(t, like)) return 0;
    char text[96], other[96];
    return PL_FAIL(run->err, PL_EBUG, "%s is %s, but %s is %s", operand, pl_tensor_describe(t, text), model,
        pl_tensor_describe(like, other));
}

int pl_check_that(pl_run *run, bool holds, const char *what)
{
    return holds ? 0 : PL_FAIL(run->err, PL_EBUG, "this does not hold: %s", what);
}

void pl_count(pl_run *run, double flops, double bytes)
{
    run->counters.other_flops += flops;
    run->counters.bytes += bytes;
    run->counters.calls++;
}
