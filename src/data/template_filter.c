/* Filters on single values; those on sequences are in template_sequence.c. Each is what Jinja's filter of that name
 * does. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/number.h"
#include "data/template_internal.h"

#define FILTER(name)                                                                                                   \
    static int name(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out)
#define UNUSED ((void)run, (void)argv, (void)args)

int pl_targ_int(pl_trun *run, pl_tvalue v, const char *what, int64_t *out)
{
    if (v.kind == PL_T_MISSING) return 0;
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind != PL_T_INT && v.kind != PL_T_BOOL)
        return PL_TFAIL(run, PL_EINPUT, "%s must be an integer, not %s", what, pl_tvalue_type(v));
    *out = v.kind == PL_T_INT ? v.i : v.b;
    return 0;
}

int pl_targ_string(pl_trun *run, pl_tvalue v, const char *what, pl_tstring **out)
{
    if (v.kind == PL_T_MISSING) return 0;
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind != PL_T_STRING) return PL_TFAIL(run, PL_EINPUT, "%s must be a string, not %s", what, pl_tvalue_type(v));
    *out = v.s;
    return 0;
}

/* The value as text, and whether it is marked as safe. */
static int text_of(pl_trun *run, pl_tvalue v, pl_tstring **out)
{
    PL_TRY(pl_tvalue_text(run, v, out));
    return pl_twork(run, (*out)->size);
}

FILTER(filter_abs)
{
    UNUSED;
    if (self.kind == PL_T_FLOAT)
        *out = pl_tfloat(fabs(self.f));
    else {
        int64_t i = 0;
        PL_TRY(pl_targ_int(run, self, "the argument of abs", &i));
        if (i == INT64_MIN) return PL_TFAIL(run, PL_EUNSUPPORTED, "the result of abs does not fit in 64 bits");
        *out = pl_tint(i < 0 ? -i : i);
    }
    return 0;
}

static int filter_case(pl_trun *run, pl_tvalue self, enum pl_tcase how, pl_tvalue *out)
{
    pl_tstring *s;
    PL_TRY(text_of(run, self, &s));
    PL_TRY(pl_tcase_map(run, s, how, out));
    out->note = self.kind == PL_T_STRING && self.note;
    return 0;
}

FILTER(filter_upper)
{
    UNUSED;
    return filter_case(run, self, PL_T_UPPER, out);
}

FILTER(filter_lower)
{
    UNUSED;
    return filter_case(run, self, PL_T_LOWER, out);
}

FILTER(filter_capitalize)
{
    UNUSED;
    return filter_case(run, self, PL_T_CAPITALIZE, out);
}

FILTER(filter_title)
{
    UNUSED;
    return filter_case(run, self, PL_T_JINJA_TITLE, out);
}

FILTER(filter_trim)
{
    UNUSED;
    pl_tstring *s, *chars = NULL;
    size_t begin, end;
    PL_TRY(text_of(run, self, &s));
    if (argv[0].kind != PL_T_NONE) PL_TRY(pl_targ_string(run, argv[0], "trim: chars", &chars));
    pl_tstrip(s, chars, true, true, &begin, &end);
    PL_TRY(pl_tstring_new(run, s->bytes + begin, end - begin, out));
    out->note = self.kind == PL_T_STRING && self.note;
    return 0;
}

FILTER(filter_string)
{
    UNUSED;
    *out = self;
    if (self.kind == PL_T_STRING) return 0;
    *out = (pl_tvalue){.kind = PL_T_STRING};
    return pl_tvalue_text(run, self, &out->s);
}

FILTER(filter_safe)
{
    PL_TRY(filter_string(run, self, argv, args, out));
    out->note = 1;
    return 0;
}

FILTER(filter_forceescape)
{
    UNUSED;
    pl_buf buf = {0};
    pl_tstring *s;
    PL_TRY(text_of(run, self, &s));
    int rc = pl_thtml_escape(run, s, &buf);
    PL_TRY(pl_tstring_take(run, &buf, rc, out));
    out->note = 1;
    return 0;
}

