/* What is written token by token through the cache is what forwards over the whole text so far would have chosen: also
   across the length at which a longrope model changes its frequencies (16 here). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "infer/generate.h"
#include "support/golden.h"

#define OK(g, call)                                                                                                    \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, (g)->err.message);                                                   \
    } while (0)

#define PROMPT 7
#define MORE 23
#define TEXTS 9

typedef struct text {
    int32_t tokens[PROMPT + MORE];
    int n;
    int ends; /* how often it was told that it had ended */
    bool stopped;
} text;

/* Prompts are parts of one, of different lengths; so are the most tokens to write. */
typedef struct plan {
    int texts, batch;
    int apart;               /* tokens from where one prompt begins to where the next does */
    int64_t chunk, together; /* together: 0 is as much as chunk */
    int lengths[TEXTS], more[TEXTS];
    int64_t stop; /* -1: none */
    pl_sampling sampling;
    int give_up; /* after so many tokens of all texts; 0: never */
    pl_dtype dtype;
} plan;

typedef struct writing {
    text *texts;
    int left;
} writing;

static bool write_token(void *user, int64_t number, int32_t token)
{
    writing *w = user;
    text *t = &w->texts[number];
    assert_int_equal(t->ends, 0);
    assert_in_range(t->n, 1, PROMPT + MORE - 1);
    t->tokens[t->n++] = token;
    return --w->left != 0;
}

static bool end_text(void *user, int64_t number, bool stopped)
{
    text *t = &((writing *)user)->texts[number];
    t->ends++;
    t->stopped = stopped;
    return true;
}

static void generate(const char *name, const plan *p, text *out)
{
    golden g;
    pl_prompt prompts[TEXTS];
    int64_t rows[TEXTS], all = 0;
    writing w = {.texts = out, .left = p->give_up};
    pl_generation generation = {.prompts = prompts,
        .nprompts = p->texts,
        .batch = p->batch,
        .chunk = p->chunk,
        .together = p->together > p->chunk ? p->together : p->chunk,
        .stops = &p->stop,
        .nstops = p->stop >= 0,
        .sampling = p->sampling,
        .user = &w,
        .token = write_token,
        .end = end_text};
    pl_error err = {0};
    for (int i = 0; i < p->texts; i++) prompts[i] = (pl_prompt){.count = p->lengths[i], .max_tokens = p->more[i]};
    assert_int_equal(pl_generation_rows(&err, &generation, rows), 0);
    for (int i = 0; i < p->batch; i++) all += rows[i];
    golden_open(&g, golden_path(name), golden_path(name),
        &(golden_options){.dtype = p->dtype, .cache_rows = all, .max_length = PROMPT + MORE});
    for (int i = 0; i < p->texts; i++) {
        prompts[i].tokens = g.batch.ids + i * p->apart;
        out[i] = (text){.n = p->lengths[i]};
        memcpy(out[i].tokens, prompts[i].tokens, (size_t)p->lengths[i] * sizeof *out[i].tokens);
    }
    pl_generation_time time;
    OK(&g, pl_generate(&g.err, g.engine, g.model, &generation, &time));
    golden_close(&g);
}

static const pl_sampling greedy = {.greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1};
static const pl_sampling drawn = {.temperature = 2, .top_k = 50, .top_p = 0.95, .repetition_penalty = 1.3, .seed = 5};

/* Each written token must be the likeliest after those before it, or as likely but for rounding. */
static void check_whole(const char *name, const text *t)
{
    golden g;
    golden_open(
        &g, golden_path(name), golden_path(name), &(golden_options){.dtype = PL_F32, .max_length = PROMPT + MORE});
    int64_t vocab = g.model->arch.vocab;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    for (int n = PROMPT; n < t->n; n++) {
        pl_batch_clear(&g.batch);
        OK(&g, pl_batch_append(&g.err, &g.batch, t->tokens, NULL, n));
        int32_t last = n - 1;
        OK(&g, pl_engine_logits(g.engine, &g.batch, &last, 1, logits));
        float most = logits[0];
        for (int64_t v = 1; v < vocab; v++) most = logits[v] > most ? logits[v] : most;
        float chosen = logits[t->tokens[n]];
        if (!(chosen >= most - 1e-4f)) {
            fail_msg("%s: token %d is %d, of logit %g; the likeliest has %g", name, n, t->tokens[n], (double)chosen,
                (double)most);
        }
    }
    free(logits);
    golden_close(&g);
}

static void written_as_by_whole_forwards(void **state)
{
    text at_once, in_parts;
    plan p = {
        .texts = 1, .batch = 1, .chunk = PROMPT, .lengths = {PROMPT}, .more = {MORE}, .stop = -1, .sampling = greedy};
    generate(*state, &p, &at_once);
    p.chunk = 3;
    generate(*state, &p, &in_parts);
    assert_int_equal(at_once.n, PROMPT + MORE);
    assert_int_equal(in_parts.n, PROMPT + MORE);
    check_whole(*state, &at_once);
    check_whole(*state, &in_parts);
}

