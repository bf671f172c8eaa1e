#include "train/store_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "op/op.h"
#include "tensor/convert.h"
#include "train/init.h"

/* Elements loaded at a time, so that no more of a file than that is in memory twice. */
#define LOADED ((int64_t)1 << 22)
#define SPLIT ((int64_t)1 << 18) /* the same, where it takes memory */

/* ---- memory ---- */

int pl_store_take(pl_store *s, pl_block *block, pl_mem_tag tag, int64_t bytes)
{
    if (bytes == 0) return 0;
    PL_TRY(pl_mem_alloc(s->run->err, s->run->mem, tag, bytes, &block->data));
    block->bytes = bytes;
    block->tag = tag;
    block->there = true;
    return 0;
}

void pl_store_give_back(pl_store *s, pl_block *block)
{
    if (block->there) pl_mem_free(s->run->mem, block->tag, block->data, block->bytes);
}

/* The same, filled with zeros. */
static int take_zeros(pl_store *s, pl_block *block, pl_mem_tag tag, pl_dtype dtype, int64_t n)
{
    PL_TRY(pl_store_take(s, block, tag, n * pl_dtype_size(dtype)));
    return block->there ? pl_fill(s->run, pl_tensor_1d(block->data, dtype, n), 0) : 0;
}

/* ---- placing ---- */

int pl_host_tensor_check(pl_error *err, const pl_param *p, const pl_host_tensor *t)
{
    bool same = p->ndim == t->ndim;
    for (int d = 0; d < p->ndim && same; d++) same = p->shape[d] == t->shape[d];
    if (same) return 0;
    char have[96], want[96];
    pl_tensor expected = pl_tensor_nd(NULL, t->dtype, p->ndim, p->shape),
              found = pl_tensor_nd(NULL, t->dtype, t->ndim, t->shape);
    return PL_FAIL(err, PL_EINPUT, "%s: tensor %s is %s; the model's configuration says %s", t->file ? t->file : "file",
        pl_param_source(p), pl_tensor_describe(found, have), pl_tensor_describe(expected, want));
}

int pl_host_tensor_read(pl_error *err, const pl_host_tensor *t, int64_t first, int64_t count, float *values)
{
    int64_t size = pl_dtype_size(t->dtype);
    for (int64_t at = 0; at < count; at += LOADED) {
        int64_t n = count - at < LOADED ? count - at : LOADED;
        const char *from = (const char *)t->data + (first + at) * size;
        PL_TRY(pl_convert(err, values + at, PL_F32, from, t->dtype, n));
        pl_map_forget(t->map, from, (size_t)(n * size));
    }
    return 0;
}

/* Uses the file's own memory for a frozen parameter whose dtype is right, if the device can. */
static bool place_in_mapping(pl_store *s, pl_param *p, const pl_host_tensor *t)
{
    pl_device *device = s->run->device;
    if (t->dtype != pl_store_dtype(s, p) || p->keep_f32 || p->is_private || pl_store_params_on_disk(s)) return false;
    int64_t bytes = pl_param_numel(p) * pl_dtype_size(t->dtype);
    void *data = device->ops->wrap(device, t->data, bytes);
    if (!data) return false;
    s->placed[p->id].wrapped = data;
    s->placed[p->id].wrapped_bytes = bytes;
    p->value = pl_tensor_nd(data, t->dtype, p->ndim, p->shape);
    pl_mem_count(s->run->mem, PL_MEM_WEIGHTS, bytes);
    return true;
}

/* Extends the unit's list of sweeps by one parameter; one sweep has one dtype to be read in. */
static int add_sweep(pl_store *s, pl_unit_store *u, const pl_param *p, int64_t padded)
{
    pl_sweep *last = u->nsweeps ? &u->sweeps[u->nsweeps - 1] : NULL;
    if (last && last->decay == p->decay && last->lr_scale == p->lr_scale && u->n != u->narrow) {
        last->n += padded;
        return 0;
    }
    pl_sweep *grown = realloc(u->sweeps, (size_t)(u->nsweeps + 1) * sizeof *grown);
    if (!grown) return PL_FAIL_NOMEM(s->run->err);
    u->sweeps = grown;
    u->sweeps[u->nsweeps++] = (pl_sweep){u->n, padded, p->decay, p->lr_scale};
    return 0;
}

