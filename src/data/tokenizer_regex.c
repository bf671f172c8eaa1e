/* Patterns. tokenizer.json has Oniguruma's; PCRE2 reads most of them alike, and what it would read otherwise is spelled
   out here: \s, \w and \b (other sets of characters), \h (a hexadecimal digit there), {n,m}+ (a repeated repetition
   there, possessive in PCRE2), \uHHHH. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

#define SPACE "\\t-\\r\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{10FFFF}"
/* Letters, marks, decimal digits, connectors, what else is alphabetic, and (so it is in Oniguruma) Latin-1's numbers.
 */
#define WORD                                                                                                           \
    "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}\\x{24B6}-\\x{24E9}"                         \
    "\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}"

typedef struct translator {
    pl_error *err;
    const char *where, *pattern;
    size_t size, at;
    pl_buf out;
    size_t atom; /* where in `out` the last atom begins, for {n,m}+ */
    size_t *groups;
    size_t ngroups, groups_capacity;
} translator;

static int unsupported(translator *t, const char *what)
{
    return PL_FAIL(
        t->err, PL_EUNSUPPORTED, "%s: the pattern %.300s has %s, which is not supported", t->where, t->pattern, what);
}

static char look(const translator *t, size_t ahead)
{
    return t->at + ahead < t->size ? t->pattern[t->at + ahead] : 0;
}

static int copy(translator *t, size_t count)
{
    if (count > t->size - t->at) count = t->size - t->at;
    PL_TRY(pl_buf_append(t->err, &t->out, t->pattern + t->at, count));
    t->at += count;
    return 0;
}

static int replace(translator *t, size_t count, const char *by)
{
    t->at += count;
    return pl_buf_puts(t->err, &t->out, by);
}

/* \p{..}: the name of a script means the script alone there, and its extensions too in PCRE2. */
static int translate_property(translator *t)
{
    const char *close = memchr(t->pattern + t->at, '}', t->size - t->at);
    if (look(t, 2) != '{' || !close) return copy(t, 3);
    PL_TRY(copy(t, look(t, 3) == '^' ? 4 : 3));
    size_t name = (size_t)(close - t->pattern) - t->at;
    bool category = name <= 2 || (name == 3 && !memcmp(t->pattern + t->at, "Any", 3));
    if (!category) PL_TRY(pl_buf_puts(t->err, &t->out, "sc:"));
    return copy(t, name + 1);
}

