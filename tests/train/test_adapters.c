/* Adapters in what no golden value covers: dropout against finite differences, recomputation and threads bit for bit
   with what trains beside them (test_engine has plain LoRA and DoRA), LoRA+, PEFT's counts of tied models, and what is
   refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

/* A configuration from a string of JSON fields; both factors random unless it says otherwise. */
static pl_lora_config config_of(const char *fields)
{
    char text[1024];
    pl_error err = {0};
    pl_lora_config c;
    bool init = strstr(fields, "init_lora_weights") != NULL;
    snprintf(text, sizeof text, "{\"peft_type\": \"LORA\", %s%s%s}",
        strstr(fields, "lora_alpha") ? "\"r\": 4, "
        : strstr(fields, "\"r\"")    ? "\"lora_alpha\": 6, "
                                     : "\"r\": 4, \"lora_alpha\": 6, ",
        init ? "" : "\"init_lora_weights\": false, ", fields);
    json_t *json;
    if (pl_json_parse(&err, "lora", text, strlen(text), &json) < 0) fail_msg("%s", err.message);
    if (pl_lora_config_parse(&err, "lora", json, &c) < 0) fail_msg("%s", err.message);
    json_decref(json);
    return c;
}

static void open_with(golden *g, const char *model, const char *fields, golden_options options)
{
    const char *dir = golden_path(model);
    pl_lora_config c;
    if (fields) {
        c = config_of(fields);
        options.adapter = &c;
    }
    options.training = true;
    golden_open(g, dir, dir, &options);
}

static double loss_and_gradients(golden *g)
{
    double loss;
    if (pl_engine_gradients(g->engine, &g->batch, &loss) < 0) fail_msg("%s", g->err.message);
    return loss;
}

/* ---- dropout ---- */

static void put(golden *g, const pl_param *p, const float *values)
{
    pl_tensor master = pl_store_state(pl_engine_store(g->engine), p, PL_STATE_MASTER);
    g->device->ops->copy_in(g->device, master.data, values, pl_tensor_bytes(master));
    assert_int_equal(pl_store_refresh(pl_engine_store(g->engine)), 0);
}

static float *norms_of(golden *g, const pl_linear *lin)
{
    pl_run *run = pl_engine_run(g->engine);
    pl_tensor norm;
    int64_t mark = pl_stack_mark(run->work);
    assert_int_equal(pl_stack_push(run->err, run->work, PL_F32, 1, &lin->out, &norm), 0);
    assert_int_equal(pl_linear_weight_norm(run, lin, norm), 0);
    float *values = golden_fetch(g, norm);
    pl_stack_pop(run->work, mark);
    return values;
}

/* The loss with p moved along `way`. With DoRA the factor m / norm, a constant to the backward, is held constant by
   moving m with the norm. */
static double loss_at(
    golden *g, const pl_linear *lin, const pl_param *p, const float *from, const float *way, double by)
{
    int64_t n = pl_param_numel(p);
    float *moved = malloc((size_t)n * sizeof *moved), *m = NULL, *held = NULL;
    for (int64_t i = 0; i < n; i++) moved[i] = (float)((double)from[i] + by * (double)way[i]);
    bool hold = lin->lora->magnitude && p != lin->lora->magnitude;
    if (hold) {
        float *before = norms_of(g, lin);
        put(g, p, moved);
        float *after = norms_of(g, lin);
        m = golden_fetch(g, lin->lora->magnitude->value);
        held = malloc((size_t)lin->out * sizeof *held);
        for (int64_t o = 0; o < lin->out; o++) held[o] = m[o] * after[o] / before[o];
        put(g, lin->lora->magnitude, held);
        free(before);
        free(after);
    } else {
        put(g, p, moved);
    }
    double loss = loss_and_gradients(g);
    put(g, p, from);
    if (hold) put(g, lin->lora->magnitude, m);
    free(moved);
    free(m);
    free(held);
    return loss;
}

/* The derivative along a random direction. The loss is made of f32 numbers, good to some 1e-7 of it: with a step that
   moves it by 1e-2 the difference is good to 1e-4, and so is what the third derivative adds. */
