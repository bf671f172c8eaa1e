#include "model/mlp.h"

#include "op/op.h"

static const pl_tensor none = {0};

/* The two halves of `wide`, as the activation's x and up. */
static pl_tensor gate_of(const pl_mlp_module *mlp, pl_tensor wide)
{
    return pl_tensor_columns(wide, 0, mlp->arch->intermediate);
}

static pl_tensor up_of(const pl_mlp_module *mlp, pl_tensor wide)
{
    if (mlp->arch->mlp == PL_MLP_PLAIN) return none;
    return pl_tensor_columns(wide, mlp->arch->intermediate, mlp->arch->intermediate);
}

static int64_t width_of(const pl_mlp_module *mlp)
{
    return mlp->arch->mlp == PL_MLP_PLAIN ? mlp->arch->intermediate : 2 * mlp->arch->intermediate;
}

/* Whether `wide` can be made again from what its linears keep: then it lives on run->work, and twice. */
static bool recalls(const pl_mlp_module *mlp, const pl_pass *pass)
{
    return (!mlp->gate || pl_linear_recalls(mlp->gate, pass)) && (!mlp->up || pl_linear_recalls(mlp->up, pass));
}

static int wide_again(pl_run *run, const pl_mlp_module *mlp, const pl_mlp_saved *saved, pl_tensor wide)
{
    switch (mlp->arch->mlp) {
    case PL_MLP_PLAIN: return pl_linear_again(run, mlp->up, &saved->up, wide);
    case PL_MLP_GATED_FUSED: return pl_linear_again(run, mlp->gate, &saved->gate, wide);
    case PL_MLP_GATED: break;
    }
    PL_TRY(pl_linear_again(run, mlp->gate, &saved->gate, gate_of(mlp, wide)));
    return pl_linear_again(run, mlp->up, &saved->up, up_of(mlp, wide));
}

/* y none: what the backward needs of down's input, if anything. */
static int down_forward(
    pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor y, pl_tensor wide)
{
    if (pl_tensor_none(y) && !mlp->down->lora) return 0;
    pl_tensor gate = gate_of(mlp, wide), up = up_of(mlp, wide), inner;
    PL_TRY(pl_stack_push(run->err, run->work, wide.dtype, 2, gate.shape, &inner));
    PL_TRY(pl_activation(run, (pl_act_args){.y = inner, .x = gate, .up = up, .act = mlp->arch->act}));
    return pl_linear_forward(run, mlp->down, pass, &saved->down, y, inner);
}

int pl_mlp_forward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor y, pl_tensor x)
{
    int64_t mark = pl_stack_mark(run->work), shape[] = {x.shape[0], width_of(mlp)};
    pl_stack *keeper = recalls(mlp, pass) ? run->work : pass->saved;
    PL_TRY(pl_stack_push(run->err, keeper, x.dtype, 2, shape, &saved->wide));
    pl_tensor wide = saved->wide;
    switch (mlp->arch->mlp) {
    case PL_MLP_PLAIN: PL_TRY(pl_linear_forward(run, mlp->up, pass, &saved->up, wide, x)); break;
    case PL_MLP_GATED:
        PL_TRY(pl_linear_forward(run, mlp->gate, pass, &saved->gate, gate_of(mlp, wide), x));
        PL_TRY(pl_linear_forward(run, mlp->up, pass, &saved->up, up_of(mlp, wide), x));
        break;
    case PL_MLP_GATED_FUSED: PL_TRY(pl_linear_forward(run, mlp->gate, pass, &saved->gate, wide, x)); break;
    }
    PL_TRY(down_forward(run, mlp, pass, saved, y, wide));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* dwide: the gradient of what gate and up gave. */
static int inputs_backward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dwide, pl_tensor x)
{
    pl_tensor dgate = gate_of(mlp, dwide), dup = up_of(mlp, dwide);
    switch (mlp->arch->mlp) {
    case PL_MLP_PLAIN:
        PL_TRY(pl_linear_backward_input(run, mlp->up, pass, &saved->up, dx, accumulate, dgate));
        return pl_linear_backward_weights(run, mlp->up, pass, &saved->up, dgate, x);
    case PL_MLP_GATED:
        PL_TRY(pl_linear_backward_input(run, mlp->gate, pass, &saved->gate, dx, accumulate, dgate));
        PL_TRY(pl_linear_backward_input(run, mlp->up, pass, &saved->up, dx, true, dup));
        PL_TRY(pl_linear_backward_weights(run, mlp->gate, pass, &saved->gate, dgate, x));
        return pl_linear_backward_weights(run, mlp->up, pass, &saved->up, dup, x);
    case PL_MLP_GATED_FUSED:
        PL_TRY(pl_linear_backward_input(run, mlp->gate, pass, &saved->gate, dx, accumulate, dwide));
        return pl_linear_backward_weights(run, mlp->gate, pass, &saved->gate, dwide, x);
    }
    return 0;
}

int pl_mlp_backward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy, pl_tensor x)
{
    int64_t mark = pl_stack_mark(run->work), shape[] = {dy.shape[0], width_of(mlp)};
    pl_tensor wide = saved->wide, dinner, inner = none;
    if (recalls(mlp, pass)) {
        PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, shape, &wide));
        PL_TRY(wide_again(run, mlp, saved, wide));
    }
    pl_tensor gate = gate_of(mlp, wide), up = up_of(mlp, wide);
    PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, gate.shape, &dinner));
    if (pl_linear_needs_x(mlp->down)) {
        PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, gate.shape, &inner));
    }
    PL_TRY(pl_linear_backward_input(run, mlp->down, pass, &saved->down, dinner, false, dy));
    PL_TRY(pl_activation_backward(
        run, (pl_act_backward_args){
                 .dx = gate, .dup = up, .dy = dinner, .x = gate, .up = up, .y = inner, .act = mlp->arch->act}));
    PL_TRY(pl_linear_backward_weights(run, mlp->down, pass, &saved->down, dy, inner));
    PL_TRY(inputs_backward(run, mlp, pass, saved, dx, accumulate, wide, x)); /* wide is its gradient by now */
    pl_stack_pop(run->work, mark);
    return 0;
}

bool pl_mlp_needs_x(const pl_mlp_module *mlp)
{
    return (mlp->gate && pl_linear_needs_x(mlp->gate)) || (mlp->up && pl_linear_needs_x(mlp->up));
}
