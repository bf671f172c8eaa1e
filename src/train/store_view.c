/* The store as others see it: what is where. */
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "op/op.h"
#include "train/store_internal.h"

#define HALVES ((int64_t)1 << 14) /* masters that are read or written at a time where they are split */

static const pl_tensor none = {0};

bool pl_store_has(const pl_store *s, const pl_param *p, pl_state state)
{
    return pl_store_trains(s, p) && (int)state < PL_STATE_MOMENT1 + s->options.moments;
}

/* Elements [low, high) of the unit's, as far as they are the parameter's. */
static pl_extent clip(const pl_store *s, const pl_param *p, int64_t low, int64_t high)
{
    int64_t begin = s->placed[p->id].offset, end = begin + pl_param_numel(p), from = begin > low ? begin : low,
            to = end < high ? end : high;
    return to > from ? (pl_extent){from - begin, to - from, PL_F32} : (pl_extent){.dtype = PL_F32};
}

pl_extent pl_store_kept(const pl_store *s, const pl_param *p, pl_state state)
{
    const pl_unit_store *u = &s->units[s->placed[p->id].unit->index];
    if (state == PL_STATE_MASTER && !pl_store_trains(s, p)) {
        pl_part part = pl_store_value_part(s, p);
        return (pl_extent){part.first, part.values.shape[0], part.values.dtype};
    }
    if (!pl_store_has(s, p, state)) return (pl_extent){.dtype = PL_F32};
    if (state != PL_STATE_GRADIENT) return clip(s, p, u->low, u->high);
    return s->whole_gradients ? clip(s, p, 0, u->n) : clip(s, p, pl_store_slice_low(s, u), pl_store_slice_high(s, u));
}

/* Elements [first, first + count) of what operators read, which are here. */
static pl_part values_of(const pl_store *s, const pl_param *p, int64_t first, int64_t count)
{
    pl_part part = pl_store_value_part(s, p);
    int64_t skip = first - part.first;
    part.values = pl_tensor_rows(part.values, skip, count);
    part.at += skip * pl_dtype_size(part.values.dtype);
    part.first = first;
    return part;
}

/* The same of what is kept of a state: what bf16 masters lack, in the place of masters. */
static pl_part state_of(const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count)
{
    const pl_placed *at = &s->placed[p->id];
    const pl_unit_store *u = &s->units[at->unit->index];
    const pl_block *block = &u->states[state];
    pl_part part = {.first = first, .on_disk = block->on_disk};
    if (block->on_disk) {
        part.values = pl_tensor_1d(NULL, pl_store_state_dtype(state), count);
        part.at = block->at + pl_store_state_bytes(state, at->offset + first - u->low);
    } else {
        part.values = pl_store_elements(s, u, state, at->offset + first, count);
    }
    return part;
}

pl_tensor pl_store_state(const pl_store *s, const pl_param *p, pl_state state)
{
    pl_extent kept = pl_store_kept(s, p, state);
    if (!pl_store_has(s, p, state) || kept.count != pl_param_numel(p)) return none;
    if (state == PL_STATE_MASTER && pl_store_splits(s, p)) return none;
    pl_part part = state == PL_STATE_MASTER ? values_of(s, p, 0, kept.count) : state_of(s, p, state, 0, kept.count);
    return part.on_disk ? none : pl_tensor_nd(part.values.data, PL_F32, p->ndim, p->shape);
}

pl_extent pl_store_share(const pl_store *s, const pl_param *p, pl_state state)
{
    const pl_unit_store *u = &s->units[s->placed[p->id].unit->index];
    pl_extent all = pl_store_kept(s, p, state);
    if (s->across && s->across->rank > 0) return (pl_extent){.dtype = all.dtype};
    if (pl_store_has(s, p, state)) return clip(s, p, pl_store_slice_low(s, u), pl_store_slice_high(s, u));
    if (s->stage == 3 && !s->placed[p->id].wrapped) return all;
    int64_t padded = pl_store_round_up(all.count, PL_STORE_GRAIN),
            from = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank),
            to = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank + 1);
    return (pl_extent){from, (to < all.count ? to : all.count) - from, all.dtype};
}

static int check_kept(pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count)
{
    pl_extent kept = pl_store_kept(s, p, state);
    if (first >= kept.first && count >= 0 && first + count <= kept.first + kept.count) return 0;
    return PL_FAIL(err, PL_EBUG, "%s: elements %lld to %lld are not all here", p->name, (long long)first,
        (long long)(first + count));
}

static int fetch(pl_error *err, const pl_store *s, pl_part part, void *host)
{
    pl_device *device = s->run->device;
    int64_t bytes = pl_tensor_bytes(part.values);
    if (part.on_disk) return pl_disk_fetch(err, s->options.offload.disk, part.at, host, bytes);
    device->ops->copy_out(device, host, part.values.data, bytes);
    return 0;
}

