/* Character classes and normal forms, over utf8proc's tables. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

static bool has_category(int32_t c, unsigned long set)
{
    return set >> utf8proc_category(c) & 1;
}

#define CATEGORY(name) (1UL << UTF8PROC_CATEGORY_##name)

bool pl_char_is_whitespace(int32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
           c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool pl_char_is_numeric(int32_t c)
{
    return c < 128 ? c >= '0' && c <= '9' : has_category(c, CATEGORY(ND) | CATEGORY(NL) | CATEGORY(NO));
}

bool pl_char_is_punctuation(int32_t c)
{
    if (c < 128) return (c >= 33 && c <= 47) || (c >= 58 && c <= 64) || (c >= 91 && c <= 96) || (c >= 123 && c <= 126);
    return has_category(
        c, CATEGORY(PC) | CATEGORY(PD) | CATEGORY(PS) | CATEGORY(PE) | CATEGORY(PI) | CATEGORY(PF) | CATEGORY(PO));
}

bool pl_char_is_mark(int32_t c)
{
    return c >= 128 && has_category(c, CATEGORY(MN) | CATEGORY(MC) | CATEGORY(ME));
}

bool pl_char_is_nonspacing(int32_t c)
{
    return c >= 128 && has_category(c, CATEGORY(MN));
}

bool pl_char_is_other(int32_t c)
{
    return has_category(c, CATEGORY(CC) | CATEGORY(CF) | CATEGORY(CO));
}

bool pl_char_is_word(int32_t c)
{
    if (c < 128) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    return has_category(c, CATEGORY(LU) | CATEGORY(LL) | CATEGORY(LT) | CATEGORY(LM) | CATEGORY(LO) | CATEGORY(MN) |
                               CATEGORY(MC) | CATEGORY(ME) | CATEGORY(ND) | CATEGORY(NL) | CATEGORY(PC)) ||
           c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) || (c >= 0x1F130 && c <= 0x1F149) ||
           (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

bool pl_char_is_chinese(int32_t c)
{
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) ||
           (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

size_t pl_char_lower(int32_t c, int32_t out[3])
{
    out[0] = utf8proc_tolower(c);
    if (c != 0x130) return 1; /* I with a dot above is the one character whose lower case is two */
    out[0] = 'i';
    out[1] = 0x307;
    return 2;
}

