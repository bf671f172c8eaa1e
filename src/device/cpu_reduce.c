/* Sums. Each is split into blocks that depend on the shape alone, and the blocks' results are added in order, so that
   the bits do not depend on the number of threads. */
#include "device/kernel.h"

/* partial[j] += the sum over rows [from, to) of x[., j], or of x * y. Four rows at a time, so that the partial sums,
   which lie in the cache, are read and written a quarter as often. */
PL_INLINE void add_rows(
    float *partial, pl_tensor x, pl_dtype tx, pl_tensor y, pl_dtype ty, bool product, int64_t from, int64_t to)
{
    int64_t n = x.shape[1];
    for (int64_t i = from; i < to; i += 4) {
        int rows = to - i < 4 ? (int)(to - i) : 4;
        PL_EACH(j, lanes, n, {
            pl_vf sum = {0};
            for (int r = 0; r < rows; r++) {
                pl_vf v = pl_vget(tx, pl_row(x, i + r), j, lanes);
                sum += product ? v * pl_vget(ty, pl_row(y, i + r), j, lanes) : v;
            }
            pl_vput(PL_F32, partial, j, lanes, pl_vget(PL_F32, partial, j, lanes) + sum);
        });
    }
}

static void column_block(float *partial, pl_tensor x, pl_tensor y, int64_t from, int64_t to)
{
    memset(partial, 0, (size_t)x.shape[1] * sizeof *partial);
    bool product = !pl_tensor_none(y);
    if (!product && x.dtype == PL_F32)
        add_rows(partial, x, PL_F32, y, PL_F32, false, from, to);
    else if (!product)
        add_rows(partial, x, PL_BF16, y, PL_F32, false, from, to);
    else if (x.dtype == PL_F32 && y.dtype == PL_F32)
        add_rows(partial, x, PL_F32, y, PL_F32, true, from, to);
    else if (x.dtype == PL_BF16 && y.dtype == PL_BF16)
        add_rows(partial, x, PL_BF16, y, PL_BF16, true, from, to);
    else
        add_rows(partial, x, x.dtype, y, y.dtype, true, from, to);
}

int64_t PL_CPU(column_sums_scratch)(pl_device *device, pl_tensor x)
{
    (void)device;
    return pl_row_blocks(x.shape[0]) * x.shape[1] * (int64_t)sizeof(float);
}

int PL_CPU(column_sums)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch)
{
    (void)err;
    float *partial = scratch, *sums = out.data;
    int64_t rows = x.shape[0], n = x.shape[1], blocks = pl_row_blocks(rows);
    int team = pl_team(device, pl_tensor_bytes(x) + pl_tensor_bytes(y));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        column_block(partial + b * n, x, y, b * rows / blocks, (b + 1) * rows / blocks);
    }
    for (int64_t b = 0; b < blocks; b++) {
        for (int64_t j = 0; j < n; j++) sums[j] += partial[b * n + j];
    }
    return 0;
}

PL_INLINE float dot(pl_dtype ta, const void *a, pl_dtype tb, const void *b, int64_t n)
{
    pl_vf sum[4] = {{0}, {0}, {0}, {0}};
    int64_t j = 0;
    for (; j + 4 * PL_LANES <= n; j += 4 * PL_LANES) {
        for (int k = 0; k < 4; k++) {
            int64_t at = j + k * PL_LANES;
            sum[k] += pl_vget(ta, a, at, PL_LANES) * pl_vget(tb, b, at, PL_LANES);
        }
    }
    for (; j + PL_LANES <= n; j += PL_LANES) sum[0] += pl_vget(ta, a, j, PL_LANES) * pl_vget(tb, b, j, PL_LANES);
    if (j < n) sum[1] += pl_vget(ta, a, j, n - j) * pl_vget(tb, b, j, n - j);
    return pl_vsum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

static float row_dot(pl_tensor a, pl_tensor b, int64_t i)
{
    const void *p = pl_row(a, i), *q = pl_row(b, i);
    int64_t n = a.shape[1];
    if (a.dtype == PL_F32 && b.dtype == PL_F32) return dot(PL_F32, p, PL_F32, q, n);
    if (a.dtype == PL_BF16 && b.dtype == PL_BF16) return dot(PL_BF16, p, PL_BF16, q, n);
    return a.dtype == PL_F32 ? dot(PL_F32, p, PL_BF16, q, n) : dot(PL_BF16, p, PL_F32, q, n);
}

/* Columns that one thread sums at a time when the dots run down the rows. */
#define DOT_COLUMNS 256

static void column_dots(float *out, pl_tensor a, pl_tensor b)
{
    float partial[DOT_COLUMNS];
    int64_t rows = a.shape[0], n = a.shape[1], blocks = pl_row_blocks(rows);
    for (int64_t j = 0; j < n; j++) out[j] = 0;
    for (int64_t k = 0; k < blocks; k++) {
        column_block(partial, a, b, k * rows / blocks, (k + 1) * rows / blocks);
        for (int64_t j = 0; j < n; j++) out[j] += partial[j];
    }
}

int PL_CPU(row_dots)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed)
{
    (void)err;
    float *dots = out.data;
    int team = pl_team(device, pl_tensor_bytes(a) + pl_tensor_bytes(b));
    if (!transposed) {
#pragma omp parallel for num_threads(team) schedule(static)
        for (int64_t i = 0; i < a.shape[0]; i++) dots[i] = row_dot(a, b, i);
        return 0;
    }
    int64_t n = a.shape[1];
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t j = 0; j < n; j += DOT_COLUMNS) {
        int64_t columns = n - j < DOT_COLUMNS ? n - j : DOT_COLUMNS;
        column_dots(dots + j, pl_tensor_columns(a, j, columns), pl_tensor_columns(b, j, columns));
    }
    return 0;
}

