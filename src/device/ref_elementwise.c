#include "device/ref.h"

/* Any tensor as a matrix of its first dimension by all others. */
static pl_tensor matrix(pl_tensor t)
{
    int64_t rows = t.shape[0], columns = rows ? pl_tensor_numel(t) / rows : 0;
    t.ndim = 2;
    t.shape[1] = columns;
    return t;
}

int pl_ref_fill(pl_device *device, pl_error *err, pl_tensor y, float value)
{
    PL_TRY(pl_ref_begin(device, err));
    y = matrix(y);
    for (int64_t i = 0; i < y.shape[0]; i++) {
        for (int64_t j = 0; j < y.shape[1]; j++) pl_ref_set(y, i, j, value);
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_copy(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    y = matrix(y);
    x = matrix(x);
    for (int64_t i = 0; i < y.shape[0]; i++) {
        for (int64_t j = 0; j < y.shape[1]; j++) pl_ref_set(y, i, j, pl_ref_get(x, i, j));
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_add(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale)
{
    PL_TRY(pl_ref_begin(device, err));
    bool has_a = !pl_tensor_none(a);
    y = matrix(y);
    b = matrix(b);
    if (has_a) a = matrix(a);
    for (int64_t i = 0; i < y.shape[0]; i++) {
        for (int64_t j = 0; j < y.shape[1]; j++) {
            double sum = (double)b_scale * pl_ref_get(b, i, j);
            if (has_a) sum += pl_ref_get(a, i, j);
            pl_ref_set(y, i, j, sum);
        }
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_scale_columns(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < y.shape[0]; i++) {
        for (int64_t j = 0; j < y.shape[1]; j++) {
            double value = pl_ref_get(x, i, j) * pl_ref_get1(factor, j);
            if (!pl_tensor_none(addend)) value += pl_ref_get1(addend, j);
            pl_ref_set(y, i, j, value);
        }
    }
    pl_ref_end(device);
    return 0;
}
