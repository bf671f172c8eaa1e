/* The operators of expressions, as Python has them. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "data/template_internal.h"

int pl_tundefined_fail(pl_trun *run, pl_tvalue v)
{
    static const pl_tstring nothing = {.bytes = "", .size = 0};
    const pl_tstring *name = v.s ? v.s : &nothing;
    switch (v.note) {
    case PL_T_NO_VARIABLE: return PL_TFAIL(run, PL_EINPUT, "'%.*s' is undefined", PL_TSHOW(name));
    case PL_T_NO_ELEMENT: return PL_TFAIL(run, PL_EINPUT, "there is no element %.*s", PL_TSHOW(name));
    case PL_T_NO_RESULT: return PL_TFAIL(run, PL_EINPUT, "an undefined value is used: %.*s", PL_TSHOW(name));
    case PL_T_UNSAFE:
        return PL_TFAIL(run, PL_EINPUT,
            "'%.*s' is not allowed here: templates may not change lists and dicts nor see inner attributes",
            PL_TSHOW(name));
    default: break;
    }
    static const char *const kinds[] = {[PL_T_NONE] = "none",
        [PL_T_BOOL] = "a boolean",
        [PL_T_INT] = "an int",
        [PL_T_FLOAT] = "a float",
        [PL_T_STRING] = "a string",
        [PL_T_LIST] = "a list",
        [PL_T_DICT] = "a dict",
        [PL_T_NAMESPACE] = "a namespace",
        [PL_T_FUNCTION] = "a function",
        [PL_T_LOOP] = "loop",
        [PL_T_CYCLER] = "a cycler"};
    const char *kind = v.note < PL_COUNT(kinds) && kinds[v.note] ? kinds[v.note] : "a value";
    return PL_TFAIL(run, PL_EINPUT, "%s has no attribute '%.*s'", kind, PL_TSHOW(name));
}

static bool is_int(pl_tvalue v)
{
    return v.kind == PL_T_INT || v.kind == PL_T_BOOL;
}

static int64_t as_int(pl_tvalue v)
{
    return v.kind == PL_T_BOOL ? v.b : v.i;
}

static double as_float(pl_tvalue v)
{
    return v.kind == PL_T_FLOAT ? v.f : (double)as_int(v);
}

static const char *symbol(pl_top op)
{
    switch (op) {
    case PL_T_ADD: return "+";
    case PL_T_SUB: return "-";
    case PL_T_MUL: return "*";
    case PL_T_DIV: return "/";
    case PL_T_FLOORDIV: return "//";
    case PL_T_MOD: return "%";
    default: return "**";
    }
}

static int overflow(pl_trun *run, pl_top op)
{
    return PL_TFAIL(run, PL_EUNSUPPORTED, "the result of %s does not fit in 64 bits", symbol(op));
}

static int power(pl_trun *run, int64_t base, int64_t exponent, pl_tvalue *out)
{
    if (exponent < 0) {
        if (base == 0) return PL_TFAIL(run, PL_EINPUT, "0 to a negative power");
        *out = pl_tfloat(pow((double)base, (double)exponent));
        return 0;
    }
    int64_t result = 1;
    while (exponent) {
        if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return overflow(run, PL_T_POW);
        exponent >>= 1;
        if (exponent && __builtin_mul_overflow(base, base, &base)) return overflow(run, PL_T_POW);
    }
    *out = pl_tint(result);
    return 0;
}

static int int_arith(pl_trun *run, pl_top op, int64_t a, int64_t b, pl_tvalue *out)
{
    int64_t r = 0;
    bool bad = false;
    if (b == 0 && (op == PL_T_DIV || op == PL_T_FLOORDIV || op == PL_T_MOD))
        return PL_TFAIL(run, PL_EINPUT, "division by zero");
    switch (op) {
    case PL_T_ADD: bad = __builtin_add_overflow(a, b, &r); break;
    case PL_T_SUB: bad = __builtin_sub_overflow(a, b, &r); break;
    case PL_T_MUL: bad = __builtin_mul_overflow(a, b, &r); break;
    case PL_T_DIV: *out = pl_tfloat((double)a / (double)b); return 0;
    case PL_T_FLOORDIV:
        bad = a == INT64_MIN && b == -1;
        if (!bad) r = a / b - (a % b != 0 && (a < 0) != (b < 0));
        break;
    case PL_T_MOD:
        if (b != -1) r = a % b;
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        break;
    default: return power(run, a, b, out);
    }
    if (bad) return overflow(run, op);
    *out = pl_tint(r);
    return 0;
}

static int float_arith(pl_trun *run, pl_top op, double a, double b, pl_tvalue *out)
{
    if (b == 0 && (op == PL_T_DIV || op == PL_T_FLOORDIV || op == PL_T_MOD))
        return PL_TFAIL(run, PL_EINPUT, "division by zero");
    double r;
    switch (op) {
    case PL_T_ADD: r = a + b; break;
    case PL_T_SUB: r = a - b; break;
    case PL_T_MUL: r = a * b; break;
    case PL_T_DIV: r = a / b; break;
    case PL_T_FLOORDIV: r = floor(a / b); break;
    case PL_T_MOD:
        r = fmod(a, b);
        if (r != 0 && (r < 0) != (b < 0)) r += b;
        break;
    default:
        if ((a < 0 && b != floor(b)) || (a == 0 && b < 0))
            return PL_TFAIL(run, PL_EINPUT, "this power is not a real number");
        r = pow(a, b);
        break;
    }
    *out = pl_tfloat(r);
    return 0;
}

static int repeat(pl_trun *run, pl_tvalue v, int64_t times, pl_tvalue *out)
{
    size_t n = times > 0 ? (size_t)times : 0, size = v.kind == PL_T_STRING ? v.s->size : v.list->count;
    if (size == 0) n = 0;
    if (v.kind == PL_T_LIST) {
        if (n && size > SIZE_MAX / 64 / n)
            return PL_TFAIL(run, PL_ENOMEM, "a list times %" PRId64 " is too large", times);
        PL_TRY(pl_tlist_new(run, v.list->flavour, n * size, out));
        for (size_t i = 0; i < n * size; i++) PL_TRY(pl_tlist_add(run, out->list, v.list->items[i % size]));
        return 0;
    }
    char *text;
    if (n && size > run->arena.limit / n)
        return PL_TFAIL(run, PL_ENOMEM, "a string of %zu bytes times %" PRId64 " is too large", size, times);
    PL_TRY(pl_twork(run, n * size));
    PL_TRY(pl_talloc(run, n * size, 1, &text));
    for (size_t i = 0; i < n; i++) memcpy(text + i * size, v.s->bytes, size);
    PL_TRY(pl_tstring_new(run, text, n * size, out));
    out->note = v.note;
    return 0;
}

/* What markupsafe does to a text that meets one marked as safe. */
static int escape(pl_trun *run, pl_tvalue v, pl_tstring **out)
{
    *out = v.s;
    if (v.note) return 0;
    pl_buf buf = {0};
    pl_tvalue escaped;
    int rc = pl_thtml_escape(run, v.s, &buf);
    PL_TRY(pl_tstring_take(run, &buf, rc, &escaped));
    *out = escaped.s;
    return 0;
}

