/* Cross entropy, a row at a time: one pass finds the maximum and the sum of exponentials (blocks of the row in f32,
   their sums in double), a second one writes the gradient. A row of a large vocabulary stays in the second cache
   between the two. */
#include "device/kernel.h"

#include <math.h>

#define BLOCK 1024

/* What is the same for all elements. */
typedef struct row_settings {
    pl_dtype dtype, dx_dtype;
    float scale, softcap;
} row_settings;

/* tanh(x) = 1 - 2 / (e^2x + 1): exact to 1e-7 of 1, which is what a cap needs. */
PL_INLINE pl_vf capped(pl_vf x, row_settings s)
{
    pl_vf z = x * s.scale;
    if (s.softcap > 0) z = s.softcap * (1 - 2 / (pl_vexp(z * (2 / s.softcap)) + 1));
    return z;
}

/* z of `lanes` elements from j on; lanes beyond are -infinity, which neither maxima nor sums of exponentials see. */
PL_INLINE pl_vf score(const void *x, int64_t j, int64_t lanes, row_settings s)
{
    pl_vf z = capped(pl_vget(s.dtype, x, j, lanes), s);
    for (int64_t i = lanes; i < PL_LANES; i++) z[i] = -INFINITY;
    return z;
}

/* The maximum of z, and the sum of exp(z - maximum). */
PL_INLINE double sum_row(const void *x, int64_t n, row_settings s, float *maximum)
{
    double total = 0;
    *maximum = -INFINITY;
    for (int64_t from = 0; from < n; from += BLOCK) {
        int64_t length = n - from < BLOCK ? n - from : BLOCK;
        pl_vf z[BLOCK / PL_LANES], most = pl_vset(-INFINITY), sum = {0};
        int vectors = 0;
        PL_EACH(j, lanes, length, {
            z[vectors] = score(x, from + j, lanes, s);
            most = pl_vmax(z[vectors++], most);
        });
        float block_maximum = pl_vmaximum(most);
        if (block_maximum > *maximum) {
            total *= exp((double)*maximum - block_maximum);
            *maximum = block_maximum;
        }
        for (int v = 0; v < vectors; v++) sum += pl_vexp(z[v] - *maximum);
        total += pl_vsum(sum);
    }
    return total;
}

/* factor * exp(z - maximum) times the cap's slope: the gradient but for the target's own part. In order of columns, and
   loads before stores: dx may be the memory of x, in x's dtype or in a narrower one. */
PL_INLINE void write_gradient(void *dx, const void *x, int64_t n, row_settings s, float maximum, float factor)
{
    PL_EACH(j, lanes, n, {
        pl_vf z = score(x, j, lanes, s);
        pl_vf dz = factor * pl_vexp(z - maximum);
        if (s.softcap > 0) dz *= 1 - z * z * (1 / (s.softcap * s.softcap));
        pl_vput(s.dx_dtype, dx, j, lanes, dz);
    });
}

PL_INLINE void one_row(const pl_loss_args *args, int64_t i, row_settings s)
{
    const char *x = pl_row(args->logits, i);
    char *dx = pl_tensor_none(args->dlogits) ? NULL : pl_row(args->dlogits, i);
    float *loss = pl_tensor_none(args->loss) ? NULL : (float *)args->loss.data + i;
    int64_t n = args->logits.shape[1], target = ((const int32_t *)args->targets.data)[i];
    if (target < 0) {
        if (loss) *loss = 0;
        if (dx) memset(dx, 0, (size_t)(n * pl_dtype_size(s.dx_dtype)));
        return;
    }
    float maximum = 0;
    double sum = sum_row(x, n, s, &maximum);
    float z = capped(pl_vget(s.dtype, x, target, 1), s)[0];
    double excess = (double)z - maximum;
    if (loss) *loss = (float)(log(sum) - excess);
    if (!dx) return;
    float factor = args->grad_scale * s.scale;
    write_gradient(dx, x, n, s, maximum, (float)(factor / sum));
    double slope = s.softcap > 0 ? 1 - ((double)z / s.softcap) * ((double)z / s.softcap) : 1;
    pl_vput(s.dx_dtype, dx, target, 1, pl_vset((float)(factor * slope * (exp(excess) / sum - 1))));
}

int PL_CPU(loss)(pl_device *device, pl_error *err, const pl_loss_args *args)
{
    (void)err;
    row_settings s = {args->logits.dtype, args->dlogits.dtype, args->logit_scale, args->softcap};
    row_settings f32 = {PL_F32, PL_F32, s.scale, 0}, bf16 = {PL_BF16, PL_BF16, s.scale, 0};
    row_settings mixed = {PL_F32, PL_BF16, s.scale, 0};
    bool same = s.dtype == s.dx_dtype, plain = s.softcap <= 0;
#pragma omp parallel for num_threads(device->threads) schedule(static)
    for (int64_t i = 0; i < args->logits.shape[0]; i++) {
        /* The forms that training meets are compiled apart, so that no vector asks which it is. */
        if (plain && same && s.dtype == PL_F32) {
            one_row(args, i, f32);
        } else if (plain && same) {
            one_row(args, i, bf16);
        } else if (plain && s.dtype == PL_F32) {
            one_row(args, i, mixed);
        } else {
            one_row(args, i, s);
        }
    }
    return 0;
}
