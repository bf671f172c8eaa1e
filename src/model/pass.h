/* One micro-batch on its way through the units: what all of them read, and the stack on which they keep what their
   backward needs. */
#ifndef PL_MODEL_PASS_H
#define PL_MODEL_PASS_H

#include "mem/mem.h"
#include "model/arch.h"
#include "model/batch.h"

/* Keys and values of earlier tokens. Each layer has [rows, kv_heads * head_dim] of both; sequence s of a batch owns the
   rows that its k_begin and k_len say. */
typedef struct pl_kv_cache {
    pl_tensor *k, *v; /* [layers] */
    int64_t rows;
} pl_kv_cache;

typedef struct pl_pass {
    const pl_batch *batch;
    pl_tensor ids, positions;                                 /* i32 [T] on the device */
    pl_tensor rope_cos[PL_MAX_ROPES], rope_sin[PL_MAX_ROPES]; /* f32 [P, rotary / 2] */
    /* i32 [T]: the trained tokens (ntargets of them), what they should predict, and for each token its place among
       them, or ntargets where it is not trained. The head loses no time on the others. */
    pl_tensor rows, row_targets, inverse;
    pl_stack *saved;
    const pl_kv_cache *cache; /* NULL in training */
    bool training;            /* a backward follows */
    bool recomputing;         /* a forward for its saved tensors alone: y need not be written */
    uint64_t seed; /* dropout is keyed by seed, step, module and the token's number in the step (batch->numbers) */
    int64_t step;
    bool gathered; /* rows are not the batch's tokens, but others, numbered from first_row on */
    int64_t first_row;
    float grad_scale; /* 1 / trained tokens of the whole global batch */
    double loss_sum;  /* of the micro-batch's trained tokens; written by the head */
    pl_tensor logits; /* f32 [n, vocab], for inference: the head writes those of `logit_rows` here; none in training */
    pl_tensor logit_rows; /* i32 [n] */
} pl_pass;

#endif
