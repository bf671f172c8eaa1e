/* The store as others see it: what is where. */
#include <stdlib.h>

#include "base/buf.h"
#include "op/op.h"
#include "train/store_internal.h"

static const pl_tensor none = {0};

bool pl_store_has(const pl_store *s, const pl_param *p, pl_state state)
{
    return pl_store_trains(s, p) && (int)state < PL_STATE_MOMENT1 + s->options.moments;
}

/* Elements [low, high) of the unit's, which are kept here, as far as they are the parameter's. */
static pl_part clip(const pl_store *s, const pl_param *p, pl_state state, int64_t low, int64_t high)
{
    const pl_placed *at = &s->placed[p->id];
    const pl_unit_store *u = &s->units[at->unit->index];
    const pl_block *block = pl_store_block(s, u, state);
    int64_t begin = at->offset, end = begin + pl_param_numel(p), from = begin > low ? begin : low,
            to = end < high ? end : high;
    if (to <= from) return (pl_part){.values = pl_tensor_1d(NULL, PL_F32, 0)};
    pl_part part = {.values = pl_tensor_1d(NULL, PL_F32, to - from), .first = from - begin, .on_disk = block->on_disk};
    if (block->on_disk) {
        part.at = block->at + 4 * (from - u->low);
    } else {
        part.values = pl_store_elements(s, u, state, from, to - from);
    }
    return part;
}

pl_part pl_store_part(const pl_store *s, const pl_param *p, pl_state state)
{
    const pl_unit_store *u = &s->units[s->placed[p->id].unit->index];
    if (!pl_store_has(s, p, state)) return (pl_part){.values = pl_tensor_1d(NULL, PL_F32, 0)};
    if (state != PL_STATE_GRADIENT) return clip(s, p, state, u->low, u->high);
    return s->whole_gradients ? clip(s, p, state, 0, u->n)
                              : clip(s, p, state, pl_store_slice_low(s, u), pl_store_slice_high(s, u));
}

pl_tensor pl_store_state(const pl_store *s, const pl_param *p, pl_state state)
{
    if (!pl_store_has(s, p, state)) return none;
    pl_part part = pl_store_part(s, p, state);
    if (part.on_disk || part.values.shape[0] != pl_param_numel(p)) return none;
    return pl_tensor_nd(part.values.data, PL_F32, p->ndim, p->shape);
}

static pl_extent extent_of(pl_part part)
{
    return (pl_extent){part.first, part.values.shape[0], part.values.dtype};
}

/* A state, or in the place of a master what operators read of a parameter that does not train. */
static pl_part part_of(const pl_store *s, const pl_param *p, pl_state state)
{
    return state == PL_STATE_MASTER && !pl_store_trains(s, p) ? pl_store_value_part(s, p) : pl_store_part(s, p, state);
}

pl_extent pl_store_kept(const pl_store *s, const pl_param *p, pl_state state)
{
    return extent_of(part_of(s, p, state));
}

pl_extent pl_store_share(const pl_store *s, const pl_param *p, pl_state state)
{
    const pl_unit_store *u = &s->units[s->placed[p->id].unit->index];
    pl_extent all = pl_store_kept(s, p, state);
    if (s->across && s->across->rank > 0) return (pl_extent){.dtype = all.dtype};
    if (pl_store_has(s, p, state))
        return extent_of(clip(s, p, state, pl_store_slice_low(s, u), pl_store_slice_high(s, u)));
    if (s->stage == 3 && !s->placed[p->id].wrapped) return all;
    int64_t padded = pl_store_round_up(all.count, PL_STORE_GRAIN),
            from = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank),
            to = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank + 1);
    return (pl_extent){from, (to < all.count ? to : all.count) - from, all.dtype};
}

/* Those elements of what is kept here. */
static int find_elements(
    pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, pl_part *out)
{
    *out = part_of(s, p, state);
    int64_t skip = first - out->first;
    if (skip < 0 || count < 0 || skip + count > out->values.shape[0]) {
        return PL_FAIL(err, PL_EBUG, "%s: elements %lld to %lld are not all here", p->name, (long long)first,
            (long long)(first + count));
    }
    out->values = pl_tensor_rows(out->values, skip, count);
    out->at += skip * pl_dtype_size(out->values.dtype);
    return 0;
}

int pl_store_read(
    pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, void *values)
{
    pl_part part;
    pl_device *device = s->run->device;
    PL_TRY(find_elements(err, s, p, state, first, count, &part));
    int64_t bytes = pl_tensor_bytes(part.values);
    if (part.on_disk) return pl_disk_fetch(err, s->options.offload.disk, part.at, values, bytes);
    device->ops->copy_out(device, values, part.values.data, bytes);
    return 0;
}

int pl_store_write(
    pl_error *err, pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, const void *values)
{
    pl_part part;
    pl_device *device = s->run->device;
    PL_TRY(find_elements(err, s, p, state, first, count, &part));
    int64_t bytes = pl_tensor_bytes(part.values);
    if (part.on_disk) return pl_disk_put(err, s->options.offload.disk, part.at, values, bytes);
    device->ops->copy_in(device, part.values.data, values, bytes);
    return 0;
}

/* From the device to the disk. */
static int put(pl_store *s, int64_t at, pl_tensor t)
{
    pl_device *device = s->run->device;
    pl_disk *disk = s->options.offload.disk;
    int64_t bytes = pl_tensor_bytes(t);
    if (device->host_memory) return pl_disk_put(s->run->err, disk, at, t.data, bytes);
    char *host;
    PL_TRY(pl_calloc(s->run->err, (size_t)bytes, 1, &host));
    device->ops->copy_out(device, host, t.data, bytes);
    int rc = pl_disk_put(s->run->err, disk, at, host, bytes);
    free(host);
    return rc;
}

int pl_store_set(pl_store *s, const pl_param *p, pl_tensor whole)
{
    if (whole.data != p->value.data || !whole.data) PL_TRY(pl_copy(s->run, p->value, whole));
    pl_part kept = pl_store_part(s, p, PL_STATE_MASTER);
    int64_t n = kept.values.shape[0];
    if (n == 0 || s->model->dtype == PL_F32) return 0; /* the value is the master, or pl_store_keep makes it so */
    pl_tensor flat = pl_tensor_1d(whole.data, PL_F32, pl_param_numel(p)), mine = pl_tensor_rows(flat, kept.first, n);
    if (kept.on_disk) return put(s, kept.at, mine);
    return mine.data == kept.values.data && mine.data ? 0 : pl_copy(s->run, kept.values, mine);
}
