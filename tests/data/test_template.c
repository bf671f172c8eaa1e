/* Chat templates against Jinja2: the small templates of golden/template_cases.json, each of a construct, and the
   models' own with golden/templates.json, where those files are. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "data/template.h"

#define SHARED PLAIT_TEST_DIR "/../../shared"

/* Parses and renders; the text into `out`. */
static int render(pl_error *err, const char *text, size_t size, const json_t *context, pl_buf *out, pl_pieces *pieces)
{
    pl_template *t = NULL;
    int rc = pl_template_parse(err, "case", text, size, &t);
    if (rc == 0) rc = pl_template_render(err, t, context, out, pieces);
    pl_template_free(t);
    return rc;
}

static void check_case(const json_t *c, const char *text, size_t size, const json_t *context, const char *name)
{
    const json_t *expected = json_object_get(c, "text");
    pl_error err = {0};
    pl_buf out = {0};
    int rc = render(&err, text, size, context, &out, NULL);
    if (expected && rc < 0) fail_msg("%s: %s", name, err.message);
    if (expected &&
        (out.size != json_string_length(expected) || strcmp(pl_buf_text(&out), json_string_value(expected)) != 0))
        fail_msg("%s:\n%s\n---- was expected:\n%s", name, pl_buf_text(&out), json_string_value(expected));
    if (!expected) {
        if (rc == 0)
            fail_msg("%s: Jinja2 raises %s, but here it gives: %s", name,
                json_string_value(json_object_get(c, "raises")), pl_buf_text(&out));
        if (strncmp(err.message, "case:", 5) != 0) fail_msg("%s: no place in: %s", name, err.message);
        assert_int_equal(rc, err.code);
        assert_int_equal(out.size, 0);
    }
    pl_buf_free(&out);
}

static void test_constructs(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *doc = NULL, *c;
    size_t i;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/golden/template_cases.json", &doc) < 0) fail_msg("%s", err.message);
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        const json_t *t = json_object_get(c, "template");
        check_case(
            c, json_string_value(t), json_string_length(t), json_object_get(doc, "context"), json_string_value(t));
    }
    assert_true(i > 150);
    json_decref(doc);
}

static void test_models(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *doc = NULL, *c;
    size_t i;
    if (!pl_file_exists(SHARED "/golden/templates.json")) {
        print_message("no ../shared here: the models' own templates are not tested\n");
        skip();
    }
    if (pl_json_read(&err, SHARED "/golden/templates.json", &doc) < 0) fail_msg("%s", err.message);
    json_array_foreach(json_object_get(doc, "cases"), i, c)
    {
        const char *file = json_string_value(json_object_get(c, "template")),
                   *conversation = json_string_value(json_object_get(c, "conversation"));
        char path[512], name[512];
        pl_buf text = {0};
        snprintf(path, sizeof path, "%s/data/chat-templates/%s", SHARED, file);
        snprintf(name, sizeof name, "%s %s", file, conversation);
        if (pl_file_read(&err, path, &text) < 0) fail_msg("%s", err.message);
        json_t *context = json_pack("{s:O, s:n, s:n, s:O, s:O, s:O, s:O}", "messages",
            json_object_get(json_object_get(doc, "conversations"), conversation), "tools", "documents",
            "add_generation_prompt", json_object_get(c, "add_generation_prompt"), "bos_token",
            json_object_get(doc, "bos_token"), "eos_token", json_object_get(doc, "eos_token"), "strftime_now",
            json_object_get(doc, "strftime_now"));
        assert_non_null(context);
        check_case(c, pl_buf_text(&text), text.size, context, name);
        json_decref(context);
        pl_buf_free(&text);
    }
    assert_int_equal(i, 352);
    json_decref(doc);
}

/* template, message: what exactly a user is told. */
static void test_messages(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
        int code;
    } cases[] = {
        {"a\nb{{ x | nope }}", "case:2: the filter 'nope' is not supported", PL_EUNSUPPORTED},
        {"{% if 1 %}\n{{ x is nope }}{% endif %}", "case:2: the test 'nope' is not supported", PL_EUNSUPPORTED},
        {"\n\n{% include 'x' %}", "case:3: the tag {% include %} is not supported", PL_EUNSUPPORTED},
        {"{{ 'a'.encode() }}", "case:1: the method 'encode' of str is not supported", PL_EUNSUPPORTED},
        {"{{ lipsum() }}", "case:1: the function 'lipsum' is not supported", PL_EUNSUPPORTED},
        {"x\n{{ raise_exception('Roles must alternate') }}", "case:2: the template refuses this: Roles must alternate",
            PL_EINPUT},
        {"{% for m in l %}\n{{ m.x.y }}\n{% endfor %}", "case:2: an int has no attribute 'x'", PL_EINPUT},
        {"{% for m in l %}\n{{ m }}", "case:1: what begins here has no {% endfor %}", PL_EINPUT},
        {"{{ 9223372036854775807 + 1 }}", "case:1: the result of + does not fit in 64 bits", PL_EUNSUPPORTED},
        {"{{ '\xff' }}", "case:1: the template is not UTF-8: byte 4", PL_EINPUT},
        {"{{ strftime_now('%Q') }}", "case:1: strftime_now: %Q is not supported", PL_EUNSUPPORTED},
    };
    json_t *context = json_pack("{s:[i]}", "l", 1);
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_buf out = {0};
        assert_int_equal(render(&err, cases[i].text, strlen(cases[i].text), context, &out, NULL), cases[i].code);
        assert_string_equal(err.message, cases[i].message);
        pl_buf_free(&out);
    }
    json_decref(context);
}

