#include "train/trace.h"

#include <math.h>

#include "op/op.h"

static int look(
    const pl_trace *trace, pl_run *run, const pl_unit *unit, const char *what, const char *name, pl_tensor t)
{
    int64_t bad;
    if (pl_tensor_none(t)) return 0;
    PL_TRY(pl_count_nonfinite(run, &bad, t));
    if (bad == 0) return 0;
    return PL_FAIL(run->err, PL_ENUMERIC,
        "step %lld: NaN or infinity first appears in unit %s, in the %s%s (%lld of %lld numbers); no weight was "
        "changed",
        (long long)trace->step, unit->name, what, name, (long long)bad, (long long)pl_tensor_numel(t));
}

int pl_trace_weights(const pl_trace *trace, pl_run *run, const pl_unit *unit)
{
    for (int i = 0; i < unit->nparams && trace->active; i++) {
        PL_TRY(look(trace, run, unit, "weight ", unit->params[i]->name, unit->params[i]->value));
    }
    return 0;
}

int pl_trace_output(const pl_trace *trace, pl_run *run, const pl_unit *unit, pl_tensor y)
{
    return trace->active ? look(trace, run, unit, "output", "", y) : 0;
}

int pl_trace_loss(const pl_trace *trace, pl_run *run, const pl_unit *unit, double loss_sum)
{
    if (!trace->active || isfinite(loss_sum)) return 0;
    return PL_FAIL(run->err, PL_ENUMERIC,
        "step %lld: NaN or infinity first appears in unit %s, in the loss (%g); no weight was changed",
        (long long)trace->step, unit->name, loss_sum);
}

int pl_trace_gradients(const pl_trace *trace, pl_run *run, const pl_unit *unit, pl_tensor d)
{
    if (!trace->active) return 0;
    for (int i = 0; i < unit->nparams; i++) {
        PL_TRY(look(trace, run, unit, "gradient of ", unit->params[i]->name, unit->params[i]->grad));
    }
    return look(trace, run, unit, "gradient of its input", "", d);
}
