/* What an engine must refuse or notice: numbers that are not finite, ids and sequences beyond the model, memory asked
   for after the first step. */
#include <float.h>
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

/* A model in training, with its one micro-batch. */
typedef struct training {
    golden g;
    golden_micros micros;
} training;

static void begin(training *t, const char *name, golden_options options)
{
    options.training = true;
    golden_open(&t->g, golden_path(name), golden_path(name), &options);
    golden_split(&t->g, &t->micros, 1);
}

static void end(training *t)
{
    golden_micros_close(&t->micros);
    golden_close(&t->g);
}

static int step(training *t, int64_t number, pl_step_result *result)
{
    pl_feed feed = {.user = &t->micros, .micro_batch = golden_feed};
    return pl_engine_step(t->g.engine, &feed, number, 1, golden_targets(&t->micros), 1e-3, result);
}

/* Writes `value` into n elements of a parameter, from the third on. */
static void plant(training *t, const char *param, float value, int64_t n)
{
    const pl_param *p = pl_model_find_param(t->g.model, param);
    pl_store *store = pl_engine_store(t->g.engine);
    assert_non_null(p);
    if (n == 0) n = pl_param_numel(p) - 2;
    float *values = malloc((size_t)n * sizeof *values);
    for (int64_t i = 0; i < n; i++) values[i] = value;
    OK(&t->g, pl_store_write(&t->g.err, store, p, PL_STATE_MASTER, 2, n, values));
    free(values);
    OK(&t->g, pl_store_refresh(store));
}

/* Everything that a step may change: weights as read, masters, moments. */
typedef struct snapshot {
    float *values[4 * 256];
    size_t sizes[4 * 256];
    int n;
} snapshot;

static void take(training *t, snapshot *s)
{
    *s = (snapshot){0};
    for (int i = 0; i < t->g.model->nparams; i++) {
        const pl_param *p = t->g.model->params[i];
        const pl_store *store = pl_engine_store(t->g.engine);
        static const pl_state states[] = {PL_STATE_MASTER, PL_STATE_MOMENT1, PL_STATE_MOMENT2};
        for (int k = -1; k < PL_COUNT(states); k++) {
            if (k >= 0 && !pl_store_has(store, p, states[k])) continue;
            assert_true(s->n < 4 * 256);
            s->sizes[s->n] = (size_t)pl_param_numel(p) * 4;
            s->values[s->n++] = k < 0 ? golden_fetch(&t->g, p->value) : golden_state(&t->g, p, states[k]);
        }
    }
}

static void expect_unchanged(training *t, snapshot *before)
{
    snapshot now;
    take(t, &now);
    assert_int_equal(now.n, before->n);
    for (int i = 0; i < now.n; i++) {
        assert_memory_equal(now.values[i], before->values[i], now.sizes[i]);
        free(now.values[i]);
        free(before->values[i]);
    }
}

/* The third step must fail, telling step, unit and tensor, and leave everything as it was. */
static void expect_stop(training *t, const char *unit, const char *tensor)
{
    snapshot before;
    pl_step_result r;
    take(t, &before);
    int rc = step(t, 3, &r);
    const char *message = t->g.err.message;
    if (rc != PL_ENUMERIC) fail_msg("%s in %s: %s: %s", tensor, unit, pl_error_name(rc), message);
    if (!strstr(message, "step 3") || !strstr(message, unit) || !strstr(message, tensor))
        fail_msg("'%s' does not name step 3, %s, %s", message, unit, tensor);
    pl_error_clear(&t->g.err);
    expect_unchanged(t, &before);
}

static void two_steps(training *t)
{
    pl_step_result r;
    OK(&t->g, step(t, 1, &r));
    OK(&t->g, step(t, 2, &r));
}

/* ---- numbers ---- */

static void a_planted_nan_is_found(void **state)
{
    (void)state;
    static const struct {
        const char *model, *param, *unit;
        golden_options options;
    } cases[] = {
        {"llama", "model.layers.1.mlp.down_proj.weight", "unit model.layers.1", {.dtype = PL_F32}},
        {"llama-tied", "model.embed_tokens.weight", "unit model.embed_tokens", {.dtype = PL_BF16}},
        {"gpt2", "transformer.h.0.ln_1.bias", "unit transformer.h.0", {.dtype = PL_F32, .recompute = 1}},
        {"llama", "model.layers.0.self_attn.q_proj.lora_B.weight", "unit model.layers.0",
            {.dtype = PL_BF16, .lora = true}},
        {"gemma2", "model.layers.2.self_attn.o_proj.lora_magnitude_vector", "unit model.layers.2",
            {.dtype = PL_F32, .dora = true}},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        training t;
        begin(&t, cases[i].model, cases[i].options);
        two_steps(&t);
        char tensor[256];
        snprintf(tensor, sizeof tensor, "weight %s (1 of ", cases[i].param);
        plant(&t, cases[i].param, NAN, 1);
        expect_stop(&t, cases[i].unit, tensor);
        end(&t);
    }
}

