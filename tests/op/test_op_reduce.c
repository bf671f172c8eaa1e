/* column_sums, row_dots, sum_squares, sum, count_nonfinite. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

static const struct {
    int64_t rows, columns;
} sizes[] = {{1, 1}, {1, 577}, {7, 1}, {3, 63}, {63, 64}, {64, 65}, {65, 7}, {577, 130}, {200, 600}};

static int call_column_sums(pl_run *run, const pl_tensor *t, const void *user)
{
    (void)user;
    return pl_column_sums(run, t[0], t[1], t[2]);
}

static void test_column_sums(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        pl_dtype tx = bits & 1 ? PL_BF16 : PL_F32, ty = bits & 2 ? PL_BF16 : PL_F32;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, c = sizes[s].columns;
            op_operand o[] = {
                /* f32 sums of up to 577 numbers of either sign: an ulp each at worst, over a sum that is about
                   sqrt(577) of them; in blocks far less. */
                {.dtype = PL_F32, .rows = c, .tolerance = 2e-6},
                {.dtype = tx, .rows = r, .columns = c, .gap = s % 3},
                {.dtype = ty, .rows = bits & 4 ? r : 0, .columns = c, .gap = s % 2},
            };
            op_check("column_sums", o, 3, call_column_sums, NULL);
        }
    }
}

static int call_row_dots(pl_run *run, const pl_tensor *t, const void *user)
{
    return pl_row_dots(run, t[0], t[1], t[2], *(const bool *)user);
}

static void test_row_dots(void **state)
{
    (void)state;
    for (int bits = 0; bits < 8; bits++) {
        pl_dtype ta = bits & 1 ? PL_BF16 : PL_F32, tb = bits & 2 ? PL_BF16 : PL_F32;
        bool transposed = bits & 4;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, c = sizes[s].columns;
            op_operand o[] = {
                {.dtype = PL_F32, .rows = transposed ? c : r, .tolerance = 2e-6}, /* as column_sums */
                {.dtype = ta, .rows = r, .columns = c, .gap = s % 3},
                {.dtype = tb, .rows = r, .columns = c, .gap = s % 2},
            };
            op_check("row_dots", o, 3, call_row_dots, &transposed);
            o[2] = (op_operand){.alias = 2};
            op_check("row_dots of one matrix", o, 3, call_row_dots, &transposed);
        }
    }
}

typedef struct totals {
    double sum, squares;
    int64_t nonfinite;
} totals;

static totals totals_of(const op_operand *operand, int threads)
{
    op_context context;
    op_open(&context, threads);
    pl_tensor x = op_make(&context, operand, 5);
    totals t;
    assert_int_equal(pl_sum(&context.run, &t.sum, x), 0);
    assert_int_equal(pl_sum_squares(&context.run, &t.squares, x), 0);
    assert_int_equal(pl_count_nonfinite(&context.run, &t.nonfinite, x), 0);
    op_close(&context);
    return t;
}

static void test_totals(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, columns, gap;
    } shapes[] = {
        {1, 0, 0}, {7, 0, 0}, {65, 0, 0}, {577, 0, 0}, {4097, 0, 0}, {300001, 0, 0}, {65, 33, 5}, {300, 577, 3}};
    for (int s = 0; s < PL_COUNT(shapes); s++) {
        for (int d = 0; d < 2; d++) {
            op_operand o = {.dtype = d ? PL_BF16 : PL_F32,
                .rows = shapes[s].rows,
                .columns = shapes[s].columns,
                .gap = shapes[s].gap};
            totals ref = totals_of(&o, 0), one = totals_of(&o, 1);
            /* All in double: what is left is the order, about 1e-16 an addition, over a sum of up to 3e5 normal
               numbers, whose magnitude is at least about 1. */
            assert_true(fabs(ref.sum - one.sum) <= 1e-9);
            assert_true(fabs(ref.squares - one.squares) <= 1e-12 * ref.squares);
            assert_true(ref.nonfinite == 0 && one.nonfinite == 0);
            for (int threads = 2; threads < 5; threads++) {
                totals many = totals_of(&o, threads);
                assert_memory_equal(&one, &many, sizeof one);
            }
        }
    }
}

static void test_nonfinite(void **state)
{
    (void)state;
    enum { ROWS = 40, COLUMNS = 577 };
    for (int threads = 0; threads < 3; threads++) {
        for (int d = 0; d < 2; d++) {
            op_context context;
            op_open(&context, threads);
            op_operand o = {.dtype = d ? PL_BF16 : PL_F32, .rows = ROWS, .columns = COLUMNS, .gap = 3};
            pl_tensor x = op_make(&context, &o, 5);
            double *values = op_get(&context, x);
            values[0] = NAN;
            values[ROWS * COLUMNS - 1] = INFINITY;
            values[12345] = -INFINITY;
            values[12346] = -NAN;
            values[12347] = 3e38;
            values[12348] = 1e-42;
            op_put(&context, x, values);
            int64_t count;
            assert_int_equal(pl_count_nonfinite(&context.run, &count, x), 0);
            assert_int_equal(count, 4);
            free(values);
            op_close(&context);
        }
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 4}, 1);
    pl_tensor y = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4, .columns = 3}, 1);
    pl_tensor three = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3}, 1);
    pl_tensor half = op_make(&context, &(op_operand){.dtype = PL_BF16, .rows = 4}, 1);
    pl_tensor ids = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 4}, 1), none = {0};
    pl_run *run = &context.run;
    double sum;
    int64_t count;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_column_sums(run, three, x, none));
    REFUSED(pl_column_sums(run, half, x, none));
    REFUSED(pl_column_sums(run, three, y, x));
    REFUSED(pl_row_dots(run, three, x, x, true));
    REFUSED(pl_row_dots(run, three, x, y, false));
    REFUSED(pl_row_dots(run, half, x, x, true));
    REFUSED(pl_sum(run, &sum, ids));
    REFUSED(pl_sum_squares(run, &sum, none));
    REFUSED(pl_count_nonfinite(run, &count, ids));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_column_sums),
        cmocka_unit_test(test_row_dots),
        cmocka_unit_test(test_totals),
        cmocka_unit_test(test_nonfinite),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
