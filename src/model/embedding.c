/* Token embedding, learned positions where the family has them, and OPT's projection to the hidden size. */
#include "base/buf.h"
#include "model/model.h"
#include "op/op.h"

static const pl_tensor none = {0};

typedef struct embedding {
    pl_unit unit;
    const pl_arch *arch;
    pl_param *table, *positions;
    pl_linear *project;
    float scale;
} embedding;

typedef struct embedding_saved {
    pl_linear_saved project;
} embedding_saved;

static int embed(pl_run *run, const embedding *e, const pl_pass *pass, pl_tensor y, bool with_positions)
{
    bool learned = with_positions && e->positions;
    return pl_embed(run, (pl_embed_args){.y = y,
                             .table = e->table->value,
                             .ids = pass->ids,
                             .position_table = learned ? e->positions->value : none,
                             .positions = learned ? pass->positions : none,
                             .scale = e->scale,
                             .position_offset = e->arch->position_offset});
}

static int embedding_forward(pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor y, pl_tensor x)
{
    (void)x;
    embedding *e = (embedding *)unit;
    embedding_saved *saved = record;
    if (!e->project) return embed(run, e, pass, y, true);
    /* Positions are of the hidden size, so they come after the projection. */
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor narrow;
    PL_TRY(pl_stack_push(run->err, run->work, y.dtype, 2, (int64_t[]){y.shape[0], e->arch->embed_dim}, &narrow));
    PL_TRY(embed(run, e, pass, narrow, false));
    PL_TRY(pl_linear_forward(run, e->project, pass, &saved->project, y, narrow));
    if (e->positions) {
        pl_tensor p;
        PL_TRY(pl_stack_push(run->err, run->work, y.dtype, 2, y.shape, &p));
        int64_t offset = e->arch->position_offset;
        pl_tensor rows = pl_tensor_rows(e->positions->value, offset, e->arch->position_rows - offset);
        PL_TRY(pl_embed(run, (pl_embed_args){.y = p, .table = rows, .ids = pass->positions, .scale = 1}));
        PL_TRY(pl_add(run, y, y, p, 1));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

static int embedding_backward(
    pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor d, bool need_dx, pl_tensor x)
{
    (void)need_dx;
    (void)x;
    embedding *e = (embedding *)unit;
    embedding_saved *saved = record;
    if (e->positions && e->positions->trainable) {
        PL_TRY(pl_param_open_grad(run, e->positions));
        PL_TRY(pl_embed_backward(run, (pl_embed_backward_args){.dtable = e->positions->grad,
                                          .dy = d,
                                          .ids = pass->positions,
                                          .scale = 1,
                                          .offset = e->arch->position_offset}));
    }
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor dy = d;
    if (e->project) {
        pl_tensor narrow;
        int64_t shape[] = {d.shape[0], e->arch->embed_dim};
        PL_TRY(pl_stack_push(run->err, run->work, d.dtype, 2, shape, &narrow));
        PL_TRY(pl_stack_push(run->err, run->work, d.dtype, 2, shape, &dy));
        PL_TRY(embed(run, e, pass, narrow, false));
        PL_TRY(pl_linear_backward_input(run, e->project, pass, &saved->project, dy, false, d));
        PL_TRY(pl_linear_backward_weights(run, e->project, pass, &saved->project, d, narrow));
    }
    if (e->table->trainable) {
        PL_TRY(pl_param_open_grad(run, e->table));
        PL_TRY(pl_embed_backward(run, (pl_embed_backward_args){.dtable = e->table->grad,
                                          .dy = dy,
                                          .ids = pass->ids,
                                          .scale = e->scale,
                                          .has_skip = e->arch->pad_token >= 0,
                                          .skip = e->arch->pad_token}));
    }
    pl_stack_pop(run->work, mark);
    return 0;
}

static const pl_unit_ops embedding_ops = {
    "embedding", sizeof(embedding_saved), embedding_forward, embedding_backward, false};

int pl_embedding_declare(pl_error *err, pl_model *model, pl_param **table)
{
    const pl_arch *a = &model->arch;
    embedding *e;
    PL_TRY(pl_calloc(err, 1, sizeof *e, &e));
    e->unit.ops = &embedding_ops;
    e->arch = a;
    e->scale = a->embed_scale;
    /* Gemma multiplies by sqrt(hidden) in the model's own dtype; that rounding was there when the model was trained. */
    if (model->dtype == PL_BF16) e->scale = pl_bf16_to_f32(pl_f32_to_bf16(e->scale));
    PL_TRY(pl_model_add_unit(err, model, &e->unit, a->embed));
    pl_param spec = {.ndim = 2,
        .shape = {a->vocab, a->embed_dim},
        .split = PL_SPLIT_VOCAB,
        .decay = true,
        .init = PL_INIT_NORMAL,
        .init_scale = a->init_std,
        .zero_row = a->pad_token};
    PL_TRY(pl_model_add_param(err, model, &e->unit, spec, a->embed, "weight", &e->table));
    if (a->positions) {
        spec.shape[0] = a->position_rows;
        spec.shape[1] = a->hidden;
        spec.split = PL_SPLIT_NONE;
        spec.zero_row = -1;
        PL_TRY(pl_model_add_param(err, model, &e->unit, spec, a->positions, "weight", &e->positions));
    }
    if (a->project_in) {
        PL_TRY(pl_model_add_linear(err, model, &e->unit, a->project_in, a->embed_dim, a->hidden, false, PL_SPLIT_NONE,
            a->init_std, &e->project));
    }
    *table = e->table;
    return 0;
}