FILTER(filter_escape)
{
    if (self.kind != PL_T_STRING || !self.note) return filter_forceescape(run, self, argv, args, out);
    *out = self;
    return 0;
}

FILTER(filter_default)
{
    UNUSED;
    bool use = self.kind == PL_T_UNDEFINED || (pl_tvalue_truth(argv[1]) && !pl_tvalue_truth(self));
    if (!use)
        *out = self;
    else if (argv[0].kind != PL_T_MISSING)
        *out = argv[0];
    else
        return pl_tstring_new(run, "", 0, out);
    return 0;
}

FILTER(filter_length)
{
    UNUSED;
    int64_t n = 0;
    PL_TRY(pl_tlength(run, self, &n));
    *out = pl_tint(n);
    return 0;
}

FILTER(filter_replace)
{
    pl_tstring *s, *old, *fresh;
    PL_TRY(text_of(run, self, &s));
    PL_TRY(text_of(run, argv[0], &old));
    PL_TRY(text_of(run, argv[1], &fresh));
    pl_tvalue values[3] = {{.kind = PL_T_STRING, .s = old}, {.kind = PL_T_STRING, .s = fresh}, argv[2]};
    if (values[2].kind == PL_T_NONE) values[2] = (pl_tvalue){0};
    static const pl_tstring name = {.bytes = "replace", .size = 7, .chars = 7};
    return pl_tfind_string_method(&name)->call(run, (pl_tvalue){.kind = PL_T_STRING, .s = s}, values, args, out);
}

/* int(text, base) of Python; *ok false where it raises ValueError. */
static int parse_int(pl_trun *run, const pl_tstring *s, int64_t base, int64_t *out, bool *ok)
{
    size_t begin, end, n = 0;
    char copy[80];
    pl_tstrip(s, NULL, true, true, &begin, &end);
    *ok = false;
    bool sign = begin < end && (s->bytes[begin] == '-' || s->bytes[begin] == '+');
    if (sign) copy[n++] = s->bytes[begin++];
    static const char prefixes[] = "bBoOxX";
    const char *prefix = end - begin > 2 && s->bytes[begin] == '0' ? strchr(prefixes, s->bytes[begin + 1]) : NULL;
    int64_t implied = prefix && *prefix ? (prefix - prefixes < 2 ? 2 : prefix - prefixes < 4 ? 8 : 16) : 0;
    if (implied && (base == 0 || base == implied)) {
        begin += 2;
        base = implied;
    }
    if (base == 0) base = 10;
    if (base < 2 || base > 36 || begin == end) return 0;
    for (size_t i = begin; i < end; i++) {
        char c = s->bytes[i];
        if (c == '_' && i > begin && i + 1 < end && s->bytes[i - 1] != '_') continue;
        int digit = c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
        if (digit >= base) return 0;
        if (n == sizeof copy - 1) return PL_TFAIL(run, PL_EUNSUPPORTED, "a number of so many digits is not supported");
        copy[n++] = c;
    }
    copy[n] = 0;
    errno = 0;
    *out = strtoll(copy, NULL, (int)base);
    if (errno == ERANGE) return PL_TFAIL(run, PL_EUNSUPPORTED, "the number %s does not fit in 64 bits", copy);
    *ok = true;
    return 0;
}

