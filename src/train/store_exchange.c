/* The exchange of gradients between processes. A unit's gradients queue up when its backward ends, and from then on its
   pieces travel by themselves: move() brings each on to its next stage as soon as what it waits for has come. Operators
   that take long call it before they begin, and so does whoever waits for messages of any kind.

   Processes therefore come to a stage at different times, but the pieces come to it in the same order on all of them.
   Messages of a stage have a communicator of their own, or a direction, and so are matched by that order. */
#include <stdlib.h>

#include "base/buf.h"
#include "base/clock.h"
#include "op/op.h"
#include "train/store_internal.h"

/* Seconds between two looks of operators: asking takes microseconds, and so does a small operator. */
#define LOOK_EVERY 200e-6

/* ---- the stages of a piece ---- */

/* The sum is complete. A slice of its own takes it over. */
static int take_over(pl_store *s, const pl_piece *p)
{
    pl_unit_store *u = &s->units[p->unit];
    pl_tensor sums = p->exchange.own;
    if (s->whole_gradients || sums.shape[0] == 0) return 0;
    const char *slot = s->grad_slots[u->gradient_slot].data;
    int64_t first = slot ? ((const char *)sums.data - slot) / 4 : pl_store_slice_low(s, u);
    pl_tensor kept = pl_store_elements(s, u, PL_STATE_GRADIENT, first, sums.shape[0]);
    return pl_add(s->run, kept, kept, sums, 1);
}

static int pass_on(pl_store *s, pl_piece *p)
{
    pl_unit_store *u = &s->units[p->unit];
    PL_TRY(take_over(s, p));
    p->stage = PL_PIECE_LAST;
    if (s->across && s->across->rank > 0) {
        return pl_tensor_send_begin(
            s->run, s->across, &p->passing, p->exchange.own, s->across->rank - 1, PL_TRAFFIC_GRADIENTS);
    }
    if (s->stage > 0) return 0;
    return pl_all_gather_begin(s->run, s->for_round, &p->passing, u->states[PL_STATE_GRADIENT].data, u->gradient_bounds,
        4 * p->skip, 4 * s->piece_elements, PL_TRAFFIC_GRADIENTS);
}

/* The sum goes up from group to group, each adding its processes' in their order, and what has come of it down again.
 */
static int end_sums(pl_store *s, pl_piece *p)
{
    const pl_comm *across = s->across;
    pl_tensor before = {0};
    if (p->before.comm) {
        before = p->before.own;
        PL_TRY(pl_tensor_receive_end(s->run, &p->before));
    }
    PL_TRY(pl_reduce_scatter_end(s->run, &p->exchange, before));
    if (!across || across->rank + 1 == across->size) return pass_on(s, p);
    p->stage = PL_PIECE_UP;
    return pl_tensor_send_begin(
        s->run, s->across, &p->passing, p->exchange.own, across->rank + 1, PL_TRAFFIC_GRADIENTS);
}

/* What the piece waits for has come. */
static int advance(pl_store *s, pl_piece *p)
{
    switch (p->stage) {
    case PL_PIECE_SUMS: return end_sums(s, p);
    case PL_PIECE_UP:
        PL_TRY(pl_tensor_send_end(s->run, &p->passing));
        p->stage = PL_PIECE_DOWN;
        return pl_tensor_receive_begin(s->run, s->across, &p->passing, p->exchange.own, s->across->rank + 1);
    case PL_PIECE_DOWN: PL_TRY(pl_tensor_receive_end(s->run, &p->passing)); return pass_on(s, p);
    case PL_PIECE_LAST:
        p->stage = PL_PIECE_FREE;
        if (!p->passing.comm) return 0;
        return s->across ? pl_tensor_send_end(s->run, &p->passing) : pl_all_gather_end(s->run, &p->passing);
    case PL_PIECE_FREE:
    case PL_PIECE_DONE: break;
    }
    return 0;
}

static int has_come(pl_store *s, pl_piece *p, bool *come)
{
    PL_TRY(pl_collective_test(s->run, p->stage == PL_PIECE_SUMS ? &p->exchange : &p->passing, come));
    return *come && p->stage == PL_PIECE_SUMS ? pl_collective_test(s->run, &p->before, come) : 0;
}

