#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

/* An f32 run of HF itself is within 2e-7..1e-6 of the reference in logits, 5e-7..3e-6 in gradients (hf_f32_error). */
#define LOGITS 1e-5
#define GRADS 2e-5
#define SCALARS 1e-5
/* Absolute: AdamW moves an element by about lr = 1e-3 a step, whatever the size of its gradient. */
#define FINAL 5e-5
/* An element whose gradient is below this part of the tensor's largest is rounding noise that AdamW amplifies. */
#define NOISE 1e-5

void golden_check_logits(golden *g)
{
    int64_t n, tokens = g->batch.tokens, vocab = g->model->arch.vocab;
    double *want = golden_expected(g, "logits", &n);
    int32_t *rows = malloc((size_t)tokens * sizeof *rows);
    float *got = malloc((size_t)n * sizeof *got);
    for (int64_t t = 0; t < tokens; t++) rows[t] = (int32_t)t;
    assert_int_equal(n, tokens * vocab);
    if (pl_engine_logits(g->engine, &g->batch, rows, tokens, got) < 0) fail_msg("%s", g->err.message);
    golden_close_to("logits", got, want, n, LOGITS * g->slack, 0);
    free(want);
    free(rows);
    free(got);
}

void golden_check_gradients(golden *g)
{
    double loss;
    if (pl_engine_gradients(g->engine, &g->batch, &loss) < 0) fail_msg("%s", g->err.message);
    double want_loss = json_number_value(json_object_get(g->info, "loss"));
    if (fabs(loss - want_loss) > SCALARS * g->slack * want_loss) fail_msg("loss %.9g, not %.9g", loss, want_loss);
    for (int i = 0; i < g->model->nparams; i++) {
        const pl_param *p = g->model->params[i];
        char name[512];
        int64_t n;
        if (!p->trainable) continue;
        double *want = golden_expected(g, golden_key(g, p, "grad.", name), &n);
        float *got = golden_fetch(g, p->grad);
        assert_int_equal(n, pl_param_numel(p));
        /* The floor covers key biases, whose gradient is zero but for rounding (some 1e-8 here). */
        golden_close_to(name, got, want, n, GRADS * g->slack, 1e-3);
        free(want);
        free(got);
    }
}

static int same_batch(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch)
{
    (void)step;
    (void)micro;
    return pl_batch_copy(err, user, batch);
}

pl_feed golden_same_feed(golden *g)
{
    return (pl_feed){.user = &g->batch, .micro_batch = same_batch};
}

static void check_final(golden *g)
{
    for (int i = 0; i < g->model->nparams; i++) {
        const pl_param *p = g->model->params[i];
        char name[512];
        int64_t n;
        if (!p->trainable) continue;
        double *grad = golden_expected(g, golden_key(g, p, "grad.", name), &n), largest = 0;
        double *want = golden_expected(g, golden_key(g, p, "final.", name), &n);
        float *got = golden_fetch(g, p->value);
        for (int64_t e = 0; e < n; e++) largest = fmax(largest, fabs(grad[e]));
        for (int64_t e = 0; e < n; e++) {
            if (fabs(grad[e]) < NOISE * largest || largest < 1e-12) continue;
            if (fabs((double)got[e] - want[e]) > FINAL * g->slack) {
                fail_msg("%s: element %lld is %.9g, not %.9g", name, (long long)e, (double)got[e], want[e]);
            }
        }
        free(grad);
        free(want);
        free(got);
    }
}

void golden_check_steps(golden *g)
{
    int64_t n;
    double *losses = golden_expected(g, "train_losses", &n), *norms = golden_expected(g, "grad_norms", &n);
    pl_feed feed = golden_same_feed(g);
    for (int step = 1; step <= 5; step++) {
        pl_step_result r;
        if (pl_engine_step(g->engine, &feed, step, 1, g->batch.ntargets, 1e-3, &r) < 0) fail_msg("%s", g->err.message);
        if (fabs(r.loss - losses[step - 1]) > SCALARS * g->slack * losses[step - 1]) {
            fail_msg("step %d: loss %.9g, not %.9g", step, r.loss, losses[step - 1]);
        }
        if (fabs(r.grad_norm - norms[step - 1]) > SCALARS * g->slack * norms[step - 1]) {
            fail_msg("step %d: gradient norm %.9g, not %.9g", step, r.grad_norm, norms[step - 1]);
        }
    }
    double sum;
    if (pl_engine_evaluate(g->engine, &g->batch, &sum) < 0) fail_msg("%s", g->err.message);
    sum /= (double)g->batch.ntargets;
    if (fabs(sum - losses[5]) > SCALARS * g->slack * losses[5]) fail_msg("after: loss %.9g, not %.9g", sum, losses[5]);
    check_final(g);
    free(losses);
    free(norms);
}
