/* Models from scratch: the initial weights of every family follow the rules of its Hugging Face code, and the seed. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

static int nothing(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found)
{
    (void)err;
    (void)user;
    (void)param;
    (void)out;
    *found = false;
    return 0;
}

/* A fresh model in the place of the case's own; g->model's values are read with golden_fetch. */
static void open_fresh(golden *g, const char *name, uint64_t seed)
{
    golden_open(g, golden_path(name), golden_path(name), &(golden_options){.dtype = PL_F32});
    pl_engine_close(g->engine);
    g->engine = NULL;
    pl_engine_config config = {.seed = seed,
        .capacity = {.tokens = 8, .max_length = 8, .sequences = 1, .saved_bytes = 4 << 20, .work_bytes = 4 << 20}};
    pl_source source = {.find = nothing};
    if (pl_engine_open(&g->err, NULL, g->device, &g->mem, g->model, &config, &source, &g->engine) < 0)
        fail_msg("%s: %s", name, g->err.message);
}

static bool ends(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static void expect_all(const pl_param *p, const float *values, float want)
{
    for (int64_t i = 0; i < pl_param_numel(p); i++) {
        if (values[i] != want)
            fail_msg("%s[%lld] is %g, not %g", p->name, (long long)i, (double)values[i], (double)want);
    }
}

/* Of n draws the mean is off by std / sqrt(n) and the deviation by std / sqrt(2 n): five times that happens once in a
   million. The fourth moment of normal numbers is 3 std^4, off by sqrt(96 / n) of that third. */
static void expect_normal(const pl_param *p, const float *values, int64_t zero_row, double std)
{
    double sum = 0, sum2 = 0, sum4 = 0, n = 0;
    for (int64_t i = 0; i < pl_param_numel(p); i++) {
        double x = (double)values[i];
        if (i / p->shape[1] == zero_row) {
            if (x != 0) fail_msg("%s: the padding row is not zero", p->name);
            continue;
        }
        sum += x;
        sum2 += x * x;
        sum4 += x * x * x * x;
        n++;
    }
    double mean = sum / n, deviation = sqrt(sum2 / n), kurtosis = sum4 / n / pow(sum2 / n, 2);
    if (fabs(mean) > 5 * std / sqrt(n)) fail_msg("%s: mean %g", p->name, mean);
    if (fabs(deviation / std - 1) > 5 / sqrt(2 * n)) fail_msg("%s: deviation %g, not %g", p->name, deviation, std);
    if (fabs(kurtosis - 3) > 5 * sqrt(96 / n)) fail_msg("%s: kurtosis %g", p->name, kurtosis);
}

/* All configurations have a deviation of 0.02. */
static void as_hugging_face(void **state)
{
    const char *name = *state;
    golden g;
    open_fresh(&g, name, 11);
    const pl_arch *a = &g.model->arch;
    bool gemma = strncmp(name, "gemma", 5) == 0, gpt2 = strcmp(name, "gpt2") == 0;
    bool pads = !gpt2 && strncmp(name, "gpt_neox", 8) != 0;
    for (int i = 0; i < g.model->nparams; i++) {
        const pl_param *p = g.model->params[i];
        float *values = golden_fetch(&g, p->value);
        if (ends(p->name, "bias")) {
            expect_all(p, values, 0);
        } else if (p->ndim == 1) {
            expect_all(p, values, gemma ? 0 : 1);
        } else {
            /* gpt2: "the weights of residual layers are scaled by 1 / sqrt(2 layers)". */
            double std = gpt2 && ends(p->name, "c_proj.weight") ? 0.02 / sqrt(2.0 * (double)a->layers) : 0.02;
            bool table = ends(p->name, "embed_tokens.weight");
            /* pad_token_id of the configurations is 1 in opt and 0 elsewhere. */
            expect_normal(p, values, table && pads ? (strcmp(name, "opt") == 0 ? 1 : 0) : -1, std);
        }
        free(values);
    }
    golden_close(&g);
}

static void by_seed_alone(void **state)
{
    golden a, b, c;
    open_fresh(&a, *state, 11);
    open_fresh(&b, *state, 11);
    open_fresh(&c, *state, 12);
    for (int i = 0; i < a.model->nparams; i++) {
        const pl_param *p = a.model->params[i];
        size_t bytes = (size_t)pl_param_numel(p) * 4;
        float *x = golden_fetch(&a, p->value), *y = golden_fetch(&b, b.model->params[i]->value),
              *z = golden_fetch(&c, c.model->params[i]->value);
        assert_memory_equal(x, y, bytes);
        if (p->ndim == 2 && memcmp(x, z, bytes) == 0) fail_msg("%s does not depend on the seed", p->name);
        free(x);
        free(y);
        free(z);
    }
    golden_close(&a);
    golden_close(&b);
    golden_close(&c);
}

int main(void)
{
    return golden_each_model("as Hugging Face", as_hugging_face) + golden_each_model("by seed alone", by_seed_alone);
}
