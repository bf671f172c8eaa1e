/* Embedding rows: gathered, and their gradients scattered. */
#include "device/kernel.h"

PL_INLINE void gather(
    pl_dtype ty, void *y, pl_dtype tt, const void *row, float scale, pl_tensor positions, int64_t position)
{
    int64_t n = positions.shape[1];
    pl_vf factor = pl_vset(scale);
    const void *added = pl_row(positions, position);
    PL_EACH(j, lanes, n,
        { pl_vput(ty, y, j, lanes, factor * pl_vget(tt, row, j, lanes) + pl_vget(positions.dtype, added, j, lanes)); });
}

PL_INLINE void gather_plain(pl_dtype ty, void *y, pl_dtype tt, const void *row, float scale, int64_t n)
{
    pl_vf factor = pl_vset(scale);
    PL_EACH(j, lanes, n, { pl_vput(ty, y, j, lanes, factor * pl_vget(tt, row, j, lanes)); });
}

static void embed_row(const pl_embed_args *a, int64_t t)
{
    int64_t id = ((const int32_t *)a->ids.data)[t], n = a->y.shape[1];
    void *y = pl_row(a->y, t);
    const void *row = pl_row(a->table, id);
    if (!pl_tensor_none(a->position_table)) {
        int64_t position = ((const int32_t *)a->positions.data)[t] + a->position_offset;
        gather(a->y.dtype, y, a->table.dtype, row, a->scale, a->position_table, position);
    } else if (a->y.dtype == a->table.dtype && a->scale == 1) {
        memcpy(y, row, (size_t)(n * pl_dtype_size(a->y.dtype)));
    } else {
        gather_plain(a->y.dtype, y, a->table.dtype, row, a->scale, n);
    }
}

int PL_CPU(embed)(pl_device *device, pl_error *err, const pl_embed_args *a)
{
    (void)err;
    int team = pl_team(device, 2 * pl_tensor_bytes(a->y));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < a->y.shape[0]; t++) embed_row(a, t);
    return 0;
}

PL_INLINE void scatter(float *row, pl_dtype dtype, const void *dy, float scale, int64_t n)
{
    pl_vf factor = pl_vset(scale);
    PL_EACH(j, lanes, n,
        { pl_vput(PL_F32, row, j, lanes, pl_vget(PL_F32, row, j, lanes) + factor * pl_vget(dtype, dy, j, lanes)); });
}

/* The scatter is cut by the ids' residues and by columns, not by t, so that each element of the table belongs to one
   piece, which adds to it in the order of t. */
#define RESIDUES 16
#define COLUMNS 512

static void scatter_piece(const pl_embed_backward_args *a, int64_t residue, int64_t from)
{
    int64_t n = a->dy.shape[1] - from < COLUMNS ? a->dy.shape[1] - from : COLUMNS;
    const int32_t *ids = a->ids.data;
    for (int64_t t = 0; t < a->dy.shape[0]; t++) {
        if (ids[t] % RESIDUES != residue || (a->has_skip && ids[t] == a->skip)) continue;
        float *row = (float *)pl_row(a->dtable, ids[t] + a->offset) + from;
        const char *dy = (const char *)pl_row(a->dy, t) + from * pl_dtype_size(a->dy.dtype);
        if (a->dy.dtype == PL_F32)
            scatter(row, PL_F32, dy, a->scale, n);
        else
            scatter(row, PL_BF16, dy, a->scale, n);
    }
}

int PL_CPU(embed_backward)(pl_device *device, pl_error *err, const pl_embed_backward_args *a)
{
    (void)err;
    int64_t parts = (a->dy.shape[1] + COLUMNS - 1) / COLUMNS;
    int team = pl_team(device, 3 * pl_tensor_bytes(a->dy));
#pragma omp parallel for num_threads(team) schedule(dynamic)
    for (int64_t piece = 0; piece < RESIDUES * parts; piece++) {
        scatter_piece(a, piece % RESIDUES, piece / RESIDUES * COLUMNS);
    }
    return 0;
}
