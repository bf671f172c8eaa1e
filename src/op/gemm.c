#include "op/check.h"

static int check(pl_run *run, const pl_gemm_args *args)
{
    pl_tensor a = args->a, b = args->b, c = args->c;
    PL_TRY(pl_check_matrix(run, "gemm: a", a, PL_ANY, -1, -1));
    int64_t m = a.shape[args->transpose_a], k = a.shape[!args->transpose_a];
    PL_TRY(
        pl_check_matrix(run, "gemm: b", b, pl_only(a.dtype), args->transpose_b ? -1 : k, args->transpose_b ? k : -1));
    int64_t n = b.shape[!args->transpose_b];
    PL_TRY(pl_check_matrix(run, "gemm: c", c, PL_ONLY_F32 | pl_only(a.dtype), m, n));
    if (!pl_tensor_none(args->a2)) {
        PL_TRY(pl_check_matrix(run, "gemm: a2", args->a2, pl_only(a.dtype), m, -1));
        int64_t k2 = args->a2.shape[1];
        PL_TRY(pl_check_matrix(
            run, "gemm: b2", args->b2, pl_only(a.dtype), args->transpose_b2 ? n : k2, args->transpose_b2 ? k2 : n));
    }
    if (pl_tensor_none(args->bias)) return 0;
    PL_TRY(pl_check_vector(run, "gemm: bias", args->bias, PL_ANY, n));
    return pl_check_that(
        run, !args->accumulate && args->alpha == 1, "gemm: a bias comes without accumulation or factor");
}

int pl_gemm(pl_run *run, pl_gemm_args args)
{
    const pl_device_ops *ops = run->device->ops;
    int rc = 0;
    PL_TRY(check(run, &args));
    PL_TRY(pl_run_meanwhile(run));
    int64_t mark = pl_stack_mark(run->work);
    int64_t bytes = ops->gemm_scratch(run->device, run->err, &args);
    if (bytes < 0) return (int)bytes;
    void *scratch = NULL;
    PL_GO(end, pl_stack_push_bytes(run->err, run->work, bytes, &scratch));
    PL_GO(end, ops->gemm(run->device, run->err, &args, scratch));
    double k = (double)args.a.shape[!args.transpose_a];
    if (!pl_tensor_none(args.a2)) k += (double)args.a2.shape[1];
    run->counters.gemm_flops += 2 * (double)pl_tensor_numel(args.c) * k;
    run->counters.bytes += (double)(pl_tensor_bytes(args.a) + pl_tensor_bytes(args.b) + pl_tensor_bytes(args.bias) +
                                    pl_tensor_bytes(args.a2) + pl_tensor_bytes(args.b2) +
                                    pl_tensor_bytes(args.c) * (args.accumulate ? 2 : 1));
    run->counters.calls++;
end:
    pl_stack_pop(run->work, mark);
    return rc;
}
