#include <stdlib.h>
#include <string.h>

#include "api/prompts.h"

/* Prompts are read in passes of so many tokens, which bounds the memory that they take. */
#define CHUNK 512

/* One text on its way to the sink. */
typedef struct telling {
    const pl_prompt_text *prompt;
    pl_decoder *decoder; /* NULL before the first token and after the last */
    pl_buf text;         /* held back until it is this text's turn */
    size_t told;         /* bytes of the prompt that the decoder has still to give */
    pl_written written;
    bool begun, ended; /* the sink has some of it; the model has written all of it */
} telling;

typedef struct generating {
    pl_error *err;
    const pl_texts *texts;
    const pl_text_sink *sink;
    telling *items; /* [count] */
    int64_t count, turn;
    bool refused; /* the sink has ended it */
    int rc;
} generating;

/* Gives the sink what there is of the text whose turn it is. */
static void tell(generating *g, telling *t)
{
    size_t old = t->told < t->text.size ? t->told : t->text.size, size = t->text.size - old;
    t->told -= old;
    t->begun |= size > 0;
    if (size && !g->sink->text(g->sink->user, &t->written, pl_buf_text(&t->text) + old, size)) g->refused = true;
    pl_buf_clear(&t->text);
}

static void tell_end(generating *g, telling *t)
{
    if (g->sink->end && !g->sink->end(g->sink->user, &t->written)) g->refused = true;
    pl_buf_free(&t->text);
}

/* Tells what the turn has come to. */
static void tell_on(generating *g)
{
    while (g->turn < g->count && !g->refused) {
        telling *t = &g->items[g->turn];
        tell(g, t);
        if (g->refused || !t->ended) return;
        tell_end(g, t);
        g->turn++;
    }
}

/* Takes the decoder to where the prompt's tokens end, for the text goes on from them. It may hold back the last ones,
   as bytes of a character do not end where tokens do. */
static int pass_prompt(pl_error *err, const pl_texts *texts, telling *t)
{
    const pl_tokens *prompt = &t->prompt->tokens;
    pl_buf whole = {0};
    int rc = pl_tokenizer_decode(err, texts->tokenizer, prompt->ids, prompt->count, true, &whole);
    t->told = whole.size;
    pl_buf_free(&whole);
    if (rc < 0) return rc;
    for (size_t i = 0; i < prompt->count; i++) PL_TRY(pl_decoder_push(err, t->decoder, prompt->ids[i], &t->text));
    t->told -= t->text.size;
    pl_buf_clear(&t->text);
    return 0;
}

static int decode(pl_error *err, const pl_texts *texts, telling *t, int32_t token)
{
    if (!t->decoder) {
        PL_TRY(pl_decoder_open(err, texts->tokenizer, true, &t->decoder));
        if (!t->prompt->chat) PL_TRY(pass_prompt(err, texts, t));
    }
    return pl_decoder_push(err, t->decoder, token, &t->text);
}

static int finish(pl_error *err, telling *t)
{
    int rc = t->decoder ? pl_decoder_finish(err, t->decoder, &t->text) : 0;
    pl_decoder_close(t->decoder);
    t->decoder = NULL;
    t->ended = true;
    return rc;
}

static bool on_token(void *user, int64_t text, int32_t token)
{
    generating *g = user;
    telling *t = &g->items[text];
    t->written.new_tokens++;
    g->rc = decode(g->err, g->texts, t, token);
    if (g->rc == 0 && text == g->turn) tell_on(g);
    return g->rc == 0 && !g->refused;
}

static bool on_end(void *user, int64_t text, bool stopped)
{
    generating *g = user;
    telling *t = &g->items[text];
    t->written.end = stopped ? PL_WRITTEN_STOP : PL_WRITTEN_LENGTH;
    g->rc = finish(g->err, t);
    if (g->rc == 0 && text == g->turn) tell_on(g);
    return g->rc == 0 && !g->refused;
}

