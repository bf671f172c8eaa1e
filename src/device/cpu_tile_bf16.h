/* Products of bf16 matrices by tiles, for the levels with AVX512_BF16: by AMX where it is, or else on vectors.

   A tile is 16 rows of 64 bytes; c[16,16] += a[16,32] * b[32,16]: a's rows are 32 bf16 in order; b lies in pairs, row r
   of its tile holding (b[2r][n], b[2r+1][n]) for each of 16 n; c is f32. So a matrix is packed for the side on which it
   stands, as runs of whole tiles of 512 bf16:

       pack_rows          x[16, 32]   the left operand x
       pack_columns       x[32, 16]   the left operand x^T (its 32 rows are summed over)
       pack_pairs         x[32, 16]   the right operand x
       pack_transposed    x[16, 32]   the right operand x^T */
#ifndef PL_DEVICE_CPU_TILE_BF16_H
#define PL_DEVICE_CPU_TILE_BF16_H

#include "device/kernel.h"

#ifdef __AVX512BF16__

#    define BF16_TILE 512 /* bf16 in a tile */

#    ifdef __AMX_BF16__
typedef struct tile_config {
    _Alignas(64) uint8_t palette;
    uint8_t start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

/* The configuration is the thread's own: each takes it up before it multiplies, and puts back what was there. */
PL_INLINE void tiles_begin(tile_config *before)
{
    tile_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    __asm__ volatile("sttilecfg %0" : "=m"(*before));
    __asm__ volatile("ldtilecfg %0" : : "m"(config));
}

PL_INLINE void tiles_end(const tile_config *before)
{
    if (before->palette == 0) {
        __asm__ volatile("tilerelease");
    } else {
        __asm__ volatile("ldtilecfg %0" : : "m"(*before));
    }
}

/* Not the compilers' intrinsics: some versions of those do not tell that memory is read and written. */
#        define AMX_LOAD(tile, at, row_bytes)                                                                          \
            __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile : : "r"(at), "r"((int64_t)(row_bytes)) : "memory")
#        define AMX_STORE(tile, at, row_bytes)                                                                         \
            __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" : : "r"(at), "r"((int64_t)(row_bytes)) : "memory")
#        define AMX_ZERO(tile) __asm__ volatile("tilezero %%tmm" #        tile : :)
#        define AMX_MULTIPLY(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #        b ", %%tmm" #        a ", %%tmm" #        c : :)

#    else
/* Vectors need no configuration. */
typedef struct tile_config {
    char none;
} tile_config;

PL_INLINE void tiles_begin(tile_config *before)
{
    before->none = 0;
}

PL_INLINE void tiles_end(const tile_config *before)
{
    (void)before;
}
#    endif

/* An operand in packed tiles, and how far apart (in bf16) tiles are that are neighbours outside of the sum and in it.
 */
typedef struct tile_operand {
    const uint16_t *tiles;
    int64_t outer, inner;
} tile_operand;

/* m by n tiles of c, each 1 or 2. */
#    ifdef __AMX_BF16__
PL_INLINE void tile_square(
    int m, int n, tile_operand a, tile_operand b, float *c, int64_t c_row, int64_t steps, bool accumulate)
{
    float *c2 = c + 16 * c_row;
    if (accumulate) {
        AMX_LOAD(0, c, c_row * 4);
        if (n == 2) AMX_LOAD(1, c + 16, c_row * 4);
        if (m == 2) AMX_LOAD(2, c2, c_row * 4);
        if (m == 2 && n == 2) AMX_LOAD(3, c2 + 16, c_row * 4);
    } else {
        AMX_ZERO(0);
        AMX_ZERO(1);
        AMX_ZERO(2);
        AMX_ZERO(3);
    }
    for (int64_t s = 0; s < steps; s++) {
        AMX_LOAD(4, a.tiles + s * a.inner, 64);
        AMX_LOAD(6, b.tiles + s * b.inner, 64);
        if (n == 2) AMX_LOAD(7, b.tiles + s * b.inner + b.outer, 64);
        AMX_MULTIPLY(0, 4, 6);
        if (n == 2) AMX_MULTIPLY(1, 4, 7);
        if (m == 2) {
            AMX_LOAD(5, a.tiles + s * a.inner + a.outer, 64);
            AMX_MULTIPLY(2, 5, 6);
            if (n == 2) AMX_MULTIPLY(3, 5, 7);
        }
    }
    AMX_STORE(0, c, c_row * 4);
    if (n == 2) AMX_STORE(1, c + 16, c_row * 4);
    if (m == 2) AMX_STORE(2, c2, c_row * 4);
    if (m == 2 && n == 2) AMX_STORE(3, c2 + 16, c_row * 4);
}
#    else
#        define STRIPE 8 /* rows whose sums are in registers */

