/* The tests behind "is", and the global functions. */
#include <string.h>

#include "data/template_internal.h"

#define TEST(name)                                                                                                     \
    static int name(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out)
#define UNUSED ((void)run, (void)self, (void)argv, (void)args)
/* A test that is one expression of the value. */
#define SIMPLE(name, expression)                                                                                       \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        UNUSED;                                                                                                        \
        *out = pl_tbool(expression);                                                                                   \
        return 0;                                                                                                      \
    }

static bool is_number(pl_tvalue v)
{
    return v.kind == PL_T_INT || v.kind == PL_T_FLOAT || v.kind == PL_T_BOOL;
}

static bool is_iterable(pl_tvalue v)
{
    return v.kind == PL_T_STRING || v.kind == PL_T_LIST || v.kind == PL_T_DICT || v.kind == PL_T_UNDEFINED ||
           v.kind == PL_T_LOOP;
}

static bool is_sequence(pl_tvalue v)
{
    return v.kind == PL_T_STRING || v.kind == PL_T_DICT || (v.kind == PL_T_LIST && v.list->flavour <= PL_T_RANGE);
}

SIMPLE(test_defined, self.kind != PL_T_UNDEFINED)
SIMPLE(test_undefined, self.kind == PL_T_UNDEFINED)
SIMPLE(test_none, self.kind == PL_T_NONE)
SIMPLE(test_boolean, self.kind == PL_T_BOOL)
SIMPLE(test_true, self.kind == PL_T_BOOL && self.b)
SIMPLE(test_false, self.kind == PL_T_BOOL && !self.b)
SIMPLE(test_integer, self.kind == PL_T_INT)
SIMPLE(test_float, self.kind == PL_T_FLOAT)
SIMPLE(test_number, is_number(self))
SIMPLE(test_string, self.kind == PL_T_STRING)
SIMPLE(test_mapping, self.kind == PL_T_DICT)
SIMPLE(test_iterable, is_iterable(self))
SIMPLE(test_sequence, is_sequence(self))
SIMPLE(test_callable, self.kind == PL_T_FUNCTION || self.kind == PL_T_LOOP || self.kind == PL_T_UNDEFINED)
SIMPLE(test_escaped, self.kind == PL_T_STRING && self.note)

TEST(test_upper)
{
    UNUSED;
    pl_tstring *s;
    PL_TRY(pl_tvalue_text(run, self, &s));
    *out = pl_tbool(pl_tstring_is(s, PL_T_ISUPPER));
    return 0;
}

TEST(test_lower)
{
    UNUSED;
    pl_tstring *s;
    PL_TRY(pl_tvalue_text(run, self, &s));
    *out = pl_tbool(pl_tstring_is(s, PL_T_ISLOWER));
    return 0;
}

static int remainder_is(pl_trun *run, pl_tvalue v, pl_tvalue by, int64_t wanted, pl_tvalue *out)
{
    pl_tvalue rest;
    bool equal;
    PL_TRY(pl_tarith(run, PL_T_MOD, v, by, &rest));
    PL_TRY(pl_tvalue_equal(run, rest, pl_tint(wanted), &equal));
    *out = pl_tbool(equal);
    return 0;
}

TEST(test_odd)
{
    UNUSED;
    return remainder_is(run, self, pl_tint(2), 1, out);
}

TEST(test_even)
{
    UNUSED;
    return remainder_is(run, self, pl_tint(2), 0, out);
}

TEST(test_divisibleby)
{
    UNUSED;
    return remainder_is(run, self, argv[0], 0, out);
}

TEST(test_sameas)
{
    UNUSED;
    pl_tvalue a = self, b = argv[0];
    bool object = a.kind == PL_T_LIST || a.kind == PL_T_DICT || a.kind >= PL_T_NAMESPACE, same = false;
    if (a.kind == b.kind && object)
        same = a.list == b.list;
    else if (a.kind == b.kind && a.kind != PL_T_UNDEFINED)
        PL_TRY(pl_tvalue_equal(run, a, b, &same));
    *out = pl_tbool(same);
    return 0;
}

static int compares(pl_trun *run, pl_tcompare op, pl_tvalue a, pl_tvalue b, pl_tvalue *out)
{
    bool holds;
    PL_TRY(pl_tcompare_values(run, op, a, b, &holds));
    *out = pl_tbool(holds);
    return 0;
}

