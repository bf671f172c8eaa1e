#include "tensor/tensor.h"

#include <stdio.h>
#include <string.h>

static const char *const names[PL_DTYPE_COUNT] = {
    [PL_F32] = "f32",
    [PL_BF16] = "bf16",
    [PL_F16] = "f16",
    [PL_I32] = "i32",
    [PL_I16] = "i16",
    [PL_U8] = "u8",
};

const char *pl_dtype_name(pl_dtype dtype)
{
    return names[dtype];
}

pl_tensor pl_tensor_nd(void *data, pl_dtype dtype, int ndim, const int64_t *shape)
{
    pl_tensor t = {.data = data, .dtype = dtype, .ndim = ndim, .stride = 1};
    for (int d = 0; d < ndim; d++) t.shape[d] = shape[d];
    for (int d = 1; d < ndim; d++) t.stride *= shape[d];
    return t;
}

pl_tensor pl_tensor_1d(void *data, pl_dtype dtype, int64_t n)
{
    return pl_tensor_nd(data, dtype, 1, &n);
}

pl_tensor pl_tensor_2d(void *data, pl_dtype dtype, int64_t rows, int64_t columns)
{
    return pl_tensor_nd(data, dtype, 2, (int64_t[]){rows, columns});
}

static void *advance(pl_tensor t, int64_t elements)
{
    return t.data ? (char *)t.data + elements * pl_dtype_size(t.dtype) : NULL;
}

pl_tensor pl_tensor_columns(pl_tensor t, int64_t from, int64_t n)
{
    t.data = advance(t, from);
    t.shape[1] = n;
    return t;
}

pl_tensor pl_tensor_rows(pl_tensor t, int64_t from, int64_t n)
{
    t.data = advance(t, from * t.stride);
    t.shape[0] = n;
    return t;
}

int64_t pl_tensor_numel(pl_tensor t)
{
    int64_t n = t.ndim ? 1 : 0;
    for (int d = 0; d < t.ndim; d++) n *= t.shape[d];
    return n;
}

int64_t pl_tensor_bytes(pl_tensor t)
{
    return pl_tensor_numel(t) * pl_dtype_size(t.dtype);
}

bool pl_tensor_contiguous(pl_tensor t)
{
    int64_t row = 1;
    for (int d = 1; d < t.ndim; d++) row *= t.shape[d];
    return t.ndim == 0 || t.shape[0] <= 1 || t.stride == row;
}

bool pl_tensor_same_shape(pl_tensor a, pl_tensor b)
{
    return a.ndim == b.ndim && memcmp(a.shape, b.shape, (size_t)a.ndim * sizeof a.shape[0]) == 0;
}

const char *pl_tensor_describe(pl_tensor t, char text[96])
{
    int n = snprintf(text, 96, "[");
    for (int d = 0; d < t.ndim; d++) {
        n += snprintf(text + n, (size_t)(96 - n), "%s%lld", d ? ", " : "", (long long)t.shape[d]);
    }
    snprintf(text + n, (size_t)(96 - n), "] %s", pl_dtype_name(t.dtype));
    return text;
}
