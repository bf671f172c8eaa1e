#include "model/linear.h"

#include <stdlib.h>
#include <string.h>

#include "op/op.h"

static const pl_tensor none = {0};

/* y = x W^T (+ b) (+ h B^T, where there is an h). */
static int base_product(pl_run *run, const pl_linear *lin, pl_tensor y, pl_tensor x, bool with_bias, pl_tensor h)
{
    return pl_gemm(run, (pl_gemm_args){.c = y,
                            .a = x,
                            .b = lin->weight->value,
                            .bias = with_bias && lin->bias ? lin->bias->value : none,
                            .transpose_b = !lin->transposed,
                            .a2 = h,
                            .b2 = pl_tensor_none(h) ? none : lin->lora->b->value,
                            .transpose_b2 = true,
                            .alpha = 1});
}

/* y += s b_B, by rows. */
static int add_up_bias(pl_run *run, const pl_lora *lora, pl_tensor y)
{
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor one, scaled;
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &y.shape[1], &one));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &y.shape[1], &scaled));
    PL_TRY(pl_fill(run, one, 1));
    PL_TRY(pl_add(run, scaled, none, lora->b_bias->value, lora->scaling));
    PL_TRY(pl_scale_columns(run, y, y, one, scaled));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* y = dropout(x), or added to y. The mask of a token is the same wherever it is computed: sequences that are neighbours
   here need not be so in the step. */
static int drop(pl_run *run, const pl_linear *lin, const pl_pass *pass, pl_tensor y, pl_tensor x, bool accumulate)
{
    const pl_batch *b = pass->batch;
    pl_dropout_args a = {.y = y,
        .x = x,
        .rng = {.seed = pass->seed + (uint64_t)pass->step * 0x9E3779B97F4A7C15u,
            .stream = PL_RNG_DROPOUT,
            .domain = lin->id},
        .first_row = pass->first_row,
        .p = lin->lora->dropout,
        .accumulate = accumulate};
    if (pass->gathered) return pl_dropout(run, a);
    for (int s = 0, next; s < b->nsequences; s = next) {
        int64_t from = b->sequences[s].q_begin, n = b->sequences[s].q_len;
        for (next = s + 1; next < b->nsequences && b->numbers[next] == b->numbers[s] + n; next++) {
            n += b->sequences[next].q_len;
        }
        a.y = pl_tensor_rows(y, from, n);
        a.x = pl_tensor_rows(x, from, n);
        a.first_row = b->numbers[s];
        PL_TRY(pl_dropout(run, a));
    }
    return 0;
}

/* x or, with dropout in training, a dropped copy of it on run->work. */
static int dropped_input(pl_run *run, const pl_linear *lin, const pl_pass *pass, pl_tensor x, pl_tensor *out)
{
    *out = x;
    if (lin->lora->dropout == 0 || !pass->training) return 0;
    PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, x.shape, out));
    return drop(run, lin, pass, *out, x, false);
}

/* |W_i + s (BA)_i|^2 = |W_i|^2 + 2 s (W A^T)_i . B_i + s^2 (B A A^T)_i . B_i : no [out, in] matrix is made for it. */
int pl_linear_weight_norm(pl_run *run, const pl_linear *lin, pl_tensor norm)
{
    const pl_lora *lora = lin->lora;
    int64_t mark = pl_stack_mark(run->work), r = lora->rank;
    pl_tensor cross, gram, product, dots;
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, (int64_t[]){lin->out, r}, &cross));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, (int64_t[]){r, r}, &gram));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, (int64_t[]){lin->out, r}, &product));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, (int64_t[]){lin->out}, &dots));
    /* The small matrices are made in f32 from f32 copies: rounding gram to bf16 would show in the norm. */
    pl_tensor a, b;
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, lora->a->shape, &a));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, lora->b->shape, &b));
    PL_TRY(pl_copy(run, a, lora->a->value));
    PL_TRY(pl_copy(run, b, lora->b->value));
    PL_TRY(pl_gemm(run, (pl_gemm_args){.c = cross,
                            .a = lin->weight->value,
                            .b = lora->a->value,
                            .transpose_a = lin->transposed,
                            .transpose_b = true,
                            .alpha = 1}));
    PL_TRY(pl_gemm(run, (pl_gemm_args){.c = gram, .a = a, .b = a, .transpose_b = true, .alpha = 1}));
    PL_TRY(pl_gemm(run, (pl_gemm_args){.c = product, .a = b, .b = gram, .alpha = 1}));
    PL_TRY(pl_row_dots(run, norm, cross, b, false));
    PL_TRY(pl_row_dots(run, dots, product, b, false));
    pl_tensor norm2 = lora->norm2->value;
    PL_TRY(pl_add(run, norm, norm2, norm, 2 * lora->scaling));
    PL_TRY(pl_add(run, norm, norm, dots, lora->scaling * lora->scaling));
    PL_TRY(pl_root(run, norm, norm));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* Keeps norm and factor = magnitude / norm, both f32 [out]. */
