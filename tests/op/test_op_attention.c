#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/op_cases.h"

/* Scores are sums of head_dim products of normal numbers, scaled back to about 1: their f32 error is about 1e-6 and
   goes into the probabilities as it is; outputs are averages, gradients sums, of numbers of about the same size. */
#define F32_TOLERANCE 1e-5
/* bf16 results round to neighbours (a step is at most 2^-7 of a number), and fast kernels may round probabilities to
   bf16 before they multiply: 2^-9 each, of random sign. */
#define BF16_TOLERANCE 0.01
/* The gradient's probabilities are weighed by dout.v - delta, and delta by the rounded output: some more roundings. */
#define BF16_BACKWARD_TOLERANCE 0.02

#define MAX_SEQUENCES 6

typedef struct attention_case {
    int heads, kv_heads, head_dim;
    int64_t window;
    float softcap;
    int64_t gap;
    bool fused; /* q, k and v are neighbours within each head of one matrix, as GPT-NeoX has them */
    int nsequences;
    pl_sequence sequences[MAX_SEQUENCES];
    pl_dtype dtype;
    bool no_lse;
} attention_case;

static void rows_of(const attention_case *c, int64_t *q, int64_t *k)
{
    *q = *k = 1;
    for (int i = 0; i < c->nsequences; i++) {
        *q =
            *q > c->sequences[i].q_begin + c->sequences[i].q_len ? *q : c->sequences[i].q_begin + c->sequences[i].q_len;
        *k =
            *k > c->sequences[i].k_begin + c->sequences[i].k_len ? *k : c->sequences[i].k_begin + c->sequences[i].k_len;
    }
}

static pl_heads heads_of(const attention_case *c, pl_tensor t, int heads, int part)
{
    pl_heads h = {.t = t, .heads = heads, .head_dim = c->head_dim, .stride = c->head_dim};
    if (!c->fused) return h;
    h.stride = 3 * c->head_dim;
    h.t = pl_tensor_columns(t, part * c->head_dim, t.shape[1] - part * c->head_dim);
    return h;
}

static pl_attention_args forward_args(const attention_case *c, pl_tensor out, pl_tensor lse, const pl_tensor qkv[3])
{
    pl_heads out_heads = {.t = out, .heads = c->heads, .head_dim = c->head_dim, .stride = c->head_dim};
    return (pl_attention_args){.out = out_heads,
        .q = heads_of(c, qkv[0], c->heads, 0),
        .k = heads_of(c, qkv[1], c->kv_heads, 1),
        .v = heads_of(c, qkv[2], c->kv_heads, 2),
        .lse = c->no_lse ? (pl_tensor){0} : lse,
        .sequences = c->sequences,
        .nsequences = c->nsequences,
        .scale = 1 / sqrtf((float)c->head_dim),
        .softcap = c->softcap,
        .window = c->window};
}

/* Operands: out, lse, q, k, v. */
static int run_forward(pl_run *run, const pl_tensor *t, const void *user)
{
    return pl_attention(run, forward_args(user, t[0], t[1], t + 2));
}

/* Operands: out, lse, q, k, v, dq, dk, dv, dout. */
static int run_both(pl_run *run, const pl_tensor *t, const void *user)
{
    const attention_case *c = user;
    pl_attention_args f = forward_args(c, t[0], t[1], t + 2);
    PL_TRY(pl_attention(run, f));
    pl_heads dout = f.out;
    dout.t = t[8];
    return pl_attention_backward(run, (pl_attention_backward_args){.dq = heads_of(c, t[5], c->heads, 0),
                                          .dk = heads_of(c, t[6], c->kv_heads, 1),
                                          .dv = heads_of(c, t[7], c->kv_heads, 2),
                                          .dout = dout,
                                          .out = f.out,
                                          .q = f.q,
                                          .k = f.k,
                                          .v = f.v,
                                          .lse = f.lse,
                                          .sequences = f.sequences,
                                          .nsequences = f.nsequences,
                                          .scale = f.scale,
                                          .softcap = f.softcap,
                                          .window = f.window});
}

