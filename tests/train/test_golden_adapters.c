/* Adapters of every kind against PEFT in float64: logits, loss, every gradient, five AdamW steps, counts, scalings,
   residual and merged weights (tests/golden/adapters). */
#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"
#include "train/merging.h"

#define GOLDEN PLAIT_TEST_DIR "/golden"

/* PEFT decomposes in f32, whose rounding the gap between neighbouring singular values amplifies: against a
   decomposition in f64 its residuals are off by up to 1.4e-5 of the largest element. Ours, in f64, are checked by
   test_lora_init. */
#define RESIDUAL 2e-5
#define PISSA_SLACK 4 /* the same in what follows: 1.2e-5 of the largest logit was seen */

static char cases[64][300];
static int ncases;

static void folders(const char *name, char model[1024], char adapter[1024])
{
    snprintf(model, 1024, "%s/models/%.*s", GOLDEN, (int)strcspn(name, "/"), name);
    snprintf(adapter, 1024, "%s/adapters/%s", GOLDEN, name);
}

static void check_counts(golden *g)
{
    pl_model_counts counts = pl_model_count(g->model);
    assert_int_equal(counts.trainable, json_integer_value(json_object_get(g->info, "trainable_parameters")));
    assert_int_equal(counts.all, json_integer_value(json_object_get(g->info, "all_parameters")));
}

/* Exactly the modules that PEFT adapted, with its factors. */
static void check_scaling(golden *g)
{
    json_t *scaling = json_object_get(g->info, "scaling_per_module");
    size_t adapted = 0;
    for (int i = 0; i < g->model->nlinears; i++) {
        const pl_linear *lin = g->model->linears[i];
        if (!lin->lora) continue;
        const json_t *want = json_object_get(scaling, lin->name);
        if (!want) fail_msg("%s has an adapter", lin->name);
        assert_true(fabs((double)lin->lora->scaling - json_number_value(want)) <= 1e-7 * json_number_value(want));
        adapted++;
    }
    assert_int_equal(adapted, json_object_size(scaling));
}

/* The base weights that PiSSA and OLoRA changed. */
static void check_residuals(golden *g)
{
    int64_t n;
    char name[512];
    size_t changed = json_array_size(json_object_get(g->info, "base_weights_changed_by_init")), seen = 0;
    for (int i = 0; i < g->model->nparams; i++) {
        const pl_param *p = g->model->params[i];
        snprintf(name, sizeof name, "residual.%s", p->name);
        if (p->role != PL_ROLE_BASE || !golden_has(g, name)) continue;
        double *want = golden_expected(g, name, &n);
        float *got = golden_fetch(g, p->value);
        golden_close_to(name, got, want, n, RESIDUAL, 0);
        free(want);
        free(got);
        seen++;
    }
    assert_int_equal(seen, changed);
}

/* A product of r = 4 terms in f32; relative to the largest element. */
#define MERGED 1e-6

static void check_merged_tensor(golden *g, const pl_merged *t, const float *got)
{
    char name[512];
    int64_t n;
    snprintf(name, sizeof name, "merged.%s", t->name);
    if (golden_has(g, name)) {
        double *want = golden_expected(g, name, &n);
        golden_close_to(name, got, want, n,
            strstr(json_string_value(json_object_get(g->info, "case")), "pissa") ? RESIDUAL : MERGED, 0);
        free(want);
    } else { /* as the base has it */
        const pl_st_tensor *base = pl_safetensors_find(g->weights, t->name);
        assert_non_null(base);
        assert_memory_equal(got, base->data, base->bytes);
    }
}

typedef struct merged_values {
    const pl_merging *merge;
    float **values;
} merged_values;

static int find_merged(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found)
{
    const merged_values *m = user;
    for (int i = 0; i < m->merge->count; i++) {
        if (strcmp(m->merge->tensors[i].name, param->name) != 0) continue;
        *found = true;
        *out = (pl_host_tensor){.data = m->values[i], .dtype = PL_F32, .ndim = param->ndim};
        for (int d = 0; d < param->ndim; d++) out->shape[d] = param->shape[d];
        return 0;
    }
    return PL_FAIL(err, PL_EINPUT, "%s is not among the merged tensors", param->name);
}

