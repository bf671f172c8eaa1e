/* How fast the CPU's operators are, at the sizes of a model with 135M parameters, against the machine's own limits: CSV
   to stdout.  bench_ops [threads [operator]]

   `share` is GB/s over what a plain triad (a = b + s * c on arrays far beyond the caches) streams, or GFLOP/s over a
   large matrix product's. Tensors that stay in the caches between calls, as they do in a model, may exceed 1. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "op/op.h"

enum { T = 2048, H = 576, HEADS = 9, KV_HEADS = 3, HEAD_DIM = 64, I = 1536, V = 49152, CHUNK = 256, N = 16 << 20 };

#define MAX_OPERANDS 8

typedef struct operand {
    pl_dtype dtype; /* F16 stands for the dtype that is being measured */
    int64_t rows, columns;
    int limit; /* i32: below this */
} operand;

#define X PL_F16

typedef struct bench {
    const char *name, *shape;
    operand operands[MAX_OPERANDS];
    int (*call)(pl_run *run, const pl_tensor *t);
    bool once; /* has no dtype of its own: measured as f32 alone */
} bench;

static int call_fill(pl_run *run, const pl_tensor *t)
{
    return pl_fill(run, t[0], 1);
}

static int call_copy(pl_run *run, const pl_tensor *t)
{
    return pl_copy(run, t[0], t[1]);
}

static int call_add(pl_run *run, const pl_tensor *t)
{
    return pl_add(run, t[0], t[1], t[2], 0.5f);
}

static int call_column_sums(pl_run *run, const pl_tensor *t)
{
    return pl_column_sums(run, t[0], t[1], (pl_tensor){0});
}

static int call_column_products(pl_run *run, const pl_tensor *t)
{
    return pl_column_sums(run, t[0], t[1], t[2]);
}

static int call_scale_columns(pl_run *run, const pl_tensor *t)
{
    return pl_scale_columns(run, t[0], t[1], t[2], (pl_tensor){0});
}

static int call_row_dots(pl_run *run, const pl_tensor *t)
{
    return pl_row_dots(run, t[0], t[1], t[1], false);
}

static int call_column_dots(pl_run *run, const pl_tensor *t)
{
    return pl_row_dots(run, t[0], t[1], t[1], true);
}

static int call_sum_squares(pl_run *run, const pl_tensor *t)
{
    double sum;
    return pl_sum_squares(run, &sum, t[0]);
}

static int call_count_nonfinite(pl_run *run, const pl_tensor *t)
{
    int64_t count;
    return pl_count_nonfinite(run, &count, t[0]);
}

static int call_rms(pl_run *run, const pl_tensor *t)
{
    return pl_norm(run, (pl_norm_args){.y = t[0], .x = t[1], .inv = t[2], .weight = t[3], .eps = 1e-5f});
}

static int call_rms_residual(pl_run *run, const pl_tensor *t)
{
    return pl_norm(run, (pl_norm_args){.y = t[0],
                            .x = t[1],
                            .inv = t[2],
                            .weight = t[3],
                            .residual = t[4],
                            .residual_scale = 1e-3f,
                            .eps = 1e-5f});
}

static int call_layer(pl_run *run, const pl_tensor *t)
{
    return pl_norm(run,
        (pl_norm_args){.y = t[0], .x = t[1], .inv = t[2], .weight = t[3], .bias = t[3], .mean = t[4], .eps = 1e-5f});
}

static int call_rms_backward(pl_run *run, const pl_tensor *t)
{
    return pl_norm_backward(
        run, (pl_norm_backward_args){.dx = t[0], .dweight = t[1], .dy = t[2], .x = t[3], .inv = t[4], .weight = t[5]});
}

static int call_rms_backward_frozen(pl_run *run, const pl_tensor *t)
{
    return pl_norm_backward(run,
        (pl_norm_backward_args){.dx = t[0], .dy = t[2], .x = t[3], .inv = t[4], .weight = t[5], .accumulate = true});
}

static int call_rope(pl_run *run, const pl_tensor *t)
{
    return pl_rope(
        run, (pl_rope_args){.x = {t[0], HEADS, HEAD_DIM, HEAD_DIM}, .cos = t[1], .sin = t[2], .positions = t[3]});
}