/* float(text) of Python. */
static bool parse_float(const pl_tstring *s, double *out)
{
    size_t begin, end, n = 0;
    char copy[128];
    pl_tstrip(s, NULL, true, true, &begin, &end);
    if (begin == end || end - begin >= sizeof copy) return false;
    for (size_t i = begin; i < end; i++)
        if (s->bytes[i] != '_')
            copy[n++] = (char)(s->bytes[i] >= 'A' && s->bytes[i] <= 'Z' ? s->bytes[i] | 32 : s->bytes[i]);
    copy[n] = 0;
    const char *word = copy + (copy[0] == '-' || copy[0] == '+');
    double sign = copy[0] == '-' ? -1 : 1;
    if (!strcmp(word, "inf") || !strcmp(word, "infinity")) return *out = sign * (double)INFINITY, true;
    if (!strcmp(word, "nan")) return *out = (double)NAN, true;
    return pl_parse_real(copy, out);
}

static int float_to_int(pl_trun *run, double f, int64_t *out, bool *ok)
{
    *ok = !isnan(f) && !isinf(f);
    if (!*ok) return 0;
    if (fabs(f) >= 9.2e18) return PL_TFAIL(run, PL_EUNSUPPORTED, "the number %g does not fit in 64 bits", f);
    *out = (int64_t)f;
    return 0;
}

FILTER(filter_int)
{
    UNUSED;
    int64_t base = 10, i = 0;
    double f;
    bool ok = false;
    PL_TRY(pl_targ_int(run, argv[1], "int: base", &base));
    if (self.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, self);
    if (self.kind == PL_T_INT || self.kind == PL_T_BOOL) {
        PL_TRY(pl_targ_int(run, self, "int", &i));
        ok = true;
    } else if (self.kind == PL_T_FLOAT) {
        if (isinf(self.f)) return PL_TFAIL(run, PL_EINPUT, "infinity is no integer");
        PL_TRY(float_to_int(run, self.f, &i, &ok));
    } else if (self.kind == PL_T_STRING) {
        PL_TRY(pl_twork(run, self.s->size));
        PL_TRY(parse_int(run, self.s, base, &i, &ok));
        if (!ok && parse_float(self.s, &f)) PL_TRY(float_to_int(run, f, &i, &ok));
    }
    *out = ok || argv[0].kind == PL_T_MISSING ? pl_tint(ok ? i : 0) : argv[0];
    return 0;
}

FILTER(filter_float)
{
    UNUSED;
    double f;
    if (self.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, self);
    if (self.kind == PL_T_FLOAT)
        *out = self;
    else if (self.kind == PL_T_INT || self.kind == PL_T_BOOL)
        *out = pl_tfloat(self.kind == PL_T_INT ? (double)self.i : self.b);
    else if (self.kind == PL_T_STRING && parse_float(self.s, &f))
        *out = pl_tfloat(f);
    else
        *out = argv[0].kind == PL_T_MISSING ? pl_tfloat(0) : argv[0];
    return 0;
}

FILTER(filter_round)
{
    UNUSED;
    int64_t precision = 0;
    pl_tstring common = {.bytes = "common", .size = 6}, *method = &common;
    PL_TRY(pl_targ_int(run, argv[0], "round: precision", &precision));
    PL_TRY(pl_targ_string(run, argv[1], "round: method", &method));
    if (self.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, self);
    bool whole = self.kind == PL_T_INT || self.kind == PL_T_BOOL;
    if (!whole && self.kind != PL_T_FLOAT)
        return PL_TFAIL(run, PL_EINPUT, "round needs a number, not %s", pl_tvalue_type(self));
    if (precision < -22 || precision > 22)
        return PL_TFAIL(run, PL_EUNSUPPORTED, "round: a precision beyond 22 is not supported");
    double f = self.kind == PL_T_FLOAT ? self.f
               : self.kind == PL_T_INT ? (double)self.i
                                       : self.b,
           scale = pow(10, (double)precision);
    bool is_common = method->size == 6 && memcmp(method->bytes, "common", 6) == 0;
    if (is_common && whole && precision >= 0) {
        *out = pl_tint(self.kind == PL_T_INT ? self.i : self.b);
    } else if (is_common && precision >= 0) { /* round-half-even of the exact value, which printf does */
        char text[64];
        bool exact = !isfinite(f) || fabs(f) > 1e16; /* nothing behind the point */
        if (!exact) snprintf(text, sizeof text, "%.*f", (int)precision, f);
        for (char *c = text; !exact && *c; c++)
            if (*c == ',') *c = '.';
        if (!exact) pl_parse_real(text, &f);
        *out = pl_tfloat(f);
    } else if (is_common) {
        *out = whole ? pl_tint((int64_t)(rint(f * scale) / scale)) : pl_tfloat(rint(f * scale) / scale);
    } else if (method->size == 4 && memcmp(method->bytes, "ceil", 4) == 0) {
        *out = pl_tfloat(ceil(f * scale) / scale);
    } else if (method->size == 5 && memcmp(method->bytes, "floor", 5) == 0) {
        *out = pl_tfloat(floor(f * scale) / scale);
    } else {
        return PL_TFAIL(run, PL_EINPUT, "round: method must be common, ceil or floor");
    }
    return 0;
}

