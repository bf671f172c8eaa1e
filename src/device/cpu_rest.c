#include "device/cpu.h"

int PL_CPU(fill)(pl_device *device, pl_error *err, pl_tensor y, float value)
{
    (void)device;
    (void)y;
    (void)value;
    return PL_FAIL(err, PL_EBUG, "fill is not there yet");
}

int PL_CPU(copy)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    (void)device;
    (void)y;
    (void)x;
    return PL_FAIL(err, PL_EBUG, "copy is not there yet");
}

int PL_CPU(add)(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale)
{
    (void)device;
    (void)y;
    (void)a;
    (void)b;
    (void)b_scale;
    return PL_FAIL(err, PL_EBUG, "add is not there yet");
}

int PL_CPU(column_sums)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch)
{
    (void)device;
    (void)out;
    (void)x;
    (void)y;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "column_sums is not there yet");
}

int64_t PL_CPU(column_sums_scratch)(pl_device *device, pl_tensor x)
{
    (void)device;
    (void)x;
    return 0;
}

int PL_CPU(scale_columns)(
    pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend)
{
    (void)device;
    (void)y;
    (void)x;
    (void)factor;
    (void)addend;
    return PL_FAIL(err, PL_EBUG, "scale_columns is not there yet");
}

int PL_CPU(row_dots)(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed)
{
    (void)device;
    (void)out;
    (void)a;
    (void)b;
    (void)transposed;
    return PL_FAIL(err, PL_EBUG, "row_dots is not there yet");
}

int PL_CPU(sum_squares)(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)device;
    (void)out;
    (void)x;
    return PL_FAIL(err, PL_EBUG, "sum_squares is not there yet");
}

int PL_CPU(sum)(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)device;
    (void)out;
    (void)x;
    return PL_FAIL(err, PL_EBUG, "sum is not there yet");
}

int PL_CPU(count_nonfinite)(pl_device *device, pl_error *err, int64_t *out, pl_tensor x)
{
    (void)device;
    (void)out;
    (void)x;
    return PL_FAIL(err, PL_EBUG, "count_nonfinite is not there yet");
}

int PL_CPU(norm)(pl_device *device, pl_error *err, const pl_norm_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "norm is not there yet");
}

int PL_CPU(norm_backward)(pl_device *device, pl_error *err, const pl_norm_backward_args *args, void *scratch)
{
    (void)device;
    (void)args;
    (void)scratch;
    return PL_FAIL(err, PL_EBUG, "norm_backward is not there yet");
}

int64_t PL_CPU(norm_backward_scratch)(pl_device *device, const pl_norm_backward_args *args)
{
    (void)device;
    (void)args;
    return 0;
}

int PL_CPU(rope)(pl_device *device, pl_error *err, const pl_rope_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "rope is not there yet");
}

int PL_CPU(act)(pl_device *device, pl_error *err, const pl_act_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "act is not there yet");
}

int PL_CPU(act_backward)(pl_device *device, pl_error *err, const pl_act_backward_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "act_backward is not there yet");
}

int PL_CPU(embed)(pl_device *device, pl_error *err, const pl_embed_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "embed is not there yet");
}

int PL_CPU(embed_backward)(pl_device *device, pl_error *err, const pl_embed_backward_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "embed_backward is not there yet");
}

int PL_CPU(dropout)(pl_device *device, pl_error *err, const pl_dropout_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "dropout is not there yet");
}

int PL_CPU(adamw)(pl_device *device, pl_error *err, const pl_adamw_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "adamw is not there yet");
}

int PL_CPU(sgd)(pl_device *device, pl_error *err, const pl_sgd_args *args)
{
    (void)device;
    (void)args;
    return PL_FAIL(err, PL_EBUG, "sgd is not there yet");
}