#define COMPARES(name, op)                                                                                             \
    TEST(name)                                                                                                         \
    {                                                                                                                  \
        UNUSED;                                                                                                        \
        return compares(run, op, self, argv[0], out);                                                                  \
    }

COMPARES(test_eq, PL_T_EQ)
COMPARES(test_ne, PL_T_NE)
COMPARES(test_lt, PL_T_LT)
COMPARES(test_le, PL_T_LE)
COMPARES(test_gt, PL_T_GT)
COMPARES(test_ge, PL_T_GE)
COMPARES(test_in, PL_T_IN)

TEST(test_filter)
{
    UNUSED;
    const pl_tbuiltin *b = self.kind == PL_T_STRING ? pl_tfind_filter(self.s) : NULL;
    *out = pl_tbool(b && b->call);
    return 0;
}

TEST(test_test)
{
    UNUSED;
    const pl_tbuiltin *b = self.kind == PL_T_STRING ? pl_tfind_test(self.s) : NULL;
    *out = pl_tbool(b && b->call);
    return 0;
}

static const pl_tbuiltin tests[] = {{"defined", test_defined, "", 0}, {"undefined", test_undefined, "", 0},
    {"none", test_none, "", 0}, {"string", test_string, "", 0}, {"mapping", test_mapping, "", 0},
    {"iterable", test_iterable, "", 0}, {"sequence", test_sequence, "", 0}, {"number", test_number, "", 0},
    {"integer", test_integer, "", 0}, {"float", test_float, "", 0}, {"boolean", test_boolean, "", 0},
    {"true", test_true, "", 0}, {"false", test_false, "", 0}, {"callable", test_callable, "", 0},
    {"escaped", test_escaped, "", 0}, {"upper", test_upper, "", 0}, {"lower", test_lower, "", 0},
    {"odd", test_odd, "", 0}, {"even", test_even, "", 0}, {"divisibleby", test_divisibleby, "num", 1},
    {"sameas", test_sameas, "other", 1}, {"in", test_in, "seq", 1}, {"eq", test_eq, "b", 1}, {"==", test_eq, "b", 1},
    {"equalto", test_eq, "b", 1}, {"ne", test_ne, "b", 1}, {"!=", test_ne, "b", 1}, {"lt", test_lt, "b", 1},
    {"<", test_lt, "b", 1}, {"lessthan", test_lt, "b", 1}, {"le", test_le, "b", 1}, {"<=", test_le, "b", 1},
    {"gt", test_gt, "b", 1}, {">", test_gt, "b", 1}, {"greaterthan", test_gt, "b", 1}, {"ge", test_ge, "b", 1},
    {">=", test_ge, "b", 1}, {"filter", test_filter, "", 0}, {"test", test_test, "", 0}};

const pl_tbuiltin *pl_tfind_test(const pl_tstring *name)
{
    return pl_tfind(tests, PL_COUNT(tests), name);
}

/* ---- global functions ---- */

#define FUNCTION TEST

FUNCTION(make_range)
{
    UNUSED;
    int64_t bounds[3] = {0, 0, 1};
    PL_TRY(pl_targ_int(run, argv[0], "range: stop", &bounds[1]));
    if (argv[1].kind != PL_T_MISSING) {
        bounds[0] = bounds[1];
        PL_TRY(pl_targ_int(run, argv[1], "range: stop", &bounds[1]));
    }
    PL_TRY(pl_targ_int(run, argv[2], "range: step", &bounds[2]));
    int64_t begin = bounds[0], end = bounds[1], step = bounds[2];
    if (step == 0) return PL_TFAIL(run, PL_EINPUT, "range: step is 0");
    bool some = step > 0 ? begin < end : begin > end;
    uint64_t span = !some ? 0 : step > 0 ? (uint64_t)end - (uint64_t)begin : (uint64_t)begin - (uint64_t)end;
    uint64_t size = step > 0 ? (uint64_t)step : 0 - (uint64_t)step, count = some ? (span - 1) / size + 1 : 0;
    if (count > 100000)
        return PL_TFAIL(run, PL_EINPUT, "range: %llu numbers, of which 100000 are allowed", (unsigned long long)count);
    PL_TRY(pl_tlist_new(run, PL_T_RANGE, count, out));
    for (uint64_t i = 0; i < count; i++)
        PL_TRY(pl_tlist_add(run, out->list, pl_tint((int64_t)((uint64_t)begin + i * (uint64_t)step))));
    return 0;
}

