/* The small matrix product that attention and products in f32 are made of. */
#ifndef PL_DEVICE_CPU_TILE_H
#define PL_DEVICE_CPU_TILE_H

#include "device/kernel.h"

#define TILE_MOST_ROWS 14
#define TILE_MOST_VECTORS 4
#define AHEAD 16 /* rows of b are asked for so early */

/* c[rows, vectors * PL_LANES] = (or +=) a[rows, k] * b[k, ...]. Element (i, l) of a is at i * a_row + l * a_step. rows
   and vectors are constants, so that all sums are in registers. */
PL_INLINE void tile(int rows, int vectors, const float *a, int64_t a_row, int64_t a_step, const float *b,
    int64_t b_step, float *c, int64_t c_row, int64_t k, bool accumulate)
{
    pl_vf sum[TILE_MOST_ROWS][TILE_MOST_VECTORS];
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vectors; v++) sum[i][v] = pl_vset(0);
    }
    for (int64_t l = 0; l < k; l++) {
        pl_vf row[TILE_MOST_VECTORS];
        for (int v = 0; v < vectors; v++) row[v] = pl_vload(b + l * b_step + v * PL_LANES);
        __builtin_prefetch(b + (l + AHEAD) * b_step, 0, 3);
        if (vectors > 1) __builtin_prefetch(b + (l + AHEAD) * b_step + PL_LANES, 0, 3);
        for (int i = 0; i < rows; i++) {
            pl_vf x = pl_vset(a[i * a_row + l * a_step]);
            for (int v = 0; v < vectors; v++) sum[i][v] += x * row[v];
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int v = 0; v < vectors; v++) {
            float *at = c + i * c_row + v * PL_LANES;
            pl_vstore(at, accumulate ? pl_vload(at) + sum[i][v] : sum[i][v]);
        }
    }
}

#endif