static int add_strings(pl_trun *run, pl_tvalue a, pl_tvalue b, pl_tvalue *out)
{
    char *text;
    pl_tstring *left = a.s, *right = b.s;
    bool safe = a.note || b.note;
    if (safe) {
        PL_TRY(escape(run, a, &left));
        PL_TRY(escape(run, b, &right));
    }
    PL_TRY(pl_twork(run, left->size + right->size));
    PL_TRY(pl_talloc(run, left->size + right->size, 1, &text));
    if (left->size) memcpy(text, left->bytes, left->size);
    if (right->size) memcpy(text + left->size, right->bytes, right->size);
    PL_TRY(pl_torigin_copy_text(run, left->bytes, left->size, text));
    PL_TRY(pl_torigin_copy_text(run, right->bytes, right->size, text + left->size));
    PL_TRY(pl_tstring_new(run, text, left->size + right->size, out));
    out->note = safe;
    return 0;
}

static int add_lists(pl_trun *run, const pl_tlist *a, const pl_tlist *b, pl_tvalue *out)
{
    PL_TRY(pl_tlist_new(run, a->flavour, a->count + b->count, out));
    for (size_t i = 0; i < a->count; i++) PL_TRY(pl_tlist_add(run, out->list, a->items[i]));
    for (size_t i = 0; i < b->count; i++) PL_TRY(pl_tlist_add(run, out->list, b->items[i]));
    return 0;
}

