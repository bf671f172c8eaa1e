/* A norm's parameters with what its backward needs. */
#ifndef PL_MODEL_NORM_H
#define PL_MODEL_NORM_H

#include "model/param.h"
#include "model/pass.h"
#include "op/run.h"

typedef struct pl_norm_module {
    bool present;
    pl_norm_kind kind;
    float eps, offset;
    int64_t size; /* of what is normalised: the hidden size, a head, or all heads */
    pl_param *weight, *bias;
} pl_norm_module;

typedef struct pl_norm_saved {
    pl_tensor inv, mean; /* f32 [T * groups] */
} pl_norm_saved;

/* y = norm(x) by groups of `size` in each row; inv and mean are pushed on pass->saved. With residual not none x first
   becomes x + residual (see pl_norm_args). */
int pl_norm_forward(pl_run *run, const pl_norm_module *norm, pl_pass *pass, pl_norm_saved *saved, pl_tensor y,
    pl_tensor x, pl_tensor residual);
/* y = norm(x) again, with inv and mean written over. */
int pl_norm_again(pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, pl_tensor y, pl_tensor x);
/* dx (+)=; gradients of what is trainable are added to. dx may be dy unless it accumulates. */
int pl_norm_module_backward(pl_run *run, const pl_norm_module *norm, const pl_norm_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy, pl_tensor x);
bool pl_norm_trainable(const pl_norm_module *norm);

#endif
