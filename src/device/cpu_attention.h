/* What the two directions of attention share: block sizes, which blocks of keys a block of queries sees, the small
   matrix product that all is made of, and the packing of its operands. Everything here is static: each file of each
   level has its own. */
#ifndef PL_DEVICE_CPU_ATTENTION_H
#define PL_DEVICE_CPU_ATTENTION_H

#include "device/cpu_tile.h"
#include "device/kernel.h"

#define Q_BLOCK 48  /* queries of one head that are worked on at once */
#define K_BLOCK 128 /* keys that are packed at once; a multiple of every PL_LANES */

/* Rows of a register tile, and its width in vectors: 24 accumulators of AVX-512's 32 registers, 12 of 16 elsewhere. */
#define TILE_ROWS 6
#if PL_LANES == 16
#    define TILE_VECTORS 4
#else
#    define TILE_VECTORS 2
#endif

PL_INLINE int64_t padded(int64_t n)
{
    return blocks_in(n, PL_LANES) * PL_LANES;
}

/* The keys that queries [from, to) of a sequence see, as blocks [*first, *last] of them. */
PL_INLINE void key_blocks(const pl_sequence *s, int64_t window, int64_t from, int64_t to, int64_t *first, int64_t *last)
{
    int64_t shift = s->k_len - s->q_len;
    int64_t lowest = window > 0 ? at_least(from + shift - window + 1, 0) : 0;
    *first = lowest / K_BLOCK;
    *last = (to - 1 + shift) / K_BLOCK;
}

#define TILE_CASE(rows, vectors)                                                                                       \
case (rows)*8 + (vectors):                                                                                             \
    tile(rows, vectors, a, a_row, a_step, b, b_step, c, c_row, k, accumulate);                                         \
    break;
#define TILE_CASES(vectors)                                                                                            \
    TILE_CASE(1, vectors)                                                                                              \
    TILE_CASE(2, vectors)                                                                                              \
    TILE_CASE(3, vectors) TILE_CASE(4, vectors) TILE_CASE(5, vectors) TILE_CASE(6, vectors)

PL_INLINE void any_tile(int rows, int vectors, const float *a, int64_t a_row, int64_t a_step, const float *b,
    int64_t b_step, float *c, int64_t c_row, int64_t k, bool accumulate)
{
    switch (rows * 8 + vectors) {
        TILE_CASES(1)
        TILE_CASES(2)
#if TILE_VECTORS == 4
        TILE_CASES(3)
        TILE_CASES(4)
#endif
    }
}

/* c[m, n] = (or +=) a[m, k] * b[k, n] for n a multiple of PL_LANES; b and c are rows in order. A panel of b stays in
   the first cache while all rows of a pass over it. */
__attribute__((noinline, unused)) static void product(const float *a, int64_t a_row, int64_t a_step, const float *b,
    int64_t b_step, float *c, int64_t c_row, int64_t m, int64_t n, int64_t k, bool accumulate)
{
    for (int64_t j = 0; j < n; j += TILE_VECTORS * PL_LANES) {
        int vectors = (int)at_most((n - j) / PL_LANES, TILE_VECTORS);
        for (int64_t i = 0; i < m; i += TILE_ROWS) {
            any_tile((int)at_most(m - i, TILE_ROWS), vectors, a + i * a_row, a_row, a_step, b + j, b_step,
                c + i * c_row + j, c_row, k, accumulate);
        }
    }
}

PL_INLINE const void *head_row(pl_heads x, int64_t t, int h)
{
    return (const char *)x.t.data + (t * x.t.stride + h * x.stride) * pl_dtype_size(x.t.dtype);
}

/* to[n, padded(head_dim)] = factor * rows [from, from + n) of head h, zeros in the padding. */
__attribute__((unused)) static void gather_rows(float *to, pl_heads x, int64_t from, int64_t n, int h, float factor)
{
    int64_t dim = x.head_dim, width = padded(dim);
    for (int64_t i = 0; i < n; i++) {
        const void *row = head_row(x, from + i, h);
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            pl_vstore(to + i * width + d, factor * pl_vget(x.t.dtype, row, d, at_most(dim - d, PL_LANES)));
        }
    }
}

