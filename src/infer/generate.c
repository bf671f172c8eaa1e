#include "infer/generate.h"

#include <stdlib.h>

#include "base/buf.h"

typedef struct writing {
    pl_engine *engine;
    const pl_generation *g;
    pl_batch batch;
    pl_sampler *sampler;
    float *logits;
    int64_t position; /* tokens in the cache */
} writing;

/* Takes n tokens in, and gives the logits after the last. */
static int take(pl_error *err, writing *w, const int32_t *tokens, int64_t n)
{
    pl_batch *b = &w->batch;
    pl_batch_clear(b);
    PL_TRY(pl_batch_append(err, b, tokens, NULL, n));
    for (int64_t i = 0; i < n; i++) b->positions[i] = (int32_t)(w->position + i);
    b->sequences[0] = (pl_sequence){.q_begin = 0, .q_len = n, .k_begin = 0, .k_len = w->position + n};
    int32_t last = (int32_t)(n - 1);
    PL_TRY(pl_engine_logits(w->engine, b, &last, 1, w->logits));
    w->position += n;
    return 0;
}

static int read_prompt(pl_error *err, writing *w)
{
    const pl_generation *g = w->g;
    for (int64_t at = 0; at < g->nprompt; at += g->chunk) {
        int64_t n = g->nprompt - at < g->chunk ? g->nprompt - at : g->chunk;
        PL_TRY(take(err, w, g->prompt + at, n));
    }
    for (int64_t i = 0; i < g->nprompt; i++) pl_sampler_saw(w->sampler, g->prompt[i]);
    return 0;
}

static bool is_stop(const pl_generation *g, int32_t token)
{
    for (int i = 0; i < g->nstops; i++) {
        if (g->stops[i] == token) return true;
    }
    return false;
}

static int write_on(pl_error *err, writing *w, int64_t *written)
{
    const pl_generation *g = w->g;
    for (*written = 0; *written < g->max_tokens;) {
        int32_t token;
        PL_TRY(pl_sampler_next(err, w->sampler, w->logits, (uint64_t)*written, &token));
        if (is_stop(g, token)) return 0;
        pl_sampler_saw(w->sampler, token);
        ++*written;
        if (!g->token(g->user, token) || *written == g->max_tokens) return 0;
        PL_TRY(take(err, w, &token, 1));
    }
    return 0;
}

int pl_generate(pl_error *err, pl_engine *engine, const pl_model *model, const pl_generation *g, int64_t *written)
{
    writing w = {.engine = engine, .g = g};
    int rc;
    PL_GO(done, pl_batch_open(err, &w.batch, g->chunk, 1));
    PL_GO(done, pl_sampler_open(err, &g->sampling, model->arch.vocab, &w.sampler));
    PL_GO(done, pl_calloc(err, (size_t)model->arch.vocab, sizeof *w.logits, &w.logits));
    PL_GO(done, read_prompt(err, &w));
    rc = write_on(err, &w, written);
done:
    free(w.logits);
    pl_sampler_close(w.sampler);
    pl_batch_close(&w.batch);
    return rc;
}
