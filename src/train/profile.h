/* Where a step's time goes, as DeepSpeed's wall_clock_breakdown tells it: by phase and kind of unit. */
#ifndef PL_TRAIN_PROFILE_H
#define PL_TRAIN_PROFILE_H

#include "base/clock.h"

/* name in reports */
#define PL_PHASE_LIST(X)                                                                                               \
    X(PL_PHASE_DATA, "data") /* fetching and copying in micro-batches */                                               \
    X(PL_PHASE_ZERO, "zero gradients")                                                                                 \
    X(PL_PHASE_FORWARD_EMBEDDING, "forward embedding")                                                                 \
    X(PL_PHASE_FORWARD_BLOCK, "forward blocks")                                                                        \
    X(PL_PHASE_FORWARD_HEAD, "forward head, loss") /* with the gradients that go through the head's linear */          \
    X(PL_PHASE_RECOMPUTE, "recompute")                                                                                 \
    X(PL_PHASE_BACKWARD_HEAD, "backward head")                                                                         \
    X(PL_PHASE_BACKWARD_BLOCK, "backward blocks")                                                                      \
    X(PL_PHASE_BACKWARD_EMBEDDING, "backward embedding")                                                               \
    X(PL_PHASE_NORM, "gradient norm")                                                                                  \
    X(PL_PHASE_CHECKPOINT, "checkpoint") /* waiting for one that is written in the background */                       \
    X(PL_PHASE_OPTIMIZER, "optimizer")

typedef enum pl_phase {
#define X(phase, name) phase,
    PL_PHASE_LIST(X)
#undef X
        PL_PHASE_COUNT
} pl_phase;

typedef struct pl_profile {
    double seconds[PL_PHASE_COUNT];
    double mark; /* clock when the last phase ended */
} pl_profile;

const char *pl_phase_name(pl_phase phase);

/* Begins: what comes next is counted under the phase that is told when it ends. */
static inline void pl_profile_start(pl_profile *profile)
{
    profile->mark = pl_clock();
}

/* What went on since the last mark was `phase`. */
static inline void pl_profile_end(pl_profile *profile, pl_phase phase)
{
    double now = pl_clock();
    profile->seconds[phase] += now - profile->mark;
    profile->mark = now;
}

#endif