static int call_silu(pl_run *run, const pl_tensor *t)
{
    return pl_activation(run, (pl_act_args){.y = t[0], .x = t[1], .up = t[2], .act = PL_ACT_SILU});
}

static int call_silu_backward(pl_run *run, const pl_tensor *t)
{
    return pl_activation_backward(
        run, (pl_act_backward_args){
                 .dx = t[0], .dup = t[1], .dy = t[2], .x = t[3], .up = t[4], .y = t[5], .act = PL_ACT_SILU});
}

static int call_gelu(pl_run *run, const pl_tensor *t)
{
    return pl_activation(run, (pl_act_args){.y = t[0], .x = t[1], .act = PL_ACT_GELU});
}

static int call_gelu_tanh(pl_run *run, const pl_tensor *t)
{
    return pl_activation(run, (pl_act_args){.y = t[0], .x = t[1], .act = PL_ACT_GELU_TANH});
}

static int call_embed(pl_run *run, const pl_tensor *t)
{
    return pl_embed(run, (pl_embed_args){.y = t[0], .table = t[1], .ids = t[2], .scale = 1});
}

static int call_embed_backward(pl_run *run, const pl_tensor *t)
{
    return pl_embed_backward(run, (pl_embed_backward_args){.dtable = t[0], .dy = t[1], .ids = t[2], .scale = 1});
}

static int call_dropout(pl_run *run, const pl_tensor *t)
{
    return pl_dropout(run, (pl_dropout_args){.y = t[0], .x = t[1], .rng = {.seed = 1}, .p = 0.1f});
}

static int call_adamw(pl_run *run, const pl_tensor *t)
{
    return pl_adamw(run, (pl_adamw_args){.w = t[0],
                             .g = t[1],
                             .m = t[2],
                             .v = t[3],
                             .rest = t[4],
                             .lr = 1e-3,
                             .beta1 = 0.9,
                             .beta2 = 0.95,
                             .eps = 1e-8,
                             .weight_decay = 0.1,
                             .grad_scale = 1,
                             .step = 3});
}

static int call_sgd(pl_run *run, const pl_tensor *t)
{
    return pl_sgd(run,
        (pl_sgd_args){
            .w = t[0], .g = t[1], .m = t[2], .rest = t[3], .lr = 1e-3, .momentum = 0.9, .grad_scale = 1, .step = 3});
}

static int call_gemm(pl_run *run, const pl_tensor *t)
{
    return pl_gemm(run, (pl_gemm_args){.c = t[0], .a = t[1], .b = t[2], .transpose_b = true, .alpha = 1});
}

static int call_gemm_weight(pl_run *run, const pl_tensor *t)
{
    return pl_gemm(
        run, (pl_gemm_args){.c = t[0], .a = t[1], .b = t[2], .transpose_a = true, .accumulate = true, .alpha = 1});
}

static pl_heads heads(pl_tensor t, int n)
{
    return (pl_heads){t, n, HEAD_DIM, HEAD_DIM};
}

static const pl_sequence whole = {0, T, 0, T};

static int call_attention(pl_run *run, const pl_tensor *t)
{
    return pl_attention(run, (pl_attention_args){.out = heads(t[0], HEADS),
                                 .q = heads(t[1], HEADS),
                                 .k = heads(t[2], KV_HEADS),
                                 .v = heads(t[3], KV_HEADS),
                                 .lse = t[4],
                                 .sequences = &whole,
                                 .nsequences = 1,
                                 .scale = 0.125f});
}

static int call_attention_backward(pl_run *run, const pl_tensor *t)
{
    return pl_attention_backward(run, (pl_attention_backward_args){.dq = heads(t[0], HEADS),
                                          .dk = heads(t[1], KV_HEADS),
                                          .dv = heads(t[2], KV_HEADS),
                                          .dout = heads(t[3], HEADS),
                                          .out = heads(t[3], HEADS),
                                          .q = heads(t[4], HEADS),
                                          .k = heads(t[5], KV_HEADS),
                                          .v = heads(t[6], KV_HEADS),
                                          .lse = t[7],
                                          .sequences = &whole,
                                          .nsequences = 1,
                                          .scale = 0.125f});
}

