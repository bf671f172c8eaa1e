/* Finds where a number stopped being finite: while active, the engine shows it every tensor it makes. */
#ifndef PL_TRAIN_TRACE_H
#define PL_TRAIN_TRACE_H

#include "model/model.h"

typedef struct pl_trace {
    bool active;
    int64_t step;
} pl_trace;

/* Each does nothing unless active, and fails with PL_ENUMERIC naming step, unit and tensor at the first NaN or
 * infinity. */
int pl_trace_weights(const pl_trace *trace, pl_run *run, const pl_unit *unit);
int pl_trace_output(const pl_trace *trace, pl_run *run, const pl_unit *unit, pl_tensor y);
int pl_trace_loss(const pl_trace *trace, pl_run *run, const pl_unit *unit, double loss_sum);
int pl_trace_gradients(const pl_trace *trace, pl_run *run, const pl_unit *unit, pl_tensor d);

#endif
