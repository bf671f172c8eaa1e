/* From a field's value to text. */
#include <math.h>
#include <string.h>

#include "api/field.h"
#include "base/number.h"

int pl_range_print(pl_error *err, const pl_range *range, pl_buf *out)
{
    char min[PL_REAL_TEXT], max[PL_REAL_TEXT];
    pl_print_real(range->min, min);
    pl_print_real(range->max, max);
    bool low = isfinite(range->min), high = isfinite(range->max);
    if (low && !range->above_min && high && !range->below_max) {
        return pl_buf_printf(err, out, "from %s to %s", min, max);
    }
    if (low) PL_TRY(pl_buf_printf(err, out, "%s %s", range->above_min ? "above" : "at least", min));
    if (low && high) PL_TRY(pl_buf_puts(err, out, " and "));
    if (high) PL_TRY(pl_buf_printf(err, out, "%s %s", range->below_max ? "below" : "at most", max));
    return 0;
}

/* A text that YAML would take for something else, or could not read, goes into double quotes. */
static bool is_plain(const char *text)
{
    static const char *const special[] = {"true", "false", "null", "yes", "no", "on", "off", "y", "n", "~", ".", "..."};
    const char *safe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./+-";
    if (*text == 0 || text[strspn(text, safe)] != 0 || strchr("+-", *text)) return false;
    double number;
    if (pl_parse_real(text, &number)) return false;
    for (int i = 0; i < PL_COUNT(special); i++) {
        if (strcasecmp(text, special[i]) == 0) return false;
    }
    return true;
}

static int print_text(pl_error *err, const char *text, pl_buf *out)
{
    if (is_plain(text)) return pl_buf_puts(err, out, text);
    PL_TRY(pl_buf_putc(err, out, '"'));
    for (const char *p = text; *p; p++) {
        unsigned char c = (unsigned char)*p;
        if (c == '"' || c == '\\')
            PL_TRY(pl_buf_printf(err, out, "\\%c", c));
        else if (c == '\n')
            PL_TRY(pl_buf_puts(err, out, "\\n"));
        else if (c == '\t')
            PL_TRY(pl_buf_puts(err, out, "\\t"));
        else if (c < 0x20 || c == 0x7f)
            PL_TRY(pl_buf_printf(err, out, "\\x%02x", c));
        else
            PL_TRY(pl_buf_putc(err, out, (char)c));
    }
    return pl_buf_putc(err, out, '"');
}

static int print_bytes(pl_error *err, int64_t bytes, pl_buf *out)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB"};
    int unit = -1;
    while (unit < 3 && bytes && bytes % 1024 == 0) {
        bytes /= 1024;
        unit++;
    }
    return pl_buf_printf(err, out, "%lld%s", (long long)bytes, unit < 0 ? "" : units[unit]);
}

static int print_real(pl_error *err, double value, pl_buf *out)
{
    char text[PL_REAL_TEXT];
    pl_print_real(value, text);
    return pl_buf_puts(err, out, text);
}

static int print_word(pl_error *err, const char *words, int64_t i, pl_buf *out)
{
    int size;
    const char *word = pl_word(words, (int)i, &size);
    return word ? pl_buf_append(err, out, word, (size_t)size) : PL_FAIL(err, PL_EBUG, "word %d of %s", (int)i, words);
}

static int word_count(const char *words)
{
    int n = 0, size;
    while (words && pl_word(words, n, &size)) n++;
    return n;
}

static int print_list(pl_error *err, const pl_field *field, const void *object, bool yaml, pl_buf *out)
{
    bool text = field->kind == PL_FIELD_FILES || field->kind == PL_FIELD_STRINGS || field->kind == PL_FIELD_NAMES;
    const pl_strings *strings = PL_CONST_MEMBER(pl_strings, field, object);
    const pl_numbers *numbers = PL_CONST_MEMBER(pl_numbers, field, object);
    int count = text ? strings->count : numbers->count;
    /* One regular expression, or "all-linear", is a text and no list, as in PEFT. */
    bool brackets = yaml && !(field->kind == PL_FIELD_NAMES && count == 1);
    if (brackets) PL_TRY(pl_buf_putc(err, out, '['));
    for (int i = 0; i < count; i++) {
        if (i) PL_TRY(pl_buf_puts(err, out, yaml ? ", " : ","));
        if (!text)
            PL_TRY(print_real(err, numbers->items[i], out));
        else if (yaml)
            PL_TRY(print_text(err, strings->items[i], out));
        else
            PL_TRY(pl_buf_puts(err, out, strings->items[i]));
    }
    return brackets ? pl_buf_putc(err, out, ']') : 0;
}

