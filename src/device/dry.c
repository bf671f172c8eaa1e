/* Does nothing and holds nothing: so that the real program, run on it, tells what it would need. */
#include "device/device.h"

#include <stdlib.h>
#include <string.h>

typedef struct dry {
    pl_device base;
    pl_device *twin;
} dry;

static int dry_alloc(pl_device *device, pl_error *err, int64_t bytes, void **out)
{
    (void)device;
    (void)err;
    (void)bytes;
    *out = NULL;
    return 0;
}

static void dry_release(pl_device *device, void *data, int64_t bytes)
{
    (void)device;
    (void)data;
    (void)bytes;
}

static void dry_copy_in(pl_device *device, void *device_data, const void *host, int64_t bytes)
{
    (void)device;
    (void)device_data;
    (void)host;
    (void)bytes;
}

/* What comes out of no memory is zeros: whoever reads a result goes on with it. */
static void dry_copy_out(pl_device *device, void *host, const void *device_data, int64_t bytes)
{
    (void)device;
    (void)device_data;
    if (bytes > 0) memset(host, 0, (size_t)bytes);
}

/* As the twin would: a mapping that is used in place costs no memory there. */
static void *dry_wrap(pl_device *device, const void *host, int64_t bytes)
{
    return ((dry *)device)->twin->ops->wrap(((dry *)device)->twin, host, bytes);
}

static void dry_unwrap(pl_device *device, void *data, int64_t bytes)
{
    ((dry *)device)->twin->ops->unwrap(((dry *)device)->twin, data, bytes);
}

static void dry_destroy(pl_device *device)
{
    free(device);
}

static int dry_fill(pl_device *device, pl_error *err, pl_tensor y, float value)
{
    (void)device;
    (void)err;
    (void)y;
    (void)value;
    return 0;
}

static int dry_copy(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)y;
    (void)x;
    return 0;
}

static int dry_add(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b, float b_scale)
{
    (void)device;
    (void)err;
    (void)y;
    (void)a;
    (void)b;
    (void)b_scale;
    return 0;
}

static int dry_column_sums(pl_device *device, pl_error *err, pl_tensor out, pl_tensor x, pl_tensor y, void *scratch)
{
    (void)device;
    (void)err;
    (void)out;
    (void)x;
    (void)y;
    (void)scratch;
    return 0;
}

static int64_t dry_column_sums_scratch(pl_device *device, pl_tensor x)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->column_sums_scratch(twin, x);
}

static int dry_scale_columns(
    pl_device *device, pl_error *err, pl_tensor y, pl_tensor x, pl_tensor factor, pl_tensor addend)
{
    (void)device;
    (void)err;
    (void)y;
    (void)x;
    (void)factor;
    (void)addend;
    return 0;
}

static int dry_row_dots(pl_device *device, pl_error *err, pl_tensor out, pl_tensor a, pl_tensor b, bool transposed)
{
    (void)device;
    (void)err;
    (void)out;
    (void)a;
    (void)b;
    (void)transposed;
    return 0;
}

static int dry_divide(pl_device *device, pl_error *err, pl_tensor y, pl_tensor a, pl_tensor b)
{
    (void)device;
    (void)err;
    (void)y;
    (void)a;
    (void)b;
    return 0;
}

static int dry_root(pl_device *device, pl_error *err, pl_tensor y, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)y;
    (void)x;
    return 0;
}

static int dry_soften(pl_device *device, pl_error *err, pl_tensor y, float scale, float softcap)
{
    (void)device;
    (void)err;
    (void)y;
    (void)scale;
    (void)softcap;
    return 0;
}

static int dry_sum_squares(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)out;
    (void)x;
    *out = 0;
    return 0;
}

static int dry_sum(pl_device *device, pl_error *err, double *out, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)out;
    (void)x;
    *out = 0;
    return 0;
}

static int dry_count_nonfinite(pl_device *device, pl_error *err, int64_t *out, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)out;
    (void)x;
    *out = 0;
    return 0;
}

static int dry_gemm(pl_device *device, pl_error *err, const pl_gemm_args *args, void *scratch)
{
    (void)device;
    (void)err;
    (void)args;
    (void)scratch;
    return 0;
}

static int64_t dry_gemm_scratch(pl_device *device, pl_error *err, const pl_gemm_args *args)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->gemm_scratch(twin, err, args);
}

