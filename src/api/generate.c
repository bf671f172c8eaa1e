#include <stdlib.h>
#include <string.h>

#include "api/data.h"
#include "base/clock.h"
#include "infer/generate.h"

/* A prompt is read in parts of so many tokens, which bounds the memory that it takes. */
#define CHUNK 512

typedef struct telling {
    pl_error *err;
    const pl_text_sink *sink;
    pl_decoder *decoder;
    pl_buf text;
    size_t told;         /* bytes of the prompt that the decoder has still to give */
    double begin, first; /* clock at the start, and when the first token came */
    int rc;
} telling;

static bool tell(telling *t)
{
    size_t old = t->told < t->text.size ? t->told : t->text.size;
    t->told -= old;
    bool go_on = t->text.size == old || t->sink->text(t->sink->user, pl_buf_text(&t->text) + old, t->text.size - old);
    pl_buf_clear(&t->text);
    return go_on;
}

static bool on_token(void *user, int32_t token)
{
    telling *t = user;
    if (t->first == 0) t->first = pl_clock();
    t->rc = pl_decoder_push(t->err, t->decoder, token, &t->text);
    return t->rc == 0 && tell(t);
}

/* The prompt's text: as it is, or as the template puts it. */
static int chat_text(pl_error *err, const pl_config *c, const pl_texts *texts, const char *prompt, pl_buf *out)
{
    if (!texts->chat) {
        return PL_FAIL(
            err, PL_EINPUT, "%s has no chat template; leave --chat out, or name one with --data.template", c->model);
    }
    json_t *messages = json_array();
    bool failed = !messages;
    if (c->generate.system) {
        failed |=
            json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "system", "content", c->generate.system));
    }
    failed |= json_array_append_new(messages, json_pack("{s:s, s:s}", "role", "user", "content", prompt)) != 0;
    int rc = failed ? PL_FAIL(err, PL_EINPUT, "the prompt is not valid UTF-8")
                    : pl_chat_render(err, texts->chat, messages, NULL, true, out);
    json_decref(messages);
    return rc;
}

static int encode(pl_error *err, const pl_config *c, const pl_texts *texts, const char *prompt, pl_tokens *tokens)
{
    if (!texts->tokenizer) {
        return PL_FAIL(err, PL_EINPUT,
            "%s has no tokenizer.json, without which there is no text to write; " PL_TOKENIZER_HINT, c->model);
    }
    pl_buf text = {0};
    int rc = 0;
    if (c->generate.chat) {
        rc = chat_text(err, c, texts, prompt, &text);
        /* The template wrote the special tokens itself. */
        if (rc == 0) rc = pl_tokenizer_encode(err, texts->tokenizer, pl_buf_text(&text), text.size, false, tokens);
    } else {
        rc = pl_tokenizer_encode(err, texts->tokenizer, prompt, strlen(prompt), true, tokens);
    }
    pl_buf_free(&text);
    if (rc == 0 && tokens->count == 0)
        rc = PL_FAIL(err, PL_EUSAGE, "the prompt is empty; there is nothing to go on from");
    return rc;
}

/* How many new tokens the model has positions for. */
static int room(pl_error *err, const pl_log *log, const pl_config *c, const pl_arch *arch, int64_t prompt, int64_t *out)
{
    int64_t left = arch->max_positions - prompt;
    if (left <= 0) {
        return PL_FAIL(err, PL_EINPUT, "the prompt has %lld tokens; the model has positions for %lld",
            (long long)prompt, (long long)arch->max_positions);
    }
    *out = c->generate.max_tokens;
    if (*out <= left) return 0;
    if (pl_config_is_set(c, &c->generate.max_tokens)) {
        pl_logf(log, PL_LOG_WARNING, "the model has positions for %lld more tokens, not %lld", (long long)left,
            (long long)*out);
    }
    *out = left;
    return 0;
}

/* Takes the decoder to where the prompt's tokens end, for the text goes on from them. It may hold back the last ones,
   as bytes of a character do not end where tokens do. */