/* Templates that would take all memory or never end, were they let. */
static void test_limits(void **state)
{
    (void)state;
    static const char *const cases[] = {
        "{{ 'x' * 1000000000000 }}",
        "{{ [1] * 1000000000000 }}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
        "{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}",
        "{% set ns = namespace(s=[1]) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s | tojson "
        "}}",
        "{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(9999) %}{% set ns.a = [ns.a] %}{% set ns.b = [ns.b] "
        "%}{% endfor %}{{ ns.a == ns.b }}",
        "{% set ns = namespace(s=(1,)) %}{% for i in range(9999) %}{% set ns.s = (ns.s,) %}{% endfor %}{{ {ns.s: 1} }}",
        "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% "
        "endfor %}",
        "{% for a in range(99999) %}{% for b in range(99999) %}0123456789012345678901234567890{% endfor %}{% endfor %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ '{:999999999}'.format(1) }}",
        "{{ 'a' | center(10000000000) }}",
        "{{ ['a' * 100000] * 100000 | join }}",
        "{{ ('a' * 100000).replace('', 'b' * 100000) }}",
        "{{ ('a\\n' * 100000) | indent(100000) }}",
        "{{ [1, [2]] | tojson(indent=10000000000) }}",
        "{{ range(0, 9223372036854775807, 1) }}",
        "{{ 'abc'[::-9223372036854775807 - 1] }}{{ 'abc'[9223372036854775807::9223372036854775807] }}{{ 1 // 0 }}",
        "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -(-9223372036854775807 - 1) }}",
        "{{ (-9223372036854775807 - 1) | abs }}",
        "{{ 2 ** 9223372036854775807 }}",
        "{{ range(4) | slice(100000000000) | list }}",
    };
    json_t *context = json_object();
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_buf out = {0};
        if (render(&err, cases[i], strlen(cases[i]), context, &out, NULL) == 0)
            fail_msg("%s was let through", cases[i]);
        assert_true(err.code == PL_EINPUT || err.code == PL_ENOMEM || err.code == PL_EUNSUPPORTED);
        assert_int_equal(strncmp(err.message, "case:1: ", 8), 0);
        pl_buf_free(&out);
    }
    json_decref(context);
}

/* Brackets, minus signs, blocks... within each other, far too often. */
static void test_nesting(void **state)
{
    (void)state;
    static const char *const units[] = {"(", "[", "{1:", "-", "not ", "a.b(", "a[", "{% if 1 %}", "{% for x in [1] %}",
        "a if b else ", "x|f(", "1+", "1~", "x."};
    json_t *context = json_object();
    for (int i = 0; i < PL_COUNT(units); i++) {
        pl_error err = {0};
        pl_buf text = {0}, out = {0};
        bool block = units[i][0] == '{' && units[i][1] == '%';
        if (!block) assert_int_equal(pl_buf_puts(&err, &text, "{{ "), 0);
        for (int k = 0; k < 20000; k++) assert_int_equal(pl_buf_puts(&err, &text, units[i]), 0);
        assert_int_equal(pl_buf_puts(&err, &text, block ? "" : "a }}"), 0);
        int rc = render(&err, pl_buf_text(&text), text.size, context, &out, NULL);
        if (strcmp(units[i], "1~") == 0)
            assert_int_equal(rc, 0);
        else
            assert_true(rc < 0);
        pl_buf_free(&text);
        pl_buf_free(&out);
    }
    json_decref(context);
}

/* Each piece of a text as (bytes)message, with ' behind words of the message and . behind those of the template; + in
   front of what is generated. */
static void show(const pl_buf *out, size_t start, const pl_pieces *pieces, pl_buf *shown)
{
    pl_error err = {0};
    size_t at = 0;
    for (size_t i = 0; i < pieces->count; i++) {
        const pl_piece *p = &pieces->items[i];
        assert_int_equal(p->begin, at);
        assert_true(p->end > p->begin);
        assert_true(p->quotes < 0 || !p->literal);
        assert_int_equal(
            pl_buf_printf(&err, shown, "%s(%.*s)%d%s%s", p->generated ? "+" : "", (int)(p->end - p->begin),
                out->data + start + p->begin, (int)p->writes, p->quotes >= 0 ? "'" : "", p->literal ? "." : ""),
            0);
        at = p->end;
    }
    assert_int_equal(start + at, out->size);
}