/* STRIPE rows of n tiles of c, each from the row's beginning in a's first tile on. */
PL_INLINE void tile_stripe(
    int n, const uint16_t *a, int64_t a_inner, tile_operand b, float *c, int64_t c_row, int64_t steps, bool accumulate)
{
    __m512 sum[STRIPE][2];
    for (int i = 0; i < STRIPE; i++) {
        for (int t = 0; t < n; t++)
            sum[i][t] = accumulate ? _mm512_loadu_ps(c + i * c_row + 16 * t) : _mm512_setzero_ps();
    }
    for (int64_t s = 0; s < steps; s++) {
        const uint16_t *a_at = a + s * a_inner, *b_at = b.tiles + s * b.inner;
        for (int r = 0; r < 32; r += 2) {
            __m512bh pairs[2];
            for (int t = 0; t < n; t++) pairs[t] = (__m512bh)_mm512_load_si512(b_at + t * b.outer + 16 * r);
            for (int i = 0; i < STRIPE; i++) {
                int32_t pair;
                memcpy(&pair, a_at + i * 32 + r, sizeof pair);
                __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
                for (int t = 0; t < n; t++) sum[i][t] = _mm512_dpbf16_ps(sum[i][t], x, pairs[t]);
            }
        }
    }
    for (int i = 0; i < STRIPE; i++) {
        for (int t = 0; t < n; t++) _mm512_storeu_ps(c + i * c_row + 16 * t, sum[i][t]);
    }
}

PL_INLINE void tile_square(
    int m, int n, tile_operand a, tile_operand b, float *c, int64_t c_row, int64_t steps, bool accumulate)
{
    for (int i = 0; i < 16 * m; i += STRIPE) {
        const uint16_t *row = a.tiles + i / 16 * a.outer + i % 16 * 32;
        tile_stripe(n, row, a.inner, b, c + i * c_row, c_row, steps, accumulate);
    }
}
#    endif

/* c[16 m, 16 n] = (or +=) a * b, over steps * 32 elements. */
__attribute__((noinline, unused)) static void tile_product(
    tile_operand a, tile_operand b, float *c, int64_t c_row, int64_t m, int64_t n, int64_t steps, bool accumulate)
{
    for (int64_t j = 0; j < n; j += 2) {
        for (int64_t i = 0; i < m; i += 2) {
            tile_operand a_i = a, b_j = b;
            a_i.tiles += i * a.outer;
            b_j.tiles += j * b.outer;
            float *at = c + i * 16 * c_row + j * 16;
            if (m - i > 1 && n - j > 1) {
                tile_square(2, 2, a_i, b_j, at, c_row, steps, accumulate);
            } else if (n - j > 1) {
                tile_square(1, 2, a_i, b_j, at, c_row, steps, accumulate);
            } else if (m - i > 1) {
                tile_square(2, 1, a_i, b_j, at, c_row, steps, accumulate);
            } else {
                tile_square(1, 1, a_i, b_j, at, c_row, steps, accumulate);
            }
        }
    }
}

/* 32 or 16 neighbours of a row of n bf16, from j on, zeros beyond its end; x NULL: a row of zeros. */
PL_INLINE __m512i tile_row32(const uint16_t *x, int64_t j, int64_t n)
{
    if (!x || j >= n) return _mm512_setzero_si512();
    __mmask32 mask = n - j >= 32 ? 0xffffffffu : ((__mmask32)1 << (n - j)) - 1;
    return _mm512_maskz_loadu_epi16(mask, x + j);
}

PL_INLINE __m256i tile_row16(const uint16_t *x, int64_t j, int64_t n)
{
    if (!x || j >= n) return _mm256_setzero_si256();
    __mmask16 mask = n - j >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (n - j)) - 1);
    return _mm256_maskz_loadu_epi16(mask, x + j);
}

