/* What attention's backwards share. A piece of work is a block of keys of one key head: it recomputes the probabilities
   of all queries that see it and sums its own dk and dv. dq is summed over the blocks of keys, in their order: each
   block of queries has a turn counter, and a piece waits until the pieces before it have added theirs. Pieces are taken
   in an order in which those waited for come first, so that the earliest unfinished one never waits. So every sum has
   one order, whatever the number of threads. Dao et al. 2022. */
#ifndef PL_DEVICE_CPU_ATTENTION_BACKWARD_H
#define PL_DEVICE_CPU_ATTENTION_BACKWARD_H

#include <sched.h>
#include <stdatomic.h>

#include "device/cpu_attention.h"

typedef struct key_piece {
    int sequence, block, kv;
    int turns;      /* index of the first turn counter of its sequence and key head */
    int64_t packed; /* the sequence's first row where each sequence takes whole strips of rows */
} key_piece;

PL_INLINE int64_t aligned(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

__attribute__((unused)) static int64_t count_pieces(const pl_attention_backward_args *args)
{
    int64_t n = 0;
    for (int s = 0; s < args->nsequences; s++) n += blocks_in(args->sequences[s].k_len, K_BLOCK);
    return n * args->k.heads;
}

__attribute__((unused)) static int64_t count_turns(const pl_attention_backward_args *args, int64_t q_block)
{
    int64_t n = 0;
    for (int s = 0; s < args->nsequences; s++) n += blocks_in(args->sequences[s].q_len, q_block);
    return n * args->k.heads;
}

/* Blocks of keys in order, of all sequences and heads in turn: first the ones that most queries see, and neighbours in
   the list wait for each other as little as possible. */
__attribute__((unused)) static void list_pieces(
    const pl_attention_backward_args *args, int64_t q_block, int64_t strip, int64_t pieces, key_piece *out)
{
    key_piece *end = out + pieces;
    for (int block = 0; out < end; block++) {
        int turns = 0;
        int64_t packed = 0;
        for (int s = 0; s < args->nsequences; s++) {
            const pl_sequence *sequence = &args->sequences[s];
            for (int kv = 0; kv < args->k.heads; kv++) {
                if ((int64_t)block * K_BLOCK < sequence->k_len) *out++ = (key_piece){s, block, kv, turns, packed};
                turns += (int)blocks_in(sequence->q_len, q_block);
            }
            packed += blocks_in(sequence->q_len, strip) * strip;
        }
    }
}

PL_INLINE void wait_for(atomic_int *turn, int64_t mine)
{
    for (int spins = 0; atomic_load_explicit(turn, memory_order_acquire) != (int)mine; spins++) {
        if (spins >= 1000) sched_yield();
    }
}

PL_INLINE void next_turn(atomic_int *turn, int64_t mine)
{
    atomic_store_explicit(turn, (int)mine + 1, memory_order_release);
}

/* delta[h, t] = sum over dim of dout * out. */
PL_INLINE void sum_delta(const pl_attention_backward_args *args, int64_t t, int h)
{
    const void *out = head_row(args->out, t, h), *dout = head_row(args->dout, t, h);
    pl_dtype dtype = args->out.t.dtype;
    int64_t dim = args->out.head_dim;
    pl_vf sum = {0};
    PL_EACH(d, lanes, dim, { sum += pl_vget(dtype, out, d, lanes) * pl_vget(dtype, dout, d, lanes); });
    ((float *)args->delta.data)[h * args->delta.stride + t] = pl_vsum(sum);
}

#endif
