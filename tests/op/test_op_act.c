/* Activations, plain and gated, forward and backward. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

static const char *const names[PL_ACT_COUNT] = {"silu", "gelu", "gelu_tanh", "gelu_quick", "relu"};

static const struct {
    int64_t rows, columns, gap;
} sizes[] = {{1, 1, 0}, {3, 7, 2}, {2, 63, 0}, {5, 64, 3}, {1, 65, 0}, {9, 577, 1}, {16, 577, 0}};

typedef struct act_case {
    pl_act act;
    bool gated, want_y;
} act_case;

static int call_act(pl_run *run, const pl_tensor *t, const void *user)
{
    const act_case *c = user;
    return pl_activation(run, (pl_act_args){.y = t[0], .x = t[1], .up = t[2], .act = c->act});
}

static int call_backward(pl_run *run, const pl_tensor *t, const void *user)
{
    const act_case *c = user;
    return pl_activation_backward(run,
        (pl_act_backward_args){.dx = t[0], .dup = t[1], .y = t[2], .dy = t[3], .x = t[4], .up = t[5], .act = c->act});
}

/* f32: a handful of roundings and an exp good to 2e-7, times a slope of at most 1.2. bf16: one unit of 8 bits where the
   two round apart. */
static double tolerance(pl_dtype dtype)
{
    return dtype == PL_F32 ? 1e-6 : 0x1p-7;
}

/* The ways in which outputs may lie on inputs, as op_operand's alias: for y (on x 2 or up 3). */
static void check_forward(const act_case *c, pl_dtype dtype, int s)
{
    op_operand m = {
        .dtype = dtype, .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = sizes[s].gap, .scale = 3};
    op_operand y = m, x = m, up = m;
    y.tolerance = tolerance(dtype);
    if (!c->gated) up.rows = 0;
    op_check(names[c->act], (op_operand[]){y, x, up}, 3, call_act, c);
    op_check(names[c->act], (op_operand[]){y, {.alias = 1}, up}, 3, call_act, c);
    if (c->gated) op_check(names[c->act], (op_operand[]){y, x, {.alias = 1}}, 3, call_act, c);
}

static void check_backward(const act_case *c, pl_dtype dtype, int s)
{
    op_operand m = {
        .dtype = dtype, .rows = sizes[s].rows, .columns = sizes[s].columns, .gap = sizes[s].gap, .scale = 3};
    op_operand out = m, none = {0};
    out.tolerance = tolerance(dtype);
    op_operand dup = c->gated ? out : none, up = c->gated ? m : none, y = c->want_y ? out : none;
    char name[64];
    snprintf(name, sizeof name, "%s_backward %s", names[c->act], pl_dtype_name(dtype));
    op_check(name, (op_operand[]){out, dup, y, m, m, up}, 6, call_backward, c);
    op_check(name, (op_operand[]){out, dup, y, {.alias = 1}, m, up}, 6, call_backward, c); /* dx is dy */
    op_check(name, (op_operand[]){out, dup, y, m, {.alias = 1}, up}, 6, call_backward, c); /* dx is x */
    if (!c->gated) return;
    op_check(name, (op_operand[]){out, dup, y, m, m, {.alias = 2}}, 6, call_backward, c);            /* dup is up */
    op_check(name, (op_operand[]){out, dup, y, {.alias = 2}, m, up}, 6, call_backward, c);           /* dup is dy */
    op_check(name, (op_operand[]){out, dup, y, m, {.alias = 1}, {.alias = 2}}, 6, call_backward, c); /* both in place */
    op_check(name, (op_operand[]){out, dup, y, {.alias = 1}, m, {.alias = 2}}, 6, call_backward, c);
}

static void test_devices(void **state)
{
    (void)state;
    for (int act = 0; act < PL_ACT_COUNT; act++) {
        for (int bits = 0; bits < 8; bits++) {
            act_case c = {.act = (pl_act)act, .gated = bits & 1, .want_y = bits & 2};
            for (int s = 0; s < PL_COUNT(sizes); s++) {
                check_forward(&c, bits & 4 ? PL_BF16 : PL_F32, s);
                check_backward(&c, bits & 4 ? PL_BF16 : PL_F32, s);
            }
        }
    }
}

/* The functions themselves, from their definitions. */
static double define(pl_act act, double x)
{
    switch (act) {
    case PL_ACT_SILU: return x / (1 + exp(-x));
    case PL_ACT_GELU: return 0.5 * x * (1 + erf(x / sqrt(2)));
    case PL_ACT_GELU_TANH: return 0.5 * x * (1 + tanh(sqrt(2 / acos(-1)) * (x + 0.044715 * x * x * x)));
    case PL_ACT_GELU_QUICK: return x / (1 + exp(-1.702 * x));
    default: return x > 0 ? x : 0;
    }
}

/* All over the line, finely, against the definition; the error is absolute where the value is small, and relative
   where it is large. */
