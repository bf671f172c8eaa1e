/* Formatted text: "%s" % x, "{}".format(x), and strftime. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "data/template_internal.h"

enum { MAX_WIDTH = 65536, MAX_PRECISION = 300 };

/* [[fill]align][sign][#][0][width][,][.precision][type] */
typedef struct spec {
    pl_tstring fill;
    char align, sign, group, type; /* 0: not given */
    bool alternate, zero;
    int width, precision; /* precision -1: not given */
} spec;

static bool one_of(char c, const char *set)
{
    return c && strchr(set, c);
}

/* A decimal number at s[*at]; -1 if there is none. */
static int read_number(pl_trun *run, const pl_tstring *s, size_t *at, int limit, int *out)
{
    *out = -1;
    for (; *at < s->size && s->bytes[*at] >= '0' && s->bytes[*at] <= '9'; (*at)++) {
        *out = (*out < 0 ? 0 : *out) * 10 + (s->bytes[*at] - '0');
        if (*out > limit)
            return PL_TFAIL(run, PL_EUNSUPPORTED, "a width or precision above %d in a format is not supported", limit);
    }
    return 0;
}

/* Text of so many characters, filled up to the width. `prefix` is the sign and "0x", which '=' keeps in front. */
static int pad(pl_trun *run, const spec *f, char align, const char *prefix, pl_tstring *text, pl_buf *out)
{
    int64_t prefix_size = (int64_t)strlen(prefix), more = f->width - prefix_size - pl_tstring_chars(text), left = 0;
    if (more < 0) more = 0;
    if (align == '>' || align == '=') left = more;
    if (align == '^') left = more / 2;
    PL_TRY(pl_twork(run, text->size + (size_t)more));
    if (align == '=') PL_TRY(pl_buf_puts(run->err, out, prefix));
    for (int64_t i = 0; i < left; i++) PL_TRY(pl_buf_append(run->err, out, f->fill.bytes, f->fill.size));
    if (align != '=') PL_TRY(pl_buf_puts(run->err, out, prefix));
    PL_TRY(pl_buf_append(run->err, out, text->bytes, text->size));
    for (int64_t i = left; i < more; i++) PL_TRY(pl_buf_append(run->err, out, f->fill.bytes, f->fill.size));
    if (out->size > run->arena.limit)
        return PL_TFAIL(run, PL_ENOMEM, "a format makes more than %zu MiB of text", run->arena.limit >> 20);
    return 0;
}

/* Puts `separator` between groups of three digits of the whole part. */
static void group_digits(char *text, size_t capacity, char separator)
{
    size_t whole = strspn(text, "0123456789"), size = strlen(text), extra = whole ? (whole - 1) / 3 : 0;
    if (size + extra >= capacity) return;
    memmove(text + whole + extra, text + whole, size - whole + 1);
    for (size_t from = whole, to = whole + extra, n = 0; from > 0; n++) {
        if (n && n % 3 == 0) text[--to] = separator;
        text[--to] = text[--from];
    }
}

static int put_number(
    pl_trun *run, const spec *f, bool negative, const char *base, char *digits, size_t capacity, pl_buf *out)
{
    char prefix[8];
    snprintf(prefix, sizeof prefix, "%s%s", negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "", base);
    if (f->group) group_digits(digits, capacity, f->group);
    pl_tstring text = {.bytes = digits, .size = strlen(digits), .chars = -1};
    return pad(run, f, f->align ? f->align : '>', prefix, &text, out);
}

static int format_int(pl_trun *run, const spec *f, int64_t i, pl_buf *out)
{
    char digits[128];
    uint64_t u = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *base = "";
    size_t n = 0;
    switch (f->type) {
    case 'x': snprintf(digits, sizeof digits, "%" PRIx64, u), base = "0x"; break;
    case 'X': snprintf(digits, sizeof digits, "%" PRIX64, u), base = "0X"; break;
    case 'o': snprintf(digits, sizeof digits, "%" PRIo64, u), base = "0o"; break;
    case 'b':
        for (int bit = 63; bit >= 0; bit--)
            if (n || (u >> bit & 1) || bit == 0) digits[n++] = (char)('0' + (u >> bit & 1));
        digits[n] = 0;
        base = "0b";
        break;
    default: snprintf(digits, sizeof digits, "%" PRIu64, u); break;
    }
    return put_number(run, f, i < 0, f->alternate ? base : "", digits, sizeof digits, out);
}