/* A plain model of the merged weights computes what the adapted one did. */
static void check_merged_logits(golden *g, const merged_values *m, const char *model_dir)
{
    pl_arch arch;
    pl_model *model;
    pl_engine *engine;
    pl_mem mem;
    const pl_log quiet = {0};
    if (pl_arch_read(&g->err, &quiet, model_dir, &arch) < 0) fail_msg("%s", g->err.message);
    arch.tied = arch.tied && !m->merge->unties;
    if (pl_model_open(&g->err, &arch, PL_F32, &model) < 0) fail_msg("%s", g->err.message);
    pl_mem_init(&mem, g->device);
    pl_engine_config config = {.capacity = {.tokens = g->batch.tokens,
                                   .max_length = g->batch.max_length,
                                   .sequences = g->batch.nsequences,
                                   .saved_bytes = 4 << 20,
                                   .work_bytes = 4 << 20}};
    pl_source source = {.user = (void *)m, .find = find_merged};
    if (pl_engine_open(&g->err, NULL, g->device, &mem, model, &config, &source, &engine) < 0) {
        fail_msg("%s", g->err.message);
    }
    pl_engine *adapted = g->engine;
    g->engine = engine;
    golden_check_logits(g);
    g->engine = adapted;
    pl_engine_close(engine);
    pl_model_close(model);
}

static void check_merged(golden *g, const char *model_dir)
{
    pl_merging merge;
    if (pl_merging_open(&g->err, g->model, &merge) < 0) fail_msg("%s", g->err.message);
    float **values = calloc((size_t)merge.count, sizeof *values);
    pl_source source = golden_source(g);
    for (int i = 0; i < merge.count; i++) {
        values[i] = malloc((size_t)pl_param_numel(merge.tensors[i].param) * sizeof **values);
        if (pl_merging_read(&g->err, &merge.tensors[i], &source, values[i]) < 0) fail_msg("%s", g->err.message);
        check_merged_tensor(g, &merge.tensors[i], values[i]);
    }
    check_merged_logits(g, &(merged_values){&merge, values}, model_dir);
    for (int i = 0; i < merge.count; i++) free(values[i]);
    free(values);
    pl_merging_close(&merge);
}

static void run_case_on(const char *name, bool ref)
{
    golden g;
    char model[1024], adapter[1024];
    folders(name, model, adapter);
    golden_open(&g, model, adapter, &(golden_options){.training = true, .clip = 1.0, .ref = ref});
    if (strstr(name, "pissa")) g.slack = PISSA_SLACK;
    check_counts(&g);
    check_scaling(&g);
    check_residuals(&g);
    golden_check_logits(&g);
    golden_check_gradients(&g);
    if (!ref) check_merged(&g, model);
    if (!ref) golden_check_steps(&g); /* the oracle is slow, and its optimizer is checked elsewhere */
    golden_close(&g);
}

static void run_case(void **state)
{
    run_case_on(*state, false);
}

static void run_case_ref(void **state)
{
    run_case_on(*state, true);
}

/* Against the same weights computed exactly. PEFT's own bf16 runs of these cases are off by up to 2.3e-2 of the largest
   logit and 5.5e-2 of a gradient's largest element: bf16 has 8 bits, and some hundred roundings add up by chance. A
   mistake in what is rounded where (weights or norms kept in bf16) shows as several times that. */
#define BF16_LOGITS 4e-2
#define BF16_GRADS 8e-2

static double *logits_of(golden *g, int64_t *n)
{
    int32_t *rows = malloc((size_t)g->batch.tokens * sizeof *rows);
    *n = g->batch.tokens * g->model->arch.vocab;
    float *logits = malloc((size_t)*n * sizeof *logits);
    double *wide = malloc((size_t)*n * sizeof *wide);
    for (int64_t t = 0; t < g->batch.tokens; t++) rows[t] = (int32_t)t;
    if (pl_engine_logits(g->engine, &g->batch, rows, g->batch.tokens, logits) < 0) fail_msg("%s", g->err.message);
    for (int64_t i = 0; i < *n; i++) wide[i] = (double)logits[i];
    free(rows);
    free(logits);
    return wide;
}

static void compare(const char *what, const double *want, const double *got, int64_t n, double tolerance)
{
    float *narrow = malloc((size_t)n * sizeof *narrow);
    for (int64_t i = 0; i < n; i++) narrow[i] = (float)got[i];
    golden_close_to(what, narrow, want, n, tolerance, 1e-2);
    free(narrow);
}