/* Gives the unit's trainable parameters that are read in f32 beside a model of bf16, or the others, their places. */
static int lay_out_trainable(pl_store *s, pl_unit *unit, bool wide)
{
    pl_unit_store *u = &s->units[unit->index];
    for (int i = 0; i < unit->nparams; i++) {
        pl_param *p = unit->params[i];
        int64_t padded = pl_store_round_up(pl_param_numel(p), PL_STORE_GRAIN);
        if (!pl_store_trains(s, p) || (pl_store_dtype(s, p) != s->model->dtype) != wide) continue;
        PL_TRY(add_sweep(s, u, p, padded));
        s->placed[p->id].offset = u->n;
        u->n += padded;
    }
    return 0;
}

static int lay_out(pl_store *s, pl_unit *unit, const pl_host_tensor *found, const bool *is_found)
{
    pl_unit_store *u = &s->units[unit->index];
    u->narrow = -1; /* where a sweep must end; not known yet */
    PL_TRY(lay_out_trainable(s, unit, false));
    u->narrow = u->n;
    PL_TRY(lay_out_trainable(s, unit, true));
    u->value_bytes = pl_store_value_at(s, u, u->n);
    for (int i = 0; i < unit->nparams; i++) {
        pl_param *p = unit->params[i];
        if (pl_store_trains(s, p) || (is_found[p->id] && place_in_mapping(s, p, &found[p->id]))) continue;
        int64_t padded = pl_store_round_up(pl_param_numel(p), PL_STORE_GRAIN);
        s->placed[p->id].offset = u->frozen_bytes;
        u->frozen_bytes += padded * pl_dtype_size(pl_store_dtype(s, p));
    }
    u->frozen_bytes = pl_store_round_up(u->frozen_bytes, PL_STORE_BYTES);
    return 0;
}

/* Where the unit's buffers are cut among the processes. */
static int cut(pl_store *s, pl_unit_store *u)
{
    int size = s->comm->size;
    int64_t *bounds;
    PL_TRY(pl_calloc(s->run->err, 4 * ((size_t)size + 1), sizeof *bounds, &bounds));
    u->bounds = bounds;
    u->value_bounds = bounds + size + 1;
    u->frozen_bounds = bounds + 2 * (size + 1);
    u->gradient_bounds = bounds + 3 * (size + 1);
    for (int r = 0; r <= size; r++) {
        u->bounds[r] = pl_comm_cut(u->n, PL_STORE_GRAIN, size, r);
        u->value_bounds[r] = pl_store_value_at(s, u, u->bounds[r]);
        u->frozen_bounds[r] = pl_comm_cut(u->frozen_bytes, PL_STORE_BYTES, size, r);
        u->gradient_bounds[r] = 4 * u->bounds[r];
    }
    u->low = s->stage > 0 ? pl_store_slice_low(s, u) : 0;
    u->high = s->stage > 0 ? pl_store_slice_high(s, u) : u->n;
    return 0;
}

static bool has_state(const pl_store *s, pl_state state)
{
    if (state == PL_STATE_MASTER) return s->model->dtype != PL_F32;
    return (int)state < PL_STATE_MOMENT1 + s->options.moments;
}

static bool state_on_disk(const pl_store *s, pl_state state)
{
    return s->options.offload.disk && s->options.offload.optimizer && state != PL_STATE_GRADIENT;
}

/* Elements that the unit has here of a state. */
static int64_t kept_of(const pl_store *s, const pl_unit_store *u, pl_state state)
{
    if (state != PL_STATE_GRADIENT) return u->high - u->low;
    return s->whole_gradients ? u->n : pl_store_slice_high(s, u) - pl_store_slice_low(s, u);
}

static void place_states_on_disk(pl_store *s, pl_unit_store *u)
{
    for (int k = 0; k < PL_STATE_COUNT && u->n > 0; k++) {
        pl_state state = (pl_state)k;
        if (!has_state(s, state) || !state_on_disk(s, state)) continue;
        int64_t bytes = pl_store_state_bytes(state, kept_of(s, u, state));
        pl_store_place_on_disk(s, &u->states[k], bytes, 0); /* a new file is zeros */
    }
}

/* A state of all units. In one piece it is of large pages, even where each unit's is small, as adapters' are: filling
   it then takes a fraction of the time. */