/* dict(other, a=1): also of pairs. */
FUNCTION(make_dict)
{
    UNUSED;
    PL_TRY(pl_tdict_new(run, out));
    if (args->count > 1) return PL_TFAIL(run, PL_EINPUT, "dict takes at most one positional argument");
    if (args->count && args->items[0].kind == PL_T_DICT) {
        const pl_tdict *from = args->items[0].dict;
        for (size_t i = 0; i < from->count; i++) PL_TRY(pl_tdict_set(run, out->dict, from->keys[i], from->values[i]));
    } else if (args->count) {
        pl_tlist *pairs, *pair;
        PL_TRY(pl_titerate(run, args->items[0], &pairs));
        for (size_t i = 0; i < pairs->count; i++) {
            PL_TRY(pl_titerate(run, pairs->items[i], &pair));
            if (pair->count != 2) return PL_TFAIL(run, PL_EINPUT, "dict: an element is no pair of key and value");
            PL_TRY(pl_tdict_set(run, out->dict, pair->items[0], pair->items[1]));
        }
    }
    for (size_t i = 0; i < args->named_count; i++) {
        pl_tvalue key = {.kind = PL_T_STRING, .s = args->names[i]};
        PL_TRY(pl_tdict_set(run, out->dict, key, args->named[i]));
    }
    return 0;
}

FUNCTION(make_namespace)
{
    PL_TRY(make_dict(run, self, argv, args, out));
    out->kind = PL_T_NAMESPACE;
    return 0;
}

FUNCTION(make_cycler)
{
    UNUSED;
    pl_tvalue items;
    if (!args->count || args->named_count) return PL_TFAIL(run, PL_EINPUT, "cycler needs items to go through");
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, args->count, &items));
    for (size_t i = 0; i < args->count; i++) PL_TRY(pl_tlist_add(run, items.list, args->items[i]));
    *out = (pl_tvalue){.kind = PL_T_CYCLER};
    PL_TRY(pl_talloc(run, 1, sizeof *out->cycler, &out->cycler));
    out->cycler->items = items.list;
    return 0;
}

/* Nothing on the first call, the separator on all others. It is kept in the changed copy of this entry's function. */
FUNCTION(call_joiner)
{
    UNUSED;
    static const pl_tstring nothing = {.bytes = "", .size = 0, .chars = 0};
    pl_tlist *state = self.list;
    *out = state->spent ? state->items[0] : (pl_tvalue){.kind = PL_T_STRING, .s = (pl_tstring *)&nothing};
    state->spent = true;
    return 0;
}

FUNCTION(make_joiner)
{
    UNUSED;
    static const pl_tbuiltin joiner = {"joiner", call_joiner, "", 0};
    pl_tvalue separator = argv[0], state;
    pl_tfunction *f;
    if (separator.kind == PL_T_MISSING) PL_TRY(pl_tstring_new(run, ", ", 2, &separator));
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 1, &state));
    PL_TRY(pl_tlist_add(run, state.list, separator));
    PL_TRY(pl_talloc(run, 1, sizeof *f, &f));
    f->builtin = &joiner;
    f->self = state;
    *out = (pl_tvalue){.kind = PL_T_FUNCTION, .function = f};
    return 0;
}

FUNCTION(raise_exception)
{
    UNUSED;
    pl_tstring *message;
    PL_TRY(pl_tvalue_text(run, argv[0], &message));
    (void)out;
    return PL_TFAIL(run, PL_EINPUT, "the template refuses this: %.*s",
        (int)(message->size < 1500 ? message->size : 1500), message->bytes);
}

FUNCTION(strftime_now)
{
    UNUSED;
    pl_tstring *format = NULL;
    PL_TRY(pl_targ_string(run, argv[0], "strftime_now: format", &format));
    return pl_tformat_time(run, format, out);
}

static const pl_tbuiltin globals[] = {{"range", make_range, "start,stop,step", 1}, {"dict", make_dict, NULL, 0},
    {"namespace", make_namespace, NULL, 0}, {"raise_exception", raise_exception, "message", 1},
    {"strftime_now", strftime_now, "format", 1}, {"joiner", make_joiner, "sep", 0}, {"cycler", make_cycler, NULL, 0},
    {"lipsum", NULL, NULL, 0}};

const pl_tbuiltin *pl_tfind_global(const pl_tstring *name)
{
    return pl_tfind(globals, PL_COUNT(globals), name);
}