/* A backslash and what belongs to it. */
static int translate_escape(translator *t, bool in_class)
{
    char c = look(t, 1);
    switch (c) {
    case 's': return replace(t, 2, in_class ? SPACE : "[" SPACE "]");
    case 'S': return replace(t, 2, in_class ? NOT_SPACE : "[^" SPACE "]");
    case 'w': return replace(t, 2, in_class ? WORD : "[" WORD "]");
    case 'h': return replace(t, 2, in_class ? "0-9A-Fa-f" : "[0-9A-Fa-f]");
    case 'W': return in_class ? unsupported(t, "\\W in a class") : replace(t, 2, "[^" WORD "]");
    case 'H': return in_class ? unsupported(t, "\\H in a class") : replace(t, 2, "[^0-9A-Fa-f]");
    case 'v': return replace(t, 2, "\\x{B}");
    case 'b':
        if (in_class) return copy(t, 2);
        return replace(t, 2, "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))");
    case 'B': return replace(t, 2, "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))");
    case 'u': {
        for (size_t i = 2; i < 6; i++) {
            if (!look(t, i) || !strchr("0123456789abcdefABCDEF", look(t, i)))
                return unsupported(t, "\\u without four digits");
        }
        PL_TRY(pl_buf_printf(t->err, &t->out, "\\x{%.4s}", t->pattern + t->at + 2));
        t->at += 6;
        return 0;
    }
    case 'p':
    case 'P': return translate_property(t);
    case 'x': {
        const char *brace = look(t, 2) == '{' ? memchr(t->pattern + t->at, '}', t->size - t->at) : NULL;
        return copy(t, brace ? (size_t)(brace - t->pattern) - t->at + 1 : 2);
    }
    case 'd':
    case 'D':
    case 'A':
    case 'z':
    case 'Z':
    case 'G':
    case 'R':
    case 'X':
    case 'n':
    case 'r':
    case 't':
    case 'f':
    case 'a':
    case 'e': return copy(t, 2);
    default: break;
    }
    if (!c) return unsupported(t, "a lone backslash");
    if ((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) {
        char what[] = "\\?";
        what[1] = c;
        return unsupported(t, what);
    }
    return copy(t, 1 + pl_utf8_length((unsigned char)c));
}

static int translate_class(translator *t)
{
    PL_TRY(copy(t, 1));
    if (look(t, 0) == '^') PL_TRY(copy(t, 1));
    if (look(t, 0) == ']') PL_TRY(replace(t, 1, "\\]"));
    while (t->at < t->size && look(t, 0) != ']') {
        if (look(t, 0) == '\\') {
            PL_TRY(translate_escape(t, true));
        } else if (look(t, 0) == '[' && look(t, 1) == ':') {
            return unsupported(t, "a [: :] class");
        } else if (look(t, 0) == '[') {
            return unsupported(t, "a class inside a class");
        } else if (look(t, 0) == '&' && look(t, 1) == '&') {
            return unsupported(t, "an intersection of classes");
        } else {
            PL_TRY(copy(t, 1));
        }
    }
    return copy(t, 1);
}

static int open_group(translator *t)
{
    if (look(t, 1) == '*') return unsupported(t, "(*");
    if (look(t, 1) == '?' && (!look(t, 2) || !strchr(":=!><i", look(t, 2))))
        return unsupported(t, "a group of that kind");
    if (look(t, 2) == 'i' && look(t, 1) == '?' && look(t, 3) != ':' && (t->at || look(t, 3) != ')')) {
        return unsupported(t, "options other than (?i: )");
    }
    PL_TRY(pl_grow(t->err, &t->groups, &t->groups_capacity, t->ngroups + 1, sizeof *t->groups));
    t->groups[t->ngroups++] = t->out.size;
    size_t n = 1;
    if (look(t, 1) == '?') { /* with its kind, which must not be taken for a quantifier */
        n = 3;
        if (look(t, 2) == '<' && (look(t, 3) == '=' || look(t, 3) == '!')) n = 4;
    }
    return copy(t, n);
}

/* {n,m}; a + behind it means that the whole is repeated. */
static int translate_interval(translator *t)
{
    const char *close = memchr(t->pattern + t->at, '}', t->size - t->at);
    bool comma = close && memchr(t->pattern + t->at, ',', (size_t)(close - t->pattern) - t->at);
    if (look(t, 1) == ',') PL_TRY(replace(t, 1, "{0"));
    PL_TRY(copy(t, close ? (size_t)(close - t->pattern) - t->at + 1 : 1));
    if (close && !comma && look(t, 0) == '?') return unsupported(t, "{n}?");
    if (!close || look(t, 0) != '+') return 0;
    size_t moved = t->out.size - t->atom;
    PL_TRY(pl_buf_puts(t->err, &t->out, "(?:"));
    memmove(t->out.data + t->atom + 3, t->out.data + t->atom, moved);
    memcpy(t->out.data + t->atom, "(?:", 3);
    return replace(t, 1, ")+");
}

static int translate(translator *t)
{
    while (t->at < t->size) {
        char c = look(t, 0);
        size_t begin = t->out.size;
        switch (c) {
        case '\\':
            PL_TRY(translate_escape(t, false));
            t->atom = begin;
            break;
        case '[':
            PL_TRY(translate_class(t));
            t->atom = begin;
            break;
        case '(': PL_TRY(open_group(t)); break;
        case ')':
            if (t->ngroups) t->atom = t->groups[--t->ngroups];
            PL_TRY(copy(t, 1));
            break;
        case '{': PL_TRY(translate_interval(t)); break;
        case '*':
        case '+':
        case '?':
        case '|': PL_TRY(copy(t, 1)); break;
        default: PL_TRY(copy(t, pl_utf8_length((unsigned char)c))); t->atom = begin;
        }
    }
    return 0;
}

static int compile(
    pl_error *err, const char *where, const char *pattern, const char *translated, size_t size, pl_pattern *out)
{
    int code;
    PCRE2_SIZE offset;
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    if (!context) return PL_FAIL_NOMEM(err);
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    /* Oniguruma's ^ and $ are those of lines. */
    out->code = pcre2_compile((PCRE2_SPTR)translated, size,
        PCRE2_UTF | PCRE2_UCP | PCRE2_NO_UTF_CHECK | PCRE2_MULTILINE, &code, &offset, context);
    pcre2_compile_context_free(context);
    if (!out->code) {
        char message[120];
        if (code == PCRE2_ERROR_HEAP_FAILED) return PL_FAIL_NOMEM(err);
        pcre2_get_error_message(code, (PCRE2_UCHAR *)message, sizeof message);
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: the pattern %.300s cannot be compiled: %s", where, pattern, message);
    }
    /* Without a just-in-time compiler for this machine the interpreter does the work. */
    out->jit = pcre2_jit_compile(out->code, PCRE2_JIT_COMPLETE) == 0;
    return 0;
}

int pl_pattern_regex(pl_error *err, const char *where, const char *text, size_t size, pl_pattern *out)
{
    PL_TRY(pl_pattern_literal(err, where, text, size, out));
    translator t = {.err = err, .where = where, .pattern = out->text, .size = size};
    int rc = translate(&t);
    if (rc == 0) rc = compile(err, where, out->text, pl_buf_text(&t.out), t.out.size, out);
    pl_buf_free(&t.out);
    free(t.groups);
    return rc;
}

int pl_pattern_literal(pl_error *err, const char *where, const char *text, size_t size, pl_pattern *out)
{
    if (!size) return PL_FAIL(err, PL_EUNSUPPORTED, "%s: the pattern is empty", where);
    out->size = size;
    return pl_strndup(err, text, size, &out->text);
}

void pl_pattern_free(pl_pattern *pattern)
{
    pcre2_code_free(pattern->code);
    free(pattern->text);
    *pattern = (pl_pattern){0};
}

/* ---- Matching ---- */

enum { STACK_START = 32 * 1024, STACK_LIMIT = 64 * 1024 * 1024 };

void pl_matcher_free(pl_matcher *m)
{
    pcre2_match_data_free(m->data);
    pcre2_match_context_free(m->context);
    pcre2_jit_stack_free(m->stack);
    *m = (pl_matcher){0};
}

static int prepare(pl_error *err, pl_matcher *m, size_t size)
{
    if (!m->data) m->data = pcre2_match_data_create(1, NULL); /* only the whole match is of interest */
    if (!m->context) m->context = pcre2_match_context_create(NULL);
    if (!m->data || !m->context) return PL_FAIL_NOMEM(err);
    /* A pattern may step back over every character of a long text, which is linear and fine. */
    uint64_t limit = 10000000 + 64 * (uint64_t)size;
    pcre2_set_match_limit(m->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
    return 0;
}

static int match(pl_error *err, const pl_pattern *p, pl_matcher *m, const char *text, size_t size, size_t at)
{
    if (!m->data) PL_TRY(prepare(err, m, size));
    int rc = p->jit ? pcre2_jit_match(p->code, (PCRE2_SPTR)text, size, at, 0, m->data, m->context)
                    : pcre2_match(p->code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, m->data, m->context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !m->stack) { /* the machine stack's 32 KiB were not enough */
        m->stack = pcre2_jit_stack_create(STACK_START, STACK_LIMIT, NULL);
        if (!m->stack) return PL_FAIL_NOMEM(err);
        pcre2_jit_stack_assign(m->context, NULL, m->stack);
        rc = pcre2_jit_match(p->code, (PCRE2_SPTR)text, size, at, 0, m->data, m->context);
    }
    if (rc >= 0) return 1;
    if (rc == PCRE2_ERROR_NOMATCH) return 0;
    if (rc == PCRE2_ERROR_NOMEMORY) return PL_FAIL_NOMEM(err);
    char message[120];
    pcre2_get_error_message(rc, (PCRE2_UCHAR *)message, sizeof message);
    return PL_FAIL(
        err, PL_EINPUT, "the tokenizer's pattern %.200s fails on this text at byte %zu: %s", p->text, at, message);
}

int pl_pattern_next(pl_error *err, const pl_pattern *pattern, pl_matcher *matcher, const char *text, size_t size,
    size_t *at, size_t *last, size_t *start, size_t *end)
{
    if (!pattern->code) {
        if (*at > size) return 0;
        const char *found = pattern->size == 1 ? memchr(text + *at, pattern->text[0], size - *at)
                                               : memmem(text + *at, size - *at, pattern->text, pattern->size);
        if (!found) return 0;
        *start = (size_t)(found - text);
        *at = *last = *end = *start + pattern->size;
        return 1;
    }
    while (*at <= size) {
        int rc = match(err, pattern, matcher, text, size, *at);
        if (rc <= 0) return rc;
        const PCRE2_SIZE *span = pcre2_get_ovector_pointer(matcher->data);
        *start = span[0];
        *end = span[1];
        if (*start != *end || *end != *last) {
            *at = *last = *end;
            return 1;
        }
        /* An empty match right behind the last one does not count. */
        *at += *at < size ? pl_utf8_length((unsigned char)text[*at]) : 1;
    }
    return 0;
}
