#include "op/check.h"

static int check_vectors(pl_run *run, pl_tensor w, pl_tensor copy, pl_tensor g)
{
    PL_TRY(pl_check_vector(run, "optimizer: w", w, PL_ONLY_F32, -1));
    PL_TRY(pl_check_vector(run, "optimizer: g", g, PL_ONLY_F32, w.shape[0]));
    if (!pl_tensor_none(copy)) PL_TRY(pl_check_vector(run, "optimizer: copy", copy, PL_ONLY_BF16, w.shape[0]));
    return 0;
}

int pl_adamw(pl_run *run, pl_adamw_args a)
{
    PL_TRY(check_vectors(run, a.w, a.copy, a.g));
    PL_TRY(pl_check_vector(run, "adamw: m", a.m, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_vector(run, "adamw: v", a.v, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_that(run, a.step >= 1, "an optimizer's steps are counted from 1"));
    pl_count(run, 15 * (double)a.w.shape[0], 7 * (double)pl_tensor_bytes(a.w) + (double)pl_tensor_bytes(a.copy));
    return run->device->ops->adamw(run->device, run->err, &a);
}

int pl_sgd(pl_run *run, pl_sgd_args a)
{
    PL_TRY(check_vectors(run, a.w, a.copy, a.g));
    bool moment = !pl_tensor_none(a.m);
    if (moment) PL_TRY(pl_check_vector(run, "sgd: m", a.m, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_that(run, moment || (a.momentum == 0 && !a.nesterov), "sgd with momentum has an m"));
    PL_TRY(pl_check_that(run, a.step >= 1, "an optimizer's steps are counted from 1"));
    pl_count(run, 8 * (double)a.w.shape[0],
        (moment ? 5 : 3) * (double)pl_tensor_bytes(a.w) + (double)pl_tensor_bytes(a.copy));
    return run->device->ops->sgd(run->device, run->err, &a);
}