/* How many new tokens the model has positions for after each prompt. */
static int room(pl_error *err, const pl_log *log, const pl_config *c, const pl_arch *arch, const pl_prompt_list *list,
    pl_prompt *prompts)
{
    int64_t least = c->generate.max_tokens;
    for (size_t i = 0; i < list->count; i++) {
        const pl_prompt_text *p = &list->items[i];
        int64_t n = (int64_t)p->tokens.count, left = arch->max_positions - n;
        if (left <= 0) {
            return PL_FAIL(err, PL_EINPUT, "%s has %lld tokens; the model has positions for %lld", p->where,
                (long long)n, (long long)arch->max_positions);
        }
        int64_t most = left < c->generate.max_tokens ? left : c->generate.max_tokens;
        if (most < least) least = most;
        prompts[i] = (pl_prompt){.tokens = p->tokens.ids, .count = n, .max_tokens = most};
    }
    if (least < c->generate.max_tokens && pl_config_is_set(c, &c->generate.max_tokens)) {
        pl_logf(log, PL_LOG_WARNING, "%sthe model has positions for %lld more tokens, not %lld",
            list->count > 1 ? "after the longest prompt " : "", (long long)least, (long long)c->generate.max_tokens);
    }
    return 0;
}

/* A step of one token for each text, with their rows of the cache full. */
static int plan_step(pl_error *err, const pl_generation *g, const int64_t *rows, pl_batch *batch)
{
    int64_t begin = 0;
    PL_TRY(pl_batch_open(err, batch, g->batch, g->batch));
    for (int i = 0; i < g->batch; i++) {
        PL_TRY(pl_batch_append(err, batch, &(int32_t){0}, NULL, 1));
        batch->sequences[i].k_begin = begin;
        batch->sequences[i].k_len = rows[i];
        begin += rows[i];
    }
    return 0;
}

static int64_t longest_of(const pl_prompt *prompts, int64_t count)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < count; i++) longest = prompts[i].count > longest ? prompts[i].count : longest;
    return longest;
}

/* Prompts as long as the longest, as many as are read in one pass; the first stands for the last part of one too. */
static int plan_prompts(pl_error *err, const pl_generation *g, int64_t rows, pl_batch *batch)
{
    int32_t *zeros;
    int rc = 0;
    PL_TRY(pl_batch_open(err, batch, g->together, g->batch));
    PL_TRY(pl_calloc(err, (size_t)g->chunk, sizeof *zeros, &zeros));
    while (batch->tokens < g->together) {
        int64_t left = g->together - batch->tokens;
        PL_GO(done, pl_batch_append(err, batch, zeros, NULL, left < g->chunk ? left : g->chunk));
        batch->sequences[batch->nsequences - 1].k_begin = 0;
    }
    batch->sequences[0].k_len = rows;
done:
    free(zeros);
    return rc;
}

static int start(pl_error *err, pl_session *s, const pl_generation *g)
{
    pl_batch planned[2] = {0};
    int64_t *rows, all = 0;
    PL_TRY(pl_calloc(err, (size_t)g->batch, sizeof *rows, &rows));
    int rc;
    PL_GO(done, pl_generation_rows(err, g, rows));
    for (int i = 0; i < g->batch; i++) all += rows[i];
    PL_GO(done, plan_prompts(err, g, rows[0], &planned[0]));
    PL_GO(done, plan_step(err, g, rows, &planned[1]));
    pl_work work = {.capacity = {.tokens = g->together > g->batch ? g->together : g->batch,
                        .max_length = rows[0],
                        .sequences = g->batch},
        .batches = planned,
        .nbatches = PL_COUNT(planned),
        .cache_rows = all,
        .logits = g->batch};
    rc = pl_session_start(err, s, &work);
done:
    pl_batch_close(&planned[1]);
    pl_batch_close(&planned[0]);
    free(rows);
    return rc;
}

