/* y = x W^T + b, with whatever adapter it carries: the one place that knows of LoRA, DoRA (and later of NF4 and tensor
   parallelism). Blocks call it and never ask.

   With an adapter (Hu et al. 2021; PEFT):      y = W x + b + s (B dropout(A' x) + b_B)
   DoRA (Liu et al. 2024; PEFT), f = m / |W + s B A| by rows, constant in the backward:
                                                y = f (W x + s B A x) + b
   DoRA with dropout, x' = dropout(x), as PEFT: y = W x + b + (f - 1) W x' + f s B A x' */
#ifndef PL_MODEL_LINEAR_H
#define PL_MODEL_LINEAR_H

#include "model/lora_init.h"
#include "model/param.h"
#include "model/pass.h"
#include "model/unit.h"
#include "op/run.h"

typedef struct pl_lora {
    pl_param *a, *b;     /* [r, in], [out, r] */
    pl_param *b_bias;    /* [out], or NULL */
    pl_param *magnitude; /* DoRA: [out], f32; else NULL */
    pl_param *norm2;     /* DoRA: squared norms of the base weight's rows [out], f32, derived */
    int64_t rank;
    float scaling, dropout;
    pl_lora_init init; /* how a and b begin, where no file gives them, and whether the base weight changes for it */
    int64_t niter;     /* of PiSSA; -1: exact */
} pl_lora;

typedef struct pl_linear {
    char *name; /* the module's: "model.layers.0.self_attn.q_proj" */
    int64_t in, out;
    bool transposed; /* the weight lies as [in, out] (GPT-2's Conv1D) */
    pl_param *weight, *bias;
    pl_lora *lora;
    pl_unit *unit; /* that it belongs to */
    uint32_t id;   /* keys its dropout */
} pl_linear;

/* What a forward keeps: on pass->saved h [T, r] = s A x', and for DoRA u [T, out] (before f) and the factor f and norms
   [out]. dh, du live on run->work between the two halves of a backward. */
typedef struct pl_linear_saved {
    pl_tensor h, u, factor, norm;
    pl_tensor dh, du;
} pl_linear_saved;

/* y [T, out] is overwritten; x [T, in]. Both may be column blocks. y none: only what the backward needs is kept. */
int pl_linear_forward(
    pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor y, pl_tensor x);

/* Whether y can be made again, to the bit, from what a forward keeps: from DoRA's u, unless dropout parts the two. A
   caller whose backward needs y then need not keep it. */
bool pl_linear_recalls(const pl_linear *lin, const pl_pass *pass);
/* y [T, out] is overwritten with what the forward gave; for those that pl_linear_recalls tells. */
int pl_linear_again(pl_run *run, const pl_linear *lin, const pl_linear_saved *saved, pl_tensor y);

/* dx [T, in] is overwritten, or added to; none: not wanted. Must come before backward_weights. Leaves tensors on
   run->work that backward_weights reads: the caller marks the stack before and pops it after both. dy is left as it is.
 */
int pl_linear_backward_input(pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor dx,
    bool accumulate, pl_tensor dy);
/* Adds to the gradients of what is trainable. x as in the forward; unused (may be none) unless pl_linear_needs_x. */
int pl_linear_backward_weights(
    pl_run *run, const pl_linear *lin, pl_pass *pass, pl_linear_saved *saved, pl_tensor dy, pl_tensor x);
bool pl_linear_needs_x(const pl_linear *lin);
bool pl_linear_trainable(const pl_linear *lin); /* anything of it */

/* Fills norm2 from the base weight; part of the start, after values are loaded and before magnitudes are. Nothing to do
   without DoRA. */
int pl_linear_derive(pl_run *run, const pl_linear *lin);
/* norm[out] f32 = |W + s B A| by rows (dtype f32 throughout). */
int pl_linear_weight_norm(pl_run *run, const pl_linear *lin, pl_tensor norm);

/* Its weight is another module's: a tied head's is the embedding's. */
bool pl_linear_borrows(const pl_linear *lin);
/* Whether the adapter's start takes the base weight apart (PiSSA, OLoRA). What that leaves of it does not depend on the
   run's seed, so that it is the same whenever the adapter is used. */
bool pl_linear_changes_base(const pl_linear *lin);
/* The adapter's start, for those that pl_lora_start_make knows. */
pl_lora_start pl_linear_start(const pl_linear *lin, uint64_t seed);

void pl_linear_free(pl_linear *lin);

#endif
