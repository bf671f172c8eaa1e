/* The floor of a training step: the time that oneDNN alone needs for the step's matrix products on this machine, now.

       bench_floor CONFIG METHOD PRECISION SEQUENCES LENGTH RANK TARGETS RECOMPUTE [PASSES]

   CONFIG is a config.json; METHOD full, lora or dora; PRECISION f32 or bf16; TARGETS all or qv. Every product of a step
   is made once a pass, each with its own weights and activations, as a real step has them: forward, gradient of the
   input, gradient of the weight, the head, the adapters' thin products, and attention's products over the causal half
   (measured over the whole rectangle and halved). Nothing else is computed. It ends after PASSES passes, or sooner when
   ENOUGH seconds have gone by. One JSON object goes to stdout: the best and the median pass in seconds, its GFLOP, and
   the best pass's seconds by kind. */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "device/onednn.h"
#include "model/arch.h"

enum kind { FORWARD, INPUT, WEIGHT, HEAD, ATTENTION, THIN, KINDS };
static const char *const kind_names[KINDS] = {"forward", "input", "weight", "head", "attention", "thin"};

/* Memory that is handed out in turn and begins again at its end, so that no product finds its operands in the caches.
 */
typedef struct ring {
    char *data;
    size_t size, used;
} ring;

typedef struct floor_bench {
    pl_error err;
    pl_onednn *onednn;
    pl_dtype dtype;
    bool full, dora, all;
    int64_t rank;
    ring weights, activations;
    void *scratch;
    int64_t scratch_bytes;
    double seconds[KINDS], flops;
} floor_bench;

static void stop(const char *message)
{
    fprintf(stderr, "bench_floor: %s\n", message);
    exit(1);
}

static void *room(size_t bytes)
{
    void *data = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!data) stop("out of memory");
    memset(data, 0, bytes); /* zeros are as slow as any number, and never denormal */
    return data;
}

static pl_tensor take(ring *r, pl_dtype dtype, int64_t rows, int64_t columns)
{
    size_t bytes = ((size_t)(rows * columns * pl_dtype_size(dtype)) + 4095) / 4096 * 4096;
    if (bytes > r->size) stop("a tensor is larger than the ring");
    if (r->used + bytes > r->size) r->used = 0;
    pl_tensor t = pl_tensor_2d(r->data + r->used, dtype, rows, columns);
    r->used += bytes;
    return t;
}

static void product(floor_bench *f, enum kind kind, pl_gemm_args args, double share)
{
    bool refused = false;
    args.alpha = 1;
    int64_t bytes = pl_onednn_gemm_scratch(f->onednn, &f->err, &args, &refused);
    if (bytes < 0) stop(f->err.message);
    if (refused) stop("oneDNN has no such product on this machine");
    if (bytes > f->scratch_bytes) {
        free(f->scratch);
        f->scratch = room((size_t)bytes);
        f->scratch_bytes = bytes;
    }
    double start = pl_clock();
    if (pl_onednn_gemm(f->onednn, &f->err, &args, f->scratch) < 0) stop(f->err.message);
    f->seconds[kind] += share * (pl_clock() - start);
    int64_t inner = args.transpose_a ? args.a.shape[0] : args.a.shape[1];
    f->flops += share * 2.0 * (double)args.c.shape[0] * (double)args.c.shape[1] * (double)inner;
}

static pl_tensor activation(floor_bench *f, int64_t rows, int64_t columns)
{
    return take(&f->activations, f->dtype, rows, columns);
}

static void linear_forward(floor_bench *f, enum kind kind, int64_t m, int64_t n, int64_t k, bool adapted)
{
    pl_tensor x = activation(f, m, k), y = activation(f, m, n), w = take(&f->weights, f->dtype, n, k);
    product(f, kind, (pl_gemm_args){.c = y, .a = x, .b = w, .transpose_b = true}, 1);
    if (!adapted) return;
    pl_tensor a = take(&f->weights, f->dtype, f->rank, k), b = take(&f->weights, f->dtype, n, f->rank);
    pl_tensor h = activation(f, m, f->rank);
    product(f, THIN, (pl_gemm_args){.c = h, .a = x, .b = a, .transpose_b = true}, 1);
    product(f, THIN, (pl_gemm_args){.c = y, .a = h, .b = b, .transpose_b = true, .accumulate = true}, 1);
    if (f->dora) { /* (W A^T), for the norms of the rows */
        pl_tensor cross = take(&f->activations, PL_F32, n, f->rank);
        product(f, THIN, (pl_gemm_args){.c = cross, .a = w, .b = a, .transpose_b = true}, 1);
    }
}