static bool repeatable(pl_tvalue v)
{
    return v.kind == PL_T_STRING || (v.kind == PL_T_LIST && v.list->flavour <= PL_T_TUPLE);
}

int pl_tarith(pl_trun *run, pl_top op, pl_tvalue a, pl_tvalue b, pl_tvalue *out)
{
    if (op == PL_T_MOD && a.kind == PL_T_STRING) return pl_tformat_percent(run, a.s, b, out);
    if (a.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, a);
    if (b.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, b);
    if (is_int(a) && is_int(b)) return int_arith(run, op, as_int(a), as_int(b), out);
    if ((is_int(a) || a.kind == PL_T_FLOAT) && (is_int(b) || b.kind == PL_T_FLOAT))
        return float_arith(run, op, as_float(a), as_float(b), out);
    if (op == PL_T_ADD && a.kind == PL_T_STRING && b.kind == PL_T_STRING) return add_strings(run, a, b, out);
    if (op == PL_T_ADD && a.kind == PL_T_LIST && b.kind == PL_T_LIST && a.list->flavour <= PL_T_TUPLE &&
        a.list->flavour == b.list->flavour)
        return add_lists(run, a.list, b.list, out);
    if (op == PL_T_MUL && repeatable(a) && is_int(b)) return repeat(run, a, as_int(b), out);
    if (op == PL_T_MUL && repeatable(b) && is_int(a)) return repeat(run, b, as_int(a), out);
    return PL_TFAIL(
        run, PL_EINPUT, "%s %s %s: these types do not go together", pl_tvalue_type(a), symbol(op), pl_tvalue_type(b));
}

static int compare_lists(pl_trun *run, pl_tcompare op, const pl_tlist *a, const pl_tlist *b, bool *out)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        PL_TRY(pl_tvalue_equal(run, a->items[i], b->items[i], &equal));
        if (!equal) {
            PL_TRY(pl_tenter(run));
            int rc = pl_tcompare_values(run, op, a->items[i], b->items[i], out);
            pl_tleave(run);
            return rc;
        }
    }
    return pl_tcompare_values(run, op, pl_tint((int64_t)a->count), pl_tint((int64_t)b->count), out);
}

static bool decide(pl_tcompare op, int order)
{
    switch (op) {
    case PL_T_EQ: return order == 0;
    case PL_T_NE: return order != 0;
    case PL_T_LT: return order < 0;
    case PL_T_LE: return order <= 0;
    case PL_T_GT: return order > 0;
    default: return order >= 0;
    }
}

static int compare_numbers(pl_tcompare op, pl_tvalue a, pl_tvalue b, bool *out)
{
    if (is_int(a) && is_int(b)) {
        *out = decide(op, (as_int(a) > as_int(b)) - (as_int(a) < as_int(b)));
        return 0;
    }
    double x = as_float(a), y = as_float(b);
    *out = isnan(x) || isnan(y) ? op == PL_T_NE : decide(op, (x > y) - (x < y));
    return 0;
}