/* The first five are the forward's. */
static int list_operands(const attention_case *c, op_operand o[9])
{
    int64_t q_rows, k_rows, width = c->heads * c->head_dim, kv_width = c->kv_heads * c->head_dim;
    rows_of(c, &q_rows, &k_rows);
    double forward = c->dtype == PL_F32 ? F32_TOLERANCE : BF16_TOLERANCE;
    double backward = c->dtype == PL_F32 ? F32_TOLERANCE : BF16_BACKWARD_TOLERANCE;
    op_operand q = {.dtype = c->dtype, .rows = q_rows, .columns = width, .gap = c->gap}, k = q, out = q;
    k.rows = k_rows;
    k.columns = kv_width;
    if (c->fused) q.columns = 3 * width;
    op_operand list[9] = {out, {.rows = c->heads, .columns = q_rows}, q, k, k, q, k, k, out};
    if (c->fused) {
        list[3].alias = list[4].alias = 3;
        list[6].alias = list[7].alias = 6;
    }
    list[0].tolerance = forward;
    list[1].tolerance = c->dtype == PL_F32 ? 3e-6 : 1e-5; /* of log-sum-exps of 5 or so */
    for (int i = 5; i < 8; i++) list[i].tolerance = backward;
    memcpy(o, list, sizeof list);
    return PL_COUNT(list);
}

static void check_case(attention_case c, bool backward)
{
    for (int d = 0; d < 2; d++) {
        c.dtype = d ? PL_BF16 : PL_F32;
        char name[200];
        snprintf(name, sizeof name,
            "%s, %d heads on %d of %d%s, window %lld, softcap %g, %d sequences, first %lld + %lld",
            pl_dtype_name(c.dtype), c.heads, c.kv_heads, c.head_dim, c.fused ? ", fused" : "", (long long)c.window,
            (double)c.softcap, c.nsequences, (long long)c.sequences[0].q_len, (long long)c.sequences[0].k_len);
        op_operand o[9];
        int n = list_operands(&c, o);
        if (backward) {
            op_check(name, o, n, run_both, &c);
        } else {
            op_check(name, o, 5, run_forward, &c);
        }
    }
}

/* Sequences of training: queries and keys are the same rows. Lengths end with 0. */
static attention_case training(int heads, int kv_heads, int head_dim, const int64_t *lengths)
{
    attention_case c = {.heads = heads, .kv_heads = kv_heads, .head_dim = head_dim};
    int64_t at = 0;
    for (; lengths[c.nsequences]; c.nsequences++) {
        c.sequences[c.nsequences] = (pl_sequence){at, lengths[c.nsequences], at, lengths[c.nsequences]};
        at += lengths[c.nsequences];
    }
    return c;
}

static void head_dims(void **state)
{
    (void)state;
    const int dims[] = {1, 3, 8, 16, 20, 64, 80, 96, 128, 256};
    for (int i = 0; i < PL_COUNT(dims); i++) {
        check_case(training(2, 1, dims[i], (int64_t[]){37, 0}), true);
        check_case(training(3, 3, dims[i], (int64_t[]){5, 1, 20, 0}), true);
    }
}

/* Across the blocks of queries and keys, whole ones and rests. */
static void lengths(void **state)
{
    (void)state;
    check_case(training(2, 2, 12, (int64_t[]){1, 0}), false); /* one key: no gradient but rounding */
    const int64_t several[] = {2, 13, 47, 48, 49, 64, 127, 128, 129, 144, 200, 256, 300};
    for (int i = 0; i < PL_COUNT(several); i++) check_case(training(2, 2, 12, (int64_t[]){several[i], 0}), true);
    check_case(training(4, 2, 16, (int64_t[]){150, 1, 70, 33, 140, 0}), true);
}