/* Sends off the next piece of those that wait, if there is one and room for it. */
static int begin_piece(pl_store *s, bool *begun)
{
    int room = s->next_piece % PL_STORE_STAGINGS;
    pl_piece *p = &s->pieces[s->next_piece];
    *begun = false;
    for (int i = room; i < PL_STORE_PIECES; i += PL_STORE_STAGINGS) {
        if (s->pieces[i].stage == PL_PIECE_SUMS) return 0;
    }
    if (s->queued == 0 || p->stage != PL_PIECE_FREE) return 0;
    *begun = true;
    p->stage = PL_PIECE_SUMS;
    p->unit = s->queue[s->queue_first];
    p->skip = s->queue_skip;
    s->next_piece = (s->next_piece + 1) % PL_STORE_PIECES;
    s->queue_skip += s->piece_elements;
    const pl_unit_store *u = &s->units[p->unit];
    const void *base = s->whole_gradients ? u->states[PL_STATE_GRADIENT].data : s->grad_slots[u->gradient_slot].data;
    if (s->queue_skip >= pl_store_longest_slice(s, u)) {
        s->queue_first = (s->queue_first + 1) % s->model->nunits;
        s->queue_skip = 0;
        s->queued--;
    }
    pl_tensor staging = pl_store_f32(s->staging[room].data, 0, s->staging[room].bytes / 4);
    PL_TRY(pl_reduce_scatter_begin(s->run, s->for_sums, &p->exchange, pl_store_f32(base, 0, u->n), u->bounds, p->skip,
        s->piece_elements, staging, PL_TRAFFIC_GRADIENTS));
    if (!s->across || s->across->rank == 0) return 0;
    pl_tensor before = pl_store_f32(s->before[room].data, 0, p->exchange.own.shape[0]);
    return pl_tensor_receive_begin(s->run, s->across, &p->before, before, s->across->rank - 1);
}

/* Brings on every piece that can be, the oldest first; none to a stage that the one before it has not left. */
static int move_once(pl_store *s, bool *moved)
{
    pl_piece_stage ahead = PL_PIECE_DONE;
    PL_TRY(begin_piece(s, moved));
    for (int i = 0; i < PL_STORE_PIECES; i++) {
        pl_piece *p = &s->pieces[(s->next_piece + i) % PL_STORE_PIECES];
        if (p->stage == PL_PIECE_FREE) continue;
        bool come = false;
        if (p->stage < ahead) PL_TRY(has_come(s, p, &come));
        if (come) PL_TRY(advance(s, p));
        *moved |= come;
        ahead = p->stage == PL_PIECE_FREE ? PL_PIECE_DONE : p->stage;
    }
    return 0;
}

/* After an error nothing is moved on. */
static bool travels(const pl_store *s)
{
    bool any = s->queued > 0;
    if (s->move_failed) return false;
    for (int i = 0; i < PL_STORE_PIECES; i++) any |= s->pieces[i].stage != PL_PIECE_FREE;
    return any;
}

static int move(pl_store *s)
{
    int rc = 0;
    if (s->moving || !travels(s)) return 0;
    s->moving = true;
    for (bool moved = true; moved && rc == 0;) rc = move_once(s, &moved);
    s->moving = false;
    s->move_failed = rc < 0;
    s->looked = pl_clock();
    return rc;
}

static int move_aside(void *user, pl_error *err)
{
    pl_store *s = user;
    int rc = move(s);
    if (rc < 0 && err != s->run->err && err->code == 0) *err = *s->run->err;
    return rc;
}

/* Asking after one message moves all of them. */
static int look_at_gathers(pl_store *s)
{
    bool ignored;
    for (int i = 0; i < s->model->nunits; i++) {
        pl_collective *gather = &s->units[i].gather;
        if (gather->comm) return pl_collective_test(s->run, gather, &ignored);
    }
    return 0;
}

static int move_meanwhile(void *user)
{
    pl_store *s = user;
    if (pl_clock() - s->looked <= LOOK_EVERY) return 0;
    PL_TRY(travels(s) ? move(s) : look_at_gathers(s));
    s->looked = pl_clock();
    return 0;
}

/* ---- use ---- */

int pl_store_grad_done(pl_store *s, pl_unit *unit, bool last)
{
    pl_unit_store *u = &s->units[unit->index];
    if (s->all->size == 1 || u->n == 0 || (s->whole_gradients && !last)) return 0;
    if (s->queued == s->model->nunits) return PL_FAIL(s->run->err, PL_EBUG, "a unit's gradients are done twice");
    s->queue[(s->queue_first + s->queued++) % s->model->nunits] = unit->index;
    u->gradients_open = false;
    pl_store_point(s, unit);
    return move(s);
}

