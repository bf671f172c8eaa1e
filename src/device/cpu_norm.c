/* Normalisation, forward and backward. A row is read from memory once; the passes over it after the first find it in
   the cache. */
#include <math.h>

#include "device/kernel.h"

typedef struct group_stats {
    float mean, inv;
} group_stats;

/* x += scale * residual, rounded to x's dtype. */
PL_INLINE void add_residual(
    pl_dtype dtype, void *x, pl_dtype residual_dtype, const void *residual, float scale, int64_t n)
{
    pl_vf factor = pl_vset(scale);
    PL_EACH(j, lanes, n, {
        pl_vf r = pl_vget(residual_dtype, residual, j, lanes);
        pl_vput(dtype, x, j, lanes, pl_vget(dtype, x, j, lanes) + factor * r);
    });
}

PL_INLINE float mean_of(pl_dtype dtype, const void *x, int64_t first, int64_t n)
{
    pl_vf sum = {0};
    PL_EACH(j, lanes, n, { sum += pl_vget(dtype, x, first + j, lanes); });
    return pl_vsum(sum) / (float)n;
}

/* Layer norms subtract the mean; in RMS norms (layer false, a constant after inlining) there is none to subtract. */
PL_INLINE pl_vf centred(pl_dtype dtype, const void *x, int64_t i, int64_t lanes, bool layer, pl_vf mean)
{
    pl_vf v = pl_vget(dtype, x, i, lanes);
    return layer ? v - mean : v;
}

/* The mean of (x - mean)^2. */
PL_INLINE float mean_square(pl_dtype dtype, const void *x, int64_t first, int64_t n, bool layer, float mean)
{
    pl_vf even = {0}, odd = {0}, centre = pl_vset(mean);
    int64_t j = 0;
    for (; j + 2 * PL_LANES <= n; j += 2 * PL_LANES) {
        pl_vf a = centred(dtype, x, first + j, PL_LANES, layer, centre);
        pl_vf b = centred(dtype, x, first + j + PL_LANES, PL_LANES, layer, centre);
        even += a * a;
        odd += b * b;
    }
    for (; j + PL_LANES <= n; j += PL_LANES) {
        pl_vf a = centred(dtype, x, first + j, PL_LANES, layer, centre);
        even += a * a;
    }
    float rest = 0;
    if (j < n) {
        /* The lanes beyond the row are zeros, which are not at the mean. */
        float lane[PL_LANES];
        pl_vstore(lane, centred(dtype, x, first + j, n - j, layer, centre));
        for (int64_t k = 0; k < n - j; k++) rest += lane[k] * lane[k];
    }
    return (pl_vsum(even + odd) + rest) / (float)n;
}

/* The factor of each column: offset + weight, or 1. Kernels hold it by value, so that the compiler knows that no store
   changes it. */
typedef struct gain {
    const void *weight; /* NULL: none */
    pl_dtype dtype;
    float offset;
} gain;

static gain gain_of(pl_tensor weight, float offset)
{
    return (gain){pl_tensor_none(weight) ? NULL : weight.data, weight.dtype, offset};
}

PL_INLINE pl_vf gain_at(gain g, int64_t j, int64_t lanes)
{
    return g.weight ? pl_vget(g.dtype, g.weight, j, lanes) + pl_vset(g.offset) : pl_vset(1);
}

PL_INLINE group_stats norm_group(
    pl_dtype dtype, bool layer, void *y, const void *x, int64_t first, int64_t n, float eps, gain w, gain bias)
{
    group_stats s = {.mean = layer ? mean_of(dtype, x, first, n) : 0};
    s.inv = 1 / sqrtf(mean_square(dtype, x, first, n, layer, s.mean) + eps);
    pl_vf mean = pl_vset(s.mean), inv = pl_vset(s.inv);
    PL_EACH(j, lanes, n, {
        pl_vf out = centred(dtype, x, first + j, lanes, layer, mean) * inv * gain_at(w, j, lanes);
        if (bias.weight) out += pl_vget(bias.dtype, bias.weight, j, lanes);
        pl_vput(dtype, y, first + j, lanes, out);
    });
    return s;
}

