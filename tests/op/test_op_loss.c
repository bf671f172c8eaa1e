#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/op_cases.h"

/* A probability is exp of a difference of scores of about 10: 2^-24 * 10 from rounding the difference, 1e-7 from exp.
 */
#define F32_TOLERANCE 3e-6
/* Two nearly equal numbers may round to neighbours: a bf16 step is at most 2^-7 of the number. */
#define BF16_TOLERANCE 0.0079

typedef struct loss_case {
    pl_loss_args args;
    bool no_loss, no_gradient, in_place;
    pl_dtype dx_dtype;
} loss_case;

/* Operands: loss, dlogits, logits, targets. */
static int run_loss(pl_run *run, const pl_tensor *t, const void *user)
{
    const loss_case *c = user;
    pl_loss_args args = c->args;
    args.logits = t[2];
    args.targets = t[3];
    if (!c->no_loss) args.loss = t[0];
    if (!c->no_gradient) args.dlogits = t[1];
    if (c->in_place) {
        args.dlogits = t[2];
        args.dlogits.dtype = c->dx_dtype;
        args.dlogits.stride = t[2].stride * pl_dtype_size(t[2].dtype) / pl_dtype_size(c->dx_dtype);
    }
    return pl_loss(run, args);
}

static void check_case(pl_dtype dtype, int64_t rows, int64_t vocab, int64_t gap, loss_case c)
{
    char name[160];
    snprintf(name, sizeof name, "%lld x %lld %s, gradient %s%s, softcap %g, scale %g, gap %lld", (long long)rows,
        (long long)vocab, pl_dtype_name(dtype), c.no_gradient ? "none" : pl_dtype_name(c.dx_dtype),
        c.in_place ? " in place" : "", (double)c.args.softcap, (double)c.args.logit_scale, (long long)gap);
    double tolerance = c.dx_dtype == PL_F32 ? F32_TOLERANCE : BF16_TOLERANCE;
    op_operand operands[] = {
        {.rows = rows, .tolerance = F32_TOLERANCE},
        {.dtype = c.dx_dtype, .rows = rows, .columns = vocab, .gap = gap, .tolerance = tolerance},
        {.dtype = dtype,
            .rows = rows,
            .columns = vocab,
            .gap = gap,
            .scale = 3,
            .tolerance = c.in_place ? tolerance : 0},
        {.dtype = PL_I32, .rows = rows, .fill = OP_INDEX, .limit = vocab},
    };
    op_check(name, operands, PL_COUNT(operands), run_loss, &c);
}

static const int64_t sizes[][2] = {{1, 1}, {3, 2}, {5, 17}, {4, 64}, {7, 1000}, {2, 1024}, {3, 2500}};

static void forms(void **state)
{
    (void)state;
    for (int s = 0; s < PL_COUNT(sizes); s++) {
        for (int bits = 0; bits < 8; bits++) {
            loss_case c = {.args = {.logit_scale = bits & 4 ? 0.5f : 1, .grad_scale = 0.25f}};
            c.dx_dtype = bits & 1 ? PL_BF16 : PL_F32;
            c.args.softcap = bits & 4 ? 5 : 0;
            check_case(bits & 2 ? PL_BF16 : PL_F32, sizes[s][0], sizes[s][1], s % 2 ? 8 : 0, c);
        }
    }
}

static void parts(void **state)
{
    (void)state;
    loss_case c = {.args = {.logit_scale = 1, .grad_scale = 1}};
    c.no_loss = true;
    check_case(PL_F32, 5, 100, 0, c);
    c.no_loss = false;
    c.no_gradient = true;
    check_case(PL_F32, 5, 100, 0, c);
    check_case(PL_BF16, 5, 100, 3, c);
}

static void in_place(void **state)
{
    (void)state;
    loss_case c = {.args = {.logit_scale = 1, .grad_scale = 1}, .in_place = true};
    check_case(PL_F32, 5, 1100, 0, c);
    check_case(PL_F32, 5, 33, 7, c);
    c.dx_dtype = PL_BF16;
    check_case(PL_BF16, 5, 1100, 0, c);
}

/* A bf16 gradient in the memory of f32 logits is the one that is written elsewhere. */
static void in_place_and_narrower(void **state)
{
    (void)state;
    for (int threads = 0; threads < 3; threads++) {
        op_context context;
        op_open(&context, threads);
        const int64_t rows = 5, vocab = 1103;
        op_operand shape = {.rows = rows, .columns = vocab, .scale = 3}, half = shape;
        half.dtype = PL_BF16;
        pl_tensor logits = op_make(&context, &shape, 1), expected = op_make(&context, &half, 2);
        op_operand indices = {.dtype = PL_I32, .rows = rows, .fill = OP_INDEX, .limit = vocab};
        pl_tensor targets = op_make(&context, &indices, 3);
        pl_loss_args args = {.logits = logits, .targets = targets, .logit_scale = 1, .grad_scale = 1};
        args.dlogits = expected;
        assert_int_equal(pl_loss(&context.run, args), 0);
        args.dlogits = logits;
        args.dlogits.dtype = PL_BF16;
        args.dlogits.stride = 2 * logits.stride;
        assert_int_equal(pl_loss(&context.run, args), 0);
        double *want = op_get(&context, expected), *got = op_get(&context, args.dlogits);
        assert_memory_equal(want, got, (size_t)(rows * vocab) * sizeof *want);
        free(want);
        free(got);
        op_close(&context);
    }
}