static bool travels_from(const pl_store *s, int slot)
{
    bool any = false;
    for (int i = 0; i < s->queued; i++) {
        any |= s->units[s->queue[(s->queue_first + i) % s->model->nunits]].gradient_slot == slot;
    }
    for (int i = 0; i < PL_STORE_PIECES; i++) {
        const pl_piece *p = &s->pieces[i];
        any |= p->stage != PL_PIECE_FREE && s->units[p->unit].gradient_slot == slot;
    }
    return any;
}

int pl_store_empty_slot(pl_store *s, int slot)
{
    double begin = pl_clock();
    for (int asked = 0; travels(s) && travels_from(s, slot); asked++) PL_TRY(pl_comm_pause(s->run->err, s->all, asked));
    s->all->traffic->waited_s += pl_clock() - begin;
    return 0;
}

int pl_store_finish_gradients(pl_store *s)
{
    double begin = pl_clock();
    for (int asked = 0; travels(s); asked++) PL_TRY(pl_comm_pause(s->run->err, s->all, asked));
    s->all->traffic->waited_s += pl_clock() - begin;
    return 0;
}

/* ---- opening and closing ---- */

int64_t pl_store_longest_slice(const pl_store *s, const pl_unit_store *u)
{
    int64_t longest = 0;
    for (int r = 0; r < s->comm->size; r++) {
        if (u->bounds[r + 1] - u->bounds[r] > longest) longest = u->bounds[r + 1] - u->bounds[r];
    }
    return longest;
}

/* The bucket is shared out among the pieces that may wait to be summed; none is larger than the largest unit asks for.
 */
int pl_store_open_exchange(pl_store *s)
{
    int64_t others = s->comm->size - 1, longest = 0;
    for (int i = 0; i < s->model->nunits; i++) {
        int64_t n = pl_store_longest_slice(s, &s->units[i]);
        if (n > longest) longest = n;
    }
    int64_t most = s->options.sharding.bucket / 4 / PL_STORE_STAGINGS / s->comm->size;
    int64_t elements = most / PL_STORE_GRAIN * PL_STORE_GRAIN;
    if (elements < PL_STORE_GRAIN) elements = PL_STORE_GRAIN;
    s->piece_elements = elements < longest ? elements : longest;
    for (int i = 0; i < PL_STORE_STAGINGS; i++) {
        PL_TRY(pl_store_take(s, &s->staging[i], PL_MEM_MESSAGES, 4 * others * s->piece_elements));
        if (s->across) PL_TRY(pl_store_take(s, &s->before[i], PL_MEM_MESSAGES, 4 * s->piece_elements));
    }
    PL_TRY(pl_calloc(s->run->err, (size_t)s->model->nunits, sizeof *s->queue, &s->queue));
    s->aside = (pl_aside){.move = move_aside, .user = s};
    pl_comm_begin_aside(s->all, &s->aside);
    s->run->meanwhile = move_meanwhile;
    s->run->meanwhile_user = s;
    return 0;
}

/* After an error pieces may be under way still, and other processes may have failed elsewhere. Those pieces that all
   have begun come to their end if everybody goes on with what it has begun; so at least the process that has begun
   fewest gets through, and can end the others. */
static void abandon(pl_store *s)
{
    pl_error ignored = {0};
    s->queued = 0;
    for (int asked = 0, rc = 0; rc == 0 && travels(s); asked++) rc = pl_comm_pause(&ignored, s->all, asked);
}

void pl_store_close_exchange(pl_store *s)
{
    abandon(s);
    if (s->all) pl_comm_end_aside(s->all, &s->aside);
    if (s->run->meanwhile_user == s) s->run->meanwhile = NULL;
    for (int i = 0; i < PL_STORE_PIECES; i++) {
        pl_collective_close(&s->pieces[i].exchange);
        pl_collective_close(&s->pieces[i].before);
        pl_collective_close(&s->pieces[i].passing);
    }
    for (int i = 0; i < PL_STORE_STAGINGS; i++) {
        pl_store_give_back(s, &s->staging[i]);
        pl_store_give_back(s, &s->before[i]);
    }
    free(s->queue);
}
