#include <math.h>

#include "device/ref.h"

static void put_split(pl_tensor half, pl_tensor rest, int64_t i, float value)
{
    int16_t lacking;
    uint16_t bits = pl_f32_split(value, &lacking);
    pl_ref_set1(half, i, pl_bf16_to_f32(bits));
    pl_ref_set1(rest, i, lacking);
}

int pl_ref_split(pl_device *device, pl_error *err, pl_tensor half, pl_tensor rest, pl_tensor x)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < x.shape[0]; i++) put_split(half, rest, i, (float)pl_ref_get1(x, i));
    pl_ref_end(device);
    return 0;
}

static double weight(pl_tensor w, pl_tensor rest, int64_t i)
{
    double value = pl_ref_get1(w, i);
    if (pl_tensor_none(rest)) return value;
    return pl_f32_join(pl_f32_to_bf16((float)value), (int16_t)pl_ref_get1(rest, i));
}

static void set_weight(pl_tensor w, pl_tensor rest, int64_t i, double value)
{
    if (pl_tensor_none(rest))
        pl_ref_set1(w, i, value);
    else
        put_split(w, rest, i, (float)value);
}

int pl_ref_adamw(pl_device *device, pl_error *err, const pl_adamw_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    double beta1 = a->beta1, beta2 = a->beta2;
    double correction1 = 1 - pow(beta1, (double)a->step), correction2 = 1 - pow(beta2, (double)a->step);
    for (int64_t i = 0; i < a->w.shape[0]; i++) {
        double g = (double)a->grad_scale * pl_ref_get1(a->g, i), w = weight(a->w, a->rest, i);
        double m = beta1 * pl_ref_get1(a->m, i) + (1 - beta1) * g;
        double v = beta2 * pl_ref_get1(a->v, i) + (1 - beta2) * g * g;
        w -= a->lr * a->weight_decay * w;
        w -= a->lr / correction1 * m / (sqrt(v / correction2) + a->eps);
        set_weight(a->w, a->rest, i, w);
        pl_ref_set1(a->m, i, m);
        pl_ref_set1(a->v, i, v);
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_sgd(pl_device *device, pl_error *err, const pl_sgd_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    double momentum = a->momentum;
    for (int64_t i = 0; i < a->w.shape[0]; i++) {
        double w = weight(a->w, a->rest, i), g = (double)a->grad_scale * pl_ref_get1(a->g, i) + a->weight_decay * w;
        double update = g;
        if (!pl_tensor_none(a->m)) {
            double m = a->step == 1 ? g : momentum * pl_ref_get1(a->m, i) + g;
            pl_ref_set1(a->m, i, m);
            update = a->nesterov ? g + momentum * m : m;
        }
        set_weight(a->w, a->rest, i, w - a->lr * update);
    }
    pl_ref_end(device);
    return 0;
}
