/* Instruction sets. Every file `device/cpu_*.c` is compiled once for each level that the compiler's target knows (see
   CMakeLists.txt), with PL_LEVEL defined and the level's flags; `device/cpu.c`, compiled once, picks the operators of
   the best level that the machine has. So a kernel is plain code without any dispatch of its own, and a name that
   crosses files is written PL_CPU(name), which carries the level.

       level   machine                                  lanes
       base    x86-64 with SSE2; 64-bit Arm with NEON       4
       v3      AVX2, FMA                                    8
       v4      AVX-512 F, BW, CD, DQ, VL                   16
       v4_bf16 v4 and AVX-512 BF16                         16
       amx     v4_bf16 and AMX with bf16                   16

   This header has what kernels share: vectors of PL_LANES floats (GCC's vector extensions: they take + - * / and
   comparisons, and with -ffp-contract=fast a * b + c becomes one FMA), loads and stores of f32 and bf16, exp. Loops
   that the compiler vectorises by itself need none of it but pl_exp. */
#ifndef PL_DEVICE_SIMD_H
#define PL_DEVICE_SIMD_H

#include <stdint.h>
#include <string.h>

#if defined __SSE2__
#    include <immintrin.h>
#endif

/* What clang 14 calls otherwise. */
#if defined __AMXBF16__ && defined __AMXTILE__ && !defined __AMX_BF16__
#    define __AMX_BF16__ 1
#endif

#define PL_SIMD_JOIN2(a, b) a##_##b
#define PL_SIMD_JOIN(a, b) PL_SIMD_JOIN2(a, b)
#ifdef PL_LEVEL
#    define PL_CPU(name) PL_SIMD_JOIN(pl_cpu_##name, PL_LEVEL)
#endif

#if defined __AVX512F__
#    define PL_LANES 16
#elif defined __AVX2__
#    define PL_LANES 8
#else
#    define PL_LANES 4
#endif

typedef float pl_vf __attribute__((vector_size(4 * PL_LANES)));
typedef int32_t pl_vi __attribute__((vector_size(4 * PL_LANES)));
typedef uint16_t pl_vh __attribute__((vector_size(2 * PL_LANES))); /* bf16 bits */

#define PL_INLINE static inline __attribute__((always_inline, unused))

PL_INLINE pl_vf pl_vset(float x)
{
    return x - (pl_vf){0}; /* not a sum: -0 + 0 is 0, so an addition would be left of that */
}

PL_INLINE pl_vf pl_vload(const float *p)
{
    pl_vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

PL_INLINE void pl_vstore(float *p, pl_vf v)
{
    memcpy(p, &v, sizeof v);
}

/* mask (all ones or zeros a lane, what a comparison yields) ? a : b */
PL_INLINE pl_vf pl_vselect(pl_vi mask, pl_vf a, pl_vf b)
{
    return (pl_vf)(((pl_vi)a & mask) | ((pl_vi)b & ~mask));
}

/* a > b ? a : b in each lane; so b where either is NaN. */
PL_INLINE pl_vf pl_vmax(pl_vf a, pl_vf b)
{
#if defined __AVX512F__
    return (pl_vf)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (pl_vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined __SSE2__
    return (pl_vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    return pl_vselect(a > b, a, b);
#endif
}

/* a < b ? a : b in each lane; so b where either is NaN. */
PL_INLINE pl_vf pl_vmin(pl_vf a, pl_vf b)
{
#if defined __AVX512F__
    return (pl_vf)_mm512_min_ps((__m512)a, (__m512)b);
#elif defined __AVX2__
    return (pl_vf)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined __SSE2__
    return (pl_vf)_mm_min_ps((__m128)a, (__m128)b);
#else
    return pl_vselect(a < b, a, b);
#endif
}

/* Over the lanes: halves are added until one number is left. */
PL_INLINE float pl_vsum(pl_vf v)
{
#if defined __SSE2__
#    if defined __AVX512F__
    __m256 h8 = _mm256_add_ps(
        _mm512_castps512_ps256((__m512)v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)v), 1)));
#    elif defined __AVX2__
    __m256 h8 = (__m256)v;
#    endif
#    if defined __AVX2__
    __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
#    else
    __m128 h4 = (__m128)v;
#    endif
    __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}

