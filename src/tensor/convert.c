#include "tensor/convert.h"

/* Element types of memory that may lie at any address and was written as anything. */
typedef uint16_t u16 __attribute__((aligned(1), may_alias));
typedef float f32 __attribute__((aligned(1), may_alias));

static void f32_to_bf16(u16 *restrict to, const f32 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_f32_to_bf16(from[i]);
}

static void f32_to_f16(u16 *restrict to, const f32 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_f32_to_f16(from[i]);
}

static void bf16_to_f32(f32 *restrict to, const u16 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_bf16_to_f32(from[i]);
}

static void f16_to_f32(f32 *restrict to, const u16 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_f16_to_f32(from[i]);
}

static void bf16_to_f16(u16 *restrict to, const u16 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_f32_to_f16(pl_bf16_to_f32(from[i]));
}

static void f16_to_bf16(u16 *restrict to, const u16 *restrict from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = pl_f32_to_bf16(pl_f16_to_f32(from[i]));
}

static bool is_float(pl_dtype dtype)
{
    return dtype == PL_F32 || dtype == PL_BF16 || dtype == PL_F16;
}

bool pl_convertible(pl_dtype to, pl_dtype from)
{
    return to == from || (is_float(to) && is_float(from));
}

int pl_convert(pl_error *err, void *to, pl_dtype to_dtype, const void *from, pl_dtype from_dtype, int64_t n)
{
    if (!pl_convertible(to_dtype, from_dtype)) {
        return PL_FAIL(err, PL_EBUG, "no conversion from %s to %s", pl_dtype_name(from_dtype), pl_dtype_name(to_dtype));
    }
    if (n <= 0) return 0;
    if (to_dtype == from_dtype) {
        memcpy(to, from, (size_t)n * (size_t)pl_dtype_size(to_dtype));
    } else if (from_dtype == PL_F32) {
        (to_dtype == PL_BF16 ? f32_to_bf16 : f32_to_f16)(to, from, n);
    } else if (to_dtype == PL_F32) {
        (from_dtype == PL_BF16 ? bf16_to_f32 : f16_to_f32)(to, from, n);
    } else {
        (from_dtype == PL_BF16 ? bf16_to_f16 : f16_to_bf16)(to, from, n);
    }
    return 0;
}
