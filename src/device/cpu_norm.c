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

/* The mean of (x - mean)^2. */
PL_INLINE float mean_square(pl_dtype dtype, const void *x, int64_t first, int64_t n, float mean)
{
    pl_vf even = {0}, odd = {0}, centre = pl_vset(mean);
    int64_t j = 0;
    for (; j + 2 * PL_LANES <= n; j += 2 * PL_LANES) {
        pl_vf a = pl_vget(dtype, x, first + j, PL_LANES) - centre;
        pl_vf b = pl_vget(dtype, x, first + j + PL_LANES, PL_LANES) - centre;
        even += a * a;
        odd += b * b;
    }
    for (; j + PL_LANES <= n; j += PL_LANES) {
        pl_vf a = pl_vget(dtype, x, first + j, PL_LANES) - centre;
        even += a * a;
    }
    float rest = 0;
    if (j < n) {
        /* The lanes beyond the row are zeros, which are not at the mean. */
        float lane[PL_LANES];
        pl_vstore(lane, pl_vget(dtype, x, first + j, n - j) - centre);
        for (int64_t k = 0; k < n - j; k++) rest += lane[k] * lane[k];
    }
    return (pl_vsum(even + odd) + rest) / (float)n;
}

/* The factor of each column, offset + weight, or 1. */
PL_INLINE pl_vf gain_at(pl_tensor weight, float offset, int64_t j, int64_t lanes)
{
    return weight.data ? pl_vget(weight.dtype, weight.data, j, lanes) + pl_vset(offset) : pl_vset(1);
}

PL_INLINE group_stats norm_group(
    pl_dtype dtype, void *y, const void *x, int64_t first, int64_t n, const pl_norm_args *a)
{
    bool layer = !pl_tensor_none(a->mean);
    group_stats s = {.mean = layer ? mean_of(dtype, x, first, n) : 0};
    s.inv = 1 / sqrtf(mean_square(dtype, x, first, n, s.mean) + a->eps);
    pl_vf mean = pl_vset(s.mean), inv = pl_vset(s.inv);
    if (a->bias.data) {
        PL_EACH(j, lanes, n, {
            pl_vf z = (pl_vget(dtype, x, first + j, lanes) - mean) * inv;
            pl_vf bias = pl_vget(a->bias.dtype, a->bias.data, j, lanes);
            pl_vput(dtype, y, first + j, lanes, z * gain_at(a->weight, a->offset, j, lanes) + bias);
        });
    } else {
        PL_EACH(j, lanes, n, {
            pl_vf z = (pl_vget(dtype, x, first + j, lanes) - mean) * inv;
            pl_vput(dtype, y, first + j, lanes, z * gain_at(a->weight, a->offset, j, lanes));
        });
    }
    return s;
}

PL_INLINE void norm_row(pl_dtype dtype, const pl_norm_args *a, int64_t t, int64_t size)
{
    void *x = pl_row(a->x, t), *y = pl_row(a->y, t);
    int64_t n = a->x.shape[1], groups = n / size;
    if (!pl_tensor_none(a->residual)) {
        if (a->residual.dtype == dtype)
            add_residual(dtype, x, dtype, pl_row(a->residual, t), a->residual_scale, n);
        else
            add_residual(dtype, x, a->residual.dtype, pl_row(a->residual, t), a->residual_scale, n);
    }
    for (int64_t g = 0; g < groups; g++) {
        group_stats s = norm_group(dtype, y, x, g * size, size, a);
        ((float *)a->inv.data)[t * groups + g] = s.inv;
        if (!pl_tensor_none(a->mean)) ((float *)a->mean.data)[t * groups + g] = s.mean;
    }
}

int PL_CPU(norm)(pl_device *device, pl_error *err, const pl_norm_args *args)
{
    (void)err;
    pl_norm_args a = *args;
    int64_t size = pl_tensor_none(a.weight) ? a.size : a.weight.shape[0];
    if (pl_tensor_none(a.weight)) a.weight.data = NULL;
    if (pl_tensor_none(a.bias)) a.bias.data = NULL;
    int team = pl_team(device, pl_tensor_bytes(a.x) + pl_tensor_bytes(a.y) + pl_tensor_bytes(a.residual));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < a.x.shape[0]; t++) {
        if (a.x.dtype == PL_F32)
            norm_row(PL_F32, &a, t, size);
        else
            norm_row(PL_BF16, &a, t, size);
    }
    return 0;
}

