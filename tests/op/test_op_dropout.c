/* Dropout: whom it drops depends on the element's number alone. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

typedef struct dropout_case {
    float p;
    int64_t first_row;
    bool accumulate;
} dropout_case;

static const pl_rng rng = {.seed = 0x123456789abcdefu, .stream = PL_RNG_DROPOUT, .domain = 7};

static int call_dropout(pl_run *run, const pl_tensor *t, const void *user)
{
    const dropout_case *c = user;
    return pl_dropout(
        run, (pl_dropout_args){
                 .y = t[0], .x = t[1], .rng = rng, .first_row = c->first_row, .p = c->p, .accumulate = c->accumulate});
}

static void test_devices(void **state)
{
    (void)state;
    static const struct {
        int64_t rows, columns;
    } sizes[] = {{1, 1}, {9, 7}, {3, 63}, {2, 64}, {5, 65}, {30, 577}, {2, 1030}};
    static const dropout_case cases[] = {
        {0, 0, false}, {0.1f, 5, false}, {0.5f, (int64_t)1 << 34, false}, {0.1f, 3, true}, {0.999999f, 0, true}};
    for (int bits = 0; bits < 4; bits++) {
        pl_dtype ty = bits & 1 ? PL_BF16 : PL_F32, tx = bits & 2 ? PL_BF16 : PL_F32;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            for (int k = 0; k < PL_COUNT(cases); k++) {
                op_operand o[] = {
                    /* A product and a sum in f32; in bf16 one unit of 8 bits where the two round apart. A different
                       choice of elements would be off by the whole. */
                    {.dtype = ty,
                        .rows = sizes[s].rows,
                        .columns = sizes[s].columns,
                        .gap = s % 2,
                        .tolerance = ty == PL_F32 ? 3e-7 : 0x1p-7},
                    {.dtype = tx, .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = s % 3},
                };
                op_check("dropout", o, 2, call_dropout, &cases[k]);
                o[1] = (op_operand){.alias = 1};
                op_check("dropout in place", o, 2, call_dropout, &cases[k]);
            }
        }
    }
}

/* The share of what is kept, and that two calls for parts of the rows make the same choice as one for all. */
static void test_choice(void **state)
{
    (void)state;
    enum { ROWS = 200, COLUMNS = 577, N = ROWS * COLUMNS };
    static const float ps[] = {0, 0.05f, 0.1f, 0.5f, 0.9f};
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = ROWS, .columns = COLUMNS}, 1);
        pl_tensor y = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = ROWS, .columns = COLUMNS}, 2);
        assert_int_equal(pl_fill(&context.run, x, 3), 0);
        for (int k = 0; k < PL_COUNT(ps); k++) {
            double p = ps[k], kept = 0;
            pl_dropout_args args = {.y = y, .x = x, .rng = rng, .p = ps[k]};
            assert_int_equal(pl_dropout(&context.run, args), 0);
            double *whole = op_get(&context, y);
            for (int i = 0; i < N; i++) {
                /* Kept elements are scaled to 3 / (1 - p), so the mean stays 3. */
                assert_true(whole[i] == 0 || fabs(whole[i] - 3 / (1 - p)) < 1e-5);
                kept += whole[i] != 0;
            }
            /* Five standard deviations of a binomial. */
            assert_true(fabs(kept - N * (1 - p)) <= 5 * sqrt(N * p * (1 - p)));
            args =
                (pl_dropout_args){.y = pl_tensor_rows(y, 0, 77), .x = pl_tensor_rows(x, 0, 77), .rng = rng, .p = ps[k]};
            assert_int_equal(pl_dropout(&context.run, args), 0);
            args.y = pl_tensor_rows(y, 77, ROWS - 77);
            args.x = pl_tensor_rows(x, 77, ROWS - 77);
            args.first_row = 77;
            assert_int_equal(pl_dropout(&context.run, args), 0);
            double *parts = op_get(&context, y);
            assert_memory_equal(whole, parts, N * sizeof *whole);
            free(whole);
            free(parts);
        }
        op_close(&context);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 4}, 1), none = {0};
    pl_tensor z = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4, .columns = 3}, 1);
    pl_run *run = &context.run;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_dropout(run, (pl_dropout_args){.y = z, .x = x}));
    REFUSED(pl_dropout(run, (pl_dropout_args){.y = x, .x = none}));
    REFUSED(pl_dropout(run, (pl_dropout_args){.y = x, .x = x, .p = 1}));
    REFUSED(pl_dropout(run, (pl_dropout_args){.y = x, .x = x, .p = -0.1f}));
    REFUSED(pl_dropout(run, (pl_dropout_args){.y = x, .x = x, .p = NAN}));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_choice),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