static void groups(void **state)
{
    (void)state;
    check_case(training(9, 3, 16, (int64_t[]){60, 140, 0}), true);
    check_case(training(8, 1, 16, (int64_t[]){131, 0}), true);
    check_case(training(21, 1, 8, (int64_t[]){55, 0}), true); /* more than are taken at once */
}

static void windows_and_caps(void **state)
{
    (void)state;
    const int64_t windows[] = {1, 2, 7, 31, 48, 100, 128, 130, 200, 1000};
    for (int i = 0; i < PL_COUNT(windows); i++) {
        attention_case c = training(2, 1, 8, (int64_t[]){290, 40, 0});
        c.window = windows[i];
        check_case(c, windows[i] > 1); /* of one key no gradient but rounding */
    }
    attention_case c = training(4, 2, 24, (int64_t[]){70, 130, 0});
    c.softcap = 3;
    check_case(c, true);
    c.softcap = 50;
    c.window = 33;
    check_case(c, true);
}

/* Rows between sequences are left alone: the oracle's stay as they were made. */
static void layouts(void **state)
{
    (void)state;
    attention_case c = training(3, 3, 20, (int64_t[]){50, 30, 0});
    c.gap = 5;
    check_case(c, true);
    c = training(3, 3, 20, (int64_t[]){50, 130, 0});
    c.fused = true;
    check_case(c, true);
    c = training(4, 2, 16, (int64_t[]){30, 20, 0});
    c.sequences[0].q_begin = c.sequences[0].k_begin = 3;
    c.sequences[1].q_begin = c.sequences[1].k_begin = 40;
    check_case(c, true);
    c = training(4, 2, 16, (int64_t[]){30, 20, 0});
    c.no_lse = true;
    check_case(c, false);
    c.nsequences = 0;
    check_case(c, false);
    c = training(4, 2, 16, (int64_t[]){30, 20, 0});
    c.sequences[1].q_len = c.sequences[1].k_len = 0;
    check_case(c, true);
}

static void caches(void **state)
{
    (void)state;
    const int64_t lengths_of[][2] = {
        {1, 1}, {1, 2}, {1, 17}, {1, 128}, {1, 129}, {1, 300}, {4, 5}, {5, 260}, {50, 61}, {60, 200}, {130, 137}};
    for (int i = 0; i < PL_COUNT(lengths_of); i++) {
        int64_t q = lengths_of[i][0], k = lengths_of[i][1];
        for (int windowed = 0; windowed < 2; windowed++) {
            attention_case c = {
                .heads = 6, .kv_heads = 2, .head_dim = 24, .nsequences = 2, .window = windowed ? 20 : 0};
            c.sequences[0] = (pl_sequence){0, q, 0, k};
            c.sequences[1] = (pl_sequence){q, 1, k + 3, 40};
            check_case(c, false);
            c.head_dim = 64;
            c.softcap = windowed ? 4 : 0;
            c.sequences[1] = (pl_sequence){q + 2, 2, k, 2};
            check_case(c, false);
        }
    }
}

static void gradients(void **state)
{
    (void)state;
    for (int form = 0; form < 4; form++) {
        attention_case c = training(4, 2, 3, (int64_t[]){4, 1, 3, 0});
        c.window = form & 1 ? 2 : 0;
        c.softcap = form & 2 ? 1.5f : 0;
        op_context context;
        op_open(&context, 0);
        op_operand o[9];
        pl_tensor t[9];
        list_operands(&c, o);
        for (int i = 0; i < 9; i++) t[i] = op_make(&context, &o[i], (uint64_t)i + 1);
        assert_int_equal(run_both(&context.run, t, &c), 0);
        const char *names[] = {"q", "k", "v"};
        for (int i = 0; i < 3; i++) {
            op_check_gradient(names[i], &context, run_forward, t, &c, t[0], t[8], t[2 + i], t[5 + i], 0x1p-5, 0, 5e-5);
        }
        op_close(&context);
    }
}