static void check_derivative(golden *g, const pl_linear *lin, const pl_param *p)
{
    int64_t n = pl_param_numel(p);
    float *from = golden_fetch(g, p->value), *way = malloc((size_t)n * sizeof *way);
    pl_rng rng = {.seed = 11, .domain = p->id};
    loss_and_gradients(g);
    float *grad = golden_fetch(g, p->grad);
    double along = 0, length = 0;
    /* Half along the gradient: a random direction of many dimensions is nearly across it. */
    double size = 0;
    for (int64_t i = 0; i < n; i++) size += (double)grad[i] * (double)grad[i];
    if (size == 0) fail_msg("%s has no gradient", p->name);
    for (int64_t i = 0; i < n; i++) {
        double noise = pl_rng_normal(&rng, (uint64_t)i) / sqrt((double)n);
        way[i] = (float)(noise + (double)grad[i] / sqrt(size));
        along += (double)way[i] * (double)grad[i];
        length += (double)way[i] * (double)way[i];
    }
    double by = fmin(1e-2 / fabs(along), 0.05 / sqrt(length));
    double up = loss_at(g, lin, p, from, way, by), down = loss_at(g, lin, p, from, way, -by);
    double found = (up - down) / (2 * by);
    if (fabs(found - along) > 2e-3 * fabs(along) + 2e-6 / by) {
        fail_msg("%s: %g by differences, %g by the backward", p->name, found, along);
    }
    free(from);
    free(way);
    free(grad);
}

static void check_dropout(const char *model, const char *fields)
{
    golden g;
    open_with(&g, model, fields, (golden_options){.ref = true});
    for (int i = 0; i < g.model->nlinears; i++) {
        const pl_linear *lin = g.model->linears[i];
        if (!lin->lora) continue;
        check_derivative(&g, lin, lin->lora->a);
        check_derivative(&g, lin, lin->lora->b);
        if (lin->lora->magnitude) check_derivative(&g, lin, lin->lora->magnitude);
        if (lin->lora->b_bias) check_derivative(&g, lin, lin->lora->b_bias);
    }
    golden_close(&g);
}

static void test_dropout_lora(void **state)
{
    (void)state;
    check_dropout("llama", "\"lora_dropout\": 0.4, \"target_modules\": \".*1.*(q_proj|down_proj)|lm_head\"");
    check_dropout(
        "gpt2", "\"lora_dropout\": 0.4, \"lora_bias\": true, \"target_modules\": \".*1.*(c_attn|mlp.c_proj)\"");
}

static void test_dropout_dora(void **state)
{
    (void)state;
    check_dropout("llama", "\"lora_dropout\": 0.4, \"use_dora\": true, "
                           "\"target_modules\": \".*1.*(v_proj|up_proj)|lm_head\"");
    check_dropout(
        "gpt2", "\"lora_dropout\": 0.4, \"use_dora\": true, \"target_modules\": \".*0.*(c_attn|mlp.c_proj)\"");
}

/* A mask is of its step and seed, drops what it should, and evaluation has none. */
static void test_dropout_masks(void **state)
{
    (void)state;
    golden with, without;
    const char *targets = "\"target_modules\": \"all-linear\"";
    char fields[128];
    snprintf(fields, sizeof fields, "\"lora_dropout\": 0.5, %s", targets);
    open_with(&with, "llama", fields, (golden_options){0});
    open_with(&without, "llama", targets, (golden_options){0});
    double first = loss_and_gradients(&with), again = loss_and_gradients(&with), plain = loss_and_gradients(&without);
    assert_true(first == again && first != plain);
    double dropped, full;
    assert_int_equal(pl_engine_evaluate(with.engine, &with.batch, &dropped), 0);
    assert_int_equal(pl_engine_evaluate(without.engine, &without.batch, &full), 0);
    assert_true(dropped == full);
    golden_close(&with);
    golden_close(&without);
}

/* ---- bit for bit ---- */

static const char *const kinds[] = {
    "\"target_modules\": \"all-linear\", \"lora_dropout\": 0.3, \"bias\": \"all\"",
    "\"target_modules\": \"all-linear\", \"modules_to_save\": [\"lm_head\", \"embed_out\", \"embed_tokens\", \"wte\"]",
    "\"target_modules\": \".*\\\\.1\\\\..*\", \"lora_bias\": true", /* no gradient goes below block 1 */
};

/* Every trained parameter after two steps, one after the other; the caller frees. */
static float *train_two_steps(const char *model, const char *fields, golden_options options, int64_t *n)
{
    golden g;
    options.clip = 1;
    open_with(&g, model, fields, options);
    pl_feed feed = golden_same_feed(&g);
    for (int step = 1; step <= 2; step++) {
        pl_step_result r;
        if (pl_engine_step(g.engine, &feed, step, 1, g.batch.ntargets, 1e-3, &r) < 0) fail_msg("%s", g.err.message);
    }
    *n = 0;
    for (int i = 0; i < g.model->nparams; i++) {
        if (g.model->params[i]->trainable) *n += 2 * pl_param_numel(g.model->params[i]);
    }
    float *all = malloc((size_t)*n * sizeof *all), *to = all;
    for (int i = 0; i < g.model->nparams; i++) {
        const pl_param *p = g.model->params[i];
        if (!p->trainable) continue;
        for (int which = 0; which < 2; which++) {
            float *values = golden_fetch(&g, which ? p->grad : p->value);
            memcpy(to, values, (size_t)pl_param_numel(p) * sizeof *to);
            to += pl_param_numel(p);
            free(values);
        }
    }
    golden_close(&g);
    return all;
}

