#include "model/attention.h"

#include "op/op.h"

static const pl_tensor none = {0};

/* Where q, k and v lie in a row of the fused buffer. */
typedef struct qkv_views {
    pl_heads q, k, v;
} qkv_views;

static qkv_views views_of(const pl_arch *a, pl_tensor qkv)
{
    int64_t d = a->head_dim, q = a->heads * d, kv = a->kv_heads * d;
    int heads = (int)a->heads, kv_heads = (int)a->kv_heads, dim = (int)d;
    if (a->qkv == PL_QKV_FUSED_HEAD) {
        return (qkv_views){.q = {pl_tensor_columns(qkv, 0, qkv.shape[1]), heads, dim, 3 * d},
            .k = {pl_tensor_columns(qkv, d, qkv.shape[1] - d), heads, dim, 3 * d},
            .v = {pl_tensor_columns(qkv, 2 * d, qkv.shape[1] - 2 * d), heads, dim, 3 * d}};
    }
    return (qkv_views){.q = {pl_tensor_columns(qkv, 0, q), heads, dim, d},
        .k = {pl_tensor_columns(qkv, q, kv), kv_heads, dim, d},
        .v = {pl_tensor_columns(qkv, q + kv, kv), kv_heads, dim, d}};
}

static int64_t width_of(const pl_arch *a)
{
    return (a->heads + 2 * a->kv_heads) * a->head_dim;
}

static int rotate(pl_run *run, const pl_attention_module *att, const pl_pass *pass, pl_heads x, bool backward)
{
    int rope = att->layer->rope;
    if (rope < 0) return 0;
    return pl_rope(run, (pl_rope_args){.x = x,
                            .cos = pass->rope_cos[rope],
                            .sin = pass->rope_sin[rope],
                            .positions = pass->positions,
                            .backward = backward});
}

/* Projects x and leaves q and k normed but not yet rotated in saved->qkv. */
static int project(pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved, pl_tensor x)
{
    const pl_arch *a = att->arch;
    int64_t tokens = x.shape[0], q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){tokens, width_of(a)}, &saved->qkv));
    if (!att->k) return pl_linear_forward(run, att->q, pass, &saved->q, saved->qkv, x);

    pl_tensor to_q = pl_tensor_columns(saved->qkv, 0, q), to_k = pl_tensor_columns(saved->qkv, q, kv);
    pl_tensor raw_q = to_q, raw_k = to_k;
    if (att->q_norm.present) {
        PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){tokens, q + kv}, &saved->raw));
        raw_q = pl_tensor_columns(saved->raw, 0, q);
        raw_k = pl_tensor_columns(saved->raw, q, kv);
    }
    PL_TRY(pl_linear_forward(run, att->q, pass, &saved->q, raw_q, x));
    PL_TRY(pl_linear_forward(run, att->k, pass, &saved->k, raw_k, x));
    PL_TRY(pl_linear_forward(run, att->v, pass, &saved->v, pl_tensor_columns(saved->qkv, q + kv, kv), x));
    if (!att->q_norm.present) return 0;
    PL_TRY(pl_norm_forward(run, &att->q_norm, pass, &saved->q_norm, to_q, raw_q, none));
    return pl_norm_forward(run, &att->k_norm, pass, &saved->k_norm, to_k, raw_k, none);
}

/* Appends this pass's keys and values to the cache and turns k and v into views of it. */
static int through_cache(pl_run *run, const pl_attention_module *att, const pl_pass *pass, qkv_views *w)
{
    const pl_kv_cache *cache = pass->cache;
    int64_t width = att->arch->kv_heads * att->arch->head_dim;
    pl_tensor kv[2] = {cache->k[att->index], cache->v[att->index]};
    for (int i = 0; i < pass->batch->nsequences; i++) {
        pl_sequence s = pass->batch->sequences[i];
        for (int which = 0; which < 2; which++) {
            pl_heads from = which ? w->v : w->k;
            pl_tensor to = pl_tensor_rows(kv[which], s.k_begin + s.k_len - s.q_len, s.q_len);
            for (int h = 0; h < (from.stride == from.head_dim ? 1 : from.heads); h++) {
                int64_t n = from.stride == from.head_dim ? width : from.head_dim;
                pl_tensor part = pl_tensor_columns(from.t, h * from.stride, n);
                PL_TRY(pl_copy(
                    run, pl_tensor_columns(to, h * from.head_dim, n), pl_tensor_rows(part, s.q_begin, s.q_len)));
            }
        }
    }
    w->k = (pl_heads){kv[0], (int)att->arch->kv_heads, (int)att->arch->head_dim, att->arch->head_dim};
    w->v = (pl_heads){kv[1], (int)att->arch->kv_heads, (int)att->arch->head_dim, att->arch->head_dim};
    return 0;
}

