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

typedef struct text {
    int32_t tokens[PROMPT + MORE];
    int n;
} text;

static bool write_token(void *user, int32_t token)
{
    text *t = user;
    t->tokens[t->n++] = token;
    return true;
}

static void generate(const char *name, int64_t chunk, text *out)
{
    golden g;
    golden_open(&g, golden_path(name), golden_path(name),
        &(golden_options){.dtype = PL_F32, .cache_rows = PROMPT + MORE, .max_length = PROMPT + MORE});
    *out = (text){.n = PROMPT};
    memcpy(out->tokens, g.batch.ids, PROMPT * sizeof *out->tokens);
    pl_generation generation = {.prompt = g.batch.ids,
        .nprompt = PROMPT,
        .max_tokens = MORE,
        .chunk = chunk,
        .sampling = {.greedy = true, .temperature = 1, .top_p = 1, .repetition_penalty = 1},
        .user = out,
        .token = write_token};
    int64_t written;
    OK(&g, pl_generate(&g.err, g.engine, g.model, &generation, &written));
    assert_int_equal(written, MORE);
    golden_close(&g);
}

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
    generate(*state, PROMPT, &at_once);
    generate(*state, 3, &in_parts);
    check_whole(*state, &at_once);
    check_whole(*state, &in_parts);
}

int main(void)
{
    return golden_each_model("generation", written_as_by_whole_forwards);
}
