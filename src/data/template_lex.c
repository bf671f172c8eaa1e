/* From a template's text to tokens. What is between tags is data, with the white space taken off that Jinja takes off
   under trim_blocks and lstrip_blocks: after a tag's "-" all of it; after a block or comment one newline, unless "+";
   before a "-" all of it; before a block or comment the blanks since the start of its line, unless "+". */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "data/template_internal.h"

typedef struct lexer {
    pl_trun *run;
    const char *text;
    size_t size, at;
    bool line_start; /* the last tag took the newline after it, so what follows starts a line */
    pl_tlex *out;
} lexer;

static int add(lexer *lx, pl_ttoken_kind kind, const char *bytes, size_t size, pl_ttoken **out)
{
    PL_TRY(pl_tgrow(lx->run, &lx->out->items, &lx->out->capacity, lx->out->count + 1, sizeof *lx->out->items));
    pl_ttoken *t = &lx->out->items[lx->out->count++];
    *t = (pl_ttoken){.kind = kind, .line = lx->run->line, .text = {.bytes = bytes, .size = size, .chars = -1}};
    if (out) *out = t;
    return 0;
}

/* Goes on to `to`, counting lines. */
static void advance(lexer *lx, size_t to)
{
    for (; lx->at < to; lx->at++) lx->run->line += lx->text[lx->at] == '\n';
}

static bool looking_at(const lexer *lx, size_t at, const char *what)
{
    size_t n = strlen(what);
    return n <= lx->size - at && memcmp(lx->text + at, what, n) == 0;
}

static size_t skip_space(const lexer *lx, size_t at)
{
    while (at < lx->size) {
        size_t used;
        if (!pl_tspace(pl_tchar(lx->text + at, lx->size - at, &used))) break;
        at += used;
    }
    return at;
}

/* Data from `begin` to `end`, stripped as the sign of the tag behind it asks. */
static int add_data(lexer *lx, size_t begin, size_t end, char sign, bool strip_blanks)
{
    pl_tstring s = {.bytes = lx->text + begin, .size = end - begin, .chars = -1};
    if (sign == '-') {
        size_t from, to;
        pl_tstrip(&s, NULL, false, true, &from, &to);
        s.size = to;
    } else if (sign != '+' && strip_blanks) {
        size_t line = s.size;
        while (line > 0 && s.bytes[line - 1] != '\n') line--;
        pl_tstring blanks = {.bytes = s.bytes + line, .size = s.size - line, .chars = -1};
        size_t from, to;
        pl_tstrip(&blanks, NULL, true, false, &from, &to);
        if ((line > 0 || lx->line_start) && from == to) s.size = line;
    }
    if (s.size) PL_TRY(add(lx, PL_TOK_DATA, s.bytes, s.size, NULL));
    return 0;
}

/* The sign after an opening "{%", "{{" or "{#". */
static char sign_at(const lexer *lx, size_t at)
{
    return at < lx->size && (lx->text[at] == '-' || lx->text[at] == '+') ? lx->text[at] : 0;
}

/* If a tag ends at `at` (closing is "%}", "}}" or "#}"), where the text goes on; otherwise 0. */
static size_t tag_end(const lexer *lx, size_t at, const char *closing)
{
    if (at < lx->size && lx->text[at] == '-' && looking_at(lx, at + 1, closing)) return skip_space(lx, at + 3);
    bool print = closing[0] == '}';
    if (!print && at < lx->size && lx->text[at] == '+' && looking_at(lx, at + 1, closing)) return at + 3;
    if (!looking_at(lx, at, closing)) return 0;
    return at + 2 + (!print && at + 2 < lx->size && lx->text[at + 2] == '\n');
}

