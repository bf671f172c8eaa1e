#include "op/check.h"

static int check(pl_run *run, const pl_loss_args *args)
{
    pl_tensor x = args->logits, dx = args->dlogits;
    PL_TRY(pl_check_matrix(run, "loss: logits", x, PL_ANY, -1, -1));
    PL_TRY(pl_check_that(run, x.shape[1] > 0, "loss: there is a vocabulary"));
    PL_TRY(pl_check_vector(run, "loss: targets", args->targets, PL_ONLY_I32, x.shape[0]));
    if (!pl_tensor_none(args->loss)) PL_TRY(pl_check_vector(run, "loss: loss", args->loss, PL_ONLY_F32, x.shape[0]));
    if (pl_tensor_none(dx)) return 0;
    PL_TRY(pl_check_matrix(run, "loss: dlogits", dx, PL_ANY, x.shape[0], x.shape[1]));
    if (!dx.data || dx.data != x.data) return 0;
    int64_t size = pl_dtype_size(x.dtype), dx_size = pl_dtype_size(dx.dtype);
    return pl_check_that(run, x.stride * size == dx.stride * dx_size && dx_size <= size,
        "loss: dlogits in the memory of logits lie row for row, and are not wider");
}

int pl_loss(pl_run *run, pl_loss_args args)
{
    PL_TRY(check(run, &args));
    PL_TRY(run->device->ops->loss(run->device, run->err, &args));
    /* Two exponentials an element count as one FLOP each; and scaling, maximum, sum, difference, product. */
    pl_count(run, 7 * (double)pl_tensor_numel(args.logits),
        (double)(pl_tensor_bytes(args.logits) + pl_tensor_bytes(args.dlogits) + pl_tensor_bytes(args.targets) +
                 pl_tensor_bytes(args.loss)));
    return 0;
}
