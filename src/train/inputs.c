#include "train/inputs.h"

#include <math.h>
#include <stdlib.h>

#include "base/buf.h"

static int table(pl_run *run, int ndim, const int64_t *shape, pl_dtype dtype, pl_tensor *out)
{
    *out = pl_tensor_nd(NULL, dtype, ndim, shape);
    int rc = pl_mem_alloc(run->err, run->mem, PL_MEM_BATCH, pl_tensor_bytes(*out), &out->data);
    if (rc < 0) out->ndim = 0;
    return rc;
}

static void drop(pl_run *run, pl_tensor *t)
{
    if (t->ndim) pl_mem_free(run->mem, PL_MEM_BATCH, t->data, pl_tensor_bytes(*t));
    *t = (pl_tensor){0};
}

int pl_inputs_open(pl_run *run, pl_inputs *in, const pl_arch *arch, const pl_capacity *capacity)
{
    *in = (pl_inputs){.tokens = capacity->tokens, .positions_limit = capacity->max_length};
    pl_tensor *lists[] = {&in->ids, &in->positions, &in->rows, &in->row_targets, &in->inverse, &in->logit_rows};
    int rc = 0;
    for (int i = 0; i < PL_COUNT(lists); i++) PL_GO(failed, table(run, 1, &capacity->tokens, PL_I32, lists[i]));
    int64_t widest = 1;
    for (int r = 0; r < arch->nropes; r++) {
        int64_t shape[] = {capacity->max_length, arch->ropes[r].rotary / 2};
        PL_GO(failed, table(run, 2, shape, PL_F32, &in->rope_cos[r]));
        PL_GO(failed, table(run, 2, shape, PL_F32, &in->rope_sin[r]));
        if (shape[1] > widest) widest = shape[1];
    }
    PL_GO(failed, pl_calloc(run->err, (size_t)(3 * capacity->tokens), sizeof *in->host, &in->host));
    PL_GO(failed, pl_calloc(run->err, (size_t)(capacity->max_length * widest), sizeof(float), &in->host_rope));
    PL_GO(failed, pl_calloc(run->err, (size_t)widest, sizeof *in->host_inverse, &in->host_inverse));
    return 0;
failed:
    pl_inputs_close(run, in);
    return rc;
}

void pl_inputs_close(pl_run *run, pl_inputs *in)
{
    pl_tensor *lists[] = {&in->ids, &in->positions, &in->rows, &in->row_targets, &in->inverse, &in->logit_rows};
    for (int i = 0; i < PL_COUNT(lists); i++) drop(run, lists[i]);
    for (int r = 0; r < PL_MAX_ROPES; r++) {
        drop(run, &in->rope_cos[r]);
        drop(run, &in->rope_sin[r]);
    }
    free(in->host);
    free(in->host_rope);
    free(in->host_inverse);
    *in = (pl_inputs){0};
}

static int check(pl_run *run, const pl_inputs *in, const pl_arch *arch, const pl_batch *batch)
{
    for (int64_t t = 0; t < batch->tokens; t++) {
        int32_t id = batch->ids[t], target = batch->targets[t];
        if (id < 0 || id >= arch->vocab || target >= arch->vocab) {
            return PL_FAIL(run->err, PL_EINPUT, "token %d is outside the model's vocabulary of %lld",
                id < 0 || id >= arch->vocab ? id : target, (long long)arch->vocab);
        }
    }
    if (batch->tokens > in->tokens) {
        return PL_FAIL(run->err, PL_EBUG, "a batch of %lld tokens; %lld were planned", (long long)batch->tokens,
            (long long)in->tokens);
    }
    for (int64_t t = 0; t < batch->tokens; t++) {
        int32_t position = batch->positions[t];
        if (position < 0 || position >= arch->max_positions) {
            return PL_FAIL(run->err, PL_EINPUT, "a token at position %d: the model has %lld positions", position,
                (long long)arch->max_positions);
        }
        if (position >= in->positions_limit) {
            return PL_FAIL(run->err, PL_EBUG, "a sequence of more than %lld tokens was not planned",
                (long long)in->positions_limit);
        }
    }
    return 0;
}