static int allocate_state(pl_store *s, pl_state state, pl_mem_tag tag)
{
    int64_t all = 0, at = 0;
    if (!has_state(s, state) || state_on_disk(s, state)) return 0;
    for (int i = 0; i < s->model->nunits; i++) all += kept_of(s, &s->units[i], state);
    PL_TRY(take_zeros(s, &s->states[state], tag, pl_store_state_dtype(state), all));
    for (int i = 0; i < s->model->nunits; i++) {
        int64_t n = kept_of(s, &s->units[i], state);
        if (n == 0) continue;
        s->units[i].states[state] = (pl_block){
            .data = pl_store_at(s->states[state].data, pl_store_state_bytes(state, at)),
            .bytes = pl_store_state_bytes(state, n),
            .tag = tag,
        };
        at += n;
    }
    return 0;
}

static int allocate_states(pl_store *s)
{
    PL_TRY(allocate_state(s, PL_STATE_MASTER, PL_MEM_MASTERS));
    PL_TRY(allocate_state(s, PL_STATE_GRADIENT, PL_MEM_GRADIENTS));
    PL_TRY(allocate_state(s, PL_STATE_MOMENT1, PL_MEM_OPTIMIZER));
    return allocate_state(s, PL_STATE_MOMENT2, PL_MEM_OPTIMIZER);
}

static int allocate(pl_store *s, pl_unit_store *u)
{
    int r = s->comm->rank;
    bool sharded = s->stage == 3;
    int64_t values = sharded ? u->value_bounds[r + 1] - u->value_bounds[r] : u->value_bytes,
            frozen = sharded ? u->frozen_bounds[r + 1] - u->frozen_bounds[r] : u->frozen_bytes;
    if (pl_store_params_on_disk(s)) {
        pl_store_place_on_disk(s, &u->frozen, frozen, 0);
        pl_store_place_on_disk(s, &u->values, values, u->value_bounds[r] % PL_STORE_BYTES);
    } else {
        PL_TRY(pl_store_take(s, &u->frozen, PL_MEM_WEIGHTS, frozen));
        /* Everything that is read is a multiple of two bytes, and zeros are zeros. */
        PL_TRY(take_zeros(s, &u->values, PL_MEM_WEIGHTS, PL_BF16, values / 2));
    }
    u->readable = !sharded;
    u->here = sharded ? NULL : u->values.data;
    u->frozen_here = sharded ? NULL : u->frozen.data;
    place_states_on_disk(s, u);
    return 0;
}

static pl_tensor none_of(void)
{
    return (pl_tensor){0};
}

void pl_store_point(pl_store *s, const pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    for (int i = 0; i < unit->nparams; i++) {
        pl_param *p = unit->params[i];
        const pl_placed *at = &s->placed[p->id];
        pl_dtype dtype = pl_store_dtype(s, p);
        if (!at->wrapped) {
            void *data = pl_store_trains(s, p) ? pl_store_at(u->here, pl_store_value_at(s, u, at->offset))
                                               : pl_store_at(u->frozen_here, at->offset);
            p->value = u->readable ? pl_tensor_nd(data, dtype, p->ndim, p->shape) : none_of();
        }
        p->grad = none_of();
        if (!pl_store_trains(s, p) || (!s->whole_gradients && !u->gradients_open)) continue;
        const void *base =
            s->whole_gradients ? u->states[PL_STATE_GRADIENT].data : s->grad_slots[u->gradient_slot].data;
        p->grad = pl_tensor_nd(pl_store_at(base, 4 * at->offset), PL_F32, p->ndim, p->shape);
    }
}

/* ---- lending and slots ---- */

/* Unit `user` uses a parameter of unit `lender`. */
static int add_lender(pl_store *s, int user, int lender)
{
    pl_unit_store *u = &s->units[user];
    for (int i = 0; i < u->lender_count; i++) {
        if (u->lenders[i] == lender) return 0;
    }
    int *grown = realloc(u->lenders, (size_t)(u->lender_count + 1) * sizeof *grown);
    if (!grown) return PL_FAIL_NOMEM(s->run->err);
    u->lenders = grown;
    u->lenders[u->lender_count++] = lender;
    s->units[lender].lends = true;
    return 0;
}

