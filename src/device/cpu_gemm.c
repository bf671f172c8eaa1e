/* Who makes a matrix product: our own kernels for few rows (cpu_gemm_thin.c), for bf16 on AMX (cpu_gemm_amx.c) and for
   f32 (cpu_gemm_f32.c), or oneDNN, which has the rest. Where the machine has no bf16 arithmetic that is worth it
   (oneDNN refuses bf16 on AVX2, and emulates it at a fifth of the f32 speed on AVX-512 without its bf16 extension),
   bf16 too is multiplied in f32. */
#include "device/kernel.h"
#include "device/onednn.h"

static bool converts_bias(const pl_gemm_args *args)
{
    return !pl_tensor_none(args->bias) && args->bias.dtype != PL_F32;
}

static int64_t bias_bytes(const pl_gemm_args *args)
{
    return converts_bias(args) ? blocks_in(args->c.shape[1] * 4, 64) * 64 : 0;
}

static pl_gemm_args with_f32_bias(const pl_gemm_args *args, void *data)
{
    pl_gemm_args f32 = *args;
    if (converts_bias(args)) f32.bias = pl_tensor_1d(data, PL_F32, args->bias.shape[0]);
    return f32;
}

static bool is_empty(const pl_gemm_args *args)
{
    return args->c.shape[0] == 0 || args->c.shape[1] == 0 || inner_length(args) == 0;
}

/* The second pair as a product of its own, added to what the first gave. */
static pl_gemm_args second(const pl_gemm_args *args)
{
    return (pl_gemm_args){.c = args->c,
        .a = args->a2,
        .b = args->b2,
        .transpose_b = args->transpose_b2,
        .accumulate = true,
        .alpha = args->alpha};
}

static pl_gemm_args first(const pl_gemm_args *args)
{
    pl_gemm_args g = *args;
    g.a2 = g.b2 = (pl_tensor){0};
    return g;
}

/* Of one pair, by oneDNN. */
static int64_t product_scratch(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args, bool *refused)
{
    pl_gemm_args f32_bias = with_f32_bias(args, NULL);
    int64_t bytes = pl_onednn_gemm_scratch(onednn, err, &f32_bias, refused);
    return bytes < 0 ? bytes : bytes + bias_bytes(args);
}

/* Of both. *refused: oneDNN does not make one of them. */
static int64_t products_scratch(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args, bool *refused)
{
    pl_gemm_args one = first(args), two = second(args);
    int64_t bytes = product_scratch(onednn, err, &one, refused);
    if (bytes < 0 || *refused || pl_tensor_none(args->a2)) return bytes;
    int64_t more = product_scratch(onednn, err, &two, refused);
    return more < 0 || more > bytes ? more : bytes;
}

/* Who makes what is no thin product and not AMX's: our kernel in f32, which has what it is good at and all that oneDNN
   would emulate or refuses, or oneDNN, which wants so many bytes of scratch. */
static int choose(pl_device *device, pl_error *err, const pl_gemm_args *args, bool *ours, int64_t *bytes)
{
    *bytes = 0;
    *ours = PL_CPU(gemm_f32_takes)(args) || (args->a.dtype == PL_BF16 && !pl_onednn_has_bf16());
    if (!*ours) *bytes = products_scratch(((pl_cpu *)device)->onednn, err, args, ours);
    return *bytes < 0 ? (int)*bytes : 0;
}

/* Of what is no thin product. A plan knows the largest batch alone: what our kernel takes counts for smaller ones too,
   which oneDNN makes. */
static int64_t wide_scratch(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    bool ours;
    int64_t theirs;
    if (is_empty(args)) return 0;
#ifdef __AMX_BF16__
    if (PL_CPU(gemm_amx_takes)(args)) return PL_CPU(gemm_amx_scratch)(device, args);
#endif
    PL_TRY(choose(device, err, args, &ours, &theirs));
    int64_t f32 = ours || args->a.dtype == PL_F32 ? PL_CPU(gemm_f32_scratch)(device, args) : 0;
    return theirs > f32 ? theirs : f32;
}

/* What a thin product would take counts for taller ones too. */
int64_t PL_CPU(gemm_scratch)(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    bool takes = PL_CPU(gemm_thin_takes)(args);
    int64_t thin = PL_CPU(gemm_thin_scratch)(args), wide = takes ? 0 : wide_scratch(device, err, args);
    return wide < 0 || wide > thin ? wide : thin;
}

/* On AMX the order of a sum follows from its length; the other kernels are chosen by the number of rows, and oneDNN's
   ways are its own. */
int64_t PL_CPU(gemm_alike_rows)(pl_device *device, pl_dtype dtype)
{
    (void)device;
#ifdef __AMX_BF16__
    if (dtype == PL_BF16) return PL_THIN_ROWS + 1;
#endif
    (void)dtype;
    return INT64_MAX;
}

/* A sum of no products: the bias or nothing. */
static int empty(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    if (args->c.shape[0] == 0 || args->c.shape[1] == 0 || args->accumulate) return 0;
    PL_TRY(PL_CPU(fill)(device, err, args->c, 0));
    for (int64_t i = 0; !pl_tensor_none(args->bias) && i < args->c.shape[0]; i++) {
        pl_tensor row = pl_tensor_rows(args->c, i, 1);
        PL_TRY(PL_CPU(copy)(device, err, pl_tensor_1d(row.data, row.dtype, row.shape[1]), args->bias));
    }
    return 0;
}

static int product_of(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    pl_gemm_args f32_bias = with_f32_bias(args, scratch);
    if (converts_bias(args)) PL_TRY(PL_CPU(copy)(device, err, f32_bias.bias, args->bias));
    return pl_onednn_gemm(((pl_cpu *)device)->onednn, err, &f32_bias, (char *)scratch + bias_bytes(args));
}

int PL_CPU(gemm)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    if (PL_CPU(gemm_thin_takes)(args)) return PL_CPU(gemm_thin)(device, err, args, scratch);
    if (is_empty(args)) return empty(device, err, args);
#ifdef __AMX_BF16__
    if (PL_CPU(gemm_amx_takes)(args)) return PL_CPU(gemm_amx)(device, err, args, scratch);
#endif
    bool ours;
    int64_t bytes;
    PL_TRY(choose(device, err, args, &ours, &bytes));
    if (ours) return PL_CPU(gemm_f32)(device, err, args, scratch);
    pl_gemm_args one = first(args), two = second(args);
    PL_TRY(product_of(device, err, &one, scratch));
    return pl_tensor_none(args->a2) ? 0 : product_of(device, err, &two, scratch);
}
