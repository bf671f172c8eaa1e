#include <math.h>

#include "device/ref.h"

int pl_ref_column_sums(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch)
{
    (void)scratch;
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t j = 0; j < x.shape[1]; j++) {
        double sum = pl_ref_get1(out, j);
        for (int64_t i = 0; i < x.shape[0]; i++) {
            sum += pl_ref_get(x, i, j) * (pl_tensor_none(y) ? 1 : pl_ref_get(y, i, j));
        }
        pl_ref_set1(out, j, sum);
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_row_dots(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t r = 0; r < out.shape[0]; r++) {
        double sum = 0;
        for (int64_t k = 0; k < a.shape[transposed ? 0 : 1]; k++) {
            int64_t i = transposed ? k : r, j = transposed ? r : k;
            sum += pl_ref_get(a, i, j) * pl_ref_get(b, i, j);
        }
        pl_ref_set1(out, r, sum);
    }
    pl_ref_end(device);
    return 0;
}

/* The sum over all elements of value(element). */
static double total(pl_tensor x, double (*value)(double))
{
    int64_t columns = x.shape[0] ? pl_tensor_numel(x) / x.shape[0] : 0;
    double sum = 0;
    for (int64_t i = 0; i < x.shape[0]; i++) {
        for (int64_t j = 0; j < columns; j++) sum += value(pl_ref_get(x, i, j));
    }
    return sum;
}

static double same(double x)
{
    return x;
}

static double square(double x)
{
    return x * x;
}

static double nonfinite(double x)
{
    return !isfinite(x);
}

int pl_ref_sum_squares(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    *out = total(x, square);
    pl_ref_end(device);
    return 0;
}

int pl_ref_sum(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    *out = total(x, same);
    pl_ref_end(device);
    return 0;
}

int pl_ref_count_nonfinite(pl_device *device, pl_error *err, int64_t *out, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    *out = (int64_t)total(x, nonfinite);
    pl_ref_end(device);
    return 0;
}