static void linear_backward(floor_bench *f, enum kind kind, int64_t m, int64_t n, int64_t k, bool adapted)
{
    pl_tensor x = activation(f, m, k), dx = activation(f, m, k), dy = activation(f, m, n);
    pl_tensor w = take(&f->weights, f->dtype, n, k);
    product(f, kind, (pl_gemm_args){.c = dx, .a = dy, .b = w}, 1);
    if (f->full) {
        pl_tensor dw = take(&f->activations, PL_F32, n, k);
        product(f, kind == HEAD ? HEAD : WEIGHT, (pl_gemm_args){.c = dw, .a = dy, .b = x, .transpose_a = true}, 1);
    }
    if (!adapted) return;
    int64_t r = f->rank;
    pl_tensor a = take(&f->weights, f->dtype, r, k), b = take(&f->weights, f->dtype, n, r);
    pl_tensor h = activation(f, m, r), dh = activation(f, m, r);
    pl_tensor da = take(&f->activations, PL_F32, r, k), db = take(&f->activations, PL_F32, n, r);
    product(f, THIN, (pl_gemm_args){.c = dh, .a = dy, .b = b}, 1);
    product(f, THIN, (pl_gemm_args){.c = dx, .a = dh, .b = a, .accumulate = true}, 1);
    product(f, THIN, (pl_gemm_args){.c = db, .a = dy, .b = h, .transpose_a = true}, 1);
    product(f, THIN, (pl_gemm_args){.c = da, .a = dh, .b = x, .transpose_a = true}, 1);
}

/* Products of one sequence's head; the causal half of them. */
static void attention(floor_bench *f, const pl_arch *a, int64_t sequences, int64_t length, bool backward)
{
    for (int64_t i = 0; i < sequences * a->heads; i++) {
        pl_tensor q = activation(f, length, a->head_dim), k = activation(f, length, a->head_dim);
        pl_tensor o = activation(f, length, a->head_dim), s = activation(f, length, length);
        product(f, ATTENTION, (pl_gemm_args){.c = s, .a = q, .b = k, .transpose_b = true}, 0.5);
        if (!backward) {
            product(f, ATTENTION, (pl_gemm_args){.c = o, .a = s, .b = k}, 0.5);
            continue;
        }
        product(f, ATTENTION, (pl_gemm_args){.c = s, .a = o, .b = k, .transpose_b = true}, 0.5);
        product(f, ATTENTION, (pl_gemm_args){.c = o, .a = s, .b = q, .transpose_a = true}, 0.5);
        product(f, ATTENTION, (pl_gemm_args){.c = o, .a = s, .b = k}, 0.5);
        product(f, ATTENTION, (pl_gemm_args){.c = o, .a = s, .b = q, .transpose_a = true}, 0.5);
    }
}

typedef void (*linear)(floor_bench *f, enum kind kind, int64_t m, int64_t n, int64_t k, bool adapted);

static void layer(floor_bench *f, const pl_arch *a, int64_t sequences, int64_t length, bool backward)
{
    int64_t m = sequences * length, q = a->heads * a->head_dim, kv = a->kv_heads * a->head_dim;
    linear call = backward ? linear_backward : linear_forward;
    enum kind kind = backward ? INPUT : FORWARD;
    bool some = f->rank > 0, all = some && f->all;
    if (a->qkv == PL_QKV_SPLIT) {
        call(f, kind, m, q, a->hidden, some);
        call(f, kind, m, kv, a->hidden, all);
        call(f, kind, m, kv, a->hidden, some);
    } else {
        call(f, kind, m, q + 2 * kv, a->hidden, some);
    }
    attention(f, a, sequences, length, backward);
    call(f, kind, m, a->hidden, q, all);
    if (a->mlp == PL_MLP_GATED) call(f, kind, m, a->intermediate, a->hidden, all);
    call(f, kind, m, (a->mlp == PL_MLP_GATED_FUSED ? 2 : 1) * a->intermediate, a->hidden, all);
    call(f, kind, m, a->hidden, a->intermediate, all);
}