int pl_tcompare_values(pl_trun *run, pl_tcompare op, pl_tvalue a, pl_tvalue b, bool *out)
{
    bool numbers = (is_int(a) || a.kind == PL_T_FLOAT) && (is_int(b) || b.kind == PL_T_FLOAT);
    PL_TRY(pl_twork(run, 0));
    if (numbers) return compare_numbers(op, a, b, out);
    switch (op) {
    case PL_T_EQ: return pl_tvalue_equal(run, a, b, out);
    case PL_T_NE:
        PL_TRY(pl_tvalue_equal(run, a, b, out));
        *out = !*out;
        return 0;
    case PL_T_IN: return pl_tcontains(run, b, a, out);
    case PL_T_NOT_IN:
        PL_TRY(pl_tcontains(run, b, a, out));
        *out = !*out;
        return 0;
    default: break;
    }
    if (a.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, a);
    if (b.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, b);
    if (a.kind == PL_T_STRING && b.kind == PL_T_STRING) { /* UTF-8 sorts as code points do */
        size_t n = a.s->size < b.s->size ? a.s->size : b.s->size;
        int order = n ? memcmp(a.s->bytes, b.s->bytes, n) : 0;
        PL_TRY(pl_twork(run, n));
        *out = decide(op, order ? order : (a.s->size > b.s->size) - (a.s->size < b.s->size));
        return 0;
    }
    if (a.kind == PL_T_LIST && b.kind == PL_T_LIST && a.list->flavour <= PL_T_TUPLE &&
        a.list->flavour == b.list->flavour)
        return compare_lists(run, op, a.list, b.list, out);
    return PL_TFAIL(run, PL_EINPUT, "%s and %s cannot be put in order", pl_tvalue_type(a), pl_tvalue_type(b));
}

int pl_tcontains(pl_trun *run, pl_tvalue container, pl_tvalue item, bool *out)
{
    size_t at;
    pl_tlist *list;
    *out = false;
    switch (container.kind) {
    case PL_T_STRING:
        if (item.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, item);
        if (item.kind != PL_T_STRING)
            return PL_TFAIL(run, PL_EINPUT, "'in' a string needs a string on its left, not %s", pl_tvalue_type(item));
        PL_TRY(pl_twork(run, container.s->size));
        *out = item.s->size == 0 || memmem(container.s->bytes, container.s->size, item.s->bytes, item.s->size) != NULL;
        return 0;
    case PL_T_DICT: return pl_tdict_find(run, container.dict, item, &at, out);
    case PL_T_UNDEFINED: return 0;
    case PL_T_LIST:
        PL_TRY(pl_titerate(run, container, &list));
        for (size_t i = 0; i < list->count && !*out; i++) PL_TRY(pl_tvalue_equal(run, list->items[i], item, out));
        return 0;
    default:
        return PL_TFAIL(
            run, PL_EINPUT, "'in' needs a string, list or dict on its right, not %s", pl_tvalue_type(container));
    }
}

static int characters(pl_trun *run, pl_tstring *s, pl_tlist **out)
{
    pl_tvalue list, c;
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, (size_t)pl_tstring_chars(s), &list));
    for (size_t at = 0; at < s->size;) {
        size_t n = pl_tchar_size((unsigned char)s->bytes[at]);
        PL_TRY(pl_tstring_new(run, s->bytes + at, n, &c));
        PL_TRY(pl_tlist_add(run, list.list, c));
        at += n;
    }
    *out = list.list;
    return 0;
}

int pl_titerate(pl_trun *run, pl_tvalue v, pl_tlist **out)
{
    pl_tvalue list;
    switch (v.kind) {
    case PL_T_LIST:
        if (v.list->spent) return pl_tlist_new(run, PL_T_PLAIN, 0, &list) < 0 ? run->err->code : (*out = list.list, 0);
        v.list->spent = v.list->flavour == PL_T_GENERATOR;
        *out = v.list;
        return 0;
    case PL_T_STRING: return characters(run, v.s, out);
    case PL_T_DICT:
        PL_TRY(pl_tlist_new(run, PL_T_PLAIN, v.dict->count, &list));
        for (size_t i = 0; i < v.dict->count; i++) PL_TRY(pl_tlist_add(run, list.list, v.dict->keys[i]));
        *out = list.list;
        return 0;
    case PL_T_UNDEFINED:
        PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, &list));
        *out = list.list;
        return 0;
    default: return PL_TFAIL(run, PL_EINPUT, "a list is needed here, not %s", pl_tvalue_type(v));
    }
}

