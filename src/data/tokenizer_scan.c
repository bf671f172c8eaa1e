/* A reader of JSON that keeps nothing: vocabularies have hundreds of thousands of entries, for which a tree of values
   would cost more time and memory than the tokenizer itself. Of the small parts it makes jansson's values. */
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "data/tokenizer_internal.h"

enum { MAX_DEPTH = 200 };

static long line_of(const pl_scan *r)
{
    long line = 1;
    for (const char *c = r->start; c < r->p; c++) line += *c == '\n';
    return line;
}

int pl_scan_fail(pl_scan *r, const char *format, ...)
{
    char message[512];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    return PL_FAIL(r->err, PL_EINPUT, "%s:%ld: %s", r->where, line_of(r), message);
}

int pl_scan_place(pl_scan *r, int rc)
{
    return rc < 0 ? pl_error_prefix(r->err, "%s:%ld", r->where, line_of(r)) : rc;
}

char pl_scan_peek(pl_scan *r)
{
    while (r->p < r->end && (*r->p == ' ' || *r->p == '\n' || *r->p == '\t' || *r->p == '\r')) r->p++;
    return r->p < r->end ? *r->p : 0;
}

static int not_expected(pl_scan *r, const char *expected)
{
    char c = pl_scan_peek(r);
    if (r->p >= r->end) return pl_scan_fail(r, "the file ends where %s was expected", expected);
    if ((unsigned char)c < 0x20 || (unsigned char)c > 0x7E) {
        return pl_scan_fail(r, "byte 0x%02X stands where %s was expected", (unsigned char)c, expected);
    }
    return pl_scan_fail(r, "'%c' stands where %s was expected", c, expected);
}

int pl_scan_expect(pl_scan *r, char c)
{
    if (pl_scan_peek(r) != c || r->p >= r->end) {
        char expected[4] = {'\'', c, '\'', 0};
        return not_expected(r, expected);
    }
    r->p++;
    return 0;
}

int pl_scan_more(pl_scan *r, char close)
{
    char c = pl_scan_peek(r);
    if (r->p < r->end && (c == ',' || c == close)) {
        r->p++;
        return c == ',';
    }
    char expected[16];
    snprintf(expected, sizeof expected, "',' or '%c'", close);
    return not_expected(r, expected);
}

static int hex4(pl_scan *r, int32_t *out)
{
    *out = 0;
    for (int i = 0; i < 4; i++, r->p++) {
        int c = r->p < r->end ? *r->p : 0;
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return pl_scan_fail(r, "\\u must be followed by four hexadecimal digits");
        *out = *out * 16 + digit;
    }
    return 0;
}

static int unicode_escape(pl_scan *r)
{
    int32_t c, low;
    PL_TRY(hex4(r, &c));
    if (c >= 0xD800 && c <= 0xDBFF && r->end - r->p >= 6 && r->p[0] == '\\' && r->p[1] == 'u') {
        r->p += 2;
        PL_TRY(hex4(r, &low));
        if (low < 0xDC00 || low > 0xDFFF) return pl_scan_fail(r, "half a surrogate pair in a string");
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    if (c >= 0xD800 && c <= 0xDFFF) return pl_scan_fail(r, "half a surrogate pair in a string");
    char bytes[4];
    return pl_buf_append(r->err, &r->text, bytes, pl_utf8_put(bytes, c));
}

static int escape(pl_scan *r)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = r->p < r->end ? *r->p : 0;
    const char *name = c ? strchr(names, c) : NULL;
    if (c == 'u') {
        r->p++;
        return unicode_escape(r);
    }
    if (!name) return pl_scan_fail(r, "a string has an unknown escape");
    r->p++;
    return pl_buf_putc(r->err, &r->text, values[name - names]);
}

int pl_scan_string(pl_scan *r, const char **text, size_t *size)
{
    if (pl_scan_peek(r) != '"') return not_expected(r, "a string");
    const char *from = ++r->p;
    bool escaped = false;
    for (;;) {
        while (r->p < r->end && *r->p != '"' && *r->p != '\\' && (unsigned char)*r->p >= 0x20) r->p++;
        if (r->p >= r->end) return pl_scan_fail(r, "the file ends inside a string");
        if (*r->p == '"' && !escaped) {
            *text = from;
            *size = (size_t)(r->p++ - from);
            return 0;
        }
        if (*r->p != '"' && *r->p != '\\') return pl_scan_fail(r, "a string has a control character in it");
        if (!escaped) pl_buf_clear(&r->text);
        escaped = true;
        PL_TRY(pl_buf_append(r->err, &r->text, from, (size_t)(r->p - from)));
        if (*r->p++ == '"') break;
        PL_TRY(escape(r));
        from = r->p;
    }
    *text = pl_buf_text(&r->text);
    *size = r->text.size;
    return 0;
}

