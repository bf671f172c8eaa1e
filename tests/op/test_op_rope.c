/* Rotary positions. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

typedef struct rope_case {
    int64_t rows;
    int heads, head_dim, half;
    int64_t apart; /* elements between a head's end and the next head's start, as in a fused projection */
    int64_t gap;
    bool backward;
} rope_case;

#define POSITIONS 50

static int call_rope(pl_run *run, const pl_tensor *t, const void *user)
{
    const rope_case *c = user;
    pl_heads x = {.t = t[0], .heads = c->heads, .head_dim = c->head_dim, .stride = c->head_dim + c->apart};
    return pl_rope(run, (pl_rope_args){.x = x, .cos = t[1], .sin = t[2], .positions = t[3], .backward = c->backward});
}

static int64_t row_of(const rope_case *c)
{
    return c->heads * (c->head_dim + c->apart);
}

static void test_devices(void **state)
{
    (void)state;
    static const rope_case cases[] = {
        {1, 1, 2, 1, 0, 0, false},
        {7, 3, 14, 7, 0, 0, false},
        {63, 2, 64, 32, 0, 5, false},
        {65, 4, 64, 32, 128, 0, true}, /* q inside q, k, v of each head */
        {64, 1, 80, 16, 0, 3, true},   /* partial */
        {33, 2, 126, 63, 1, 1, true},
        {577, 3, 64, 32, 0, 0, false},
    };
    for (int k = 0; k < PL_COUNT(cases); k++) {
        const rope_case *c = &cases[k];
        for (int d = 0; d < 2; d++) {
            pl_dtype dtype = d ? PL_BF16 : PL_F32;
            op_operand o[] = {
                /* Two products and a sum in f32; in bf16 one unit of 8 bits where the two round apart. */
                {.dtype = dtype, .rows = c->rows, .columns = row_of(c), .gap = c->gap, .tolerance = d ? 0x1p-7 : 3e-7},
                {.dtype = PL_F32, .rows = POSITIONS, .columns = c->half, .scale = 0.7},
                {.dtype = PL_F32, .rows = POSITIONS, .columns = c->half, .scale = 0.7},
                {.dtype = PL_I32, .rows = c->rows, .fill = OP_INDEX, .limit = POSITIONS},
            };
            char name[64];
            snprintf(name, sizeof name, "rope %d %s", k, pl_dtype_name(dtype));
            op_check(name, o, 4, call_rope, c);
        }
    }
}

/* Dims d and d + half turn by the angle of (position, d); the rest stays; backward undoes it. */
static void test_formula(void **state)
{
    (void)state;
    const rope_case forward = {.rows = 5, .heads = 2, .head_dim = 10, .half = 3, .apart = 4},
                    backward = {.rows = 5, .heads = 2, .head_dim = 10, .half = 3, .apart = 4, .backward = true};
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        int64_t columns = row_of(&forward);
        op_operand table = {.dtype = PL_F32, .rows = POSITIONS, .columns = 3};
        pl_tensor t[] = {
            op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 5, .columns = columns}, 1),
            op_make(&context, &table, 2),
            op_make(&context, &table, 3),
            op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 5, .fill = OP_INDEX, .limit = POSITIONS}, 4),
        };
        double c[POSITIONS * 3], s[POSITIONS * 3];
        for (int i = 0; i < POSITIONS * 3; i++) {
            double angle = i / 3 * pow(100, -(i % 3) / 3.0);
            c[i] = cos(angle);
            s[i] = sin(angle);
        }
        op_put(&context, t[1], c);
        op_put(&context, t[2], s);
        double *before = op_get(&context, t[0]), *positions = op_get(&context, t[3]);
        assert_int_equal(call_rope(&context.run, t, &forward), 0);
        double *turned = op_get(&context, t[0]);
        for (int64_t e = 0; e < 5 * columns; e++) {
            int64_t row = e / columns, d = e % columns % 14, i = (int64_t)positions[row] * 3 + d % 3;
            double expected = before[e]; /* dims 6..9 are not rotated, 10..13 are between the heads */
            if (d < 3)
                expected = before[e] * c[i] - before[e + 3] * s[i];
            else if (d < 6)
                expected = before[e] * c[i] + before[e - 3] * s[i];
            assert_true(fabs(turned[e] - expected) < 1e-6);
        }
        assert_int_equal(call_rope(&context.run, t, &backward), 0);
        double *again = op_get(&context, t[0]);
        for (int64_t e = 0; e < 5 * columns; e++) assert_true(fabs(again[e] - before[e]) < 1e-6);
        free(before);
        free(positions);
        free(turned);
        free(again);
        op_close(&context);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 16}, 1);
    pl_tensor table = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 9, .columns = 4}, 2);
    pl_tensor wide = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 9, .columns = 5}, 2);
    pl_tensor positions = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 3, .fill = OP_ZERO}, 3);
    pl_rope_args good = {.x = {x, 2, 8, 8}, .cos = table, .sin = table, .positions = positions}, a;
    assert_int_equal(pl_rope(&context.run, good), 0);
#define REFUSED(field, value)                                                                                          \
    do {                                                                                                               \
        a = good;                                                                                                      \
        a.field = value;                                                                                               \
        assert_int_equal(pl_rope(&context.run, a), PL_EBUG);                                                           \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(sin, wide);
    REFUSED(positions, table);
    REFUSED(x.heads, 3);
    REFUSED(x.stride, 7);
    REFUSED(x.head_dim, 7);
    REFUSED(x.t, positions);
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_formula),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
