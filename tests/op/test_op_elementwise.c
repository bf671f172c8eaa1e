/* fill, copy, add, scale_columns. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

/* Rows and columns that leave every kind of rest, and one case that is large enough for threads. */
static const struct {
    int64_t rows, columns;
} sizes[] = {{1, 1}, {1, 7}, {3, 63}, {7, 64}, {5, 65}, {2, 577}, {65, 577}, {70, 257}};

static const int64_t gaps[] = {0, 3};

static int call_fill(pl_run *run, const pl_tensor *t, const void *user)
{
    return pl_fill(run, t[0], *(const float *)user);
}

static void test_fill(void **state)
{
    (void)state;
    static const pl_dtype dtypes[] = {PL_F32, PL_BF16, PL_F16, PL_I32, PL_U8};
    static const float values[] = {0, 1, 3.14159f};
    for (int d = 0; d < PL_COUNT(dtypes); d++) {
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            for (int g = 0; g < 2; g++) {
                op_operand y = {.dtype = dtypes[d], .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = gaps[g]};
                for (int v = 0; v < PL_COUNT(values); v++) op_check("fill", &y, 1, call_fill, &values[v]);
            }
        }
    }
    op_context context;
    op_open(&context, 1);
    pl_tensor y = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 65}, 1);
    assert_int_equal(pl_fill(&context.run, y, -2.5f), 0);
    double *values_back = op_get(&context, y);
    for (int i = 0; i < 65; i++) assert_true(values_back[i] == -2.5);
    free(values_back);
    op_close(&context);
}

static int call_copy(pl_run *run, const pl_tensor *t, const void *user)
{
    (void)user;
    return pl_copy(run, t[0], t[1]);
}

static void test_copy(void **state)
{
    (void)state;
    static const pl_dtype pairs[][2] = {{PL_F32, PL_F32}, {PL_F32, PL_BF16}, {PL_F32, PL_F16}, {PL_BF16, PL_F32},
        {PL_BF16, PL_BF16}, {PL_BF16, PL_F16}, {PL_F16, PL_F32}, {PL_F16, PL_BF16}, {PL_F16, PL_F16}};
    for (int d = 0; d < PL_COUNT(pairs); d++) {
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            for (int g = 0; g < 4; g++) {
                /* Conversions are exact or correctly rounded on both: tolerance 0. */
                op_operand o[] = {
                    {.dtype = pairs[d][0], .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = gaps[g % 2]},
                    {.dtype = pairs[d][1], .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = gaps[g / 2]},
                };
                op_check("copy", o, 2, call_copy, NULL);
            }
        }
    }
    op_operand whole[] = {
        {.dtype = PL_I32, .rows = 77}, {.dtype = PL_I32, .rows = 77, .fill = OP_INDEX, .limit = 50000}};
    op_check("copy i32", whole, 2, call_copy, NULL);
    op_operand bytes[] = {
        {.dtype = PL_U8, .rows = 9, .columns = 5, .gap = 1}, {.dtype = PL_U8, .rows = 9, .columns = 5}};
    op_check("copy u8", bytes, 2, call_copy, NULL);
}

/* Every 16-bit number to f32 and back, and f32 numbers around every rounding boundary to 16 bits: as the scalar
   functions of tensor.h, which test_convert checks against a rule. */
static void check_all_halves(pl_dtype dtype)
{
    enum { N = 65536 };
    op_context context;
    op_open(&context, 2);
    const pl_device_ops *ops = context.device->ops;
    pl_tensor half = op_make(&context, &(op_operand){.dtype = dtype, .rows = N}, 1);
    pl_tensor full = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = N}, 2);
    uint16_t *bits = malloc(N * sizeof *bits), *back = malloc(N * sizeof *back);
    float *wide = malloc(N * sizeof *wide);
    assert_true(bits && back && wide);
    for (int i = 0; i < N; i++) bits[i] = (uint16_t)i;
    ops->copy_in(context.device, half.data, bits, N * 2);
    assert_int_equal(pl_copy(&context.run, full, half), 0);
    ops->copy_out(context.device, wide, full.data, N * 4);
    for (int i = 0; i < N; i++) {
        float expected = dtype == PL_BF16 ? pl_bf16_to_f32(bits[i]) : pl_f16_to_f32(bits[i]);
        assert_true(isnan(expected) ? isnan(wide[i]) : memcmp(&expected, &wide[i], 4) == 0);
    }
    /* The number itself, a little above and below it, and the middle between it and the next, with its neighbours. */
    uint32_t middle = dtype == PL_BF16 ? 0x8000 : 0x1000;
    const uint32_t steps[] = {0, 1, middle - 1, middle, middle + 1, 2 * middle - 1};
    for (int k = 0; k < PL_COUNT(steps); k++) {
        float *shifted = malloc(N * sizeof *shifted);
        assert_non_null(shifted);
        for (int i = 0; i < N; i++) {
            uint32_t u;
            memcpy(&u, &wide[i], 4);
            u += steps[k];
            memcpy(&shifted[i], &u, 4);
        }
        ops->copy_in(context.device, full.data, shifted, N * 4);
        assert_int_equal(pl_copy(&context.run, half, full), 0);
        ops->copy_out(context.device, back, half.data, N * 2);
        for (int i = 0; i < N; i++) {
            uint16_t expected = dtype == PL_BF16 ? pl_f32_to_bf16(shifted[i]) : pl_f32_to_f16(shifted[i]);
            if (isnan(shifted[i])) {
                assert_true(isnan(dtype == PL_BF16 ? pl_bf16_to_f32(back[i]) : pl_f16_to_f32(back[i])));
            } else if (back[i] != expected) {
                fail_msg("%.9g became 0x%04x, not 0x%04x", (double)shifted[i], back[i], expected);
            }
        }
        free(shifted);
    }
    free(bits);
    free(back);
    free(wide);
    op_close(&context);
}

