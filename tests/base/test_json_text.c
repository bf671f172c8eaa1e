#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

#include "base/json.h"

static void test_numbers(void **state)
{
    (void)state;
    static const char *const same[] = {"0.05", "1e-05", "0.1", "2.0", "-3.5", "1e+30", "0.30000000000000004", "12",
        "-7", "9007199254740993", "1.7976931348623157e+308", "true", "false", "null",
        "\"1.50000000000000000 e \\\" 2.500000000000000\"", "\"back\\\\\"", "[]", "{}"};
    for (int i = 0; i < PL_COUNT(same); i++) {
        pl_error err = {0};
        json_t *value;
        pl_buf text = {0};
        assert_int_equal(pl_json_parse(&err, "x", same[i], strlen(same[i]), &value), 0);
        assert_int_equal(pl_json_text(&err, value, 0, &text), 0);
        assert_string_equal(text.data, same[i]);
        json_decref(value);
        pl_buf_free(&text);
    }
}

static void test_layout(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *value = json_pack("{s:f, s:[i, b], s:s}", "z", 0.1, "a", 1, 1, "é", "\xc3\xa9");
    pl_buf text = {0};
    assert_int_equal(pl_json_text(&err, value, JSON_ENSURE_ASCII, &text), 0);
    assert_string_equal(
        text.data, "{\n  \"z\": 0.1,\n  \"a\": [\n    1,\n    true\n  ],\n  \"\\u00E9\": \"\\u00E9\"\n}");
    json_decref(value);
    pl_buf_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_numbers), cmocka_unit_test(test_layout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
