#include "device/ref.h"

int pl_ref_embed(pl_device *device, pl_error *err, const pl_embed_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t t = 0; t < a->y.shape[0]; t++) {
        int64_t id = (int64_t)pl_ref_get1(a->ids, t), position = 0;
        bool positioned = !pl_tensor_none(a->position_table);
        if (positioned) position = (int64_t)pl_ref_get1(a->positions, t) + a->position_offset;
        for (int64_t j = 0; j < a->y.shape[1]; j++) {
            double y = (double)a->scale * pl_ref_get(a->table, id, j);
            if (positioned) y += pl_ref_get(a->position_table, position, j);
            pl_ref_set(a->y, t, j, y);
        }
    }
    pl_ref_end(device);
    return 0;
}

int pl_ref_embed_backward(pl_device *device, pl_error *err, const pl_embed_backward_args *a)
{
    PL_TRY(pl_ref_begin(device, err));
    for (int64_t t = 0; t < a->dy.shape[0]; t++) {
        int64_t id = (int64_t)pl_ref_get1(a->ids, t) + a->offset;
        if (a->has_skip && id - a->offset == a->skip) continue;
        for (int64_t j = 0; j < a->dy.shape[1]; j++) {
            pl_ref_set(a->dtable, id, j, pl_ref_get(a->dtable, id, j) + (double)a->scale * pl_ref_get(a->dy, t, j));
        }
    }
    pl_ref_end(device);
    return 0;
}