static void test_pieces(void **state)
{
    (void)state;
    static const struct {
        const char *text, *shown;
    } cases[] = {
        {"a{{ x }}", "(a)-1.(7)-1"},
        {"<{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}>",
            "(<)-1.([u:)0.(Hi)0'(])0.([a:)1.(Ho)1'(])1.(>)-1."},
        {"{{ messages[1].content }}!", "(Ho)-1'(!)-1."},
        {"{% for m in messages %}{{ m.content.replace('H', 'h') }}{{ m.content[1:] + '~' }}{% endfor %}",
            "(hi)0(i)0'(~)0.(ho)1(o)1'(~)1."},
        {"{% for i in range(2) %}{% set m = messages[i] %}{% set n = messages[0] %}{{ m.content }}-{% endfor %}",
            "(Hi)0'(-)0.(Ho)1'(-)1."},
        {"{% for m in messages %}{% for n in messages[:1] %}{{ n.content }}{% endfor %};{% endfor %}",
            "(Hi)0'(;)0.(Hi)0'(;)1."},
        {"{% for m in messages %}{% for c in 'xy' %}{{ c }}{% endfor %}{% for k in [1] %}{% set n = messages[0] %}!"
         "{% endfor %}{% endfor %}",
            "(xy!)0.(xy)1.(!)0."},
        {"{% macro f(m) %}<{{ m.content }}>{% endmacro %}{{ f(messages[1]) }}{{ f({}) }}", "(<)1.(Ho)1'(>)1.(<>)-1."},
        {"{% set ns = namespace(s='') %}{% for m in messages %}{% set ns.s = ns.s + m.content ~ '.' %}{% endfor %}"
         "{{ ns.s }}{{ ns.s | upper }}{{ [ns.s, 'x'] | join('|') }}{{ '|'.join([ns.s[1:]]) }}",
            "(Hi)0'(.)0.(Ho)1'(.)1.(HI.HO.)-1(Hi)0'(.)0.(Ho)1'(.)1.(|x)-1.(i)0'(.)0.(Ho)1'(.)1."},
        {"{% for m in messages %}{% set s %}<{{ m.content }}>{% endset %}{{ s }}{% filter lower %}A{% endfilter %}"
         "{% endfor %}",
            "(<)0.(Hi)0'(>)0.(a)0(<)1.(Ho)1'(>)1.(a)1"},
        {"{% generation %}x{{ messages[0].content }}{% generation %}!{% endgeneration %}{% endgeneration %}y",
            "+(x)-1.+(Hi)-1'+(!)-1.(y)-1."},
        {"{% macro f(t) %}{% generation %}<{{ t }}>{% endgeneration %}{% endmacro %}{% for m in messages %}"
         "{{ m.role + f(m.content) }}{{ f(1) | trim }}{% endfor %}",
            "(u)0.+(<)0.+(Hi)0'+(><)0.+(1)0+(>)0.(a)1.+(<)1.+(Ho)1'+(><)1.+(1)1+(>)1."},
    };
    json_t *context = json_pack("{s:i, s:[{s:s, s:s}, {s:s, s:s}]}", "x", 7, "messages", "role", "u", "content", "Hi",
        "role", "a", "content", "Ho");
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_buf out = {0}, shown = {0};
        pl_pieces pieces = {0};
        assert_int_equal(pl_buf_puts(&err, &out, "before "), 0); /* positions count from what is appended */
        if (render(&err, cases[i].text, strlen(cases[i].text), context, &out, &pieces) < 0)
            fail_msg("%s: %s", cases[i].text, err.message);
        show(&out, 7, &pieces, &shown);
        if (strcmp(pl_buf_text(&shown), cases[i].shown) != 0)
            fail_msg("%s: %s was expected, not %s", cases[i].text, cases[i].shown, pl_buf_text(&shown));
        pl_buf_free(&out);
        pl_buf_free(&shown);
        pl_pieces_free(&pieces);
    }
    json_decref(context);
}

/* On failure nothing is given. */
static void test_pieces_failure(void **state)
{
    (void)state;
    static const char text[] = "{% generation %}a{% endgeneration %}{{ raise_exception('no') }}";
    json_t *context = json_object();
    pl_error err = {0};
    pl_buf out = {0};
    pl_pieces pieces = {0};
    pl_template *t = NULL;
    assert_int_equal(pl_buf_puts(&err, &out, "before"), 0);
    assert_int_equal(render(&err, text, strlen(text), context, &out, &pieces), PL_EINPUT);
    assert_string_equal(pl_buf_text(&out), "before");
    assert_int_equal(pieces.count, 0);
    pl_error_clear(&err);
    assert_int_equal(pl_template_parse(&err, "t", text, strlen(text), &t), 0);
    assert_true(pl_template_has_generation(t));
    pl_template_free(t);
    assert_int_equal(pl_template_parse(&err, "t", "x", 1, &t), 0);
    assert_false(pl_template_has_generation(t));
    pl_template_free(t);
    pl_buf_free(&out);
    json_decref(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_constructs), cmocka_unit_test(test_models),
        cmocka_unit_test(test_messages), cmocka_unit_test(test_limits), cmocka_unit_test(test_nesting),
        cmocka_unit_test(test_pieces), cmocka_unit_test(test_pieces_failure)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
