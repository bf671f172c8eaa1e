/* RMS and layer norm, forward and backward. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

typedef struct norm_case {
    int64_t rows, groups, size, gap;
    pl_dtype dtype, weight_dtype;
    bool layer, weight, bias, residual, frozen, accumulate, in_place;
    float offset;
} norm_case;

/* Every combination of the switches at a few sizes. */
#define COMBINATIONS 256
static norm_case nth_case(int s, int bits)
{
    static const struct {
        int64_t rows, groups, size;
    } sizes[] = {{1, 1, 1}, {3, 1, 7}, {5, 1, 63}, {7, 3, 64}, {2, 1, 65}, {66, 1, 577}, {130, 9, 64}};
    return (norm_case){
        .rows = sizes[s].rows,
        .groups = sizes[s].groups,
        .size = sizes[s].size,
        .gap = bits % 3,
        .dtype = bits & 1 ? PL_BF16 : PL_F32,
        .layer = bits & 2,
        .weight = bits & 4,
        .bias = bits & 8,
        .residual = bits & 16,
        .accumulate = bits & 16,
        .weight_dtype = bits & 32 ? PL_BF16 : PL_F32,
        .offset = bits & 64 ? 1 : 0,
        .in_place = bits & 128,
        .frozen = bits & 64,
    };
}
#define SIZES 7
#define LARGE 5 /* from here on a fifth of the combinations will do */

static int call_norm(pl_run *run, const pl_tensor *t, const void *user)
{
    const norm_case *c = user;
    return pl_norm(run, (pl_norm_args){.y = t[0],
                            .mean = t[1],
                            .inv = t[2],
                            .x = t[3],
                            .weight = t[4],
                            .bias = t[5],
                            .residual = t[6],
                            .size = c->size,
                            .eps = 1e-5f,
                            .offset = c->offset,
                            .residual_scale = 0.7f});
}

static void check_forward(const norm_case *c)
{
    /* f32: sums of up to 577 squares and a root. bf16: one unit in the last of 8 bits, where the two round apart. With
       a residual in bf16 x itself may round apart, and inv with it when the row is short. */
    double values = c->dtype == PL_F32 ? 3e-6 : 0x1p-7, stats = c->dtype == PL_F32 || !c->residual ? 3e-6 : 0x1p-7;
    int64_t n = c->groups * c->size, rows = c->rows * c->groups;
    op_operand o[] = {
        {.dtype = c->dtype, .rows = c->rows, .columns = n, .gap = c->gap, .tolerance = values},
        {.dtype = PL_F32, .rows = c->layer ? rows : 0, .tolerance = stats},
        {.dtype = PL_F32, .rows = rows, .tolerance = stats},
        {.dtype = c->dtype,
            .rows = c->rows,
            .columns = n,
            .gap = c->gap,
            .scale = 3,
            .tolerance = c->residual ? values : 0},
        {.dtype = c->weight_dtype, .rows = c->weight ? c->size : 0},
        {.dtype = c->weight_dtype, .rows = c->bias ? c->size : 0},
        {.dtype = c->dtype, .rows = c->residual ? c->rows : 0, .columns = n},
    };
    if (c->in_place && !c->residual) {
        o[0].scale = 3;
        o[3] = (op_operand){.alias = 1};
    }
    char name[128];
    snprintf(name, sizeof name, "%s norm of [%d, %d x %d] %s", c->layer ? "layer" : "rms", (int)c->rows, (int)c->groups,
        (int)c->size, pl_dtype_name(c->dtype));
    /* A layer norm of one element is 0 / sqrt(eps): rounding and nothing else. */
    if (!(c->layer && c->size == 1)) op_check(name, o, 7, call_norm, c);
}

static void test_forward(void **state)
{
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        for (int bits = 0; bits < COMBINATIONS; bits += s < LARGE ? 1 : 5) {
            norm_case c = nth_case(s, bits);
            check_forward(&c);
        }
    }
}

