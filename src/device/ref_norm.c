#include <math.h>

#include "device/ref.h"

/* The factor of column j of a group: 1 without a weight. */
static double gain(pl_tensor weight, double offset, int64_t j)
{
    return pl_tensor_none(weight) ? 1 : offset + pl_ref_get1(weight, j);
}

static void norm_group(const pl_norm_args *a, int64_t t, int64_t group, int64_t size)
{
    int64_t first = group * size, row = t * (a->x.shape[1] / size) + group;
    bool layer = !pl_tensor_none(a->mean);
    double mean = 0, square = 0;
    if (layer) {
        for (int64_t j = 0; j < size; j++) mean += pl_ref_get(a->x, t, first + j) / (double)size;
    }
    for (int64_t j = 0; j < size; j++) {
        double centred = pl_ref_get(a->x, t, first + j) - mean;
        square += centred * centred / (double)size;
    }
    double inv = 1 / sqrt(square + (double)a->eps);
    for (int64_t j = 0; j < size; j++) {
        double y = (pl_ref_get(a->x, t, first + j) - mean) * inv * gain(a->weight, a->offset, j);
        if (!pl_tensor_none(a->bias)) y += pl_ref_get1(a->bias, j);
        pl_ref_set(a->y, t, first + j, y);
    }
    pl_ref_set1(a->inv, row, inv);
    if (layer) pl_ref_set1(a->mean, row, mean);
}

int pl_ref_norm(pl_device *device, pl_error *err, const pl_norm_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    int64_t size = pl_tensor_none(a->weight) ? a->size : a->weight.shape[0];
    for (int64_t t = 0; t < a->x.shape[0]; t++) {
        if (!pl_tensor_none(a->residual)) {
            for (int64_t j = 0; j < a->x.shape[1]; j++) {
                double sum = pl_ref_get(a->x, t, j) + (double)a->residual_scale * pl_ref_get(a->residual, t, j);
                pl_ref_set(a->x, t, j, sum);
            }
        }
        for (int64_t group = 0; group < a->x.shape[1] / size; group++) norm_group(a, t, group, size);
    }
    pl_ref_end(device);
    return 0;
}

/* With z the normalised x and g = dy * gain: dx = inv * (g - mean(g) - z * mean(g * z)), the middle term for layer
   norms alone; dweight += dy * z, dbias += dy. */
static void norm_backward_group(const pl_norm_backward_args *a, int64_t t, int64_t group, int64_t size)
{
    int64_t first = group * size, row = t * (a->x.shape[1] / size) + group;
    bool layer = !pl_tensor_none(a->mean);
    double inv = pl_ref_get1(a->inv, row), mean = layer ? pl_ref_get1(a->mean, row) : 0;
    double mean_g = 0, mean_gz = 0;
    for (int64_t j = 0; j < size; j++) {
        double g = pl_ref_get(a->dy, t, first + j) * gain(a->weight, a->offset, j);
        mean_g += g / (double)size;
        mean_gz += g * (pl_ref_get(a->x, t, first + j) - mean) * inv / (double)size;
    }
    if (!layer) mean_g = 0;
    for (int64_t j = 0; j < size; j++) {
        double dy = pl_ref_get(a->dy, t, first + j), z = (pl_ref_get(a->x, t, first + j) - mean) * inv;
        double dx = inv * (dy * gain(a->weight, a->offset, j) - mean_g - z * mean_gz);
        if (a->accumulate) dx += pl_ref_get(a->dx, t, first + j);
        pl_ref_set(a->dx, t, first + j, dx);
        if (!pl_tensor_none(a->dweight)) pl_ref_set1(a->dweight, j, pl_ref_get1(a->dweight, j) + dy * z);
        if (!pl_tensor_none(a->dbias)) pl_ref_set1(a->dbias, j, pl_ref_get1(a->dbias, j) + dy);
    }
}

int pl_ref_norm_backward(pl_device *device, pl_error *err, const pl_norm_backward_args *a, void *scratch)
{
    (void)scratch;
    PL_TRY(pl_ref_begin(device, err));
    int64_t size = pl_tensor_none(a->weight) ? a->size : a->weight.shape[0];
    for (int64_t t = 0; t < a->x.shape[0]; t++) {
        for (int64_t group = 0; group < a->x.shape[1] / size; group++) norm_backward_group(a, t, group, size);
    }
    pl_ref_end(device);
    return 0;
}
