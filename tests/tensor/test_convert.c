/* Conversions between element types: every f16 and bf16 value, and f32 values around each place where rounding turns.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include "tensor/convert.h"

/* The value that 16 bits of f16 stand for, by the format's definition. */
static double f16_value(unsigned half)
{
    unsigned exponent = half >> 10 & 31, fraction = half & 1023;
    double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                       : exponent     ? ldexp(1024 + fraction, (int)exponent - 25)
                                      : ldexp(fraction, -24);
    return half >> 15 ? -magnitude : magnitude;
}

static uint16_t to_half(pl_dtype dtype, float value)
{
    pl_error err = {0};
    uint16_t out = 0;
    assert_int_equal(pl_convert(&err, &out, dtype, &value, PL_F32, 1), 0);
    return out;
}

static float to_float(pl_dtype dtype, uint16_t bits)
{
    pl_error err = {0};
    float out = 0;
    assert_int_equal(pl_convert(&err, &out, PL_F32, &bits, dtype, 1), 0);
    return out;
}

static void test_every_half(void **state)
{
    (void)state;
    for (unsigned bits = 0; bits < 65536; bits++) {
        double expected = f16_value(bits);
        float got = to_float(PL_F16, (uint16_t)bits);
        if (isnan(expected)) {
            assert_true(isnan(got));
            assert_true(isnan(f16_value(to_half(PL_F16, got))));
        } else {
            assert_true(got == expected && !!signbit(got) == (bits >> 15));
            assert_int_equal(to_half(PL_F16, got), bits);
        }
        float wide = to_float(PL_BF16, (uint16_t)bits);
        if (isnan(wide)) {
            assert_true(isnan(to_float(PL_BF16, to_half(PL_BF16, wide))));
        } else {
            assert_int_equal(to_half(PL_BF16, wide), bits);
        }
    }
}

/* Halfway between two neighbours goes to the even one; a hair to either side goes to that side. */
static void test_rounding(void **state)
{
    (void)state;
    static const pl_dtype dtypes[] = {PL_F16, PL_BF16};
    for (int k = 0; k < 2; k++) {
        unsigned infinity = dtypes[k] == PL_F16 ? 0x7c00 : 0x7f80;
        for (unsigned bits = 0; bits + 1 < infinity; bits++) {
            float low = to_float(dtypes[k], (uint16_t)bits), high = to_float(dtypes[k], (uint16_t)(bits + 1));
            float middle = (float)(((double)low + high) / 2);
            assert_int_equal(to_half(dtypes[k], middle), bits + (bits & 1));
            assert_int_equal(to_half(dtypes[k], nextafterf(middle, low)), bits);
            assert_int_equal(to_half(dtypes[k], nextafterf(middle, high)), bits + 1);
            assert_int_equal(to_half(dtypes[k], -middle), 0x8000 | (bits + (bits & 1)));
        }
    }
    assert_int_equal(to_half(PL_F16, 65519.996f), 0x7bff);
    assert_int_equal(to_half(PL_F16, 65520.0f), 0x7c00);
    assert_int_equal(to_half(PL_F16, 1e30f), 0x7c00);
    assert_int_equal(to_half(PL_F16, 1e-30f), 0);
    assert_int_equal(to_half(PL_BF16, 3.4028235e38f), 0x7f80);
}

/* Runs long enough for vector loops, at odd addresses, and both ways between the two 16-bit types. */
static void test_runs(void **state)
{
    (void)state;
    enum { N = 1003 };
    pl_error err = {0};
    char source[4 * N + 1], halves[2 * N + 1], back[4 * N + 1], other[2 * N + 1];
    for (int i = 0; i < N; i++) {
        float value = (float)(i - 500) * 0.37f;
        memcpy(source + 1 + 4 * i, &value, 4);
    }
    assert_int_equal(pl_convert(&err, halves + 1, PL_BF16, source + 1, PL_F32, N), 0);
    assert_int_equal(pl_convert(&err, back + 1, PL_F32, halves + 1, PL_BF16, N), 0);
    assert_int_equal(pl_convert(&err, other + 1, PL_F16, halves + 1, PL_BF16, N), 0);
    for (int i = 0; i < N; i++) {
        float value, got;
        uint16_t half, f16;
        memcpy(&value, source + 1 + 4 * i, 4);
        memcpy(&half, halves + 1 + 2 * i, 2);
        memcpy(&got, back + 1 + 4 * i, 4);
        memcpy(&f16, other + 1 + 2 * i, 2);
        assert_int_equal(half, pl_f32_to_bf16(value));
        assert_true(got == pl_bf16_to_f32(half));
        assert_int_equal(f16, pl_f32_to_f16(got));
    }
    assert_int_equal(pl_convert(&err, halves, PL_BF16, other + 1, PL_F16, N), 0);
    for (int i = 0; i < N; i++) { /* f16 holds what bf16 held: both have more bits than 0.37 * i needs here */
        uint16_t a, b;
        memcpy(&a, halves + 2 * i, 2);
        memcpy(&b, other + 1 + 2 * i, 2);
        assert_int_equal(a, pl_f32_to_bf16(pl_f16_to_f32(b)));
    }
    assert_false(pl_convertible(PL_F32, PL_I32));
    assert_int_equal(pl_convert(&err, back, PL_F32, source, PL_U8, 1), PL_EBUG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_half),
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