static int call_loss(pl_run *run, const pl_tensor *t)
{
    return pl_loss(
        run, (pl_loss_args){
                 .logits = t[0], .dlogits = t[1], .targets = t[2], .loss = t[3], .logit_scale = 1, .grad_scale = 1});
}

static const bench benches[] = {
    {"fill", "T x H", {{X, T, H, 0}}, call_fill, false},
    {"copy to f32", "T x H", {{PL_F32, T, H, 0}, {X, T, H, 0}}, call_copy, false},
    {"copy to bf16", "T x H", {{PL_BF16, T, H, 0}, {X, T, H, 0}}, call_copy, false},
    {"copy to bf16", "16M", {{PL_BF16, N, 0, 0}, {PL_F32, N, 0, 0}}, call_copy, true},
    {"add", "T x H", {{X, T, H, 0}, {X, T, H, 0}, {X, T, H, 0}}, call_add, false},
    {"add f32 + x", "T x H", {{PL_F32, T, H, 0}, {PL_F32, T, H, 0}, {X, T, H, 0}}, call_add, false},
    {"add", "16M", {{PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}}, call_add, true},
    {"column_sums", "T x I", {{PL_F32, I, 0, 0}, {X, T, I, 0}}, call_column_sums, false},
    {"column_sums x y", "T x I", {{PL_F32, I, 0, 0}, {X, T, I, 0}, {X, T, I, 0}}, call_column_products, false},
    {"scale_columns", "T x I", {{X, T, I, 0}, {X, T, I, 0}, {PL_F32, I, 0, 0}}, call_scale_columns, false},
    {"row_dots", "I x H", {{PL_F32, I, 0, 0}, {X, I, H, 0}}, call_row_dots, false},
    {"row_dots transposed", "I x H", {{PL_F32, H, 0, 0}, {X, I, H, 0}}, call_column_dots, false},
    {"sum_squares", "16M", {{X, N, 0, 0}}, call_sum_squares, false},
    {"count_nonfinite", "16M", {{X, N, 0, 0}}, call_count_nonfinite, false},
    {"rms norm", "T x H", {{X, T, H, 0}, {X, T, H, 0}, {PL_F32, T, 0, 0}, {X, H, 0, 0}}, call_rms, false},
    {"rms norm of heads", "T x 9 x 64", {{X, T, H, 0}, {X, T, H, 0}, {PL_F32, T *HEADS, 0, 0}, {X, HEAD_DIM, 0, 0}},
        call_rms, false},
    {"rms norm + residual", "T x H", {{X, T, H, 0}, {X, T, H, 0}, {PL_F32, T, 0, 0}, {X, H, 0, 0}, {X, T, H, 0}},
        call_rms_residual, false},
    {"layer norm", "T x H", {{X, T, H, 0}, {X, T, H, 0}, {PL_F32, T, 0, 0}, {X, H, 0, 0}, {PL_F32, T, 0, 0}},
        call_layer, false},
    {"rms norm_backward", "T x H",
        {{X, T, H, 0}, {PL_F32, H, 0, 0}, {X, T, H, 0}, {X, T, H, 0}, {PL_F32, T, 0, 0}, {X, H, 0, 0}},
        call_rms_backward, false},
    {"rms norm_backward frozen", "T x H",
        {{X, T, H, 0}, {PL_F32, H, 0, 0}, {X, T, H, 0}, {X, T, H, 0}, {PL_F32, T, 0, 0}, {X, H, 0, 0}},
        call_rms_backward_frozen, false},
    {"rope", "T x 9 x 64",
        {{X, T, H, 0}, {PL_F32, T, HEAD_DIM / 2, 0}, {PL_F32, T, HEAD_DIM / 2, 0}, {PL_I32, T, 0, T}}, call_rope,
        false},
    {"silu * up", "T x I", {{X, T, I, 0}, {X, T, I, 0}, {X, T, I, 0}}, call_silu, false},
    {"silu * up backward", "T x I",
        {{X, T, I, 0}, {X, T, I, 0}, {X, T, I, 0}, {X, T, I, 0}, {X, T, I, 0}, {X, T, I, 0}}, call_silu_backward,
        false},
    {"gelu", "T x I", {{X, T, I, 0}, {X, T, I, 0}}, call_gelu, false},
    {"gelu_tanh", "T x I", {{X, T, I, 0}, {X, T, I, 0}}, call_gelu_tanh, false},
    {"embed", "T x H", {{X, T, H, 0}, {X, V, H, 0}, {PL_I32, T, 0, V}}, call_embed, false},
    {"embed_backward", "T x H", {{PL_F32, V, H, 0}, {X, T, H, 0}, {PL_I32, T, 0, V}}, call_embed_backward, false},
    {"dropout", "T x H", {{X, T, H, 0}, {X, T, H, 0}}, call_dropout, false},
    {"adamw", "16M", {{PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}}, call_adamw, true},
    {"adamw bf16 + rest", "16M",
        {{PL_BF16, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_I16, N, 0, 0}}, call_adamw,
        true},
    {"sgd momentum", "16M", {{PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}, {PL_F32, N, 0, 0}}, call_sgd, true},
    {"gemm forward", "T x H x H", {{X, T, H, 0}, {X, T, H, 0}, {X, H, H, 0}}, call_gemm, false},
    {"gemm forward", "T x I x H", {{X, T, I, 0}, {X, T, H, 0}, {X, I, H, 0}}, call_gemm, false},
    {"gemm weight", "I x H x T", {{PL_F32, I, H, 0}, {X, T, I, 0}, {X, T, H, 0}}, call_gemm_weight, false},
    {"gemm lora A", "T x 16 x H", {{X, T, 16, 0}, {X, T, H, 0}, {X, 16, H, 0}}, call_gemm, false},
    {"gemm head", "256 x V x H", {{X, CHUNK, V, 0}, {X, CHUNK, H, 0}, {X, V, H, 0}}, call_gemm, false},
    {"attention", "T, 9 and 3 x 64",
        {{X, T, H, 0}, {X, T, H, 0}, {X, T, 192, 0}, {X, T, 192, 0}, {PL_F32, HEADS, T, 0}}, call_attention, false},
    {"attention_backward", "T, 9 and 3 x 64",
        {{X, T, H, 0}, {X, T, 192, 0}, {X, T, 192, 0}, {X, T, H, 0}, {X, T, H, 0}, {X, T, 192, 0}, {X, T, 192, 0},
            {PL_F32, HEADS, T, 0}},
        call_attention_backward, false},
    {"loss", "256 x V", {{X, CHUNK, V, 0}, {X, CHUNK, V, 0}, {PL_I32, CHUNK, 0, V}, {PL_F32, CHUNK, 0, 0}}, call_loss,
        false},
};

