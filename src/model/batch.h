/* A micro-batch: whole sequences laid end to end, never padded. Host memory; what the device needs is copied in. */
#ifndef PL_MODEL_BATCH_H
#define PL_MODEL_BATCH_H

#include "base/error.h"
#include "device/device.h"

#define PL_NOT_TRAINED (-100) /* the target of a token that has none, as in PyTorch */

/* targets[t] is what the model should predict after token t: the label at t + 1 of the same sequence, or
   PL_NOT_TRAINED. positions restart at 0 with each sequence. */
typedef struct pl_batch {
    int32_t *ids, *targets, *positions; /* [capacity_tokens] */
    pl_sequence *sequences;             /* [capacity_sequences], in order, without gaps */
    int64_t *numbers;    /* [capacity_sequences] of a sequence's first token among all of the step's: it keys dropout */
    int64_t next_number; /* that the next sequence will get; who appends out of order sets it */
    int64_t tokens, capacity_tokens;
    int nsequences, capacity_sequences;
    int64_t ntargets;   /* tokens that are trained */
    int64_t max_length; /* of a sequence */
    /* The length by which rotary frequencies are chosen, where they depend on one (longrope, dynamic), when that is
       more than the positions say: a chunk of a prompt is rotated as the whole prompt is. */
    int64_t rope_length;
} pl_batch;

int pl_batch_open(pl_error *err, pl_batch *batch, int64_t capacity_tokens, int capacity_sequences);
void pl_batch_close(pl_batch *batch); /* {0} is fine */
void pl_batch_clear(pl_batch *batch);
/* Appends one sequence of n tokens. labels [n] (the first is never used); NULL: every token is its own label. PL_ENOMEM
   when it does not fit. */
int pl_batch_append(pl_error *err, pl_batch *batch, const int32_t *ids, const int32_t *labels, int64_t n);

/* Appends all of another batch. */
int pl_batch_copy(pl_error *err, const pl_batch *from, pl_batch *to);

#endif