int pl_attention_forward(
    pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved, pl_tensor y, pl_tensor x)
{
    const pl_arch *a = att->arch;
    PL_TRY(project(run, att, pass, saved, x));
    qkv_views w = views_of(a, saved->qkv);
    PL_TRY(rotate(run, att, pass, w.q, false));
    PL_TRY(rotate(run, att, pass, w.k, false));
    if (pass->cache) PL_TRY(through_cache(run, att, pass, &w));

    int64_t tokens = x.shape[0];
    PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){tokens, a->heads * a->head_dim}, &saved->out));
    saved->lse = none;
    if (pass->training) {
        PL_TRY(pl_stack_push(run->err, pass->saved, PL_F32, 2, (int64_t[]){a->heads, tokens}, &saved->lse));
    }
    PL_TRY(pl_attention(run, (pl_attention_args){.out = {saved->out, (int)a->heads, (int)a->head_dim, a->head_dim},
                                 .q = w.q,
                                 .k = w.k,
                                 .v = w.v,
                                 .lse = saved->lse,
                                 .sequences = pass->batch->sequences,
                                 .nsequences = pass->batch->nsequences,
                                 .scale = att->layer->score_scale,
                                 .softcap = a->attention_softcap,
                                 .window = att->layer->window}));
    return pl_linear_forward(run, att->o, pass, &saved->o, y, saved->out);
}

/* From the gradients of what the projections gave (dqkv, raw) to theirs and to dx. */
static int project_backward(pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved,
    pl_tensor dx, pl_tensor dqkv, pl_tensor x)
{
    const pl_arch *a = att->arch;
    if (!att->k) {
        PL_TRY(pl_linear_backward_input(run, att->q, pass, &saved->q, dx, false, dqkv));
        return pl_linear_backward_weights(run, att->q, pass, &saved->q, dqkv, x);
    }
    int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    pl_tensor dq = pl_tensor_columns(dqkv, 0, q), dk = pl_tensor_columns(dqkv, q, kv),
              dv = pl_tensor_columns(dqkv, q + kv, kv);
    if (att->q_norm.present) {
        PL_TRY(pl_norm_module_backward(
            run, &att->q_norm, &saved->q_norm, dq, false, dq, pl_tensor_columns(saved->raw, 0, q)));
        PL_TRY(pl_norm_module_backward(
            run, &att->k_norm, &saved->k_norm, dk, false, dk, pl_tensor_columns(saved->raw, q, kv)));
    }
    PL_TRY(pl_linear_backward_input(run, att->q, pass, &saved->q, dx, false, dq));
    PL_TRY(pl_linear_backward_input(run, att->k, pass, &saved->k, dx, true, dk));
    PL_TRY(pl_linear_backward_input(run, att->v, pass, &saved->v, dx, true, dv));
    PL_TRY(pl_linear_backward_weights(run, att->q, pass, &saved->q, dq, x));
    PL_TRY(pl_linear_backward_weights(run, att->k, pass, &saved->k, dk, x));
    return pl_linear_backward_weights(run, att->v, pass, &saved->v, dv, x);
}

int pl_attention_module_backward(pl_run *run, const pl_attention_module *att, pl_pass *pass, pl_attention_saved *saved,
    pl_tensor dx, pl_tensor dy, pl_tensor x)
{
    const pl_arch *a = att->arch;
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor dout, dqkv;
    PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, saved->out.shape, &dout));
    PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, saved->qkv.shape, &dqkv));
    PL_TRY(pl_linear_backward_input(run, att->o, pass, &saved->o, dout, false, dy));
    PL_TRY(pl_linear_backward_weights(run, att->o, pass, &saved->o, dy, saved->out));

    qkv_views w = views_of(a, saved->qkv), dw = views_of(a, dqkv);
    int heads = (int)a->heads, dim = (int)a->head_dim;
    PL_TRY(pl_attention_backward(run, (pl_attention_backward_args){.dq = dw.q,
                                          .dk = dw.k,
                                          .dv = dw.v,
                                          .dout = {dout, heads, dim, dim},
                                          .out = {saved->out, heads, dim, dim},
                                          .q = w.q,
                                          .k = w.k,
                                          .v = w.v,
                                          .lse = saved->lse,
                                          .sequences = pass->batch->sequences,
                                          .nsequences = pass->batch->nsequences,
                                          .scale = att->layer->score_scale,
                                          .softcap = a->attention_softcap,
                                          .window = att->layer->window}));
    PL_TRY(rotate(run, att, pass, dw.q, true));
    PL_TRY(rotate(run, att, pass, dw.k, true));
    PL_TRY(project_backward(run, att, pass, saved, dx, dqkv, x));
    pl_stack_pop(run->work, mark);
    return 0;
}

bool pl_attention_needs_x(const pl_attention_module *att)
{
    return pl_linear_needs_x(att->q) || (att->k && (pl_linear_needs_x(att->k) || pl_linear_needs_x(att->v)));
}

bool pl_attention_trainable(const pl_attention_module *att)
{
    return pl_linear_trainable(att->q) || pl_linear_trainable(att->o) || pl_norm_trainable(&att->q_norm) ||
           pl_norm_trainable(&att->k_norm) || (att->k && (pl_linear_trainable(att->k) || pl_linear_trainable(att->v)));
}
