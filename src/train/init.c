#include "train/init.h"

#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "model/lora_init.h"
#include "op/op.h"
#include "tensor/convert.h"

/* Elements made in host memory at a time; a multiple of 4, since a block of random numbers makes four. */
#define CHUNK ((int64_t)1 << 18)

/* Four values for block `index`, from 32 random bits each. */
static void draw(const pl_rng *rng, uint64_t index, pl_init kind, float scale, float out[4])
{
    uint32_t b[4];
    pl_rng_block(rng, index, b);
    if (kind == PL_INIT_UNIFORM) {
        for (int i = 0; i < 4; i++) out[i] = scale * ((float)(b[i] >> 8) * 0x1p-23f - 1);
        return;
    }
    for (int i = 0; i < 4; i += 2) { /* Box and Muller; (0, 1] keeps the logarithm finite */
        float radius = scale * sqrtf(-2 * logf((float)((b[i] >> 8) + 1) * 0x1p-24f));
        float angle = 6.28318530718f * ((float)(b[i + 1] >> 8) * 0x1p-24f);
        out[i] = radius * cosf(angle);
        out[i + 1] = radius * sinf(angle);
    }
}

static void draw_chunk(const pl_rng *rng, const pl_param *p, int threads, int64_t from, int64_t n, float *out)
{
#pragma omp parallel for num_threads(threads) if (n > 4096)
    for (int64_t e = 0; e < n; e += 4) {
        float four[4];
        draw(rng, (uint64_t)(from + e) / 4, p->init, p->init_scale, four);
        for (int i = 0; i < 4 && e + i < n; i++) out[e + i] = four[i];
    }
}

static int fill_random(pl_run *run, const pl_param *p, uint64_t seed, pl_tensor to, int64_t first)
{
    pl_rng rng = {.seed = seed, .stream = PL_RNG_INIT, .domain = p->id};
    int64_t n = to.shape[0], mark = pl_stack_mark(run->work);
    int64_t most = n < CHUNK ? n : CHUNK;
    pl_tensor staging;
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &most, &staging));
    float *host = NULL;
    if (to.data) PL_TRY(pl_calloc(run->err, (size_t)most, sizeof *host, &host));
    int rc = 0;
    for (int64_t from = 0; from < n && rc == 0 && to.data; from += most) { /* a dry device has nothing to fill */
        int64_t count = n - from < most ? n - from : most;
        draw_chunk(&rng, p, run->device->threads, first + from, count, host);
        run->device->ops->copy_in(run->device, staging.data, host, count * 4);
        rc = pl_copy(run, pl_tensor_rows(to, from, count), pl_tensor_rows(staging, 0, count));
    }
    free(host);
    pl_stack_pop(run->work, mark);
    return rc;
}

/* The elements of the row that begins at zero. */
static int clear_zero_row(pl_run *run, const pl_param *p, pl_tensor to, int64_t first)
{
    if (p->zero_row < 0 || p->zero_row >= p->shape[0]) return 0;
    int64_t width = pl_param_numel(p) / p->shape[0], begin = p->zero_row * width - first, end = begin + width;
    if (begin < 0) begin = 0;
    if (end > to.shape[0]) end = to.shape[0];
    return end > begin ? pl_fill(run, pl_tensor_rows(to, begin, end - begin), 0) : 0;
}

int pl_init_param(pl_run *run, const pl_param *param, uint64_t seed, pl_tensor to, int64_t first)
{
    switch (param->init) {
    case PL_INIT_ZERO: return pl_fill(run, to, 0);
    case PL_INIT_ONE: return pl_fill(run, to, 1);
    case PL_INIT_NORMAL:
    case PL_INIT_UNIFORM: break;
    }
    PL_TRY(fill_random(run, param, seed, to, first));
    return clear_zero_row(run, param, to, first);
}

/* Host memory of one adapter's start. */
typedef struct start_memory {
    float *weight, *a, *b;
    uint16_t *half; /* for a weight that is not f32 */
} start_memory;

static int get_start_memory(pl_run *run, const pl_linear *lin, bool weight, start_memory *m)
{
    size_t n = (size_t)(lin->in * lin->out), r = (size_t)lin->lora->rank;
    PL_TRY(pl_calloc(run->err, r * (size_t)lin->in, sizeof *m->a, &m->a));
    PL_TRY(pl_calloc(run->err, r * (size_t)lin->out, sizeof *m->b, &m->b));
    if (!weight) return 0;
    PL_TRY(pl_calloc(run->err, n, sizeof *m->weight, &m->weight));
    if (lin->weight->value.dtype == PL_F32) return 0;
    return pl_calloc(run->err, n, sizeof *m->half, &m->half);
}

static int fetch_weight(pl_run *run, pl_tensor w, start_memory *m)
{
    void *to = m->half ? (void *)m->half : (void *)m->weight;
    run->device->ops->copy_out(run->device, to, w.data, pl_tensor_bytes(w));
    if (!m->half) return 0;
    return pl_convert(run->err, m->weight, PL_F32, m->half, w.dtype, pl_tensor_numel(w));
}