static int pass_prompt(pl_error *err, const pl_texts *texts, const pl_tokens *prompt, telling *t)
{
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

static int start(pl_error *err, pl_session *s, int64_t chunk, int64_t rows)
{
    pl_batch planned;
    PL_TRY(pl_batch_open(err, &planned, chunk, 1));
    int32_t *zeros;
    int rc = pl_calloc(err, (size_t)chunk, sizeof *zeros, &zeros);
    if (rc == 0) {
        rc = pl_batch_append(err, &planned, zeros, NULL, chunk);
        free(zeros);
    }
    if (rc == 0) {
        planned.sequences[0].k_len = rows;
        pl_work work = {.capacity = {.tokens = chunk, .max_length = rows, .sequences = 1},
            .batches = &planned,
            .nbatches = 1,
            .cache_rows = rows,
            .logits = 1};
        rc = pl_session_start(err, s, &work);
    }
    pl_batch_close(&planned);
    return rc;
}

static int write(pl_error *err, pl_session *s, telling *t, const pl_tokens *prompt, int64_t chunk, int64_t most,
    pl_generate_result *result)
{
    const pl_config *c = s->config;
    const pl_arch *a = &s->model->arch;
    pl_generation g = {.prompt = prompt->ids,
        .nprompt = (int64_t)prompt->count,
        .max_tokens = most,
        .chunk = chunk,
        .stops = a->eos_tokens,
        .nstops = a->neos,
        .sampling = {.greedy = c->generate.greedy,
            .temperature = c->generate.temperature,
            .top_k = c->generate.top_k,
            .top_p = c->generate.top_p,
            .min_p = c->generate.min_p,
            .repetition_penalty = c->generate.repetition_penalty,
            .seed = (uint64_t)c->generate.seed},
        .user = t,
        .token = on_token};
    t->begin = pl_clock();
    pl_error why = {0};
    int rc = pl_generate(&why, s->engine, s->model, &g, &result->new_tokens);
    if (rc == PL_ENUMERIC) PL_TRY(pl_session_check_finite(err, s));
    if (rc < 0) {
        pl_error_set(err, why.code, why.file, why.line, "%s", why.message);
        return rc;
    }
    if (t->rc < 0) return t->rc;
    double end = pl_clock();
    result->prompt_tokens = g.nprompt;
    result->prompt_s = (t->first > 0 ? t->first : end) - t->begin;
    result->write_s = t->first > 0 ? end - t->first : 0;
    PL_TRY(pl_decoder_finish(err, t->decoder, &t->text));
    tell(t);
    return 0;
}

int pl_generate_text(pl_error *err, const pl_log *log, pl_config *config, const char *prompt, const pl_text_sink *sink,
    pl_generate_result *result)
{
    pl_session *s = NULL;
    pl_texts texts = {0};
    pl_tokens tokens = {0};
    telling t = {.err = err, .sink = sink};
    int64_t most;
    int rc;
    *result = (pl_generate_result){0};
    PL_GO(done, pl_config_check(err, config, PL_CMD_GENERATE));
    PL_GO(done, pl_session_open(err, log, config, PL_PURPOSE_USE, &s));
    PL_GO(done, pl_texts_open(err, config, &texts));
    PL_GO(done, encode(err, config, &texts, prompt, &tokens));
    int64_t n = (int64_t)tokens.count, chunk = n < CHUNK ? n : CHUNK;
    PL_GO(done, room(err, log, config, &s->model->arch, n, &most));
    PL_GO(done, start(err, s, chunk, n + most));
    PL_GO(done, pl_decoder_open(err, texts.tokenizer, true, &t.decoder));
    if (!config->generate.chat) PL_GO(done, pass_prompt(err, &texts, &tokens, &t));
    rc = write(err, s, &t, &tokens, chunk, most, result);
done:
    pl_decoder_close(t.decoder);
    pl_buf_free(&t.text);
    pl_tokens_free(&tokens);
    pl_texts_close(&texts);
    pl_session_close(s);
    return rc;
}
