/* What happens while units are used: parameters are gathered, gradients get room. */
#include "base/buf.h"
#include "op/op.h"
#include "train/store_internal.h"

/* ---- gathering: stage 3 ---- */

static bool in_slot(const pl_store *s, const pl_unit_store *u)
{
    return s->stage == 3 && u->slot >= 0;
}

static int copy_bytes(pl_store *s, void *to, const void *from, int64_t bytes)
{
    if (bytes == 0) return 0;
    return pl_copy(s->run, pl_tensor_1d(to, PL_U8, bytes), pl_tensor_1d((void *)from, PL_U8, bytes));
}

/* This process's slices, between where they are kept and the slot. */
static int move_slices(pl_store *s, pl_unit_store *u, bool to_slot)
{
    int r = s->comm->rank;
    void *here[] = {pl_store_at(u->here, u->value_bounds[r]), pl_store_at(u->frozen_here, u->frozen_bounds[r])},
         *kept[] = {u->values.data, u->frozen.data};
    int64_t bytes[] = {u->values.bytes, u->frozen.bytes};
    for (int i = 0; i < 2; i++) {
        PL_TRY(to_slot ? copy_bytes(s, here[i], kept[i], bytes[i]) : copy_bytes(s, kept[i], here[i], bytes[i]));
    }
    return 0;
}

/* This process's slices of a unit into its slot, unless they are there or on their way. */
static int begin_fetch(pl_store *s, pl_unit_store *u)
{
    if (!in_slot(s, u) || u->fetched) return 0;
    PL_TRY(pl_store_enter_slot(s, u));
    u->fetched = true;
    return pl_store_params_on_disk(s) ? pl_store_read_slices(s, u, true) : move_slices(s, u, true);
}

/* Begins to gather a unit into its slot, unless it is there or on its way. */
static int begin_gather(pl_store *s, pl_unit_store *u)
{
    if (!in_slot(s, u) || u->readable || u->gather.comm) return 0;
    PL_TRY(begin_fetch(s, u));
    if (pl_store_params_on_disk(s)) PL_TRY(pl_store_end_read(s, u, true));
    PL_TRY(pl_all_gather_begin(
        s->run, s->comm, &u->gather, u->here, u->value_bounds, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS));
    return pl_all_gather_begin(
        s->run, s->comm, &u->gather_frozen, u->frozen_here, u->frozen_bounds, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS);
}

static int end_gather(pl_store *s, pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    if (!in_slot(s, u) || u->readable) return 0;
    PL_TRY(begin_gather(s, u));
    PL_TRY(pl_all_gather_end(s->run, &u->gather));
    PL_TRY(pl_all_gather_end(s->run, &u->gather_frozen));
    u->readable = true;
    return 0;
}

static void drop(pl_store *s, pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    if (!in_slot(s, u)) return;
    u->fetched = u->readable = false;
    pl_store_point(s, unit);
}

int pl_store_begin(pl_store *s)
{
    for (int i = 0; i < s->model->nunits; i++) drop(s, s->model->units[i]);
    return 0;
}

/* The units that come next on this way, as far as their slots are free. */
static int begin_next(pl_store *s, const pl_unit *unit, pl_way way)
{
    int step = way == PL_WAY_BACKWARD ? -1 : 1, first = way == PL_WAY_BACKWARD ? s->lowest : 0;
    if (s->stage != 3 || way == PL_WAY_ALONE) return 0;
    for (int k = 1; k <= s->gathered_ahead || k <= s->fetched_ahead; k++) {
        int next = unit->index + k * step;
        if (next < first || next >= s->model->nunits) return 0;
        pl_unit_store *u = &s->units[next];
        int (*begin)(pl_store *, pl_unit_store *) = k <= s->gathered_ahead ? begin_gather : begin_fetch;
        for (int i = 0; i < u->lender_count; i++) PL_TRY(begin(s, &s->units[u->lenders[i]]));
        PL_TRY(begin(s, u));
    }
    return 0;
}

int pl_store_end_gathers(pl_store *s)
{
    for (int i = 0; i < s->model->nunits && s->stage < 3; i++) {
        pl_unit_store *u = &s->units[i];
        if (u->gather.comm) PL_TRY(pl_all_gather_end(s->run, &u->gather));
    }
    return 0;
}

/* Makes room for the gradients of a unit's backward, where there is none yet. */
static int open_gradients(pl_store *s, pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    if (s->whole_gradients || u->n == 0 || u->gradients_open) return 0;
    PL_TRY(pl_store_empty_slot(s, u->gradient_slot));
    PL_TRY(pl_fill(s->run, pl_store_f32(s->grad_slots[u->gradient_slot].data, 0, u->n), 0));
    u->gradients_open = true;
    return 0;
}

/* ---- the brackets ---- */

/* `values`: they are read now; else they are on their way. */
static int make_usable(pl_store *s, pl_unit *unit, bool values, bool gradients)
{
    PL_TRY(values ? end_gather(s, unit) : begin_gather(s, &s->units[unit->index]));
    if (gradients) PL_TRY(open_gradients(s, unit));
    pl_store_point(s, unit);
    return 0;
}

int pl_store_acquire(pl_store *s, pl_unit *unit, pl_way way)
{
    const pl_unit_store *u = &s->units[unit->index];
    bool gradients = way == PL_WAY_BACKWARD || (way == PL_WAY_FORWARD && unit->ops->early_gradients);
    if (s->all->size == 1 && s->stage < 3) return 0;
    for (int i = 0; i < u->lender_count; i++) {
        /* What the backward of a unit with early gradients does not read is read, if at all, by the lender's own. */
        bool later = way == PL_WAY_BACKWARD && unit->ops->early_gradients && u->lenders[i] >= s->lowest;
        PL_TRY(make_usable(s, s->model->units[u->lenders[i]], !later, gradients));
    }
    PL_TRY(make_usable(s, unit, true, gradients));
    return begin_next(s, unit, way);
}

/* Forward, a unit that lends is used by others yet, which come after it; backward they have been before it. */
int pl_store_release(pl_store *s, pl_unit *unit, pl_way way)
{
    const pl_unit_store *u = &s->units[unit->index];
    if (s->stage < 3) return 0;
    if (way != PL_WAY_BACKWARD) {
        for (int i = 0; i < u->lender_count; i++) drop(s, s->model->units[u->lenders[i]]);
    }
    bool used_again = u->lends && (way == PL_WAY_FORWARD || way == PL_WAY_INFERENCE);
    if (!used_again) drop(s, unit);
    return 0;
}

int pl_store_keep(pl_store *s, pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    for (int i = 0; i < u->lender_count; i++) PL_TRY(pl_store_keep(s, s->model->units[u->lenders[i]]));
    if (!in_slot(s, u) || !u->readable) return 0;
    if (!pl_store_params_on_disk(s)) return move_slices(s, u, false);
    PL_TRY(pl_store_write_slices(s, u, true));
    return pl_disk_wait(s->run->err, s->options.offload.disk, &s->slots[u->slot].transfer);
}
