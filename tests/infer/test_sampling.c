/* The filters and the greedy choice against transformers' logits processors (tests/golden/generate.json). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "infer/sampling.h"

/* The reference is float64 of f32 logits; what is kept sums to 1, so rounding is far below this. */
#define TOLERANCE 1e-6

static int load(void **state)
{
    pl_error err = {0};
    json_t *json;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/golden/generate.json", &json) < 0) return -1;
    *state = json;
    return 0;
}

static int unload(void **state)
{
    json_decref(*state);
    return 0;
}

static double setting(const json_t *c, const char *name, double otherwise)
{
    const json_t *value = json_object_get(json_object_get(c, "settings"), name);
    return value ? json_number_value(value) : otherwise;
}

static pl_sampling settings_of(const json_t *c)
{
    return (pl_sampling){.temperature = setting(c, "temperature", 1),
        .top_k = (int64_t)setting(c, "top_k", 0),
        .top_p = setting(c, "top_p", 1),
        .min_p = setting(c, "min_p", 0),
        .repetition_penalty = setting(c, "repetition_penalty", 1)};
}

static float *logits_of(const json_t *all, const json_t *c, int64_t *vocab)
{
    const json_t *list =
        json_object_get(json_object_get(all, "logits"), json_string_value(json_object_get(c, "logits")));
    *vocab = (int64_t)json_array_size(list);
    float *logits = malloc((size_t)*vocab * sizeof *logits);
    assert_non_null(logits);
    for (int64_t i = 0; i < *vocab; i++) logits[i] = (float)json_number_value(json_array_get(list, (size_t)i));
    return logits;
}

static pl_sampler *open_sampler(const pl_sampling *settings, int64_t vocab)
{
    pl_error err = {0};
    pl_sampler *s;
    if (pl_sampler_open(&err, settings, vocab, &s) < 0) fail_msg("%s", err.message);
    return s;
}

/* After the tokens that all cases have before them. */
static pl_draw draw_of(const json_t *all)
{
    static int32_t before[64];
    const json_t *history = json_object_get(all, "history");
    pl_draw draw = {.before = before, .nbefore = (int64_t)json_array_size(history)};
    assert_in_range(draw.nbefore, 1, 64);
    for (int64_t i = 0; i < draw.nbefore; i++)
        before[i] = (int32_t)json_integer_value(json_array_get(history, (size_t)i));
    return draw;
}

static void check_probabilities(const json_t *c, const double *got, int64_t vocab)
{
    const json_t *want = json_object_get(c, "probabilities");
    int64_t kept = 0;
    assert_int_equal(json_array_size(want), vocab);
    for (int64_t i = 0; i < vocab; i++) {
        double w = json_number_value(json_array_get(want, (size_t)i));
        kept += got[i] > 0;
        if (fabs(got[i] - w) <= TOLERANCE && (w > 0 || got[i] == 0)) continue;
        char *text = json_dumps(json_object_get(c, "settings"), 0);
        fail_msg("%s %s: token %d has %.9g, not %.9g", json_string_value(json_object_get(c, "logits")), text, (int)i,
            got[i], w);
    }
    assert_int_equal(kept, json_integer_value(json_object_get(c, "kept")));
}

static void matches_transformers(void **state)
{
    pl_error err = {0};
    const json_t *all = *state, *cases = json_object_get(all, "cases");
    assert_int_equal(json_array_size(cases), 79);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *c = json_array_get(cases, i);
        pl_sampling settings = settings_of(c);
        int64_t vocab;
        float *logits = logits_of(all, c, &vocab);
        pl_draw draw = draw_of(all);
        pl_sampler *s = open_sampler(&settings, vocab);
        /* What one text had before it is forgotten for the next. */
        pl_sampler_probabilities(s, logits, &(pl_draw){.before = (int32_t[]){0, 1, 2, 3}, .nbefore = 4});
        check_probabilities(c, pl_sampler_probabilities(s, logits, &draw), vocab);
        pl_sampler_close(s);

        int32_t token;
        settings.greedy = true;
        s = open_sampler(&settings, vocab);
        if (pl_sampler_next(&err, s, logits, &draw, &token) < 0) fail_msg("%s", err.message);
        assert_int_equal(token, json_integer_value(json_object_get(c, "greedy")));
        pl_sampler_close(s);
        free(logits);
    }
}

/* Draws follow the probabilities: over many, each token's share is within five standard deviations. */
static void draws_follow_the_probabilities(void **state)
{
    enum { DRAWS = 20000 };
    pl_error err = {0};
    const json_t *all = *state;
    const json_t *c = json_array_get(json_object_get(all, "cases"), 5);
    pl_sampling settings = settings_of(c);
    int64_t vocab;
    float *logits = logits_of(all, c, &vocab);
    settings.seed = 7;
    pl_sampler *s = open_sampler(&settings, vocab);
    int *seen = calloc((size_t)vocab, sizeof *seen);
    assert_non_null(seen);
    pl_draw draw = draw_of(all);
    int others = 0;
    for (; draw.index < DRAWS; draw.index++) {
        int32_t token, again;
        if (pl_sampler_next(&err, s, logits, &draw, &token) < 0) fail_msg("%s", err.message);
        if (draw.index < 100) {
            assert_int_equal(pl_sampler_next(&err, s, logits, &draw, &again), 0);
            assert_int_equal(token, again);
            pl_draw other = draw;
            other.text = 1;
            assert_int_equal(pl_sampler_next(&err, s, logits, &other, &again), 0);
            others += token != again;
        }
        seen[token]++;
    }
    assert_true(others > 10); /* another text draws otherwise */
    const double *p = pl_sampler_probabilities(s, logits, &draw);
    for (int64_t i = 0; i < vocab; i++) {
        if (fabs(seen[i] - DRAWS * p[i]) > 5 * sqrt(DRAWS * p[i] * (1 - p[i])))
            fail_msg("token %d was drawn %d times of %d; its probability is %.6f", (int)i, seen[i], DRAWS, p[i]);
    }
    pl_sampler_close(s);
    free(seen);
    free(logits);
}

static void refuses_what_is_not_a_number(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_sampling settings = {.temperature = 1, .top_p = 1, .repetition_penalty = 1};
    float logits[] = {1, NAN, 2};
    pl_sampler *s;
    int32_t token;
    assert_int_equal(pl_sampler_open(&err, &settings, 3, &s), 0);
    assert_int_equal(pl_sampler_next(&err, s, logits, &(pl_draw){0}, &token), PL_ENUMERIC);
    pl_sampler_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_transformers),
        cmocka_unit_test(draws_follow_the_probabilities),
        cmocka_unit_test(refuses_what_is_not_a_number),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
