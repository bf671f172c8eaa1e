/* AdamW and SGD: against torch.optim's own steps (golden/make_optim.py), and the CPU against the oracle. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "io/safetensors.h"
#include "support/op_cases.h"

#define GOLDEN PLAIT_TEST_DIR "/golden/optim/"
#define STEPS 10
#define SIZE 77

/* What a golden case or a table of ours sets. */
typedef struct settings {
    bool adamw, nesterov;
    double lr, beta1, beta2, eps, weight_decay, momentum;
    int64_t step;
    float grad_scale;
} settings;

/* w, g, m, v, rest */
static int call_step(pl_run *run, const pl_tensor *t, const void *user)
{
    const settings *s = user;
    if (s->adamw) {
        return pl_adamw(run, (pl_adamw_args){.w = t[0],
                                 .g = t[1],
                                 .m = t[2],
                                 .v = t[3],
                                 .rest = t[4],
                                 .lr = s->lr,
                                 .beta1 = s->beta1,
                                 .beta2 = s->beta2,
                                 .eps = s->eps,
                                 .weight_decay = s->weight_decay,
                                 .grad_scale = s->grad_scale,
                                 .step = s->step});
    }
    return pl_sgd(run, (pl_sgd_args){.w = t[0],
                           .g = t[1],
                           .m = t[2],
                           .rest = t[4],
                           .lr = s->lr,
                           .momentum = s->momentum,
                           .weight_decay = s->weight_decay,
                           .grad_scale = s->grad_scale,
                           .nesterov = s->nesterov,
                           .step = s->step});
}

static settings read_settings(const char *name, const json_t *json)
{
    pl_error err = {0};
    settings s = {.adamw = strncmp(name, "adamw", 5) == 0, .grad_scale = 1};
    assert_int_equal(pl_json_real(&err, name, json, "lr", &s.lr), 0);
    assert_int_equal(pl_json_real(&err, name, json, "eps", &s.eps), 0);
    assert_int_equal(pl_json_real(&err, name, json, "weight_decay", &s.weight_decay), 0);
    assert_int_equal(pl_json_real(&err, name, json, "momentum", &s.momentum), 0);
    assert_int_equal(pl_json_bool(&err, name, json, "nesterov", &s.nesterov), 0);
    const json_t *betas = json_object_get(json, "betas");
    s.beta1 = json_number_value(json_array_get(betas, 0));
    s.beta2 = json_number_value(json_array_get(betas, 1));
    assert_true(s.lr > 0 && s.adamw == (betas != NULL));
    return s;
}

static void read_floats(const pl_safetensors *file, const char *name, int64_t first, int64_t count, double *out)
{
    pl_error err = {0};
    float values[SIZE];
    const pl_st_tensor *t = pl_safetensors_find(file, name);
    assert_non_null(t);
    if (pl_st_read(&err, t, first, count, PL_F32, values) < 0) fail_msg("%s", err.message);
    for (int64_t i = 0; i < count; i++) out[i] = values[i];
}

/* grad_scale is tried by handing in gradients that are so much larger. Split: w is bf16 and what that lacks. */
static void run_golden(
    const pl_safetensors *file, const char *name, settings s, int threads, float grad_scale, bool split)
{
    op_context context;
    op_open(&context, threads);
    op_operand vector = {.dtype = PL_F32, .rows = SIZE}, zeros = {.dtype = PL_F32, .rows = SIZE, .fill = OP_ZERO};
    op_operand half = {.dtype = PL_BF16, .rows = SIZE}, lack = {.dtype = PL_I16, .rows = SIZE};
    /* Without momentum SGD has no m; with it, m holds rubbish before the first step. */
    bool moment = s.adamw || s.momentum > 0;
    pl_tensor start = op_make(&context, &vector, 1), t[5] = {start, op_make(&context, &vector, 2), {0}, {0}, {0}};
    if (moment) t[2] = op_make(&context, s.adamw ? &zeros : &vector, 4);
    if (s.adamw) t[3] = op_make(&context, &zeros, 5);
    double values[SIZE], expected[SIZE];
    read_floats(file, "start", 0, SIZE, values);
    op_put(&context, start, values);
    if (split) {
        t[0] = op_make(&context, &half, 3);
        t[4] = op_make(&context, &lack, 6);
        assert_int_equal(pl_split_f32(&context.run, t[0], t[4], start), 0);
    }
    s.grad_scale = grad_scale;
    for (s.step = 1; s.step <= STEPS; s.step++) {
        read_floats(file, "grads", (s.step - 1) * SIZE, SIZE, values);
        for (int i = 0; i < SIZE; i++) values[i] /= grad_scale;
        op_put(&context, t[1], values);
        assert_int_equal(call_step(&context.run, t, &s), 0);
        read_floats(file, name, (s.step - 1) * SIZE, SIZE, expected);
        double *w = op_get(&context, t[0]), *rest = split ? op_get(&context, t[4]) : NULL;
        for (int i = 0; i < SIZE; i++) {
            double got = split ? pl_f32_join(pl_f32_to_bf16((float)w[i]), (int16_t)rest[i]) : w[i];
            /* Some f32 roundings a step, of numbers about 1 (up to about 10 for the steepest gradients of SGD). */
            if (!(fabs(got - expected[i]) <= 1e-6 * fmax(1, fabs(expected[i])))) {
                fail_msg("%s, step %d, element %d: %.9g, torch has %.9g", name, (int)s.step, i, got, expected[i]);
            }
            if (split) assert_true(w[i] == pl_bf16_to_f32(pl_f32_to_bf16((float)got)));
        }
        free(w);
        free(rest);
    }
    op_close(&context);
}

