/* Rotary positions, in place. */
#include "device/kernel.h"

PL_INLINE void rotate_head(pl_dtype dtype, void *head, const float *cos, const float *sin, int64_t half, float sign)
{
    pl_vf direction = pl_vset(sign);
    PL_EACH(d, lanes, half, {
        pl_vf c = pl_vget(PL_F32, cos, d, lanes), s = pl_vget(PL_F32, sin, d, lanes) * direction;
        pl_vf p = pl_vget(dtype, head, d, lanes), q = pl_vget(dtype, head, half + d, lanes);
        pl_vput(dtype, head, d, lanes, p * c - q * s);
        pl_vput(dtype, head, half + d, lanes, q * c + p * s);
    });
}

static void rotate_row(const pl_rope_args *a, int64_t t)
{
    int64_t position = ((const int32_t *)a->positions.data)[t], half = a->cos.shape[1];
    const float *cos = pl_row(a->cos, position), *sin = pl_row(a->sin, position);
    float sign = a->backward ? -1 : 1;
    char *row = pl_row(a->x.t, t);
    int64_t step = a->x.stride * pl_dtype_size(a->x.t.dtype);
    for (int h = 0; h < a->x.heads; h++) {
        if (a->x.t.dtype == PL_F32)
            rotate_head(PL_F32, row + h * step, cos, sin, half, sign);
        else
            rotate_head(PL_BF16, row + h * step, cos, sin, half, sign);
    }
}

int PL_CPU(rope)(pl_device *device, pl_error *err, const pl_rope_args *a)
{
    (void)err;
    int64_t rows = a->x.t.shape[0];
    int team = pl_team(device, 4 * rows * a->x.heads * a->cos.shape[1] * pl_dtype_size(a->x.t.dtype));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < rows; t++) rotate_row(a, t);
    return 0;
}
