#include "base/rng.h"

#include <math.h>

void pl_rng_block(const pl_rng *rng, uint64_t index, uint32_t out[4])
{
    uint32_t key0 = (uint32_t)rng->seed, key1 = (uint32_t)(rng->seed >> 32);
    uint32_t c0 = (uint32_t)index, c1 = (uint32_t)(index >> 32), c2 = rng->domain, c3 = rng->stream;
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
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

uint64_t pl_rng_u64(const pl_rng *rng, uint64_t index)
{
    uint32_t b[4];
    pl_rng_block(rng, index, b);
    return (uint64_t)b[1] << 32 | b[0];
}

double pl_rng_uniform(const pl_rng *rng, uint64_t index)
{
    return (double)(pl_rng_u64(rng, index) >> 11) * 0x1p-53;
}

double pl_rng_normal(const pl_rng *rng, uint64_t index)
{
    uint32_t b[4];
    pl_rng_block(rng, index, b);
    /* (0, 1] keeps the logarithm finite. */
    double u = ((double)(((uint64_t)b[1] << 32 | b[0]) >> 11) + 1.0) * 0x1p-53;
    double v = (double)(((uint64_t)b[3] << 32 | b[2]) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925 * v);
}

uint64_t pl_rng_below(const pl_rng *rng, uint64_t index, uint64_t n)
{
    /* Multiply-shift; the bias is below n / 2^64. */
    return (uint64_t)((unsigned __int128)pl_rng_u64(rng, index) * n >> 64);
}

uint64_t pl_rng_permute(const pl_rng *rng, uint64_t i, uint64_t n)
{
    if (n < 2) return 0;
    int half = 1;
    while (half < 32 && ((uint64_t)1 << (2 * half)) < n) half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = i >> half, right = i & mask;
        for (uint64_t round = 0; round < 6; round++) {
            uint64_t f = pl_rng_u64(rng, round << 56 | right) & mask, next = left ^ f;
            left = right;
            right = next;
        }
        i = left << half | right;
    } while (i >= n);
    return i;
}
