/* The head: final norm, OPT's projection, logits, and the loss with its gradient.

   Tokens without a target cost nothing: the trained rows are gathered first (pass->rows), and pass->inverse tells for
   each token which gathered row is its own (the row past the last, which is zero, for the others). The logits of a
   chunk of rows exist at a time, never tokens x vocabulary; their gradient is made at once and goes through the head's
   linear before the next chunk comes. */
#include "base/buf.h"
#include "model/model.h"
#include "op/op.h"

static const pl_tensor none = {0};

/* Elements of a chunk of logits. A trained head wants long products for its weight's gradient; a frozen one little
 * memory. */
#define CHUNK_TRAINED ((int64_t)1 << 24)
#define CHUNK_FROZEN ((int64_t)1 << 22)
/* The head's weight goes through the caches once for each chunk, so there are few, however large the vocabulary is. */
#define FEWEST_ROWS 128

typedef struct head {
    pl_unit unit;
    const pl_arch *arch;
    pl_norm_module norm;
    pl_linear *project, *linear;
} head;

typedef struct head_saved {
    pl_norm_saved norm;
    pl_linear_saved project;
    pl_tensor dp; /* [T, embed_dim]: the gradient of what the logits are made from */
} head_saved;

/* More tokens never make chunks smaller, so that the largest batch's memory is enough for all. */
static int64_t chunk_rows(const head *h, int64_t tokens)
{
    int64_t rows = (pl_linear_trainable(h->linear) ? CHUNK_TRAINED : CHUNK_FROZEN) / h->arch->vocab / 32 * 32;
    if (rows < FEWEST_ROWS) rows = FEWEST_ROWS;
    return rows < tokens ? rows : tokens;
}

/* The gradient of logits takes their place: as bf16 in the f32 rows' memory. */
static pl_tensor gradient_view(pl_tensor logits, pl_dtype dtype)
{
    int64_t ratio = pl_dtype_size(logits.dtype) / pl_dtype_size(dtype);
    logits.stride *= ratio;
    logits.dtype = dtype;
    return logits;
}

static int chunk_loss(pl_run *run, const head *h, pl_pass *pass, pl_tensor z, pl_tensor rows, pl_tensor drows,
    pl_tensor targets, pl_tensor losses)
{
    pl_linear_saved saved = {0};
    int64_t mark = pl_stack_mark(run->work), kept = pl_stack_mark(pass->saved);
    PL_TRY(pl_linear_forward(run, h->linear, pass, &saved, z, rows));
    pl_tensor dz = pl_tensor_none(drows) ? none : gradient_view(z, rows.dtype);
    PL_TRY(pl_loss(run, (pl_loss_args){.logits = z,
                            .dlogits = dz,
                            .targets = targets,
                            .loss = losses,
                            .logit_scale = h->arch->logit_scale,
                            .softcap = h->arch->logit_softcap,
                            .grad_scale = pass->grad_scale}));
    if (!pl_tensor_none(drows)) {
        PL_TRY(pl_linear_backward_input(run, h->linear, pass, &saved, drows, false, dz));
        PL_TRY(pl_linear_backward_weights(run, h->linear, pass, &saved, dz, rows));
    }
    pl_stack_pop(run->work, mark);
    pl_stack_pop(pass->saved, kept);
    return 0;
}

/* p [T, E] is what the logits are made from, and [T + 1, E] of memory if `own`. Writes pass->loss_sum and, in training,
   saved->dp. What has been read makes room: the trained rows lie where dp comes to, their gradients where p was. */
static int loss_of(pl_run *run, const head *h, pl_pass *pass, head_saved *saved, pl_tensor p, bool own)
{
    int64_t tokens = p.shape[0], trained = pass->batch->ntargets, chunk = chunk_rows(h, tokens);
    pl_tensor rows, drows = none, losses, z;
    if (pass->training) PL_TRY(pl_stack_push(run->err, pass->saved, p.dtype, 2, p.shape, &saved->dp));
    int64_t mark = pl_stack_mark(run->work);
    /* Everything is as large as T asks, whatever part of it is trained: memory then follows from T alone. */
    rows = saved->dp;
    if (!pass->training) PL_TRY(pl_stack_push(run->err, run->work, p.dtype, 2, p.shape, &rows));
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 1, &tokens, &losses));
    if (pass->training) {
        int64_t shape[] = {tokens + 1, p.shape[1]};
        drows = pl_tensor_2d(p.data, p.dtype, shape[0], shape[1]);
        if (!own) PL_TRY(pl_stack_push(run->err, run->work, p.dtype, 2, shape, &drows));
    }
    PL_TRY(pl_stack_push(run->err, run->work, PL_F32, 2, (int64_t[]){chunk, h->arch->vocab}, &z));
    PL_TRY(pl_embed(run, (pl_embed_args){.y = pl_tensor_rows(rows, 0, trained),
                             .table = p,
                             .ids = pl_tensor_rows(pass->rows, 0, trained),
                             .scale = 1}));
    for (int64_t from = 0; from < trained; from += chunk) {
        int64_t n = trained - from < chunk ? trained - from : chunk;
        pl_pass part = *pass;
        part.gathered = true; /* they are not the batch's tokens; else every chunk's rows would be dropped alike */
        part.first_row += from;
        PL_TRY(chunk_loss(run, h, &part, pl_tensor_rows(z, 0, n), pl_tensor_rows(rows, from, n),
            pass->training ? pl_tensor_rows(drows, from, n) : none, pl_tensor_rows(pass->row_targets, from, n),
            pl_tensor_rows(losses, from, n)));
    }
    pass->loss_sum = 0;
    if (trained > 0) PL_TRY(pl_sum(run, &pass->loss_sum, pl_tensor_rows(losses, 0, trained)));
    if (pass->training) {
        PL_TRY(pl_fill(run, pl_tensor_rows(drows, trained, 1), 0));
        PL_TRY(pl_embed(run,
            (pl_embed_args){
                .y = saved->dp, .table = pl_tensor_rows(drows, 0, trained + 1), .ids = pass->inverse, .scale = 1}));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

static int logits_of(pl_run *run, const head *h, pl_pass *pass, pl_tensor p)
{
    int64_t mark = pl_stack_mark(run->work), n = pass->logits.shape[0];
    pl_tensor rows;
    pl_linear_saved saved = {0};
    PL_TRY(pl_stack_push(run->err, run->work, p.dtype, 2, (int64_t[]){n, p.shape[1]}, &rows));
    PL_TRY(pl_embed(run, (pl_embed_args){.y = rows, .table = p, .ids = pass->logit_rows, .scale = 1}));
    PL_TRY(pl_linear_forward(run, h->linear, pass, &saved, pass->logits, rows));
    PL_TRY(pl_soften(run, pass->logits, h->arch->logit_scale, h->arch->logit_softcap));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* [T + 1, width] on run->work, of which *out is the first T. */
static int push_with_spare(pl_run *run, pl_tensor x, int64_t width, pl_tensor *out)
{
    PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, (int64_t[]){x.shape[0] + 1, width}, out));
    *out = pl_tensor_rows(*out, 0, x.shape[0]);
    return 0;
}