static int dora_factor(pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved)
{
    PL_TRY(pl_stack_push(run->err, pass->saved, PL_F32, 1, &lin->out, &saved->norm));
    PL_TRY(pl_stack_push(run->err, pass->saved, PL_F32, 1, &lin->out, &saved->factor));
    PL_TRY(pl_linear_weight_norm(run, lin, saved->norm));
    return pl_divide(run, saved->factor, lin->lora->magnitude->value, saved->norm);
}

bool pl_linear_recalls(const pl_linear *lin, const pl_pass *pass)
{
    return lin->lora && lin->lora->magnitude && (lin->lora->dropout == 0 || !pass->training);
}

int pl_linear_again(pl_run *run, const pl_linear *lin, const pl_linear_saved *saved, pl_tensor y)
{
    return pl_scale_columns(run, y, saved->u, saved->factor, lin->bias ? lin->bias->value : none);
}

/* u = W x' + s (B h + b_B), kept for the magnitude's gradient; then y from it. */
static int dora_forward(pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor y,
    pl_tensor x, pl_tensor dropped)
{
    PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){x.shape[0], lin->out}, &saved->u));
    bool masked = dropped.data != x.data;
    PL_TRY(base_product(run, lin, saved->u, dropped, false, masked ? none : saved->h));
    if (masked) {
        if (!pl_tensor_none(y)) {
            /* y = W x + b - W x' so far; f u follows. */
            PL_TRY(base_product(run, lin, y, x, true, none));
            PL_TRY(pl_add(run, y, y, saved->u, -1));
        }
        PL_TRY(pl_gemm(run, (pl_gemm_args){.c = saved->u,
                                .a = saved->h,
                                .b = lin->lora->b->value,
                                .transpose_b = true,
                                .accumulate = true,
                                .alpha = 1}));
    }
    PL_TRY(dora_factor(run, lin, pass, saved));
    if (pl_tensor_none(y)) return 0;
    if (!masked) return pl_linear_again(run, lin, saved, y);
    pl_tensor scaled;
    PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, saved->u.shape, &scaled));
    PL_TRY(pl_scale_columns(run, scaled, saved->u, saved->factor, none));
    return pl_add(run, y, y, scaled, 1);
}

