#include "infer/sampling.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

struct pl_sampler {
    pl_sampling settings;
    int64_t vocab;
    bool *seen; /* all false between calls */
    double *scores, *probabilities;
    int32_t *order;
};

int pl_sampler_open(pl_error *err, const pl_sampling *settings, int64_t vocab, pl_sampler **out)
{
    pl_sampler *s;
    PL_TRY(pl_calloc(err, 1, sizeof *s, &s));
    s->settings = *settings;
    s->vocab = vocab;
    size_t n = (size_t)vocab;
    int rc;
    PL_GO(failed, pl_calloc(err, n, sizeof *s->seen, &s->seen));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->scores, &s->scores));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->probabilities, &s->probabilities));
    PL_GO(failed, pl_calloc(err, n, sizeof *s->order, &s->order));
    *out = s;
    return 0;
failed:
    pl_sampler_close(s);
    return rc;
}

void pl_sampler_close(pl_sampler *s)
{
    if (!s) return;
    free(s->seen);
    free(s->scores);
    free(s->probabilities);
    free(s->order);
    free(s);
}

static void mark_seen(pl_sampler *s, const pl_draw *draw, bool seen)
{
    for (int64_t i = 0; i < draw->nbefore; i++) {
        int32_t token = draw->before[i];
        if (token >= 0 && token < s->vocab) s->seen[token] = seen;
    }
}

/* Scores after the repetition penalty, which divides what is positive and multiplies what is negative. */
static void penalise(pl_sampler *s, const float *logits, const pl_draw *draw)
{
    double penalty = s->settings.repetition_penalty;
    mark_seen(s, draw, true);
    for (int64_t i = 0; i < s->vocab; i++) {
        double z = (double)logits[i];
        s->scores[i] = !s->seen[i] || penalty == 1 ? z : (z < 0 ? z * penalty : z / penalty);
    }
    mark_seen(s, draw, false);
}

static void softmax(pl_sampler *s)
{
    double largest = -INFINITY, sum = 0;
    for (int64_t i = 0; i < s->vocab; i++) largest = fmax(largest, s->scores[i]);
    for (int64_t i = 0; i < s->vocab; i++) sum += s->probabilities[i] = exp(s->scores[i] - largest);
    for (int64_t i = 0; i < s->vocab; i++) s->probabilities[i] /= sum;
}

static int by_score(const void *a, const void *b, void *scores)
{
    int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
    const double *score = scores;
    if (score[i] != score[j]) return score[i] > score[j] ? -1 : 1;
    return i < j ? -1 : 1;
}

/* Tokens from the highest score down. */
static void sort(pl_sampler *s)
{
    for (int64_t i = 0; i < s->vocab; i++) s->order[i] = (int32_t)i;
    qsort_r(s->order, (size_t)s->vocab, sizeof *s->order, by_score, s->scores);
}

static void keep_top_k(pl_sampler *s)
{
    int64_t k = s->settings.top_k;
    if (k <= 0 || k >= s->vocab) return;
    double least = s->scores[s->order[k - 1]];
    for (int64_t i = 0; i < s->vocab; i++) {
        if (s->scores[i] < least) s->scores[i] = -INFINITY;
    }
}

/* A token goes when it and all that are less likely make no more than 1 - top_p together; the likeliest stays. */
static void keep_top_p(pl_sampler *s)
{
    if (s->settings.top_p >= 1) return;
    double tail = 0;
    softmax(s);
    for (int64_t r = s->vocab - 1; r > 0; r--) {
        tail += s->probabilities[s->order[r]];
        if (tail > 1 - s->settings.top_p) return;
        s->scores[s->order[r]] = -INFINITY;
    }
}

static void keep_min_p(pl_sampler *s)
{
    if (s->settings.min_p <= 0) return;
    softmax(s);
    double least = s->settings.min_p * s->probabilities[s->order[0]];
    for (int64_t r = 1; r < s->vocab; r++) {
        if (s->probabilities[s->order[r]] < least) s->scores[s->order[r]] = -INFINITY;
    }
}

const double *pl_sampler_probabilities(pl_sampler *s, const float *logits, const pl_draw *draw)
{
    penalise(s, logits, draw);
    if (!s->settings.greedy) {
        for (int64_t i = 0; i < s->vocab; i++) s->scores[i] /= s->settings.temperature;
        bool filters = s->settings.top_k > 0 || s->settings.top_p < 1 || s->settings.min_p > 0;
        if (filters) sort(s);
        keep_top_k(s);
        keep_top_p(s);
        keep_min_p(s);
    }
    softmax(s);
    return s->probabilities;
}

int pl_sampler_next(pl_error *err, pl_sampler *s, const float *logits, const pl_draw *draw, int32_t *token)
{
    for (int64_t i = 0; i < s->vocab; i++) {
        if (isnan(logits[i])) return PL_FAIL(err, PL_ENUMERIC, "the model's logits are NaN");
    }
    const double *p = pl_sampler_probabilities(s, logits, draw);
    int64_t best = 0;
    if (s->settings.greedy) {
        for (int64_t i = 1; i < s->vocab; i++) {
            if (s->scores[i] > s->scores[best]) best = i;
        }
        *token = (int32_t)best;
        return 0;
    }
    pl_rng rng = {.seed = s->settings.seed, .stream = PL_RNG_SAMPLE, .domain = draw->text};
    double left = pl_rng_uniform(&rng, draw->index);
    for (int64_t i = 0; i < s->vocab; i++) {
        if (p[i] == 0) continue;
        best = i; /* rounding may leave a rest after the last */
        if (left < p[i]) break;
        left -= p[i];
    }
    *token = (int32_t)best;
    return 0;
}