static int put(pl_error *err, const pl_store *s, pl_part part, const void *host)
{
    pl_device *device = s->run->device;
    int64_t bytes = pl_tensor_bytes(part.values);
    if (part.on_disk) return pl_disk_put(err, s->options.offload.disk, part.at, host, bytes);
    device->ops->copy_in(device, part.values.data, host, bytes);
    return 0;
}

/* Masters that are split, in host memory. */
typedef struct halves {
    uint16_t high[HALVES];
    int16_t rest[HALVES];
} halves;

static int read_split(
    pl_error *err, const pl_store *s, const pl_param *p, int64_t first, int64_t count, halves *h, float *values)
{
    for (int64_t at = 0; at < count; at += HALVES) {
        int64_t n = count - at < HALVES ? count - at : HALVES;
        PL_TRY(fetch(err, s, values_of(s, p, first + at, n), h->high));
        PL_TRY(fetch(err, s, state_of(s, p, PL_STATE_MASTER, first + at, n), h->rest));
        for (int64_t i = 0; i < n; i++) {
            float joined = pl_f32_join(h->high[i], h->rest[i]);
            memcpy(values + at + i, &joined, sizeof joined);
        }
    }
    return 0;
}

static int write_split(
    pl_error *err, const pl_store *s, const pl_param *p, int64_t first, int64_t count, halves *h, const float *values)
{
    for (int64_t at = 0; at < count; at += HALVES) {
        int64_t n = count - at < HALVES ? count - at : HALVES;
        for (int64_t i = 0; i < n; i++) {
            float value;
            memcpy(&value, values + at + i, sizeof value);
            h->high[i] = pl_f32_split(value, &h->rest[i]);
        }
        PL_TRY(put(err, s, values_of(s, p, first + at, n), h->high));
        PL_TRY(put(err, s, state_of(s, p, PL_STATE_MASTER, first + at, n), h->rest));
    }
    return 0;
}

int pl_store_read(
    pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, void *values)
{
    PL_TRY(check_kept(err, s, p, state, first, count));
    if (state != PL_STATE_MASTER) return fetch(err, s, state_of(s, p, state, first, count), values);
    if (!pl_store_splits(s, p)) return fetch(err, s, values_of(s, p, first, count), values);
    halves *h;
    PL_TRY(pl_calloc(err, 1, sizeof *h, &h));
    int rc = read_split(err, s, p, first, count, h, values);
    free(h);
    return rc;
}

int pl_store_write(
    pl_error *err, pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, const void *values)
{
    PL_TRY(check_kept(err, s, p, state, first, count));
    if (state != PL_STATE_MASTER) return put(err, s, state_of(s, p, state, first, count), values);
    if (!pl_store_splits(s, p)) return put(err, s, values_of(s, p, first, count), values);
    halves *h;
    PL_TRY(pl_calloc(err, 1, sizeof *h, &h));
    int rc = write_split(err, s, p, first, count, h, values);
    free(h);
    return rc;
}

/* From the device to the disk. */
static int put_on_disk(pl_store *s, int64_t at, pl_tensor t)
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

/* half and what it lacks, which goes where it is kept. */
static int set_split(pl_store *s, pl_tensor half, pl_part rest, pl_tensor x)
{
    int64_t mark = pl_stack_mark(s->run->work);
    pl_tensor staging = rest.values;
    if (rest.on_disk) PL_TRY(pl_stack_push(s->run->err, s->run->work, PL_I16, 1, x.shape, &staging));
    PL_TRY(pl_split_f32(s->run, half, staging, x));
    if (rest.on_disk) PL_TRY(put_on_disk(s, rest.at, staging));
    pl_stack_pop(s->run->work, mark);
    return 0;
}

/* What is not split in p->value is the master, or pl_store_keep makes it so. */
int pl_store_set(pl_store *s, const pl_param *p, pl_tensor whole)
{
    if (whole.data != p->value.data || !whole.data) PL_TRY(pl_copy(s->run, p->value, whole));
    pl_extent kept = pl_store_kept(s, p, PL_STATE_MASTER);
    if (!pl_store_splits(s, p) || kept.count == 0) return 0;
    int64_t n = pl_param_numel(p);
    pl_tensor values = pl_tensor_1d(p->value.data, PL_BF16, n), x = pl_tensor_1d(whole.data, PL_F32, n);
    return set_split(s, pl_tensor_rows(values, kept.first, kept.count),
        state_of(s, p, PL_STATE_MASTER, kept.first, kept.count), pl_tensor_rows(x, kept.first, kept.count));
}