static int find_lenders(pl_store *s)
{
    for (int i = 0; i < s->model->nlinears; i++) {
        const pl_linear *lin = s->model->linears[i];
        const pl_unit *owner = s->placed[lin->weight->id].unit;
        if (owner != lin->unit) PL_TRY(add_lender(s, lin->unit->index, owner->index));
    }
    return 0;
}

/* Neighbours take turns in `turns` slots; a unit that lends keeps one to itself, for it is in use from the first to the
   last of its users. Fills in each unit's slot and the largest need of each slot. */
static int assign_slots(pl_store *s, int turns, bool gradients, int *count, pl_slot **out)
{
    int nunits = s->model->nunits, n = turns;
    pl_slot *slots;
    PL_TRY(pl_calloc(s->run->err, (size_t)(turns + nunits), sizeof *slots, &slots));
    *out = slots;
    for (int i = 0; i < nunits; i++) {
        pl_unit_store *u = &s->units[i];
        int64_t bytes = gradients ? 4 * u->n : pl_store_slot_bytes(s, u);
        int slot = bytes == 0 ? -1 : (u->lends ? n++ : i % turns);
        *(gradients ? &u->gradient_slot : &u->slot) = slot;
        if (slot >= 0 && slots[slot].memory.bytes < bytes) slots[slot].memory.bytes = bytes;
    }
    *count = n;
    return 0;
}

static int open_slots(pl_store *s)
{
    int turns = s->gathered_ahead > s->fetched_ahead ? s->gathered_ahead + 1 : s->fetched_ahead + 1;
    if (s->stage == 3) PL_TRY(assign_slots(s, turns, false, &s->nslots, &s->slots));
    if (!s->whole_gradients) PL_TRY(assign_slots(s, 2, true, &s->ngrad_slots, &s->grad_slots));
    for (int i = 0; i < s->nslots; i++)
        PL_TRY(pl_store_open_slot(s, &s->slots[i], PL_MEM_WEIGHTS, pl_store_params_on_disk(s)));
    for (int i = 0; i < s->ngrad_slots; i++) PL_TRY(pl_store_open_slot(s, &s->grad_slots[i], PL_MEM_GRADIENTS, false));
    return 0;
}

/* ---- filling ---- */

/* dst = host, flat and of one length, converted; through the device's eyes where it can see host memory, else through a
   copy of the bytes. */