typedef double vd __attribute__((vector_size(8 * PL_LANES)));

PL_INLINE double add_lanes(vd v)
{
    double sum = 0;
    for (int i = 0; i < PL_LANES; i++) sum += v[i];
    return sum;
}

PL_INLINE double sum_run(pl_dtype dtype, const void *x, int64_t n, bool squares)
{
    vd even = {0}, odd = {0};
    int64_t j = 0;
    for (; j + 2 * PL_LANES <= n; j += 2 * PL_LANES) {
        vd a = __builtin_convertvector(pl_vget(dtype, x, j, PL_LANES), vd);
        vd b = __builtin_convertvector(pl_vget(dtype, x, j + PL_LANES, PL_LANES), vd);
        even += squares ? a * a : a;
        odd += squares ? b * b : b;
    }
    while (j < n) {
        int64_t lanes = n - j < PL_LANES ? n - j : PL_LANES;
        vd a = __builtin_convertvector(pl_vget(dtype, x, j, lanes), vd);
        even += squares ? a * a : a;
        j += lanes;
    }
    return add_lanes(even + odd);
}

static double sum_piece(pl_dtype dtype, const void *x, int64_t n, bool squares)
{
    if (dtype == PL_F32) return squares ? sum_run(PL_F32, x, n, true) : sum_run(PL_F32, x, n, false);
    return squares ? sum_run(PL_BF16, x, n, true) : sum_run(PL_BF16, x, n, false);
}

/* How many parts a whole tensor is summed in; part k takes pieces [k * pieces / PARTS, (k + 1) * pieces / PARTS). */
#define PARTS 256

static double sum_all(pl_device *device, pl_tensor x, bool squares)
{
    double parts[PARTS] = {0}, sum = 0;
    pl_cut cut = pl_cut_pieces(x, pl_tensor_contiguous(x));
    int team = pl_team(device, pl_tensor_bytes(x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t k = 0; k < PARTS; k++) {
        double part = 0;
        for (int64_t i = k * cut.pieces / PARTS; i < (k + 1) * cut.pieces / PARTS; i++) {
            part += sum_piece(x.dtype, pl_piece(&cut, x, i), pl_piece_length(&cut, i), squares);
        }
        parts[k] = part;
    }
    for (int k = 0; k < PARTS; k++) sum += parts[k];
    return sum;
}

int PL_CPU(sum_squares)(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)err;
    *out = sum_all(device, x, true);
    return 0;
}

int PL_CPU(sum)(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)err;
    *out = sum_all(device, x, false);
    return 0;
}

/* A number is NaN or infinite when all bits of its exponent are set. */
static int64_t nonfinite_piece(pl_dtype dtype, const void *x, int64_t n)
{
    uint32_t count = 0; /* a piece has far fewer elements than 2^32 only if its rows do: flushed below */
    int64_t total = 0;
    for (int64_t from = 0; from < n; from += 1 << 16) {
        int64_t to = n - from < 1 << 16 ? n : from + (1 << 16);
        count = 0;
        if (dtype == PL_F32) {
            const uint32_t *bits = x;
            for (int64_t j = from; j < to; j++) count += (bits[j] & 0x7f800000u) == 0x7f800000u;
        } else {
            const uint16_t *bits = x;
            for (int64_t j = from; j < to; j++) count += (bits[j] & 0x7f80u) == 0x7f80u;
        }
        total += count;
    }
    return total;
}

int PL_CPU(count_nonfinite)(pl_device *device, pl_error *err, int64_t *out, pl_tensor x)
{
    (void)err;
    int64_t total = 0;
    pl_cut cut = pl_cut_pieces(x, pl_tensor_contiguous(x));
    int team = pl_team(device, pl_tensor_bytes(x));
#pragma omp parallel for num_threads(team) schedule(static) reduction(+ : total)
    for (int64_t i = 0; i < cut.pieces; i++) {
        total += nonfinite_piece(x.dtype, pl_piece(&cut, x, i), pl_piece_length(&cut, i));
    }
    *out = total;
    return 0;
}