PL_INLINE void norm_row(pl_dtype dtype, bool layer, const pl_norm_args *a, int64_t t, int64_t size, gain w, gain bias)
{
    void *x = pl_row(a->x, t), *y = pl_row(a->y, t);
    int64_t n = a->x.shape[1], groups = n / size;
    if (!pl_tensor_none(a->residual)) {
        add_residual(dtype, x, a->residual.dtype, pl_row(a->residual, t), a->residual_scale, n);
    }
    for (int64_t g = 0; g < groups; g++) {
        group_stats s = norm_group(dtype, layer, y, x, g * size, size, a->eps, w, bias);
        ((float *)a->inv.data)[t * groups + g] = s.inv;
        if (layer) ((float *)a->mean.data)[t * groups + g] = s.mean;
    }
}

/* The kind of norm and the dtypes become constants. */
static void norm_any_row(const pl_norm_args *a, int64_t t, int64_t size, gain w, gain bias)
{
    bool layer = !pl_tensor_none(a->mean);
    if (a->x.dtype == PL_F32 && !layer) {
        norm_row(PL_F32, false, a, t, size, w, bias);
    } else if (a->x.dtype == PL_F32) {
        norm_row(PL_F32, true, a, t, size, w, bias);
    } else if (!layer) {
        norm_row(PL_BF16, false, a, t, size, w, bias);
    } else {
        norm_row(PL_BF16, true, a, t, size, w, bias);
    }
}

int PL_CPU(norm)(pl_device *device, pl_error *err, const pl_norm_args *a)
{
    (void)err;
    int64_t size = pl_tensor_none(a->weight) ? a->size : a->weight.shape[0];
    gain w = gain_of(a->weight, a->offset), bias = gain_of(a->bias, 0);
    int team = pl_team(device, pl_tensor_bytes(a->x) + pl_tensor_bytes(a->y) + pl_tensor_bytes(a->residual));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < a->x.shape[0]; t++) norm_any_row(a, t, size, w, bias);
    return 0;
}

/* What a block of rows adds to the gradients of the weight and the bias; NULL: frozen. */
typedef struct partial_sums {
    float *dweight, *dbias;
} partial_sums;

/* One group of the backward. With z the normalised x and g = dy * gain: dx = inv * (g - mean(g) - z * mean(g * z)); the
   middle term belongs to layer norms alone. */
PL_INLINE void backward_group(pl_dtype dtype, bool layer, bool accumulate, void *dx, const void *dy, const void *x,
    int64_t first, int64_t n, group_stats s, gain w, partial_sums sums)
{
    pl_vf mean = pl_vset(s.mean), inv = pl_vset(s.inv), sum_g = {0}, sum_gx = {0};
    PL_EACH(j, lanes, n, {
        pl_vf g = pl_vget(dtype, dy, first + j, lanes) * gain_at(w, j, lanes);
        if (layer) sum_g += g;
        sum_gx += g * centred(dtype, x, first + j, lanes, layer, mean);
    });
    pl_vf mean_g = pl_vset(layer ? pl_vsum(sum_g) / (float)n : 0),
          mean_gz = pl_vset(pl_vsum(sum_gx) * s.inv / (float)n);
    PL_EACH(j, lanes, n, {
        pl_vf d = pl_vget(dtype, dy, first + j, lanes);
        pl_vf z = centred(dtype, x, first + j, lanes, layer, mean) * inv;
        pl_vf out = d * gain_at(w, j, lanes) - z * mean_gz;
        if (layer) out -= mean_g;
        out *= inv;
        if (accumulate) out += pl_vget(dtype, dx, first + j, lanes);
        pl_vput(dtype, dx, first + j, lanes, out);
        if (sums.dweight) pl_vput(PL_F32, sums.dweight, j, lanes, pl_vget(PL_F32, sums.dweight, j, lanes) + d * z);
        if (sums.dbias) pl_vput(PL_F32, sums.dbias, j, lanes, pl_vget(PL_F32, sums.dbias, j, lanes) + d);
    });
}

