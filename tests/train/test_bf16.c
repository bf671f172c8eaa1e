/* bf16 against the exact values of the same bf16 weights: no further off than transformers' own bf16 (golden/bf16.tsv).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "support/golden.h"

/* Both are off by chance: they round the same numbers, but sum in other orders, and a single number may fall a long way
   off (golden/README.md). The peer's errors are the largest of 32 draws, in which all weights move by up to a rounding;
   ours are the mean of these draws. */
#define DRAWS 5
#define BOUND 1.1
/* Of the whole gradient's norm. The gradient of a key bias is zero but for rounding where nothing rotates keys: the
   rows of the softmax's gradient then sum up to zero. Ours takes one of the sums from the rounded output of attention.
 */
#define FLOOR 1e-4

/* What the peer's bf16 is off: the norm of the difference of a tensor, and its largest element. */
static bool peer_error(const char *table, const char *model, const char *tensor, double error[2])
{
    char key[512];
    snprintf(key, sizeof key, "\n%s\t%s\t", model, tensor);
    const char *at = strstr(table, key);
    return at && sscanf(at + strlen(key), "%lf\t%lf", &error[0], &error[1]) == 2;
}

/* The same of ours. */
typedef struct error {
    double norm, element;
} error;

/* Adds a draw's share. */
static void add(error *sum, const float *exact, const float *half, int64_t n)
{
    double norm2 = 0, largest = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = fabs((double)half[i] - (double)exact[i]);
        norm2 += d * d;
        largest = fmax(largest, d);
    }
    sum->norm += sqrt(norm2) / DRAWS;
    sum->element += largest / DRAWS;
}

static void compare(const char *table, const char *model, const char *tensor, error ours, double floor)
{
    double peer[2];
    if (!peer_error(table, model, tensor, peer)) fail_msg("%s: %s is not in bf16.tsv", model, tensor);
    if (!(ours.norm <= BOUND * fmax(peer[0], floor) && ours.element <= BOUND * fmax(peer[1], floor)))
        fail_msg("%s: %s is off by %.3g, an element by %.3g; the peer's bf16 by %.3g and %.3g", model, tensor,
            ours.norm, ours.element, peer[0], peer[1]);
}

/* The norm of the whole gradient. */
static double gradient_norm(golden *g)
{
    double norm2 = 0;
    for (int i = 0; i < g->model->nparams; i++) {
        if (!g->model->params[i]->trainable) continue;
        float *a = golden_fetch(g, g->model->params[i]->grad);
        for (int64_t k = 0; k < pl_param_numel(g->model->params[i]); k++) norm2 += (double)a[k] * (double)a[k];
        free(a);
    }
    return sqrt(norm2);
}

static float *all_logits(golden *g, int64_t *n)
{
    int32_t *rows = malloc((size_t)g->batch.tokens * sizeof *rows);
    *n = g->batch.tokens * g->model->arch.vocab;
    float *logits = malloc((size_t)*n * sizeof *logits);
    for (int64_t t = 0; t < g->batch.tokens; t++) rows[t] = (int32_t)t;
    if (pl_engine_logits(g->engine, &g->batch, rows, g->batch.tokens, logits) < 0) fail_msg("%s", g->err.message);
    free(rows);
    return logits;
}

/* What a model's draws give. */
typedef struct errors {
    error logits, loss, grads[256]; /* by parameter */
    double gradient_norm;
} errors;

static void add_draw(errors *e, golden *exact, golden *half)
{
    int64_t n;
    double loss[2];
    float *a = all_logits(exact, &n), *b = all_logits(half, &n);
    add(&e->logits, a, b, n);
    free(a);
    free(b);
    assert_int_equal(pl_engine_gradients(exact->engine, &exact->batch, &loss[0]), 0);
    assert_int_equal(pl_engine_gradients(half->engine, &half->batch, &loss[1]), 0);
    assert_true(loss[0] != loss[1]);
    add(&e->loss, (float[]){(float)loss[0]}, (float[]){(float)loss[1]}, 1);
    e->gradient_norm += gradient_norm(exact) / DRAWS;
    assert_true((size_t)exact->model->nparams <= PL_COUNT(e->grads));
    for (int i = 0; i < exact->model->nparams; i++) {
        const pl_param *p = exact->model->params[i];
        if (!p->trainable) continue;
        a = golden_fetch(exact, p->grad);
        b = golden_fetch(half, half->model->params[i]->grad);
        add(&e->grads[i], a, b, pl_param_numel(p));
        free(a);
        free(b);
    }
}

static void as_the_peer(void **state)
{
    const char *model = *state, *path = golden_path(model);
    golden exact, half;
    errors e = {0};
    pl_buf table = {0};
    pl_error err;
    if (pl_file_read(&err, PLAIT_TEST_DIR "/golden/bf16.tsv", &table) < 0) fail_msg("%s", err.message);
    const char *text = pl_buf_text(&table);
    for (int draw = 0; draw < DRAWS; draw++) {
        golden_options options = {.training = true, .rounded = true, .draw = draw};
        golden_open(&exact, path, path, &options);
        options.dtype = PL_BF16;
        golden_open(&half, path, path, &options);
        add_draw(&e, &exact, &half);
        if (draw < DRAWS - 1) golden_close(&exact);
        golden_close(&half);
    }
    double floor = FLOOR * e.gradient_norm;
    compare(text, model, "logits", e.logits, 0);
    compare(text, model, "loss", e.loss, 0);
    for (int i = 0; i < exact.model->nparams; i++) {
        const pl_param *p = exact.model->params[i];
        if (p->trainable) compare(text, model, p->name, e.grads[i], floor);
    }
    golden_close(&exact);
    pl_buf_free(&table);
}

int main(void)
{
    return golden_each_model("bf16 is as near as the peer's", as_the_peer);
}
