/* The optimizer's step over what this process keeps, and the store as others see it. */
#include <math.h>

#include "op/op.h"
#include "train/store_internal.h"

static const pl_tensor none = {0};

/* Where element 0 of a unit would lie, and which elements are there. */
static const void *state_base(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t *low, int64_t *high)
{
    *low = u->low;
    *high = u->high;
    if (state == PL_STATE_GRADIENT) {
        *low = s->whole_gradients ? 0 : pl_store_slice_low(s, u);
        *high = s->whole_gradients ? u->n : pl_store_slice_high(s, u);
    }
    if (state != PL_STATE_MASTER || s->model->dtype != PL_F32) return u->states[state].data;
    /* What operators read are the masters. */
    return s->stage == 3 ? u->values.data : pl_store_at(u->values.data, 4 * u->low);
}

pl_tensor pl_store_elements(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t from, int64_t n)
{
    int64_t low, high;
    const void *base = state_base(s, u, state, &low, &high);
    return pl_store_f32(base, from - low, n);
}

/* What operators read of elements [from, from + n), which are here and in one dtype. */
static pl_tensor values_of(const pl_store *s, const pl_unit_store *u, int64_t from, int64_t n)
{
    int64_t begin = s->stage == 3 ? pl_store_value_at(s, u, u->low) : 0;
    pl_dtype dtype = from < u->narrow ? s->model->dtype : PL_F32;
    return pl_tensor_1d(pl_store_at(u->values.data, pl_store_value_at(s, u, from) - begin), dtype, n);
}

static int copy_range(pl_store *s, pl_unit_store *u, int64_t from, int64_t to)
{
    if (from < u->low) from = u->low;
    if (to > u->high) to = u->high;
    if (to <= from) return 0;
    return pl_copy(s->run, values_of(s, u, from, to - from), pl_store_elements(s, u, PL_STATE_MASTER, from, to - from));
}

int pl_store_copy_masters(pl_store *s, pl_unit_store *u, bool wide)
{
    if (s->model->dtype == PL_F32) return 0;
    if (!wide) PL_TRY(copy_range(s, u, 0, u->narrow));
    return copy_range(s, u, u->narrow, u->n);
}

/* Slices of what operators read, to those who keep all of it. Waited for by pl_store_end_gathers. */
static int publish(pl_store *s, pl_unit_store *u)
{
    if (s->stage == 0 || s->stage == 3) return 0;
    return pl_all_gather_begin(s->run, s->comm, &u->gather, u->values.data, u->value_bounds, PL_TRAFFIC_PARAMETERS);
}

/* ---- the step ---- */

int pl_store_zero_gradients(pl_store *s)
{
    for (int i = 0; i < s->model->nunits; i++) {
        const pl_block *g = &s->units[i].states[PL_STATE_GRADIENT];
        if (g->there) PL_TRY(pl_fill(s->run, pl_store_f32(g->data, 0, g->bytes / 4), 0));
    }
    return 0;
}

/* The buffers are cut into a slice for each process, however they are shared out, and each adds up the squares of one;
   the sums are added by units and slices, so that they do not depend on who keeps what. In groups, slices of one place
   are neighbours: process p's is number (p % group) * groups + p / group. */
int pl_store_gradient_norm(pl_store *s, double *norm)
{
    int nunits = s->model->nunits, size = s->all->size, group = s->comm->size, groups = size / group;
    int own = s->all->rank % group * groups + s->all->rank / group;
    double *mine = s->sums, *all = size > 1 ? s->sums + nunits : mine, total = 0;
    PL_TRY(pl_store_finish_gradients(s));
    for (int i = 0; i < nunits; i++) {
        const pl_unit_store *u = &s->units[i];
        int64_t low = pl_comm_cut(u->n, PL_STORE_GRAIN, size, own),
                n = pl_comm_cut(u->n, PL_STORE_GRAIN, size, own + 1) - low;
        mine[i] = 0;
        if (n > 0) PL_TRY(pl_sum_squares(s->run, &mine[i], pl_store_elements(s, u, PL_STATE_GRADIENT, low, n)));
    }
    if (size > 1) PL_TRY(pl_comm_gather(s->run->err, s->all, mine, nunits * (int64_t)sizeof *mine, all));
    for (int i = 0; i < nunits; i++) {
        double sum = 0;
        for (int k = 0; k < size; k++) sum += all[(k % groups * group + k / groups) * nunits + i];
        total += sum;
    }
    *norm = sqrt(total);
    return 0;
}

int pl_optimizer_moments(const pl_optimizer *optimizer)
{
    if (optimizer->kind == PL_OPTIMIZER_ADAMW) return 2;
    return optimizer->momentum != 0 ? 1 : 0;
}

