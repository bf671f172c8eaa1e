/* A model with its adapter worked into the weights: what it takes to write it as a plain model. Host memory only, one
   tensor at a time, from the same source that a store loads from. */
#ifndef PL_TRAIN_MERGING_H
#define PL_TRAIN_MERGING_H

#include "train/store.h"

/* One tensor of the merged model. */
typedef struct pl_merged {
    char *name;              /* as Hugging Face's file has it */
    const pl_param *param;   /* the base parameter that it begins as, and whose shape it has */
    const pl_linear *linear; /* whose adapter changes it, or NULL */
} pl_merged;

typedef struct pl_merging {
    pl_merged *tensors;
    int count;
    bool unties; /* a tied model's head differs from the embedding now: its config.json must say so */
} pl_merging;

/* The model is adapted, and outlives *out. PL_EUNSUPPORTED when a bias of the adapter has no bias to go into. */
int pl_merging_open(pl_error *err, const pl_model *model, pl_merging *out);
void pl_merging_close(pl_merging *merge); /* {0} is fine */

/* values[numel] = the merged tensor:  W + s B A;  DoRA: its rows times m / |W + s B A|;  a bias: b + s b_B. W is what
   PiSSA and OLoRA leave of the file's weight. In f32 throughout. PL_EINPUT when the source lacks something or has it in
   another shape. */
int pl_merging_read(pl_error *err, const pl_merged *tensor, const pl_source *source, float *values);

#endif
