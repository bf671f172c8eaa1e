#include "infer/generate.h"

#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"

/* Rows of the cache, and the text that is in them. */
typedef struct place {
    int64_t begin, rows;
    const pl_prompt *prompt; /* NULL: free */
    int64_t number;          /* of the text */
    int32_t *tokens;         /* [rows]: the prompt and what was written */
    int64_t length;          /* of them */
    int64_t cached;          /* of them are in the cache */
    int64_t written;
    int64_t step; /* in which it was taken last */
} place;

typedef struct writing {
    pl_engine *engine;
    const pl_arch *arch;
    const pl_generation *g;
    pl_batch batch;
    pl_sampler *sampler;
    float *logits;   /* [batch, vocab] */
    int32_t *tokens; /* of all places */
    int64_t *rows;   /* [batch] */
    int32_t *last;   /* [batch] */
    place *places;   /* [batch], the largest first */
    place **taken;   /* [batch]: whose next token is being made */
    int64_t next;    /* prompt that has no place yet */
    int64_t step;
    int64_t alike; /* texts of so many tokens are read with others to the bit as alone */
    bool over;     /* nobody wants more */
} writing;

static int64_t need(const pl_prompt *p)
{
    return p->count + p->max_tokens;
}

static int descending(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

int pl_generation_rows(pl_error *err, const pl_generation *g, int64_t *rows)
{
    int64_t *all;
    PL_TRY(pl_calloc(err, (size_t)g->nprompts, sizeof *all, &all));
    for (int64_t i = 0; i < g->nprompts; i++) all[i] = need(&g->prompts[i]);
    qsort(all, (size_t)g->nprompts, sizeof *all, descending);
    memcpy(rows, all, (size_t)g->batch * sizeof *rows);
    free(all);
    return 0;
}

/* The smallest free place that is large enough, or NULL: a long text may have to wait for a long one's. */
static place *find_place(writing *w, int64_t rows)
{
    for (int i = w->g->batch - 1; i >= 0; i--) {
        if (!w->places[i].prompt && w->places[i].rows >= rows) return &w->places[i];
    }
    return NULL;
}

/* Gives free places to the prompts whose turn it is. */
static void admit(writing *w)
{
    for (; w->next < w->g->nprompts; w->next++) {
        const pl_prompt *prompt = &w->g->prompts[w->next];
        place *p = find_place(w, need(prompt));
        if (!p) return;
        p->prompt = prompt;
        p->number = w->next;
        memcpy(p->tokens, prompt->tokens, (size_t)prompt->count * sizeof *p->tokens);
        p->length = prompt->count;
        p->cached = p->written = 0;
    }
}

static bool same_ropes(const pl_arch *arch, int64_t a, int64_t b)
{
    for (int r = 0; r < arch->nropes; r++) {
        if (!pl_rope_same(&arch->ropes[r], a, b)) return false;
    }
    return true;
}

/* Adds a token. Where a longrope model passes the length from which its other frequencies hold, the keys in the cache
   are of the wrong ones, and all of them are made anew, as transformers does. */
static void add(const pl_arch *arch, place *p, int32_t token)
{
    for (int r = 0; r < arch->nropes; r++) {
        const pl_rope_spec *rope = &arch->ropes[r];
        if (rope->kind == PL_ROPE_LONGROPE && !pl_rope_same(rope, p->length, p->length + 1)) p->cached = 0;
    }
    p->tokens[p->length++] = token;
}

static bool is_stop(const pl_generation *g, int32_t token)
{
    for (int i = 0; i < g->nstops; i++) {
        if (g->stops[i] == token) return true;
    }
    return false;
}

static void end(writing *w, place *p, bool stopped)
{
    p->prompt = NULL;
    if (w->g->end && !w->g->end(w->g->user, p->number, stopped)) w->over = true;
}

/* Chooses a text's next token by the logits after its last. */
static int choose(pl_error *err, writing *w, place *p, const float *logits)
{
    const pl_generation *g = w->g;
    pl_draw draw = {
        .before = p->tokens, .nbefore = p->length, .text = (uint32_t)p->number, .index = (uint64_t)p->written};
    int32_t token;
    PL_TRY(pl_sampler_next(err, w->sampler, logits, &draw, &token));
    if (is_stop(g, token)) {
        end(w, p, true);
        return 0;
    }
    add(w->arch, p, token);
    p->written++;
    if (!g->token(g->user, p->number, token))
        w->over = true;
    else if (p->written == p->prompt->max_tokens)
        end(w, p, false);
    return 0;
}

/* Appends the next n tokens of a text to the batch. */
static int take(pl_error *err, writing *w, place *p, int64_t n)
{
    pl_batch *b = &w->batch;
    int64_t at = b->tokens;
    PL_TRY(pl_batch_append(err, b, p->tokens + p->cached, NULL, n));
    for (int64_t i = 0; i < n; i++) b->positions[at + i] = (int32_t)(p->cached + i);
    if (p->length > b->rope_length) b->rope_length = p->length;
    b->sequences[b->nsequences - 1] =
        (pl_sequence){.q_begin = at, .q_len = n, .k_begin = p->begin, .k_len = p->cached + n};
    p->cached += n;
    return 0;
}

/* Reads what the cache does not have of a text yet, and makes its next token. */
static int read_alone(pl_error *err, writing *w, place *p)
{
    while (p->cached < p->length) {
        int64_t left = p->length - p->cached, n = left < w->g->chunk ? left : w->g->chunk;
        int32_t last = (int32_t)(n - 1);
        pl_batch_clear(&w->batch);
        PL_TRY(take(err, w, p, n));
        PL_TRY(pl_engine_logits(w->engine, &w->batch, &last, 1, w->logits));
    }
    return choose(err, w, p, w->logits);
}

/* A prompt, or a text that begins anew. */
static bool is_read(const place *p)
{
    return p->prompt && (p->written == 0 || p->length - p->cached > 1);
}

/* Chooses the next token of each text of a batch. */
static int choose_all(pl_error *err, writing *w, int n)
{
    PL_TRY(pl_engine_logits(w->engine, &w->batch, w->last, n, w->logits));
    for (int i = 0; i < n && !w->over; i++) {
        PL_TRY(choose(err, w, w->taken[i], w->logits + (int64_t)i * w->arch->vocab));
    }
    return 0;
}

/* Whether all of a text is read in one pass, and in this one. */
static bool joins(const writing *w, const place *p, int n)
{
    if (p->cached > 0 || p->length < w->alike || p->length > w->g->chunk) return false;
    if (w->batch.tokens + p->length > w->g->together) return false;
    return n == 0 || same_ropes(w->arch, w->taken[0]->length, p->length);
}

/* Reads what is still to be read, as much as goes in one pass, and else a text alone: then its products do not depend
   on what is beside it. False: nothing is left to read. */
static int read_some(pl_error *err, writing *w, bool *some)
{
    place *alone = NULL;
    int n = 0;
    pl_batch_clear(&w->batch);
    for (int i = 0; i < w->g->batch; i++) {
        place *p = &w->places[i];
        if (!is_read(p)) continue;
        if (!joins(w, p, n)) {
            if (!alone) alone = p;
            continue;
        }
        PL_TRY(take(err, w, p, p->length));
        w->last[n] = (int32_t)(w->batch.tokens - 1);
        w->taken[n++] = p;
    }
    *some = n > 0 || alone;
    if (n > 0) return choose_all(err, w, n);
    return alone ? read_alone(err, w, alone) : 0;
}

/* One more token of each text of this step that is left, as far as the same frequencies hold for them. False: none is
   left. */
static int write_some(pl_error *err, writing *w, bool *some)
{
    int n = 0;
    pl_batch_clear(&w->batch);
    for (int i = 0; i < w->g->batch; i++) {
        place *p = &w->places[i];
        if (!p->prompt || p->step == w->step || is_read(p)) continue;
        if (n > 0 && !same_ropes(w->arch, w->taken[0]->length, p->length)) continue;
        PL_TRY(take(err, w, p, 1));
        p->step = w->step;
        w->last[n] = n;
        w->taken[n++] = p;
    }
    *some = n > 0;
    if (n == 0) return 0;
    return choose_all(err, w, n);
}

/* Reads until no place is free that a prompt waits for, for a text may end with its first token. */
static int read_prompts(pl_error *err, writing *w)
{
    for (bool some = true; some && !w->over;) {
        admit(w);
        PL_TRY(read_some(err, w, &some));
    }
    return 0;
}

static bool is_done(const writing *w)
{
    if (w->over) return true;
    if (w->next < w->g->nprompts) return false;
    for (int i = 0; i < w->g->batch; i++) {
        if (w->places[i].prompt) return false;
    }
    return true;
}

static int write_all(pl_error *err, writing *w, pl_generation_time *time)
{
    do {
        double begin = pl_clock();
        PL_TRY(read_prompts(err, w));
        double read = pl_clock();
        w->step++;
        for (bool some = true; some && !w->over;) PL_TRY(write_some(err, w, &some));
        time->read_s += read - begin;
        time->write_s += pl_clock() - read;
    } while (!is_done(w));
    return 0;
}

static int open_places(pl_error *err, writing *w)
{
    size_t n = (size_t)w->g->batch;
    int64_t all = 0;
    PL_TRY(pl_calloc(err, n, sizeof *w->rows, &w->rows));
    PL_TRY(pl_calloc(err, n, sizeof *w->last, &w->last));
    PL_TRY(pl_calloc(err, n, sizeof *w->places, &w->places));
    PL_TRY(pl_calloc(err, n, sizeof *w->taken, &w->taken));
    PL_TRY(pl_generation_rows(err, w->g, w->rows));
    for (size_t i = 0; i < n; i++) all += w->rows[i];
    PL_TRY(pl_calloc(err, (size_t)all, sizeof *w->tokens, &w->tokens));
    int64_t begin = 0;
    for (size_t i = 0; i < n; i++) {
        w->places[i] = (place){.begin = begin, .rows = w->rows[i], .tokens = w->tokens + begin};
        begin += w->rows[i];
    }
    return 0;
}

int pl_generate(
    pl_error *err, pl_engine *engine, const pl_model *model, const pl_generation *g, pl_generation_time *time)
{
    writing w = {.engine = engine, .arch = &model->arch, .g = g};
    pl_device *device = pl_engine_run(engine)->device;
    int64_t tokens = g->chunk > g->batch ? g->chunk : g->batch;
    if (g->together > tokens) tokens = g->together;
    int rc;
    *time = (pl_generation_time){0};
    w.alike = device->ops->gemm_alike_rows(device, model->dtype);
    PL_GO(done, pl_batch_open(err, &w.batch, tokens, g->batch));
    PL_GO(done, pl_sampler_open(err, &g->sampling, model->arch.vocab, &w.sampler));
    PL_GO(done, pl_calloc(err, (size_t)(g->batch * model->arch.vocab), sizeof *w.logits, &w.logits));
    PL_GO(done, open_places(err, &w));
    rc = write_all(err, &w, time);
done:
    free(w.tokens);
    free(w.taken);
    free(w.places);
    free(w.last);
    free(w.rows);
    free(w.logits);
    pl_sampler_close(w.sampler);
    pl_batch_close(&w.batch);
    return rc;
}
