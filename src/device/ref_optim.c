#include <math.h>

#include "device/ref.h"

int pl_ref_adamw(pl_device *device, pl_error *err, const pl_adamw_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    double beta1 = a->beta1, beta2 = a->beta2;
    double correction1 = 1 - pow(beta1, (double)a->step), correction2 = 1 - pow(beta2, (double)a->step);
    for (int64_t i = 0; i < a->w.shape[0]; i++) {
        double g = (double)a->grad_scale * pl_ref_get1(a->g, i), w = pl_ref_get1(a->w, i);
        double m = beta1 * pl_ref_get1(a->m, i) + (1 - beta1) * g;
        double v = beta2 * pl_ref_get1(a->v, i) + (1 - beta2) * g * g;
        w -= a->lr * a->weight_decay * w;
        w -= a->lr / correction1 * m / (sqrt(v / correction2) + a->eps);
        pl_ref_set1(a->w, i, w);
        pl_ref_set1(a->m, i, m);
        pl_ref_set1(a->v, i, v);
        if (!pl_tensor_none(a->copy)) pl_ref_set1(a->copy, i, pl_ref_get1(a->w, i));
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_sgd(pl_device *device, pl_error *err, const pl_sgd_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    double momentum = a->momentum;
    for (int64_t i = 0; i < a->w.shape[0]; i++) {
        double w = pl_ref_get1(a->w, i), g = (double)a->grad_scale * pl_ref_get1(a->g, i) + a->weight_decay * w;
        double update = g;
        if (!pl_tensor_none(a->m)) {
            double m = a->step == 1 ? g : momentum * pl_ref_get1(a->m, i) + g;
            pl_ref_set1(a->m, i, m);
            update = a->nesterov ? g + momentum * m : m;
        }
        pl_ref_set1(a->w, i, w - a->lr * update);
        if (!pl_tensor_none(a->copy)) pl_ref_set1(a->copy, i, pl_ref_get1(a->w, i));
    }
    pl_ref_end(device);
    return 0;
}