/* The oracle against numbers worked out by hand. */
static void test_by_hand(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        op_operand row = {.dtype = PL_F32, .rows = 1, .columns = 4}, one = {.dtype = PL_F32, .rows = 1},
                   w = {.dtype = PL_F32, .rows = 2};
        pl_tensor x = op_make(&context, &row, 1), y = op_make(&context, &row, 2), weight = op_make(&context, &w, 3);
        pl_tensor inv = op_make(&context, &w, 4), mean = op_make(&context, &w, 5);
        (void)one;
        op_put(&context, x, (double[]){1, 7, -2, 6});
        op_put(&context, weight, (double[]){2, 0.5});
        pl_norm_args args = {.y = y, .inv = inv, .x = x, .weight = weight, .offset = 1};
        /* Groups (1, 7) and (-2, 6): mean squares 25 and 20. */
        assert_int_equal(pl_norm(&context.run, args), 0);
        double *v = op_get(&context, y), r = sqrt(20);
        const double rms[] = {3 * 1 / 5.0, 1.5 * 7 / 5.0, 3 * -2 / r, 1.5 * 6 / r};
        for (int i = 0; i < 4; i++) assert_true(fabs(v[i] - rms[i]) < 1e-6);
        free(v);
        /* Means 4 and 2, deviations 3 and 4. */
        args = (pl_norm_args){.y = y, .inv = inv, .mean = mean, .x = x, .weight = weight, .bias = weight};
        assert_int_equal(pl_norm(&context.run, args), 0);
        v = op_get(&context, y);
        const double layer[] = {0, 1, 0, 1};
        for (int i = 0; i < 4; i++) assert_true(fabs(v[i] - layer[i]) < 1e-6);
        free(v);
        op_close(&context);
    }
}

static int call_backward(pl_run *run, const pl_tensor *t, const void *user)
{
    const norm_case *c = user;
    return pl_norm_backward(run, (pl_norm_backward_args){.dx = t[0],
                                     .dweight = t[1],
                                     .dbias = t[2],
                                     .dy = t[3],
                                     .x = t[4],
                                     .mean = t[5],
                                     .inv = t[6],
                                     .weight = t[7],
                                     .size = c->size,
                                     .offset = c->offset,
                                     .accumulate = c->accumulate});
}

static void check_backward(const norm_case *c)
{
    /* As forward; dweight sums up to 130 x 9 products in f32. */
    double values = c->dtype == PL_F32 ? 3e-6 : 0x1p-7;
    int64_t n = c->groups * c->size, rows = c->rows * c->groups;
    op_operand o[] = {
        {.dtype = c->dtype, .rows = c->rows, .columns = n, .gap = c->gap, .tolerance = values},
        {.dtype = PL_F32, .rows = c->frozen ? 0 : c->size, .tolerance = 3e-6},
        {.dtype = PL_F32, .rows = c->bias && c->layer ? c->size : 0, .tolerance = 3e-6},
        {.dtype = c->dtype, .rows = c->rows, .columns = n},
        {.dtype = c->dtype, .rows = c->rows, .columns = n, .gap = c->gap},
        {.dtype = PL_F32, .rows = c->layer ? rows : 0},
        {.dtype = PL_F32, .rows = rows},
        {.dtype = c->weight_dtype, .rows = c->weight ? c->size : 0},
    };
    if (c->in_place && !c->accumulate) o[3] = (op_operand){.alias = 1};
    char name[128];
    snprintf(name, sizeof name, "%s norm_backward of [%d, %d x %d] %s", c->layer ? "layer" : "rms", (int)c->rows,
        (int)c->groups, (int)c->size, pl_dtype_name(c->dtype));
    op_check(name, o, 8, call_backward, c);
}

static void test_backward(void **state)
{
    (void)state;
    for (int s = 0; s < SIZES; s++) {
        for (int bits = 0; bits < COMBINATIONS; bits += s < LARGE ? 1 : 5) {
            norm_case c = nth_case(s, bits);
            check_backward(&c);
        }
    }
}