static void test_conversions(void **state)
{
    (void)state;
    check_all_halves(PL_BF16);
    check_all_halves(PL_F16);
}

typedef struct add_case {
    bool alone;
    float scale;
} add_case;

static int call_add(pl_run *run, const pl_tensor *t, const void *user)
{
    const add_case *c = user;
    return pl_add(run, t[0], c->alone ? (pl_tensor){0} : t[1], t[2], c->scale);
}

/* One rounding to the result's dtype of a sum that the CPU has rounded once or twice in f32: half a unit of f32 (6e-8),
   or one of bf16 where the two fall to different sides (2^-8). */
static double rounding(pl_dtype dtype)
{
    return dtype == PL_F32 ? 2e-7 : 0x1p-7;
}

static void test_add(void **state)
{
    (void)state;
    static const add_case cases[] = {{false, 1}, {false, -0.37f}, {true, 2.5f}};
    for (int bits = 0; bits < 8; bits++) {
        pl_dtype ty = bits & 1 ? PL_BF16 : PL_F32, ta = bits & 2 ? PL_BF16 : PL_F32, tb = bits & 4 ? PL_BF16 : PL_F32;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, c = sizes[s].columns;
            for (int k = 0; k < PL_COUNT(cases); k++) {
                op_operand apart[] = {
                    {.dtype = ty, .rows = r, .columns = c, .gap = s % 2, .tolerance = rounding(ty)},
                    {.dtype = ta, .rows = r, .columns = c, .gap = s % 3},
                    {.dtype = tb, .rows = r, .columns = c},
                };
                op_check("add", apart, 3, call_add, &cases[k]);
                op_operand onto_a[] = {apart[0], {.alias = 1}, apart[2]};
                op_check("add, y is a", onto_a, 3, call_add, &cases[k]);
                op_operand onto_b[] = {apart[0], apart[1], {.alias = 1}};
                op_check("add, y is b", onto_b, 3, call_add, &cases[k]);
            }
        }
    }
}

static int call_scale(pl_run *run, const pl_tensor *t, const void *user)
{
    (void)user;
    return pl_scale_columns(run, t[0], t[1], t[2], t[3]);
}

static void test_scale_columns(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        pl_dtype ty = bits & 1 ? PL_BF16 : PL_F32, tx = bits & 2 ? PL_BF16 : PL_F32, tf = bits & 4 ? PL_BF16 : PL_F32;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, c = sizes[s].columns;
            op_operand o[] = {
                {.dtype = ty, .rows = r, .columns = c, .gap = 2 * (s % 2), .tolerance = rounding(ty)},
                {.dtype = tx, .rows = r, .columns = c, .gap = s % 3},
                {.dtype = tf, .rows = c},
                {.dtype = PL_F32, .rows = s % 2 ? c : 0},
            };
            op_check("scale_columns", o, 4, call_scale, NULL);
            o[1] = (op_operand){.alias = 1};
            op_check("scale_columns in place", o, 4, call_scale, NULL);
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor a = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 4}, 1);
    pl_tensor b = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4, .columns = 3}, 1);
    pl_tensor i = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 3, .columns = 4}, 1);
    pl_tensor f = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3}, 1);
    pl_tensor none = {0};
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    pl_run *run = &context.run;
    REFUSED(pl_fill(run, none, 0));
    REFUSED(pl_copy(run, a, b));
    REFUSED(pl_copy(run, a, i));
    REFUSED(pl_copy(run, i, a));
    REFUSED(pl_add(run, a, b, a, 1));
    REFUSED(pl_add(run, a, a, b, 1));
    REFUSED(pl_add(run, a, a, none, 1));
    REFUSED(pl_add(run, i, i, i, 1));
    REFUSED(pl_scale_columns(run, a, a, f, none));
    REFUSED(pl_scale_columns(run, a, b, f, none));
    REFUSED(pl_scale_columns(run, b, b, f, a));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fill),
        cmocka_unit_test(test_copy),
        cmocka_unit_test(test_conversions),
        cmocka_unit_test(test_add),
        cmocka_unit_test(test_scale_columns),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
