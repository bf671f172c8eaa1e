/* The optimizer's step over what this process keeps, and the store as others see it. */
#include <math.h>

#include "op/op.h"
#include "train/store_internal.h"

static const pl_tensor none = {0};

void *pl_store_values_here(const pl_store *s, const pl_unit_store *u)
{
    if (u->values.on_disk) return pl_store_at(u->here, u->value_bounds[s->comm->rank]);
    return u->values.data;
}

/* Where element *low of a unit is: the first that is in memory. */
static const void *state_base(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t *low)
{
    *low = u->low;
    if (u->states[state].on_disk) {
        *low = s->open_buffer->low;
        return pl_store_in_buffer(s, s->open_buffer, state);
    }
    if (state == PL_STATE_GRADIENT) *low = s->whole_gradients ? 0 : pl_store_slice_low(s, u);
    return u->states[state].data;
}

pl_tensor pl_store_elements(const pl_store *s, const pl_unit_store *u, pl_state state, int64_t from, int64_t n)
{
    int64_t low;
    const void *base = state_base(s, u, state, &low);
    return pl_tensor_1d(pl_store_at(base, pl_store_state_bytes(state, from - low)), pl_store_state_dtype(state), n);
}

pl_tensor pl_store_values(const pl_store *s, const pl_unit_store *u, int64_t from, int64_t n)
{
    int64_t begin = s->stage == 3 ? pl_store_value_at(s, u, u->low) : 0;
    pl_dtype dtype = from < u->narrow ? s->model->dtype : PL_F32;
    return pl_tensor_1d(pl_store_at(pl_store_values_here(s, u), pl_store_value_at(s, u, from) - begin), dtype, n);
}

/* Slices of what operators read, to those who keep all of it. Waited for by pl_store_end_gathers. */
static int publish(pl_store *s, pl_unit_store *u)
{
    if (s->stage == 0 || s->stage == 3) return 0;
    return pl_all_gather_begin(
        s->run, s->comm, &u->gather, u->values.data, u->value_bounds, 0, INT64_MAX, PL_TRAFFIC_PARAMETERS);
}

/* ---- a tour ---- */

/* Elements that are in memory together. */
typedef struct piece {
    int unit;
    int64_t low, high;
} piece;

static void begin_unit(const pl_store *s, piece *p, int unit)
{
    const pl_unit_store *u = &s->units[unit];
    *p = (piece){unit, u->low, u->high - u->low > s->buffer_elements ? u->low + s->buffer_elements : u->high};
}

static bool next_piece(const pl_store *s, piece *p)
{
    const pl_unit_store *u = &s->units[p->unit];
    if (p->high == u->high) {
        if (p->unit + 1 == s->model->nunits) return false;
        begin_unit(s, p, p->unit + 1);
        return true;
    }
    p->low = p->high;
    p->high = u->high - p->low > s->buffer_elements ? p->low + s->buffer_elements : u->high;
    return true;
}

static bool values_pass(const pl_store *s, const pl_unit_store *u)
{
    return u->slot >= 0 && s->stage == 3 && pl_store_params_on_disk(s);
}

/* The values of a unit into its slot, unless they are there. */
static int fetch_values(pl_store *s, pl_unit_store *u, const pl_tour *tour)
{
    if (!values_pass(s, u) || u->fetched) return 0;
    PL_TRY(pl_store_enter_slot(s, u));
    u->fetched = true;
    return tour->reads_values ? pl_store_read_slices(s, u, false) : 0;
}

/* Begins to read a piece into a buffer, once the buffer is free. */
static int fetch_piece(pl_store *s, const pl_tour *tour, pl_buffer *buffer, const piece *p)
{
    PL_TRY(pl_disk_wait(s->run->err, s->options.offload.disk, &buffer->slot.transfer));
    buffer->unit = p->unit;
    buffer->low = p->low;
    buffer->high = p->high;
    return pl_store_read_states(s, buffer, tour->reads);
}

static int end_unit(pl_store *s, pl_unit_store *u, const pl_tour *tour)
{
    if (values_pass(s, u) && tour->writes_values) PL_TRY(pl_store_write_slices(s, u, tour->writes_frozen));
    u->fetched = false;
    return tour->publishes ? publish(s, u) : 0;
}

/* While one piece is worked on, the next one is read, and the one before written. */
static int visit(pl_store *s, const pl_tour *tour, const piece *now, pl_buffer *buffer, const piece *next)
{
    pl_unit_store *u = &s->units[now->unit];
    bool buffered = s->options.offload.disk != NULL;
    if (next && buffered) PL_TRY(fetch_piece(s, tour, &s->buffers[(buffer - s->buffers + 1) % PL_STORE_BUFFERS], next));
    if (now->low == u->low) PL_TRY(fetch_values(s, u, tour));
    if (next && next->unit != now->unit && s->units[next->unit].slot != u->slot) {
        PL_TRY(fetch_values(s, &s->units[next->unit], tour));
    }
    if (now->low == u->low && values_pass(s, u) && tour->reads_values) PL_TRY(pl_store_end_read(s, u, false));
    if (buffered) PL_TRY(pl_store_end_states(s, buffer, tour->reads));
    s->open_buffer = buffer;
    PL_TRY(tour->piece(s, s->model->units[now->unit], now->low, now->high, tour->user));
    s->open_buffer = NULL;
    if (buffered) PL_TRY(pl_store_write_states(s, buffer, tour->writes));
    return now->high == u->high ? end_unit(s, u, tour) : 0;
}