static void check_same(const char *what, const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        if (memcmp(&a[i], &b[i], sizeof *a) != 0) {
            fail_msg("%s: number %lld is %.9g, not %.9g", what, (long long)i, (double)b[i], (double)a[i]);
        }
    }
}

static void check_variant(const char *model, const char *fields, golden_options base, golden_options other)
{
    int64_t n, m;
    float *want = train_two_steps(model, fields, base, &n), *got = train_two_steps(model, fields, other, &m);
    assert_int_equal(n, m);
    check_same(fields, want, got, n);
    free(want);
    free(got);
}

static void test_bits(void **state)
{
    (void)state;
    static const char *const models[] = {"llama-tied", "gpt2", "qwen2", "gpt_neox", "phi", "opt", "gemma"};
    for (int i = 0; i < PL_COUNT(models); i++) {
        for (int k = 0; k < PL_COUNT(kinds); k++) {
            const golden_options base = {0}, half = {.dtype = PL_BF16};
            check_variant(models[i], kinds[k], base, (golden_options){.recompute = 2, .threads = 1});
            check_variant(models[i], kinds[k], half, (golden_options){.dtype = PL_BF16, .recompute = 1});
        }
    }
}

/* What pissa_niter_N leaves of the base must be had again whenever the adapter is used, under whatever seed; an
   orthogonal start is the run's own. */
static void test_seeds(void **state)
{
    (void)state;
    static const char *const inits[] = {"pissa_niter_2", "orthogonal"};
    for (int i = 0; i < PL_COUNT(inits); i++) {
        golden one, other;
        char fields[128];
        snprintf(fields, sizeof fields, "\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"%s\"", inits[i]);
        open_with(&one, "llama", fields, (golden_options){.seed = 1});
        open_with(&other, "llama", fields, (golden_options){.seed = 2});
        const pl_linear *a = one.model->linears[0], *b = other.model->linears[0];
        float *w = golden_fetch(&one, a->weight->value), *v = golden_fetch(&other, b->weight->value);
        float *p = golden_fetch(&one, a->lora->a->value), *q = golden_fetch(&other, b->lora->a->value);
        assert_memory_equal(w, v, (size_t)pl_param_numel(a->weight) * sizeof *w);
        bool same = memcmp(p, q, (size_t)pl_param_numel(a->lora->a) * sizeof *p) == 0;
        assert_int_equal(same, i == 0);
        free(w);
        free(v);
        free(p);
        free(q);
        golden_close(&one);
        golden_close(&other);
    }
}

/* ---- LoRA+, counts, refusals ---- */

/* One step of plain SGD moves B by ratio times what A is moved by, for its gradient. */
static void test_lora_plus(void **state)
{
    (void)state;
    const pl_optimizer sgd = {.kind = PL_OPTIMIZER_SGD};
    golden g;
    open_with(&g, "qwen2", "\"target_modules\": [\"q_proj\", \"up_proj\"], \"lora_bias\": true",
        (golden_options){.b_lr_ratio = 16, .optimizer = &sgd});
    float *before[256], lr = 0.01f;
    assert_true(g.model->nparams < 256);
    for (int i = 0; i < g.model->nparams; i++) before[i] = golden_fetch(&g, g.model->params[i]->value);
    pl_feed feed = golden_same_feed(&g);
    pl_step_result r;
    assert_int_equal(pl_engine_step(g.engine, &feed, 1, 1, g.batch.ntargets, (double)lr, &r), 0);
    int moved = 0;
    for (int i = 0; i < g.model->nparams; i++) {
        const pl_param *p = g.model->params[i];
        float *after = golden_fetch(&g, p->value), *grad = p->trainable ? golden_fetch(&g, p->grad) : NULL;
        float ratio = strstr(p->name, "lora_B") ? 16 : 1;
        for (int64_t e = 0; e < pl_param_numel(p); e++) {
            float want = before[i][e] - (grad ? lr * ratio * grad[e] : 0);
            if (fabsf(after[e] - want) > 1e-6f) fail_msg("%s: %g, not %g", p->name, (double)after[e], (double)want);
            moved += after[e] != before[i][e];
        }
        free(after);
        free(grad);
        free(before[i]);
    }
    assert_true(moved > 100);
    golden_close(&g);
}

