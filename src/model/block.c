/* A decoder block, for every family: see model/arch.h for what it computes. */
#include <stdio.h>
#include <stdlib.h>

#include "base/buf.h"
#include "model/attention.h"
#include "model/mlp.h"
#include "model/model.h"
#include "op/op.h"

static const pl_tensor none = {0};

typedef struct block {
    pl_unit unit;
    const pl_arch *arch;
    pl_attention_module attention;
    pl_mlp_module mlp;
    pl_norm_module attn_pre, attn_post, attn_residual, mlp_pre, mlp_post, mlp_residual;
} block;

/* Tensors [T, H] on pass->saved; which of them exist follows from the norms that the family has. */
typedef struct block_saved {
    pl_attention_saved attention;
    pl_mlp_saved mlp;
    pl_norm_saved attn_pre, attn_post, attn_residual, mlp_pre, mlp_post, mlp_residual;
    pl_tensor a; /* attention's output, for norm_attn_post */
    pl_tensor s; /* x + a, for norm_attn_residual */
    pl_tensor h; /* what the mlp's half starts from */
    pl_tensor m; /* the mlp's output, for norm_mlp_post */
    pl_tensor t; /* h + m, for norm_mlp_residual */
} block_saved;

static int push_like(pl_run *run, pl_stack *stack, pl_tensor like, pl_tensor *out)
{
    return pl_stack_push(run->err, stack, like.dtype, 2, like.shape, out);
}

/* n = norm(x) on run->work, or x itself where the family has no such norm. */
static int norm_into_work(
    pl_run *run, const pl_norm_module *norm, pl_pass *pass, pl_norm_saved *saved, pl_tensor x, pl_tensor *n)
{
    *n = x;
    if (!norm->present) return 0;
    PL_TRY(push_like(run, run->work, x, n));
    return pl_norm_forward(run, norm, pass, saved, *n, x, none);
}

/* The first half: fills saved->h, and n2 (on run->work) with what the mlp reads. */
static int attention_half(pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor x, pl_tensor *n2)
{
    float scale = b->arch->residual_scale;
    PL_TRY(push_like(run, pass->saved, x, &saved->h));
    PL_TRY(push_like(run, run->work, x, n2));
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor n1, out = saved->h;
    PL_TRY(norm_into_work(run, &b->attn_pre, pass, &saved->attn_pre, x, &n1));
    if (b->attn_post.present) PL_TRY(push_like(run, pass->saved, x, &saved->a));
    if (b->attn_residual.present) PL_TRY(push_like(run, pass->saved, x, &saved->s));
    if (b->attn_residual.present) out = saved->s;
    pl_tensor raw = b->attn_post.present ? saved->a : out;
    PL_TRY(pl_attention_forward(run, &b->attention, pass, &saved->attention, raw, n1));
    pl_stack_pop(run->work, mark);
    if (b->attn_post.present) PL_TRY(pl_norm_forward(run, &b->attn_post, pass, &saved->attn_post, out, raw, none));
    if (b->mlp_pre.present && !b->attn_residual.present && scale == 1) {
        /* h = out + x and its norm in one pass over memory. */
        return pl_norm_forward(run, &b->mlp_pre, pass, &saved->mlp_pre, *n2, out, x);
    }
    PL_TRY(pl_add(run, out, x, out, scale));
    if (b->attn_residual.present) {
        PL_TRY(pl_norm_forward(run, &b->attn_residual, pass, &saved->attn_residual, saved->h, out, none));
    }
    if (b->mlp_pre.present) return pl_norm_forward(run, &b->mlp_pre, pass, &saved->mlp_pre, *n2, saved->h, none);
    *n2 = saved->h;
    return 0;
}