static void test_golden(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_safetensors *file;
    json_t *cases, *one;
    if (pl_safetensors_open(&err, GOLDEN "optim.safetensors", &file) < 0) fail_msg("%s", err.message);
    if (pl_json_read(&err, GOLDEN "cases.json", &cases) < 0) fail_msg("%s", err.message);
    const char *name;
    assert_int_equal(json_object_size(cases), 7);
    json_object_foreach(cases, name, one)
    {
        for (int way = 0; way < 8; way++) {
            run_golden(file, name, read_settings(name, one), way % 2, way & 2 ? 0.25f : 1, way & 4);
        }
    }
    json_decref(cases);
    pl_safetensors_close(file);
}

static void test_devices(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 7, 63, 64, 65, 577, 20000};
    static const settings cases[] = {
        {.adamw = true,
            .lr = 0.1,
            .beta1 = 0.9,
            .beta2 = 0.999,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .step = 1,
            .grad_scale = 0.3f},
        {.adamw = true, .lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .step = 1000, .grad_scale = 1},
        {.lr = 0.1, .weight_decay = 0.1, .step = 1, .grad_scale = 0.3f},
        {.lr = 0.1, .momentum = 0.9, .step = 1, .grad_scale = 1},
        {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.1, .step = 5, .grad_scale = 1},
        {.lr = 0.1, .momentum = 0.9, .nesterov = true, .weight_decay = 0.1, .step = 5, .grad_scale = 1},
    };
    for (int k = 0; k < PL_COUNT(cases); k++) {
        for (int s = 0; s < PL_COUNT(sizes); s++) {
            for (int split = 0; split < 2; split++) {
                bool moment = cases[k].adamw || cases[k].momentum > 0;
                op_operand f32 = {.dtype = PL_F32, .rows = sizes[s], .tolerance = 1e-6}, none = {0}, g = f32, w = f32;
                g.tolerance = 0;
                if (split) w.dtype = PL_BF16, w.tolerance = 0x1p-7;
                /* Squares: a second moment is never negative, and the root of a tiny one magnifies its rounding, so
                   it is kept away from 0 by being a whole number. */
                op_operand v = {.dtype = PL_F32, .rows = sizes[s], .fill = OP_RANGE, .tolerance = 1e-6};
                /* The devices' last bits differ, and what is lacking with them; the golden cases tell that it is right.
                 */
                op_operand rest = {.dtype = PL_I16, .rows = split ? sizes[s] : 0, .tolerance = 1e9};
                op_operand o[] = {w, g, moment ? f32 : none, cases[k].adamw ? v : none, rest};
                char name[64];
                snprintf(name, sizeof name, "optimizer %d of %d", k, (int)sizes[s]);
                op_check(name, o, 5, call_step, &cases[k]);
            }
        }
    }
}