/* One group of the backward. With z the normalised x and g = dy * gain: dx = inv * (g - mean(g) - z * mean(g * z)); the
   middle term belongs to layer norms alone. dweight and dbias (NULL: frozen) are the sums of this block of rows. */
PL_INLINE void backward_group(pl_dtype dtype, const pl_norm_backward_args *a, void *dx, const void *dy, const void *x,
    int64_t first, int64_t n, group_stats s, float *dweight, float *dbias)
{
    bool layer = !pl_tensor_none(a->mean);
    pl_vf mean = pl_vset(s.mean), inv = pl_vset(s.inv), sum_g = {0}, sum_gz = {0};
    PL_EACH(j, lanes, n, {
        pl_vf g = pl_vget(dtype, dy, first + j, lanes) * gain_at(a->weight, a->offset, j, lanes);
        sum_g += g;
        sum_gz += g * ((pl_vget(dtype, x, first + j, lanes) - mean) * inv);
    });
    pl_vf mean_g = pl_vset(layer ? pl_vsum(sum_g) / (float)n : 0), mean_gz = pl_vset(pl_vsum(sum_gz) / (float)n);
    PL_EACH(j, lanes, n, {
        pl_vf d = pl_vget(dtype, dy, first + j, lanes), z = (pl_vget(dtype, x, first + j, lanes) - mean) * inv;
        pl_vf out = inv * (d * gain_at(a->weight, a->offset, j, lanes) - mean_g - z * mean_gz);
        if (a->accumulate) out += pl_vget(dtype, dx, first + j, lanes);
        pl_vput(dtype, dx, first + j, lanes, out);
        if (dweight) pl_vput(PL_F32, dweight, j, lanes, pl_vget(PL_F32, dweight, j, lanes) + d * z);
        if (dbias) pl_vput(PL_F32, dbias, j, lanes, pl_vget(PL_F32, dbias, j, lanes) + d);
    });
}

static void backward_row(const pl_norm_backward_args *a, int64_t t, int64_t size, float *dweight, float *dbias)
{
    int64_t groups = a->x.shape[1] / size;
    void *dx = pl_row(a->dx, t);
    const void *dy = pl_row(a->dy, t), *x = pl_row(a->x, t);
    for (int64_t g = 0; g < groups; g++) {
        group_stats s = {.inv = ((const float *)a->inv.data)[t * groups + g]};
        if (!pl_tensor_none(a->mean)) s.mean = ((const float *)a->mean.data)[t * groups + g];
        if (a->x.dtype == PL_F32)
            backward_group(PL_F32, a, dx, dy, x, g * size, size, s, dweight, dbias);
        else
            backward_group(PL_BF16, a, dx, dy, x, g * size, size, s, dweight, dbias);
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
    float *dweight = pl_tensor_none(a->dweight) ? NULL : partial;
    float *dbias = pl_tensor_none(a->dbias) ? NULL : dweight ? partial + size : partial;
    for (int64_t t = from; t < to; t++) backward_row(a, t, size, dweight, dbias);
}

int PL_CPU(norm_backward)(pl_device *device, pl_error *err, const pl_norm_backward_args *args, void *scratch)
{
    (void)err;
    pl_norm_backward_args a = *args;
    int64_t size = pl_tensor_none(a.weight) ? a.size : a.weight.shape[0], rows = a.x.shape[0];
    if (pl_tensor_none(a.weight)) a.weight.data = NULL;
    int64_t blocks = pl_row_blocks(rows), step = partial_rows(&a) * size;
    float *partial = scratch, *dweight = a.dweight.data, *dbias = a.dbias.data;
    int team = pl_team(device, 3 * pl_tensor_bytes(a.x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t b = 0; b < blocks; b++) {
        backward_block(&a, b * rows / blocks, (b + 1) * rows / blocks, size, partial + b * step);
    }
    for (int64_t b = 0; b < blocks; b++) {
        const float *p = partial + b * step;
        if (!pl_tensor_none(a.dweight)) {
            for (int64_t j = 0; j < size; j++) dweight[j] += p[j];
            p += size;
        }
        if (!pl_tensor_none(a.dbias)) {
            for (int64_t j = 0; j < size; j++) dbias[j] += p[j];
        }
    }
    return 0;
}
