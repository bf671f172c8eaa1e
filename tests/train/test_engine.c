/* What a step must not depend on: recomputation, threads, how its rows are cut into micro-batches. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

#define OK(g, call)                                                                                                    \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, (g)->err.message);                                                   \
    } while (0)

#define STEPS 3

/* What some steps gave. */
typedef struct outcome {
    int n; /* parameters that train */
    char *names[256];
    float *gradients[256], *values[256]; /* of the last step */
    int64_t sizes[256];
    double loss[STEPS], norm[STEPS];
} outcome;

static void keep(golden *g, outcome *o)
{
    for (int i = 0; i < g->model->nparams; i++) {
        const pl_param *p = g->model->params[i];
        if (!p->trainable) continue;
        assert_true(o->n < 256);
        o->names[o->n] = strdup(p->name);
        o->sizes[o->n] = pl_param_numel(p);
        o->gradients[o->n] = golden_fetch(g, p->grad);
        o->values[o->n++] = golden_state(g, p, PL_STATE_MASTER);
    }
}

static void drop(outcome *o)
{
    for (int i = 0; i < o->n; i++) {
        free(o->names[i]);
        free(o->gradients[i]);
        free(o->values[i]);
    }
}

static void take_steps(golden *g, golden_micros *micros, int steps, outcome *o)
{
    pl_feed feed = {.user = micros, .micro_batch = golden_feed};
    *o = (outcome){0};
    for (int s = 0; s < steps; s++) {
        pl_step_result r;
        OK(g, pl_engine_step(g->engine, &feed, s + 1, micros->count, golden_targets(micros), 1e-3, &r));
        o->loss[s] = r.loss;
        o->norm[s] = r.grad_norm;
    }
    keep(g, o);
}

static void run(const char *name, const golden_options *options, int micro_batches, int steps, outcome *o)
{
    golden g;
    golden_micros micros;
    golden_open(&g, golden_path(name), golden_path(name), options);
    golden_split(&g, &micros, micro_batches);
    take_steps(&g, &micros, steps, o);
    golden_micros_close(&micros);
    golden_close(&g);
}

static void expect_same_bits(const char *what, const outcome *a, const outcome *b)
{
    assert_int_equal(a->n, b->n);
    for (int s = 0; s < STEPS; s++) {
        if (a->loss[s] != b->loss[s] || a->norm[s] != b->norm[s]) {
            fail_msg("%s, step %d: loss %.17g and %.17g, norm %.17g and %.17g", what, s + 1, a->loss[s], b->loss[s],
                a->norm[s], b->norm[s]);
        }
    }
    for (int i = 0; i < a->n; i++) {
        if (memcmp(a->gradients[i], b->gradients[i], (size_t)a->sizes[i] * 4) != 0)
            fail_msg("%s: the gradient of %s differs", what, a->names[i]);
        if (memcmp(a->values[i], b->values[i], (size_t)a->sizes[i] * 4) != 0)
            fail_msg("%s: %s differs", what, a->names[i]);
    }
}

/* Each tensor's gradients within `tolerance` of its largest one. The floor is for key biases and what else has a
   gradient of zero but for rounding. */
static void expect_near(const char *what, const outcome *a, const outcome *b, double tolerance, double floor)
{
    assert_int_equal(a->n, b->n);
    for (int i = 0; i < a->n; i++) {
        double largest = floor;
        for (int64_t e = 0; e < a->sizes[i]; e++) largest = fmax(largest, fabs((double)a->gradients[i][e]));
        for (int64_t e = 0; e < a->sizes[i]; e++) {
            double x = (double)a->gradients[i][e], y = (double)b->gradients[i][e];
            if (!(fabs(x - y) <= tolerance * largest)) {
                fail_msg("%s: the gradient of %s at %lld is %.9g and %.9g; the largest is %.3g", what, a->names[i],
                    (long long)e, x, y, largest);
            }
        }
    }
}

/* ---- recomputation ---- */

static void check_recompute(const char *name, golden_options options)
{
    outcome kept, again;
    char what[128];
    options.training = true;
    options.clip = 1;
    run(name, &options, 2, STEPS, &kept);
    assert_true(kept.loss[STEPS - 1] < kept.loss[0]); /* it does learn */
    for (options.recompute = 1; options.recompute <= 2; options.recompute++) {
        snprintf(what, sizeof what, "%s in %s, recompute %d", name, pl_dtype_name(options.dtype), options.recompute);
        run(name, &options, 2, STEPS, &again);
        expect_same_bits(what, &kept, &again);
        drop(&again);
    }
    drop(&kept);
}

