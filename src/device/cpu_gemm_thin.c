/* Products of few rows with a transposed b, which is every weight's product while text is written: each row of b is
   read once, as fast as memory gives it, and makes an element of each row of c. */
#include "device/kernel.h"

#define AT_ONCE 4  /* rows of b that are read together */
#define AHEAD 8192 /* bytes that are asked for before they are read: the hardware's own fetching stops at each page */

bool PL_CPU(gemm_thin_takes)(const pl_gemm_args *args)
{
    bool second = pl_tensor_none(args->a2) || args->transpose_b2;
    return args->c.shape[0] >= 1 && args->c.shape[0] <= PL_THIN_ROWS && inner_length(args) > 0 &&
           args->c.shape[1] > 0 && !args->transpose_a && args->transpose_b && second && args->a.dtype != PL_F16;
}

/* The rows of a and a2 as f32; of a taller product, what a thin one of its kind takes at most. */
int64_t PL_CPU(gemm_thin_scratch)(const pl_gemm_args *args)
{
    int64_t rows = args->c.shape[0] < PL_THIN_ROWS ? args->c.shape[0] : PL_THIN_ROWS;
    if (args->transpose_a || !args->transpose_b) return 0;
    return rows * (inner_length(args) + second_length(args)) * 4;
}

/* sums[c * rows + r] += x[r] . row[c], over k elements; x's rows are k apart. */
PL_INLINE void dots(int rows, int columns, pl_dtype dtype, pl_vf *sums, const float *x, void *const *row, int64_t k)
{
    PL_EACH(i, lanes, k, {
        for (int c = 0; c < columns; c++) {
            __builtin_prefetch((const void *)((uintptr_t)row[c] + (size_t)i * (dtype == PL_F32 ? 4 : 2) + AHEAD), 0, 2);
            pl_vf w = pl_vget(dtype, row[c], i, lanes);
            for (int r = 0; r < rows; r++) sums[c * rows + r] += w * pl_vget(PL_F32, x + r * k, i, lanes);
        }
    });
}

PL_INLINE void write_column(int rows, const pl_gemm_args *g, int64_t j, const pl_vf *sums)
{
    for (int r = 0; r < rows; r++) {
        void *at = pl_row(g->c, r);
        float v = pl_vsum(sums[r]) * g->alpha;
        if (!pl_tensor_none(g->bias)) v += pl_vget(g->bias.dtype, g->bias.data, j, 1)[0];
        if (g->accumulate) v += pl_vget(g->c.dtype, at, j, 1)[0];
        pl_vput(g->c.dtype, at, j, 1, pl_vset(v));
    }
}

/* Columns [j, j + columns) of c. */
PL_INLINE void some_columns(
    int rows, int columns, pl_dtype dtype, const pl_gemm_args *g, const float *x, const float *x2, int64_t j)
{
    pl_vf sums[PL_THIN_ROWS * AT_ONCE];
    void *row[AT_ONCE];
    for (int i = 0; i < rows * columns; i++) sums[i] = pl_vset(0);
    for (int c = 0; c < columns; c++) row[c] = pl_row(g->b, j + c);
    dots(rows, columns, dtype, sums, x, row, inner_length(g));
    if (x2) {
        for (int c = 0; c < columns; c++) row[c] = pl_row(g->b2, j + c);
        dots(rows, columns, dtype, sums, x2, row, second_length(g));
    }
    for (int c = 0; c < columns; c++) write_column(rows, g, j + c, sums + c * rows);
}

/* Columns [begin, end): several at once where registers hold their sums, so that memory has more to fetch. */
PL_INLINE void columns(
    int rows, pl_dtype dtype, const pl_gemm_args *g, const float *x, const float *x2, int64_t begin, int64_t end)
{
    int64_t j = begin;
    if (rows <= 4) {
        for (; j + AT_ONCE <= end; j += AT_ONCE) some_columns(rows, AT_ONCE, dtype, g, x, x2, j);
    }
    for (; j < end; j++) some_columns(rows, 1, dtype, g, x, x2, j);
}

static void columns_of_any(const pl_gemm_args *g, const float *x, const float *x2, int64_t begin, int64_t end)
{
    bool half = g->a.dtype == PL_BF16;
    switch (g->c.shape[0]) {
#define CASE(n)                                                                                                        \
    case n:                                                                                                            \
        if (half)                                                                                                      \
            columns(n, PL_BF16, g, x, x2, begin, end);                                                                 \
        else                                                                                                           \
            columns(n, PL_F32, g, x, x2, begin, end);                                                                  \
        break;
        CASE(1)
        CASE(2)
        CASE(3)
        CASE(4)
        CASE(5)
        CASE(6)
        CASE(7)
        CASE(8)
#undef CASE
    }
}

#define COLUMNS 64 /* of a piece of work */

int PL_CPU(gemm_thin)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = inner_length(args), k2 = second_length(args);
    float *x = scratch, *x2 = k2 ? x + m * k : NULL;
    int threads = pl_team(device, n * k * pl_dtype_size(args->a.dtype));
    PL_TRY(PL_CPU(copy)(device, err, pl_tensor_2d(x, PL_F32, m, k), args->a));
    if (x2) PL_TRY(PL_CPU(copy)(device, err, pl_tensor_2d(x2, PL_F32, m, k2), args->a2));
#pragma omp parallel for schedule(static) num_threads(threads)
    for (int64_t j = 0; j < n; j += COLUMNS) columns_of_any(args, x, x2, j, j + COLUMNS < n ? j + COLUMNS : n);
    return 0;
}
