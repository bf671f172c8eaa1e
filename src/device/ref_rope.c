#include "device/ref.h"

int pl_ref_rope(pl_device *device, pl_error *err, const pl_rope_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    int half = (int)a->cos.shape[1];
    for (int64_t t = 0; t < a->x.t.shape[0]; t++) {
        int64_t position = (int64_t)pl_ref_get1(a->positions, t);
        for (int h = 0; h < a->x.heads; h++) {
            for (int d = 0; d < half; d++) {
                double c = pl_ref_get(a->cos, position, d), s = pl_ref_get(a->sin, position, d);
                double p = pl_ref_get_head(a->x, t, h, d), q = pl_ref_get_head(a->x, t, h, d + half);
                if (a->backward) s = -s;
                pl_ref_set_head(a->x, t, h, d, p * c - q * s);
                pl_ref_set_head(a->x, t, h, d + half, q * c + p * s);
            }
        }
    }
    pl_ref_end(device);
    return 0;
}
