/* The CPU device's own: its state, and its operators at one level of instruction sets (simd.h). What an operator does
   is told in device.h. */
#ifndef PL_DEVICE_CPU_H
#define PL_DEVICE_CPU_H

#include "device/device.h"
#include "device/simd.h"

struct pl_onednn;

typedef struct pl_cpu {
    pl_device base;
    struct pl_onednn *onednn; /* engine, stream and the primitives made so far */
} pl_cpu;

/* The levels that this build has, best first. */
#if defined __x86_64__
#    define PL_CPU_LEVELS(X) X(amx) X(v4_bf16) X(v4) X(v3) X(base)
#else
#    define PL_CPU_LEVELS(X) X(base)
#endif

/* One table of operators for each level (cpu_ops.c). */
#define X(level) extern const pl_device_ops pl_cpu_ops_##level;
PL_CPU_LEVELS(X)
#undef X

/* Memory, the same at all levels (cpu.c). */
int pl_cpu_alloc(pl_device *device, pl_error *err, int64_t bytes, void **out);
void pl_cpu_release(pl_device *device, void *data, int64_t bytes);
void pl_cpu_copy_in(pl_device *device, void *device_data, const void *host, int64_t bytes);
void pl_cpu_copy_out(pl_device *device, void *host, const void *device_data, int64_t bytes);
void *pl_cpu_wrap(pl_device *device, const void *host, int64_t bytes);
void pl_cpu_unwrap(pl_device *device, void *data, int64_t bytes);
void pl_cpu_destroy(pl_device *device);

#ifdef PL_LEVEL
int PL_CPU(fill)(pl_device *device, pl_error *err, pl_tensor y, float value);
int PL_CPU(copy)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x);
int PL_CPU(add)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale);
int PL_CPU(column_sums)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch);
int64_t PL_CPU(column_sums_scratch)(pl_device *device, pl_tensor x);
int PL_CPU(scale_columns)(
    pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend);
int PL_CPU(row_dots)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed);
int PL_CPU(sum_squares)(pl_device *device, pl_error *err, double *out, pl_tensor x);
int PL_CPU(sum)(pl_device *device, pl_error *err, double *out, pl_tensor x);
int PL_CPU(divide)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b);
int PL_CPU(root)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x);
int PL_CPU(soften)(pl_device *device, pl_error *err, pl_tensor y, float scale, float softcap);
int PL_CPU(count_nonfinite)(pl_device *device, pl_error *err, int64_t *out, pl_tensor x);
int PL_CPU(gemm)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch);
int64_t PL_CPU(gemm_scratch)(pl_device *device, pl_error *err, const pl_gemm_args *args);
int64_t PL_CPU(gemm_alike_rows)(pl_device *device, pl_dtype dtype);
int PL_CPU(norm)(pl_device *device, pl_error *err, const pl_norm_args *args);
int PL_CPU(norm_backward)(pl_device *device, pl_error *err, const pl_norm_backward_args *args, void *scratch);
int64_t PL_CPU(norm_backward_scratch)(pl_device *device, const pl_norm_backward_args *args);
int PL_CPU(rope)(pl_device *device, pl_error *err, const pl_rope_args *args);
int PL_CPU(attention)(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch);
int64_t PL_CPU(attention_scratch)(pl_device *device, const pl_attention_args *args);
int PL_CPU(attention_backward)(pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch);
int64_t PL_CPU(attention_backward_scratch)(pl_device *device, const pl_attention_backward_args *args);
/* Products that are not oneDNN's: of up to PL_THIN_ROWS rows with a transposed b; in f32, of operands of any dtype
   (those that it takes it is good at); and of bf16 on AMX. */
#    define PL_THIN_ROWS 8
bool PL_CPU(gemm_thin_takes)(const pl_gemm_args *args);
int PL_CPU(gemm_thin)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch);
int64_t PL_CPU(gemm_thin_scratch)(const pl_gemm_args *args);
bool PL_CPU(gemm_f32_takes)(const pl_gemm_args *args);
int PL_CPU(gemm_f32)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch);
int64_t PL_CPU(gemm_f32_scratch)(pl_device *device, const pl_gemm_args *args);
#    ifdef __AMX_BF16__
bool PL_CPU(gemm_amx_takes)(const pl_gemm_args *args);
int PL_CPU(gemm_amx)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch);
int64_t PL_CPU(gemm_amx_scratch)(pl_device *device, const pl_gemm_args *args);
#    endif
#    ifdef __AVX512BF16__ /* of bf16 tensors */
void PL_CPU(attention_bf16)(pl_device *device, const pl_attention_args *args, void *scratch);
int64_t PL_CPU(attention_bf16_scratch)(pl_device *device, const pl_attention_args *args);
void PL_CPU(attention_bf16_backward)(pl_device *device, const pl_attention_backward_args *args, void *scratch);
int64_t PL_CPU(attention_bf16_backward_scratch)(pl_device *device, const pl_attention_backward_args *args);
#    endif
int PL_CPU(act)(pl_device *device, pl_error *err, const pl_act_args *args);
int PL_CPU(act_backward)(pl_device *device, pl_error *err, const pl_act_backward_args *args);
int PL_CPU(embed)(pl_device *device, pl_error *err, const pl_embed_args *args);
int PL_CPU(embed_backward)(pl_device *device, pl_error *err, const pl_embed_backward_args *args);
int PL_CPU(loss)(pl_device *device, pl_error *err, const pl_loss_args *args);
int PL_CPU(dropout)(pl_device *device, pl_error *err, const pl_dropout_args *args);
int PL_CPU(split)(pl_device *device, pl_error *err, pl_tensor half, pl_tensor rest, pl_tensor x);
int PL_CPU(adamw)(pl_device *device, pl_error *err, const pl_adamw_args *args);
int PL_CPU(sgd)(pl_device *device, pl_error *err, const pl_sgd_args *args);
#endif

#endif
