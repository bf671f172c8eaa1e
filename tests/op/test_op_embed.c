/* Embedding rows, and the scatter of their gradients. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

static const struct {
    int64_t rows, hidden, vocab;
} sizes[] = {{1, 1, 1}, {7, 63, 5}, {64, 64, 1000}, {65, 65, 3}, {130, 577, 50}, {33, 1100, 40}};

typedef struct embed_case {
    float scale;
    int64_t offset;
} embed_case;

static int call_embed(pl_run *run, const pl_tensor *t, const void *user)
{
    const embed_case *c = user;
    return pl_embed(run, (pl_embed_args){.y = t[0],
                             .table = t[1],
                             .ids = t[2],
                             .position_table = t[3],
                             .positions = t[4],
                             .scale = c->scale,
                             .position_offset = c->offset});
}

static void test_embed(void **state)
{
    (void)state;
    static const embed_case cases[] = {{1, 0}, {22.6f, 2}};
    for (int bits = 0; bits < 16; bits++) {
        pl_dtype ty = bits & 1 ? PL_BF16 : PL_F32, tt = bits & 2 ? PL_BF16 : PL_F32;
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, h = sizes[s].hidden;
            /* One product and one sum in f32; in bf16 one unit of 8 bits where the two round apart. */
            op_operand o[] = {
                {.dtype = ty, .rows = r, .columns = h, .gap = s % 2, .tolerance = ty == PL_F32 ? 2e-7 : 0x1p-7},
                {.dtype = tt, .rows = sizes[s].vocab, .columns = h},
                {.dtype = PL_I32, .rows = r, .fill = OP_INDEX, .limit = sizes[s].vocab},
                {.dtype = tt, .rows = bits & 4 ? 60 : 0, .columns = h},
                {.dtype = PL_I32, .rows = bits & 4 ? r : 0, .fill = OP_INDEX, .limit = 50},
            };
            op_check("embed", o, 5, call_embed, &cases[bits >> 3]);
        }
    }
}

static int call_backward(pl_run *run, const pl_tensor *t, const void *user)
{
    const embed_case *c = user;
    return pl_embed_backward(
        run, (pl_embed_backward_args){.dtable = t[0], .dy = t[1], .ids = t[2], .scale = c->scale, .offset = c->offset});
}

static void test_backward(void **state)
{
    (void)state;
    static const embed_case cases[] = {{1, 0}, {22.6f, 2}};
    for (int bits = 0; bits < 4; bits++) {
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            int64_t r = sizes[s].rows, h = sizes[s].hidden;
            op_operand o[] = {
                /* Up to 65 rows added to one in f32, of which both round every sum: an ulp each at worst, mostly far
                   less. */
                {.dtype = PL_F32, .rows = sizes[s].vocab + 2, .columns = h, .tolerance = 1e-6},
                {.dtype = bits & 1 ? PL_BF16 : PL_F32, .rows = r, .columns = h, .gap = s % 3},
                {.dtype = PL_I32, .rows = r, .fill = OP_INDEX, .limit = sizes[s].vocab},
            };
            op_check("embed_backward", o, 3, call_backward, &cases[bits >> 1]);
        }
    }
}

/* Repeated ids add up, other rows stay. */
static void test_by_hand(void **state)
{
    (void)state;
    for (int threads = 0; threads < 2; threads++) {
        op_context context;
        op_open(&context, threads);
        pl_tensor dtable = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4, .columns = 2}, 1);
        pl_tensor dy = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 2}, 2);
        pl_tensor ids = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 3}, 3);
        op_put(&context, dtable, (double[]){1, 2, 3, 4, 5, 6, 7, 8});
        op_put(&context, dy, (double[]){10, 20, 30, 40, 50, 60});
        op_put(&context, ids, (double[]){2, 0, 2});
        pl_embed_backward_args args = {.dtable = dtable, .dy = dy, .ids = ids, .scale = 0.5f};
        assert_int_equal(pl_embed_backward(&context.run, args), 0);
        static const double expected[] = {16, 22, 3, 4, 35, 46, 7, 8};
        double *v = op_get(&context, dtable);
        for (int i = 0; i < 8; i++) assert_true(v[i] == expected[i]);
        free(v);
        op_close(&context);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor y = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 4}, 1), none = {0};
    pl_tensor wide = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 5}, 1);
    pl_tensor half = op_make(&context, &(op_operand){.dtype = PL_BF16, .rows = 3, .columns = 4}, 1);
    pl_tensor ids = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 3, .fill = OP_ZERO}, 2);
    pl_tensor four = op_make(&context, &(op_operand){.dtype = PL_I32, .rows = 4, .fill = OP_ZERO}, 2);
    pl_run *run = &context.run;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_embed(run, (pl_embed_args){.y = y, .table = wide, .ids = ids}));
    REFUSED(pl_embed(run, (pl_embed_args){.y = y, .table = y, .ids = four}));
    REFUSED(pl_embed(run, (pl_embed_args){.y = y, .table = y, .ids = none}));
    REFUSED(pl_embed(run, (pl_embed_args){.y = y, .table = y, .ids = ids, .position_table = y}));
    REFUSED(pl_embed(run, (pl_embed_args){.y = y, .table = y, .ids = ids, .position_table = wide, .positions = ids}));
    REFUSED(pl_embed_backward(run, (pl_embed_backward_args){.dtable = half, .dy = y, .ids = ids}));
    REFUSED(pl_embed_backward(run, (pl_embed_backward_args){.dtable = y, .dy = wide, .ids = ids}));
    REFUSED(pl_embed_backward(run, (pl_embed_backward_args){.dtable = y, .dy = y, .ids = four}));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_embed),
        cmocka_unit_test(test_backward),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