static int mlp_half(pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor y, pl_tensor n2)
{
    if (b->mlp_residual.present) PL_TRY(push_like(run, pass->saved, saved->h, &saved->t));
    if (b->mlp_post.present) PL_TRY(push_like(run, pass->saved, saved->h, &saved->m));
    pl_tensor out = b->mlp_residual.present ? saved->t : y, raw = b->mlp_post.present ? saved->m : out;
    if (pass->recomputing && !b->mlp_post.present && !b->mlp_residual.present) {
        /* Nothing but y would come of the rest, and y is known. */
        return pl_mlp_forward(run, &b->mlp, pass, &saved->mlp, none, n2);
    }
    PL_TRY(pl_mlp_forward(run, &b->mlp, pass, &saved->mlp, raw, n2));
    if (b->mlp_post.present) PL_TRY(pl_norm_forward(run, &b->mlp_post, pass, &saved->mlp_post, out, raw, none));
    PL_TRY(pl_add(run, out, saved->h, out, b->arch->residual_scale));
    if (!b->mlp_residual.present) return 0;
    return pl_norm_forward(run, &b->mlp_residual, pass, &saved->mlp_residual, y, out, none);
}

static int parallel_forward(pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor y, pl_tensor x)
{
    pl_tensor n1, n2, m = none, a = pass->recomputing ? none : y;
    PL_TRY(norm_into_work(run, &b->attn_pre, pass, &saved->attn_pre, x, &n1));
    n2 = n1;
    if (b->mlp_pre.present) PL_TRY(norm_into_work(run, &b->mlp_pre, pass, &saved->mlp_pre, x, &n2));
    if (!pass->recomputing) PL_TRY(push_like(run, run->work, x, &m));
    PL_TRY(pl_attention_forward(run, &b->attention, pass, &saved->attention, a, n1));
    PL_TRY(pl_mlp_forward(run, &b->mlp, pass, &saved->mlp, m, n2));
    if (pass->recomputing) return 0;
    PL_TRY(pl_add(run, y, y, m, 1));
    return pl_add(run, y, y, x, 1);
}