static void check_gradients(const norm_case *c)
{
    op_context context;
    op_open(&context, 0);
    int64_t n = c->groups * c->size, rows = c->rows * c->groups;
    op_operand matrix = {.dtype = PL_F32, .rows = c->rows, .columns = n}, stats = {.dtype = PL_F32, .rows = rows};
    op_operand vector = {.dtype = PL_F32, .rows = c->size}, zeros = {.dtype = PL_F32, .rows = c->size, .fill = OP_ZERO};
    pl_tensor forward[7] = {0}, backward[8] = {0};
    forward[0] = op_make(&context, &matrix, 1);
    if (c->layer) forward[1] = op_make(&context, &stats, 2);
    forward[2] = op_make(&context, &stats, 3);
    forward[3] = op_make(&context, &matrix, 4);
    forward[4] = op_make(&context, &vector, 5);
    if (c->layer) forward[5] = op_make(&context, &vector, 6);
    backward[0] = op_make(&context, &matrix, 7);
    backward[1] = op_make(&context, &zeros, 8);
    if (c->layer) backward[2] = op_make(&context, &zeros, 9);
    backward[3] = op_make(&context, &matrix, 10);
    backward[4] = forward[3];
    backward[5] = forward[1];
    backward[6] = forward[2];
    backward[7] = forward[4];
    assert_int_equal(call_norm(&context.run, forward, c), 0);
    assert_int_equal(call_backward(&context.run, backward, c), 0);
    /* Differences with h = 2^-5 of functions with derivatives about 1: error about 4e-6, and more where a short row
       makes the function bend: 1e-4 leaves room, and a wrong formula is off by far more. */
    op_check_gradient(
        "norm, x", &context, call_norm, forward, c, forward[0], backward[3], forward[3], backward[0], 0x1p-5, 0, 1e-4);
    op_check_gradient("norm, weight", &context, call_norm, forward, c, forward[0], backward[3], forward[4], backward[1],
        0x1p-5, 0, 1e-4);
    if (c->layer) {
        op_check_gradient("norm, bias", &context, call_norm, forward, c, forward[0], backward[3], forward[5],
            backward[2], 0x1p-5, 0, 1e-4);
    }
    op_close(&context);
}

static void test_gradients(void **state)
{
    (void)state;
    for (int bits = 0; bits < 4; bits++) {
        norm_case c = {.rows = 3, .groups = bits & 1 ? 3 : 1, .size = 13, .layer = bits & 2, .offset = bits & 1};
        check_gradients(&c);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    op_operand matrix = {.dtype = PL_F32, .rows = 3, .columns = 8}, half = {.dtype = PL_BF16, .rows = 3, .columns = 8};
    pl_tensor x = op_make(&context, &matrix, 1), y = op_make(&context, &matrix, 2), b = op_make(&context, &half, 3);
    pl_tensor w8 = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 8}, 4), none = {0};
    pl_tensor w3 = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3}, 5);
    pl_run *run = &context.run;
    pl_norm_args good = {.y = y, .inv = w3, .x = x, .weight = w8}, a;
    pl_norm_backward_args good_backward = {.dx = y, .dy = y, .x = x, .inv = w3, .weight = w8}, d;
    assert_int_equal(pl_norm(run, good), 0);
    assert_int_equal(pl_norm_backward(run, good_backward), 0);
#define REFUSED(call, args, good_args, field, value)                                                                   \
    do {                                                                                                               \
        args = good_args;                                                                                              \
        args.field = value;                                                                                            \
        assert_int_equal(call(run, args), PL_EBUG);                                                                    \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_norm, a, good, y, b);
    REFUSED(pl_norm, a, good, y, none);
    REFUSED(pl_norm, a, good, inv, w8);
    REFUSED(pl_norm, a, good, inv, none);
    REFUSED(pl_norm, a, good, mean, w8);
    REFUSED(pl_norm, a, good, weight, w3);
    REFUSED(pl_norm, a, good, weight, none);
    REFUSED(pl_norm, a, good, bias, w3);
    REFUSED(pl_norm, a, good, residual, w8);
    REFUSED(pl_norm_backward, d, good_backward, dy, b);
    REFUSED(pl_norm_backward, d, good_backward, dx, none);
    REFUSED(pl_norm_backward, d, good_backward, inv, w8);
    REFUSED(pl_norm_backward, d, good_backward, mean, w8);
    REFUSED(pl_norm_backward, d, good_backward, dweight, w3);
    REFUSED(pl_norm_backward, d, good_backward, dbias, w3);
    REFUSED(pl_norm_backward, d, good_backward, accumulate, true); /* dx is dy */
    good.residual = x;
    REFUSED(pl_norm, a, good, y, x);
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_forward),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
