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

int pl_mlp_forward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor y, pl_tensor x)
{
    const pl_arch *a = mlp->arch;
    int64_t tokens = x.shape[0], width = a->mlp == PL_MLP_PLAIN ? a->intermediate : 2 * a->intermediate;
    PL_TRY(pl_stack_push(run->err, pass->saved, x.dtype, 2, (int64_t[]){tokens, width}, &saved->wide));
    pl_tensor gate = gate_of(mlp, saved->wide), up = up_of(mlp, saved->wide);
    switch (a->mlp) {
    case PL_MLP_PLAIN: PL_TRY(pl_linear_forward(run, mlp->up, pass, &saved->up, gate, x)); break;
    case PL_MLP_GATED:
        PL_TRY(pl_linear_forward(run, mlp->gate, pass, &saved->gate, gate, x));
        PL_TRY(pl_linear_forward(run, mlp->up, pass, &saved->up, up, x));
        break;
    case PL_MLP_GATED_FUSED: PL_TRY(pl_linear_forward(run, mlp->gate, pass, &saved->gate, saved->wide, x)); break;
    }
    if (pl_tensor_none(y) && !mlp->down->lora) return 0;
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor inner;
    PL_TRY(pl_stack_push(run->err, run->work, x.dtype, 2, gate.shape, &inner));
    PL_TRY(pl_activation(run, (pl_act_args){.y = inner, .x = gate, .up = up, .act = a->act}));
    PL_TRY(pl_linear_forward(run, mlp->down, pass, &saved->down, y, inner));
    pl_stack_pop(run->work, mark);
    return 0;
}

/* dwide: the gradient of saved->wide, written over it. */
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
    int64_t mark = pl_stack_mark(run->work);
    pl_tensor gate = gate_of(mlp, saved->wide), up = up_of(mlp, saved->wide), dinner, inner = none;
    PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, gate.shape, &dinner));
    if (pl_linear_needs_x(mlp->down)) {
        PL_TRY(pl_stack_push(run->err, run->work, dy.dtype, 2, gate.shape, &inner));
    }
    PL_TRY(pl_linear_backward_input(run, mlp->down, pass, &saved->down, dinner, false, dy));
    PL_TRY(pl_activation_backward(
        run, (pl_act_backward_args){
                 .dx = gate, .dup = up, .dy = dinner, .x = gate, .up = up, .y = inner, .act = mlp->arch->act}));
    PL_TRY(pl_linear_backward_weights(run, mlp->down, pass, &saved->down, dy, inner));
    PL_TRY(inputs_backward(run, mlp, pass, saved, dx, accumulate, saved->wide, x));
    pl_stack_pop(run->work, mark);
    return 0;
}

bool pl_mlp_needs_x(const pl_mlp_module *mlp)
{
    return (mlp->gate && pl_linear_needs_x(mlp->gate)) || (mlp->up && pl_linear_needs_x(mlp->up));
}