/* "{%- raw -%}" at `at`: where it ends; otherwise 0. After a plain "%}" the newline stays. */
static size_t raw_begin(const lexer *lx, size_t at)
{
    at += 2 + (sign_at(lx, at + 2) != 0);
    at = skip_space(lx, at);
    if (!looking_at(lx, at, "raw")) return 0;
    at = skip_space(lx, at + 3);
    if (looking_at(lx, at, "-%}")) return skip_space(lx, at + 3);
    return looking_at(lx, at, "%}") ? at + 2 : 0;
}

static int lex_raw(lexer *lx, size_t body)
{
    advance(lx, body);
    for (size_t at = body; at + 1 < lx->size; at++) {
        if (!looking_at(lx, at, "{%")) continue;
        char sign = sign_at(lx, at + 2);
        size_t word = skip_space(lx, at + 2 + (sign != 0));
        if (!looking_at(lx, word, "endraw")) continue;
        size_t end = tag_end(lx, skip_space(lx, word + 6), "%}");
        if (!end) continue;
        PL_TRY(add_data(lx, body, at, sign, true));
        advance(lx, end);
        return 0;
    }
    return PL_TFAIL(lx->run, PL_EINPUT, "this {%% raw %%} has no {%% endraw %%}");
}

static int lex_comment(lexer *lx)
{
    for (size_t at = lx->at + 2; at < lx->size; at++) {
        size_t end = tag_end(lx, at, "#}");
        if (!end) continue;
        advance(lx, end);
        return 0;
    }
    return PL_TFAIL(lx->run, PL_EINPUT, "this comment {# has no end #}");
}

static int hex(const char *bytes, size_t size, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < size; i++) {
        char c = bytes[i];
        int digit = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
        if (digit < 0) return -1;
        *out = *out * 16 + (uint32_t)digit;
    }
    return 0;
}

/* One escape of a string literal, s[*i] being the character after the backslash; *i moves behind it. */
static int unescape(lexer *lx, const char *s, size_t size, size_t *i, pl_buf *out)
{
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    char c = s[(*i)++];
    const char *simple = strchr(from, c);
    if (c && simple) return pl_buf_putc(lx->run->err, out, to[simple - from]);
    if (c == '\n') return 0;
    size_t digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t code = 0;
    if (digits) {
        if (size - *i < digits || hex(s + *i, digits, &code) < 0 || code > 0x10ffff ||
            (code >= 0xd800 && code < 0xe000))
            return PL_TFAIL(
                lx->run, PL_EINPUT, "\\%c in a string needs %zu hexadecimal digits of a character", c, digits);
        *i += digits;
        return pl_tchar_put(lx->run->err, out, code);
    }
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int n = 1; n < 3 && *i < size && s[*i] >= '0' && s[*i] <= '7'; n++)
            code = code * 8 + (uint32_t)(s[(*i)++] - '0');
        return pl_tchar_put(lx->run->err, out, code);
    }
    if (c == 'N') return PL_TFAIL(lx->run, PL_EUNSUPPORTED, "\\N{...} in a string is not supported");
    PL_TRY(pl_buf_putc(lx->run->err, out, '\\'));
    return pl_buf_putc(lx->run->err, out, c);
}

static int lex_string(lexer *lx)
{
    char quote = lx->text[lx->at];
    size_t begin = lx->at + 1, end = begin;
    while (end < lx->size && lx->text[end] != quote) end += lx->text[end] == '\\' ? 2 : 1;
    if (end >= lx->size) return PL_TFAIL(lx->run, PL_EINPUT, "this string has no closing %c", quote);
    const char *s = lx->text + begin;
    size_t size = end - begin;
    if (memchr(s, '\\', size)) {
        pl_buf buf = {0};
        pl_tvalue v = {0};
        int rc = 0;
        for (size_t i = 0; i < size && rc == 0;) {
            if (s[i] != '\\')
                rc = pl_buf_putc(lx->run->err, &buf, s[i++]);
            else if (++i < size)
                rc = unescape(lx, s, size, &i, &buf);
        }
        PL_TRY(pl_tstring_take(lx->run, &buf, rc, &v));
        s = v.s->bytes;
        size = v.s->size;
    }
    PL_TRY(add(lx, PL_TOK_STRING, s, size, NULL));
    advance(lx, end + 1);
    return 0;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c) || (unsigned char)c >= 0x80;
}