/* Rows [from, from + n) of head h = factor * x[n, padded(head_dim)]. */
__attribute__((unused)) static void scatter_rows(
    pl_heads to, int64_t from, int64_t n, int h, const float *x, float factor)
{
    int64_t dim = to.head_dim, width = padded(dim);
    for (int64_t i = 0; i < n; i++) {
        void *row = (void *)(uintptr_t)head_row(to, from + i, h);
        for (int64_t d = 0; d < dim; d += PL_LANES) {
            pl_vput(to.t.dtype, row, d, at_most(dim - d, PL_LANES), factor * pl_vload(x + i * width + d));
        }
    }
}

/* to[padded(dim), K_BLOCK] = the transpose of x[n, padded(dim)], zeros beyond n up to a multiple of PL_LANES. */
__attribute__((unused)) static void transpose(float *to, const float *x, int64_t n, int64_t dim)
{
    int64_t width = padded(dim);
    for (int64_t j = 0; j < n; j += PL_LANES) {
        for (int64_t d = 0; d < width; d += PL_LANES) {
            pl_vf r[PL_LANES];
            for (int64_t i = 0; i < PL_LANES; i++) {
                r[i] = j + i < n ? pl_vload(x + (j + i) * width + d) : pl_vset(0);
            }
            pl_vtranspose(r);
            for (int64_t i = 0; i < PL_LANES; i++) pl_vstore(to + (d + i) * K_BLOCK + j, r[i]);
        }
    }
}

/* The keys [*low, *high) of the block that starts at key `block` (n of them) that the query at `position` sees. */
PL_INLINE void visible_keys(int64_t position, int64_t window, int64_t block, int64_t n, int64_t *low, int64_t *high)
{
    *high = at_least(at_most(position + 1 - block, n), 0);
    *low = window > 0 ? at_most(at_least(position - window + 1 - block, 0), *high) : 0;
}

/* What a block's scores are limited to: rows of a strip compute no more keys than their last one sees. */
#define STRIP (2 * TILE_ROWS)

/* s[m, K_BLOCK] = a[m, width] * b[dim, K_BLOCK] for the visible keys at least; query i stands at position + i. */
__attribute__((unused)) static void visible_scores(float *s, const float *a, int64_t width, const float *b, int64_t m,
    int64_t dim, int64_t position, int64_t block, int64_t n)
{
    if (position >= block + n - 1) {
        product(a, width, 1, b, K_BLOCK, s, K_BLOCK, m, padded(n), dim, false);
        return;
    }
    for (int64_t i = 0; i < m; i += STRIP) {
        int64_t rows = at_most(m - i, STRIP), keys = at_most(position + i + rows - block, n);
        if (keys <= 0) continue;
        product(a + i * width, width, 1, b, K_BLOCK, s + i * K_BLOCK, K_BLOCK, rows, padded(keys), dim, false);
    }
}

/* c[m, width] += p[m, K_BLOCK] * x[n, width], over the visible keys at least (p is 0 for others). */
__attribute__((unused)) static void add_visible(float *c, const float *p, const float *x, int64_t width, int64_t m,
    int64_t position, int64_t block, int64_t n, bool accumulate)
{
    if (position >= block + n - 1) {
        product(p, K_BLOCK, 1, x, width, c, width, m, width, n, accumulate);
        return;
    }
    for (int64_t i = 0; i < m; i += STRIP) {
        int64_t rows = at_most(m - i, STRIP), keys = at_least(at_most(position + i + rows - block, n), 0);
        product(p + i * K_BLOCK, K_BLOCK, 1, x, width, c + i * width, width, rows, width, keys, accumulate);
    }
}

/* The softcap of a score that is scaled already: cap * tanh(x / cap), with tanh(y) = 1 - 2 / (e^2y + 1). */
PL_INLINE pl_vf capped_score(pl_vf x, float cap)
{
    return cap > 0 ? cap * (1 - 2 / (pl_vexp(x * (2 / cap)) + 1)) : x;
}

/* Lanes at keys [low, high) as they are, others as `other`; the vector stands at key j. */
PL_INLINE pl_vf only_visible(pl_vf x, int64_t j, int64_t low, int64_t high, float other)
{
    pl_vi lane;
    for (int i = 0; i < PL_LANES; i++) lane[i] = i;
    pl_vi key = lane + (int32_t)j;
    return pl_vselect((key >= (int32_t)low) & (key < (int32_t)high), x, pl_vset(other));
}

#endif
