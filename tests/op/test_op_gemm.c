#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "device/cpu.h"
#include "support/op_cases.h"

/* Sums of k products of normal numbers are about sqrt(k) large, the largest of many 3 or 4 times that; f32 rounding
   adds about sqrt(k) * 2^-24 of each partial sum. 3e-6 of the largest holds for k up to 3,000 whatever the order. bf16
   operands are exact in f32. */
#define F32_TOLERANCE 3e-6
/* Two nearly equal numbers may round to neighbours: a bf16 step is at most 2^-7 of the number. */
#define BF16_TOLERANCE 0.0079

typedef struct gemm_case {
    int64_t m, n, k;
    bool transpose_a, transpose_b, accumulate;
    pl_dtype dtype, c_dtype;
    float alpha;
    int bias; /* 0 none, 1 f32, 2 bf16 */
    int64_t gap;
    int64_t k2; /* of the second pair; 0: there is none */
    bool transpose_b2;
} gemm_case;

static int run_gemm(pl_run *run, const pl_tensor *t, const void *user)
{
    const gemm_case *g = user;
    return pl_gemm(run, (pl_gemm_args){.c = t[0],
                            .a = t[1],
                            .b = t[2],
                            .bias = t[3],
                            .a2 = g->k2 ? t[4] : (pl_tensor){0},
                            .b2 = g->k2 ? t[5] : (pl_tensor){0},
                            .transpose_b2 = g->transpose_b2,
                            .transpose_a = g->transpose_a,
                            .transpose_b = g->transpose_b,
                            .accumulate = g->accumulate,
                            .alpha = g->alpha});
}

static void check_case(const gemm_case *g)
{
    char name[200];
    snprintf(name, sizeof name, "%lld x %lld x %lld%s%s%s %s into %s, alpha %g, bias %d, gap %lld, second %lld%s",
        (long long)g->m, (long long)g->n, (long long)g->k, g->transpose_a ? " a^T" : "", g->transpose_b ? " b^T" : "",
        g->accumulate ? " +=" : "", pl_dtype_name(g->dtype), pl_dtype_name(g->c_dtype), (double)g->alpha, g->bias,
        (long long)g->gap, (long long)g->k2, g->transpose_b2 ? " b^T" : "");
    op_operand operands[] = {
        {.dtype = g->c_dtype,
            .rows = g->m,
            .columns = g->n,
            .gap = g->gap,
            .tolerance = g->c_dtype == PL_F32 ? F32_TOLERANCE : BF16_TOLERANCE},
        {.dtype = g->dtype,
            .rows = g->transpose_a ? g->k : g->m,
            .columns = g->transpose_a ? g->m : g->k,
            .gap = g->gap},
        {.dtype = g->dtype,
            .rows = g->transpose_b ? g->n : g->k,
            .columns = g->transpose_b ? g->k : g->n,
            .gap = g->gap},
        {.dtype = g->bias == 2 ? PL_BF16 : PL_F32, .rows = g->bias ? g->n : 0},
        {.dtype = g->dtype, .rows = g->m, .columns = g->k2, .gap = g->gap},
        {.dtype = g->dtype,
            .rows = g->transpose_b2 ? g->n : g->k2,
            .columns = g->transpose_b2 ? g->k2 : g->n,
            .gap = g->gap},
    };
    op_check_any_order(name, operands, PL_COUNT(operands) - (g->k2 ? 0 : 2), run_gemm, g);
}

static const int64_t shapes[][3] = {{1, 1, 1}, {2, 3, 5}, {8, 130, 40}, {7, 17, 33}, {64, 48, 32}, {1, 100, 64},
    {100, 1, 64}, {65, 16, 129}, {50, 200, 8}};

