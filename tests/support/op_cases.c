#include "support/op_cases.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "device/cpu.h"

/* Scratch: the oracle's operators need hardly any, and its memory is filled when it is made. */
#define WORK_BYTES(threads) ((int64_t)((threads) ? 24 : 1) << 20)
#define GUARD 64 /* bytes before and after each operand */

void op_open(op_context *context, int threads)
{
    memset(context, 0, sizeof *context);
    pl_error *err = &context->err;
    int rc = threads ? pl_device_cpu(err, threads, &context->device) : pl_device_ref(err, &context->device);
    if (rc < 0) fail_msg("%s", err->message);
    pl_mem_init(&context->mem, context->device);
    if (pl_stack_open(err, &context->work, &context->mem, PL_MEM_WORK, WORK_BYTES(threads)) < 0)
        fail_msg("%s", err->message);
    context->run = (pl_run){.err = err, .device = context->device, .mem = &context->mem, .work = &context->work};
}

void op_close(op_context *context)
{
    for (int i = 0; i < context->nblocks; i++) {
        pl_mem_free(&context->mem, PL_MEM_ACTIVATIONS, context->blocks[i].data, context->blocks[i].bytes);
    }
    assert_int_equal(context->work.used, 0);
    pl_stack_close(&context->work);
    assert_int_equal(context->mem.total_now, 0);
    pl_device_close(context->device);
}

static void *need(void *memory)
{
    if (!memory) fail_msg("out of memory");
    return memory;
}

static void store(void *data, pl_dtype dtype, int64_t i, double value)
{
    switch (dtype) {
    case PL_F32: ((float *)data)[i] = (float)value; break;
    case PL_BF16: ((uint16_t *)data)[i] = pl_f32_to_bf16((float)value); break;
    case PL_F16: ((uint16_t *)data)[i] = pl_f32_to_f16((float)value); break;
    case PL_I32: ((int32_t *)data)[i] = (int32_t)value; break;
    case PL_I16: ((int16_t *)data)[i] = (int16_t)value; break;
    default: ((uint8_t *)data)[i] = (uint8_t)value;
    }
}

static double load(const void *data, pl_dtype dtype, int64_t i)
{
    switch (dtype) {
    case PL_F32: return ((const float *)data)[i];
    case PL_BF16: return pl_bf16_to_f32(((const uint16_t *)data)[i]);
    case PL_F16: return pl_f16_to_f32(((const uint16_t *)data)[i]);
    case PL_I32: return ((const int32_t *)data)[i];
    case PL_I16: return ((const int16_t *)data)[i];
    default: return ((const uint8_t *)data)[i];
    }
}

/* Elements from the first to the last, the gaps between rows included. */
static int64_t extent(pl_tensor t)
{
    int64_t row = 1;
    for (int d = 1; d < t.ndim; d++) row *= t.shape[d];
    return t.shape[0] ? (t.shape[0] - 1) * t.stride + row : 0;
}

static int64_t row_length(pl_tensor t)
{
    return t.shape[0] ? pl_tensor_numel(t) / t.shape[0] : 0;
}

/* Mean 0, deviation 1, roughly normal: the sum of four uniform numbers. Cheaper than a true one. */
static double spread(const pl_rng *rng, uint64_t i)
{
    uint32_t words[4];
    pl_rng_block(rng, i, words);
    double sum = (double)words[0] + words[1] + words[2] + words[3];
    return (sum * 0x1p-32 - 2) * 1.7320508;
}

static double fill_value(const op_operand *operand, const pl_rng *rng, int64_t i)
{
    switch (operand->fill) {
    case OP_ZERO: return 0;
    case OP_INDEX: return (double)pl_rng_below(rng, (uint64_t)i, (uint64_t)operand->limit);
    case OP_RANGE: return (double)i;
    default: return (operand->scale != 0 ? operand->scale : 1) * spread(rng, (uint64_t)i);
    }
}

static int64_t block_bytes(const op_operand *operand)
{
    int64_t columns = operand->columns ? operand->columns : 1, stride = columns + operand->gap;
    return (operand->rows * stride + operand->gap) * pl_dtype_size(operand->dtype) + 2 * GUARD;
}

