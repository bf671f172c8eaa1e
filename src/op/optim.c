#include "op/check.h"

int pl_split_f32(pl_run *run, pl_tensor half, pl_tensor rest, pl_tensor x)
{
    PL_TRY(pl_check_vector(run, "split: x", x, PL_ONLY_F32, -1));
    PL_TRY(pl_check_vector(run, "split: half", half, PL_ONLY_BF16, x.shape[0]));
    PL_TRY(pl_check_vector(run, "split: rest", rest, PL_ONLY_I16, x.shape[0]));
    pl_count(run, 0, 2 * (double)pl_tensor_bytes(x));
    return run->device->ops->split(run->device, run->err, half, rest, x);
}

static int check_vectors(pl_run *run, pl_tensor w, pl_tensor rest, pl_tensor g)
{
    bool split = !pl_tensor_none(rest);
    PL_TRY(pl_check_vector(run, "optimizer: w", w, split ? PL_ONLY_BF16 : PL_ONLY_F32, -1));
    if (split) PL_TRY(pl_check_vector(run, "optimizer: rest", rest, PL_ONLY_I16, w.shape[0]));
    return pl_check_vector(run, "optimizer: g", g, PL_ONLY_F32, w.shape[0]);
}

int pl_adamw(pl_run *run, pl_adamw_args a)
{
    PL_TRY(check_vectors(run, a.w, a.rest, a.g));
    PL_TRY(pl_check_vector(run, "adamw: m", a.m, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_vector(run, "adamw: v", a.v, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_that(run, a.step >= 1, "an optimizer's steps are counted from 1"));
    pl_count(run, 15 * (double)a.w.shape[0], 7 * (double)pl_tensor_bytes(a.g));
    return run->device->ops->adamw(run->device, run->err, &a);
}

int pl_sgd(pl_run *run, pl_sgd_args a)
{
    PL_TRY(check_vectors(run, a.w, a.rest, a.g));
    bool moment = !pl_tensor_none(a.m);
    if (moment) PL_TRY(pl_check_vector(run, "sgd: m", a.m, PL_ONLY_F32, a.w.shape[0]));
    PL_TRY(pl_check_that(run, moment || (a.momentum == 0 && !a.nesterov), "sgd with momentum has an m"));
    PL_TRY(pl_check_that(run, a.step >= 1, "an optimizer's steps are counted from 1"));
    pl_count(run, 8 * (double)a.w.shape[0], (moment ? 5 : 3) * (double)pl_tensor_bytes(a.g));
    return run->device->ops->sgd(run->device, run->err, &a);
}