static int put_weight(pl_run *run, pl_tensor w, start_memory *m)
{
    if (m->half) PL_TRY(pl_convert(run->err, m->half, w.dtype, m->weight, PL_F32, pl_tensor_numel(w)));
    void *from = m->half ? (void *)m->half : (void *)m->weight;
    run->device->ops->copy_in(run->device, w.data, from, pl_tensor_bytes(w));
    return 0;
}

/* An f32 tensor of the parameter's shape: its master where all of that is here, else on the work stack. */
static int whole_tensor(pl_run *run, const pl_store *store, const pl_param *p, pl_tensor *out)
{
    *out = pl_store_state(store, p, PL_STATE_MASTER);
    return pl_tensor_none(*out) ? pl_stack_push(run->err, run->work, PL_F32, p->ndim, p->shape, out) : 0;
}

/* Into the master where there is one, and into what operators read. */
static int put_param(pl_run *run, pl_store *store, const pl_param *p, const float *values)
{
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor f32;
    PL_TRY(whole_tensor(run, store, p, &f32));
    if (values) run->device->ops->copy_in(run->device, f32.data, values, pl_tensor_bytes(f32));
    PL_TRY(pl_store_set(store, p, f32));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* The adapter's start that takes arithmetic on whole matrices, in host memory. */
static int start_by_matrices(pl_run *run, pl_store *store, const pl_linear *lin, uint64_t seed, const bool *found)
{
    const pl_lora *lora = lin->lora;
    bool given = found[lora->a->id] && found[lora->b->id], changes = pl_linear_changes_base(lin);
    if (given && !changes) return 0;
    pl_lora_start start = pl_linear_start(lin, seed);
    /* The work stack is held as long as the host's memory is, for no other reason than that a plan then counts it. */
    pl_tensor w = lin->weight->value;
    int64_t mark = pl_stack_mark(run->work),
            bytes = pl_lora_start_bytes(&start) + 4 * lora->rank * (lin->in + lin->out);
    if (changes) bytes += lin->in * lin->out * (w.dtype == PL_F32 ? 4 : 6);
    void *held;
    PL_TRY(pl_stack_push_bytes(run->err, run->work, bytes, &held));
    start_memory m = {0};
    int rc = 0;
    if (w.data) { /* not on a dry device */
        PL_GO(done, get_start_memory(run, lin, changes, &m));
        if (changes) PL_GO(done, fetch_weight(run, w, &m));
        PL_GO(done, pl_lora_start_make(run->err, &start, m.weight, m.a, m.b));
        if (changes) PL_GO(done, put_weight(run, w, &m));
    }
    pl_stack_pop(run->work, mark);
    if (!given) {
        PL_GO(done, put_param(run, store, lora->a, m.a));
        PL_GO(done, put_param(run, store, lora->b, m.b));
    }
done:
    free(m.weight);
    free(m.half);
    free(m.a);
    free(m.b);
    return rc;
}

static int start_magnitude(pl_run *run, pl_store *store, const pl_linear *lin)
{
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor norm;
    PL_TRY(whole_tensor(run, store, lin->lora->magnitude, &norm));
    PL_TRY(pl_linear_weight_norm(run, lin, norm));
    PL_TRY(pl_store_set(store, lin->lora->magnitude, norm));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int start_adapter(pl_run *run, pl_store *store, const pl_linear *lin, uint64_t seed, const bool *found)
{
    const pl_lora *lora = lin->lora;
    switch (lora->init) {
    case PL_LORA_INIT_PISSA:
    case PL_LORA_INIT_OLORA:
    case PL_LORA_INIT_ORTHOGONAL: PL_TRY(start_by_matrices(run, store, lin, seed, found)); break;
    case PL_LORA_INIT_DEFAULT:
    case PL_LORA_INIT_RANDOM:
    case PL_LORA_INIT_GAUSSIAN:
    case PL_LORA_INIT_LOFTQ: break;
    case PL_LORA_INIT_EVA:
        if (found[lora->a->id]) break;
        return PL_FAIL(run->err, PL_EUNSUPPORTED,
            "%s: init_lora_weights eva is for adapters that are there already; none can be begun with it", lin->name);
    }
    PL_TRY(pl_linear_derive(run, lin));
    if (lora->magnitude && !found[lora->magnitude->id]) PL_TRY(start_magnitude(run, store, lin));
    return 0;
}

int pl_init_adapters(pl_run *run, pl_model *model, pl_store *store, uint64_t seed, const bool *found)
{
    for (int u = 0; u < model->nunits; u++) {
        bool adapted = false;
        for (int i = 0; i < model->nlinears; i++)
            adapted |= model->linears[i]->unit == model->units[u] && model->linears[i]->lora;
        if (!adapted) continue;
        PL_TRY(pl_store_acquire(store, model->units[u], PL_WAY_ALONE));
        for (int i = 0; i < model->nlinears; i++) {
            const pl_linear *lin = model->linears[i];
            if (lin->unit == model->units[u] && lin->lora) PL_TRY(start_adapter(run, store, lin, seed, found));
        }
        PL_TRY(pl_store_keep(store, model->units[u]));
        PL_TRY(pl_store_release(store, model->units[u], PL_WAY_ALONE));
    }
    return 0;
}
