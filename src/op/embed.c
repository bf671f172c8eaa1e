#include "op/check.h"

int pl_embed(pl_run *run, pl_embed_args a)
{
    PL_TRY(pl_check_matrix(run, "embed: y", a.y, PL_ANY, -1, -1));
    int64_t rows = a.y.shape[0], hidden = a.y.shape[1];
    PL_TRY(pl_check_matrix(run, "embed: table", a.table, PL_ANY, -1, hidden));
    PL_TRY(pl_check_vector(run, "embed: ids", a.ids, PL_ONLY_I32, rows));
    double bytes = 2 * (double)pl_tensor_bytes(a.y) + (double)pl_tensor_bytes(a.ids);
    if (!pl_tensor_none(a.position_table)) {
        PL_TRY(pl_check_matrix(run, "embed: position_table", a.position_table, PL_ANY, -1, hidden));
        PL_TRY(pl_check_vector(run, "embed: positions", a.positions, PL_ONLY_I32, rows));
        bytes += (double)pl_tensor_bytes(a.y);
    }
    pl_count(run, 2 * (double)pl_tensor_numel(a.y), bytes);
    return run->device->ops->embed(run->device, run->err, &a);
}

int pl_embed_backward(pl_run *run, pl_embed_backward_args a)
{
    PL_TRY(pl_check_matrix(run, "embed_backward: dy", a.dy, PL_ANY, -1, -1));
    PL_TRY(pl_check_matrix(run, "embed_backward: dtable", a.dtable, PL_ONLY_F32, -1, a.dy.shape[1]));
    PL_TRY(pl_check_vector(run, "embed_backward: ids", a.ids, PL_ONLY_I32, a.dy.shape[0]));
    double n = (double)pl_tensor_numel(a.dy);
    pl_count(run, 2 * n, (double)pl_tensor_bytes(a.dy) + 8 * n + (double)pl_tensor_bytes(a.ids));
    return run->device->ops->embed_backward(run->device, run->err, &a);
}
