/* Characters of templates' strings: UTF-8, white space, letters and case as Python's str has them. */
#include <string.h>
#include <utf8proc.h>

#include "data/template_internal.h"

size_t pl_tchar_size(unsigned char first)
{
    return first < 0xc0 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

/* UINT32_MAX for bytes that are not UTF-8, of which one is used. */
uint32_t pl_tchar(const char *bytes, size_t size, size_t *used)
{
    utf8proc_int32_t c;
    if (size && (unsigned char)bytes[0] < 0x80) {
        *used = 1;
        return (unsigned char)bytes[0];
    }
    utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)bytes, size > 4 ? 4 : (utf8proc_ssize_t)size, &c);
    *used = n > 0 ? (size_t)n : 1;
    return n > 0 ? (uint32_t)c : UINT32_MAX;
}

int pl_tchar_put(pl_error *err, pl_buf *out, uint32_t c)
{
    utf8proc_uint8_t bytes[4];
    utf8proc_ssize_t n = utf8proc_encode_char((utf8proc_int32_t)c, bytes);
    return pl_buf_append(err, out, bytes, (size_t)n);
}

int64_t pl_tstring_chars(pl_tstring *s)
{
    if (s->chars >= 0) return s->chars;
    int64_t n = 0;
    for (size_t i = 0; i < s->size; i++) n += ((unsigned char)s->bytes[i] & 0xc0) != 0x80;
    s->chars = n;
    return n;
}

size_t pl_tstring_offset(pl_tstring *s, int64_t index)
{
    if (pl_tstring_chars(s) == (int64_t)s->size) return (size_t)index; /* ASCII */
    size_t at = 0;
    for (; index > 0 && at < s->size; index--) at += pl_tchar_size((unsigned char)s->bytes[at]);
    return at < s->size ? at : s->size;
}

bool pl_tspace(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13) || (c >= 0x1c && c <= 0x1f);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool pl_tprintable(uint32_t c)
{
    if (c < 0x7f) return c >= ' ';
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
    case UTF8PROC_CATEGORY_ZS: return false;
    default: return true;
    }
}

/* c is one of `chars`, or white space if that is NULL. */
static bool strippable(uint32_t c, const pl_tstring *chars)
{
    if (!chars) return pl_tspace(c);
    for (size_t at = 0, used; at < chars->size; at += used)
        if (pl_tchar(chars->bytes + at, chars->size - at, &used) == c) return true;
    return false;
}

void pl_tstrip(const pl_tstring *s, const pl_tstring *chars, bool left, bool right, size_t *begin, size_t *end)
{
    size_t used;
    *begin = 0;
    *end = s->size;
    while (left && *begin < *end && strippable(pl_tchar(s->bytes + *begin, *end - *begin, &used), chars))
        *begin += used;
    while (right && *end > *begin) {
        size_t at = *end - 1;
        while (at > *begin && ((unsigned char)s->bytes[at] & 0xc0) == 0x80) at--;
        if (!strippable(pl_tchar(s->bytes + at, *end - at, &used), chars)) break;
        *end = at;
    }
}

static bool is_cased(uint32_t c)
{
    utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
    return k == UTF8PROC_CATEGORY_LU || k == UTF8PROC_CATEGORY_LL || k == UTF8PROC_CATEGORY_LT ||
           utf8proc_toupper((utf8proc_int32_t)c) != (utf8proc_int32_t)c ||
           utf8proc_tolower((utf8proc_int32_t)c) != (utf8proc_int32_t)c;
}

/* Letters whose upper case is several letters (Unicode's SpecialCasing.txt, the unconditional ones in use). */
static const struct {
    uint32_t from, upper[3], title[3];
} special_cases[] = {{0x00df, {'S', 'S'}, {'S', 's'}}, {0x0149, {0x2bc, 'N'}, {0x2bc, 'N'}},
    {0x01f0, {'J', 0x30c}, {'J', 0x30c}}, {0x0390, {0x399, 0x308, 0x301}, {0x399, 0x308, 0x301}},
    {0x03b0, {0x3a5, 0x308, 0x301}, {0x3a5, 0x308, 0x301}}, {0x0587, {0x535, 0x552}, {0x535, 0x582}},
    {0x1e96, {'H', 0x331}, {'H', 0x331}}, {0x1e97, {'T', 0x308}, {'T', 0x308}}, {0x1e98, {'W', 0x30a}, {'W', 0x30a}},
    {0x1e99, {'Y', 0x30a}, {'Y', 0x30a}}, {0x1e9a, {'A', 0x2be}, {'A', 0x2be}}, {0xfb00, {'F', 'F'}, {'F', 'f'}},
    {0xfb01, {'F', 'I'}, {'F', 'i'}}, {0xfb02, {'F', 'L'}, {'F', 'l'}}, {0xfb03, {'F', 'F', 'I'}, {'F', 'f', 'i'}},
    {0xfb04, {'F', 'F', 'L'}, {'F', 'f', 'l'}}, {0xfb05, {'S', 'T'}, {'S', 't'}}, {0xfb06, {'S', 'T'}, {'S', 't'}}};

