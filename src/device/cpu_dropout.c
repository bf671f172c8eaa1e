/* Dropout. Each element's fate follows from its place alone, so nothing is stored for the backward. */
#include <math.h>

#include "device/kernel.h"

#define RUN 256 /* elements whose random words are made at a time */

/* Philox works on 32-bit words by products of 64 bits: one block to each 64-bit lane. What is above a lane's low word
   is ignored, so nothing need be cleared on the way. */
#define BLOCKS (PL_LANES / 2)
typedef uint64_t wide __attribute__((vector_size(8 * BLOCKS)));

PL_INLINE wide multiply_low(wide a, wide b)
{
#if defined __AVX512F__
    return (wide)_mm512_mul_epu32((__m512i)a, (__m512i)b);
#elif defined __AVX2__
    return (wide)_mm256_mul_epu32((__m256i)a, (__m256i)b);
#elif defined __SSE2__
    return (wide)_mm_mul_epu32((__m128i)a, (__m128i)b);
#else
    return (a & 0xffffffffu) * (b & 0xffffffffu);
#endif
}

/* The high words, in the place of the low ones. A shuffle, because shifts compete with the products for one port. */
PL_INLINE wide high_words(wide a)
{
#if defined __AVX512F__
    return (wide)_mm512_shuffle_epi32((__m512i)a, _MM_PERM_DDBB);
#elif defined __AVX2__
    return (wide)_mm256_shuffle_epi32((__m256i)a, 0xf5);
#elif defined __SSE2__
    return (wide)_mm_shuffle_epi32((__m128i)a, 0xf5);
#else
    return a >> 32;
#endif
}

/* a[0], b[0], a[1], b[1], ...: the first and the second half. */
PL_INLINE void interleave(wide a, wide b, wide *first, wide *second)
{
#if PL_LANES == 16
    *first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
    *second = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#elif PL_LANES == 8
    *first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
    *second = __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
    *first = __builtin_shufflevector(a, b, 0, 2);
    *second = __builtin_shufflevector(a, b, 1, 3);
#endif
}

/* Words of the blocks first .. first + RUN / 4 - 1, as pl_rng_block makes them: Philox 4x32-10. */
static void random_words(const pl_rng *rng, uint64_t first, uint32_t words[RUN])
{
    const wide low = (wide){0} + 0xffffffffu, m0 = (wide){0} + 0xD2511F53u, m1 = (wide){0} + 0xCD9E8D57u;
    wide index = (wide){0} + first;
    for (int i = 0; i < BLOCKS; i++) index[i] += (uint64_t)i;
    for (int b = 0; b < RUN / 4; b += BLOCKS, index += BLOCKS) {
        uint32_t key0 = (uint32_t)rng->seed, key1 = (uint32_t)(rng->seed >> 32);
        wide c0 = index, c1 = index >> 32, c2 = (wide){0} + rng->domain, c3 = (wide){0} + rng->stream;
        for (int round = 0; round < 10; round++) {
            wide p0 = multiply_low(m0, c0), p1 = multiply_low(m1, c2);
            c0 = high_words(p1) ^ c1 ^ ((wide){0} + key0);
            c2 = high_words(p0) ^ c3 ^ ((wide){0} + key1);
            c1 = p1;
            c3 = p0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        wide out[2];
        interleave((c0 & low) | c1 << 32, (c2 & low) | c3 << 32, &out[0], &out[1]); /* little-endian pairs */
        memcpy(words + 4 * b, out, sizeof out);
    }
}

typedef struct fate {
    uint32_t threshold; /* an element is kept when its word is not below this */
    float scale;
    bool accumulate;
} fate;

PL_INLINE pl_vf keep_lanes(pl_vf x, const uint32_t *words, uint32_t threshold)
{
    /* Compared as signed numbers, which vectors of int32 do, after flipping the top bit of both. */
    pl_vi w;
    memcpy(&w, words, sizeof w);
    pl_vi drop = (w ^ INT32_MIN) < (pl_vi){0} + (int32_t)(threshold ^ 0x80000000u);
    return pl_vselect(drop, pl_vset(0), x);
}

/* Elements [j0, j0 + n) of a row, whose words are words[0..n). */
PL_INLINE void drop_run(
    pl_dtype ty, void *y, pl_dtype tx, const void *x, int64_t j0, int64_t n, const uint32_t *words, fate f)
{
    pl_vf scale = pl_vset(f.scale);
    PL_EACH(j, lanes, n, {
        pl_vf v = keep_lanes(pl_vget(tx, x, j0 + j, lanes) * scale, words + j, f.threshold);
        if (f.accumulate) v += pl_vget(ty, y, j0 + j, lanes);
        pl_vput(ty, y, j0 + j, lanes, v);
    });
}

static void drop_row(const pl_dropout_args *a, int64_t t, fate f)
{
    uint32_t words[RUN + PL_LANES] = {0}; /* the last vector may reach beyond */
    int64_t columns = a->x.shape[1];
    uint64_t begin = (uint64_t)(a->first_row + t) * (uint64_t)columns;
    void *y = pl_row(a->y, t);
    const void *x = pl_row(a->x, t);
    for (int64_t j = 0; j < columns;) {
        uint64_t element = begin + (uint64_t)j;
        int64_t skip = (int64_t)(element % 4), n = columns - j < RUN - skip ? columns - j : RUN - skip;
        random_words(&a->rng, element / 4, words);
        if (a->y.dtype == PL_F32 && a->x.dtype == PL_F32)
            drop_run(PL_F32, y, PL_F32, x, j, n, words + skip, f);
        else if (a->y.dtype == PL_BF16 && a->x.dtype == PL_BF16)
            drop_run(PL_BF16, y, PL_BF16, x, j, n, words + skip, f);
        else
            drop_run(a->y.dtype, y, a->x.dtype, x, j, n, words + skip, f);
        j += n;
    }
}

/* Arithmetic takes about as long as streaming so many times the bytes of x. */
#define DROPOUT_COST 4

int PL_CPU(dropout)(pl_device *device, pl_error *err, const pl_dropout_args *a)
{
    (void)err;
    fate f = {
        .threshold = (uint32_t)ceil((double)a->p * 0x1p32),
        .scale = (float)(1 / (1 - (double)a->p)),
        .accumulate = a->accumulate,
    };
    int team = pl_team(device, DROPOUT_COST * pl_tensor_bytes(a->x));
#pragma omp parallel for num_threads(team) schedule(static)
    for (int64_t t = 0; t < a->x.shape[0]; t++) drop_row(a, t, f);
    return 0;
}