/* A key beyond a query's position has no influence, even if it holds NaN. */
static void future_is_not_read(void **state)
{
    (void)state;
    for (int threads = 0; threads < 3; threads++) {
        attention_case c = training(2, 2, 16, (int64_t[]){150, 0});
        op_context context;
        op_open(&context, threads);
        op_operand o[9];
        pl_tensor t[9];
        list_operands(&c, o);
        for (int i = 0; i < 5; i++) t[i] = op_make(&context, &o[i], (uint64_t)i + 1);
        assert_int_equal(run_forward(&context.run, t, &c), 0);
        double *before = op_get(&context, t[0]), *k = op_get(&context, t[3]);
        for (int64_t i = 149 * 32; i < 150 * 32; i++) k[i] = 1e30;
        op_put(&context, t[3], k);
        assert_int_equal(run_forward(&context.run, t, &c), 0);
        double *after = op_get(&context, t[0]);
        assert_memory_equal(before, after, 149 * 32 * sizeof(double));
        assert_memory_not_equal(before + 149 * 32, after + 149 * 32, 32 * sizeof(double));
        free(before);
        free(after);
        free(k);
        op_close(&context);
    }
}

static void wrong_operands(void **state)
{
    (void)state;
    attention_case c = training(4, 2, 8, (int64_t[]){6, 4, 0});
    op_context context;
    op_open(&context, 0);
    op_operand o[9];
    pl_tensor t[9];
    list_operands(&c, o);
    for (int i = 0; i < 9; i++) t[i] = op_make(&context, &o[i], (uint64_t)i + 1);
    pl_attention_args good = forward_args(&c, t[0], t[1], t + 2);
    assert_int_equal(pl_attention(&context.run, good), 0);
    /* 21 + 10 pairs, 4 heads of 8. */
    assert_true(context.run.counters.attention_flops == 4.0 * 31 * 4 * 8);
    assert_int_equal(run_both(&context.run, t, &c), 0);
    assert_true(context.run.counters.attention_flops == 18.0 * 31 * 4 * 8);
    c.window = 3; /* 1 + 2 + 3 * 4 and 1 + 2 + 3 * 2 pairs */
    context.run.counters.attention_flops = 0;
    assert_int_equal(run_forward(&context.run, t, &c), 0);
    assert_true(context.run.counters.attention_flops == 4.0 * 24 * 4 * 8);
    pl_sequence beyond = {0, 11, 0, 11}, shorter = {0, 5, 0, 4}, negative = {-1, 2, 0, 3};
    pl_attention_args bad[] = {good, good, good, good, good, good, good, good, good};
    bad[0].k.heads = 3;
    bad[1].v.head_dim = 7;
    bad[2].out.t = pl_tensor_rows(t[0], 0, 9);
    bad[3].lse = pl_tensor_rows(t[1], 0, 3);
    bad[4].q.t.dtype = PL_I32;
    bad[5].sequences = &beyond;
    bad[6].sequences = &shorter;
    bad[7].sequences = &negative;
    bad[8].window = -1;
    for (int i = 0; i < PL_COUNT(bad); i++) {
        if (i >= 5 && i < 8) bad[i].nsequences = 1;
        assert_int_equal(pl_attention(&context.run, bad[i]), PL_EBUG);
        pl_error_clear(&context.err);
    }
    c.sequences[1].q_len = 2;
    assert_int_equal(run_both(&context.run, t, &c), PL_EBUG);
    pl_error_clear(&context.err);
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(head_dims),
        cmocka_unit_test(lengths),
        cmocka_unit_test(groups),
        cmocka_unit_test(windows_and_caps),
        cmocka_unit_test(layouts),
        cmocka_unit_test(caches),
        cmocka_unit_test(gradients),
        cmocka_unit_test(future_is_not_read),
        cmocka_unit_test(wrong_operands),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