int pl_linear_forward(
    pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor y, pl_tensor x)
{
    const pl_lora *lora = lin->lora;
    bool want_y = !pl_tensor_none(y);
    if (!lora) return want_y ? base_product(run, lin, y, x, true, none) : 0;
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor dropped;
    PL_TRY(dropped_input(run, lin, pass, x, &dropped));
    PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){x.shape[0], lora->rank}, &saved->h));
    PL_TRY(pl_gemm(run,
        (pl_gemm_args){.c = saved->h, .a = dropped, .b = lora->a->value, .transpose_b = true, .alpha = lora->scaling}));
    if (lora->magnitude) {
        PL_TRY(dora_forward(run, lin, pass, saved, y, x, dropped));
    } else if (want_y) {
        PL_TRY(base_product(run, lin, y, x, true, saved->h));
        if (lora->b_bias) PL_TRY(add_up_bias(run, lora, y));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

/* dx (+)= dy W (+ dh A, where there is a dh) */
static int base_backward(pl_run *run, const pl_linear *lin, pl_tensor dx, bool accumulate, pl_tensor dy, pl_tensor dh)
{
    return pl_gemm(run, (pl_gemm_args){.c = dx,
                            .a = dy,
                            .b = lin->weight->value,
                            .transpose_b = lin->transposed,
                            .a2 = dh,
                            .b2 = pl_tensor_none(dh) ? none : lin->lora->a->value,
                            .accumulate = accumulate,
                            .alpha = 1});
}

/* dx += mask(dh A (+ dw W)), where dw is what reaches W through the dropped input (DoRA), or none. */
static int dropped_backward(
    pl_run *run, const pl_linear *lin, pl_pass *pass, const pl_linear_saved *saved, pl_tensor dx, pl_tensor dw)
{
    const pl_lora *lora = lin->lora;
    pl_tensor dropped;
    PL_TRY(pl_stack_push(run->err, run->work, dx.dtype, 2, dx.shape, &dropped));
    if (pl_tensor_none(dw)) {
        PL_TRY(pl_gemm(run, (pl_gemm_args){.c = dropped, .a = saved->dh, .b = lora->a->value, .alpha = 1}));
    } else {
        PL_TRY(base_backward(run, lin, dropped, false, dw, saved->dh));
    }
    return drop(run, lin, pass, dx, dropped, true);
}

int pl_linear_backward_input(pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy)
{
    const pl_lora *lora = lin->lora;
    bool want_dx = !pl_tensor_none(dx);
    if (!lora) return want_dx ? base_backward(run, lin, dx, accumulate, dy, none) : 0;
    int64_t rows = dy.shape[0];
    saved->du = dy;
    if (lora->magnitude) {
        PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, (int64_t[]){rows, lin->out}, &saved->du));
        PL_TRY(pl_scale_columns(run, saved->du, dy, saved->factor, none));
    }
    PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, (int64_t[]){rows, lora->rank}, &saved->dh));
    PL_TRY(pl_gemm(run, (pl_gemm_args){.c = saved->dh, .a = saved->du, .b = lora->b->value, .alpha = lora->scaling}));
    if (!want_dx) return 0;
    int64_t mark = pl_stack_mark(run->work);
    if (lora->dropout == 0) {
        PL_TRY(base_backward(run, lin, dx, accumulate, saved->du, saved->dh));
    } else if (!lora->magnitude) {
        PL_TRY(base_backward(run, lin, dx, accumulate, dy, none));
        PL_TRY(dropped_backward(run, lin, pass, saved, dx, none));
    } else {
        pl_tensor rest; /* (f - 1) dy goes through the dropped input, dy through the whole one */
        PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, (int64_t[]){rows, lin->out}, &rest));
        PL_TRY(pl_add(run, rest, saved->du, dy, -1));
        PL_TRY(base_backward(run, lin, dx, accumulate, dy, none));
        PL_TRY(dropped_backward(run, lin, pass, saved, dx, rest));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

/* grad += a^T b, or = where it is the first. */
static int weight_gradient(pl_run *run, pl_param *p, pl_tensor a, pl_tensor b)
{
    bool first = p->grad_stale;
    p->grad_stale = false;
    return pl_gemm(
        run, (pl_gemm_args){.c = p->grad, .a = a, .b = b, .transpose_a = true, .accumulate = !first, .alpha = 1});
}

/* grad += factor * sums */
static int add_gradient(pl_run *run, pl_param *p, pl_tensor sums, float factor)
{
    PL_TRY(pl_param_open_grad(run, p));
    return pl_add(run, p->grad, p->grad, sums, factor);
}