static int load_piece(pl_run *run, pl_tensor dst, pl_tensor host)
{
    pl_device *device = run->device;
    int64_t bytes = pl_tensor_bytes(host);
    void *data = device->ops->wrap(device, host.data, bytes);
    if (data) {
        int rc = pl_copy(run, dst, pl_tensor_1d(data, host.dtype, host.shape[0]));
        device->ops->unwrap(device, data, bytes);
        return rc;
    }
    if (host.dtype == dst.dtype) {
        device->ops->copy_in(device, dst.data, host.data, bytes);
        return 0;
    }
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor staging;
    PL_TRY(pl_stack_push(run->err, run->work, host.dtype, 1, host.shape, &staging));
    device->ops->copy_in(device, staging.data, host.data, bytes);
    PL_TRY(pl_copy(run, dst, staging));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* dst = the elements of t that it stands for. */
static int load_values(pl_run *run, pl_part dst, const pl_host_tensor *t)
{
    int64_t n = dst.values.shape[0];
    pl_tensor host = pl_tensor_1d((char *)t->data + dst.first * pl_dtype_size(t->dtype), t->dtype, n);
    for (int64_t from = 0; from < n; from += LOADED) {
        int64_t count = n - from < LOADED ? n - from : LOADED;
        pl_tensor piece = pl_tensor_rows(host, from, count);
        PL_TRY(load_piece(run, pl_tensor_rows(dst.values, from, count), piece));
        pl_map_forget(t->map, piece.data, (size_t)pl_tensor_bytes(piece));
    }
    return 0;
}

static int fill_part(pl_store *s, const pl_param *p, pl_part to, const pl_host_tensor *found)
{
    if (to.values.shape[0] == 0) return 0;
    return found ? load_values(s->run, to, found) : pl_init_param(s->run, p, s->options.seed, to.values, to.first);
}

pl_part pl_store_value_part(const pl_store *s, const pl_param *p)
{
    const pl_placed *at = &s->placed[p->id];
    const pl_unit_store *u = &s->units[at->unit->index];
    pl_dtype dtype = pl_store_dtype(s, p);
    int64_t n = pl_param_numel(p), size = pl_dtype_size(dtype), r = s->comm->rank;
    if (at->wrapped) return (pl_part){.values = pl_tensor_1d((void *)at->wrapped, dtype, n)};
    bool trains = pl_store_trains(s, p);
    int64_t begin = trains ? pl_store_value_at(s, u, at->offset) : at->offset, low = 0, high = INT64_MAX;
    if (s->stage == 3) {
        low = trains ? u->value_bounds[r] : u->frozen_bounds[r];
        high = trains ? u->value_bounds[r + 1] : u->frozen_bounds[r + 1];
    }
    int64_t from = begin > low ? begin : low, to = begin + n * size < high ? begin + n * size : high;
    const pl_block *block = trains ? &u->values : &u->frozen;
    const void *base = block->data;
    if (block->on_disk) base = pl_store_at(trains ? u->here : u->frozen_here, low);
    if (to <= from) return (pl_part){.values = pl_tensor_1d(NULL, dtype, 0)};
    return (pl_part){.values = pl_tensor_1d(pl_store_at(base, from - low), dtype, (to - from) / size),
        .first = (from - begin) / size,
        .on_disk = block->on_disk,
        .at = block->at + from - low};
}

/* Elements [from, to) of what operators read of a parameter, in the parameter's own count, as far as they are here. */
static int fill_values(pl_store *s, const pl_param *p, int64_t from, int64_t to, const pl_host_tensor *found)
{
    pl_part part = pl_store_value_part(s, p);
    int64_t skip = from > part.first ? from - part.first : 0, n = to - part.first;
    if (n > part.values.shape[0]) n = part.values.shape[0];
    if (n <= skip) return 0;
    part.values = pl_tensor_rows(part.values, skip, n - skip);
    part.first += skip;
    return fill_part(s, p, part, found);
}

/* Elements [from, to) of masters that are split, in the unit's count. */
static int fill_split(pl_store *s, const pl_param *p, int64_t from, int64_t to, const pl_host_tensor *found)
{
    const pl_placed *at = &s->placed[p->id];
    const pl_unit_store *u = &s->units[at->unit->index];
    int64_t most = to - from < SPLIT ? to - from : SPLIT, mark = pl_stack_mark(s->run->work);
    pl_tensor staging;
    PL_TRY(pl_stack_push(s->run->err, s->run->work, PL_F32, 1, &most, &staging));
    for (int64_t n; from < to; from += n) {
        n = to - from < most ? to - from : most;
        pl_part part = {.values = pl_tensor_rows(staging, 0, n), .first = from - at->offset};
        PL_TRY(fill_part(s, p, part, found));
        PL_TRY(pl_split_f32(
            s->run, pl_store_values(s, u, from, n), pl_store_elements(s, u, PL_STATE_MASTER, from, n), part.values));
    }
    pl_stack_pop(s->run->work, mark);
    return 0;
}

typedef struct filling {
    const pl_host_tensor *found;
    const bool *is_found;
} filling;

/* Those elements of a unit that are not split and kept here; all of it is to become something. */
static int fill_rest(pl_store *s, pl_unit *unit, const filling *f)
{
    const pl_unit_store *u = &s->units[unit->index];
    if (u->values.on_disk && u->values.bytes > 0) {
        PL_TRY(pl_fill(s->run, pl_tensor_1d(pl_store_values_here(s, u), PL_BF16, u->values.bytes / 2), 0));
    }
    for (int i = 0; i < unit->nparams; i++) {
        const pl_param *p = unit->params[i];
        const pl_placed *at = &s->placed[p->id];
        const pl_host_tensor *found = f->is_found[p->id] ? &f->found[p->id] : NULL;
        if (at->wrapped || p->role == PL_ROLE_DERIVED) continue;
        bool split = pl_store_splits(s, p);
        PL_TRY(fill_values(s, p, 0, split ? u->low - at->offset : INT64_MAX, found));
        if (split) PL_TRY(fill_values(s, p, u->high - at->offset, INT64_MAX, found));
    }
    return 0;
}

static int fill_piece(pl_store *s, pl_unit *unit, int64_t low, int64_t high, void *user)
{
    const filling *f = user;
    const pl_unit_store *u = &s->units[unit->index];
    if (low == u->low) PL_TRY(fill_rest(s, unit, f));
    if (u->states[PL_STATE_MASTER].on_disk && high > low) {
        PL_TRY(pl_fill(s->run, pl_store_elements(s, u, PL_STATE_MASTER, low, high - low), 0));
    }
    for (int i = 0; i < unit->nparams; i++) {
        const pl_param *p = unit->params[i];
        if (!pl_store_splits(s, p)) continue;
        int64_t begin = s->placed[p->id].offset, end = begin + pl_param_numel(p), from = begin > low ? begin : low,
                to = end < high ? end : high;
        if (to > from) PL_TRY(fill_split(s, p, from, to, f->is_found[p->id] ? &f->found[p->id] : NULL));
    }
    return 0;
}

/* ---- opening ---- */

static int place_all(pl_store *s, const pl_source *source, pl_host_tensor *found, bool *is_found)
{
    pl_run *run = s->run;
    pl_model *model = s->model;
    for (int i = 0; i < model->nparams; i++) {
        if (model->params[i]->role == PL_ROLE_DERIVED) continue;
        PL_TRY(source->find(run->err, source->user, model->params[i], &found[i], &is_found[i]));
        if (is_found[i]) PL_TRY(pl_host_tensor_check(run->err, model->params[i], &found[i]));
    }
    for (int i = 0; i < model->nunits; i++) {
        pl_unit *unit = model->units[i];
        for (int k = 0; k < unit->nparams; k++) s->placed[unit->params[k]->id].unit = unit;
        PL_TRY(lay_out(s, unit, found, is_found));
        PL_TRY(cut(s, &s->units[i]));
        PL_TRY(allocate(s, &s->units[i]));
    }
    PL_TRY(allocate_states(s));
    PL_TRY(find_lenders(s));
    PL_TRY(open_slots(s));
    if (s->all->size > 1 && s->options.training) PL_TRY(pl_store_open_exchange(s));
    PL_TRY(pl_store_open_buffers(s));
    if (s->options.offload.disk) PL_TRY(pl_disk_reserve(run->err, s->options.offload.disk, s->disk_bytes));
    for (int i = 0; i < model->nunits; i++) pl_store_point(s, model->units[i]);
    filling f = {found, is_found};
    const pl_tour tour = {
        .writes = 1u << PL_STATE_MASTER, .writes_values = true, .writes_frozen = true, .piece = fill_piece, .user = &f};
    return pl_store_tour(s, &tour);
}

/* Groups of neighbours, and those that have the same place in each. */
static int open_groups(pl_store *s, int size)
{
    pl_error *err = s->run->err;
    int *colors, rc;
    if (s->all->size % size != 0) {
        return PL_FAIL(
            err, PL_EUSAGE, "parallel.shard_size is %d, and %d processes are no multiple of it", size, s->all->size);
    }
    PL_TRY(pl_calloc(err, (size_t)s->all->size, sizeof *colors, &colors));
    for (int r = 0; r < s->all->size; r++) colors[r] = r / size;
    PL_GO(done, pl_comm_split(err, s->all, colors, &s->group));
    for (int r = 0; r < s->all->size; r++) colors[r] = r % size;
    PL_GO(done, pl_comm_split(err, s->all, colors, &s->across));
    s->comm = s->group;
done:
    free(colors);
    return rc;
}

/* comm once more, for what is not sent in the same order on every process. */
static int open_again(pl_store *s)
{
    pl_error *err = s->run->err;
    int *colors, rc;
    PL_TRY(pl_calloc(err, (size_t)s->comm->size, sizeof *colors, &colors));
    PL_GO(done, pl_comm_split(err, s->comm, colors, &s->for_sums));
    if (s->stage == 0) PL_GO(done, pl_comm_split(err, s->comm, colors, &s->for_round));
done:
    free(colors);
    return rc;
}

static int open_comm(pl_store *s)
{
    const pl_sharding *how = &s->options.sharding;
    PL_TRY(pl_comm_self(s->run->err, &s->self));
    s->all = s->comm = how->comm ? how->comm : s->self;
    bool alone = s->all->size == 1, on_disk = pl_store_params_on_disk(s);
    s->stage = alone ? (on_disk ? 3 : 0) : how->stage;
    if (on_disk && s->stage < 3) {
        return PL_FAIL(s->run->err, PL_EUSAGE,
            "memory.offload.params is disk, and parallel.zero is %d; %d processes take parameters from disk with "
            "parallel.zero 3 only",
            s->stage, s->all->size);
    }
    s->whole_gradients = alone || s->stage < 2 || (s->options.accumulates && !how->every_micro);
    s->gathered_ahead = alone ? 0 : how->prefetch;
    s->fetched_ahead = on_disk ? how->prefetch + !alone : 0; /* what is gathered has been read before */
    if (!alone && s->stage > 0 && how->group > 0 && how->group != s->all->size) PL_TRY(open_groups(s, how->group));
    return alone || !s->options.training ? 0 : open_again(s);
}

/* What this process keeps, with its values. */
static int open_own(pl_store *s, const pl_source *source, pl_host_tensor **found, bool **is_found)
{
    pl_error *err = s->run->err;
    size_t nunits = (size_t)s->model->nunits, nparams = (size_t)s->model->nparams;
    PL_TRY(pl_calloc(err, nparams, sizeof *s->placed, &s->placed));
    PL_TRY(pl_calloc(err, nunits, sizeof *s->units, &s->units));
    PL_TRY(pl_calloc(err, nunits * ((size_t)s->all->size + 1), sizeof *s->sums, &s->sums));
    PL_TRY(pl_calloc(err, nparams, sizeof **found, found));
    PL_TRY(pl_calloc(err, nparams, sizeof **is_found, is_found));
    return place_all(s, source, *found, *is_found);
}

int pl_store_open(
    pl_run *run, pl_model *model, const pl_store_options *options, const pl_source *source, pl_store **out)
{
    pl_store *s;
    pl_host_tensor *found = NULL;
    bool *is_found = NULL;
    PL_TRY(pl_calloc(run->err, 1, sizeof *s, &s));
    *s = (pl_store){.run = run, .model = model, .options = *options, .lowest = pl_model_lowest_trained(model)};
    int rc;
    PL_GO(done, open_comm(s));
    PL_GO(done, pl_comm_agree(run->err, s->all, open_own(s, source, &found, &is_found)));
    PL_GO(done, pl_init_adapters(run, model, s, options->seed, is_found));
done:
    free(found);
    free(is_found);
    if (rc < 0) {
        pl_store_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

static void close_unit(pl_store *s, pl_unit_store *u)
{
    pl_collective_close(&u->gather);
    pl_collective_close(&u->gather_frozen);
    pl_store_give_back(s, &u->frozen);
    pl_store_give_back(s, &u->values);
    free(u->bounds);
    free(u->lenders);
    free(u->sweeps);
}

void pl_store_close(pl_store *s)
{
    if (!s) return;
    pl_disk_drain(s->options.offload.disk); /* it must not write into memory that is somebody else's by then */
    pl_store_close_exchange(s);
    for (int i = 0; i < s->model->nunits && s->units; i++) close_unit(s, &s->units[i]);
    for (int i = 0; i < s->model->nparams && s->placed; i++) {
        const pl_placed *at = &s->placed[i];
        pl_device *device = s->run->device;
        if (!at->wrapped) continue;
        device->ops->unwrap(device, (void *)at->wrapped, at->wrapped_bytes);
        pl_mem_count(s->run->mem, PL_MEM_WEIGHTS, -at->wrapped_bytes);
    }
    for (int i = 0; i < PL_STATE_COUNT; i++) pl_store_give_back(s, &s->states[i]);
    for (int i = 0; i < s->nslots; i++) pl_store_close_slot(s, &s->slots[i]);
    for (int i = 0; i < s->ngrad_slots; i++) pl_store_close_slot(s, &s->grad_slots[i]);
    for (int i = 0; i < PL_STORE_BUFFERS; i++) pl_store_close_slot(s, &s->buffers[i].slot);
    free(s->slots);
    free(s->grad_slots);
    free(s->placed);
    free(s->units);
    free(s->sums);
    pl_comm_close(s->for_round);
    pl_comm_close(s->for_sums);
    pl_comm_close(s->across);
    pl_comm_close(s->group);
    pl_comm_close(s->self);
    free(s);
}