/* Every kind of number, and those half way between two bf16 of either evenness. */
static void test_split(void **state)
{
    (void)state;
    static const uint32_t bits[] = {0, 0x80000000, 1, 0x7fff, 0x8000, 0x8001, 0x18000, 0x3f800000, 0x3f807fff,
        0x3f808000, 0x3f808001, 0x3f817fff, 0x3f818000, 0x3f818001, 0xbf808000, 0xbf818000, 0xbf80ffff, 0x3fffffff,
        0x3fff8000, 0x7f7fffff, 0xff7fffff, 0x7f7f8000, 0x7f800000, 0xff800000, 0x7f800001, 0x7fc00000, 0x7fffffff,
        0xffffffff};
    for (int i = 0; i < PL_COUNT(bits) + 100000; i++) {
        uint32_t before = i < PL_COUNT(bits) ? bits[i] : (uint32_t)i * 2654435761u;
        float x = pl_f32_from_bits(before);
        int16_t rest;
        uint16_t half = pl_f32_split(x, &rest);
        float joined = pl_f32_join(half, rest);
        assert_int_equal(half, pl_f32_to_bf16(x));
        bool half_way_down = (before & 0x1ffff) == 0x8000;
        if (isnan(x))
            assert_true(isnan(joined));
        else
            assert_int_equal(pl_f32_to_bits(joined), before - half_way_down);
        assert_int_equal(pl_f32_split(joined, &rest), half); /* nothing moves twice */
        if (!isnan(x)) assert_int_equal(pl_f32_to_bits(pl_f32_join(half, rest)), pl_f32_to_bits(joined));
    }
}

static int call_split(pl_run *run, const pl_tensor *t, const void *user)
{
    (void)user;
    return pl_split_f32(run, t[0], t[1], t[2]);
}

static void test_split_devices(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 15, 64, 4095, 4097, 20000};
    for (int s = 0; s < PL_COUNT(sizes); s++) {
        op_operand o[] = {{.dtype = PL_BF16, .rows = sizes[s]}, {.dtype = PL_I16, .rows = sizes[s]},
            {.dtype = PL_F32, .rows = sizes[s]}};
        char name[64];
        snprintf(name, sizeof name, "split of %d", (int)sizes[s]);
        op_check(name, o, 3, call_split, NULL);
    }
}

static void test_refusals(void **state)
{
    (void)state;
    op_context context;
    op_open(&context, 1);
    pl_tensor x = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3}, 1), none = {0};
    pl_tensor y = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 4}, 1);
    pl_tensor half = op_make(&context, &(op_operand){.dtype = PL_BF16, .rows = 3}, 1);
    pl_tensor lack = op_make(&context, &(op_operand){.dtype = PL_I16, .rows = 3}, 1);
    pl_tensor longer = op_make(&context, &(op_operand){.dtype = PL_I16, .rows = 4}, 1);
    pl_tensor matrix = op_make(&context, &(op_operand){.dtype = PL_F32, .rows = 3, .columns = 1}, 1);
    pl_run *run = &context.run;
#define REFUSED(call)                                                                                                  \
    do {                                                                                                               \
        assert_int_equal(call, PL_EBUG);                                                                               \
        assert_true(context.err.message[0] != 0);                                                                      \
        pl_error_clear(&context.err);                                                                                  \
    } while (0)
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = x, .g = x, .m = x, .v = none, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = x, .g = y, .m = x, .v = x, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = x, .g = x, .m = x, .v = x, .step = 0}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = half, .g = x, .m = x, .v = x, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = matrix, .g = x, .m = x, .v = x, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = x, .rest = lack, .g = x, .m = x, .v = x, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = half, .rest = half, .g = x, .m = x, .v = x, .step = 1}));
    REFUSED(pl_adamw(run, (pl_adamw_args){.w = half, .rest = longer, .g = x, .m = x, .v = x, .step = 1}));
    REFUSED(pl_sgd(run, (pl_sgd_args){.w = half, .g = x, .step = 1}));
    REFUSED(pl_split_f32(run, half, lack, y));
    REFUSED(pl_split_f32(run, x, lack, x));
    REFUSED(pl_split_f32(run, half, half, x));
    REFUSED(pl_sgd(run, (pl_sgd_args){.w = x, .g = x, .momentum = 0.9, .step = 1}));
    REFUSED(pl_sgd(run, (pl_sgd_args){.w = x, .g = x, .nesterov = true, .step = 1}));
    REFUSED(pl_sgd(run, (pl_sgd_args){.w = x, .g = x, .step = 0}));
    REFUSED(pl_sgd(run, (pl_sgd_args){.w = x, .g = x, .m = y, .momentum = 0.9, .step = 1}));
    op_close(&context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_devices),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
