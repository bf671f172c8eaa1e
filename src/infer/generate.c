#include "infer/generate.h"

#include <stdlib.h>

#include "base/buf.h"

typedef struct writing {
    pl_engine *engine;
    const pl_arch *arch;
    const pl_generation *g;
    pl_batch batch;
    pl_sampler *sampler;
    float *logits;
    int32_t *tokens; /* [nprompt + max_tokens]: the prompt and what was written */
    int64_t length;  /* of them */
    int64_t cached;  /* of them are in the cache */
} writing;

/* Takes the next n tokens in, and gives the logits after the last. */
static int take(pl_error *err, writing *w, int64_t n)
{
    pl_batch *b = &w->batch;
    pl_batch_clear(b);
    PL_TRY(pl_batch_append(err, b, w->tokens + w->cached, NULL, n));
    for (int64_t i = 0; i < n; i++) b->positions[i] = (int32_t)(w->cached + i);
    b->rope_length = w->length;
    b->sequences[0] = (pl_sequence){.q_begin = 0, .q_len = n, .k_begin = 0, .k_len = w->cached + n};
    int32_t last = (int32_t)(n - 1);
    PL_TRY(pl_engine_logits(w->engine, b, &last, 1, w->logits));
    w->cached += n;
    return 0;
}

/* Takes in whatever the cache does not have yet. */
static int catch_up(pl_error *err, writing *w)
{
    while (w->cached < w->length) {
        int64_t n = w->length - w->cached;
        PL_TRY(take(err, w, n < w->g->chunk ? n : w->g->chunk));
    }
    return 0;
}

/* Adds a token. Where a longrope model passes the length from which its other frequencies hold, the keys in the cache
   are of the wrong ones, and all of them are made anew, as transformers does. */
static void add(writing *w, int32_t token)
{
    for (int r = 0; r < w->arch->nropes; r++) {
        const pl_rope_spec *rope = &w->arch->ropes[r];
        if (rope->kind == PL_ROPE_LONGROPE && !pl_rope_same(rope, w->length, w->length + 1)) w->cached = 0;
    }
    w->tokens[w->length++] = token;
}

static int read_prompt(pl_error *err, writing *w)
{
    for (int64_t i = 0; i < w->g->nprompt; i++) {
        w->tokens[w->length++] = w->g->prompt[i];
        pl_sampler_saw(w->sampler, w->g->prompt[i]);
    }
    return catch_up(err, w);
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
        add(w, token);
        PL_TRY(catch_up(err, w));
    }
    return 0;
}

int pl_generate(pl_error *err, pl_engine *engine, const pl_model *model, const pl_generation *g, int64_t *written)
{
    writing w = {.engine = engine, .arch = &model->arch, .g = g};
    int rc;
    PL_GO(done, pl_batch_open(err, &w.batch, g->chunk, 1));
    PL_GO(done, pl_sampler_open(err, &g->sampling, model->arch.vocab, &w.sampler));
    PL_GO(done, pl_calloc(err, (size_t)model->arch.vocab, sizeof *w.logits, &w.logits));
    PL_GO(done, pl_calloc(err, (size_t)(g->nprompt + g->max_tokens), sizeof *w.tokens, &w.tokens));
    PL_GO(done, read_prompt(err, &w));
    rc = write_on(err, &w, written);
done:
    free(w.tokens);
    free(w.logits);
    pl_sampler_close(w.sampler);
    pl_batch_close(&w.batch);
    return rc;
}
