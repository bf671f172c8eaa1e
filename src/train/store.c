#include "train/store.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "op/op.h"
#include "tensor/convert.h"
#include "train/init.h"

/* Elements to which a parameter's place in a flat buffer is rounded: 64 bytes of f32. */
#define GRAIN 16
/* Elements loaded at a time, so that no more of a file than that is in memory twice. */
#define LOADED ((int64_t)1 << 22)

static const pl_tensor none = {0};

/* Where one parameter lives. */
typedef struct slot {
    int64_t offset;      /* in elements of the unit's trainable buffers, or in bytes of its frozen one */
    const void *wrapped; /* the file's mapping, when that is used in place */
    int64_t wrapped_bytes;
} slot;

/* Neighbours that the optimizer treats alike. */
typedef struct sweep {
    int64_t offset, n;
    bool decay, copied;
    float lr_scale;
} sweep;

typedef struct unit_store {
    int64_t n, frozen_bytes; /* trainable elements, padding included */
    void *copies;            /* in the model's dtype; NULL in f32, where the masters serve */
    void *states[PL_STATE_COUNT], *frozen;
    bool has_copies, has_frozen; /* allocated: a dry device's memory is NULL */
    int nstates;
    sweep *sweeps;
    int nsweeps;
} unit_store;

struct pl_store {
    pl_run *run;
    pl_model *model;
    pl_store_options options;
    slot *slots; /* [nparams], by param->id */
    unit_store *units;
};

static const pl_mem_tag state_tags[PL_STATE_COUNT] = {
    [PL_STATE_MASTER] = PL_MEM_MASTERS,
    [PL_STATE_GRADIENT] = PL_MEM_GRADIENTS,
    [PL_STATE_MOMENT1] = PL_MEM_OPTIMIZER,
    [PL_STATE_MOMENT2] = PL_MEM_OPTIMIZER,
};

/* In f32 the masters are what operators read, and are accounted as that. */
static pl_mem_tag tag_of(const pl_store *store, pl_state state)
{
    if (state == PL_STATE_MASTER && store->model->dtype == PL_F32) return PL_MEM_WEIGHTS;
    return state_tags[state];
}

static bool trains(const pl_store *store, const pl_param *p)
{
    return store->options.training && p->trainable;
}

static pl_dtype value_dtype(const pl_store *store, const pl_param *p)
{
    return p->keep_f32 || p->role == PL_ROLE_DERIVED ? PL_F32 : store->model->dtype;
}