/* The elements of a sweep that are kept here. */
static int step_sweep(pl_store *s, pl_unit_store *u, const pl_sweep *sweep, const pl_optimizer *o, double lr,
    double grad_scale, int64_t step)
{
    int64_t from = sweep->offset > u->low ? sweep->offset : u->low,
            to = sweep->offset + sweep->n < u->high ? sweep->offset + sweep->n : u->high;
    if (to <= from) return 0;
    int moments = s->options.moments;
    bool copied = s->model->dtype != PL_F32 && from < u->narrow;
    pl_tensor w = pl_store_elements(s, u, PL_STATE_MASTER, from, to - from),
              g = pl_store_elements(s, u, PL_STATE_GRADIENT, from, to - from),
              m = moments > 0 ? pl_store_elements(s, u, PL_STATE_MOMENT1, from, to - from) : none,
              v = moments > 1 ? pl_store_elements(s, u, PL_STATE_MOMENT2, from, to - from) : none,
              copy = copied ? values_of(s, u, from, to - from) : none;
    double decay = sweep->decay || o->kind == PL_OPTIMIZER_SGD ? o->weight_decay : 0;
    if (o->kind == PL_OPTIMIZER_SGD) {
        return pl_sgd(s->run, (pl_sgd_args){.w = w,
                                  .copy = copy,
                                  .g = g,
                                  .m = m,
                                  .lr = (float)(lr * sweep->lr_scale),
                                  .momentum = (float)o->momentum,
                                  .weight_decay = (float)decay,
                                  .grad_scale = (float)grad_scale,
                                  .nesterov = o->nesterov,
                                  .step = step});
    }
    return pl_adamw(s->run, (pl_adamw_args){.w = w,
                                .copy = copy,
                                .g = g,
                                .m = m,
                                .v = v,
                                .lr = (float)(lr * sweep->lr_scale),
                                .beta1 = (float)o->beta1,
                                .beta2 = (float)o->beta2,
                                .eps = (float)o->eps,
                                .weight_decay = (float)decay,
                                .grad_scale = (float)grad_scale,
                                .step = step});
}

int pl_store_step(pl_store *s, const pl_optimizer *optimizer, double lr, double grad_scale, int64_t step)
{
    for (int i = 0; i < s->model->nunits; i++) {
        pl_unit_store *u = &s->units[i];
        for (int k = 0; k < u->nsweeps; k++) {
            PL_TRY(step_sweep(s, u, &u->sweeps[k], optimizer, lr, grad_scale, step));
        }
        PL_TRY(pl_store_copy_masters(s, u, true));
        PL_TRY(publish(s, u));
    }
    return pl_store_end_gathers(s);
}

int pl_store_refresh(pl_store *s)
{
    for (int i = 0; i < s->model->nunits; i++) {
        PL_TRY(pl_store_copy_masters(s, &s->units[i], false));
        PL_TRY(publish(s, &s->units[i]));
    }
    return pl_store_end_gathers(s);
}

/* ---- what is where ---- */

bool pl_store_has(const pl_store *s, const pl_param *p, pl_state state)
{
    return pl_store_trains(s, p) && (int)state < PL_STATE_MOMENT1 + s->options.moments;
}

/* Elements [low, high) of the unit's, as far as they are the parameter's. */
static pl_part clip(const pl_store *s, const pl_param *p, pl_state state, int64_t low, int64_t high)
{
    const pl_placed *at = &s->placed[p->id];
    const pl_unit_store *u = &s->units[at->unit->index];
    int64_t begin = at->offset, end = begin + pl_param_numel(p), from = begin > low ? begin : low,
            to = end < high ? end : high;
    if (to <= from) return (pl_part){.values = pl_tensor_1d(NULL, PL_F32, 0)};
    return (pl_part){.values = pl_store_elements(s, u, state, from, to - from), .first = from - begin};
}

pl_part pl_store_part(const pl_store *s, const pl_param *p, pl_state state)
{
    int64_t low, high;
    if (!pl_store_has(s, p, state)) return (pl_part){.values = pl_tensor_1d(NULL, PL_F32, 0)};
    state_base(s, &s->units[s->placed[p->id].unit->index], state, &low, &high);
    return clip(s, p, state, low, high);
}

pl_tensor pl_store_state(const pl_store *s, const pl_param *p, pl_state state)
{
    if (!pl_store_has(s, p, state)) return none;
    pl_part part = pl_store_part(s, p, state);
    if (part.values.shape[0] != pl_param_numel(p)) return none;
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
    int64_t padded = (all.count + PL_STORE_GRAIN - 1) / PL_STORE_GRAIN * PL_STORE_GRAIN,
            from = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank),
            to = pl_comm_cut(padded, PL_STORE_GRAIN, s->comm->size, s->comm->rank + 1);
    return (pl_extent){from, (to < all.count ? to : all.count) - from, all.dtype};
}

/* Those elements of what is here. */
static int find_elements(
    pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, pl_tensor *out)
{
    pl_part part = part_of(s, p, state);
    if (first < part.first || count < 0 || first + count > part.first + part.values.shape[0]) {
        return PL_FAIL(err, PL_EBUG, "%s: elements %lld to %lld are not all here", p->name, (long long)first,
            (long long)(first + count));
    }
    *out = pl_tensor_rows(part.values, first - part.first, count);
    return 0;
}

int pl_store_read(
    pl_error *err, const pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, void *values)
{
    pl_tensor t;
    pl_device *device = s->run->device;
    PL_TRY(find_elements(err, s, p, state, first, count, &t));
    device->ops->copy_out(device, values, t.data, pl_tensor_bytes(t));
    return 0;
}

int pl_store_write(
    pl_error *err, pl_store *s, const pl_param *p, pl_state state, int64_t first, int64_t count, const void *values)
{
    pl_tensor t;
    pl_device *device = s->run->device;
    PL_TRY(find_elements(err, s, p, state, first, count, &t));
    device->ops->copy_in(device, t.data, values, pl_tensor_bytes(t));
    return 0;
}

int pl_store_set(pl_store *s, const pl_param *p, pl_tensor whole)
{
    if (whole.data != p->value.data || !whole.data) PL_TRY(pl_copy(s->run, p->value, whole));
    pl_part kept = pl_store_part(s, p, PL_STATE_MASTER);
    int64_t n = kept.values.shape[0];
    if (n == 0 || s->model->dtype == PL_F32) return 0; /* the value is the master, or pl_store_keep makes it so */
    pl_tensor flat = pl_tensor_1d(whole.data, PL_F32, pl_param_numel(p)), mine = pl_tensor_rows(flat, kept.first, n);
    return mine.data == kept.values.data && mine.data ? 0 : pl_copy(s->run, kept.values, mine);
}