/* More texts than are written at once, some of one token; long ones come when short places are free. */
static plan many(pl_dtype dtype, pl_sampling sampling)
{
    return (plan){.texts = TEXTS,
        .batch = 1,
        .chunk = 4,
        .lengths = {3, 7, 1, 5, 7, 2, 6, 4, 7},
        .more = {9, MORE, 4, 1, 12, MORE, 7, 2, MORE},
        .stop = -1,
        .sampling = sampling,
        .dtype = dtype};
}

static void check_same(const char *name, const plan *p, const text *alone)
{
    text together[TEXTS];
    generate(name, p, together);
    for (int i = 0; i < p->texts; i++) {
        const text *a = &alone[i], *b = &together[i];
        assert_int_equal(a->ends, 1);
        assert_int_equal(b->ends, 1);
        assert_int_equal(a->stopped, b->stopped);
        if (a->n == b->n && memcmp(a->tokens, b->tokens, (size_t)a->n * sizeof *a->tokens) == 0) continue;
        fail_msg("%s: text %d is another one when %d are written at once", name, i, p->batch);
    }
}

static void check_batches(const char *name, plan p)
{
    text alone[TEXTS];
    p.batch = 1;
    generate(name, &p, alone);
    for (p.batch = 2; p.batch <= 8; p.batch += 3) check_same(name, &p, alone);
}

static void written_together_as_alone(void **state)
{
    check_batches(*state, many(PL_F32, greedy));
    check_batches(*state, many(PL_F32, drawn));
    check_batches(*state, many(PL_BF16, greedy));
    check_batches(*state, many(PL_BF16, drawn));
}

/* Prompts that are longer than thin products are, and some that are not: in passes of several, and of one. */
static void read_together_as_alone(void **state)
{
    plan p = {.texts = 6,
        .batch = 1,
        .apart = 1,
        .chunk = 12,
        .lengths = {9, 12, 3, 10, 14, 11},
        .more = {9, 1, 12, 7, 16, 9},
        .stop = -1,
        .sampling = drawn,
        .dtype = PL_BF16};
    text alone[TEXTS];
    generate(*state, &p, alone);
    p.batch = 5;
    for (p.together = 12; p.together <= 24; p.together += 6) check_same(*state, &p, alone);
}

/* What is drawn depends on the number of the text, so that the same prompt again is not the same text. */
static void numbers_tell_texts_apart(void **state)
{
    (void)state;
    text texts[2];
    plan p = {
        .texts = 2, .batch = 2, .chunk = 4, .lengths = {5, 5}, .more = {MORE, MORE}, .stop = -1, .sampling = drawn};
    generate("llama", &p, texts);
    assert_memory_not_equal(texts[0].tokens, texts[1].tokens, sizeof texts[0].tokens);
}

/* A token that some texts come to, and others do not, ends those that do. */
static void a_stop_ends_one_text(void **state)
{
    (void)state;
    text free[TEXTS], stopped[TEXTS];
    plan p = many(PL_F32, drawn);
    p.batch = 4;
    generate("llama", &p, free);
    p.stop = free[1].tokens[p.lengths[1] + 3];
    generate("llama", &p, stopped);
    int ended = 0;
    for (int i = 0; i < TEXTS; i++) {
        int n = p.lengths[i];
        while (n < free[i].n && free[i].tokens[n] != p.stop) n++;
        assert_int_equal(stopped[i].n, n);
        assert_int_equal(stopped[i].stopped, n < free[i].n);
        assert_memory_equal(stopped[i].tokens, free[i].tokens, (size_t)n * sizeof free[i].tokens[0]);
        ended += stopped[i].stopped;
    }
    assert_in_range(ended, 1, TEXTS - 1);
    check_batches("llama", p);
}

static void whoever_listens_ends_all(void **state)
{
    (void)state;
    text texts[TEXTS];
    plan p = many(PL_F32, greedy);
    p.batch = 4;
    for (p.give_up = 1; p.give_up < 40; p.give_up += 7) {
        int written = 0;
        generate("llama", &p, texts);
        for (int i = 0; i < TEXTS; i++) written += texts[i].n - p.lengths[i];
        assert_int_equal(written, p.give_up);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(numbers_tell_texts_apart),
        cmocka_unit_test(a_stop_ends_one_text), cmocka_unit_test(whoever_listens_ends_all)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    failed += golden_each_model("written as alone", written_together_as_alone);
    failed += golden_each_model("read as alone", read_together_as_alone);
    return failed + golden_each_model("generation", written_as_by_whole_forwards);
}