static int print_map(pl_error *err, const pl_field *field, const void *object, bool yaml, pl_buf *out)
{
    const pl_entries *map = PL_CONST_MEMBER(pl_entries, field, object);
    if (yaml) PL_TRY(pl_buf_putc(err, out, '{'));
    for (int i = 0; i < map->count; i++) {
        if (i) PL_TRY(pl_buf_puts(err, out, yaml ? ", " : ","));
        if (yaml) {
            PL_TRY(print_text(err, map->keys[i], out));
            PL_TRY(pl_buf_puts(err, out, ": "));
            bool quoted = field->kind == PL_FIELD_TEXTS;
            PL_TRY(quoted ? print_text(err, map->texts[i], out) : pl_buf_puts(err, out, map->texts[i]));
        } else {
            PL_TRY(pl_buf_printf(err, out, "%s=%s", map->keys[i], map->texts[i]));
        }
    }
    return yaml ? pl_buf_putc(err, out, '}') : 0;
}

static int print(pl_error *err, const pl_field *field, const void *object, bool yaml, pl_buf *out)
{
    if (!pl_field_has_value(field, object)) return yaml ? pl_buf_puts(err, out, "null") : 0;
    switch (field->kind) {
    case PL_FIELD_TEXT:
    case PL_FIELD_FILE:
    case PL_FIELD_FOLDER: {
        const char *text = *PL_CONST_MEMBER(char *, field, object);
        bool word = field->words && pl_word_index(field->words, text) >= 0;
        return yaml && !word ? print_text(err, text, out) : pl_buf_puts(err, out, text);
    }
    case PL_FIELD_SWITCH: return pl_buf_puts(err, out, *PL_CONST_MEMBER(bool, field, object) ? "true" : "false");
    case PL_FIELD_INT: {
        int64_t value = *PL_CONST_MEMBER(int64_t, field, object);
        if (value >= 0 && value < word_count(field->words)) return print_word(err, field->words, value, out);
        return pl_buf_printf(err, out, "%lld", (long long)value);
    }
    case PL_FIELD_REAL: return print_real(err, *PL_CONST_MEMBER(double, field, object), out);
    case PL_FIELD_BYTES: return print_bytes(err, *PL_CONST_MEMBER(int64_t, field, object), out);
    case PL_FIELD_WORD: return print_word(err, field->words, *PL_CONST_MEMBER(int, field, object), out);
    case PL_FIELD_FILES:
    case PL_FIELD_STRINGS:
    case PL_FIELD_NAMES:
    case PL_FIELD_INTS:
    case PL_FIELD_REALS: return print_list(err, field, object, yaml, out);
    case PL_FIELD_TEXTS:
    case PL_FIELD_INT_MAP:
    case PL_FIELD_REAL_MAP: return print_map(err, field, object, yaml, out);
    }
    return 0;
}

int pl_field_print_yaml(pl_error *err, const pl_field *field, const void *object, pl_buf *out)
{
    return print(err, field, object, true, out);
}

int pl_field_print_flag(pl_error *err, const pl_field *field, const void *object, pl_buf *out)
{
    return print(err, field, object, false, out);
}

int pl_field_metavar(pl_error *err, const pl_field *field, pl_buf *out)
{
    switch (field->kind) {
    case PL_FIELD_TEXT: return pl_buf_puts(err, out, field->words ? field->words : "TEXT");
    case PL_FIELD_FILE:
        return pl_buf_printf(err, out, "%s%sFILE", field->words ? field->words : "", field->words ? "|" : "");
    case PL_FIELD_FOLDER: return pl_buf_puts(err, out, "DIR");
    case PL_FIELD_FILES: return pl_buf_puts(err, out, "FILE");
    case PL_FIELD_STRINGS: return pl_buf_puts(err, out, "TEXT");
    case PL_FIELD_NAMES:
        return pl_buf_printf(err, out, "%s%sA,B", field->words ? field->words : "", field->words ? "|" : "");
    case PL_FIELD_SWITCH: return pl_buf_puts(err, out, "true|false");
    case PL_FIELD_INT:
        return pl_buf_printf(err, out, "%s%sN", field->words ? field->words : "", field->words ? "|" : "");
    case PL_FIELD_REAL: return pl_buf_puts(err, out, "X");
    case PL_FIELD_BYTES: return pl_buf_puts(err, out, "SIZE");
    case PL_FIELD_WORD: return pl_buf_puts(err, out, field->words);
    case PL_FIELD_INTS: return pl_buf_puts(err, out, "N,N");
    case PL_FIELD_REALS: return pl_buf_puts(err, out, "X,X");
    case PL_FIELD_TEXTS: return pl_buf_puts(err, out, "NAME=TEXT");
    case PL_FIELD_INT_MAP: return pl_buf_puts(err, out, "NAME=N");
    case PL_FIELD_REAL_MAP: return pl_buf_puts(err, out, "NAME=X");
    }
    return 0;
}