int32_t pl_byte_char(unsigned char byte)
{
    if ((byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174) return byte;
    /* The others, in order, are moved to 256 and on. */
    return byte <= 32 ? 256 + byte : byte <= 160 ? 256 + 33 + (byte - 127) : 256 + 33 + 34;
}

int pl_char_byte(int32_t c)
{
    if ((c >= 33 && c <= 126) || (c >= 161 && c <= 172) || (c >= 174 && c <= 255)) return c;
    if (c < 256 || c > 256 + 67) return -1;
    c -= 256;
    return c <= 32 ? c : c <= 66 ? c - 33 + 127 : 173;
}

/* ---- Normal forms (Unicode Standard Annex 15) ---- */

enum { MAX_DECOMPOSED = 32, TABLE_END = 0x30000 }; /* no character beyond that decomposes, combines or is combined */

static int combining_class(int32_t c)
{
    return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

static size_t decompose(pl_form form, int32_t c, int32_t out[MAX_DECOMPOSED])
{
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (form == PL_NFKC || form == PL_NFKD ? UTF8PROC_COMPAT : 0);
    int boundary = UTF8PROC_BOUNDCLASS_START;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, out, MAX_DECOMPOSED, (utf8proc_option_t)options, &boundary);
    if (n >= 1 && n <= MAX_DECOMPOSED) return (size_t)n;
    out[0] = c;
    return 1;
}

/* The composition of two characters, or -1. */
static int32_t compose(int32_t a, int32_t b)
{
    int32_t pair[2] = {a, b};
    return utf8proc_normalize_utf32(pair, 2, UTF8PROC_COMPOSE | UTF8PROC_STABLE) == 1 ? pair[0] : -1;
}

int pl_form_table_make(pl_error *err, pl_form form, pl_form_table *table)
{
    int32_t parts[MAX_DECOMPOSED];
    PL_TRY(pl_calloc(err, 0x110000 / 8, 1, &table->unstable));
    for (int32_t c = 0xA0; c < TABLE_END; c++) {
        if (c >= 0xD800 && c <= 0xDFFF) continue;
        bool unstable = combining_class(c) != 0;
        size_t n = decompose(form, c, parts);
        if (n > 1 || parts[0] != c) {
            utf8proc_ssize_t m = (utf8proc_ssize_t)n;
            if (form == PL_NFC || form == PL_NFKC) {
                m = utf8proc_normalize_utf32(parts, m, UTF8PROC_COMPOSE | UTF8PROC_STABLE);
            }
            if (m != 1 || parts[0] != c) unstable = true;
        }
        if (unstable) table->unstable[c >> 3] |= (uint8_t)(1 << (c & 7));
        if (form != PL_NFC && form != PL_NFKC) continue;
        /* What is not first in a canonical decomposition may be combined with a character before it. */
        n = decompose(PL_NFD, c, parts);
        for (size_t i = 1; i < n; i++) table->unstable[parts[i] >> 3] |= (uint8_t)(1 << (parts[i] & 7));
    }
    return 0;
}

static int push_change(pl_error *err, pl_changes *out, int32_t c, int32_t change)
{
    PL_TRY(pl_grow(err, &out->items, &out->capacity, out->count + 1, sizeof *out->items));
    out->items[out->count++] = (pl_change){c, change};
    return 0;
}

/* Canonical order: the marks between two starters by class, equal ones as they stood. Merge sort would be overkill for
   runs of two or three, but a hostile text has long ones, so runs are sorted class by class when they are long. */
static int sort_marks(pl_error *err, pl_change *marks, size_t count)
{
    if (count < 32) {
        for (size_t i = 1; i < count; i++) {
            pl_change mark = marks[i];
            size_t k = i;
            for (; k && combining_class(marks[k - 1].codepoint) > combining_class(mark.codepoint); k--) {
                marks[k] = marks[k - 1];
            }
            marks[k] = mark;
        }
        return 0;
    }
    size_t starts[257] = {0};
    pl_change *sorted;
    PL_TRY(pl_calloc(err, count, sizeof *sorted, &sorted));
    for (size_t i = 0; i < count; i++) starts[combining_class(marks[i].codepoint) + 1]++;
    for (int c = 0; c < 256; c++) starts[c + 1] += starts[c];
    for (size_t i = 0; i < count; i++) sorted[starts[combining_class(marks[i].codepoint)]++] = marks[i];
    memcpy(marks, sorted, count * sizeof *marks);
    free(sorted);
    return 0;
}

/* In place; the result is not longer. */
static size_t compose_all(pl_change *items, size_t count)
{
    size_t n = 0, starter = SIZE_MAX;
    int last = -1; /* class of the last mark that stayed between the starter and here; -1: none did */
    for (size_t i = 0; i < count; i++) {
        pl_change item = items[i];
        int class = combining_class(item.codepoint);
        if (starter != SIZE_MAX && class > last) {
            int32_t c = compose(items[starter].codepoint, item.codepoint);
            if (c >= 0) {
                items[starter].codepoint = c;
                items[starter].change += item.change - 1;
                continue;
            }
        }
        if (class == 0) {
            starter = n;
            last = -1;
        } else if (starter != SIZE_MAX) {
            last = class;
        }
        items[n++] = item;
    }
    return n;
}

int pl_form_apply(pl_error *err, pl_form form, const char *text, size_t size, pl_changes *out)
{
    size_t first = out->count, marks = out->count;
    int32_t parts[MAX_DECOMPOSED];
    for (size_t at = 0; at < size;) {
        size_t n = decompose(form, pl_utf8_next(text, &at), parts);
        for (size_t i = 0; i < n; i++) {
            PL_TRY(push_change(err, out, parts[i], i > 0));
            if (combining_class(parts[i])) continue;
            PL_TRY(sort_marks(err, out->items + marks, out->count - 1 - marks));
            marks = out->count;
        }
    }
    PL_TRY(sort_marks(err, out->items + marks, out->count - marks));
    if (form == PL_NFC || form == PL_NFKC) out->count = first + compose_all(out->items + first, out->count - first);
    return 0;
}
