/* Matrix products by oneDNN: its primitives, made once for each form of a product and kept. */
#ifndef PL_DEVICE_ONEDNN_H
#define PL_DEVICE_ONEDNN_H

#include "device/device.h"

typedef struct pl_onednn pl_onednn;

int pl_onednn_open(pl_error *err, int threads, pl_onednn **out);
void pl_onednn_close(pl_onednn *onednn); /* NULL is fine */

/* What oneDNN uses of an x86 processor: the most that it has, or less if ONEDNN_MAX_CPU_ISA says so. Our own kernels
   keep to it, so that one variable holds back both. Each has what is before it. */
typedef enum pl_isa { PL_ISA_BASE, PL_ISA_AVX2, PL_ISA_AVX512, PL_ISA_AVX512_BF16, PL_ISA_AMX } pl_isa;
pl_isa pl_onednn_isa(void);

/* Whether bf16 products run on bf16 units (AVX-512's bf16 extension, AMX) rather than being emulated. */
bool pl_onednn_has_bf16(void);

/* Bytes of scratch that pl_onednn_gemm wants, or < 0: an error. *refused (then the size is 0): oneDNN has no such
   product on this machine. The bias must be f32; m, n and k at least 1. */
int64_t pl_onednn_gemm_scratch(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args, bool *refused);
int pl_onednn_gemm(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args, void *scratch);

#endif
