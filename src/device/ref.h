/* The reference device's own. Each operator opens the memory with pl_ref_begin, computes with plain loops, and closes
   it with pl_ref_end. It asks for no scratch space. What an operator does is told in device.h. */
#ifndef PL_DEVICE_REF_H
#define PL_DEVICE_REF_H

#include "device/device.h"

/* Between the two all memory of the device may be touched; outside it none. pl_ref_begin fails with PL_ENOMEM when the
   system refuses. */
int pl_ref_begin(pl_device *device, pl_error *err);
void pl_ref_end(pl_device *device);

/* Elements of any dtype, as double; (row, column) of a matrix that may be a column block. */
double pl_ref_get(pl_tensor t, int64_t row, int64_t column);
void pl_ref_set(pl_tensor t, int64_t row, int64_t column, double value);
/* Of one dimension. */
double pl_ref_get1(pl_tensor t, int64_t i);
void pl_ref_set1(pl_tensor t, int64_t i, double value);
/* Element d of head h in row t. */
double pl_ref_get_head(pl_heads x, int64_t t, int h, int d);
void pl_ref_set_head(pl_heads x, int64_t t, int h, int d, double value);

int pl_ref_fill(pl_device *device, pl_error *err, pl_tensor y, float value);
int pl_ref_copy(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x);
int pl_ref_add(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale);
int pl_ref_column_sums(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch);
int pl_ref_scale_columns(
    pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend);
int pl_ref_row_dots(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed);
int pl_ref_sum_squares(pl_device *device, pl_error *err, double *out, pl_tensor x);
int pl_ref_sum(pl_device *device, pl_error *err, double *out, pl_tensor x);
int pl_ref_divide(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b);
int pl_ref_root(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x);
int pl_ref_soften(pl_device *device, pl_error *err, pl_tensor y, float scale, float softcap);
int pl_ref_count_nonfinite(pl_device *device, pl_error *err, int64_t *out, pl_tensor x);
int pl_ref_gemm(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch);
int pl_ref_norm(pl_device *device, pl_error *err, const pl_norm_args *args);
int pl_ref_norm_backward(pl_device *device, pl_error *err, const pl_norm_backward_args *args, void *scratch);
int pl_ref_rope(pl_device *device, pl_error *err, const pl_rope_args *args);
int pl_ref_attention(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch);
int pl_ref_attention_backward(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch);
int pl_ref_act(pl_device *device, pl_error *err, const pl_act_args *args);
int pl_ref_act_backward(pl_device *device, pl_error *err, const pl_act_backward_args *args);
int pl_ref_embed(pl_device *device, pl_error *err, const pl_embed_args *args);
int pl_ref_embed_backward(pl_device *device, pl_error *err, const pl_embed_backward_args *args);
int pl_ref_loss(pl_device *device, pl_error *err, const pl_loss_args *args);
int pl_ref_dropout(pl_device *device, pl_error *err, const pl_dropout_args *args);
int pl_ref_split(pl_device *device, pl_error *err, pl_tensor half, pl_tensor rest, pl_tensor x);
int pl_ref_adamw(pl_device *device, pl_error *err, const pl_adamw_args *args);
int pl_ref_sgd(pl_device *device, pl_error *err, const pl_sgd_args *args);

#endif