/* Every combination of transposition, accumulation and dtypes. */
static void forms(void **state)
{
    (void)state;
    for (int s = 0; s < PL_COUNT(shapes); s++) {
        for (int bits = 0; bits < 32; bits++) {
            gemm_case g = {.m = shapes[s][0], .n = shapes[s][1], .k = shapes[s][2], .alpha = 1};
            g.transpose_a = bits & 1;
            g.transpose_b = bits >> 1 & 1;
            g.accumulate = bits >> 2 & 1;
            g.dtype = bits & 8 ? PL_BF16 : PL_F32;
            g.c_dtype = bits & 8 && bits & 16 ? PL_BF16 : PL_F32;
            if (!(bits & 8) && bits & 16) continue;
            g.gap = s % 3 == 1 ? 16 : s % 3 == 2 ? 3 : 0;
            check_case(&g);
        }
    }
}

static void factors_and_biases(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        pl_dtype dtype = i ? PL_BF16 : PL_F32;
        check_case(&(gemm_case){9, 20, 31, false, true, false, dtype, PL_F32, 0.5f, 0, 0, 0, false});
        check_case(&(gemm_case){9, 20, 31, false, false, true, dtype, PL_F32, -2, 0, 0, 0, false});
        check_case(&(gemm_case){9, 20, 31, true, false, true, dtype, dtype, 0.125f, 0, 4, 0, false});
        for (int bias = 1; bias < 3; bias++) {
            check_case(&(gemm_case){9, 20, 31, false, true, false, dtype, dtype, 1, bias, 0, 0, false});
            check_case(&(gemm_case){33, 70, 16, false, false, false, dtype, PL_F32, 1, bias, 2, 0, false});
        }
    }
}

/* Beyond one block of the widening path in each dimension, with rests. */
static void larger_than_a_block(void **state)
{
    (void)state;
    check_case(&(gemm_case){70, 1030, 40, false, true, false, PL_BF16, PL_BF16, 1, 1, 0, 0, false});
    check_case(&(gemm_case){1030, 20, 50, true, false, true, PL_BF16, PL_F32, 0.5f, 0, 0, 0, false});
    check_case(&(gemm_case){12, 24, 2100, false, true, true, PL_BF16, PL_BF16, 1, 0, 0, 0, false});
    check_case(&(gemm_case){12, 24, 2100, false, true, false, PL_BF16, PL_F32, 2, 0, 8, 0, false});
}

/* With a second pair, whole and part tiles of both sums. */
static void two_pairs(void **state)
{
    (void)state;
    static const int64_t ks[][2] = {{64, 16}, {33, 8}, {576, 32}, {5, 40}, {2100, 3}};
    for (int i = 0; i < PL_COUNT(ks); i++) {
        for (int bits = 0; bits < 16; bits++) {
            gemm_case g = {.m = 50, .n = 70, .k = ks[i][0], .k2 = ks[i][1], .alpha = 1, .gap = i % 2 * 8};
            g.transpose_b = bits & 1;
            g.transpose_b2 = bits >> 1 & 1;
            g.accumulate = bits >> 2 & 1;
            g.dtype = bits & 8 ? PL_BF16 : PL_F32;
            g.c_dtype = i == 2 ? PL_F32 : g.dtype;
            g.bias = !g.accumulate && i == 1;
            check_case(&g);
        }
    }
    check_case(&(gemm_case){48, 40, 31, true, false, true, PL_BF16, PL_F32, -0.5f, 0, 0, 16, true});
    for (int m = 1; m < 10; m++)
        check_case(&(gemm_case){m, 40, 64, false, true, m % 2, PL_BF16, PL_BF16, 2, 0, 3, 5, true});
    check_case(&(gemm_case){3, 40, 64, false, true, false, PL_F32, PL_F32, 1, 2, 0, 16, false});
}