/* Copies digits (and drops the underscores between them) from *at on; false if there is none. */
static bool digits(const lexer *lx, size_t *at, char *to, size_t *n, size_t capacity)
{
    size_t begin = *at;
    while (*at < lx->size && (is_digit(lx->text[*at]) || (lx->text[*at] == '_' && *at > begin && *at + 1 < lx->size &&
                                                             is_digit(lx->text[*at + 1])))) {
        if (lx->text[*at] != '_' && *n < capacity) to[(*n)++] = lx->text[*at];
        (*at)++;
    }
    return *at > begin;
}

static int lex_number(lexer *lx)
{
    char copy[128];
    size_t at = lx->at, n = 0, base = 10;
    char second = at + 1 < lx->size ? (char)(lx->text[at + 1] | 0x20) : 0;
    bool real = false;
    if (lx->text[at] == '0' && (second == 'x' || second == 'o' || second == 'b')) {
        base = second == 'x' ? 16 : second == 'o' ? 8 : 2;
        for (at += 2; at < lx->size && (is_name(lx->text[at])); at++)
            if (lx->text[at] != '_' && n < sizeof copy - 1) copy[n++] = lx->text[at];
    } else {
        digits(lx, &at, copy, &n, sizeof copy - 1);
        size_t next = at + 1;
        /* A number right after a dot is a subscript: in x.0.1 the dot is no decimal point. */
        bool after_dot = lx->at > 0 && lx->text[lx->at - 1] == '.';
        if (!after_dot && at + 1 < lx->size && lx->text[at] == '.' && is_digit(lx->text[next])) {
            real = true;
            if (n < sizeof copy - 1) copy[n++] = '.';
            at = next;
            digits(lx, &at, copy, &n, sizeof copy - 1);
        }
        if (!after_dot && at < lx->size && (lx->text[at] | 0x20) == 'e') {
            next = at + 1;
            if (next < lx->size && (lx->text[next] == '+' || lx->text[next] == '-')) next++;
            if (next < lx->size && is_digit(lx->text[next])) {
                real = true;
                for (; at < next; at++)
                    if (n < sizeof copy - 1) copy[n++] = lx->text[at];
                digits(lx, &at, copy, &n, sizeof copy - 1);
            }
        }
    }
    copy[n] = 0;
    if (n == sizeof copy - 1) return PL_TFAIL(lx->run, PL_EUNSUPPORTED, "a number of more than %zu digits", n - 1);
    pl_ttoken *t;
    PL_TRY(add(lx, real ? PL_TOK_FLOAT : PL_TOK_INT, lx->text + lx->at, at - lx->at, &t));
    char *end = copy;
    errno = 0;
    if (!real) t->i = strtoll(copy, &end, (int)base);
    if (real ? !pl_parse_real(copy, &t->f) : *end || end == copy)
        return PL_TFAIL(lx->run, PL_EINPUT, "'%.*s' is not a number", PL_TSHOW(&t->text));
    if (!real && errno == ERANGE)
        return PL_TFAIL(lx->run, PL_EUNSUPPORTED, "the number %s does not fit in 64 bits", copy);
    advance(lx, at);
    return 0;
}

