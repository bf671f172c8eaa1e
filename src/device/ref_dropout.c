#include <math.h>

#include "device/ref.h"

int pl_ref_dropout(pl_device *device, pl_error *err, const pl_dropout_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    int64_t columns = a->x.shape[1];
    for (int64_t t = 0; t < a->x.shape[0]; t++) {
        for (int64_t j = 0; j < columns; j++) {
            uint64_t element = (uint64_t)((a->first_row + t) * columns + j);
            uint32_t words[4];
            pl_rng_block(&a->rng, element / 4, words);
            bool keep = words[element % 4] >= (double)a->p * 0x1p32;
            double y = keep ? pl_ref_get(a->x, t, j) / (1 - (double)a->p) : 0;
            if (a->accumulate) y += pl_ref_get(a->y, t, j);
            pl_ref_set(a->y, t, j, y);
        }
    }
    pl_ref_end(device);
    return 0;
}