PL_INLINE float pl_vmaximum(pl_vf v)
{
#if defined __SSE2__
#    if defined __AVX512F__
    __m256 h8 = _mm256_max_ps(
        _mm512_castps512_ps256((__m512)v), _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd((__m512)v), 1)));
#    elif defined __AVX2__
    __m256 h8 = (__m256)v;
#    endif
#    if defined __AVX2__
    __m128 h4 = _mm_max_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
#    else
    __m128 h4 = (__m128)v;
#    endif
    __m128 h2 = _mm_max_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_max_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
#else
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
#endif
}

/* Transposes a square of PL_LANES vectors in place. Each step exchanges the off-diagonal quarters of squares twice as
   large as the last step's. Lists of lanes: PL_LANES and more are those of the second operand. */
PL_INLINE void pl_vtranspose(pl_vf r[PL_LANES])
{
#define PL_LIST(...) __VA_ARGS__
#define PL_EXCHANGE(step, low, high)                                                                                   \
    for (int i = 0; i < PL_LANES; i++) {                                                                               \
        if (i & (step)) continue;                                                                                      \
        pl_vf a = r[i], b = r[i + (step)];                                                                             \
        r[i] = __builtin_shufflevector(a, b, low);                                                                     \
        r[i + (step)] = __builtin_shufflevector(a, b, high);                                                           \
    }
#if PL_LANES == 16
    PL_EXCHANGE(8, PL_LIST(0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23),
        PL_LIST(8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31))
    PL_EXCHANGE(4, PL_LIST(0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27),
        PL_LIST(4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31))
    PL_EXCHANGE(2, PL_LIST(0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29),
        PL_LIST(2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31))
    PL_EXCHANGE(1, PL_LIST(0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30),
        PL_LIST(1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31))
#elif PL_LANES == 8
    PL_EXCHANGE(4, PL_LIST(0, 1, 2, 3, 8, 9, 10, 11), PL_LIST(4, 5, 6, 7, 12, 13, 14, 15))
    PL_EXCHANGE(2, PL_LIST(0, 1, 8, 9, 4, 5, 12, 13), PL_LIST(2, 3, 10, 11, 6, 7, 14, 15))
    PL_EXCHANGE(1, PL_LIST(0, 8, 2, 10, 4, 12, 6, 14), PL_LIST(1, 9, 3, 11, 5, 13, 7, 15))
#else
    PL_EXCHANGE(2, PL_LIST(0, 1, 4, 5), PL_LIST(2, 3, 6, 7))
    PL_EXCHANGE(1, PL_LIST(0, 4, 2, 6), PL_LIST(1, 5, 3, 7));
#endif
#undef PL_EXCHANGE
#undef PL_LIST
}

PL_INLINE pl_vf pl_vload_bf16(const uint16_t *p)
{
#if defined __AVX512F__
    return (pl_vf)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16);
#elif defined __AVX2__
    return (pl_vf)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    pl_vh h;
    memcpy(&h, p, sizeof h);
    return (pl_vf)(__builtin_convertvector(h, pl_vi) << 16);
#endif
}

/* Rounds to nearest even; a NaN stays one. */
PL_INLINE void pl_vstore_bf16(uint16_t *p, pl_vf v)
{
    pl_vi bits = (pl_vi)v, round = 0x7fff + ((bits >> 16) & 1);
#if defined __AVX512F__
    /* Masked: numbers are rounded, NaNs are made quiet. */
    __mmask16 nan = _mm512_cmp_ps_mask((__m512)v, (__m512)v, _CMP_UNORD_Q);
    __m512i number = _mm512_mask_add_epi32((__m512i)bits, (__mmask16)~nan, (__m512i)bits, (__m512i)round);
    __m512i out = _mm512_mask_or_epi32(number, nan, number, _mm512_set1_epi32(0x400000));
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(out, 16)));
#else
    pl_vi nan = v != v;
    pl_vi out = ((bits | 0x400000) & nan) | ((bits + round) & ~nan);
    pl_vh h = __builtin_convertvector(out >> 16, pl_vh);
    memcpy(p, &h, sizeof h);
#endif
}

/* 1 / x to 1e-7 relative, for normal x below 2^126; faster than a division where those are slow. */
PL_INLINE pl_vf pl_vreciprocal(pl_vf x)
{
#if defined __AVX512F__
    pl_vf r = (pl_vf)_mm512_rcp14_ps((__m512)x);
    return r + r * (pl_vset(1) - x * r);
#else
    return pl_vset(1) / x;
#endif
}

