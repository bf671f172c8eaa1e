/* What happens while units are used: parameters are gathered, gradients travel. */
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
    PL_TRY(pl_all_gather_begin(s->run, s->comm, &u->gather, u->here, u->value_bounds, PL_TRAFFIC_PARAMETERS));
    return pl_all_gather_begin(
        s->run, s->comm, &u->gather_frozen, u->frozen_here, u->frozen_bounds, PL_TRAFFIC_PARAMETERS);
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

/* ---- gradients ---- */

/* The sum goes up from group to group, each adding its processes' in their order, and what has come of it down again.
 */
static int sum_across(pl_store *s, pl_collective *exchange)
{
    pl_comm *across = s->across;
    pl_tensor own = exchange->own, before = {0};
    if (!across) return pl_reduce_scatter_end(s->run, exchange, before);
    if (across->rank > 0) {
        before = pl_store_f32(s->before.data, 0, own.shape[0]);
        PL_TRY(pl_tensor_receive(s->run, across, before, across->rank - 1));
    }
    PL_TRY(pl_reduce_scatter_end(s->run, exchange, before));
    if (across->rank + 1 < across->size) {
        PL_TRY(pl_tensor_send(s->run, across, own, across->rank + 1, PL_TRAFFIC_GRADIENTS));
        PL_TRY(pl_tensor_receive(s->run, across, own, across->rank + 1));
    }
    return across->rank > 0 ? pl_tensor_send(s->run, across, own, across->rank - 1, PL_TRAFFIC_GRADIENTS) : 0;
}

/* A piece has arrived and is added up. A slice of its own takes it over; where everything is kept everywhere, the last
   piece sends the sums round. */
static int finish_piece(pl_store *s, pl_piece *piece)
{
    if (!piece->exchange.comm) return 0;
    pl_unit_store *u = &s->units[piece->unit];
    pl_tensor sums = piece->exchange.own;
    PL_TRY(sum_across(s, &piece->exchange));
    if (!s->whole_gradients && sums.shape[0] > 0) {
        const char *slot = s->grad_slots[u->gradient_slot].data;
        int64_t first = slot ? ((const char *)sums.data - slot) / 4 : pl_store_slice_low(s, u);
        pl_tensor kept = pl_store_elements(s, u, PL_STATE_GRADIENT, first, sums.shape[0]);
        PL_TRY(pl_add(s->run, kept, kept, sums, 1));
    }
    if (!piece->last || s->stage > 0) return 0;
    return pl_all_gather_begin(
        s->run, s->comm, &u->gather, u->states[PL_STATE_GRADIENT].data, u->gradient_bounds, PL_TRAFFIC_GRADIENTS);
}

static pl_piece *oldest(pl_store *s, int age)
{
    return &s->pieces[(s->next_piece + age) % PL_STORE_PIECES];
}

/* Waits for what is on its way from a slot before it is used again. */
static int empty_slot(pl_store *s, int slot)
{
    for (int i = 0; i < PL_STORE_PIECES; i++) {
        pl_piece *piece = oldest(s, i);
        if (piece->exchange.comm && s->units[piece->unit].gradient_slot == slot) PL_TRY(finish_piece(s, piece));
    }
    return 0;
}

/* Makes room for the gradients of a unit's backward, where there is none yet. */
static int open_gradients(pl_store *s, pl_unit *unit)
{
    pl_unit_store *u = &s->units[unit->index];
    if (s->whole_gradients || u->n == 0 || u->gradients_open) return 0;
    PL_TRY(empty_slot(s, u->gradient_slot));
    PL_TRY(pl_fill(s->run, pl_store_f32(s->grad_slots[u->gradient_slot].data, 0, u->n), 0));
    u->gradients_open = true;
    return 0;
}

int pl_store_grad_done(pl_store *s, pl_unit *unit, bool last)
{
    pl_unit_store *u = &s->units[unit->index];
    if (s->all->size == 1 || u->n == 0 || (s->whole_gradients && !last)) return 0;
    const void *base = s->whole_gradients ? u->states[PL_STATE_GRADIENT].data : s->grad_slots[u->gradient_slot].data;
    int64_t longest = 0;
    for (int r = 0; r < s->comm->size; r++) {
        if (u->bounds[r + 1] - u->bounds[r] > longest) longest = u->bounds[r + 1] - u->bounds[r];
    }
    for (int64_t skip = 0; skip < longest; skip += s->piece_elements) {
        pl_piece *piece = oldest(s, 0);
        PL_TRY(finish_piece(s, piece));
        piece->unit = unit->index;
        piece->last = skip + s->piece_elements >= longest;
        PL_TRY(pl_reduce_scatter_begin(s->run, s->comm, &piece->exchange, pl_store_f32(base, 0, u->n), u->bounds, skip,
            s->piece_elements, pl_store_f32(piece->staging.data, 0, piece->staging.bytes / 4), PL_TRAFFIC_GRADIENTS));
        s->next_piece = (s->next_piece + 1) % PL_STORE_PIECES;
    }
    u->gradients_open = false;
    pl_store_point(s, unit);
    return 0;
}

int pl_store_finish_gradients(pl_store *s)
{
    for (int i = 0; i < PL_STORE_PIECES; i++) PL_TRY(finish_piece(s, oldest(s, i)));
    return pl_store_end_gathers(s);
}

int pl_store_end_gathers(pl_store *s)
{
    for (int i = 0; i < s->model->nunits && s->stage < 3; i++) {
        pl_unit_store *u = &s->units[i];
        if (u->gather.comm) PL_TRY(pl_all_gather_end(s->run, &u->gather));
    }
    return 0;
}

void pl_store_close_traffic(pl_store *s)
{
    for (int i = 0; i < s->model->nunits && s->units; i++) {
        pl_collective_close(&s->units[i].gather);
        pl_collective_close(&s->units[i].gather_frozen);
    }
    for (int i = 0; i < PL_STORE_PIECES; i++) pl_collective_close(&s->pieces[i].exchange);
}

/* ---- the brackets ---- */

static int make_usable(pl_store *s, pl_unit *unit, bool gradients)
{
    PL_TRY(end_gather(s, unit));
    if (gradients) PL_TRY(open_gradients(s, unit));
    pl_store_point(s, unit);
    return 0;
}

int pl_store_acquire(pl_store *s, pl_unit *unit, pl_way way)
{
    const pl_unit_store *u = &s->units[unit->index];
    bool gradients = way == PL_WAY_BACKWARD || (way == PL_WAY_FORWARD && unit->ops->early_gradients);
    if (s->all->size == 1 && s->stage < 3) return 0;
    for (int i = 0; i < u->lender_count; i++) PL_TRY(make_usable(s, s->model->units[u->lenders[i]], gradients));
    PL_TRY(make_usable(s, unit, gradients));
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