static pl_tensor param_view(const pl_param *p, void *base, pl_dtype dtype, int64_t elements)
{
    void *data = base ? (char *)base + elements * pl_dtype_size(dtype) : NULL;
    return pl_tensor_nd(data, dtype, p->ndim, p->shape);
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
static bool place_in_mapping(pl_store *store, pl_param *p, const pl_host_tensor *t)
{
    pl_device *device = store->run->device;
    if (t->dtype != value_dtype(store, p) || p->keep_f32 || p->is_private) return false;
    int64_t bytes = pl_param_numel(p) * pl_dtype_size(t->dtype);
    void *data = device->ops->wrap(device, t->data, bytes);
    if (!data) return false;
    store->slots[p->id] = (slot){.wrapped = data, .wrapped_bytes = bytes};
    p->value = pl_tensor_nd(data, t->dtype, p->ndim, p->shape);
    pl_mem_count(store->run->mem, PL_MEM_WEIGHTS, bytes);
    return true;
}

/* Extends the unit's list of sweeps by one parameter. */
static int add_sweep(pl_store *store, unit_store *u, const pl_param *p, int64_t padded)
{
    bool copied = value_dtype(store, p) != PL_F32;
    sweep *last = u->nsweeps ? &u->sweeps[u->nsweeps - 1] : NULL;
    if (last && last->decay == p->decay && last->copied == copied && last->lr_scale == p->lr_scale) {
        last->n += padded;
        return 0;
    }
    sweep *grown = realloc(u->sweeps, (size_t)(u->nsweeps + 1) * sizeof *grown);
    if (!grown) return PL_FAIL_NOMEM(store->run->err);
    u->sweeps = grown;
    u->sweeps[u->nsweeps++] = (sweep){u->n, padded, p->decay, copied, p->lr_scale};
    return 0;
}

/* Gives each parameter of a unit its offset, and those that can stay in their file their place. */
static int lay_out(pl_store *store, pl_unit *unit, const pl_host_tensor *found, const bool *is_found)
{
    unit_store *u = &store->units[unit->index];
    for (int i = 0; i < unit->nparams; i++) {
        pl_param *p = unit->params[i];
        int64_t padded = (pl_param_numel(p) + GRAIN - 1) / GRAIN * GRAIN;
        if (trains(store, p)) {
            PL_TRY(add_sweep(store, u, p, padded));
            store->slots[p->id].offset = u->n;
            u->n += padded;
        } else if (!is_found[p->id] || !place_in_mapping(store, p, &found[p->id])) {
            store->slots[p->id].offset = u->frozen_bytes;
            u->frozen_bytes += padded * pl_dtype_size(value_dtype(store, p));
        }
    }
    return 0;
}

static int allocate(pl_store *store, unit_store *u)
{
    pl_run *run = store->run;
    if (u->frozen_bytes > 0) {
        PL_TRY(pl_mem_alloc(run->err, run->mem, PL_MEM_WEIGHTS, u->frozen_bytes, &u->frozen));
        u->has_frozen = true;
    }
    if (u->n == 0) return 0;
    if (store->model->dtype != PL_F32) {
        int64_t bytes = u->n * pl_dtype_size(store->model->dtype);
        PL_TRY(pl_mem_alloc(run->err, run->mem, PL_MEM_WEIGHTS, bytes, &u->copies));
        u->has_copies = true;
    }
    for (int s = 0; s < PL_STATE_MOMENT1 + store->options.moments; s++) {
        PL_TRY(pl_mem_alloc(run->err, run->mem, tag_of(store, (pl_state)s), u->n * 4, &u->states[s]));
        u->nstates++;
        PL_TRY(pl_fill(run, pl_tensor_1d(u->states[s], PL_F32, u->n), 0));
    }
    if (u->copies) PL_TRY(pl_fill(run, pl_tensor_1d(u->copies, store->model->dtype, u->n), 0));
    return 0;
}

static void point(pl_store *store, pl_unit *unit)
{
    unit_store *u = &store->units[unit->index];
    for (int i = 0; i < unit->nparams; i++) {
        pl_param *p = unit->params[i];
        const slot *s = &store->slots[p->id];
        pl_dtype dtype = value_dtype(store, p);
        p->grad = none;
        if (s->wrapped) continue;
        if (!trains(store, p)) {
            p->value = pl_tensor_nd(u->frozen ? (char *)u->frozen + s->offset : NULL, dtype, p->ndim, p->shape);
            continue;
        }
        p->value = param_view(p, dtype == PL_F32 ? u->states[PL_STATE_MASTER] : u->copies, dtype, s->offset);
        p->grad = param_view(p, u->states[PL_STATE_GRADIENT], PL_F32, s->offset);
    }
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

static int load_values(pl_run *run, pl_tensor dst, const pl_host_tensor *t)
{
    int64_t n = pl_tensor_numel(dst);
    pl_tensor flat = pl_tensor_1d(dst.data, dst.dtype, n), host = pl_tensor_1d((void *)t->data, t->dtype, n);
    for (int64_t from = 0; from < n; from += LOADED) {
        int64_t count = n - from < LOADED ? n - from : LOADED;
        pl_tensor piece = pl_tensor_rows(host, from, count);
        PL_TRY(load_piece(run, pl_tensor_rows(flat, from, count), piece));
        pl_map_forget(t->map, piece.data, (size_t)pl_tensor_bytes(piece));
    }
    return 0;
}

static int fill_param(pl_store *store, pl_param *p, const pl_host_tensor *found)
{
    pl_run *run = store->run;
    if (store->slots[p->id].wrapped || p->role == PL_ROLE_DERIVED) return 0;
    pl_tensor master = pl_store_state(store, p, PL_STATE_MASTER), to = pl_tensor_none(master) ? p->value : master;
    if (found) {
        PL_TRY(load_values(run, to, found));
    } else {
        PL_TRY(pl_init_param(run, p, store->options.seed, to));
    }
    if (pl_tensor_none(master) || master.data == p->value.data) return 0;
    return pl_copy(run, p->value, master);
}

static int place_all(pl_store *store, const pl_source *source, pl_host_tensor *found, bool *is_found)
{
    pl_run *run = store->run;
    pl_model *model = store->model;
    for (int i = 0; i < model->nparams; i++) {
        if (model->params[i]->role == PL_ROLE_DERIVED) continue;
        PL_TRY(source->find(run->err, source->user, model->params[i], &found[i], &is_found[i]));
        if (is_found[i]) PL_TRY(pl_host_tensor_check(run->err, model->params[i], &found[i]));
    }
    for (int u = 0; u < model->nunits; u++) {
        PL_TRY(lay_out(store, model->units[u], found, is_found));
        PL_TRY(allocate(store, &store->units[u]));
        point(store, model->units[u]);
    }
    for (int i = 0; i < model->nparams; i++) {
        PL_TRY(fill_param(store, model->params[i], is_found[i] ? &found[i] : NULL));
    }
    return 0;
}

int pl_store_open(
    pl_run *run, pl_model *model, const pl_store_options *options, const pl_source *source, pl_store **out)
{
    pl_store *store;
    pl_host_tensor *found = NULL;
    bool *is_found = NULL;
    PL_TRY(pl_calloc(run->err, 1, sizeof *store, &store));
    *store = (pl_store){.run = run, .model = model, .options = *options};
    int rc;
    PL_GO(done, pl_calloc(run->err, (size_t)model->nparams, sizeof *store->slots, &store->slots));
    PL_GO(done, pl_calloc(run->err, (size_t)model->nunits, sizeof *store->units, &store->units));
    PL_GO(done, pl_calloc(run->err, (size_t)model->nparams, sizeof *found, &found));
    PL_GO(done, pl_calloc(run->err, (size_t)model->nparams, sizeof *is_found, &is_found));
    PL_GO(done, place_all(store, source, found, is_found));
    PL_GO(done, pl_init_adapters(run, model, store, options->seed, is_found));
done:
    free(found);
    free(is_found);
    if (rc < 0) {
        pl_store_close(store);
        return rc;
    }
    *out = store;
    return 0;
}

static void close_unit(pl_store *store, unit_store *u)
{
    pl_mem *mem = store->run->mem;
    if (u->has_frozen) pl_mem_free(mem, PL_MEM_WEIGHTS, u->frozen, u->frozen_bytes);
    if (u->has_copies) {
        pl_mem_free(mem, PL_MEM_WEIGHTS, u->copies, u->n * pl_dtype_size(store->model->dtype));
    }
    for (int s = 0; s < u->nstates; s++) {
        pl_mem_free(mem, tag_of(store, (pl_state)s), u->states[s], u->n * 4);
    }
    free(u->sweeps);
}

void pl_store_close(pl_store *store)
{
    if (!store) return;
    for (int i = 0; i < store->model->nunits && store->units; i++) close_unit(store, &store->units[i]);
    for (int i = 0; i < store->model->nparams && store->slots; i++) {
        const slot *s = &store->slots[i];
        pl_device *device = store->run->device;
        if (!s->wrapped) continue;
        device->ops->unwrap(device, (void *)s->wrapped, s->wrapped_bytes);
        pl_mem_count(store->run->mem, PL_MEM_WEIGHTS, -s->wrapped_bytes);
    }
    free(store->slots);
    free(store->units);
    free(store);
}

/* ---- use ---- */

int pl_store_acquire(pl_store *store, pl_unit *unit)
{
    (void)store;
    (void)unit;
    return 0;
}

int pl_store_release(pl_store *store, pl_unit *unit)
{
    (void)store;
    (void)unit;
    return 0;
}

int pl_store_grad_done(pl_store *store, pl_unit *unit)
{
    (void)store;
    (void)unit;
    return 0;
}

int pl_store_zero_gradients(pl_store *store)
{
    for (int i = 0; i < store->model->nunits; i++) {
        unit_store *u = &store->units[i];
        if (u->n > 0) PL_TRY(pl_fill(store->run, pl_tensor_1d(u->states[PL_STATE_GRADIENT], PL_F32, u->n), 0));
    }
    return 0;
}

int pl_store_gradient_norm(pl_store *store, double *norm)
{
    double total = 0;
    for (int i = 0; i < store->model->nunits; i++) {
        unit_store *u = &store->units[i];
        double sum = 0;
        if (u->n > 0) {
            PL_TRY(pl_sum_squares(store->run, &sum, pl_tensor_1d(u->states[PL_STATE_GRADIENT], PL_F32, u->n)));
        }
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

/* Elements [offset, offset + n) of a flat state; none where there is no such state. */
static pl_tensor part(void *base, pl_dtype dtype, bool there, int64_t offset, int64_t n)
{
    if (!there) return none;
    return pl_tensor_1d(base ? (char *)base + offset * pl_dtype_size(dtype) : NULL, dtype, n);
}

static int step_sweep(
    pl_store *store, unit_store *u, const sweep *s, const pl_optimizer *o, double lr, double grad_scale, int64_t step)
{
    int moments = store->options.moments;
    pl_tensor w = part(u->states[PL_STATE_MASTER], PL_F32, true, s->offset, s->n),
              g = part(u->states[PL_STATE_GRADIENT], PL_F32, true, s->offset, s->n),
              m = part(u->states[PL_STATE_MOMENT1], PL_F32, moments > 0, s->offset, s->n),
              v = part(u->states[PL_STATE_MOMENT2], PL_F32, moments > 1, s->offset, s->n),
              copy = part(u->copies, store->model->dtype, s->copied, s->offset, s->n);
    double decay = s->decay || o->kind == PL_OPTIMIZER_SGD ? o->weight_decay : 0;
    if (o->kind == PL_OPTIMIZER_SGD) {
        return pl_sgd(store->run, (pl_sgd_args){.w = w,
                                      .copy = copy,
                                      .g = g,
                                      .m = m,
                                      .lr = (float)(lr * s->lr_scale),
                                      .momentum = (float)o->momentum,
                                      .weight_decay = (float)decay,
                                      .grad_scale = (float)grad_scale,
                                      .nesterov = o->nesterov,
                                      .step = step});
    }
    return pl_adamw(store->run, (pl_adamw_args){.w = w,
                                    .copy = copy,
                                    .g = g,
                                    .m = m,
                                    .v = v,
                                    .lr = (float)(lr * s->lr_scale),
                                    .beta1 = (float)o->beta1,
                                    .beta2 = (float)o->beta2,
                                    .eps = (float)o->eps,
                                    .weight_decay = (float)decay,
                                    .grad_scale = (float)grad_scale,
                                    .step = step});
}

int pl_store_step(pl_store *store, const pl_optimizer *optimizer, double lr, double grad_scale, int64_t step)
{
    for (int i = 0; i < store->model->nunits; i++) {
        unit_store *u = &store->units[i];
        for (int s = 0; s < u->nsweeps; s++) {
            PL_TRY(step_sweep(store, u, &u->sweeps[s], optimizer, lr, grad_scale, step));
        }
    }
    return 0;
}

static const pl_unit *owner_of(const pl_store *store, const pl_param *param)
{
    for (int u = 0; u < store->model->nunits; u++) {
        for (int i = 0; i < store->model->units[u]->nparams; i++) {
            if (store->model->units[u]->params[i] == param) return store->model->units[u];
        }
    }
    return NULL;
}

pl_tensor pl_store_state(const pl_store *store, const pl_param *param, pl_state state)
{
    if (!trains(store, param) || (int)state >= PL_STATE_MOMENT1 + store->options.moments) return none;
    const pl_unit *unit = owner_of(store, param);
    return param_view(param, store->units[unit->index].states[state], PL_F32, store->slots[param->id].offset);
}

int pl_store_refresh(pl_store *store)
{
    for (int i = 0; i < store->model->nparams; i++) {
        pl_param *p = store->model->params[i];
        pl_tensor master = pl_store_state(store, p, PL_STATE_MASTER);
        if (!pl_tensor_none(master) && master.data != p->value.data) PL_TRY(pl_copy(store->run, p->value, master));
    }
    return 0;
}