static pl_generation generation_of(
    const pl_config *c, const pl_session *s, const pl_prompt *prompts, int64_t count, generating *user)
{
    const pl_arch *a = &s->model->arch;
    int64_t longest = longest_of(prompts, count), batch = c->generate.batch < count ? c->generate.batch : count;
    int64_t chunk = longest < CHUNK ? longest : CHUNK, together = batch * chunk < CHUNK ? batch * chunk : CHUNK;
    bool joins = s->device->ops->gemm_alike_rows(s->device, s->model->dtype) <= chunk;
    return (pl_generation){.prompts = prompts,
        .nprompts = count,
        .batch = (int)batch,
        .chunk = chunk,
        .together = joins ? together : chunk,
        .stops = a->eos_tokens,
        .nstops = a->neos,
        .sampling = {.greedy = c->generate.greedy,
            .temperature = c->generate.temperature,
            .top_k = c->generate.top_k,
            .top_p = c->generate.top_p,
            .min_p = c->generate.min_p,
            .repetition_penalty = c->generate.repetition_penalty,
            .seed = (uint64_t)c->generate.seed},
        .user = user,
        .token = on_token,
        .end = on_end};
}

/* The sink wanted no more: what it has of the text whose turn it is ends here. */
static int interrupt(pl_error *err, generating *g)
{
    if (g->turn == g->count) return 0;
    telling *t = &g->items[g->turn];
    t->written.end = PL_WRITTEN_INTERRUPTED;
    if (t->begun) tell_end(g, t);
    if (g->turn + 1 == g->count) return 0;
    return PL_FAIL(err, PL_ESTOPPED, "stopped in text %lld of %lld", (long long)g->turn + 1, (long long)g->count);
}

static int write(
    pl_error *err, pl_session *s, generating *g, const pl_generation *generation, pl_generate_result *result)
{
    pl_error why = {0};
    pl_generation_time time;
    int rc = pl_generate(&why, s->engine, s->model, generation, &time);
    if (rc == PL_ENUMERIC) PL_TRY(pl_session_check_finite(err, s));
    if (rc < 0) {
        pl_error_set(err, why.code, why.file, why.line, "%s", why.message);
        return rc;
    }
    if (g->rc < 0) return g->rc;
    result->prompt_s = time.read_s;
    result->write_s = time.write_s;
    result->texts = g->turn;
    for (int64_t i = 0; i < g->count; i++) {
        result->prompt_tokens += g->items[i].written.prompt_tokens;
        result->new_tokens += g->items[i].written.new_tokens;
    }
    return g->refused ? interrupt(err, g) : 0;
}

static int open_tellings(pl_error *err, const pl_prompt_list *list, generating *g)
{
    PL_TRY(pl_calloc(err, list->count, sizeof *g->items, &g->items));
    g->count = (int64_t)list->count;
    for (int64_t i = 0; i < g->count; i++) {
        const pl_prompt_text *p = &list->items[i];
        g->items[i] = (telling){.prompt = p,
            .written = {.number = i + 1,
                .count = g->count,
                .prompt = p->messages ? NULL : pl_buf_text(&p->text),
                .prompt_size = p->text.size,
                .prompt_tokens = (int64_t)p->tokens.count}};
    }
    return 0;
}

static void close_tellings(generating *g)
{
    for (int64_t i = 0; i < g->count; i++) {
        pl_decoder_close(g->items[i].decoder);
        pl_buf_free(&g->items[i].text);
    }
    free(g->items);
}

int pl_generate_texts(
    pl_error *err, const pl_log *log, pl_config *config, const pl_text_sink *sink, pl_generate_result *result)
{
    pl_session *s = NULL;
    pl_texts texts = {0};
    pl_prompt_list list = {0};
    pl_prompt *prompts = NULL;
    generating g = {.err = err, .texts = &texts, .sink = sink};
    int rc;
    *result = (pl_generate_result){0};
    PL_GO(done, pl_config_check(err, config, PL_CMD_GENERATE));
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    PL_GO(done, pl_texts_open(err, config, &texts));
    PL_GO(done, pl_prompts_open(err, config, &texts, &list));
    PL_GO(done, pl_calloc(err, list.count, sizeof *prompts, &prompts));
    PL_GO(done, room(err, log, config, &s->model->arch, &list, prompts));
    PL_GO(done, open_tellings(err, &list, &g));
    pl_generation generation = generation_of(config, s, prompts, g.count, &g);
    PL_GO(done, start(err, s, &generation));
    rc = write(err, s, &g, &generation, result);
done:
    close_tellings(&g);
    free(prompts);
    pl_prompts_close(&list);
    pl_texts_close(&texts);
    pl_session_close(s);
    return rc;
}