/* Beyond what our kernels pack at once, of each operand, and beyond what they sum at once. */
static void larger_than_a_panel(void **state)
{
    (void)state;
    check_case(&(gemm_case){97, 1100, 1300, false, true, false, PL_F32, PL_F32, 0.5f, 0, 0, 40, true});
    check_case(&(gemm_case){64, 1100, 1300, false, false, false, PL_F32, PL_F32, 1, 2, 0, 0, false});
    check_case(&(gemm_case){70, 650, 513, true, false, true, PL_F32, PL_F32, 1, 0, 5, 16, false});
    check_case(&(gemm_case){71, 65, 1024, true, true, true, PL_F32, PL_F32, -1, 0, 0, 0, false});
    check_case(&(gemm_case){33, 1100, 520, false, true, false, PL_BF16, PL_BF16, 1, 0, 0, 16, true});
    check_case(&(gemm_case){20, 300, 4200, false, false, true, PL_BF16, PL_BF16, 1, 0, 0, 16, false});
    check_case(&(gemm_case){20, 300, 4200, false, true, false, PL_BF16, PL_F32, 1, 1, 8, 0, false});
    check_case(&(gemm_case){40, 300, 4200, true, false, true, PL_BF16, PL_BF16, 1, 0, 0, 0, false});
    check_case(&(gemm_case){2130, 20, 2050, true, false, true, PL_BF16, PL_F32, 1, 0, 0, 0, false});
    check_case(&(gemm_case){2130, 20, 2050, true, true, false, PL_BF16, PL_BF16, 1, 2, 0, 0, false});
}

/* `from`: tokens with which a product is ours. */
static void check_scratch(op_context *context, pl_dtype dtype, int64_t from)
{
    static const int64_t weights[][2] = {
        {192, 64}, {64, 192}, {192, 576}, {1536, 576}, {576, 1536}, {4864, 896}, {700, 5000}};
    for (int form = 0; form < 3 * PL_COUNT(weights); form++) {
        int64_t n = weights[form / 3][0], k = weights[form / 3][1], before = 0;
        for (int64_t tokens = from; tokens < 2600; tokens += tokens < 40 ? 1 : 67) {
            pl_tensor x = pl_tensor_2d(NULL, dtype, tokens, k), y = pl_tensor_2d(NULL, dtype, tokens, n);
            pl_tensor w = pl_tensor_2d(NULL, dtype, n, k), dw = pl_tensor_2d(NULL, PL_F32, n, k);
            pl_gemm_args forms[] = {
                {.c = y, .a = x, .b = w, .transpose_b = true, .alpha = 1},
                {.c = x, .a = y, .b = w, .alpha = 1},
                {.c = dw, .a = y, .b = x, .transpose_a = true, .accumulate = true, .alpha = 1},
            };
            pl_device *device = context->device;
            int64_t bytes = device->ops->gemm_scratch(device, &context->err, &forms[form % 3]);
            if (bytes < before) {
                fail_msg("form %d of %lld x %lld: %lld tokens take %lld bytes, fewer take %lld", form % 3, (long long)n,
                    (long long)k, (long long)tokens, (long long)bytes, (long long)before);
            }
            before = bytes;
        }
    }
}

/* A plan knows the largest batch alone, so that fewer tokens must never take more scratch: as rows of a and c, or as
   the length of a weight gradient's sum. */
static void scratch_grows(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 2);
#if defined __x86_64__
    bool own = context.device->ops == &pl_cpu_ops_amx;
#else
    bool own = false;
#endif
    if (!own) { /* oneDNN's scratch is oneDNN's own affair */
        op_close(&context);
        skip();
    }
    check_scratch(&context, PL_F32, 64);
    check_scratch(&context, PL_BF16, 1);
    op_close(&context);
}

