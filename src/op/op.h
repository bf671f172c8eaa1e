/* The operators as model code calls them: each checks shapes and dtypes (PL_EBUG: the caller in plait is wrong), counts
   FLOPs and bytes, takes scratch from run->work, and dispatches to the device. What an operator computes, overwrites,
   adds to and may alias is told at its argument structure in device/device.h. */
#ifndef PL_OP_OP_H
#define PL_OP_OP_H

#include "op/run.h"

int pl_fill(pl_run *run, pl_tensor y, float value);
int pl_copy(pl_run *run, pl_tensor y, pl_tensor x); /* converts f32, bf16, f16 */
int pl_add(pl_run *run, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale);
int pl_column_sums(pl_run *run, pl_tensor out, pl_tensor x, pl_tensor y); /* out += */
int pl_scale_columns(pl_run *run, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend);
int pl_row_dots(pl_run *run, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed);
int pl_sum_squares(pl_run *run, double *out, pl_tensor x);
int pl_sum(pl_run *run, double *out, pl_tensor x);
int pl_divide(pl_run *run, pl_tensor y, pl_tensor a, pl_tensor b);
int pl_root(pl_run *run, pl_tensor y, pl_tensor x);
int pl_soften(pl_run *run, pl_tensor y, float scale, float softcap);
int pl_count_nonfinite(pl_run *run, int64_t *out, pl_tensor x);

int pl_gemm(pl_run *run, pl_gemm_args args);
int pl_norm(pl_run *run, pl_norm_args args);
int pl_norm_backward(pl_run *run, pl_norm_backward_args args);
int pl_rope(pl_run *run, pl_rope_args args);
int pl_attention(pl_run *run, pl_attention_args args);
int pl_attention_backward(pl_run *run, pl_attention_backward_args args); /* args.delta is taken from run->work */
int pl_activation(pl_run *run, pl_act_args args);
int pl_activation_backward(pl_run *run, pl_act_backward_args args);
int pl_embed(pl_run *run, pl_embed_args args);
int pl_embed_backward(pl_run *run, pl_embed_backward_args args);
int pl_loss(pl_run *run, pl_loss_args args);
int pl_dropout(pl_run *run, pl_dropout_args args);
int pl_split_f32(pl_run *run, pl_tensor half, pl_tensor rest, pl_tensor x); /* f32 as bf16 and the 16 bits it lacks */
int pl_adamw(pl_run *run, pl_adamw_args args);
int pl_sgd(pl_run *run, pl_sgd_args args);

#endif