int pl_store_tour(pl_store *s, const pl_tour *tour)
{
    piece now, next;
    bool more = true;
    begin_unit(s, &now, 0);
    if (s->options.offload.disk) PL_TRY(fetch_piece(s, tour, &s->buffers[0], &now));
    for (int i = 0; more; i = (i + 1) % PL_STORE_BUFFERS) {
        next = now;
        more = next_piece(s, &next);
        PL_TRY(visit(s, tour, &now, &s->buffers[i], more ? &next : NULL));
        now = next;
    }
    PL_TRY(pl_store_end_transfers(s));
    return tour->publishes ? pl_store_end_gathers(s) : 0;
}

/* ---- the step ---- */

int pl_store_zero_gradients(pl_store *s)
{
    if (s->whole_gradients) {
        for (int i = 0; i < s->model->nparams; i++) {
            pl_param *p = s->model->params[i];
            p->grad_stale = pl_store_trains(s, p);
        }
        return 0;
    }
    const pl_block *g = &s->states[PL_STATE_GRADIENT];
    return g->there ? pl_fill(s->run, pl_store_f32(g->data, 0, g->bytes / 4), 0) : 0;
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

typedef struct stepping {
    const pl_optimizer *optimizer;
    double lr, grad_scale;
    int64_t step;
} stepping;

/* The elements of a sweep that are in [low, high). */
static int step_sweep(
    pl_store *s, pl_unit_store *u, const pl_sweep *sweep, int64_t low, int64_t high, const stepping *step)
{
    const pl_optimizer *o = step->optimizer;
    int64_t from = sweep->offset > low ? sweep->offset : low,
            to = sweep->offset + sweep->n < high ? sweep->offset + sweep->n : high;
    if (to <= from) return 0;
    int moments = s->options.moments;
    pl_tensor w = pl_store_values(s, u, from, to - from),
              rest = w.dtype == PL_F32 ? none : pl_store_elements(s, u, PL_STATE_MASTER, from, to - from),
              g = pl_store_elements(s, u, PL_STATE_GRADIENT, from, to - from),
              m = moments > 0 ? pl_store_elements(s, u, PL_STATE_MOMENT1, from, to - from) : none,
              v = moments > 1 ? pl_store_elements(s, u, PL_STATE_MOMENT2, from, to - from) : none;
    double decay = sweep->decay || o->kind == PL_OPTIMIZER_SGD ? o->weight_decay : 0;
    if (o->kind == PL_OPTIMIZER_SGD) {
        return pl_sgd(s->run, (pl_sgd_args){.w = w,
                                  .rest = rest,
                                  .g = g,
                                  .m = m,
                                  .lr = (float)(step->lr * sweep->lr_scale),
                                  .momentum = (float)o->momentum,
                                  .weight_decay = (float)decay,
                                  .grad_scale = (float)step->grad_scale,
                                  .nesterov = o->nesterov,
                                  .step = step->step});
    }
    return pl_adamw(s->run, (pl_adamw_args){.w = w,
                                .rest = rest,
                                .g = g,
                                .m = m,
                                .v = v,
                                .lr = (float)(step->lr * sweep->lr_scale),
                                .beta1 = (float)o->beta1,
                                .beta2 = (float)o->beta2,
                                .eps = (float)o->eps,
                                .weight_decay = (float)decay,
                                .grad_scale = (float)step->grad_scale,
                                .step = step->step});
}

static int step_piece(pl_store *s, pl_unit *unit, int64_t low, int64_t high, void *user)
{
    pl_unit_store *u = &s->units[unit->index];
    for (int k = 0; k < u->nsweeps; k++) PL_TRY(step_sweep(s, u, &u->sweeps[k], low, high, user));
    return 0;
}

int pl_store_step(pl_store *s, const pl_optimizer *optimizer, double lr, double grad_scale, int64_t step)
{
    stepping how = {optimizer, lr, grad_scale, step};
    unsigned states = 1u << PL_STATE_MASTER | 1u << PL_STATE_MOMENT1 | 1u << PL_STATE_MOMENT2;
    const pl_tour tour = {.reads = states,
        .writes = states,
        .reads_values = true,
        .writes_values = true,
        .publishes = true,
        .piece = step_piece,
        .user = &how};
    return pl_store_tour(s, &tour);
}

int pl_store_refresh(pl_store *s)
{
    for (int i = 0; i < s->model->nunits; i++) PL_TRY(publish(s, &s->units[i]));
    return pl_store_end_gathers(s);
}