/* The separators and indentation that tojson was asked for. */
static int json_options(pl_trun *run, const pl_tvalue *argv, pl_tjson *how, pl_tstring *texts)
{
    static const pl_tvalue none = {0};
    pl_tlist *parts;
    how->ascii = pl_tvalue_truth(argv[0]);
    how->sort_keys = pl_tvalue_truth(argv[3]);
    if (argv[1].kind == PL_T_STRING) {
        how->indent = argv[1].s;
    } else if (argv[1].kind != PL_T_MISSING && argv[1].kind != PL_T_NONE) {
        pl_tvalue space, text;
        int64_t n = 0;
        PL_TRY(pl_targ_int(run, argv[1], "tojson: indent", &n));
        PL_TRY(pl_tstring_new(run, " ", 1, &space));
        PL_TRY(pl_tarith(run, PL_T_MUL, space, pl_tint(n), &text));
        how->indent = text.s;
    }
    texts[0] = how->indent ? (pl_tstring){.bytes = ",", .size = 1} : (pl_tstring){.bytes = ", ", .size = 2};
    texts[1] = (pl_tstring){.bytes = ": ", .size = 2};
    how->item_separator = &texts[0];
    how->key_separator = &texts[1];
    if (argv[2].kind == PL_T_MISSING || argv[2].kind == PL_T_NONE) return 0;
    PL_TRY(pl_titerate(run, argv[2], &parts));
    if (parts->count != 2) return PL_TFAIL(run, PL_EINPUT, "tojson: separators must be two strings");
    PL_TRY(pl_targ_string(
        run, parts->items[0].kind ? parts->items[0] : none, "tojson: a separator", &how->item_separator));
    return pl_targ_string(run, parts->items[1], "tojson: a separator", &how->key_separator);
}

FILTER(filter_tojson)
{
    UNUSED;
    pl_tjson how = {0};
    pl_tstring texts[2];
    pl_buf buf = {0};
    PL_TRY(json_options(run, argv, &how, texts));
    int rc = pl_tvalue_json(run, self, &how, 0, &buf);
    return pl_tstring_take(run, &buf, rc, out);
}

/* Where the line that begins at `at` ends; *next is where the one after it begins. */
static size_t line_end(const pl_tstring *s, size_t at, size_t *next)
{
    size_t used = 1;
    for (; at < s->size; at += used) {
        uint32_t c = pl_tchar(s->bytes + at, s->size - at, &used);
        if ((c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 || c == 0x2028 || c == 0x2029) {
            *next = at + used + (c == '\r' && at + 1 < s->size && s->bytes[at + 1] == '\n');
            return at;
        }
    }
    *next = s->size;
    return at;
}

int pl_tsplit_lines(pl_trun *run, const pl_tstring *s, bool keep_ends, pl_tvalue *out)
{
    pl_tvalue line;
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, out));
    PL_TRY(pl_twork(run, s->size));
    for (size_t at = 0, next; at < s->size; at = next) {
        size_t end = line_end(s, at, &next);
        PL_TRY(pl_tstring_new(run, s->bytes + at, (keep_ends ? next : end) - at, &line));
        PL_TRY(pl_tlist_add(run, out->list, line));
    }
    return 0;
}

