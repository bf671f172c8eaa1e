/* What a micro-batch brings to the device: ids, positions, the trained rows, rotary tables. Allocated once, for the
 * largest. */
#ifndef PL_TRAIN_INPUTS_H
#define PL_TRAIN_INPUTS_H

#include "model/model.h"
#include "train/capacity.h"

typedef struct pl_inputs {
    pl_tensor ids, positions, rows, row_targets, inverse; /* i32 [tokens] */
    pl_tensor logit_rows;                                 /* i32 [tokens] */
    pl_tensor rope_cos[PL_MAX_ROPES], rope_sin[PL_MAX_ROPES];
    int64_t rope_length[PL_MAX_ROPES]; /* the length whose frequencies the tables have; 0: not made yet */
    int64_t tokens, positions_limit;
    int32_t *host;        /* [3 * tokens] */
    float *host_rope;     /* one table */
    double *host_inverse; /* [widest rotary / 2]: frequencies */
} pl_inputs;

int pl_inputs_open(pl_run *run, pl_inputs *in, const pl_arch *arch, const pl_capacity *capacity);
void pl_inputs_close(pl_run *run, pl_inputs *in);
/* Copies the batch in and points the pass at it. PL_EINPUT for ids outside the vocabulary and sequences longer than the
   model's positions. */
int pl_inputs_set(pl_run *run, pl_inputs *in, const pl_arch *arch, const pl_batch *batch, pl_pass *pass);
/* The rows whose logits are wanted. */
int pl_inputs_rows(pl_run *run, pl_inputs *in, const int32_t *rows, int64_t n, pl_pass *pass);

#endif
