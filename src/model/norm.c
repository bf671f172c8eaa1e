#include "model/norm.h"

#include "op/op.h"

static const pl_tensor none = {0};

static pl_tensor value_of(const pl_param *p)
{
    return p ? p->value : none;
}

int pl_norm_forward(pl_run *run, const pl_norm_module *norm, pl_pass *pass, pl_norm_saved *saved, pl_tensor y,
    pl_tensor x, pl_tensor residual)
{
    int64_t n = x.shape[0] * (x.shape[1] / norm->size);
    PL_TRY(pl_stack_push(run->err, pass->saved, PL_F32, 1, &n, &saved->inv));
    saved->mean = none;
    if (norm->kind == PL_NORM_LAYER) PL_TRY(pl_stack_push(run->err, pass->saved, PL_F32, 1, &n, &saved->mean));
    return pl_norm(run, (pl_norm_args){.y = y,
                            .mean = saved->mean,
                            .inv = saved->inv,
                            .x = x,
                            .weight = value_of(norm->weight),
                            .bias = value_of(norm->bias),
                            .residual = residual,
                            .size = norm->size,
                            .eps = norm->eps,
                            .offset = norm->offset,
                            .residual_scale = 1});
}

int pl_norm_again(pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, pl_tensor y, pl_tensor x)
{
    return pl_norm(run, (pl_norm_args){.y = y,
                            .mean = saved->mean,
                            .inv = saved->inv,
                            .x = x,
                            .weight = value_of(norm->weight),
                            .bias = value_of(norm->bias),
                            .size = norm->size,
                            .eps = norm->eps,
                            .offset = norm->offset});
}

/* Of a weight or a bias that there may not be. */
static int open_grad(pl_run *run, pl_param *p, pl_tensor *grad)
{
    *grad = none;
    if (!p || !p->trainable) return 0;
    PL_TRY(pl_param_open_grad(run, p));
    *grad = p->grad;
    return 0;
}

int pl_norm_module_backward(pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy, pl_tensor x)
{
    pl_tensor dweight, dbias;
    PL_TRY(open_grad(run, norm->weight, &dweight));
    PL_TRY(open_grad(run, norm->bias, &dbias));
    return pl_norm_backward(run, (pl_norm_backward_args){.dx = dx,
                                     .dweight = dweight,
                                     .dbias = dbias,
                                     .dy = dy,
                                     .x = x,
                                     .mean = saved->mean,
                                     .inv = saved->inv,
                                     .weight = value_of(norm->weight),
                                     .size = norm->size,
                                     .offset = norm->offset,
                                     .accumulate = accumulate});
}

bool pl_norm_trainable(const pl_norm_module *norm)
{
    return (norm->weight && norm->weight->trainable) || (norm->bias && norm->bias->trainable);
}