/* p: what the logits are made from, on run->work with a row to spare, or x itself. n: the normed x before OPT's
 * projection. */
static int inputs(pl_run *run, const head *h, pl_pass *pass, head_saved *saved, pl_tensor x, pl_tensor *p)
{
    *p = x;
    if (h->norm.present) {
        PL_TRY(push_with_spare(run, x, x.shape[1], p));
        PL_TRY(pl_norm_forward(run, &h->norm, pass, &saved->norm, *p, x, none));
    }
    if (!h->project) return 0;
    pl_tensor n = *p;
    PL_TRY(push_with_spare(run, x, h->arch->embed_dim, p));
    return pl_linear_forward(run, h->project, pass, &saved->project, *p, n);
}

static int head_forward(pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor y, pl_tensor x)
{
    (void)y;
    head *h = (head *)unit;
    head_saved *saved = record;
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor p;
    PL_TRY(inputs(run, h, pass, saved, x, &p));
    bool own = h->norm.present || h->project;
    PL_TRY(pl_tensor_none(pass->logits) ? loss_of(run, h, pass, saved, p, own) : logits_of(run, h, pass, p));
    pl_stack_pop(run->work, mark);
    return 0;
}

static int head_backward(
    pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor d, bool need_dx, pl_tensor x)
{
    head *h = (head *)unit;
    head_saved *saved = record;
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor dn = saved->dp;
    if (h->project) {
        pl_tensor n = x;
        if (h->norm.present) {
            PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, x.shape, &n));
            PL_TRY(pl_norm_again(run, &h->norm, &saved->norm, n, x));
        }
        PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, x.shape, &dn));
        PL_TRY(pl_linear_backward_input(run, h->project, pass, &saved->project, dn, false, saved->dp));
        PL_TRY(pl_linear_backward_weights(run, h->project, pass, &saved->project, saved->dp, n));
    }
    if (h->norm.present) {
        if (need_dx || pl_norm_trainable(&h->norm)) {
            PL_TRY(pl_norm_module_backward(run, &h->norm, &saved->norm, d, false, dn, x));
        }
    } else {
        PL_TRY(pl_copy(run, d, dn));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

static const pl_unit_ops head_ops = {"head", sizeof(head_saved), head_forward, head_backward, true};

/* A tied head is a linear whose weight is the embedding's table. */
static int declare_linear(pl_error *err, pl_model *model, head *h, pl_param *table)
{
    const pl_arch *a = &model->arch;
    if (!a->tied) {
        return pl_model_add_linear(err, model, &h->unit, a->head, a->embed_dim, a->vocab, a->head_bias, PL_SPLIT_VOCAB,
            a->init_std, &h->linear);
    }
    PL_TRY(pl_model_add_borrowed(err, model, &h->unit, a->head, table, &h->linear));
    if (!a->head_bias) return 0;
    pl_param spec = {.ndim = 1, .shape = {a->vocab}, .split = PL_SPLIT_VOCAB, .zero_row = -1};
    return pl_model_add_param(err, model, &h->unit, spec, a->head, "bias", &h->linear->bias);
}

int pl_head_declare(pl_error *err, pl_model *model, pl_param *table)
{
    const pl_arch *a = &model->arch;
    head *h;
    PL_TRY(pl_calloc(err, 1, sizeof *h, &h));
    h->unit.ops = &head_ops;
    h->arch = a;
    PL_TRY(pl_model_add_unit(err, model, &h->unit, a->head));
    if (a->norm_final) PL_TRY(pl_model_add_norm(err, model, &h->unit, a->norm_final, a->hidden, &h->norm));
    if (a->project_out) {
        PL_TRY(pl_model_add_linear(err, model, &h->unit, a->project_out, a->hidden, a->embed_dim, false, PL_SPLIT_NONE,
            a->init_std, &h->project));
    }
    return declare_linear(err, model, h, table);
}
