#include "train/init.h"

#include <math.h>
#include <stdlib.h>

#include "base/buf.h"
#include "op/op.h"

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

static int fill_random(pl_run *run, const pl_param *p, uint64_t seed, pl_tensor to)
{
    pl_rng rng = {.seed = seed, .stream = PL_RNG_INIT, .domain = p->id};
    int64_t n = pl_param_numel(p), mark = pl_stack_mark(run->work);
    int64_t most = n < CHUNK ? n : CHUNK;
    pl_tensor staging, flat = pl_tensor_1d(to.data, to.dtype, n);
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &most, &staging));
    float *host = NULL;
    if (to.data) PL_TRY(pl_calloc(run->err, (size_t)most, sizeof *host, &host));
    int rc = 0;
    for (int64_t from = 0; from < n && rc == 0 && to.data; from += most) { /* a dry device has nothing to fill */
        int64_t count = n - from < most ? n - from : most;
        draw_chunk(&rng, p, run->device->threads, from, count, host);
        run->device->ops->copy_in(run->device, staging.data, host, count * 4);
        rc = pl_copy(run, pl_tensor_rows(flat, from, count), pl_tensor_rows(staging, 0, count));
    }
    free(host);
    pl_stack_pop(run->work, mark);
    return rc;
}

int pl_init_param(pl_run *run, const pl_param *param, uint64_t seed, pl_tensor to)
{
    switch (param->init) {
    case PL_INIT_ZERO: return pl_fill(run, to, 0);
    case PL_INIT_ONE: return pl_fill(run, to, 1);
    case PL_INIT_NORMAL:
    case PL_INIT_UNIFORM: break;
    }
    PL_TRY(fill_random(run, param, seed, to));
    if (param->zero_row < 0 || param->zero_row >= param->shape[0]) return 0;
    return pl_fill(run, pl_tensor_rows(to, param->zero_row, 1), 0);
}

static int start_magnitude(pl_run *run, pl_store *store, const pl_linear *lin)
{
    pl_param *p = lin->lora->magnitude;
    pl_tensor master = pl_store_state(store, p, PL_STATE_MASTER);
    return pl_linear_weight_norm(run, lin, pl_tensor_none(master) ? p->value : master);
}

int pl_init_adapters(pl_run *run, pl_model *model, pl_store *store, const bool *found)
{
    for (int i = 0; i < model->nlinears; i++) {
        const pl_linear *lin = model->linears[i];
        if (!lin->lora) continue;
        PL_TRY(pl_linear_derive(run, lin));
        if (lin->lora->magnitude && !found[lin->lora->magnitude->id]) PL_TRY(start_magnitude(run, store, lin));
    }
    return 0;
}