/* (a[i], b[i]) for 16 i. */
PL_INLINE __m512i tile_pair(__m256i a, __m256i b)
{
    return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

/* Rows of bf16 to be packed: x[rows, columns], `stride` apart. Packing covers whole tiles; what lies beyond is zero. */
typedef struct tile_source {
    const uint16_t *x;
    int64_t stride, rows, columns;
} tile_source;

PL_INLINE const uint16_t *tile_source_row(tile_source s, int64_t i)
{
    return i < s.rows ? s.x + i * s.stride : NULL;
}

/* Rows [from, from + rows) of a head. */
PL_INLINE tile_source tile_head(pl_heads x, int64_t from, int64_t rows, int h)
{
    return (tile_source){(const uint16_t *)x.t.data + from * x.t.stride + h * x.stride, x.t.stride, rows, x.head_dim};
}

/* One tile each, of the rows from i and the columns from j on. */
/* Whether [i, i + rows) by [j, j + columns) lies inside. */
PL_INLINE bool tile_whole(tile_source s, int64_t i, int64_t rows, int64_t j, int64_t columns)
{
    return i + rows <= s.rows && j + columns <= s.columns;
}

PL_INLINE void pack_rows(uint16_t *tile, tile_source s, int64_t i, int64_t j)
{
    if (tile_whole(s, i, 16, j, 32)) {
        const uint16_t *x = s.x + i * s.stride + j;
        for (int r = 0; r < 16; r++) _mm512_store_si512(tile + r * 32, _mm512_loadu_si512(x + r * s.stride));
        return;
    }
    for (int r = 0; r < 16; r++) _mm512_store_si512(tile + r * 32, tile_row32(tile_source_row(s, i + r), j, s.columns));
}

PL_INLINE void pack_transposed(uint16_t *tile, tile_source s, int64_t i, int64_t j)
{
    pl_vf r[16];
    if (tile_whole(s, i, 16, j, 32)) {
        const uint16_t *x = s.x + i * s.stride + j;
        for (int n = 0; n < 16; n++) r[n] = (pl_vf)_mm512_loadu_si512(x + n * s.stride);
    } else {
        for (int n = 0; n < 16; n++) r[n] = (pl_vf)tile_row32(tile_source_row(s, i + n), j, s.columns);
    }
    pl_vtranspose(r);
    for (int n = 0; n < 16; n++) _mm512_store_si512(tile + n * 32, (__m512i)r[n]);
}

PL_INLINE __m512i tile_source_pair(tile_source s, int64_t i, int64_t j)
{
    if (tile_whole(s, i, 2, j, 16)) {
        const __m256i *x = (const __m256i *)(s.x + i * s.stride + j);
        const __m256i *below = (const __m256i *)(s.x + (i + 1) * s.stride + j);
        return tile_pair(_mm256_loadu_si256(x), _mm256_loadu_si256(below));
    }
    return tile_pair(
        tile_row16(tile_source_row(s, i), j, s.columns), tile_row16(tile_source_row(s, i + 1), j, s.columns));
}

PL_INLINE void pack_pairs(uint16_t *tile, tile_source s, int64_t i, int64_t j)
{
    for (int r = 0; r < 16; r++) _mm512_store_si512(tile + r * 32, tile_source_pair(s, i + 2 * r, j));
}

/* Two tiles that are neighbours, of x[32, 32], which must lie inside. */
PL_INLINE void pack_two_pairs(uint16_t *tile, uint16_t *next, tile_source s, int64_t i, int64_t j)
{
    static const uint16_t order[64] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39, 8, 40, 9, 41, 10, 42, 11,
        43, 12, 44, 13, 45, 14, 46, 15, 47, 16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55, 24, 56, 25,
        57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63};
    const uint16_t *x = s.x + i * s.stride + j;
    __m512i low = _mm512_loadu_si512(order), high = _mm512_loadu_si512(order + 32);
    for (int r = 0; r < 16; r++) {
        __m512i a = _mm512_loadu_si512(x + 2 * r * s.stride), b = _mm512_loadu_si512(x + (2 * r + 1) * s.stride);
        _mm512_store_si512(tile + r * 32, _mm512_permutex2var_epi16(a, low, b));
        _mm512_store_si512(next + r * 32, _mm512_permutex2var_epi16(a, high, b));
    }
}

PL_INLINE void pack_columns(uint16_t *tile, tile_source s, int64_t i, int64_t j)
{
    pl_vf r[16];
    for (int n = 0; n < 16; n++) r[n] = (pl_vf)tile_source_pair(s, i + 2 * n, j);
    pl_vtranspose(r);
    for (int n = 0; n < 16; n++) _mm512_store_si512(tile + n * 32, (__m512i)r[n]);
}

/* 32 numbers, the 16 of `low` first. */
PL_INLINE __m512i two_bf16(pl_vf low, pl_vf high)
{
    return (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
}

/* (a[i], b[i]) for 16 i, as bf16. */
PL_INLINE __m512i bf16_pairs(pl_vf a, pl_vf b)
{
    static const uint16_t order[32] = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23, 8, 24, 9, 25, 10, 26, 11,
        27, 12, 28, 13, 29, 14, 30, 15, 31};
    return _mm512_permutexvar_epi16(_mm512_loadu_si512(order), two_bf16(a, b));
}

#endif
#endif
