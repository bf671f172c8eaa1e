/* Matrix products go to oneDNN, but for few rows (cpu_gemm_thin.c) and bf16 on AMX (cpu_gemm_amx.c). Where the machine
   has no bf16 arithmetic that is worth it (oneDNN refuses bf16 on AVX2, and emulates it at a fifth of the f32 speed on
   AVX-512 without its bf16 extension), bf16 operands are widened to f32 in blocks, which is exact, and multiplied in
   f32. */
#include "device/cpu.h"
#include "device/onednn.h"

#define BLOCK 1024 /* of m, n and k: three blocks are 12 MiB of scratch */

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t inner_length(const pl_gemm_args *args)
{
    return args->transpose_a ? args->a.shape[0] : args->a.shape[1];
}

static int64_t aligned(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static bool converts_bias(const pl_gemm_args *args)
{
    return !pl_tensor_none(args->bias) && args->bias.dtype != PL_F32;
}

static int64_t bias_bytes(const pl_gemm_args *args)
{
    return converts_bias(args) ? aligned(args->c.shape[1] * 4) : 0;
}

/* The blocks' sizes, as floats in scratch. */
typedef struct blocks {
    int64_t m, n, k;
    int64_t a_bytes, b_bytes, c_bytes;
} blocks;

static blocks blocks_of(const pl_gemm_args *args)
{
    blocks b = {.m = smaller(args->c.shape[0], BLOCK),
        .n = smaller(args->c.shape[1], BLOCK),
        .k = smaller(inner_length(args), BLOCK)};
    b.a_bytes = aligned(b.m * b.k * 4);
    b.b_bytes = aligned(b.n * b.k * 4);
    b.c_bytes = args->c.dtype == PL_F32 ? 0 : aligned(b.m * b.n * 4);
    return b;
}

/* A block of a stored operand as f32 in scratch. */
static pl_tensor block_of(pl_tensor t, int64_t row, int64_t rows, int64_t column, int64_t columns)
{
    return pl_tensor_columns(pl_tensor_rows(t, row, rows), column, columns);
}

/* One block of c, over all blocks of k, the first of which brings in bias and former content. */
static int widened_block(
    pl_device *device, pl_error *err, const pl_gemm_args *args, const blocks *size, int64_t i, int64_t j, char *scratch)
{
    pl_onednn *onednn = ((pl_cpu *)device)->onednn;
    int64_t m = smaller(size->m, args->c.shape[0] - i), n = smaller(size->n, args->c.shape[1] - j);
    char *a_at = scratch, *b_at = a_at + size->a_bytes, *c_at = b_at + size->b_bytes, *work = c_at + size->c_bytes;
    pl_tensor c = block_of(args->c, i, m, j, n);
    pl_gemm_args block = *args;
    block.c = args->c.dtype == PL_F32 ? c : pl_tensor_2d(c_at, PL_F32, m, n);
    if (args->accumulate && args->c.dtype != PL_F32) PL_TRY(PL_CPU(copy)(device, err, block.c, c));
    for (int64_t l = 0; l < inner_length(args); l += size->k) {
        int64_t k = smaller(size->k, inner_length(args) - l);
        pl_tensor a = args->transpose_a ? block_of(args->a, l, k, i, m) : block_of(args->a, i, m, l, k);
        pl_tensor b = args->transpose_b ? block_of(args->b, j, n, l, k) : block_of(args->b, l, k, j, n);
        block.a = pl_tensor_2d(a_at, PL_F32, a.shape[0], a.shape[1]);
        block.b = pl_tensor_2d(b_at, PL_F32, b.shape[0], b.shape[1]);
        PL_TRY(PL_CPU(copy)(device, err, block.a, a));
        PL_TRY(PL_CPU(copy)(device, err, block.b, b));
        block.bias = (pl_tensor){0};
        if (l == 0 && !pl_tensor_none(args->bias)) block.bias = pl_tensor_rows(args->bias, j, n);
        block.accumulate = args->accumulate || l > 0;
        PL_TRY(pl_onednn_gemm(onednn, err, &block, work));
    }
    return args->c.dtype == PL_F32 ? 0 : PL_CPU(copy)(device, err, c, block.c);
}

static int widened(pl_device *device, pl_error *err, const pl_gemm_args *args, char *scratch)
{
    blocks size = blocks_of(args);
    for (int64_t j = 0; j < args->c.shape[1]; j += size.n) {
        for (int64_t i = 0; i < args->c.shape[0]; i += size.m) {
            PL_TRY(widened_block(device, err, args, &size, i, j, scratch));
        }
    }
    return 0;
}

/* The most that any form of block asks oneDNN for: whole and rest of each dimension, first and later blocks of k. */
static int64_t widened_scratch(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args)
{
    blocks size = blocks_of(args);
    int64_t whole[] = {size.m, size.n, size.k}, most = 0;
    int64_t rest[] = {args->c.shape[0] % size.m, args->c.shape[1] % size.n, inner_length(args) % size.k};
    for (int choice = 0; choice < 16; choice++) {
        int64_t d[3];
        for (int i = 0; i < 3; i++) d[i] = choice >> i & 1 ? rest[i] : whole[i];
        bool first = choice >> 3 & 1;
        if (d[0] * d[1] * d[2] == 0) continue;
        pl_gemm_args block = *args;
        block.a = args->transpose_a ? pl_tensor_2d(NULL, PL_F32, d[2], d[0]) : pl_tensor_2d(NULL, PL_F32, d[0], d[2]);
        block.b = args->transpose_b ? pl_tensor_2d(NULL, PL_F32, d[1], d[2]) : pl_tensor_2d(NULL, PL_F32, d[2], d[1]);
        block.c = pl_tensor_2d(NULL, PL_F32, d[0], d[1]);
        if (args->c.dtype == PL_F32) block.c.stride = args->c.stride;
        block.bias = first && !pl_tensor_none(args->bias) ? pl_tensor_1d(NULL, PL_F32, d[1]) : (pl_tensor){0};
        block.accumulate = args->accumulate || !first;
        bool refused = false;
        int64_t bytes = pl_onednn_gemm_scratch(onednn, err, &block, &refused);
        if (bytes < 0) return bytes;
        if (refused) return PL_FAIL(err, PL_EUNSUPPORTED, "oneDNN has no f32 matrix product on this machine");
        if (bytes > most) most = bytes;
    }
    return size.a_bytes + size.b_bytes + size.c_bytes + most;
}

/* Whether the operands are widened; else *bytes is what oneDNN wants for them as they are. */
static int widens(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args, bool *yes, int64_t *bytes)
{
    bool refused = args->a.dtype == PL_BF16 && !pl_onednn_has_bf16();
    *bytes = refused ? 0 : pl_onednn_gemm_scratch(onednn, err, args, &refused);
    if (*bytes < 0) return (int)*bytes;
    *yes = refused;
    return 0;
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
static int64_t product_scratch(pl_onednn *onednn, pl_error *err, const pl_gemm_args *args)
{
    if (is_empty(args)) return 0;
    pl_gemm_args f32_bias = with_f32_bias(args, NULL);
    bool yes = false;
    int64_t bytes = 0;
    PL_TRY(widens(onednn, err, &f32_bias, &yes, &bytes));
    if (yes) bytes = widened_scratch(onednn, err, &f32_bias);
    return bytes < 0 ? bytes : bytes + bias_bytes(args);
}

/* Of what is no thin product. */
static int64_t wide_scratch(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    pl_onednn *onednn = ((pl_cpu *)device)->onednn;
#ifdef __AMX_BF16__
    if (PL_CPU(gemm_amx_takes)(args)) return PL_CPU(gemm_amx_scratch)(device, args);
#endif
    pl_gemm_args one = first(args), two = second(args);
    int64_t bytes = product_scratch(onednn, err, &one);
    if (bytes < 0 || pl_tensor_none(args->a2)) return bytes;
    int64_t more = product_scratch(onednn, err, &two);
    return more < 0 || more > bytes ? more : bytes;
}

/* A plan knows the largest batch alone: what a thin product would take counts for taller ones too. */
int64_t PL_CPU(gemm_scratch)(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    bool takes = PL_CPU(gemm_thin_takes)(args);
    int64_t thin = PL_CPU(gemm_thin_scratch)(args), wide = takes ? 0 : wide_scratch(device, err, args);
    return wide < 0 || wide > thin ? wide : thin;
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
    pl_onednn *onednn = ((pl_cpu *)device)->onednn;
    if (is_empty(args)) return empty(device, err, args);
    pl_gemm_args f32_bias = with_f32_bias(args, scratch);
    if (converts_bias(args)) PL_TRY(PL_CPU(copy)(device, err, f32_bias.bias, args->bias));
    char *rest = (char *)scratch + bias_bytes(args);
    bool yes = false;
    int64_t bytes = 0;
    PL_TRY(widens(onednn, err, &f32_bias, &yes, &bytes));
    return yes ? widened(device, err, &f32_bias, rest) : pl_onednn_gemm(onednn, err, &f32_bias, rest);
}

int PL_CPU(gemm)(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    if (PL_CPU(gemm_thin_takes)(args)) return PL_CPU(gemm_thin)(device, err, args, scratch);
#ifdef __AMX_BF16__
    if (PL_CPU(gemm_amx_takes)(args)) return PL_CPU(gemm_amx)(device, err, args, scratch);
#endif
    pl_gemm_args one = first(args), two = second(args);
    PL_TRY(product_of(device, err, &one, scratch));
    return pl_tensor_none(args->a2) ? 0 : product_of(device, err, &two, scratch);
}