static void recomputation_changes_no_bit(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "olmo2", "gpt2", "gpt_neox", "phi", "opt", "granite"};
    const pl_dtype dtypes[] = {PL_F32, PL_BF16};
    for (int i = 0; i < PL_COUNT(names); i++) {
        for (int d = 0; d < 2; d++) check_recompute(names[i], (golden_options){.dtype = dtypes[d]});
    }
}

/* Dropout is drawn again by number, and DoRA's factor is made again. */
static void recomputation_of_adapters_changes_no_bit(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "gpt2"};
    for (int i = 0; i < PL_COUNT(names); i++) {
        check_recompute(names[i], (golden_options){.dtype = PL_F32, .lora = true, .dropout = 0.1});
        check_recompute(names[i], (golden_options){.dtype = PL_BF16, .dora = true});
        check_recompute(names[i], (golden_options){.dtype = PL_F32, .dora = true, .dropout = 0.1});
    }
}

/* ---- threads ---- */

/* Our own operators give the same bits with any number of threads (op_check sees to that). The matrix products are
   oneDNN's, which may split a sum among threads: those sums have at most 112 terms here, so they agree to some 1e-7 of
   what is largest, and a chain of some ten of them to 1e-6. */
static void threads_change_rounding_alone(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gemma2", "gpt2", "gpt_neox", "olmo2"};
    for (int i = 0; i < PL_COUNT(names); i++) {
        outcome one, more;
        golden_options options = {.training = true, .dtype = PL_F32, .threads = 1};
        run(names[i], &options, 1, 1, &one);
        for (options.threads = 2; options.threads <= 3; options.threads++) {
            run(names[i], &options, 1, 1, &more);
            if (fabs(more.loss[0] - one.loss[0]) > 1e-6 * one.loss[0])
                fail_msg("%s: loss %.9g and %.9g", names[i], one.loss[0], more.loss[0]);
            expect_near(names[i], &one, &more, 1e-6, 1e-2);
            drop(&more);
        }
        drop(&one);
    }
}

static void the_same_threads_give_the_same_bits(void **state)
{
    (void)state;
    outcome a, b;
    golden_options options = {.training = true, .dtype = PL_BF16, .threads = 3, .dora = true, .dropout = 0.2};
    run("llama", &options, 2, STEPS, &a);
    run("llama", &options, 2, STEPS, &b);
    expect_same_bits("twice the same", &a, &b);
    drop(&a);
    drop(&b);
}

/* ---- accumulation ---- */

/* A sum over rows in one product or in two, in f32: 1e-6 as above. */
static void micro_batches_add_up(void **state)
{
    (void)state;
    static const char *const names[] = {"llama", "gpt2", "gemma2", "opt"};
    for (int i = 0; i < PL_COUNT(names); i++) {
        outcome whole, parts;
        golden_options options = {.training = true, .dtype = PL_F32};
        run(names[i], &options, 1, 1, &whole);
        run(names[i], &options, 2, 1, &parts);
        if (fabs(whole.loss[0] - parts.loss[0]) > 1e-6 * whole.loss[0])
            fail_msg("%s: loss %.9g and %.9g", names[i], whole.loss[0], parts.loss[0]);
        if (fabs(whole.norm[0] - parts.norm[0]) > 1e-6 * whole.norm[0])
            fail_msg("%s: norm %.9g and %.9g", names[i], whole.norm[0], parts.norm[0]);
        expect_near(names[i], &whole, &parts, 1e-6, 1e-2);
        drop(&whole);
        drop(&parts);
    }
}

/* Takes the targets of all but the first `leave` trained tokens away. */
static void untrain(pl_batch *batch, int leave)
{
    int seen = 0;
    for (int64_t t = 0; t < batch->tokens; t++) {
        if (batch->targets[t] < 0 || seen++ < leave) continue;
        batch->targets[t] = PL_NOT_TRAINED;
        batch->ntargets--;
    }
}