static void test_accuracy(void **state)
{
    (void)state;
    enum { N = 40001 };
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        op_operand line = {.dtype = PL_F32, .rows = 1, .columns = N};
        pl_tensor t[6] = {op_make(&context, &line, 1), {0}, op_make(&context, &line, 2), op_make(&context, &line, 3),
            op_make(&context, &line, 4)};
        double *x = malloc(N * sizeof *x), *ones = malloc(N * sizeof *ones);
        assert_true(x && ones);
        for (int i = 0; i < N; i++) {
            x[i] = (float)((i - 20000) * 1e-3);
            ones[i] = 1;
        }
        op_put(&context, t[3], ones);
        op_put(&context, t[4], x);
        for (int act = 0; act < PL_ACT_COUNT; act++) {
            act_case c = {.act = (pl_act)act};
            assert_int_equal(call_backward(&context.run, t, &c), 0);
            double *value = op_get(&context, t[2]), *slope = op_get(&context, t[0]);
            for (int i = 0; i < N; i++) {
                double expected = define(c.act, x[i]), h = 1e-4;
                double difference = (define(c.act, x[i] + h) - define(c.act, x[i] - h)) / (2 * h);
                if (!(fabs(value[i] - expected) <= 3e-7 * fmax(1, fabs(expected)))) {
                    fail_msg("%s(%g) is %.9g, not %.9g", names[act], x[i], value[i], expected);
                }
                /* The difference itself is good to h^2 and 1e-16 * 20 / h; relu has a corner at 0. */
                bool corner = act == PL_ACT_RELU && fabs(x[i]) < 2 * h;
                if (!corner && !(fabs(slope[i] - difference) <= 1e-6)) {
                    fail_msg("the slope of %s at %g is %.9g, not %.9g", names[act], x[i], slope[i], difference);
                }
            }
            free(value);
            free(slope);
        }
        free(x);
        free(ones);
        op_close(&context);
    }
}

/* Far out the functions are x or 0, not NaN; a NaN stays one. */
static void test_extremes(void **state)
{
    (void)state;
    static const double far[] = {1e3, -1e3, 1e10, -1e10, 3e38, -3e38, 100, -100, 89, -89, 1e-40, -0.0};
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        op_operand line = {.dtype = PL_F32, .rows = 1, .columns = PL_COUNT(far) + 1};
        pl_tensor t[6] = {op_make(&context, &line, 1), {0}, op_make(&context, &line, 2), op_make(&context, &line, 3),
            op_make(&context, &line, 4)};
        double x[PL_COUNT(far) + 1];
        memcpy(x, far, sizeof far);
        x[PL_COUNT(far)] = NAN;
        op_put(&context, t[4], x);
        for (int act = 0; act < PL_ACT_COUNT; act++) {
            act_case c = {.act = (pl_act)act};
            assert_int_equal(call_backward(&context.run, t, &c), 0);
            double *value = op_get(&context, t[2]), *slope = op_get(&context, t[0]);
            for (int i = 0; i < PL_COUNT(far); i++) {
                assert_true(isfinite(value[i]) && isfinite(slope[i]));
                double expected = x[i] > 50 ? x[i] : 0;
                if (fabs(x[i]) > 50) assert_true(fabs(value[i] - expected) <= 1e-6 * fmax(1, expected));
            }
            assert_true(isnan(value[PL_COUNT(far)]));
            free(value);
            free(slope);
        }
        op_close(&context);
    }
}

/* The gated backward's three outputs against differences of the gated forward. */
static void test_gradients(void **state)
{
    (void)state;
    for (int act = 0; act < PL_ACT_RELU; act++) {
        act_case c = {.act = (pl_act)act, .gated = true};
        op_context context;
        op_open(&context, 0);
        op_operand m = {.dtype = PL_F32, .rows = 3, .columns = 11};
        pl_tensor x = op_make(&context, &m, 1), up = op_make(&context, &m, 2), y = op_make(&context, &m, 3);
        pl_tensor dx = op_make(&context, &m, 4), dup = op_make(&context, &m, 5), dy = op_make(&context, &m, 6),
                  none = {0};
        pl_tensor forward[] = {y, x, up}, backward[] = {dx, dup, none, dy, x, up};
        assert_int_equal(call_backward(&context.run, backward, &c), 0);
        /* Smooth functions: 4e-6 from the differences, as op_check_gradient tells. */
        op_check_gradient(names[act], &context, call_act, forward, &c, y, dy, x, dx, 0x1p-5, 0, 2e-5);
        op_check_gradient(names[act], &context, call_act, forward, &c, y, dy, up, dup, 0x1p-5, 0, 2e-5);
        op_close(&context);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 4}, 1), none = {0};
    pl_tensor b = op_make(&context, &(op_operand){.dtype = PL_BF16, .rows = 3, .columns = 4}, 1);
    pl_tensor z = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4, .columns = 3}, 1);
    pl_run *run = &context.run;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_activation(run, (pl_act_args){.y = b, .x = x}));
    REFUSED(pl_activation(run, (pl_act_args){.y = z, .x = x}));
    REFUSED(pl_activation(run, (pl_act_args){.y = x, .x = x, .up = b}));
    REFUSED(pl_activation(run, (pl_act_args){.y = x, .x = x, .act = PL_ACT_COUNT}));
    REFUSED(pl_activation(run, (pl_act_args){.y = x, .x = none}));
    REFUSED(pl_activation_backward(run, (pl_act_backward_args){.dx = x, .dy = x, .x = x, .up = x}));
    REFUSED(pl_activation_backward(run, (pl_act_backward_args){.dx = x, .dy = x, .x = x, .dup = x}));
    REFUSED(pl_activation_backward(run, (pl_act_backward_args){.dx = b, .dy = x, .x = x}));
    REFUSED(pl_activation_backward(run, (pl_act_backward_args){.dx = x, .dy = z, .x = x}));
    REFUSED(pl_activation_backward(run, (pl_act_backward_args){.dx = x, .dy = x, .x = x, .y = z}));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_accuracy),
        cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_gradients),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