static void stop(const pl_error *err)
{
    fprintf(stderr, "bench_ops: %s\n", err->message);
    exit(1);
}

static void *need(pl_run *run, int64_t bytes)
{
    void *data;
    if (pl_mem_alloc(run->err, run->mem, PL_MEM_ACTIVATIONS, bytes, &data) < 0) stop(run->err);
    return data;
}

/* Seconds of the fastest call in about a fifth of a second, after one to warm up; the counters hold one call's cost. */
static double fastest(pl_run *run, const bench *b, const pl_tensor *t)
{
    run->counters = (pl_counters){0};
    if (b->call(run, t) < 0) stop(run->err);
    pl_counters one = run->counters;
    double best = 1e9, begin = pl_clock();
    for (int i = 0; i < 3 || pl_clock() - begin < 0.2; i++) {
        double start = pl_clock();
        if (b->call(run, t) < 0) stop(run->err);
        double took = pl_clock() - start;
        if (took < best) best = took;
    }
    run->counters = one;
    return best;
}

static pl_tensor make(pl_run *run, const operand *o, pl_dtype dtype)
{
    pl_dtype type = o->dtype == X ? dtype : o->dtype;
    int64_t n = o->rows * (o->columns ? o->columns : 1);
    char *host = calloc((size_t)n, (size_t)pl_dtype_size(type)), *data = need(run, n * pl_dtype_size(type));
    if (!host) exit(1);
    for (int64_t i = 0; i < n; i++) {
        uint32_t random = (uint32_t)i * 2654435761u;
        float value = (float)(random >> 8) * 0x1p-23f - 1;
        if (type == PL_F32) ((float *)host)[i] = value;
        if (type == PL_BF16) ((uint16_t *)host)[i] = pl_f32_to_bf16(value);
        if (type == PL_I32) ((int32_t *)host)[i] = (int32_t)((uint64_t)random * (uint64_t)o->limit >> 32);
    }
    run->device->ops->copy_in(run->device, data, host, n * pl_dtype_size(type));
    free(host);
    return o->columns ? pl_tensor_2d(data, type, o->rows, o->columns) : pl_tensor_1d(data, type, n);
}

