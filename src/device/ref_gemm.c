#include "device/ref.h"

int pl_ref_gemm(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    (void)scratch;
    PL_TRY(pl_ref_begin(device, err));
    int64_t inner = args->transpose_a ? args->a.shape[0] : args->a.shape[1];
    for (int64_t i = 0; i < args->c.shape[0]; i++) {
        for (int64_t j = 0; j < args->c.shape[1]; j++) {
            double sum = 0;
            for (int64_t l = 0; l < inner; l++) {
                double a = args->transpose_a ? pl_ref_get(args->a, l, i) : pl_ref_get(args->a, i, l);
                double b = args->transpose_b ? pl_ref_get(args->b, j, l) : pl_ref_get(args->b, l, j);
                sum += a * b;
            }
            for (int64_t l = 0; !pl_tensor_none(args->a2) && l < args->a2.shape[1]; l++) {
                double b = args->transpose_b2 ? pl_ref_get(args->b2, j, l) : pl_ref_get(args->b2, l, j);
                sum += pl_ref_get(args->a2, i, l) * b;
            }
            sum *= args->alpha;
            if (!pl_tensor_none(args->bias)) sum += pl_ref_get1(args->bias, j);
            if (args->accumulate) sum += pl_ref_get(args->c, i, j);
            pl_ref_set(args->c, i, j, sum);
        }
    }
    pl_ref_end(device);
    return 0;
}