static int block_forward(pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor y, pl_tensor x)
{
    block *b = (block *)unit;
    block_saved *saved = record;
    int64_t mark = pl_stack_mark(run->work);
    if (b->arch->parallel) {
        PL_TRY(parallel_forward(run, b, pass, saved, y, x));
    } else {
        pl_tensor n2;
        PL_TRY(attention_half(run, b, pass, saved, x, &n2));
        PL_TRY(mlp_half(run, b, pass, saved, y, n2));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

/* What a half's norm gave, again, where its linears need it to learn. */
static int norm_again(
    pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, bool needed, pl_tensor x, pl_tensor *n)
{
    *n = norm->present ? none : x;
    if (!norm->present || !needed) return 0;
    PL_TRY(push_like(run, run->work, x, n));
    return pl_norm_again(run, norm, saved, *n, x);
}

/* From the gradient d of (x + scale * post(f)) to that of f: d itself, or a tensor on run->work. */
static int branch_gradient(pl_run *run, const pl_norm_module *post, const pl_norm_saved *saved, float scale,
    pl_tensor d, pl_tensor f, pl_tensor *out)
{
    *out = d;
    if (scale == 1 && !post->present) return 0;
    PL_TRY(push_like(run, run->work, d, out));
    if (scale != 1) PL_TRY(pl_add(run, *out, none, d, scale));
    if (!post->present) return 0;
    return pl_norm_module_backward(run, post, saved, *out, false, scale != 1 ? *out : d, f);
}

/* d += the gradient that dn, that of norm(x), gives x. */
static int into_residual(
    pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, pl_tensor d, pl_tensor dn, pl_tensor x)
{
    if (!norm->present) return pl_add(run, d, d, dn, 1);
    return pl_norm_module_backward(run, norm, saved, d, true, dn, x);
}

static int mlp_half_backward(pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor d)
{
    int64_t mark = pl_stack_mark(run->work);
    if (b->mlp_residual.present) {
        PL_TRY(pl_norm_module_backward(run, &b->mlp_residual, &saved->mlp_residual, d, false, d, saved->t));
    }
    pl_tensor dm, n2, dn2;
    PL_TRY(branch_gradient(run, &b->mlp_post, &saved->mlp_post, b->arch->residual_scale, d, saved->m, &dm));
    PL_TRY(norm_again(run, &b->mlp_pre, &saved->mlp_pre, pl_mlp_needs_x(&b->mlp), saved->h, &n2));
    PL_TRY(push_like(run, run->work, d, &dn2));
    PL_TRY(pl_mlp_backward(run, &b->mlp, pass, &saved->mlp, dn2, false, dm, n2));
    PL_TRY(into_residual(run, &b->mlp_pre, &saved->mlp_pre, d, dn2, saved->h));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int attention_half_backward(
    pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor d, bool need_dx, pl_tensor x)
{
    int64_t mark = pl_stack_mark(run->work);
    if (b->attn_residual.present) {
        PL_TRY(pl_norm_module_backward(run, &b->attn_residual, &saved->attn_residual, d, false, d, saved->s));
    }
    pl_tensor da, n1, dn1 = none;
    PL_TRY(branch_gradient(run, &b->attn_post, &saved->attn_post, b->arch->residual_scale, d, saved->a, &da));
    PL_TRY(norm_again(run, &b->attn_pre, &saved->attn_pre, pl_attention_needs_x(&b->attention), x, &n1));
    bool want = need_dx || pl_norm_trainable(&b->attn_pre);
    if (want) PL_TRY(push_like(run, run->work, d, &dn1));
    PL_TRY(pl_attention_module_backward(run, &b->attention, pass, &saved->attention, dn1, da, n1));
    if (want) PL_TRY(into_residual(run, &b->attn_pre, &saved->attn_pre, d, dn1, x));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int parallel_backward(pl_run *run, block *b, pl_pass *pass, block_saved *saved, pl_tensor d, pl_tensor x)
{
    int64_t mark = pl_stack_mark(run->work);
    bool shared = !b->mlp_pre.present; /* one norm feeds both halves */
    bool needs = pl_attention_needs_x(&b->attention) || (shared && pl_mlp_needs_x(&b->mlp));
    pl_tensor n1, n2, dn1, dn2;
    PL_TRY(norm_again(run, &b->attn_pre, &saved->attn_pre, needs, x, &n1));
    n2 = n1;
    if (!shared) PL_TRY(norm_again(run, &b->mlp_pre, &saved->mlp_pre, pl_mlp_needs_x(&b->mlp), x, &n2));
    PL_TRY(push_like(run, run->work, d, &dn1));
    PL_TRY(pl_attention_module_backward(run, &b->attention, pass, &saved->attention, dn1, d, n1));
    dn2 = dn1;
    if (!shared) PL_TRY(push_like(run, run->work, d, &dn2));
    PL_TRY(pl_mlp_backward(run, &b->mlp, pass, &saved->mlp, dn2, shared, d, n2));
    PL_TRY(into_residual(run, &b->attn_pre, &saved->attn_pre, d, dn1, x));
    if (!shared) PL_TRY(into_residual(run, &b->mlp_pre, &saved->mlp_pre, d, dn2, x));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int block_backward(
    pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor d, bool need_dx, pl_tensor x)
{
    block *b = (block *)unit;
    block_saved *saved = record;
    if (b->arch->parallel) return parallel_backward(run, b, pass, saved, d, x);
    PL_TRY(mlp_half_backward(run, b, pass, saved, d));
    return attention_half_backward(run, b, pass, saved, d, need_dx, x);
}

static const pl_unit_ops block_ops = {"block", sizeof(block_saved), block_forward, block_backward, false};

/* The full name of a module of this layer, in a buffer that the next call uses again. */
static int name_module(pl_error *err, const pl_unit *unit, const char *leaf, pl_buf *name)
{
    pl_buf_clear(name);
    return pl_buf_printf(err, name, "%s.%s", unit->name, leaf);
}

static int declare_linear(pl_error *err, pl_model *model, block *b, pl_buf *name, const char *leaf, int64_t in,
    int64_t out, bool bias, pl_split split, pl_linear **lin)
{
    const pl_arch *a = &model->arch;
    PL_TRY(name_module(err, &b->unit, leaf, name));
    float std = split == PL_SPLIT_ROW ? a->init_residual_std : a->init_std;
    return pl_model_add_linear(err, model, &b->unit, pl_buf_text(name), in, out, bias, split, std, lin);
}

static int declare_norm(
    pl_error *err, pl_model *model, block *b, pl_buf *name, const char *leaf, int64_t size, pl_norm_module *norm)
{
    if (!leaf) return 0;
    PL_TRY(name_module(err, &b->unit, leaf, name));
    return pl_model_add_norm(err, model, &b->unit, pl_buf_text(name), size, norm);
}

static int declare_attention(pl_error *err, pl_model *model, block *b, pl_buf *name)
{
    const pl_arch *a = &model->arch;
    pl_attention_module *att = &b->attention;
    int64_t q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    if (a->qkv == PL_QKV_SPLIT) {
        PL_TRY(declare_linear(err, model, b, name, a->q, a->hidden, q, a->q_bias, PL_SPLIT_COLUMN, &att->q));
        PL_TRY(declare_linear(err, model, b, name, a->k, a->hidden, kv, a->k_bias, PL_SPLIT_COLUMN, &att->k));
        PL_TRY(declare_linear(err, model, b, name, a->v, a->hidden, kv, a->v_bias, PL_SPLIT_COLUMN, &att->v));
    } else {
        PL_TRY(declare_linear(err, model, b, name, a->q, a->hidden, q + 2 * kv, a->q_bias, PL_SPLIT_COLUMN, &att->q));
    }
    PL_TRY(declare_linear(err, model, b, name, a->o, q, a->hidden, a->o_bias, PL_SPLIT_ROW, &att->o));
    if (a->qk_norm == PL_QK_NORM_NONE) return 0;
    bool whole = a->qk_norm == PL_QK_NORM_WHOLE;
    PL_TRY(declare_norm(err, model, b, name, a->q_norm, whole ? q : a->head_dim, &att->q_norm));
    return declare_norm(err, model, b, name, a->k_norm, whole ? kv : a->head_dim, &att->k_norm);
}

static int declare_mlp(pl_error *err, pl_model *model, block *b, pl_buf *name)
{
    const pl_arch *a = &model->arch;
    pl_mlp_module *mlp = &b->mlp;
    int64_t h = a->hidden, i = a->intermediate;
    if (a->mlp == PL_MLP_GATED_FUSED) {
        PL_TRY(declare_linear(err, model, b, name, a->gate, h, 2 * i, a->mlp_bias, PL_SPLIT_COLUMN, &mlp->gate));
    } else {
        if (a->mlp == PL_MLP_GATED) {
            PL_TRY(declare_linear(err, model, b, name, a->gate, h, i, a->mlp_bias, PL_SPLIT_COLUMN, &mlp->gate));
        }
        PL_TRY(declare_linear(err, model, b, name, a->up, h, i, a->mlp_bias, PL_SPLIT_COLUMN, &mlp->up));
    }
    return declare_linear(err, model, b, name, a->down, i, h, a->mlp_bias, PL_SPLIT_ROW, &mlp->down);
}

int pl_block_declare(pl_error *err, pl_model *model, int layer)
{
    const pl_arch *a = &model->arch;
    block *b;
    PL_TRY(pl_calloc(err, 1, sizeof *b, &b));
    b->unit.ops = &block_ops;
    b->arch = a;
    b->attention.arch = a;
    b->attention.layer = &a->layer[layer];
    b->attention.index = layer;
    b->mlp.arch = a;
    char unit_name[256];
    snprintf(unit_name, sizeof unit_name, "%s%d", a->layer_prefix, layer);
    PL_TRY(pl_model_add_unit(err, model, &b->unit, unit_name));
    pl_buf name = {0};
    int rc;
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_attn_pre, a->hidden, &b->attn_pre));
    PL_GO(done, declare_attention(err, model, b, &name));
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_attn_post, a->hidden, &b->attn_post));
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_attn_residual, a->hidden, &b->attn_residual));
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_mlp_pre, a->hidden, &b->mlp_pre));
    PL_GO(done, declare_mlp(err, model, b, &name));
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_mlp_post, a->hidden, &b->mlp_post));
    PL_GO(done, declare_norm(err, model, b, &name, a->norm_mlp_residual, a->hidden, &b->mlp_residual));
done:
    pl_buf_free(&name);
    return rc;
}