static double measure(pl_run *run, const bench *b, pl_dtype dtype)
{
    pl_tensor t[MAX_OPERANDS] = {0};
    for (int i = 0; i < MAX_OPERANDS && b->operands[i].rows; i++) t[i] = make(run, &b->operands[i], dtype);
    double seconds = fastest(run, b, t);
    for (int i = 0; i < MAX_OPERANDS && b->operands[i].rows; i++) {
        pl_mem_free(run->mem, PL_MEM_ACTIVATIONS, t[i].data, pl_tensor_bytes(t[i]));
    }
    return seconds;
}

/* Bytes a second of a = b + s * c, counted as two reads and a write. */
static double triad(pl_run *run, int threads)
{
    int64_t bytes = (int64_t)N * 4;
    float *a = need(run, bytes), *b = need(run, bytes), *c = need(run, bytes);
    double best = 1e9;
    for (int k = 0; k < 10; k++) {
        double start = pl_clock();
#pragma omp parallel for num_threads(threads) schedule(static)
        for (int64_t i = 0; i < N; i++) a[i] = k ? b[i] + 0.5f * c[i] : (b[i] = c[i] = 1);
        double took = pl_clock() - start;
        if (k && took < best) best = took;
    }
    pl_mem_free(run->mem, PL_MEM_ACTIVATIONS, a, bytes);
    pl_mem_free(run->mem, PL_MEM_ACTIVATIONS, b, bytes);
    pl_mem_free(run->mem, PL_MEM_ACTIVATIONS, c, bytes);
    return 3 * (double)bytes / best;
}

/* FLOPs a second of a product that is large enough. */
static double product(pl_run *run, pl_dtype dtype)
{
    static const bench square = {"", "", {{X, T, T, 0}, {X, T, T, 0}, {X, T, T, 0}}, call_gemm, false};
    double seconds = measure(run, &square, dtype);
    return run->counters.gemm_flops / seconds;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? atoi(argv[1]) : omp_get_num_procs();
    static pl_error err;
    pl_device *device;
    pl_mem mem;
    pl_stack work;
    if (pl_device_cpu(&err, threads, &device) < 0) stop(&err);
    pl_mem_init(&mem, device);
    if (pl_stack_open(&err, &work, &mem, PL_MEM_WORK, (int64_t)1 << 30) < 0) stop(&err);
    pl_run run = {.err = &err, .device = device, .mem = &mem, .work = &work};
    double bandwidth = triad(&run, threads), peaks[2] = {product(&run, PL_F32), product(&run, PL_BF16)};
    printf("op,shape,dtype,threads,ms,GB/s,GFLOP/s,share,of\n");
    printf("triad,16M,f32,%d,,%.1f,,1.00,\n", threads, bandwidth / 1e9);
    for (int d = 0; d < 2; d++)
        printf("gemm,T x T x T,%s,%d,,,%.0f,1.00,\n", d ? "bf16" : "f32", threads, peaks[d] / 1e9);
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
        const bench *b = &benches[i];
        if (argc > 2 && !strstr(b->name, argv[2])) continue;
        for (int d = 0; d < (b->once ? 1 : 2); d++) {
            pl_dtype dtype = d ? PL_BF16 : PL_F32;
            double seconds = measure(&run, b, dtype);
            double flops = run.counters.gemm_flops + run.counters.attention_flops;
            double bytes = run.counters.bytes / seconds,
                   share = flops > 0 ? flops / seconds / peaks[d] : bytes / bandwidth;
            printf("%s,%s,%s,%d,%.3f,%.1f,%.0f,%.2f,%s\n", b->name, b->shape, pl_dtype_name(dtype), threads,
                seconds * 1e3, bytes / 1e9, flops / seconds / 1e9, share, flops > 0 ? "gemm" : "triad");
            fflush(stdout);
        }
    }
    pl_stack_close(&work);
    pl_device_close(device);
    return 0;
}