/* PEFT 0.21's print_trainable_parameters of tied models: an original is counted once, each copy too. */
static void test_counts(void **state)
{
    (void)state;
    static const struct {
        const char *model, *fields;
        int64_t trainable, all;
    } cases[] = {
        {"gpt2", "\"target_modules\": [\"c_attn\"], \"modules_to_save\": [\"wte\"]", 6520, 52560},
        {"gpt2", "\"target_modules\": [\"c_attn\"], \"modules_to_save\": [\"lm_head\", \"wte\"]", 11760, 57800},
        {"gpt2", "\"target_modules\": [\"lm_head\", \"c_attn\"]", 1964, 48004},
        {"gemma", "\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"embed_tokens\", \"lm_head\", \"norm\"]",
            9632, 38208},
        {"phi", "\"target_modules\": [\"q_proj\", \"fc1\"], \"bias\": \"all\", \"modules_to_save\": [\"lm_head\"]",
            6392, 32736},
        {"gpt_neox", "\"target_modules\": [\"query_key_value\", \"dense\"], \"bias\": \"lora_only\"", 1792, 28432},
        {"opt", "\"target_modules\": [\"q_proj\", \"fc2\"], \"bias\": \"all\"", 2048, 25920},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        golden g;
        open_with(&g, cases[i].model, cases[i].fields, (golden_options){0});
        pl_model_counts counts = pl_model_count(g.model);
        assert_int_equal(counts.trainable, cases[i].trainable);
        assert_int_equal(counts.all, cases[i].all);
        golden_close(&g);
    }
}

/* An adapter that a model cannot have: the code, and what the message must name. */
static void test_refused(void **state)
{
    (void)state;
    static const struct {
        const char *model, *fields;
        int code;
        const char *named;
    } cases[] = {
        {"llama", "\"target_modules\": [\"q_prj\"]", PL_EUSAGE, "q_proj, k_proj, v_proj, o_proj"},
        {"llama", "\"target_modules\": \".*nothing\"", PL_EUSAGE, "down_proj"},
        {"llama", "\"target_modules\": [\"q_proj\", \"c_attn\"]", PL_EUSAGE, "'c_attn'"},
        {"llama", "\"target_modules\": [\"embed_tokens\"]", PL_EUNSUPPORTED, "model.embed_tokens is an embedding"},
        {"gpt2", "\"target_modules\": [\"c_attn\", \"wpe\"]", PL_EUNSUPPORTED, "transformer.wpe is an embedding"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"trainable_token_indices\": [3]", PL_EUNSUPPORTED,
            "trainable_token_indices"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"modules_to_save\": [\"head\", \"classifier\"]", PL_EUSAGE,
            "lora.modules_to_save: 'classifier'"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"v\"]", PL_EUSAGE, "lora.exclude: 'v'"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"exclude_modules\": [\"q_proj\"]", PL_EUSAGE, "no layer is left"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [7]", PL_EUSAGE, "no layer is left"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"layers_to_transform\": [1, 7]", PL_EUSAGE, "lora.layers"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"rank_pattern\": {\"v_proj\": 2}", PL_EUSAGE,
            "lora.rank_pattern: 'v_proj'"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"alpha_pattern\": {\"v_proj\": 2}", PL_EUSAGE,
            "lora.alpha_pattern: 'v_proj'"},
        {"llama", "\"target_modules\": [\"q_proj\"], \"init_lora_weights\": \"loftq\", \"loftq_config\": {}",
            PL_EUNSUPPORTED, "4-bit"},
        {"llama", "\"target_modules\": [\"k_proj\"], \"init_lora_weights\": \"pissa\", \"r\": 25", PL_EUSAGE,
            "at most 24"},
        {"llama", "\"target_modules\": [\"k_proj\"], \"init_lora_weights\": \"orthogonal\", \"r\": 5", PL_EUSAGE,
            "even"},
        {"llama", "\"target_modules\": [\"k_proj\"], \"init_lora_weights\": \"pissa\", \"lora_alpha\": 0", PL_EUSAGE,
            "lora.alpha"},
        {"gpt2", "\"target_modules\": [\"c_attn\"], \"init_lora_weights\": \"olora\"", PL_EUNSUPPORTED, "Conv1D"},
        {"gpt2", "\"target_modules\": [\"lm_head\"], \"init_lora_weights\": \"pissa\"", PL_EUNSUPPORTED, "shares"},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_arch arch;
        pl_model *model;
        assert_int_equal(pl_arch_read(&err, &(pl_log){0}, golden_path(cases[i].model), &arch), 0);
        assert_int_equal(pl_model_open(&err, &arch, PL_F32, &model), 0);
        pl_lora_config c = config_of(cases[i].fields);
        int rc = pl_model_adapt(&err, model, &c, true, true, 1, "lora.targets");
        if (rc != cases[i].code || !strstr(err.message, cases[i].named)) {
            fail_msg("%s: %d, %s", cases[i].fields, rc, err.message);
        }
        pl_lora_config_free(&c);
        pl_model_close(model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_dropout_lora), cmocka_unit_test(test_dropout_dora),
        cmocka_unit_test(test_dropout_masks), cmocka_unit_test(test_bits), cmocka_unit_test(test_seeds),
        cmocka_unit_test(test_lora_plus), cmocka_unit_test(test_counts), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