int pl_tlength(pl_trun *run, pl_tvalue v, int64_t *out)
{
    switch (v.kind) {
    case PL_T_STRING: *out = pl_tstring_chars(v.s); return pl_twork(run, v.s->size);
    case PL_T_DICT: *out = (int64_t)v.dict->count; return 0;
    case PL_T_UNDEFINED: *out = 0; return 0;
    case PL_T_LIST:
        if (v.list->flavour == PL_T_GENERATOR)
            return PL_TFAIL(run, PL_EINPUT, "a generator has no length; put it through the filter 'list' first");
        *out = (int64_t)v.list->count;
        return 0;
    case PL_T_LOOP: *out = (int64_t)v.loop->items->count; return 0;
    default: return PL_TFAIL(run, PL_EINPUT, "%s has no length", pl_tvalue_type(v));
    }
}

/* Where a slice begins, ends and in which steps it goes, within 0..n. */
static int slice_bounds(pl_trun *run, const pl_tvalue bounds[3], int64_t n, int64_t *begin, int64_t *end, int64_t *step)
{
    for (int i = 0; i < 3; i++) {
        if (bounds[i].kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, bounds[i]);
        if (bounds[i].kind != PL_T_MISSING && bounds[i].kind != PL_T_NONE && !is_int(bounds[i]))
            return PL_TFAIL(
                run, PL_EINPUT, "the bounds of a slice must be integers, not %s", pl_tvalue_type(bounds[i]));
    }
    bool given[3];
    for (int i = 0; i < 3; i++) given[i] = is_int(bounds[i]);
    *step = given[2] ? as_int(bounds[2]) : 1;
    if (*step == 0) return PL_TFAIL(run, PL_EINPUT, "the step of a slice is 0");
    int64_t low = *step < 0 ? -1 : 0, high = *step < 0 ? n - 1 : n, *const ends[2] = {begin, end};
    for (int i = 0; i < 2; i++) {
        int64_t x = given[i] ? as_int(bounds[i]) : 0;
        if (x < 0) x += n;
        *ends[i] = x < low ? low : x > high ? high : x;
    }
    if (!given[0]) *begin = *step < 0 ? high : low;
    if (!given[1]) *end = *step < 0 ? low : high;
    return 0;
}

static int slice_string(pl_trun *run, pl_tvalue v, int64_t begin, int64_t end, int64_t step, pl_tvalue *out)
{
    PL_TRY(pl_twork(run, v.s->size));
    if (step == 1) {
        size_t from = pl_tstring_offset(v.s, begin), to = end > begin ? pl_tstring_offset(v.s, end) : from;
        PL_TRY(pl_tstring_new(run, v.s->bytes + from, to - from, out));
        out->note = v.note;
        return 0;
    }
    pl_tlist *chars;
    pl_buf buf = {0};
    int rc = 0;
    PL_TRY(characters(run, v.s, &chars));
    for (int64_t i = begin; rc == 0 && (step > 0 ? i < end : i > end); i += step) {
        rc = pl_buf_append(run->err, &buf, chars->items[i].s->bytes, chars->items[i].s->size);
        if (step > 0 ? i > end - step : i < end - step) break; /* the next one is beyond; adding could overflow */
    }
    return pl_tstring_take(run, &buf, rc, out);
}

int pl_tslice(pl_trun *run, pl_tvalue v, const pl_tvalue bounds[3], pl_tvalue *out)
{
    int64_t begin = 0, end = 0, step = 1, n;
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind != PL_T_STRING && !(v.kind == PL_T_LIST && v.list->flavour <= PL_T_RANGE)) {
        /* Jinja looks the slice up as a key, and finds nothing. */
        *out = pl_tundefined(PL_T_NO_RESULT, NULL);
        return 0;
    }
    PL_TRY(pl_tlength(run, v, &n));
    PL_TRY(slice_bounds(run, bounds, n, &begin, &end, &step));
    if (v.kind == PL_T_STRING) return slice_string(run, v, begin, end, step, out);
    PL_TRY(pl_tlist_new(run, v.list->flavour, 0, out));
    for (int64_t i = begin; step > 0 ? i < end : i > end; i += step) {
        PL_TRY(pl_tlist_add(run, out->list, v.list->items[i]));
        if (step > 0 ? i > end - step : i < end - step) break;
    }
    return 0;
}