/* Weights are finite, and what comes of them is not. */
static void an_overflow_is_found(void **state)
{
    (void)state;
    training t;
    begin(&t, "llama", (golden_options){.dtype = PL_F32});
    two_steps(&t);
    plant(&t, "model.layers.1.mlp.down_proj.weight", FLT_MAX, 0);
    expect_stop(&t, "unit model.layers.1", "the output");
    end(&t);
    begin(&t, "llama", (golden_options){.dtype = PL_F32});
    two_steps(&t);
    plant(&t, "lm_head.weight", FLT_MAX, 0);
    expect_stop(&t, "unit lm_head", "the loss");
    end(&t);
}

/* After the fault is mended the same engine goes on. */
static void an_engine_goes_on_after_a_nan(void **state)
{
    (void)state;
    training t;
    pl_step_result r;
    begin(&t, "llama", (golden_options){.dtype = PL_F32});
    two_steps(&t);
    plant(&t, "model.norm.weight", NAN, 1);
    assert_int_equal(step(&t, 3, &r), PL_ENUMERIC);
    pl_error_clear(&t.g.err);
    plant(&t, "model.norm.weight", 1, 1);
    OK(&t.g, step(&t, 3, &r));
    assert_true(isfinite(r.loss) && r.loss > 0);
    end(&t);
}

/* ---- batches ---- */

static void expect_refused(training *t, const char *part)
{
    pl_step_result r;
    double sum;
    snapshot before;
    take(t, &before);
    int rc = step(t, 1, &r);
    if (rc != PL_EINPUT || !strstr(t->g.err.message, part)) fail_msg("%s: %s", pl_error_name(rc), t->g.err.message);
    pl_error_clear(&t->g.err);
    rc = pl_engine_evaluate(t->g.engine, &t->micros.items[0], &sum);
    if (rc != PL_EINPUT || !strstr(t->g.err.message, part)) fail_msg("%s: %s", pl_error_name(rc), t->g.err.message);
    pl_error_clear(&t->g.err);
    expect_unchanged(t, &before);
}

static void ids_beyond_the_vocabulary(void **state)
{
    (void)state;
    training t;
    begin(&t, "llama", (golden_options){.dtype = PL_F32});
    pl_batch *b = &t.micros.items[0];
    int32_t vocab = (int32_t)t.g.model->arch.vocab;
    char part[64];
    for (int i = 0; i < 2; i++) {
        int32_t *at = i ? &b->targets[0] : &b->ids[3], good = *at;
        *at = vocab;
        snprintf(part, sizeof part, "token %d is outside the model's vocabulary of %d", vocab, vocab);
        expect_refused(&t, part);
        *at = good;
    }
    int32_t good = b->ids[3];
    b->ids[3] = -1;
    expect_refused(&t, "token -1 is outside");
    b->ids[3] = good;
    pl_step_result r;
    OK(&t.g, step(&t, 1, &r));
    end(&t);
}

/* gpt2 here has 32 learned positions, llama 64 rotated ones. */
static void sequences_beyond_the_positions(void **state)
{
    (void)state;
    static const char *const names[] = {"gpt2", "llama"};
    for (int i = 0; i < 2; i++) {
        training t;
        begin(&t, names[i], (golden_options){.dtype = PL_F32});
        t.micros.items[0].positions[5] = (int32_t)t.g.model->arch.max_positions;
        expect_refused(&t, "positions");
        t.micros.items[0].positions[5] = -1;
        expect_refused(&t, "positions");
        end(&t);
    }
}

/* ---- memory ---- */

static void nothing_is_allocated_after_the_first_step(void **state)
{
    (void)state;
    static const golden_options ways[] = {
        {.dtype = PL_F32, .recompute = 1}, {.dtype = PL_BF16}, {.dtype = PL_BF16, .dora = true, .dropout = 0.1}};
    for (int w = 0; w < PL_COUNT(ways); w++) {
        training t;
        begin(&t, "llama", ways[w]);
        assert_false(t.g.mem.sealed);
        pl_step_result r;
        OK(&t.g, step(&t, 1, &r));
        assert_true(t.g.mem.sealed);
        pl_mem after = t.g.mem;
        for (int s = 2; s <= 5; s++) {
            double sum;
            OK(&t.g, step(&t, s, &r));
            OK(&t.g, pl_engine_evaluate(t.g.engine, &t.g.batch, &sum));
            assert_memory_equal(t.g.mem.now, after.now, sizeof after.now);
            assert_memory_equal(t.g.mem.peak, after.peak, sizeof after.peak);
        }
        void *more;
        assert_int_equal(pl_mem_alloc(&t.g.err, &t.g.mem, PL_MEM_WORK, 64, &more), PL_EBUG);
        end(&t);
        assert_false(t.g.mem.sealed);
        assert_int_equal(t.g.mem.total_now, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_planted_nan_is_found),
        cmocka_unit_test(an_overflow_is_found),
        cmocka_unit_test(an_engine_goes_on_after_a_nan),
        cmocka_unit_test(ids_beyond_the_vocabulary),
        cmocka_unit_test(sequences_beyond_the_positions),
        cmocka_unit_test(nothing_is_allocated_after_the_first_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