/* The first n < PL_LANES elements, zeros after them; and storing those alone. */
PL_INLINE pl_vf pl_vload_part(const float *p, int64_t n)
{
    float lane[PL_LANES] = {0};
    memcpy(lane, p, (size_t)n * sizeof *p);
    return pl_vload(lane);
}

PL_INLINE void pl_vstore_part(float *p, pl_vf v, int64_t n)
{
    memcpy(p, &v, (size_t)n * sizeof *p);
}

PL_INLINE pl_vf pl_vload_bf16_part(const uint16_t *p, int64_t n)
{
    uint16_t lane[PL_LANES] = {0};
    memcpy(lane, p, (size_t)n * sizeof *p);
    return pl_vload_bf16(lane);
}

PL_INLINE void pl_vstore_bf16_part(uint16_t *p, pl_vf v, int64_t n)
{
    uint16_t lane[PL_LANES];
    pl_vstore_bf16(lane, v);
    memcpy(p, lane, (size_t)n * sizeof *p);
}

/* exp to about 1e-7 relative: e^x = 2^n e^r with |r| <= ln 2 / 2, e^r by a polynomial of degree 6 (Cephes' expf).
   Results below 2^-125 are flushed to 0, those beyond the largest float are infinite; NaN stays NaN. */
#define PL_EXP_BODY(CONST, MAX, MIN, FLOAT, INT)                                                                       \
    x = MIN(CONST(89.0f), MAX(CONST(-87.5f), x)); /* in this order a NaN passes through */                             \
    FLOAT n = (x * CONST(1.44269504088896341f) + CONST(12582912.0f));                                                  \
    INT power;                                                                                                         \
    memcpy(&power, &n, sizeof power);                                                                                  \
    n = n - CONST(12582912.0f); /* rounded: 1.5 * 2^23 leaves no fraction bits */                                      \
    FLOAT r = x - n * CONST(0.693359375f);                                                                             \
    r = r - n * CONST(-2.12194440e-4f);                                                                                \
    FLOAT e = CONST(1.9875691500e-4f);                                                                                 \
    e = e * r + CONST(1.3981999507e-3f);                                                                               \
    e = e * r + CONST(8.3334519073e-3f);                                                                               \
    e = e * r + CONST(4.1665795894e-2f);                                                                               \
    e = e * r + CONST(1.6666665459e-1f);                                                                               \
    e = e * r + CONST(5.0000001201e-1f);                                                                               \
    e = e * (r * r) + (r + CONST(1.0f));                                                                               \
    /* 2^(n-1), so that n = 128 is still a float; the magic number's low bits hold n. */                               \
    power = (INT)((power - 0x4b400000 + 126) << 23);                                                                   \
    FLOAT scale;                                                                                                       \
    memcpy(&scale, &power, sizeof scale)

PL_INLINE float pl_exp_const(float x)
{
    return x;
}

PL_INLINE float pl_exp_max(float a, float b)
{
    return a > b ? a : b;
}

PL_INLINE float pl_exp_min(float a, float b)
{
    return a < b ? a : b;
}

PL_INLINE float pl_exp(float x)
{
    PL_EXP_BODY(pl_exp_const, pl_exp_max, pl_exp_min, float, int32_t);
    return (e + e) * scale;
}

PL_INLINE pl_vf pl_vexp(pl_vf x)
{
#if defined __AVX512F__ /* the same, with an instruction each for rounding and for the power of two */
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ); /* NaN is */
    x = pl_vmin(pl_vset(89.0f), pl_vmax(pl_vset(-87.0f), x));
    pl_vf n = (pl_vf)_mm512_roundscale_ps((__m512)(x * 1.44269504088896341f), _MM_FROUND_TO_NEAREST_INT);
    pl_vf r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    pl_vf e = pl_vset(1.9875691500e-4f);
    e = e * r + 1.3981999507e-3f;
    e = e * r + 8.3334519073e-3f;
    e = e * r + 4.1665795894e-2f;
    e = e * r + 1.6666665459e-1f;
    e = e * r + 5.0000001201e-1f;
    e = e * (r * r) + (r + 1);
    return (pl_vf)_mm512_maskz_scalef_ps(normal, (__m512)e, (__m512)n);
#else
    PL_EXP_BODY(pl_vset, pl_vmax, pl_vmin, pl_vf, pl_vi);
    return (e + e) * scale;
#endif
}

#endif
