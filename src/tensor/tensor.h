/* Element types, and views of memory. A view owns nothing: it is passed by value and outlived by what it looks at. */
#ifndef PL_TENSOR_TENSOR_H
#define PL_TENSOR_TENSOR_H

#include <stdint.h>

#include "base/error.h"
#include "tensor/half.h"

typedef enum pl_dtype { PL_F32, PL_BF16, PL_F16, PL_I32, PL_I16, PL_U8, PL_DTYPE_COUNT } pl_dtype;

const char *pl_dtype_name(pl_dtype dtype); /* "f32", "bf16", ... */

/* Bytes an element. */
static inline int pl_dtype_size(pl_dtype dtype)
{
    if (dtype == PL_F32 || dtype == PL_I32) return 4;
    return dtype == PL_U8 ? 1 : 2;
}

#define PL_MAX_DIMS 4

/* Row-major. A matrix may be a block of columns of a wider one: `stride` is the distance, in elements, between rows
   (steps of the first dimension); within a row everything is contiguous. For one dimension stride is 1.
   `data` belongs to a device: only that device's operators may touch what it points to. */
typedef struct pl_tensor {
    void *data;
    pl_dtype dtype;
    int ndim;
    int64_t shape[PL_MAX_DIMS];
    int64_t stride;
} pl_tensor;

pl_tensor pl_tensor_1d(void *data, pl_dtype dtype, int64_t n);
pl_tensor pl_tensor_2d(void *data, pl_dtype dtype, int64_t rows, int64_t columns);
pl_tensor pl_tensor_nd(void *data, pl_dtype dtype, int ndim, const int64_t *shape);

/* Views of parts: columns [from, from+n) of a matrix; rows [from, from+n) of anything. */
pl_tensor pl_tensor_columns(pl_tensor t, int64_t from, int64_t n);
pl_tensor pl_tensor_rows(pl_tensor t, int64_t from, int64_t n);

int64_t pl_tensor_numel(pl_tensor t);
int64_t pl_tensor_bytes(pl_tensor t); /* of its elements, the gaps of a column block not counted */
bool pl_tensor_contiguous(pl_tensor t);
bool pl_tensor_same_shape(pl_tensor a, pl_tensor b);
static inline bool pl_tensor_none(pl_tensor t)
{
    return t.ndim == 0;
}
/* "[512, 576] bf16" into text, for messages. */
const char *pl_tensor_describe(pl_tensor t, char text[96]);

#endif