static size_t digits(pl_scan *r)
{
    const char *from = r->p;
    while (r->p < r->end && *r->p >= '0' && *r->p <= '9') r->p++;
    return (size_t)(r->p - from);
}

static int number(pl_scan *r, bool *whole)
{
    *whole = true;
    if (r->p < r->end && *r->p == '-') r->p++;
    const char *first = r->p;
    size_t n = digits(r);
    if (!n || (n > 1 && *first == '0')) return not_expected(r, "a number");
    if (r->p < r->end && *r->p == '.') {
        *whole = false;
        r->p++;
        if (!digits(r)) return not_expected(r, "a digit");
    }
    if (r->p < r->end && (*r->p == 'e' || *r->p == 'E')) {
        *whole = false;
        r->p++;
        if (r->p < r->end && (*r->p == '+' || *r->p == '-')) r->p++;
        if (!digits(r)) return not_expected(r, "a digit");
    }
    return 0;
}

int pl_scan_integer(pl_scan *r, int64_t *out)
{
    char c = pl_scan_peek(r);
    const char *from = r->p;
    bool whole;
    if (c != '-' && (c < '0' || c > '9')) return not_expected(r, "a whole number");
    PL_TRY(number(r, &whole));
    if (!whole) return pl_scan_fail(r, "%.*s is not a whole number", (int)(r->p - from > 40 ? 40 : r->p - from), from);
    bool negative = *from == '-';
    int64_t value = 0;
    for (const char *p = from + negative; p < r->p; p++) {
        if (value > (INT64_MAX - 9) / 10) return pl_scan_fail(r, "%.40s... is too large", from);
        value = value * 10 + (*p - '0');
    }
    *out = negative ? -value : value;
    return 0;
}

int pl_scan_real(pl_scan *r, double *out)
{
    char c = pl_scan_peek(r), copy[64];
    const char *from = r->p;
    bool whole;
    if (c != '-' && (c < '0' || c > '9')) return not_expected(r, "a number");
    PL_TRY(number(r, &whole));
    size_t size = (size_t)(r->p - from);
    if (size >= sizeof copy) return pl_scan_fail(r, "a number has %zu digits", size);
    memcpy(copy, from, size);
    copy[size] = 0;
    return pl_parse_real(copy, out) ? 0 : pl_scan_fail(r, "%s is too large a number", copy);
}

static int skip_word(pl_scan *r, const char *word)
{
    size_t size = strlen(word);
    if ((size_t)(r->end - r->p) < size || memcmp(r->p, word, size) != 0) return not_expected(r, "a value");
    r->p += size;
    return 0;
}

int pl_scan_skip(pl_scan *r, int depth)
{
    const char *text;
    size_t size;
    bool whole;
    char c = pl_scan_peek(r);
    if (depth > MAX_DEPTH) return pl_scan_fail(r, "values are nested more than %d deep", MAX_DEPTH);
    switch (c) {
    case '"': return pl_scan_string(r, &text, &size);
    case 't': return skip_word(r, "true");
    case 'f': return skip_word(r, "false");
    case 'n': return skip_word(r, "null");
    case '{':
    case '[': break;
    default: return c == '-' || (c >= '0' && c <= '9') ? number(r, &whole) : not_expected(r, "a value");
    }
    char close = c == '{' ? '}' : ']';
    r->p++;
    if (pl_scan_peek(r) == close) {
        r->p++;
        return 0;
    }
    int more;
    do {
        if (c == '{') {
            PL_TRY(pl_scan_string(r, &text, &size));
            PL_TRY(pl_scan_expect(r, ':'));
        }
        PL_TRY(pl_scan_skip(r, depth + 1));
        more = pl_scan_more(r, close);
    } while (more > 0);
    return more;
}

static int read_value(pl_scan *r, int depth, json_t **out);

