/* A model is a list of units: embedding, blocks, head. The list is the only tape: recomputation, sharding, offload and
   pipeline stages work on whole units and know nothing of what is inside one. */
#ifndef PL_MODEL_UNIT_H
#define PL_MODEL_UNIT_H

#include "model/param.h"
#include "model/pass.h"
#include "op/run.h"

typedef struct pl_unit pl_unit;

typedef struct pl_unit_ops {
    const char *kind;   /* "embedding", "block", "head" */
    size_t record_size; /* of the host structure in which a forward notes its saved tensors for its backward */

    /* y[T, H] = unit(x[T, H]); the embedding has no x, the head no y. What the backward needs is pushed on pass->saved
       and noted in `record`, one per unit and micro-batch in flight, zeroed by the caller. y does not alias x. */
    int (*forward)(pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor y, pl_tensor x);

    /* d[T, H] holds the gradient of y and becomes that of x (the head's starts undefined; the embedding's ends so).
       With need_dx false d may end undefined. Gradients of the unit's trainable parameters are added to. Called once
       for each forward, in reverse order, with the same x. */
    int (*backward)(pl_run *run, pl_unit *unit, pl_pass *pass, void *record, pl_tensor d, bool need_dx, pl_tensor x);

    /* In training its forward adds to gradients already, and its backward reads nothing that it borrows. */
    bool early_gradients;
} pl_unit_ops;

/* The first member of each kind of unit. */
struct pl_unit {
    const pl_unit_ops *ops;
    char *name; /* "model.layers.3" */
    int index;
    pl_param **params; /* that this unit owns (a tied head borrows the embedding's) */
    int nparams;
    size_t params_capacity;
};

#endif