/* The loss is the sum over all targets by their number, never a mean of the micro-batches' means. */
static void uneven_targets_weigh_alike(void **state)
{
    (void)state;
    golden g;
    golden_micros micros;
    golden_open(&g, golden_path("llama"), golden_path("llama"), &(golden_options){.training = true, .dtype = PL_F32});
    golden_split(&g, &micros, 2);
    untrain(&micros.items[1], 2);
    double sum[2];
    for (int i = 0; i < 2; i++) OK(&g, pl_engine_evaluate(g.engine, &micros.items[i], &sum[i]));
    int64_t n0 = micros.items[0].ntargets, n1 = micros.items[1].ntargets;
    double want = (sum[0] + sum[1]) / (double)(n0 + n1);
    double of_means = (sum[0] / (double)n0 + sum[1] / (double)n1) / 2;
    assert_true(n1 == 2 && n0 > 10 && fabs(want - of_means) > 1e-3 * want);
    outcome o;
    take_steps(&g, &micros, 1, &o);
    if (fabs(o.loss[0] - want) > 1e-6 * want) fail_msg("loss %.9g, not %.9g", o.loss[0], want);
    drop(&o);
    golden_micros_close(&micros);
    golden_close(&g);
}

static void expect_equal(const outcome *a, const outcome *b)
{
    for (int i = 0; i < a->n; i++) {
        for (int64_t e = 0; e < a->sizes[i]; e++) { /* not bits: 0 + -0 is 0 */
            if (a->gradients[i][e] != b->gradients[i][e] || a->values[i][e] != b->values[i][e])
                fail_msg("%s differs at %lld", a->names[i], (long long)e);
        }
    }
}

/* Two micro-batches, with or without a third one between them that has no target. */
static void with_or_without(golden_options options, bool with, outcome *o)
{
    golden g;
    golden_micros micros;
    golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
    golden_split(&g, &micros, 2);
    if (with) {
        micros.items[2] = micros.items[1];
        micros.count = 3;
        OK(&g, pl_batch_open(&g.err, &micros.items[1], g.batch.tokens, g.batch.nsequences));
        OK(&g, pl_batch_copy(&g.err, &micros.items[0], &micros.items[1]));
        untrain(&micros.items[1], 0);
        assert_int_equal(micros.items[1].ntargets, 0);
    }
    take_steps(&g, &micros, STEPS, o);
    golden_micros_close(&micros);
    golden_close(&g);
}

static void a_micro_batch_without_targets_adds_nothing(void **state)
{
    (void)state;
    const golden_options options[] = {{.training = true, .dtype = PL_F32, .recompute = 1},
        {.training = true, .dtype = PL_BF16}, {.training = true, .dtype = PL_BF16, .dora = true}};
    for (int i = 0; i < PL_COUNT(options); i++) {
        outcome without, with;
        with_or_without(options[i], false, &without);
        with_or_without(options[i], true, &with);
        expect_equal(&without, &with);
        for (int s = 0; s < STEPS; s++) assert_true(without.loss[s] == with.loss[s] && with.loss[s] > 0);
        drop(&without);
        drop(&with);
    }
}

/* Nothing of the step before is left in the gradients of a step to which nothing adds any. */
static void a_step_without_targets_has_no_gradient(void **state)
{
    (void)state;
    const char *names[] = {"llama", "gpt2"};
    for (int i = 0; i < PL_COUNT(names); i++) {
        golden g;
        golden_micros micros;
        outcome with, without;
        const golden_options options = {.training = true, .dtype = PL_F32};
        golden_open(&g, golden_path(names[i]), golden_path(names[i]), &options);
        golden_split(&g, &micros, 1);
        take_steps(&g, &micros, 1, &with);
        untrain(&micros.items[0], 0);
        take_steps(&g, &micros, 1, &without);
        assert_true(with.norm[0] > 0 && without.norm[0] == 0);
        for (int p = 0; p < without.n; p++) {
            for (int64_t e = 0; e < without.sizes[p]; e++) {
                if (without.gradients[p][e] != 0) fail_msg("%s has a gradient at %lld", without.names[p], (long long)e);
            }
        }
        drop(&with);
        drop(&without);
        golden_micros_close(&micros);
        golden_close(&g);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(recomputation_changes_no_bit),
        cmocka_unit_test(recomputation_of_adapters_changes_no_bit),
        cmocka_unit_test(threads_change_rounding_alone),
        cmocka_unit_test(the_same_threads_give_the_same_bits),
        cmocka_unit_test(micro_batches_add_up),
        cmocka_unit_test(uneven_targets_weigh_alike),
        cmocka_unit_test(a_micro_batch_without_targets_adds_nothing),
        cmocka_unit_test(a_step_without_targets_has_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