/* A list or an object goes to *out at once, so that the caller releases what was made of it whatever happens then. */
static int read_list(pl_scan *r, int depth, json_t **out)
{
    int more = 1;
    r->p++;
    *out = json_array();
    if (!*out) return PL_FAIL_NOMEM(r->err);
    if (pl_scan_peek(r) == ']') return pl_scan_expect(r, ']');
    while (more > 0) {
        json_t *item = NULL;
        int rc = read_value(r, depth + 1, &item);
        if (rc < 0) json_decref(item);
        PL_TRY(rc);
        if (json_array_append_new(*out, item)) return PL_FAIL_NOMEM(r->err);
        PL_TRY(more = pl_scan_more(r, ']'));
    }
    return 0;
}

static int read_member(pl_scan *r, int depth, json_t *object)
{
    const char *text;
    size_t size;
    char *key;
    json_t *item = NULL;
    PL_TRY(pl_scan_string(r, &text, &size));
    if (memchr(text, 0, size)) return pl_scan_fail(r, "a key has a zero byte in it");
    PL_TRY(pl_strndup(r->err, text, size, &key));
    int rc = json_object_get(object, key) ? pl_scan_fail(r, "\"%.60s\" is there twice", key) : pl_scan_expect(r, ':');
    if (rc == 0) rc = read_value(r, depth + 1, &item);
    if (rc == 0 && json_object_set_nocheck(object, key, item)) rc = PL_FAIL_NOMEM(r->err);
    json_decref(item);
    free(key);
    return rc;
}

static int read_object(pl_scan *r, int depth, json_t **out)
{
    int more = 1;
    r->p++;
    *out = json_object();
    if (!*out) return PL_FAIL_NOMEM(r->err);
    if (pl_scan_peek(r) == '}') return pl_scan_expect(r, '}');
    while (more > 0) {
        PL_TRY(read_member(r, depth, *out));
        PL_TRY(more = pl_scan_more(r, '}'));
    }
    return 0;
}

/* Whole numbers beyond 64 bits become reals: "model_max_length": 1000000000000000019884624838656 is common. */
static int read_number(pl_scan *r, json_t **out)
{
    const char *from = r->p;
    bool whole;
    double real;
    PL_TRY(number(r, &whole));
    if (whole && r->p - from <= 18) {
        int64_t value;
        r->p = from;
        PL_TRY(pl_scan_integer(r, &value));
        *out = json_integer(value);
        return 0;
    }
    r->p = from;
    PL_TRY(pl_scan_real(r, &real));
    *out = json_real(real);
    return 0;
}

static int read_value(pl_scan *r, int depth, json_t **out)
{
    const char *text;
    size_t size;
    char c = pl_scan_peek(r);
    if (depth > MAX_DEPTH) return pl_scan_fail(r, "values are nested more than %d deep", MAX_DEPTH);
    if (c == '[') return read_list(r, depth, out);
    if (c == '{') return read_object(r, depth, out);
    if (c == '"') {
        PL_TRY(pl_scan_string(r, &text, &size));
        *out = json_stringn_nocheck(text, size);
    } else if (c == '-' || (c >= '0' && c <= '9')) {
        PL_TRY(read_number(r, out));
    } else {
        PL_TRY(pl_scan_skip(r, depth));
        *out = c == 't' ? json_true() : c == 'f' ? json_false() : json_null();
    }
    return *out ? 0 : PL_FAIL_NOMEM(r->err);
}

int pl_scan_value(pl_scan *r, json_t **out)
{
    json_t *value = NULL;
    int rc = read_value(r, 0, &value);
    if (rc < 0) {
        json_decref(value);
        return rc;
    }
    *out = value;
    return 0;
}

int pl_scan_open(pl_scan *r, pl_error *err, const char *where, const char *text, size_t size)
{
    *r = (pl_scan){.err = err, .where = where, .start = text, .p = text, .end = text + size};
    size_t good = pl_utf8_check(text, size);
    if (good == size) return 0;
    r->p = text + good;
    return pl_scan_fail(r, "byte 0x%02X is not UTF-8", (unsigned char)text[good]);
}

int pl_scan_finish(pl_scan *r)
{
    pl_scan_peek(r);
    return r->p < r->end ? pl_scan_fail(r, "something follows the end of the document") : 0;
}
