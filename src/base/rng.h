/* Counter-based random numbers: a value depends on its key and counter alone, never on what was drawn before, so that
   every layout of processes and threads sees the same ones.  Philox 4x32-10, Salmon et al. 2011. */
#ifndef PL_BASE_RNG_H
#define PL_BASE_RNG_H

#include <stdint.h>

/* What a number is for: it keeps streams with the same seed apart. */
enum pl_rng_stream {
    PL_RNG_INIT = 1,    /* weights of a fresh model or adapter */
    PL_RNG_DROPOUT = 2, /* lora_dropout */
    PL_RNG_SHUFFLE = 3, /* order of the data */
    PL_RNG_SAMPLE = 4,  /* generation */
    PL_RNG_SPLIT = 5,   /* validation split */
    PL_RNG_MIX = 6      /* choice among weighted files */
};

typedef struct pl_rng {
    uint64_t seed;
    uint32_t stream; /* enum pl_rng_stream */
    uint32_t domain; /* a unit's or tensor's number, a step: what the caller keys by */
} pl_rng;

/* Four independent 32-bit numbers for counter `index`. */
void pl_rng_block(const pl_rng *rng, uint64_t index, uint32_t out[4]);
uint64_t pl_rng_u64(const pl_rng *rng, uint64_t index);
double pl_rng_uniform(const pl_rng *rng, uint64_t index);             /* [0, 1), 53 bits */
double pl_rng_normal(const pl_rng *rng, uint64_t index);              /* mean 0, deviation 1 (Box-Muller) */
uint64_t pl_rng_below(const pl_rng *rng, uint64_t index, uint64_t n); /* [0, n), n > 0 */
/* The place of element i in a pseudo-random permutation of 0..n-1: a Feistel network with cycle walking, so no table
   is kept however large n is. */
uint64_t pl_rng_permute(const pl_rng *rng, uint64_t i, uint64_t n);

#endif
