/* A step as data: the actions that one process takes, in order, made by pure functions and carried out by the engine.
 */
#ifndef PL_TRAIN_SCHEDULE_H
#define PL_TRAIN_SCHEDULE_H

#include "base/error.h"

typedef enum pl_action_kind {
    PL_ACTION_FORWARD,  /* of a micro-batch, through this process's units */
    PL_ACTION_BACKWARD, /* of a micro-batch whose forward was done */
    PL_ACTION_STEP      /* the optimizer's, after all micro-batches */
} pl_action_kind;

typedef struct pl_action {
    pl_action_kind kind;
    int micro; /* micro-batch, from 0 */
} pl_action;

/* Gradient accumulation in one process: each micro-batch forward and backward, then the step. Returns the number of
   actions (2 micro_batches + 1), of which at most `capacity` are written. */
int pl_schedule_accumulate(int micro_batches, pl_action *out, int capacity);
/* The largest number of micro-batches that are in flight (forward done, backward not) at once. */
int pl_schedule_in_flight(const pl_action *actions, int count);

#endif