static void copy_ints(pl_run *run, pl_tensor to, const int32_t *from, int64_t n)
{
    run->device->ops->copy_in(run->device, to.data, from, n * 4);
}

/* One table, cos or sin of position times frequency, through host memory. */
static void fill_rope(pl_run *run, pl_inputs *in, pl_tensor to, const double *inverse, double factor, bool sine)
{
    int64_t half = to.shape[1];
    for (int64_t p = 0; p < to.shape[0]; p++) {
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * inverse[i];
            in->host_rope[p * half + i] = (float)((sine ? sin(angle) : cos(angle)) * factor);
        }
    }
    run->device->ops->copy_in(run->device, to.data, in->host_rope, to.shape[0] * half * 4);
}

/* Tables for a batch whose longest sequence is `length`; made again only when the frequencies change with it. */
static void set_rope(pl_run *run, pl_inputs *in, const pl_arch *arch, int r, int64_t length)
{
    const pl_rope_spec *rope = &arch->ropes[r];
    if (in->rope_length[r] > 0 && pl_rope_same(rope, in->rope_length[r], length)) return;
    double factor;
    pl_rope_frequencies(rope, length, in->host_inverse, &factor);
    if (in->rope_cos[r].data) {
        fill_rope(run, in, in->rope_cos[r], in->host_inverse, factor, false);
        fill_rope(run, in, in->rope_sin[r], in->host_inverse, factor, true);
    }
    in->rope_length[r] = length;
}

int pl_inputs_set(pl_run *run, pl_inputs *in, const pl_arch *arch, const pl_batch *batch, pl_pass *pass)
{
    PL_TRY(check(run, in, arch, batch));
    int64_t n = batch->tokens, trained = 0;
    int32_t *rows = in->host, *targets = in->host + n, *inverse = in->host + 2 * n, largest = 0;
    for (int64_t t = 0; t < n; t++) {
        if (batch->positions[t] > largest) largest = batch->positions[t];
        inverse[t] = (int32_t)(batch->targets[t] >= 0 ? trained : batch->ntargets);
        if (batch->targets[t] < 0) continue;
        rows[trained] = (int32_t)t;
        targets[trained++] = batch->targets[t];
    }
    copy_ints(run, in->ids, batch->ids, n);
    copy_ints(run, in->positions, batch->positions, n);
    copy_ints(run, in->rows, rows, trained);
    copy_ints(run, in->row_targets, targets, trained);
    copy_ints(run, in->inverse, inverse, n);
    pass->ids = pl_tensor_rows(in->ids, 0, n);
    pass->positions = pl_tensor_rows(in->positions, 0, n);
    pass->rows = pl_tensor_rows(in->rows, 0, n);
    pass->row_targets = pl_tensor_rows(in->row_targets, 0, n);
    pass->inverse = pl_tensor_rows(in->inverse, 0, n);
    int64_t length = batch->rope_length > largest ? batch->rope_length : (int64_t)largest + 1;
    for (int r = 0; r < arch->nropes; r++) {
        set_rope(run, in, arch, r, length);
        pass->rope_cos[r] = in->rope_cos[r];
        pass->rope_sin[r] = in->rope_sin[r];
    }
    return 0;
}

int pl_inputs_rows(pl_run *run, pl_inputs *in, const int32_t *rows, int64_t n, pl_pass *pass)
{
    if (n > in->tokens) return PL_FAIL(run->err, PL_EBUG, "logits of %lld rows", (long long)n);
    copy_ints(run, in->logit_rows, rows, n);
    pass->logit_rows = pl_tensor_rows(in->logit_rows, 0, n);
    return 0;
}