static int indent(pl_trun *run, const pl_tlist *lines, const pl_tstring *by, bool first, bool blank, pl_buf *out)
{
    if (first) PL_TRY(pl_buf_append(run->err, out, by->bytes, by->size));
    for (size_t i = 0; i < lines->count; i++) {
        const pl_tstring *line = lines->items[i].s;
        if (i) PL_TRY(pl_buf_putc(run->err, out, '\n'));
        if (i && (blank || line->size)) PL_TRY(pl_buf_append(run->err, out, by->bytes, by->size));
        PL_TRY(pl_buf_append(run->err, out, line->bytes, line->size));
        PL_TRY(pl_twork(run, line->size + by->size));
        if (out->size > run->arena.limit)
            return PL_TFAIL(run, PL_ENOMEM, "indent makes more than %zu MiB of text", run->arena.limit >> 20);
    }
    return 0;
}

FILTER(filter_indent)
{
    UNUSED;
    pl_tvalue by, lines, newline;
    pl_tstring *s = NULL;
    pl_buf buf = {0};
    int64_t width = 4;
    PL_TRY(pl_targ_string(run, self, "what indent works on", &s));
    if (argv[0].kind == PL_T_STRING) {
        by = argv[0];
    } else {
        PL_TRY(pl_targ_int(run, argv[0], "indent: width", &width));
        PL_TRY(pl_tstring_new(run, " ", 1, &by));
        PL_TRY(pl_tarith(run, PL_T_MUL, by, pl_tint(width), &by));
    }
    /* Jinja splits the text with one more newline, so that one at its end gives an empty last line. */
    PL_TRY(pl_tstring_new(run, "\n", 1, &newline));
    newline.note = self.note;
    PL_TRY(pl_tarith(run, PL_T_ADD, self, newline, &lines));
    PL_TRY(pl_tsplit_lines(run, lines.s, false, &lines));
    int rc = indent(run, lines.list, by.s, pl_tvalue_truth(argv[1]), pl_tvalue_truth(argv[2]), &buf);
    PL_TRY(pl_tstring_take(run, &buf, rc, out));
    out->note = self.note;
    return 0;
}

FILTER(filter_truncate)
{
    UNUSED;
    int64_t length = 255, leeway = 5, n;
    pl_tvalue cut, end;
    pl_tstring *s = NULL, *tail = NULL;
    PL_TRY(pl_targ_string(run, self, "what truncate works on", &s));
    PL_TRY(pl_targ_int(run, argv[0], "truncate: length", &length));
    PL_TRY(pl_tstring_new(run, "...", 3, &end));
    if (argv[2].kind != PL_T_MISSING) end = argv[2];
    PL_TRY(pl_targ_string(run, end, "truncate: end", &tail));
    if (argv[3].kind != PL_T_NONE) PL_TRY(pl_targ_int(run, argv[3], "truncate: leeway", &leeway));
    int64_t tail_length = pl_tstring_chars(tail);
    if (length < tail_length || leeway < 0)
        return PL_TFAIL(run, PL_EINPUT, "truncate: length must be at least that of its end, leeway at least 0");
    PL_TRY(pl_tlength(run, self, &n));
    *out = self;
    if (n <= leeway || n - leeway <= length) return 0;
    size_t size = pl_tstring_offset(s, length - tail_length);
    const char *space = pl_tvalue_truth(argv[1]) ? NULL : memrchr(s->bytes, ' ', size);
    PL_TRY(pl_tstring_new(run, s->bytes, space ? (size_t)(space - s->bytes) : size, &cut));
    return pl_tarith(run, PL_T_ADD, cut, end, out);
}