pl_tensor op_make(op_context *context, const op_operand *operand, uint64_t seed)
{
    if (operand->rows == 0) return (pl_tensor){0};
    int64_t bytes = block_bytes(operand), size = pl_dtype_size(operand->dtype), elements = bytes / size;
    int64_t columns = operand->columns ? operand->columns : 1, stride = columns + operand->gap;
    /* Guards and gaps hold numbers too, so that a kernel that reads or writes them shows. */
    char *host = need(malloc((size_t)bytes));
    pl_rng rng = {.seed = seed, .stream = 99};
    for (int64_t i = 0; i < elements; i++) store(host, operand->dtype, i, 1 + (double)(i % 7));
    char *first = host + GUARD + operand->gap * size;
    for (int64_t i = 0; i < operand->rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            store(first, operand->dtype, i * stride + j, fill_value(operand, &rng, i * columns + j));
        }
    }
    void *data;
    assert_true(context->nblocks < PL_COUNT(context->blocks));
    if (pl_mem_alloc(&context->err, &context->mem, PL_MEM_ACTIVATIONS, bytes, &data) < 0) {
        fail_msg("%s", context->err.message);
    }
    context->blocks[context->nblocks++] = (struct op_block){data, bytes};
    context->device->ops->copy_in(context->device, data, host, bytes);
    free(host);
    void *at = (char *)data + GUARD + operand->gap * size;
    if (operand->columns == 0) return pl_tensor_1d(at, operand->dtype, operand->rows);
    pl_tensor t = pl_tensor_2d(at, operand->dtype, operand->rows, operand->columns);
    t.stride = stride;
    return t;
}

static void *copy_extent(op_context *context, pl_tensor t)
{
    int64_t bytes = extent(t) * pl_dtype_size(t.dtype);
    void *host = need(malloc((size_t)bytes + 1));
    context->device->ops->copy_out(context->device, host, t.data, bytes);
    return host;
}

void op_put(op_context *context, pl_tensor t, const double *values)
{
    void *host = copy_extent(context, t);
    int64_t row = row_length(t);
    for (int64_t i = 0; i < pl_tensor_numel(t); i++) store(host, t.dtype, i / row * t.stride + i % row, values[i]);
    context->device->ops->copy_in(context->device, t.data, host, extent(t) * pl_dtype_size(t.dtype));
    free(host);
}

double *op_get(op_context *context, pl_tensor t)
{
    void *host = copy_extent(context, t);
    int64_t row = row_length(t), n = pl_tensor_numel(t);
    double *values = need(malloc((size_t)n * sizeof *values + 1));
    for (int64_t i = 0; i < n; i++) values[i] = load(host, t.dtype, i / row * t.stride + i % row);
    free(host);
    return values;
}

/* What a run left behind: the operands' values, and all of their memory with guards and gaps. */
typedef struct outcome {
    double *values[OP_MAX_OPERANDS];
    char *memory[OP_MAX_OPERANDS];
} outcome;

static void outcome_free(outcome *o, int n)
{
    for (int i = 0; i < n; i++) {
        free(o->values[i]);
        free(o->memory[i]);
    }
}

/* `ops` not NULL: another level of the CPU's kernels than the one that the machine gets. */
static void perform(const char *name, const op_operand *operands, int n, op_call call, const void *user, int threads,
    const pl_device_ops *ops, outcome *out)
{
    op_context context;
    op_open(&context, threads);
    if (ops) context.device->ops = ops;
    pl_tensor t[OP_MAX_OPERANDS];
    int block[OP_MAX_OPERANDS];
    for (int i = 0; i < n; i++) {
        if (operands[i].alias) {
            t[i] = t[operands[i].alias - 1];
            block[i] = -1;
            continue;
        }
        t[i] = op_make(&context, &operands[i], (uint64_t)i + 1);
        block[i] = operands[i].rows ? context.nblocks - 1 : -1;
    }
    if (call(&context.run, t, user) < 0) fail_msg("%s: %s", name, context.err.message);
    *out = (outcome){0};
    for (int i = 0; i < n; i++) {
        if (block[i] < 0) continue;
        struct op_block *b = &context.blocks[block[i]];
        out->values[i] = op_get(&context, t[i]);
        out->memory[i] = need(malloc((size_t)b->bytes));
        context.device->ops->copy_out(context.device, out->memory[i], b->data, b->bytes);
    }
    op_close(&context);
}

static void compare(
    const char *name, const char *what, const op_operand *operand, int i, const outcome *ref, const outcome *got)
{
    int64_t n = operand->rows * (operand->columns ? operand->columns : 1);
    double largest = 0;
    for (int64_t j = 0; j < n; j++) {
        if (isfinite(ref->values[i][j])) largest = fmax(largest, fabs(ref->values[i][j]));
    }
    for (int64_t j = 0; j < n; j++) {
        double r = ref->values[i][j], g = got->values[i][j];
        bool same = r == g || (isnan(r) && isnan(g));
        if (same || fabs(r - g) <= operand->tolerance * largest) continue;
        fail_msg("%s, %s: operand %d element %lld: %.9g, the oracle has %.9g (%.2e of the largest, %.2e allowed)", name,
            what, i + 1, (long long)j, g, r, fabs(r - g) / largest, operand->tolerance);
    }
}