static int format_float(pl_trun *run, const spec *f, double x, pl_buf *out)
{
    char digits[800], how[8];
    double size = fabs(x);
    char type = f->type ? f->type : 'g';
    if (!f->type && f->precision < 0) { /* as str() has it */
        pl_buf plain = {0};
        int rc = pl_tfloat_repr(run, size, &plain);
        snprintf(digits, sizeof digits, "%s", pl_buf_text(&plain));
        pl_buf_free(&plain);
        PL_TRY(rc);
    } else {
        if (type == 'n') type = 'g';
        snprintf(how, sizeof how, f->alternate ? "%%#.*%c" : "%%.*%c", type == '%' ? 'f' : type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
        snprintf(digits, sizeof digits, how, f->precision < 0 ? 6 : f->precision, type == '%' ? size * 100 : size);
#pragma GCC diagnostic pop
        for (char *c = digits; *c; c++)
            if (*c == ',') *c = '.'; /* some locales */
        if (!f->type && f->precision >= 0 && !strpbrk(digits, ".einfa") && strlen(digits) + 2 < sizeof digits)
            strcat(digits, ".0");
        if (type == '%') strcat(digits, "%");
    }
    return put_number(run, f, signbit(x) && !isnan(x), "", digits, sizeof digits, out);
}

static int format_text(pl_trun *run, const spec *f, pl_tstring *s, char align, pl_buf *out)
{
    pl_tstring cut = *s;
    if (f->precision >= 0 && f->precision < pl_tstring_chars(s))
        cut = (pl_tstring){.bytes = s->bytes, .size = pl_tstring_offset(s, f->precision), .chars = f->precision};
    return pad(run, f, f->align ? f->align : align, "", &cut, out);
}

static bool is_int(pl_tvalue v)
{
    return v.kind == PL_T_INT || v.kind == PL_T_BOOL;
}

static double to_float(pl_tvalue v)
{
    return v.kind == PL_T_FLOAT ? v.f : v.kind == PL_T_BOOL ? v.b : (double)v.i;
}

static int format_char(pl_trun *run, const spec *f, pl_tvalue v, pl_buf *out)
{
    pl_buf buf = {0};
    pl_tvalue text = v;
    if (is_int(v)) {
        int64_t c = v.kind == PL_T_INT ? v.i : v.b;
        if (c < 0 || c > 0x10ffff || (c >= 0xd800 && c < 0xe000))
            return PL_TFAIL(run, PL_EINPUT, "%" PRId64 " is no character", c);
        int rc = pl_tchar_put(run->err, &buf, (uint32_t)c);
        PL_TRY(pl_tstring_take(run, &buf, rc, &text));
    }
    if (text.kind != PL_T_STRING || pl_tstring_chars(text.s) != 1)
        return PL_TFAIL(run, PL_EINPUT, "the format c needs a character");
    return format_text(run, f, text.s, '<', out);
}

/* ---- format % values ---- */

typedef struct percent {
    pl_trun *run;
    pl_tstring *format;
    size_t at;
    pl_tvalue argument;
    size_t next; /* of the values, if the argument is a tuple */
    bool mapping;
} percent;

static int next_value(percent *p, pl_tvalue *out)
{
    bool tuple = p->argument.kind == PL_T_LIST && p->argument.list->flavour == PL_T_TUPLE;
    size_t count = tuple ? p->argument.list->count : 1;
    if (p->next >= count)
        return PL_TFAIL(p->run, PL_EINPUT, "a format needs more than the %zu values it is given", count);
    *out = tuple ? p->argument.list->items[p->next] : p->argument;
    p->next++;
    return 0;
}

/* "(name)" after the percent sign. */
static int key_value(percent *p, pl_tvalue *out)
{
    const char *begin = p->format->bytes + p->at + 1, *end = memchr(begin, ')', p->format->size - p->at - 1);
    if (!end) return PL_TFAIL(p->run, PL_EINPUT, "a format has %%( without )");
    if (p->argument.kind != PL_T_DICT) return PL_TFAIL(p->run, PL_EINPUT, "a format with names needs a dict");
    const pl_tvalue *v = pl_tdict_get(p->argument.dict, begin, (size_t)(end - begin));
    if (!v)
        return PL_TFAIL(p->run, PL_EINPUT, "a format names '%.*s', which is not given",
            (int)(end - begin < 200 ? end - begin : 200), begin);
    *out = *v;
    p->mapping = true;
    p->at = (size_t)(end - p->format->bytes) + 1;
    return 0;
}

static int star_or_number(percent *p, int limit, int *out)
{
    pl_tvalue v;
    int64_t n = 0;
    if (p->at >= p->format->size || p->format->bytes[p->at] != '*')
        return read_number(p->run, p->format, &p->at, limit, out);
    p->at++;
    PL_TRY(next_value(p, &v));
    PL_TRY(pl_targ_int(p->run, v, "* in a format", &n));
    if (n < -limit || n > limit)
        return PL_TFAIL(p->run, PL_EUNSUPPORTED, "a width or precision above %d in a format is not supported", limit);
    *out = (int)n;
    return 0;
}

static int convert(percent *p, spec *f, pl_tvalue v, pl_buf *out)
{
    pl_tstring *s;
    bool left = f->align == '<';
    if (one_of(f->type, "diu")) f->type = 'd';
    if (v.kind == PL_T_UNDEFINED && f->type != 's' && f->type != 'r') return pl_tundefined_fail(p->run, v);
    if (f->type == 'd' && v.kind == PL_T_FLOAT && fabs(v.f) < 9.2e18) v = pl_tint((int64_t)v.f);
    if (f->type == 's' || f->type == 'r') {
        pl_buf buf = {0};
        pl_tvalue text = v;
        if (f->type == 'r' || v.kind != PL_T_STRING) {
            int rc = f->type == 'r' ? pl_tvalue_repr(p->run, v, &buf) : pl_tvalue_print(p->run, v, &buf);
            PL_TRY(pl_tstring_take(p->run, &buf, rc, &text));
        }
        s = text.s;
        f->zero = false;
        return format_text(p->run, f, s, left ? '<' : '>', out);
    }
    if (f->type == 'c') return format_char(p->run, f, v, out);
    if (f->zero && !left) {
        f->align = '=';
        f->fill = (pl_tstring){.bytes = "0", .size = 1, .chars = 1};
    }
    if (one_of(f->type, "dxXo") && is_int(v)) return format_int(p->run, f, v.kind == PL_T_INT ? v.i : v.b, out);
    if (one_of(f->type, "eEfFgG") && (is_int(v) || v.kind == PL_T_FLOAT))
        return format_float(p->run, f, to_float(v), out);
    if (one_of(f->type, "dxXoeEfFgG"))
        return PL_TFAIL(p->run, PL_EINPUT, "the format %%%c needs a number, not %s", f->type, pl_tvalue_type(v));
    return PL_TFAIL(
        p->run, f->type == 'a' ? PL_EUNSUPPORTED : PL_EINPUT, "the format %%%c is not known", f->type ? f->type : ' ');
}

/* What stands behind a percent sign. */
static int conversion(percent *p, pl_buf *out)
{
    spec f = {.fill = {.bytes = " ", .size = 1, .chars = 1}, .precision = -1};
    pl_tvalue v = {0};
    const pl_tstring *s = p->format;
    if (p->at < s->size && s->bytes[p->at] == '(') PL_TRY(key_value(p, &v));
    for (; p->at < s->size && one_of(s->bytes[p->at], "-+ 0#"); p->at++) {
        char c = s->bytes[p->at];
        if (c == '-')
            f.align = '<';
        else if (c == '0')
            f.zero = true;
        else if (c == '#')
            f.alternate = true;
        else if (f.sign != '+')
            f.sign = c;
    }
    PL_TRY(star_or_number(p, MAX_WIDTH, &f.width));
    if (f.width < -1) f.align = '<', f.width = -f.width;
    if (p->at < s->size && s->bytes[p->at] == '.') {
        p->at++;
        PL_TRY(star_or_number(p, MAX_PRECISION, &f.precision));
        if (f.precision < 0) f.precision = 0;
    }
    while (p->at < s->size && one_of(s->bytes[p->at], "hlL")) p->at++;
    if (p->at >= s->size) return PL_TFAIL(p->run, PL_EINPUT, "a format ends after %%");
    f.type = s->bytes[p->at++];
    if (f.type == '%') return pl_buf_putc(p->run->err, out, '%');
    if (v.kind == PL_T_MISSING) PL_TRY(next_value(p, &v));
    return convert(p, &f, v, out);
}

static int percent_all(percent *p, pl_buf *out)
{
    while (p->at < p->format->size) {
        const char *rest = p->format->bytes + p->at, *sign = memchr(rest, '%', p->format->size - p->at);
        size_t n = sign ? (size_t)(sign - rest) : p->format->size - p->at;
        PL_TRY(pl_twork(p->run, n));
        PL_TRY(pl_buf_append(p->run->err, out, rest, n));
        p->at += n + 1;
        if (sign) PL_TRY(conversion(p, out));
    }
    bool tuple = p->argument.kind == PL_T_LIST && p->argument.list->flavour == PL_T_TUPLE;
    bool free_of_values = p->argument.kind == PL_T_DICT || p->mapping || (p->argument.kind == PL_T_LIST && !tuple);
    if (!free_of_values && p->next < (tuple ? p->argument.list->count : 1))
        return PL_TFAIL(p->run, PL_EINPUT, "a format is given more values than it has places");
    return 0;
}

int pl_tformat_percent(pl_trun *run, pl_tstring *format, pl_tvalue argument, pl_tvalue *out)
{
    percent p = {.run = run, .format = format, .argument = argument};
    pl_buf buf = {0};
    int rc = percent_all(&p, &buf);
    return pl_tstring_take(run, &buf, rc, out);
}

/* ---- format.format(...) ---- */

static int parse_spec(pl_trun *run, const pl_tstring *s, spec *f)
{
    *f = (spec){.fill = {.bytes = " ", .size = 1, .chars = 1}, .precision = -1};
    size_t at = 0, first = s->size ? pl_tchar_size((unsigned char)s->bytes[0]) : 0;
    if (first && first < s->size && one_of(s->bytes[first], "<>^=")) {
        f->fill = (pl_tstring){.bytes = s->bytes, .size = first, .chars = 1};
        f->align = s->bytes[first];
        at = first + 1;
    } else if (s->size && one_of(s->bytes[0], "<>^=")) {
        f->align = s->bytes[at++];
    }
    if (at < s->size && one_of(s->bytes[at], "+- ")) f->sign = s->bytes[at++];
    if (at < s->size && s->bytes[at] == '#') f->alternate = true, at++;
    if (at < s->size && s->bytes[at] == '0') f->zero = true, at++;
    PL_TRY(read_number(run, s, &at, MAX_WIDTH, &f->width));
    if (at < s->size && one_of(s->bytes[at], ",_")) f->group = s->bytes[at++];
    if (at < s->size && s->bytes[at] == '.') {
        at++;
        PL_TRY(read_number(run, s, &at, MAX_PRECISION, &f->precision));
        if (f->precision < 0) return PL_TFAIL(run, PL_EINPUT, "a format has no precision after its dot");
    }
    if (at < s->size) f->type = s->bytes[at++];
    if (at < s->size) return PL_TFAIL(run, PL_EINPUT, "'%.*s' is no format of a value", PL_TSHOW(s));
    if (f->zero && !f->align) {
        f->align = '=';
        f->fill = (pl_tstring){.bytes = "0", .size = 1, .chars = 1};
    }
    return 0;
}

static int format_value(pl_trun *run, pl_tvalue v, const pl_tstring *how, pl_buf *out)
{
    spec f;
    if (!how->size) return pl_tvalue_print(run, v, out);
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    PL_TRY(parse_spec(run, how, &f));
    if (v.kind == PL_T_STRING && (!f.type || f.type == 's')) return format_text(run, &f, v.s, '<', out);
    if (is_int(v) && f.type == 'c') return format_char(run, &f, v, out);
    if (is_int(v) && (!f.type || one_of(f.type, "dxXobn")))
        return format_int(run, &f, v.kind == PL_T_INT ? v.i : v.b, out);
    if ((is_int(v) && one_of(f.type, "eEfFgG%")) || (v.kind == PL_T_FLOAT && (!f.type || one_of(f.type, "eEfFgG%n"))))
        return format_float(run, &f, to_float(v), out);
    return PL_TFAIL(run, PL_EINPUT, "the format '%.*s' does not fit %s", PL_TSHOW(how), pl_tvalue_type(v));
}

typedef struct braces {
    pl_trun *run;
    const pl_targs *args;
    size_t next; /* of the values without a number */
} braces;

/* The value that "name.attribute[item]" means. */
static int field_value(braces *b, const pl_tstring *field, pl_tvalue *out)
{
    pl_trun *run = b->run;
    size_t at = 0, digits = 0;
    while (at < field->size && !one_of(field->bytes[at], ".["))
        digits += field->bytes[at] >= '0' && field->bytes[at] <= '9', at++;
    size_t number = 0, i;
    if (digits == at && at < 9) {
        for (i = 0; i < at; i++) number = number * 10 + (size_t)(field->bytes[i] - '0');
        if (!at) number = b->next++;
        if (number >= b->args->count)
            return PL_TFAIL(run, PL_EINPUT, "a format wants value %zu of %zu", number, b->args->count);
        *out = b->args->items[number];
    } else {
        for (i = 0; i < b->args->named_count; i++)
            if (b->args->names[i]->size == at && memcmp(b->args->names[i]->bytes, field->bytes, at) == 0) break;
        if (i == b->args->named_count)
            return PL_TFAIL(
                run, PL_EINPUT, "a format names '%.*s', which is not given", (int)(at < 200 ? at : 200), field->bytes);
        *out = b->args->named[i];
    }
    while (at < field->size) {
        bool bracket = field->bytes[at++] == '[';
        size_t begin = at, numeric = 0;
        while (at < field->size && (bracket ? field->bytes[at] != ']' : !one_of(field->bytes[at], ".[")))
            numeric += field->bytes[at] >= '0' && field->bytes[at] <= '9', at++;
        pl_tvalue key;
        PL_TRY(pl_tstring_copy(run, field->bytes + begin, at - begin, &key));
        if (!bracket) {
            PL_TRY(pl_tattribute(run, *out, key.s, out));
            continue;
        }
        if (at == field->size) return PL_TFAIL(run, PL_EINPUT, "a format has [ without ]");
        if (numeric == at - begin && numeric && numeric < 18) {
            int64_t n = 0;
            for (i = begin; i < at; i++) n = n * 10 + (field->bytes[i] - '0');
            key = pl_tint(n);
        }
        PL_TRY(pl_titem(run, *out, key, out));
        at++;
    }
    return 0;
}

static int brace_all(braces *b, const pl_tstring *s, int depth, pl_buf *out);

/* One replacement field, "name!r:spec" being what is between the braces. */
static int replacement(braces *b, const pl_tstring *s, int depth, pl_buf *out)
{
    size_t end = 0, spec_at;
    for (int brackets = 0; end < s->size && (brackets || !one_of(s->bytes[end], "!:")); end++)
        brackets += s->bytes[end] == '[' ? 1 : s->bytes[end] == ']' ? -1 : 0;
    pl_tstring name = {.bytes = s->bytes, .size = end, .chars = -1};
    pl_tvalue v, how;
    pl_buf text = {0}, nested = {0};
    PL_TRY(field_value(b, &name, &v));
    spec_at = end;
    if (end < s->size && s->bytes[end] == '!') {
        char kind = end + 1 < s->size ? s->bytes[end + 1] : 0;
        if (kind != 'r' && kind != 's')
            return PL_TFAIL(
                b->run, PL_EUNSUPPORTED, "the conversion !%c in a format is not supported", kind ? kind : ' ');
        int rc = kind == 'r' ? pl_tvalue_repr(b->run, v, &text) : pl_tvalue_print(b->run, v, &text);
        PL_TRY(pl_tstring_take(b->run, &text, rc, &v));
        spec_at = end + 2;
    }
    if (spec_at < s->size && s->bytes[spec_at] != ':')
        return PL_TFAIL(b->run, PL_EINPUT, "a format has '%.*s' where : or } was expected", 1, s->bytes + spec_at);
    pl_tstring rest = {
        .bytes = s->bytes + spec_at + 1, .size = spec_at < s->size ? s->size - spec_at - 1 : 0, .chars = -1};
    int rc = brace_all(b, &rest, depth + 1, &nested);
    PL_TRY(pl_tstring_take(b->run, &nested, rc, &how));
    return format_value(b->run, v, how.s, out);
}

static int brace_all(braces *b, const pl_tstring *s, int depth, pl_buf *out)
{
    pl_error *err = b->run->err;
    if (depth > 2) return PL_TFAIL(b->run, PL_EINPUT, "a format nests too deep");
    for (size_t at = 0; at < s->size;) {
        char c = s->bytes[at];
        bool twice = at + 1 < s->size && s->bytes[at + 1] == c && depth == 0;
        if (c != '{' && c != '}') {
            PL_TRY(pl_buf_putc(err, out, c));
            at++;
        } else if (twice) {
            PL_TRY(pl_buf_putc(err, out, c));
            at += 2;
        } else if (c == '}') {
            return PL_TFAIL(b->run, PL_EINPUT, "a format has a single }");
        } else {
            size_t end = at + 1;
            for (int open = 1; end < s->size; end++) {
                open += s->bytes[end] == '{' ? 1 : s->bytes[end] == '}' ? -1 : 0;
                if (!open) break;
            }
            if (end == s->size) return PL_TFAIL(b->run, PL_EINPUT, "a format has { without }");
            pl_tstring field = {.bytes = s->bytes + at + 1, .size = end - at - 1, .chars = -1};
            PL_TRY(replacement(b, &field, depth, out));
            at = end + 1;
        }
        if (out->size > b->run->arena.limit)
            return PL_TFAIL(b->run, PL_ENOMEM, "a format makes more than %zu MiB of text", b->run->arena.limit >> 20);
    }
    return pl_twork(b->run, s->size);
}

int pl_tformat_braces(pl_trun *run, pl_tstring *format, const pl_targs *args, pl_tvalue *out)
{
    braces b = {.run = run, .args = args};
    pl_buf buf = {0};
    int rc = brace_all(&b, format, 0, &buf);
    return pl_tstring_take(run, &buf, rc, out);
}

/* ---- strftime ---- */

/* The time that the context fixes, or the clock's. */
static int current_time(pl_trun *run, struct tm *out)
{
    const pl_tvalue *fixed = pl_tdict_get(run->variables, "strftime_now", 12);
    *out = (struct tm){0};
    if (!fixed) {
        time_t now = time(NULL);
        return localtime_r(&now, out) ? 0 : PL_TFAIL(run, PL_EIO, "the local time cannot be told");
    }
    char text[32] = "";
    if (fixed->kind == PL_T_STRING && fixed->s->size < sizeof text) memcpy(text, fixed->s->bytes, fixed->s->size);
    int n = sscanf(text, "%4d-%2d-%2d%*[T ]%2d:%2d:%2d", &out->tm_year, &out->tm_mon, &out->tm_mday, &out->tm_hour,
        &out->tm_min, &out->tm_sec);
    bool valid = n >= 3 && out->tm_mon >= 1 && out->tm_mon <= 12 && out->tm_mday >= 1 && out->tm_mday <= 31 &&
                 out->tm_hour >= 0 && out->tm_hour < 24 && out->tm_min >= 0 && out->tm_min < 60 && out->tm_sec >= 0 &&
                 out->tm_sec < 60;
    if (!valid) return PL_TFAIL(run, PL_EINPUT, "strftime_now must be a time like 2026-01-15T12:00:00");
    out->tm_year -= 1900;
    out->tm_mon -= 1;
    timegm(out); /* fills in the day of the week and of the year */
    return 0;
}

int pl_tformat_time(pl_trun *run, pl_tstring *format, pl_tvalue *out)
{
    struct tm now;
    pl_buf buf = {0};
    char piece[128], how[3] = "%";
    int rc = 0;
    PL_TRY(pl_twork(run, format->size * 8));
    PL_TRY(current_time(run, &now));
    for (size_t i = 0; i < format->size && rc == 0; i++) {
        char c = format->bytes[i];
        if (c != '%' || i + 1 == format->size) {
            rc = pl_buf_putc(run->err, &buf, c);
            continue;
        }
        c = format->bytes[++i];
        if (c == '-' && i + 1 < format->size &&
            one_of(format->bytes[i + 1], "dmHIMSjy")) { /* glibc's: without a leading zero */
            how[1] = format->bytes[++i];
            size_t n = strftime(piece, sizeof piece, how, &now), zeros = strspn(piece, "0");
            if (n && zeros == n) zeros = n - 1;
            rc = pl_buf_puts(run->err, &buf, piece + zeros);
        } else if (one_of(c, "aAwdbBmyYHIpMSjUWcxXGuVDFTRehnt%")) {
            how[1] = c;
            if (strftime(piece, sizeof piece, how, &now)) rc = pl_buf_puts(run->err, &buf, piece);
        } else if (c == 'f') {
            rc = pl_buf_puts(run->err, &buf, "000000");
        } else if (c != 'z' && c != 'Z') { /* a time without a zone has nothing there */
            rc = PL_TFAIL(run, PL_EUNSUPPORTED, "strftime_now: %%%c is not supported", c);
        }
    }
    return pl_tstring_take(run, &buf, rc, out);
}
