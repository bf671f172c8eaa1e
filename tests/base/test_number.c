#include <locale.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/number.h"

static void test_parse(void **state)
{
    (void)state;
    int64_t n = 7;
    double x = 7;
    assert_true(pl_parse_int("-9223372036854775808", &n) && n == INT64_MIN);
    n = 7;
    static const char *const no_int[] = {"", "-", "1.0", " 1", "1 ", "0x10", "9223372036854775808", "1e3", "++1"};
    for (size_t i = 0; i < sizeof no_int / sizeof *no_int; i++) assert_false(pl_parse_int(no_int[i], &n));
    assert_int_equal(n, 7);
    static const char *const no_real[] = {
        "", ".", "-", "1e", "1e+", "inf", "nan", "0x1p3", " 1", "1,5", "1e999", "1.2.3"};
    for (size_t i = 0; i < sizeof no_real / sizeof *no_real; i++) assert_false(pl_parse_real(no_real[i], &x));
    assert_true(x == 7);
    assert_true(pl_parse_real("-.5e-3", &x) && x == -.5e-3);
    assert_true(pl_parse_real("5.", &x) && x == 5);
}

static void test_print(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {{0.1, "0.1"}, {1e-8, "1e-08"}, {3, "3"}, {1.0 / 3, "0.3333333333333333"}, {1e300, "1e+300"},
        {0.30000000000000004, "0.30000000000000004"}, {-0.0, "-0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[PL_REAL_TEXT];
        double back;
        pl_print_real(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
        assert_true(pl_parse_real(text, &back) && memcmp(&back, &cases[i].value, sizeof back) == 0);
    }
}

/* A program that has set a locale with a decimal comma reads and writes the same. */
static void test_locale(void **state)
{
    (void)state;
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8", "ps_AF.UTF-8"};
    bool found = false;
    for (size_t i = 0; i < sizeof names / sizeof *names && !found; i++) found = setlocale(LC_NUMERIC, names[i]) != NULL;
    if (!found) skip();
    double x;
    char text[PL_REAL_TEXT];
    bool parsed = pl_parse_real("1.5e3", &x);
    pl_print_real(1.25, text);
    setlocale(LC_NUMERIC, "C");
    assert_true(parsed && x == 1500);
    assert_string_equal(text, "1.25");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse), cmocka_unit_test(test_print), cmocka_unit_test(test_locale)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
