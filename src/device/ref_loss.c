#include "device/ref.h"

#include <math.h>

static double capped(const pl_loss_args *args, int64_t i, int64_t j)
{
    double z = args->logit_scale * pl_ref_get(args->logits, i, j);
    return args->softcap > 0 ? args->softcap * tanh(z / args->softcap) : z;
}

int pl_ref_loss(pl_device *device, pl_error *err, const pl_loss_args *args)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t i = 0; i < args->logits.shape[0]; i++) {
        int64_t target = (int64_t)pl_ref_get1(args->targets, i);
        double most = -INFINITY, sum = 0;
        for (int64_t j = 0; j < args->logits.shape[1]; j++) most = fmax(most, capped(args, i, j));
        for (int64_t j = 0; j < args->logits.shape[1]; j++) sum += exp(capped(args, i, j) - most);
        double lse = most + log(sum);
        if (!pl_tensor_none(args->loss)) {
            pl_ref_set1(args->loss, i, target < 0 ? 0 : lse - capped(args, i, target));
        }
        /* dlogits of column j may lie where logits of columns up to j lay, or, being narrower, before them: so in
           order of columns nothing is overwritten that is still to be read. */
        for (int64_t j = 0; !pl_tensor_none(args->dlogits) && j < args->logits.shape[1]; j++) {
            double z = capped(args, i, j);
            double slope = args->softcap > 0 ? 1 - (z / args->softcap) * (z / args->softcap) : 1;
            double dz = exp(z - lse) - (j == target);
            pl_ref_set(args->dlogits, i, j, target < 0 ? 0 : args->grad_scale * args->logit_scale * slope * dz);
        }
    }
    pl_ref_end(device);
    return 0;
}
