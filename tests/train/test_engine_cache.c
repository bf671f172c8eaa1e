/* Logits through the cache of keys and values are those of a forward over everything, in every family and however the
   prompt is cut into chunks: sliding windows, soft caps, fused projections, learned positions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

#define OK(g, call)                                                                                                    \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, (g)->err.message);                                                   \
    } while (0)

/* Products of other shapes sum in another order: as between any two f32 runs of these models (test_golden_models). */
#define LOGITS 1e-5

/* The logits of all tokens [T, vocab], each sequence alone, `chunk` tokens at a time (0: all at once). */
static float *through_cache(const char *name, bool ref, int64_t chunk)
{
    golden g;
    golden_open(
        &g, golden_path(name), golden_path(name), &(golden_options){.dtype = PL_F32, .ref = ref, .cache_rows = 2 * 64});
    int64_t vocab = g.model->arch.vocab, done = 0;
    float *logits = malloc((size_t)(g.batch.tokens * vocab) * sizeof *logits);
    pl_batch part = {0};
    OK(&g, pl_batch_open(&g.err, &part, g.batch.tokens, 1));
    for (int s = 0; s < g.batch.nsequences; s++) {
        pl_sequence q = g.batch.sequences[s];
        int64_t base = s % 2 * 64; /* its rows in the cache; others' keys lie in the rest */
        for (int64_t at = 0, n; at < q.q_len; at += n) {
            n = chunk && chunk < q.q_len - at ? chunk : q.q_len - at;
            pl_batch_clear(&part);
            OK(&g, pl_batch_append(&g.err, &part, g.batch.ids + q.q_begin + at, NULL, n));
            for (int64_t t = 0; t < n; t++) part.positions[t] = (int32_t)(at + t);
            part.rope_length = q.q_len;
            part.sequences[0] = (pl_sequence){.q_len = n, .k_begin = base, .k_len = at + n};
            int32_t rows[256];
            for (int32_t t = 0; t < n; t++) rows[t] = t;
            OK(&g, pl_engine_logits(g.engine, &part, rows, n, logits + (done + at) * vocab));
        }
        done += q.q_len;
    }
    pl_batch_close(&part);
    golden_close(&g);
    return logits;
}

static void cached_is_whole(void **state)
{
    const char *name = *state;
    golden g;
    golden_open(&g, golden_path(name), golden_path(name), &(golden_options){.dtype = PL_F32});
    int64_t n;
    double *want = golden_expected(&g, "logits", &n);
    static const int64_t chunks[] = {0, 1, 3};
    for (int i = 0; i < 4; i++) {
        char what[128];
        int64_t chunk = chunks[i % 3];
        snprintf(what, sizeof what, "%s in chunks of %lld on %s", name, (long long)chunk, i == 3 ? "ref" : "the CPU");
        float *got = through_cache(name, i == 3, i == 3 ? 3 : chunk);
        golden_close_to(what, got, want, n, LOGITS, 0);
        free(got);
    }
    free(want);
    golden_close(&g);
}

int main(void)
{
    return golden_each_model("cached is whole", cached_is_whole);
}