/* A sum of nothing is the bias, or nothing. The harness has no operand of zero rows, so views make them. */
static void empty_dimensions(void **state)
{
    (void)state;
    for (int threads = 0; threads < 3; threads++) {
        op_context context;
        op_open(&context, threads);
        pl_tensor c = op_make(&context, &(op_operand){.rows = 3, .columns = 4}, 1);
        pl_tensor a = op_make(&context, &(op_operand){.rows = 3, .columns = 5}, 2);
        pl_tensor b = op_make(&context, &(op_operand){.rows = 5, .columns = 4}, 3);
        pl_tensor bias = op_make(&context, &(op_operand){.rows = 4, .dtype = PL_BF16}, 4);
        pl_gemm_args args = {.c = c, .a = pl_tensor_columns(a, 0, 0), .b = pl_tensor_rows(b, 0, 0), .alpha = 1};
        double *before = op_get(&context, c), *biases = op_get(&context, bias);
        args.accumulate = true;
        assert_int_equal(pl_gemm(&context.run, args), 0);
        double *after = op_get(&context, c);
        assert_memory_equal(before, after, 12 * sizeof(double));
        free(after);
        args.accumulate = false;
        args.bias = bias;
        assert_int_equal(pl_gemm(&context.run, args), 0);
        after = op_get(&context, c);
        for (int i = 0; i < 12; i++) assert_true(after[i] == biases[i % 4]);
        free(after);
        args.bias = (pl_tensor){0};
        assert_int_equal(pl_gemm(&context.run, args), 0);
        after = op_get(&context, c);
        for (int i = 0; i < 12; i++) assert_true(after[i] == 0);
        free(after);
        args = (pl_gemm_args){.c = pl_tensor_rows(c, 0, 0), .a = pl_tensor_rows(a, 0, 0), .b = b, .alpha = 1};
        assert_int_equal(pl_gemm(&context.run, args), 0);
        args = (pl_gemm_args){.c = pl_tensor_columns(c, 0, 0), .a = a, .b = pl_tensor_columns(b, 0, 0), .alpha = 1};
        assert_int_equal(pl_gemm(&context.run, args), 0);
        free(before);
        free(biases);
        op_close(&context);
    }
}

static void wrong_operands(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 0);
    pl_tensor c = op_make(&context, &(op_operand){.rows = 3, .columns = 4}, 1);
    pl_tensor a = op_make(&context, &(op_operand){.rows = 3, .columns = 5}, 2);
    pl_tensor b = op_make(&context, &(op_operand){.rows = 5, .columns = 4}, 3);
    pl_tensor bias = op_make(&context, &(op_operand){.rows = 4}, 4);
    pl_tensor half = op_make(&context, &(op_operand){.rows = 5, .columns = 4, .dtype = PL_BF16}, 5);
    pl_tensor whole = op_make(&context, &(op_operand){.rows = 3, .columns = 4, .dtype = PL_I32}, 5);
    pl_gemm_args good = {.c = c, .a = a, .b = b, .bias = bias, .alpha = 1},
                 bad[] = {good, good, good, good, good, good, good, good, good, good};
    assert_int_equal(pl_gemm(&context.run, good), 0);
    bad[0].transpose_a = true;
    bad[1].transpose_b = true;
    bad[2].c = pl_tensor_columns(c, 0, 3);
    bad[3].b = half;
    bad[4].bias = pl_tensor_rows(bias, 0, 3);
    bad[5].alpha = 2;
    bad[6].accumulate = true;
    bad[7].c = whole;
    bad[8].a2 = bias;
    bad[9].a2 = a;
    bad[9].b2 = half;
    for (int i = 0; i < PL_COUNT(bad); i++) {
        assert_int_equal(pl_gemm(&context.run, bad[i]), PL_EBUG);
        pl_error_clear(&context.err);
    }
    assert_true(context.run.counters.gemm_flops == 2 * 3 * 4 * 5);
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),
        cmocka_unit_test(factors_and_biases),
        cmocka_unit_test(larger_than_a_block),
        cmocka_unit_test(two_pairs),
        cmocka_unit_test(larger_than_a_panel),
        cmocka_unit_test(scratch_grows),
        cmocka_unit_test(empty_dimensions),
        cmocka_unit_test(wrong_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
