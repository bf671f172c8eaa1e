/* Dropout. Each element's fate follows from its place alone, so nothing is stored for the backward. */
#include <math.h>

#include "device/kernel.h"

#define RUN 256 /* elements whose random words are made at a time: a multiple of 4 */

/* Words of the blocks first .. first + RUN / 4 - 1, as pl_rng_block makes them: Philox 4x32-10, written so that the
   compiler takes one block a lane. */
static void random_words(const pl_rng *rng, uint64_t first, uint32_t words[RUN])
{
    for (int b = 0; b < RUN / 4; b++) {
        uint64_t index = first + (uint64_t)b;
        uint32_t key0 = (uint32_t)rng->seed, key1 = (uint32_t)(rng->seed >> 32);
        uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = rng->domain, c3 = rng->stream;
#pragma GCC unroll 10
        for (int round = 0; round < 10; round++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
            uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ key0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ key1;
            c0 = n0;
            c1 = (uint32_t)p1;
            c2 = n2;
            c3 = (uint32_t)p0;
            key0 += 0x9E3779B9u;
            key1 += 0xBB67AE85u;
        }
        words[4 * b] = c0;
        words[4 * b + 1] = c1;
        words[4 * b + 2] = c2;
        words[4 * b + 3] = c3;
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
#define DROPOUT_COST 8

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
