/* Trained models by others, with their reference.json (float64): tokens of the prompt, logits, greedy text, and each
   token's loss on a story. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/data.h"
#include "base/file.h"
#include "infer/generate.h"

/* f32 through a handful of layers against float64; the references are printed to 1e-6. */
#define LOGITS 1e-5
#define NLL 2e-5

typedef struct reference {
    pl_error err;
    pl_config config;
    json_t *want;
    pl_texts texts;
    pl_session *session;
} reference;

/* An array of the reference as numbers; NULL when it has none of that name. */
static double *numbers(const reference *r, const char *name, int64_t *n)
{
    const json_t *list = json_object_get(r->want, name);
    if (!list) return NULL;
    *n = (int64_t)json_array_size(list);
    double *out = malloc((size_t)*n * sizeof *out + 1);
    assert_non_null(out);
    for (int64_t i = 0; i < *n; i++) out[i] = json_number_value(json_array_get(list, (size_t)i));
    return out;
}

static int32_t *ids(const reference *r, const char *name, int64_t *n)
{
    double *list = numbers(r, name, n);
    assert_non_null(list);
    int32_t *out = malloc((size_t)*n * sizeof *out + 1);
    assert_non_null(out);
    for (int64_t i = 0; i < *n; i++) out[i] = (int32_t)list[i];
    free(list);
    return out;
}

static void open_reference(reference *r, const char *model, const char *file)
{
    char flag[] = "--model", threads[] = "--threads", two[] = "2", path[4096];
    char *argv[] = {flag, path, threads, two};
    const char *rest[4];
    int nrest = 0;
    *r = (reference){0};
    snprintf(path, sizeof path, "%s", model);
    if (pl_config_open(&r->err, &r->config) < 0 ||
        pl_config_flags(&r->err, &r->config, PL_CMD_GENERATE, 4, argv, rest, &nrest) < 0 ||
        pl_json_read(&r->err, file, &r->want) < 0 || pl_texts_open(&r->err, &r->config, &r->texts) < 0)
        fail_msg("%s", r->err.message);
}

static void close_reference(reference *r)
{
    pl_session_close(r->session);
    pl_texts_close(&r->texts);
    json_decref(r->want);
    pl_config_close(&r->config);
}

/* A session for one sequence of n tokens; with room for `more` in the cache, if more are to come. */
static void start(reference *r, int64_t n, int64_t more)
{
    pl_batch batch;
    int32_t *zeros = calloc((size_t)n, sizeof *zeros);
    pl_session_close(r->session);
    r->session = NULL;
    if (pl_session_open(&r->err, NULL, &r->config, PL_PURPOSE_USE, &r->session) < 0 ||
        pl_batch_open(&r->err, &batch, n, 1) < 0 || pl_batch_append(&r->err, &batch, zeros, NULL, n) < 0)
        fail_msg("%s", r->err.message);
    if (more) batch.sequences[0].k_len = n + more;
    pl_work work = {.capacity = {.tokens = n, .max_length = n + more, .sequences = 1},
        .batches = &batch,
        .nbatches = 1,
        .cache_rows = more ? n + more : 0,
        .logits = more ? 1 : n};
    if (pl_session_start(&r->err, r->session, &work) < 0) fail_msg("%s", r->err.message);
    pl_batch_close(&batch);
    free(zeros);
}

/* Logits after each of n tokens, [n, vocab], that the caller frees. */
static float *logits_of(reference *r, const int32_t *tokens, int64_t n)
{
    int64_t vocab = r->session->model->arch.vocab;
    float *logits = malloc((size_t)(n * vocab) * sizeof *logits);
    int32_t *rows = malloc((size_t)n * sizeof *rows);
    pl_batch batch;
    assert_true(logits && rows);
    for (int64_t i = 0; i < n; i++) rows[i] = (int32_t)i;
    if (pl_batch_open(&r->err, &batch, n, 1) < 0 || pl_batch_append(&r->err, &batch, tokens, NULL, n) < 0 ||
        pl_engine_logits(r->session->engine, &batch, rows, n, logits) < 0)
        fail_msg("%s", r->err.message);
    pl_batch_close(&batch);
    free(rows);
    return logits;
}

static void check_prompt(reference *r)
{
    int64_t n;
    const char *prompt = json_string_value(json_object_get(r->want, "prompt"));
    if (!prompt) return; /* a model without a tokenizer */
    int32_t *want = ids(r, "prompt_ids", &n);
    pl_tokens got = {0};
    assert_non_null(r->texts.tokenizer);
    assert_int_equal(pl_tokenizer_encode(&r->err, r->texts.tokenizer, prompt, strlen(prompt), true, &got), 0);
    assert_int_equal(got.count, n);
    assert_memory_equal(got.ids, want, (size_t)n * sizeof *want);
    pl_tokens_free(&got);
    free(want);
}

/* One row of logits against the reference's of that name. */
static void check_row(reference *r, const char *name, const float *got)
{
    int64_t n;
    double largest = 0, *want = numbers(r, name, &n);
    if (!want) return;
    assert_int_equal(n, r->session->model->arch.vocab);
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        if (!(fabs(got[i] - want[i]) <= LOGITS * largest))
            fail_msg("%s: token %d has %.7g, not %.7g", name, (int)i, got[i], want[i]);
    }
    free(want);
}