/* In parts, as any program that does not hold tokens x vocabulary has it; long ones, to be fast. */
static void head(floor_bench *f, const pl_arch *a, int64_t m)
{
    for (int64_t from = 0; from < m; from += 512) {
        int64_t rows = m - from < 512 ? m - from : 512;
        linear_forward(f, HEAD, rows, a->vocab, a->hidden, false);
        linear_backward(f, HEAD, rows, a->vocab, a->hidden, false);
    }
}

static void pass(floor_bench *f, const pl_arch *a, int64_t sequences, int64_t length, bool recompute)
{
    memset(f->seconds, 0, sizeof f->seconds);
    f->flops = 0;
    for (int64_t l = 0; l < a->layers; l++) layer(f, a, sequences, length, false);
    head(f, a, sequences * length);
    for (int64_t l = 0; l < a->layers; l++) {
        if (recompute) layer(f, a, sequences, length, false);
        layer(f, a, sequences, length, true);
    }
}

static double total(const double *seconds)
{
    double sum = 0;
    for (int i = 0; i < KINDS; i++) sum += seconds[i];
    return sum;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

#define MAX_PASSES 100
#define ENOUGH 20

int main(int argc, char **argv)
{
    if (argc < 9) stop("usage: CONFIG METHOD PRECISION SEQUENCES LENGTH RANK TARGETS RECOMPUTE [PASSES]");
    static floor_bench f;
    pl_arch arch = {0};
    json_t *json = NULL;
    if (pl_json_read(&f.err, argv[1], &json) < 0 || pl_arch_parse(&f.err, NULL, argv[1], json, NULL, &arch) < 0)
        stop(f.err.message);
    f.full = strcmp(argv[2], "full") == 0;
    f.dora = strcmp(argv[2], "dora") == 0;
    f.dtype = strcmp(argv[3], "bf16") == 0 ? PL_BF16 : PL_F32;
    int64_t sequences = atoll(argv[4]), length = atoll(argv[5]);
    f.rank = f.full ? 0 : atoll(argv[6]);
    f.all = strcmp(argv[7], "all") == 0;
    bool recompute = strcmp(argv[8], "true") == 0;
    int passes = argc > 9 ? atoi(argv[9]) : 5;
    if (passes < 1 || passes > MAX_PASSES) stop("PASSES is from 1 to 100");
    if (pl_onednn_open(&f.err, omp_get_max_threads(), &f.onednn) < 0) stop(f.err.message);
    f.weights = (ring){.size = (size_t)1 << 30};
    f.activations = (ring){.size = (size_t)1 << 30};
    f.weights.data = room(f.weights.size);
    f.activations.data = room(f.activations.size);

    double times[MAX_PASSES], best[KINDS];
    pass(&f, &arch, sequences, length, recompute); /* makes the primitives */
    int done = 0;
    for (double begin = pl_clock(); done < passes && (done == 0 || pl_clock() - begin < ENOUGH); done++) {
        pass(&f, &arch, sequences, length, recompute);
        times[done] = total(f.seconds);
        if (done == 0 || times[done] < total(best)) memcpy(best, f.seconds, sizeof best);
    }
    qsort(times, (size_t)done, sizeof *times, by_size);
    printf("{\"floor_s\": %.4f, \"floor_med_s\": %.4f, \"gflop\": %.1f", times[0], times[done / 2], f.flops / 1e9);
    for (int i = 0; i < KINDS; i++) printf(", \"%s_s\": %.4f", kind_names[i], best[i]);
    printf("}\n");
    pl_onednn_close(f.onednn);
    pl_arch_free(&arch);
    json_decref(json);
    free(f.scratch);
    free(f.weights.data);
    free(f.activations.data);
    return 0;
}