/* Guards and gaps as op_make left them: an element outside of the operand holds 1 + its index % 7. */
static void check_guards(const char *name, const op_operand *operand, int i, const char *memory)
{
    int64_t size = pl_dtype_size(operand->dtype), elements = block_bytes(operand) / size, guard = GUARD / size;
    int64_t columns = operand->columns ? operand->columns : 1, stride = columns + operand->gap;
    for (int64_t e = 0; e < elements; e++) {
        int64_t at = e - guard - operand->gap;
        if (at >= 0 && at < operand->rows * stride && at % stride < columns) continue;
        if (load(memory, operand->dtype, e) == 1 + (double)(e % 7)) continue;
        fail_msg("%s: memory outside operand %d was written, at element %lld", name, i + 1, (long long)at);
    }
}

/* The levels of kernels below the machine's own: machines that are older than this one get them. */
static int lower_levels(const pl_device_ops *out[8])
{
    static const pl_device_ops *const levels[] = {
#define X(level) &pl_cpu_ops_##level,
        PL_CPU_LEVELS(X)
#undef X
    };
    op_context context;
    op_open(&context, 1);
    int best = 0, n = 0;
    while (levels[best] != context.device->ops) best++;
    for (int i = best + 1; i < PL_COUNT(levels); i++) out[n++] = levels[i];
    op_close(&context);
    return n;
}

static void check(const char *name, const op_operand *operands, int n, op_call call, const void *user, bool same_bits)
{
    static const int more_threads[] = {2, 3};
    const pl_device_ops *lower[8];
    int levels = lower_levels(lower);
    outcome ref, one, other;
    perform(name, operands, n, call, user, 0, NULL, &ref);
    perform(name, operands, n, call, user, 1, NULL, &one);
    for (int i = 0; i < n; i++) {
        if (!ref.memory[i]) continue;
        check_guards(name, &operands[i], i, ref.memory[i]);
        check_guards(name, &operands[i], i, one.memory[i]);
        compare(name, "1 thread", &operands[i], i, &ref, &one);
    }
    for (int k = 0; k < PL_COUNT(more_threads) + levels; k++) {
        int level = k - PL_COUNT(more_threads); /* >= 0: one of those */
        char what[32];
        snprintf(what, sizeof what, level < 0 ? "%d threads" : "%d levels below the best",
            level < 0 ? more_threads[k] : level + 1);
        perform(
            name, operands, n, call, user, level < 0 ? more_threads[k] : 2, level < 0 ? NULL : lower[level], &other);
        for (int i = 0; i < n; i++) {
            if (!ref.memory[i]) continue;
            if (same_bits && level < 0 &&
                memcmp(one.memory[i], other.memory[i], (size_t)block_bytes(&operands[i])) != 0) {
                fail_msg("%s: operand %d differs between 1 and %s", name, i + 1, what);
            }
            check_guards(name, &operands[i], i, other.memory[i]);
            compare(name, what, &operands[i], i, &ref, &other);
        }
        outcome_free(&other, n);
    }
    outcome_free(&ref, n);
    outcome_free(&one, n);
}

void op_check(const char *name, const op_operand *operands, int n, op_call call, const void *user)
{
    check(name, operands, n, call, user, true);
}

void op_check_any_order(const char *name, const op_operand *operands, int n, op_call call, const void *user)
{
    check(name, operands, n, call, user, false);
}

static double weighted_sum(const char *name, op_context *context, op_call forward, const pl_tensor *operands,
    const void *user, pl_tensor y, const double *dy)
{
    if (forward(&context->run, operands, user) < 0) fail_msg("%s: %s", name, context->err.message);
    double *values = op_get(context, y), sum = 0;
    for (int64_t i = 0; i < pl_tensor_numel(y); i++) sum += values[i] * dy[i];
    free(values);
    return sum;
}

void op_check_gradient(const char *name, op_context *context, op_call forward, const pl_tensor *operands,
    const void *user, pl_tensor y, pl_tensor dy, pl_tensor x, pl_tensor dx, double h, int samples, double tolerance)
{
    double *at = op_get(context, x), *weights = op_get(context, dy), *analytic = op_get(context, dx), largest = 0;
    int64_t n = pl_tensor_numel(x), step = samples > 0 && n > samples ? n / samples : 1;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(analytic[i]));
    for (int64_t i = 0; i < n; i += step) {
        static const double points[] = {-2, -1, 1, 2}, factors[] = {1, -8, 8, -1};
        double kept = at[i], slope = 0;
        for (int k = 0; k < 4; k++) {
            at[i] = (double)(float)(kept + points[k] * h);
            op_put(context, x, at);
            slope += factors[k] * weighted_sum(name, context, forward, operands, user, y, weights) / (12 * h);
        }
        at[i] = kept;
        op_put(context, x, at);
        if (!(fabs(slope - analytic[i]) <= tolerance * largest)) {
            fail_msg("%s: gradient element %lld is %.9g; differences give %.9g (%.2e of the largest, %.2e allowed)",
                name, (long long)i, analytic[i], slope, fabs(slope - analytic[i]) / largest, tolerance);
        }
    }
    weighted_sum(name, context, forward, operands, user, y, weights);
    free(at);
    free(weights);
    free(analytic);
}