static void check_logits(reference *r)
{
    int64_t n;
    int32_t *prompt = ids(r, "prompt_ids", &n);
    start(r, n, 0);
    float *logits = logits_of(r, prompt, n);
    check_row(r, "first_token_logits", logits);
    check_row(r, "last_prompt_logits", logits + (n - 1) * r->session->model->arch.vocab);
    free(logits);
    free(prompt);
}

/* -log softmax(row)[target]. */
static double nll(const float *row, int64_t vocab, int32_t target)
{
    double most = row[0], sum = 0;
    for (int64_t v = 0; v < vocab; v++) most = fmax(most, row[v]);
    for (int64_t v = 0; v < vocab; v++) sum += exp(row[v] - most);
    return most + log(sum) - row[target];
}

static void check_story(reference *r)
{
    int64_t n, nwant, vocab;
    double sum = 0, *want = numbers(r, "story_nll_per_token", &nwant);
    if (!want) return;
    int32_t *story = ids(r, "story_ids", &n);
    assert_int_equal(nwant, n - 1);
    const char *text = json_string_value(json_object_get(r->want, "story_text"));
    pl_tokens tokens = {0};
    assert_int_equal(pl_tokenizer_encode(&r->err, r->texts.tokenizer, text, strlen(text), true, &tokens), 0);
    assert_true((int64_t)tokens.count >= n); /* the reference has the text's first tokens */
    assert_memory_equal(tokens.ids, story, (size_t)n * sizeof *story);
    start(r, n, 0);
    vocab = r->session->model->arch.vocab;
    float *logits = logits_of(r, story, n);
    for (int64_t i = 0; i < nwant; i++) {
        double got = nll(logits + i * vocab, vocab, story[i + 1]);
        sum += got;
        if (!(fabs(got - want[i]) <= NLL)) fail_msg("the story's token %d has %.7g, not %.7g", (int)i, got, want[i]);
    }
    double mean = json_number_value(json_object_get(r->want, "story_mean_nll"));
    if (!(fabs(sum / (double)nwant - mean) <= NLL)) fail_msg("mean loss %.7g, not %.7g", sum / (double)nwant, mean);
    pl_tokens_free(&tokens);
    free(logits);
    free(story);
    free(want);
}

typedef struct written {
    int32_t *ids;
    int64_t count;
} written;

static bool on_token(void *user, int64_t text, int32_t token)
{
    (void)text;
    written *w = user;
    w->ids[w->count++] = token;
    return true;
}

/* With the cache, the prompt read in parts of two tokens. */
static void check_greedy(reference *r)
{
    int64_t nprompt, n;
    int32_t *prompt = ids(r, "prompt_ids", &nprompt), *want = ids(r, "greedy_ids", &n);
    written got = {.ids = malloc((size_t)n * sizeof *want)};
    assert_non_null(got.ids);
    start(r, nprompt, n);
    pl_generation_time time;
    pl_generation g = {.prompts = &(pl_prompt){.tokens = prompt, .count = nprompt, .max_tokens = n},
        .nprompts = 1,
        .batch = 1,
        .chunk = 2,
        .sampling = {.greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .user = &got,
        .token = on_token};
    if (pl_generate(&r->err, r->session->engine, r->session->model, &g, &time) < 0) fail_msg("%s", r->err.message);
    assert_int_equal(got.count, n);
    for (int64_t i = 0; i < n; i++) {
        if (got.ids[i] != want[i]) fail_msg("token %d is %d, not %d", (int)i, got.ids[i], want[i]);
    }
    const char *text = json_string_value(json_object_get(r->want, "greedy_text"));
    if (text) {
        pl_decoder *decoder;
        pl_buf all = {0};
        assert_int_equal(pl_decoder_open(&r->err, r->texts.tokenizer, true, &decoder), 0);
        for (int64_t i = 0; i < nprompt; i++) pl_decoder_push(&r->err, decoder, prompt[i], &all);
        pl_buf_clear(&all);
        for (int64_t i = 0; i < n; i++) pl_decoder_push(&r->err, decoder, want[i], &all);
        pl_decoder_finish(&r->err, decoder, &all);
        assert_string_equal(pl_buf_text(&all), text);
        pl_decoder_close(decoder);
        pl_buf_free(&all);
    }
    free(got.ids);
    free(want);
    free(prompt);
}

static void check(const char *model, const char *file)
{
    reference r;
    if (!pl_file_exists(file)) {
        print_message("%s is not there: left out\n", file);
        skip();
    }
    open_reference(&r, model, file);
    check_prompt(&r);
    check_logits(&r);
    check_story(&r);
    check_greedy(&r);
    close_reference(&r);
}

static void stories(void **state)
{
    (void)state;
    check(PLAIT_TEST_DIR "/../demo/stories260K", PLAIT_TEST_DIR "/data/models/stories260K/reference.json");
}

static void process_chains(void **state)
{
    (void)state;
    check(PLAIT_TEST_DIR "/data/models/capp-gpt2", PLAIT_TEST_DIR "/data/models/capp-gpt2/reference.json");
}

#define BABYLLAMA PLAIT_TEST_DIR "/../../shared/data/models/babyllama-tok105-llama"

static void babyllama(void **state)
{
    (void)state;
    check(BABYLLAMA, BABYLLAMA "/reference.json");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(stories),
        cmocka_unit_test(process_chains),
        cmocka_unit_test(babyllama),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