PL_INLINE void backward_row(
    pl_dtype dtype, bool layer, const pl_norm_backward_args *a, int64_t t, int64_t size, gain w, partial_sums sums)
{
    int64_t groups = a->x.shape[1] / size;
    bool accumulate = a->accumulate;
    void *dx = pl_row(a->dx, t);
    const void *dy = pl_row(a->dy, t), *x = pl_row(a->x, t);
    for (int64_t g = 0; g < groups; g++) {
        group_stats s = {.inv = ((const float *)a->inv.data)[t * groups + g]};
        if (layer) s.mean = ((const float *)a->mean.data)[t * groups + g];
        backward_group(dtype, layer, accumulate, dx, dy, x, g * size, size, s, w, sums);
    }
}

static void backward_any_row(const pl_norm_backward_args *a, int64_t t, int64_t size, gain w, partial_sums sums)
{
    bool layer = !pl_tensor_none(a->mean);
    if (a->x.dtype == PL_F32 && !layer) {
        backward_row(PL_F32, false, a, t, size, w, sums);
    } else if (a->x.dtype == PL_F32) {
        backward_row(PL_F32, true, a, t, size, w, sums);
    } else if (!layer) {
        backward_row(PL_BF16, false, a, t, size, w, sums);
    } else {
        backward_row(PL_BF16, true, a, t, size, w, sums);
    }
}

static int64_t partial_rows(const pl_norm_backward_args *a)
{
    return !pl_tensor_none(a->dweight) + !pl_tensor_none(a->dbias);
}

int64_t PL_CPU(norm_backward_scratch)(pl_device *device, const pl_norm_backward_args *a)
{
    (void)device;
    int64_t size = pl_tensor_none(a->weight) ? a->size : a->weight.shape[0];
    return pl_row_blocks(a->x.shape[0]) * partial_rows(a) * size * (int64_t)sizeof(float);
}

/* A block of rows; partial: the block's dweight and dbias, as far as they are wanted. */
static void backward_block(const pl_norm_backward_args *a, int64_t from, int64_t to, int64_t size, float *partial)
{
    memset(partial, 0, (size_t)(partial_rows(a) * size) * sizeof *partial);
    gain w = gain_of(a->weight, a->offset);
    partial_sums sums = {0};
    if (!pl_tensor_none(a->dweight)) sums.dweight = partial;
    if (!pl_tensor_none(a->dbias)) sums.dbias = partial + (sums.dweight ? size : 0);
    for (int64_t t = from; t < to; t++) backward_any_row(a, t, size, w, sums);
}

int PL_CPU(norm_backward)(pl_device *device, pl_error *err, const pl_norm_backward_args *a, void *scratch)
{
    (void)err;
    int64_t size = pl_tensor_none(a->weight) ? a->size : a->weight.shape[0], rows = a->x.shape[0];
    int64_t blocks = pl_row_blocks(rows), step = partial_rows(a) * size;
    float *partial = scratch, *dweight = a->dweight.data, *dbias = a->dbias.data;
    int team = pl_team(device, 3 * pl_tensor_bytes(a->x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        backward_block(a, b * rows / blocks, (b + 1) * rows / blocks, size, partial + b * step);
    }
    for (int64_t b = 0; b < blocks; b++) {
        const float *p = partial + b * step;
        if (!pl_tensor_none(a->dweight)) {
            for (int64_t j = 0; j < size; j++) dweight[j] += p[j];
            p += size;
        }
        if (!pl_tensor_none(a->dbias)) {
            for (int64_t j = 0; j < size; j++) dbias[j] += p[j];
        }
    }
    return 0;
}
