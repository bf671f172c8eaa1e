/* Frequencies, against transformers' in double precision (golden/rope.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <cmocka.h>

#include "model/arch.h"

#define MAX_PAIRS 64

static void check_case(const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "name"));
    const json_t *inverse = json_object_get(entry, "inverse");
    pl_error err = {0};
    pl_log log = {0};
    pl_arch arch;
    if (pl_arch_parse(&err, &log, name, json_object_get(entry, "config"), NULL, &arch) < 0) fail_msg("%s", err.message);
    int pairs = arch.ropes[0].rotary / 2;
    assert_int_equal(json_array_size(inverse), pairs);
    assert_true(pairs <= MAX_PAIRS);
    double got[MAX_PAIRS], factor;
    pl_rope_frequencies(&arch.ropes[0], json_integer_value(json_object_get(entry, "length")), got, &factor);
    for (int i = 0; i < pairs; i++) {
        double want = json_number_value(json_array_get(inverse, (size_t)i));
        if (!(fabs(got[i] - want) <= 1e-13 * fabs(want)))
            fail_msg("%s: [%d] is %.17g, not %.17g", name, i, got[i], want);
    }
    double want = json_number_value(json_object_get(entry, "attention_factor"));
    if (!(fabs(factor - want) <= 1e-14)) fail_msg("%s: attention factor %.17g, not %.17g", name, factor, want);
    pl_arch_free(&arch);
}

static void as_transformers(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *cases;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/golden/rope.json", &cases) < 0) fail_msg("%s", err.message);
    assert_true(json_array_size(cases) > 40);
    size_t index;
    json_t *entry;
    json_array_foreach(cases, index, entry) check_case(entry);
    json_decref(cases);
}

/* Where pl_rope_same says yes the frequencies are equal, where it says no they are not. */
static void same_says_so(void **state)
{
    (void)state;
    double ones[4] = {1, 1, 1, 1}, twos[4] = {1, 2, 3, 4};
    const pl_rope_spec ropes[] = {
        {.kind = PL_ROPE_DEFAULT, .rotary = 8, .theta = 1e4, .max_positions = 16},
        {.kind = PL_ROPE_LINEAR, .rotary = 8, .theta = 1e4, .max_positions = 16, .factor = 2},
        {.kind = PL_ROPE_DYNAMIC, .rotary = 8, .theta = 1e4, .max_positions = 16, .factor = 2},
        {.kind = PL_ROPE_LONGROPE,
            .rotary = 8,
            .theta = 1e4,
            .max_positions = 32,
            .original_positions = 16,
            .factor = 2,
            .attention_factor = -1,
            .short_factor = ones,
            .long_factor = twos},
    };
    static const int64_t lengths[] = {1, 8, 15, 16, 17, 20, 33};
    int differ = 0;
    for (int r = 0; r < PL_COUNT(ropes); r++) {
        for (int i = 0; i < PL_COUNT(lengths) * PL_COUNT(lengths); i++) {
            int64_t a = lengths[i / PL_COUNT(lengths)], b = lengths[i % PL_COUNT(lengths)];
            double fa[4], fb[4], xa, xb;
            pl_rope_frequencies(&ropes[r], a, fa, &xa);
            pl_rope_frequencies(&ropes[r], b, fb, &xb);
            bool same = xa == xb;
            for (int k = 0; k < 4; k++) same = same && fa[k] == fb[k];
            assert_int_equal(pl_rope_same(&ropes[r], a, b), same);
            differ += !same;
        }
    }
    assert_true(differ > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_transformers), cmocka_unit_test(same_says_so)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