static void run_case_bf16(void **state)
{
    golden exact, half;
    int64_t n;
    double loss;
    char model[1024], adapter[1024];
    folders(*state, model, adapter);
    golden_open(&exact, model, adapter, &(golden_options){.training = true, .rounded = true});
    golden_open(&half, model, adapter, &(golden_options){.training = true, .dtype = PL_BF16});
    double *want = logits_of(&exact, &n), *got = logits_of(&half, &n);
    compare("logits", want, got, n, BF16_LOGITS);
    free(want);
    free(got);
    assert_int_equal(pl_engine_gradients(exact.engine, &exact.batch, &loss), 0);
    assert_int_equal(pl_engine_gradients(half.engine, &half.batch, &loss), 0);
    for (int i = 0; i < exact.model->nparams; i++) {
        const pl_param *p = exact.model->params[i];
        if (!p->trainable) continue;
        float *a = golden_fetch(&exact, p->grad), *b = golden_fetch(&half, half.model->params[i]->grad);
        n = pl_param_numel(p);
        want = malloc((size_t)n * sizeof *want);
        for (int64_t e = 0; e < n; e++) want[e] = (double)a[e];
        golden_close_to(p->name, b, want, n, BF16_GRADS, 1e-2);
        free(a);
        free(b);
        free(want);
    }
    golden_close(&exact);
    golden_close(&half);
}

/* LoRA on embeddings, and on rows of them, is refused for what it is. */
static void test_unsupported(void **state)
{
    (void)state;
    static const struct {
        const char *name, *message;
    } others[] = {
        {"llama/embedding", "model.embed_tokens is an embedding"},
        {"llama/embedding-dora", "model.embed_tokens is an embedding"},
        {"llama/token-indices", "trainable_token_indices"},
        {"gpt2/token-indices", "trainable_token_indices"},
    };
    for (int i = 0; i < PL_COUNT(others); i++) {
        char model_dir[1024], adapter[1024], path[1100];
        pl_error err = {0};
        pl_arch arch;
        pl_model *model;
        pl_lora_config lora;
        folders(others[i].name, model_dir, adapter);
        snprintf(path, sizeof path, "%s/adapter_config.json", adapter);
        assert_int_equal(pl_lora_config_read(&err, path, &lora), 0);
        assert_int_equal(pl_arch_read(&err, &(pl_log){0}, model_dir, &arch), 0);
        assert_int_equal(pl_model_open(&err, &arch, PL_F32, &model), 0);
        assert_int_equal(pl_model_adapt(&err, model, &lora, true, false, 1, adapter), PL_EUNSUPPORTED);
        if (!strstr(err.message, others[i].message) || !strstr(err.message, adapter)) fail_msg("%s", err.message);
        pl_lora_config_free(&lora);
        pl_model_close(model);
    }
}

static void list_cases(const char *base)
{
    char path[1024];
    struct dirent **entries;
    snprintf(path, sizeof path, "%s/adapters/%s", GOLDEN, base);
    int n = scandir(path, &entries, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        bool other = strstr(entries[i]->d_name, "embedding") || strstr(entries[i]->d_name, "token-indices");
        if (entries[i]->d_name[0] != '.' && !other) {
            snprintf(cases[ncases++], sizeof cases[0], "%s/%s", base, entries[i]->d_name);
        }
        free(entries[i]);
    }
    free(entries);
}

int main(void)
{
    list_cases("llama");
    list_cases("gpt2");
    list_cases("qwen2");
    if (ncases == 0) return 1;
    struct CMUnitTest tests[192];
    size_t n = 0;
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_unsupported);
    for (int i = 0; i < ncases; i++) {
        tests[n++] = (struct CMUnitTest){.name = cases[i], .test_func = run_case, .initial_state = cases[i]};
    }
    for (int i = 0; i < ncases; i++) {
        tests[n++] = (struct CMUnitTest){.name = cases[i], .test_func = run_case_ref, .initial_state = cases[i]};
    }
    for (int i = 0; i < ncases; i++) {
        tests[n++] = (struct CMUnitTest){.name = cases[i], .test_func = run_case_bf16, .initial_state = cases[i]};
    }
    return _cmocka_run_group_tests("adapters", tests, n, NULL, NULL);
}