static int64_t dry_gemm_alike_rows(pl_device *device, pl_dtype dtype)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->gemm_alike_rows(twin, dtype);
}

static int dry_norm(pl_device *device, pl_error *err, const pl_norm_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_norm_backward(pl_device *device, pl_error *err, const pl_norm_backward_args *args, void *scratch)
{
    (void)device;
    (void)err;
    (void)args;
    (void)scratch;
    return 0;
}

static int64_t dry_norm_backward_scratch(pl_device *device, const pl_norm_backward_args *args)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->norm_backward_scratch(twin, args);
}

static int dry_rope(pl_device *device, pl_error *err, const pl_rope_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_attention(pl_device *device, pl_error *err, const pl_attention_args *args, void *scratch)
{
    (void)device;
    (void)err;
    (void)args;
    (void)scratch;
    return 0;
}

static int64_t dry_attention_scratch(pl_device *device, const pl_attention_args *args)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->attention_scratch(twin, args);
}

static int dry_attention_backward(
    pl_device *device, pl_error *err, const pl_attention_backward_args *args, void *scratch)
{
    (void)device;
    (void)err;
    (void)args;
    (void)scratch;
    return 0;
}

static int64_t dry_attention_backward_scratch(pl_device *device, const pl_attention_backward_args *args)
{
    pl_device *twin = ((dry *)device)->twin;
    return twin->ops->attention_backward_scratch(twin, args);
}

static int dry_act(pl_device *device, pl_error *err, const pl_act_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_act_backward(pl_device *device, pl_error *err, const pl_act_backward_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_embed(pl_device *device, pl_error *err, const pl_embed_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_embed_backward(pl_device *device, pl_error *err, const pl_embed_backward_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_loss(pl_device *device, pl_error *err, const pl_loss_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_dropout(pl_device *device, pl_error *err, const pl_dropout_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_split(pl_device *device, pl_error *err, pl_tensor half, pl_tensor rest, pl_tensor x)
{
    (void)device;
    (void)err;
    (void)half;
    (void)rest;
    (void)x;
    return 0;
}

static int dry_adamw(pl_device *device, pl_error *err, const pl_adamw_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static int dry_sgd(pl_device *device, pl_error *err, const pl_sgd_args *args)
{
    (void)device;
    (void)err;
    (void)args;
    return 0;
}

static const pl_device_ops dry_ops = {
    .name = "dry",
    .alloc = dry_alloc,
    .release = dry_release,
    .copy_in = dry_copy_in,
    .copy_out = dry_copy_out,
    .wrap = dry_wrap,
    .unwrap = dry_unwrap,
    .destroy = dry_destroy,
    .fill = dry_fill,
    .copy = dry_copy,
    .add = dry_add,
    .column_sums = dry_column_sums,
    .column_sums_scratch = dry_column_sums_scratch,
    .scale_columns = dry_scale_columns,
    .row_dots = dry_row_dots,
    .sum_squares = dry_sum_squares,
    .sum = dry_sum,
    .divide = dry_divide,
    .root = dry_root,
    .soften = dry_soften,
    .count_nonfinite = dry_count_nonfinite,
    .gemm = dry_gemm,
    .gemm_scratch = dry_gemm_scratch,
    .gemm_alike_rows = dry_gemm_alike_rows,
    .norm = dry_norm,
    .norm_backward = dry_norm_backward,
    .norm_backward_scratch = dry_norm_backward_scratch,
    .rope = dry_rope,
    .attention = dry_attention,
    .attention_scratch = dry_attention_scratch,
    .attention_backward = dry_attention_backward,
    .attention_backward_scratch = dry_attention_backward_scratch,
    .act = dry_act,
    .act_backward = dry_act_backward,
    .embed = dry_embed,
    .embed_backward = dry_embed_backward,
    .loss = dry_loss,
    .dropout = dry_dropout,
    .split = dry_split,
    .adamw = dry_adamw,
    .sgd = dry_sgd,
};

int pl_device_dry(pl_error *err, pl_device *twin, pl_device **out)
{
    *out = NULL;
    dry *made = calloc(1, sizeof *made);
    if (!made) return PL_FAIL_NOMEM(err);
    made->base = (pl_device){.ops = &dry_ops, .threads = twin->threads, .host_memory = true};
    made->twin = twin;
    *out = &made->base;
    return 0;
}