/* What is between the signs of "{{ ... }}" or "{% ... %}". */
static int lex_code(lexer *lx, const char *closing, pl_ttoken_kind end_kind)
{
    static const char *const operators[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
        "(", ")", "{", "}", ">", "<", "=", ".", ":", "|", ",", ";"};
    char open[256];
    size_t depth = 0;
    int begin = lx->run->line;
    for (;;) {
        advance(lx, skip_space(lx, lx->at));
        if (lx->at >= lx->size) {
            lx->run->line = begin;
            return PL_TFAIL(lx->run, PL_EINPUT, "this tag has no closing %s", closing);
        }
        size_t end = depth ? 0 : tag_end(lx, lx->at, closing);
        if (end) {
            PL_TRY(add(lx, end_kind, lx->text + lx->at, 2, NULL));
            lx->line_start = lx->text[end - 1] == '\n';
            advance(lx, end);
            return 0;
        }
        char c = lx->text[lx->at];
        if (c == '"' || c == '\'') {
            PL_TRY(lex_string(lx));
        } else if (is_digit(c)) {
            PL_TRY(lex_number(lx));
        } else if (is_name(c)) {
            size_t at = lx->at;
            while (at < lx->size && is_name(lx->text[at])) at++;
            PL_TRY(add(lx, PL_TOK_NAME, lx->text + lx->at, at - lx->at, NULL));
            advance(lx, at);
        } else {
            size_t k = 0, count = sizeof operators / sizeof *operators;
            while (k < count && !looking_at(lx, lx->at, operators[k])) k++;
            if (k == count)
                return PL_TFAIL(lx->run, PL_EINPUT, "unexpected character '%.*s'", (int)pl_tchar_size((unsigned char)c),
                    lx->text + lx->at);
            if (strchr("([{", c)) {
                if (depth == sizeof open)
                    return PL_TFAIL(lx->run, PL_EINPUT, "brackets nest more than %zu deep", sizeof open);
                open[depth++] = c == '(' ? ')' : c == '[' ? ']' : '}';
            } else if (strchr(")]}", c) && (depth == 0 || open[--depth] != c)) {
                return PL_TFAIL(lx->run, PL_EINPUT, "unexpected '%c'", c);
            }
            size_t n = strlen(operators[k]);
            PL_TRY(add(lx, PL_TOK_OPERATOR, lx->text + lx->at, n, NULL));
            advance(lx, lx->at + n);
        }
    }
}

/* One stretch of data and the tag behind it. */
static int lex_tag(lexer *lx)
{
    size_t begin = lx->at, at = begin;
    while (at + 1 < lx->size && !(lx->text[at] == '{' && strchr("{%#", lx->text[at + 1]) && lx->text[at + 1])) at++;
    if (at + 1 >= lx->size) {
        if (begin < lx->size) PL_TRY(add(lx, PL_TOK_DATA, lx->text + begin, lx->size - begin, NULL));
        advance(lx, lx->size);
        return 0;
    }
    char kind = lx->text[at + 1], sign = sign_at(lx, at + 2);
    PL_TRY(add_data(lx, begin, at, sign, kind != '{'));
    advance(lx, at);
    size_t raw = kind == '%' ? raw_begin(lx, at) : 0;
    if (raw) {
        lx->line_start = lx->text[raw - 1] == '\n';
        PL_TRY(lex_raw(lx, raw));
    } else if (kind == '#') {
        PL_TRY(lex_comment(lx));
    } else {
        PL_TRY(add(lx, kind == '{' ? PL_TOK_PRINT_BEGIN : PL_TOK_BLOCK_BEGIN, lx->text + at, 2, NULL));
        advance(lx, at + 2 + (sign != 0));
        return kind == '{' ? lex_code(lx, "}}", PL_TOK_PRINT_END) : lex_code(lx, "%}", PL_TOK_BLOCK_END);
    }
    lx->line_start = lx->text[lx->at - 1] == '\n';
    return 0;
}

int pl_tlex_run(pl_trun *run, const char *text, size_t size, pl_tlex *out)
{
    lexer lx = {.run = run, .text = text, .size = size, .line_start = true, .out = out};
    run->line = 1;
    while (lx.at < lx.size) PL_TRY(lex_tag(&lx));
    return add(&lx, PL_TOK_END, text + size, 0, NULL);
}