FILTER(filter_center)
{
    pl_tvalue argument[PL_T_MAX_PARAMS] = {argv[0].kind == PL_T_MISSING ? pl_tint(80) : argv[0]},
              text = {.kind = PL_T_STRING};
    static const pl_tstring name = {.bytes = "center", .size = 6, .chars = 6};
    PL_TRY(text_of(run, self, &text.s));
    return pl_tfind_string_method(&name)->call(run, text, argument, args, out);
}

FILTER(filter_format)
{
    UNUSED;
    pl_tstring *s;
    pl_tvalue value;
    PL_TRY(text_of(run, self, &s));
    if (args->count && args->named_count)
        return PL_TFAIL(run, PL_EINPUT, "format takes positional or keyword arguments, not both");
    if (args->named_count) {
        PL_TRY(pl_tdict_new(run, &value));
        for (size_t i = 0; i < args->named_count; i++) {
            pl_tvalue key = {.kind = PL_T_STRING, .s = args->names[i]};
            PL_TRY(pl_tdict_set(run, value.dict, key, args->named[i]));
        }
    } else {
        PL_TRY(pl_tlist_new(run, PL_T_TUPLE, args->count, &value));
        for (size_t i = 0; i < args->count; i++) PL_TRY(pl_tlist_add(run, value.list, args->items[i]));
    }
    return pl_tformat_percent(run, s, value, out);
}

FILTER(filter_wordcount)
{
    UNUSED;
    pl_tstring *s;
    int64_t n = 0;
    bool inside = false;
    PL_TRY(text_of(run, self, &s));
    for (size_t at = 0, used; at < s->size; at += used) {
        pl_tchar(s->bytes + at, s->size - at, &used);
        pl_tstring c = {.bytes = s->bytes + at, .size = used};
        bool word = s->bytes[at] == '_' || pl_tstring_is(&c, PL_T_ISALNUM);
        n += word && !inside;
        inside = word;
    }
    *out = pl_tint(n);
    return 0;
}

FILTER(filter_attr)
{
    UNUSED;
    pl_tstring *name = NULL;
    PL_TRY(pl_targ_string(run, argv[0], "attr: name", &name));
    if (self.kind == PL_T_DICT && !pl_tfind_method(self, name)) {
        *out = pl_tundefined(self.kind, name);
        return 0;
    }
    return pl_tattribute(run, self, name, out);
}

static const pl_tbuiltin filters[] = {{"abs", filter_abs, "", 0}, {"attr", filter_attr, "name", 1},
    {"capitalize", filter_capitalize, "", 0}, {"center", filter_center, "width", 0}, {"count", filter_length, "", 0},
    {"d", filter_default, "default_value,boolean", 0}, {"default", filter_default, "default_value,boolean", 0},
    {"e", filter_escape, "", 0}, {"escape", filter_escape, "", 0}, {"float", filter_float, "default", 0},
    {"forceescape", filter_forceescape, "", 0}, {"format", filter_format, NULL, 0},
    {"indent", filter_indent, "width,first,blank", 0}, {"int", filter_int, "default,base", 0},
    {"length", filter_length, "", 0}, {"lower", filter_lower, "", 0}, {"replace", filter_replace, "old,new,count", 2},
    {"round", filter_round, "precision,method", 0}, {"safe", filter_safe, "", 0}, {"string", filter_string, "", 0},
    {"title", filter_title, "", 0}, {"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys", 0},
    {"trim", filter_trim, "chars", 0}, {"truncate", filter_truncate, "length,killwords,end,leeway", 0},
    {"upper", filter_upper, "", 0}, {"wordcount", filter_wordcount, "", 0}};

const pl_tbuiltin *pl_tfind_filter(const pl_tstring *name)
{
    const pl_tbuiltin *found = pl_tfind(filters, PL_COUNT(filters), name);
    return found ? found : pl_tfind_sequence_filter(name);
}