static int put_upper(pl_error *err, pl_buf *out, uint32_t c, bool title)
{
    for (int k = 0; c >= 0xdf && k < PL_COUNT(special_cases); k++) {
        if (special_cases[k].from != c) continue;
        const uint32_t *to = title ? special_cases[k].title : special_cases[k].upper;
        for (int i = 0; i < 3 && to[i]; i++) PL_TRY(pl_tchar_put(err, out, to[i]));
        return 0;
    }
    return pl_tchar_put(
        err, out, (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)c) : utf8proc_toupper((utf8proc_int32_t)c)));
}

/* A capital sigma at the end of a word becomes a final one. */
static bool final_sigma(const pl_tstring *s, size_t at, size_t after, bool cased_before)
{
    size_t used;
    (void)at;
    if (!cased_before) return false;
    while (after < s->size) {
        uint32_t c = pl_tchar(s->bytes + after, s->size - after, &used);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        bool ignorable = k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_ME || k == UTF8PROC_CATEGORY_CF ||
                         k == UTF8PROC_CATEGORY_LM || k == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' ||
                         c == 0x2019;
        if (!ignorable) return !is_cased(c);
        after += used;
    }
    return true;
}

static int put_lower(pl_error *err, pl_buf *out, uint32_t c, bool final)
{
    if (c == 0x130) {
        PL_TRY(pl_buf_putc(err, out, 'i'));
        c = 0x307;
    }
    return pl_tchar_put(err, out, c == 0x3a3 && final ? 0x3c2 : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
}

/* Where Jinja's title filter starts a word. */
static bool jinja_break(uint32_t c)
{
    return c == '-' || c == '(' || c == '{' || c == '[' || c == '<' || pl_tspace(c);
}

static int map_case(pl_trun *run, const pl_tstring *s, enum pl_tcase how, pl_buf *out)
{
    bool cased_before = false, start = true;
    for (size_t at = 0, used; at < s->size; at += used) {
        uint32_t c = pl_tchar(s->bytes + at, s->size - at, &used);
        bool cased = is_cased(c), upper = false, title = false;
        switch (how) {
        case PL_T_UPPER: upper = true; break;
        case PL_T_LOWER: break;
        case PL_T_TITLE: upper = title = !cased_before; break;
        case PL_T_CAPITALIZE: upper = title = start; break;
        case PL_T_SWAPCASE: upper = utf8proc_category((utf8proc_int32_t)c) == UTF8PROC_CATEGORY_LL; break;
        case PL_T_JINJA_TITLE: upper = start; break;
        }
        if (upper)
            PL_TRY(put_upper(run->err, out, c, title));
        else
            PL_TRY(put_lower(run->err, out, c, c == 0x3a3 && final_sigma(s, at, at + used, cased_before)));
        cased_before = cased;
        start = how == PL_T_JINJA_TITLE && jinja_break(c);
    }
    return 0;
}

int pl_tcase_map(pl_trun *run, pl_tstring *s, enum pl_tcase how, pl_tvalue *out)
{
    pl_buf buf = {0};
    PL_TRY(pl_twork(run, s->size * 16));
    int rc = map_case(run, s, how, &buf);
    return pl_tstring_take(run, &buf, rc, out);
}

bool pl_tstring_is(const pl_tstring *s, enum pl_tclass what)
{
    bool some = false;
    for (size_t at = 0, used; at < s->size; at += used) {
        uint32_t c = pl_tchar(s->bytes + at, s->size - at, &used);
        utf8proc_category_t k = utf8proc_category((utf8proc_int32_t)c);
        bool letter = k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_LO, digit = k == UTF8PROC_CATEGORY_ND;
        bool upper = k == UTF8PROC_CATEGORY_LU, lower = k == UTF8PROC_CATEGORY_LL;
        switch (what) {
        case PL_T_ISALPHA:
            if (!letter) return false;
            some = true;
            break;
        case PL_T_ISDIGIT:
            if (!digit) return false;
            some = true;
            break;
        case PL_T_ISALNUM:
            if (!letter && k != UTF8PROC_CATEGORY_ND && k != UTF8PROC_CATEGORY_NL && k != UTF8PROC_CATEGORY_NO)
                return false;
            some = true;
            break;
        case PL_T_ISSPACE:
            if (!pl_tspace(c)) return false;
            some = true;
            break;
        case PL_T_ISUPPER:
            if (lower || k == UTF8PROC_CATEGORY_LT) return false;
            some |= upper;
            break;
        case PL_T_ISLOWER:
            if (upper || k == UTF8PROC_CATEGORY_LT) return false;
            some |= lower;
            break;
        }
    }
    return some;
}

int pl_thtml_escape(pl_trun *run, const pl_tstring *s, pl_buf *out)
{
    PL_TRY(pl_twork(run, s->size));
    for (size_t i = 0; i < s->size; i++) {
        switch (s->bytes[i]) {
        case '&': PL_TRY(pl_buf_puts(run->err, out, "&amp;")); break;
        case '<': PL_TRY(pl_buf_puts(run->err, out, "&lt;")); break;
        case '>': PL_TRY(pl_buf_puts(run->err, out, "&gt;")); break;
        case '"': PL_TRY(pl_buf_puts(run->err, out, "&#34;")); break;
        case '\'': PL_TRY(pl_buf_puts(run->err, out, "&#39;")); break;
        default: PL_TRY(pl_buf_putc(run->err, out, s->bytes[i]));
        }
    }
    return 0;
}