static void untrained_rows(void **state)
{
    (void)state;
    for (int threads = 0; threads < 3; threads++) {
        op_context context;
        op_open(&context, threads);
        op_operand shape = {.rows = 3, .columns = 20}, vector = {.rows = 3};
        op_operand whole = {.dtype = PL_I32, .rows = 3};
        pl_tensor logits = op_make(&context, &shape, 1), dlogits = op_make(&context, &shape, 2);
        pl_tensor loss = op_make(&context, &vector, 3), targets = op_make(&context, &whole, 4);
        op_put(&context, targets, (double[]){4, -100, 19});
        pl_loss_args args = {
            .logits = logits, .dlogits = dlogits, .targets = targets, .loss = loss, .logit_scale = 1, .grad_scale = 2};
        assert_int_equal(pl_loss(&context.run, args), 0);
        double *losses = op_get(&context, loss), *dz = op_get(&context, dlogits), sum[3] = {0};
        assert_true(losses[0] > 0 && losses[1] == 0 && losses[2] > 0);
        for (int i = 0; i < 60; i++) {
            sum[i / 20] += dz[i];
            if (i / 20 == 1) assert_true(dz[i] == 0);
        }
        /* Probabilities sum to one, so a row of the gradient sums to nothing: up to 20 roundings of numbers below 2. */
        assert_true(fabs(sum[0]) < 20 * 1.2e-7 && fabs(sum[2]) < 20 * 1.2e-7 && dz[4] < 0 && dz[59] < 0);
        free(losses);
        free(dz);
        op_close(&context);
    }
}

/* What the head must find out: infinite and undefined logits give an undefined or infinite loss, never a plausible one;
   and large ones no overflow. */
static void extremes(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        op_operand shape = {.rows = 3, .columns = 40, .fill = OP_ZERO}, vector = {.rows = 3};
        op_operand whole = {.dtype = PL_I32, .rows = 3, .fill = OP_ZERO};
        pl_tensor logits = op_make(&context, &shape, 1), loss = op_make(&context, &vector, 3);
        pl_tensor targets = op_make(&context, &whole, 4);
        double x[120] = {0};
        x[7] = NAN;
        for (int i = 40; i < 80; i++) x[i] = i == 40 ? 3e38 : -3e38;
        x[85] = 1e5;
        op_put(&context, logits, x);
        pl_loss_args args = {.logits = logits, .targets = targets, .loss = loss, .logit_scale = 1};
        assert_int_equal(pl_loss(&context.run, args), 0);
        double *losses = op_get(&context, loss);
        assert_true(isnan(losses[0]) && losses[1] == 0 && losses[2] == 1e5);
        free(losses);
        op_close(&context);
    }
}

static void gradient(void **state)
{
    (void)state;
    for (int cap = 0; cap < 2; cap++) {
        op_context context;
        op_open(&context, 0);
        op_operand vector = {.rows = 3}, shape = {.rows = 3, .columns = 6};
        op_operand indices = {.dtype = PL_I32, .rows = 3, .fill = OP_INDEX, .limit = 6};
        pl_tensor t[] = {op_make(&context, &vector, 1), op_make(&context, &shape, 2), op_make(&context, &shape, 3),
            op_make(&context, &indices, 4)};
        loss_case c = {.args = {.logit_scale = 0.7f, .softcap = cap ? 2 : 0, .grad_scale = 1}};
        assert_int_equal(run_loss(&context.run, t, &c), 0);
        double ones[] = {1, 1, 1};
        pl_tensor dy = op_make(&context, &vector, 5), dx = op_make(&context, &shape, 6);
        op_put(&context, dy, ones);
        double *kept = op_get(&context, t[1]);
        op_put(&context, dx, kept);
        free(kept);
        op_check_gradient(
            cap ? "loss, capped" : "loss", &context, run_loss, t, &c, t[0], dy, t[2], dx, 0x1p-5, 0, 2e-5);
        op_close(&context);
    }
}

static void wrong_operands(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 0);
    op_operand shape = {.rows = 3, .columns = 20}, vector = {.rows = 3}, whole = {.dtype = PL_I32, .rows = 3};
    whole.fill = OP_ZERO;
    pl_tensor logits = op_make(&context, &shape, 1), dlogits = op_make(&context, &shape, 2);
    pl_tensor loss = op_make(&context, &vector, 3), targets = op_make(&context, &whole, 4);
    pl_loss_args good = {.logits = logits, .dlogits = dlogits, .targets = targets, .loss = loss, .logit_scale = 1};
    pl_loss_args bad[] = {good, good, good, good, good};
    assert_int_equal(pl_loss(&context.run, good), 0);
    bad[0].targets = pl_tensor_rows(targets, 0, 2);
    bad[1].loss = targets;
    bad[2].dlogits = pl_tensor_columns(dlogits, 0, 19);
    bad[3].targets = (pl_tensor){0};
    bad[4].dlogits = logits; /* narrower rows that do not start where the logits' do */
    bad[4].dlogits.dtype = PL_BF16;
    for (int i = 0; i < PL_COUNT(bad); i++) {
        assert_int_equal(pl_loss(&context.run, bad[i]), PL_EBUG);
        pl_error_clear(&context.err);
    }
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forms),
        cmocka_unit_test(parts),
        cmocka_unit_test(in_place),
        cmocka_unit_test(in_place_and_narrower),
        cmocka_unit_test(untrained_rows),
        cmocka_unit_test(extremes),
        cmocka_unit_test(gradient),
        cmocka_unit_test(wrong_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
