/* The mlp of a block: down(act(gate(x)) * up(x)), with gate and up apart or fused, or fc2(act(fc1(x))). */
#ifndef PL_MODEL_MLP_H
#define PL_MODEL_MLP_H

#include "model/linear.h"

typedef struct pl_mlp_module {
    const pl_arch *arch;
    pl_linear *gate, *up, *down; /* plain: gate is NULL; fused: gate gives both, up is NULL */
} pl_mlp_module;

typedef struct pl_mlp_saved {
    pl_tensor wide; /* [T, 2 I]: gate's output, then up's; plain: [T, I]. Not kept where the linears recall them */
    pl_linear_saved gate, up, down;
} pl_mlp_saved;

/* y [T, H] is overwritten; none: only what the backward needs is kept. x [T, H] is normed. */
int pl_mlp_forward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor y, pl_tensor x);
/* dx is overwritten, or added to when `accumulate`; x may be none when nothing in here needs it. */
int pl_mlp_backward(pl_run *run, const pl_mlp_module *mlp, pl_pass *pass, pl_mlp_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy, pl_tensor x);
bool pl_mlp_needs_x(const pl_mlp_module *mlp);

#endif
