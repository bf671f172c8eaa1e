#include <math.h>

#include "device/ref.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

/* The value and the slope of an activation at x. */
static void activate(pl_act act, double x, double *value, double *slope)
{
    switch (act) {
    case PL_ACT_SILU:
    case PL_ACT_GELU_QUICK: {
        double k = act == PL_ACT_SILU ? 1 : 1.702, s = sigmoid(k * x);
        *value = x * s;
        *slope = s + k * x * s * (1 - s);
        return;
    }
    case PL_ACT_GELU: {
        double below = 0.5 * erfc(-x * sqrt(0.5)), density = exp(-0.5 * x * x) / sqrt(2 * acos(-1));
        *value = x * below;
        *slope = below + x * density;
        return;
    }
    case PL_ACT_GELU_TANH: {
        double k = sqrt(2 / acos(-1)), h = tanh(k * (x + 0.044715 * x * x * x));
        *value = 0.5 * x * (1 + h);
        *slope = 0.5 * (1 + h) + 0.5 * x * (1 - h * h) * k * (1 + 3 * 0.044715 * x * x);
        return;
    }
    default: /* PL_ACT_RELU */ *value = x < 0 ? 0 : x; *slope = x > 0;
    }
}

int pl_ref_act(pl_device *device, pl_error *err, const pl_act_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        for (int64_t j = 0; j < a->x.shape[1]; j++) {
            double value, slope;
            activate(a->act, pl_ref_get(a->x, i, j), &value, &slope);
            if (!pl_tensor_none(a->up)) value *= pl_ref_get(a->up, i, j);
            pl_ref_set(a->y, i, j, value);
        }
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_act_backward(pl_device *device, pl_error *err, const pl_act_backward_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    bool gated = !pl_tensor_none(a->up);
    for (int64_t i = 0; i < a->x.shape[0]; i++) {
        for (int64_t j = 0; j < a->x.shape[1]; j++) {
            double value, slope, dy = pl_ref_get(a->dy, i, j), up = gated ? pl_ref_get(a->up, i, j) : 1;
            activate(a->act, pl_ref_get(a->x, i, j), &value, &slope);
            pl_ref_set(a->dx, i, j, dy * up * slope);
            if (gated) pl_ref_set(a->dup, i, j, dy * value);
            if (!pl_tensor_none(a->y)) pl_ref_set(a->y, i, j, value * up);
        }
    }
    pl_ref_end(device);
    return 0;
}