/* dm_i += sum_t dy_ti u_ti / n_i */
static int magnitude_gradient(pl_run *run, const pl_linear *lin, const pl_linear_saved *saved, pl_tensor dy)
{
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor sums;
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &lin->out, &sums));
    PL_TRY(pl_fill(run, sums, 0));
    PL_TRY(pl_column_sums(run, sums, dy, saved->u));
    PL_TRY(pl_divide(run, sums, sums, saved->norm));
    PL_TRY(add_gradient(run, lin->lora->magnitude, sums, 1));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int adapter_gradients(
    pl_run *run, const pl_linear *lin, pl_pass *pass, const pl_linear_saved *saved, pl_tensor dy, pl_tensor x)
{
    const pl_lora *lora = lin->lora;
    if (lora->b->trainable) PL_TRY(weight_gradient(run, lora->b, saved->du, saved->h));
    if (lora->a->trainable) {
        int64_t mark = pl_stack_mark(run->work);
        pl_tensor dropped;
        PL_TRY(dropped_input(run, lin, pass, x, &dropped));
        PL_TRY(weight_gradient(run, lora->a, saved->dh, dropped));
        pl_stack_pop(run->work, mark);
    }
    if (lora->b_bias && lora->b_bias->trainable) {
        int64_t mark = pl_stack_mark(run->work);
        pl_tensor sums;
        PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &lin->out, &sums));
        PL_TRY(pl_fill(run, sums, 0));
        PL_TRY(pl_column_sums(run, sums, saved->du, none));
        PL_TRY(add_gradient(run, lora->b_bias, sums, lora->scaling));
        pl_stack_pop(run->work, mark);
    }
    if (lora->magnitude && lora->magnitude->trainable) PL_TRY(magnitude_gradient(run, lin, saved, dy));
    return 0;
}

int pl_linear_backward_weights(
    pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor dy, pl_tensor x)
{
    if (lin->bias && lin->bias->trainable) {
        PL_TRY(pl_param_open_grad(run, lin->bias));
        PL_TRY(pl_column_sums(run, lin->bias->grad, dy, none));
    }
    if (lin->weight->trainable) {
        PL_TRY(lin->transposed ? weight_gradient(run, lin->weight, x, dy) : weight_gradient(run, lin->weight, dy, x));
    }
    return lin->lora ? adapter_gradients(run, lin, pass, saved, dy, x) : 0;
}

bool pl_linear_needs_x(const pl_linear *lin)
{
    return lin->weight->trainable || (lin->lora && lin->lora->a->trainable);
}

bool pl_linear_trainable(const pl_linear *lin)
{
    return lin->weight->trainable || (lin->bias && lin->bias->trainable) || lin->lora;
}

int pl_linear_derive(pl_run *run, const pl_linear *lin)
{
    if (!lin->lora || !lin->lora->norm2) return 0;
    return pl_row_dots(run, lin->lora->norm2->value, lin->weight->value, lin->weight->value, lin->transposed);
}

bool pl_linear_borrows(const pl_linear *lin)
{
    size_t length = strlen(lin->name);
    return strncmp(lin->weight->name, lin->name, length) != 0 || strcmp(lin->weight->name + length, ".weight") != 0;
}

bool pl_linear_changes_base(const pl_linear *lin)
{
    return lin->lora && (lin->lora->init == PL_LORA_INIT_PISSA || lin->lora->init == PL_LORA_INIT_OLORA);
}

pl_lora_start pl_linear_start(const pl_linear *lin, uint64_t seed)
{
    return (pl_lora_start){.name = lin->name,
        .init = lin->lora->init,
        .niter = lin->lora->niter,
        .in = lin->in,
        .out = lin->out,
        .r = lin->lora->rank,
        .transposed = lin->transposed,
        .scaling = lin->lora->scaling,
        .seed = pl_linear_changes_base(lin) ? 0 : seed,
        .domain = lin->id};
}

void pl_linear_free(pl_linear *lin)
{
    if (!lin) return;
    free(lin->name);
    free(lin->lora);
    free(lin);
}
