/* Values as text: Python's str() and repr(), and json.dumps(). */
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "data/template_internal.h"

/* The shortest digits that give f back, in exponent form when Python writes it so. */
int pl_tfloat_repr(pl_trun *run, double f, pl_buf *out)
{
    if (isnan(f)) return pl_buf_puts(run->err, out, "nan");
    if (isinf(f)) return pl_buf_puts(run->err, out, f < 0 ? "-inf" : "inf");
    char text[PL_REAL_TEXT], digits[PL_REAL_TEXT];
    pl_print_real(fabs(f), text); /* 1250 or 0.00125 or 1.25e+30: from this the digits and where their point is */
    const char *e = strchr(text, 'e'), *point = strchr(text, '.'), *end = e ? e : text + strlen(text);
    int n = 0, exponent = (int)((point ? point : end) - text) - 1 + (e ? atoi(e + 1) : 0), zeros = 0;
    for (const char *c = text; c < end; c++) {
        if (*c == '.') continue;
        if (n == 0 && *c == '0')
            zeros++;
        else
            digits[n++] = *c;
    }
    while (n > 1 && digits[n - 1] == '0') n--;
    if (n == 0)
        digits[n++] = '0', exponent = 0; /* zero itself */
    else
        exponent -= zeros;
    if (signbit(f)) PL_TRY(pl_buf_putc(run->err, out, '-'));
    if (exponent < -4 || exponent >= 16) {
        PL_TRY(pl_buf_append(run->err, out, digits, 1));
        if (n > 1) PL_TRY(pl_buf_printf(run->err, out, ".%.*s", n - 1, digits + 1));
        return pl_buf_printf(run->err, out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    }
    if (exponent < 0) PL_TRY(pl_buf_printf(run->err, out, "0.%.*s", -exponent - 1, "0000"));
    for (int i = 0; i < n || i <= exponent; i++) {
        PL_TRY(pl_buf_putc(run->err, out, i < n ? digits[i] : '0'));
        if (i == exponent) PL_TRY(pl_buf_putc(run->err, out, '.'));
    }
    return exponent >= 0 && n <= exponent + 1 ? pl_buf_putc(run->err, out, '0') : 0;
}

static int string_repr(pl_trun *run, const pl_tstring *s, pl_buf *out)
{
    pl_error *err = run->err;
    char quote = memchr(s->bytes, '\'', s->size) && !memchr(s->bytes, '"', s->size) ? '"' : '\'';
    PL_TRY(pl_buf_putc(err, out, quote));
    for (size_t at = 0, used; at < s->size; at += used) {
        uint32_t c = pl_tchar(s->bytes + at, s->size - at, &used);
        if (c == (uint32_t)quote || c == '\\')
            PL_TRY(pl_buf_printf(err, out, "\\%c", (char)c));
        else if (c == '\n' || c == '\r' || c == '\t')
            PL_TRY(pl_buf_puts(err, out, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t"));
        else if (pl_tprintable(c))
            PL_TRY(pl_buf_append(err, out, s->bytes + at, used));
        else
            PL_TRY(pl_buf_printf(err, out, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c));
    }
    return pl_buf_putc(err, out, quote);
}

static int list_repr(pl_trun *run, const pl_tlist *list, pl_buf *out)
{
    pl_error *err = run->err;
    if (list->flavour == PL_T_RANGE) {
        int64_t first = list->count ? list->items[0].i : 0, step = list->count > 1 ? list->items[1].i - first : 1;
        PL_TRY(pl_buf_printf(err, out, "range(%" PRId64 ", %" PRId64, first, first + step * (int64_t)list->count));
        return step == 1 ? pl_buf_putc(err, out, ')') : pl_buf_printf(err, out, ", %" PRId64 ")", step);
    }
    if (list->flavour == PL_T_GENERATOR)
        return PL_TFAIL(
            run, PL_EINPUT, "a generator is printed here; put it through the filter 'list' or 'join' first");
    if (list->name) PL_TRY(pl_buf_printf(err, out, "%s(", list->name));
    PL_TRY(pl_buf_putc(err, out, list->flavour == PL_T_TUPLE ? '(' : '['));
    for (size_t i = 0; i < list->count; i++) {
        if (i) PL_TRY(pl_buf_puts(err, out, ", "));
        PL_TRY(pl_tvalue_repr(run, list->items[i], out));
    }
    if (list->flavour == PL_T_TUPLE)
        PL_TRY(pl_buf_puts(err, out, list->count == 1 ? ",)" : ")"));
    else
        PL_TRY(pl_buf_putc(err, out, ']'));
    return list->name ? pl_buf_putc(err, out, ')') : 0;
}

static int dict_repr(pl_trun *run, const pl_tdict *dict, pl_buf *out)
{
    PL_TRY(pl_buf_putc(run->err, out, '{'));
    for (size_t i = 0; i < dict->count; i++) {
        if (i) PL_TRY(pl_buf_puts(run->err, out, ", "));
        PL_TRY(pl_tvalue_repr(run, dict->keys[i], out));
        PL_TRY(pl_buf_puts(run->err, out, ": "));
        PL_TRY(pl_tvalue_repr(run, dict->values[i], out));
    }
    return pl_buf_putc(run->err, out, '}');
}

static int repr(pl_trun *run, pl_tvalue v, pl_buf *out)
{
    switch (v.kind) {
    case PL_T_NONE: return pl_buf_puts(run->err, out, "None");
    case PL_T_UNDEFINED: return pl_buf_puts(run->err, out, "Undefined");
    case PL_T_BOOL: return pl_buf_puts(run->err, out, v.b ? "True" : "False");
    case PL_T_INT: return pl_buf_printf(run->err, out, "%" PRId64, v.i);
    case PL_T_FLOAT: return pl_tfloat_repr(run, v.f, out);
    case PL_T_STRING:
        if (!v.note) return string_repr(run, v.s, out);
        PL_TRY(pl_buf_puts(run->err, out, "Markup("));
        PL_TRY(string_repr(run, v.s, out));
        return pl_buf_putc(run->err, out, ')');
    case PL_T_LIST: return list_repr(run, v.list, out);
    case PL_T_DICT: return dict_repr(run, v.dict, out);
    case PL_T_NAMESPACE:
        PL_TRY(pl_buf_puts(run->err, out, "<Namespace "));
        PL_TRY(dict_repr(run, v.dict, out));
        return pl_buf_putc(run->err, out, '>');
    default: return PL_TFAIL(run, PL_EINPUT, "a %s is printed here; was it meant to be called?", pl_tvalue_type(v));
    }
}

int pl_tvalue_repr(pl_trun *run, pl_tvalue v, pl_buf *out)
{
    size_t before = out->size;
    PL_TRY(pl_tenter(run));
    int rc = repr(run, v, out);
    pl_tleave(run);
    if (rc < 0) return rc;
    if (out->size > run->arena.limit)
        return PL_TFAIL(run, PL_ENOMEM, "this makes more than %zu MiB of text", run->arena.limit >> 20);
    return pl_twork(run, v.kind == PL_T_STRING ? out->size - before : 0);
}

int pl_tvalue_print(pl_trun *run, pl_tvalue v, pl_buf *out)
{
    if (v.kind == PL_T_STRING) return pl_buf_append(run->err, out, v.s->bytes, v.s->size);
    if (v.kind == PL_T_UNDEFINED) return 0;
    return pl_tvalue_repr(run, v, out);
}

int pl_tvalue_text(pl_trun *run, pl_tvalue v, pl_tstring **out)
{
    pl_tvalue text = v;
    if (v.kind != PL_T_STRING) {
        pl_buf buf = {0};
        int rc = pl_tvalue_print(run, v, &buf);
        PL_TRY(pl_tstring_take(run, &buf, rc, &text));
    }
    *out = text.s;
    return 0;
}

/* ---- json.dumps ---- */

static int dump_string(pl_trun *run, const pl_tstring *s, bool ascii, pl_buf *out)
{
    static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
    pl_error *err = run->err;
    PL_TRY(pl_buf_putc(err, out, '"'));
    for (size_t at = 0, used; at < s->size; at += used) {
        uint32_t c = pl_tchar(s->bytes + at, s->size - at, &used);
        const char *simple = c && c < 0x80 ? strchr(from, (int)c) : NULL;
        if (simple)
            PL_TRY(pl_buf_printf(err, out, "\\%c", to[simple - from]));
        else if (c < 0x20 || (ascii && c > 0x7e && c < 0x10000))
            PL_TRY(pl_buf_printf(err, out, "\\u%04x", c));
        else if (ascii && c >= 0x10000)
            PL_TRY(pl_buf_printf(
                err, out, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff)));
        else
            PL_TRY(pl_buf_append(err, out, s->bytes + at, used));
    }
    return pl_buf_putc(err, out, '"');
}

static int dump_float(pl_trun *run, double f, pl_buf *out)
{
    if (isnan(f)) return pl_buf_puts(run->err, out, "NaN");
    if (isinf(f)) return pl_buf_puts(run->err, out, f < 0 ? "-Infinity" : "Infinity");
    return pl_tfloat_repr(run, f, out);
}

static int dump_break(pl_trun *run, const pl_tjson *how, int level, pl_buf *out)
{
    if (!how->indent) return 0;
    PL_TRY(pl_buf_putc(run->err, out, '\n'));
    for (int i = 0; i < level; i++) PL_TRY(pl_buf_append(run->err, out, how->indent->bytes, how->indent->size));
    return pl_twork(run, (size_t)level * how->indent->size);
}

static int dump_list(pl_trun *run, const pl_tlist *list, const pl_tjson *how, int level, pl_buf *out)
{
    if (list->count == 0) return pl_buf_puts(run->err, out, "[]");
    PL_TRY(pl_buf_putc(run->err, out, '['));
    for (size_t i = 0; i < list->count; i++) {
        if (i) PL_TRY(pl_buf_append(run->err, out, how->item_separator->bytes, how->item_separator->size));
        PL_TRY(dump_break(run, how, level + 1, out));
        PL_TRY(pl_tvalue_json(run, list->items[i], how, level + 1, out));
    }
    PL_TRY(dump_break(run, how, level, out));
    return pl_buf_putc(run->err, out, ']');
}

static int dump_key(pl_trun *run, pl_tvalue key, const pl_tjson *how, pl_buf *out)
{
    if (key.kind == PL_T_STRING) return dump_string(run, key.s, how->ascii, out);
    if (key.kind != PL_T_BOOL && key.kind != PL_T_INT && key.kind != PL_T_FLOAT && key.kind != PL_T_NONE)
        return PL_TFAIL(
            run, PL_EINPUT, "tojson: keys must be strings, numbers, booleans or none, not %s", pl_tvalue_type(key));
    PL_TRY(pl_buf_putc(run->err, out, '"'));
    PL_TRY(pl_tvalue_json(run, key, how, 0, out));
    return pl_buf_putc(run->err, out, '"');
}

static int dump_dict(pl_trun *run, const pl_tdict *dict, const pl_tjson *how, int level, pl_buf *out)
{
    if (dict->count == 0) return pl_buf_puts(run->err, out, "{}");
    size_t *order;
    PL_TRY(pl_talloc(run, dict->count, sizeof *order, &order));
    for (size_t i = 0; i < dict->count; i++) {
        size_t at = i;
        bool less = how->sort_keys;
        while (less && at > 0) {
            PL_TRY(pl_tcompare_values(run, PL_T_LT, dict->keys[i], dict->keys[order[at - 1]], &less));
            if (less) order[at] = order[at - 1], at--;
        }
        order[at] = i;
    }
    PL_TRY(pl_buf_putc(run->err, out, '{'));
    for (size_t i = 0; i < dict->count; i++) {
        if (i) PL_TRY(pl_buf_append(run->err, out, how->item_separator->bytes, how->item_separator->size));
        PL_TRY(dump_break(run, how, level + 1, out));
        PL_TRY(dump_key(run, dict->keys[order[i]], how, out));
        PL_TRY(pl_buf_append(run->err, out, how->key_separator->bytes, how->key_separator->size));
        PL_TRY(pl_tvalue_json(run, dict->values[order[i]], how, level + 1, out));
    }
    PL_TRY(dump_break(run, how, level, out));
    return pl_buf_putc(run->err, out, '}');
}

int pl_tvalue_json(pl_trun *run, pl_tvalue v, const pl_tjson *how, int level, pl_buf *out)
{
    int rc;
    PL_TRY(pl_twork(run, v.kind == PL_T_STRING ? v.s->size : 0));
    if (out->size > run->arena.limit)
        return PL_TFAIL(run, PL_ENOMEM, "this makes more than %zu MiB of text", run->arena.limit >> 20);
    switch (v.kind) {
    case PL_T_NONE: return pl_buf_puts(run->err, out, "null");
    case PL_T_BOOL: return pl_buf_puts(run->err, out, v.b ? "true" : "false");
    case PL_T_INT: return pl_buf_printf(run->err, out, "%" PRId64, v.i);
    case PL_T_FLOAT: return dump_float(run, v.f, out);
    case PL_T_STRING: return dump_string(run, v.s, how->ascii, out);
    case PL_T_LIST:
        if (v.list->flavour > PL_T_TUPLE) break;
        PL_TRY(pl_tenter(run));
        rc = dump_list(run, v.list, how, level, out);
        pl_tleave(run);
        return rc;
    case PL_T_DICT:
        PL_TRY(pl_tenter(run));
        rc = dump_dict(run, v.dict, how, level, out);
        pl_tleave(run);
        return rc;
    case PL_T_UNDEFINED: return pl_tundefined_fail(run, v);
    default: break;
    }
    return PL_TFAIL(run, PL_EINPUT, "tojson: a %s cannot be written as JSON", pl_tvalue_type(v));
}
