#include "model/param.h"

#include "op/op.h"

int pl_param_open_grad(pl_run *run, pl_param *p)
{
    if (!p->grad_stale) return 0;
    p->grad_stale = false;
    return pl_fill(run, p->grad, 0);
}
