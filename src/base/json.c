#include "base/json.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/number.h"

int pl_json_parse_from(pl_error *err, const char *where, int64_t line, const char *text, size_t size, json_t **out)
{
    size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL;
    json_error_t e;
    /* Where an allocation fails, jansson says nothing or takes it for a syntax error; so an error counts when it comes
       twice, and a silent one is lack of memory. The second attempt also takes whole numbers beyond 64 bits. */
    for (int attempt = 0; attempt < 2; attempt++) {
        *out = json_loadb(text, size, flags, &e);
        if (*out) return 0;
        if (json_error_code(&e) == json_error_numeric_overflow) flags |= JSON_DECODE_INT_AS_REAL;
    }
    if (json_error_code(&e) == json_error_out_of_memory || !e.text[0]) return PL_FAIL_NOMEM(err);
    return PL_FAIL(err, PL_EINPUT, "%s:%lld: is not valid JSON: %s", where,
        (long long)(line + (e.line < 1 ? 0 : e.line - 1)), e.text);
}

int pl_json_parse(pl_error *err, const char *where, const char *text, size_t size, json_t **out)
{
    return pl_json_parse_from(err, where, 1, text, size, out);
}

int pl_json_read(pl_error *err, const char *path, json_t **out)
{
    pl_map map;
    PL_TRY(pl_map_open(err, path, &map));
    int rc = pl_file_check_fetched(err, path, map.data, map.size);
    if (rc == 0) rc = pl_json_parse(err, path, map.data ? (const char *)map.data : "", map.size, out);
    pl_map_close(&map);
    return rc;
}

/* Appends a number as it stands in text; one with a fraction in the fewest digits that give the same value back. */
static int put_number(pl_error *err, const char *token, size_t size, pl_buf *out)
{
    char text[PL_REAL_TEXT];
    double value;
    if (size >= sizeof text || strcspn(token, ".eE") >= size) return pl_buf_append(err, out, token, size);
    memcpy(text, token, size);
    text[size] = 0;
    if (!pl_parse_real(text, &value)) return pl_buf_append(err, out, token, size);
    pl_print_real(value, text);
    PL_TRY(pl_buf_puts(err, out, text));
    return strpbrk(text, ".e") ? 0 : pl_buf_puts(err, out, ".0");
}

typedef struct dump {
    pl_error *err;
    pl_buf text;
    int rc; /* jansson goes on after some failures */
} dump;

static int add_dumped(const char *bytes, size_t size, void *user)
{
    dump *d = user;
    if (d->rc == 0) d->rc = pl_buf_append(d->err, &d->text, bytes, size);
    return d->rc < 0 ? -1 : 0;
}

int pl_json_text(pl_error *err, const json_t *value, size_t flags, pl_buf *out)
{
    dump d = {.err = err};
    flags |= JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(17);
    if (json_dump_callback(value, add_dumped, &d, flags) < 0 && d.rc == 0) d.rc = PL_FAIL_NOMEM(err);
    int rc = d.rc;
    bool quoted = false;
    for (const char *c = pl_buf_text(&d.text); *c && rc == 0;) {
        size_t n = quoted ? 0 : strspn(c, "+-.0123456789eE");
        if (n && *c != 'e' && *c != 'E') { /* the e of true and false begins no number */
            rc = put_number(err, c, n, out);
            c += n;
            continue;
        }
        if (quoted && *c == '\\') {
            rc = pl_buf_putc(err, out, *c++);
        } else if (*c == '"') {
            quoted = !quoted;
        }
        if (rc == 0) rc = pl_buf_putc(err, out, *c++);
    }
    pl_buf_free(&d.text);
    return rc;
}

int pl_json_write(pl_error *err, const char *path, const json_t *value)
{
    pl_buf text = {0};
    int rc = pl_json_text(err, value, 0, &text);
    if (rc == 0) rc = pl_buf_putc(err, &text, '\n');
    if (rc == 0) rc = pl_file_write(err, path, text.data, text.size);
    pl_buf_free(&text);
    return rc;
}

const char *pl_json_type_name(const json_t *value)
{
    if (!value) return "nothing";
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "a list";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "a whole number";
    case JSON_REAL: return "a number";
    case JSON_TRUE: return "true";
    case JSON_FALSE: return "false";
    case JSON_NULL: return "null";
    }
    return "something else";
}

static int wrong_type(pl_error *err, const char *where, const char *key, const json_t *value, const char *expected)
{
    return PL_FAIL(err, PL_EINPUT, "%s: %s is %s; %s was expected", where, key, pl_json_type_name(value), expected);
}

int pl_json_int(pl_error *err, const char *where, const json_t *object, const char *key, int64_t *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return 0;
    if (json_is_integer(v)) {
        *out = json_integer_value(v);
        return 0;
    }
    /* Python code often writes 2.0 where 2 is meant. */
    if (json_is_real(v) && fabs(json_real_value(v)) < 9e15 && json_real_value(v) == floor(json_real_value(v))) {
        *out = (int64_t)json_real_value(v);
        return 0;
    }
    return wrong_type(err, where, key, v, "a whole number");
}

int pl_json_real(pl_error *err, const char *where, const json_t *object, const char *key, double *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_number(v)) return wrong_type(err, where, key, v, "a number");
    *out = json_number_value(v);
    return 0;
}

int pl_json_bool(pl_error *err, const char *where, const json_t *object, const char *key, bool *out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_boolean(v)) return wrong_type(err, where, key, v, "true or false");
    *out = json_is_true(v);
    return 0;
}

int pl_json_string(pl_error *err, const char *where, const json_t *object, const char *key, const char **out)
{
    const json_t *v = json_object_get(object, key);
    if (!v || json_is_null(v)) return 0;
    if (!json_is_string(v)) return wrong_type(err, where, key, v, "a string");
    if (strlen(json_string_value(v)) != json_string_length(v)) {
        return PL_FAIL(err, PL_EINPUT, "%s: %s has a zero byte in it", where, key);
    }
    *out = json_string_value(v);
    return 0;
}

static int check_copy(pl_error *err, const json_t *value, json_t *copy, json_t **out)
{
    *out = copy;
    if (copy && json_equal(value, copy)) return 0;
    json_decref(copy);
    *out = NULL;
    return PL_FAIL_NOMEM(err);
}

int pl_json_copy(pl_error *err, const json_t *value, json_t **out)
{
    return check_copy(err, value, json_copy((json_t *)value), out);
}

int pl_json_deep_copy(pl_error *err, const json_t *value, json_t **out)
{
    return check_copy(err, value, json_deep_copy(value), out);
}
