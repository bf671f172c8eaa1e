/* The methods of dicts, lists and Jinja's own objects. Those that would change a list or dict are not here: the sandbox
   forbids them. */
#include <string.h>

#include "data/template_internal.h"

#define METHOD(name)                                                                                                   \
    static int name(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out)
#define UNUSED ((void)run, (void)argv, (void)args)

METHOD(dict_get)
{
    UNUSED;
    size_t at = 0;
    bool found;
    PL_TRY(pl_tdict_find(run, self.dict, argv[0], &at, &found));
    *out = found ? self.dict->values[at] : argv[1].kind == PL_T_MISSING ? pl_tnone() : argv[1];
    return 0;
}

static int view(pl_trun *run, const char *name, size_t count, pl_tvalue *out)
{
    PL_TRY(pl_tlist_new(run, PL_T_VIEW, count, out));
    out->list->name = name;
    return 0;
}

METHOD(dict_keys)
{
    UNUSED;
    PL_TRY(view(run, "dict_keys", self.dict->count, out));
    for (size_t i = 0; i < self.dict->count; i++) PL_TRY(pl_tlist_add(run, out->list, self.dict->keys[i]));
    return 0;
}

METHOD(dict_values)
{
    UNUSED;
    PL_TRY(view(run, "dict_values", self.dict->count, out));
    for (size_t i = 0; i < self.dict->count; i++) PL_TRY(pl_tlist_add(run, out->list, self.dict->values[i]));
    return 0;
}

METHOD(dict_items)
{
    UNUSED;
    PL_TRY(view(run, "dict_items", self.dict->count, out));
    return pl_tdict_items(run, self.dict, out->list);
}

METHOD(dict_copy)
{
    UNUSED;
    PL_TRY(pl_tdict_new(run, out));
    for (size_t i = 0; i < self.dict->count; i++)
        PL_TRY(pl_tdict_set(run, out->dict, self.dict->keys[i], self.dict->values[i]));
    return 0;
}

METHOD(list_copy)
{
    UNUSED;
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, self.list->count, out));
    for (size_t i = 0; i < self.list->count; i++) PL_TRY(pl_tlist_add(run, out->list, self.list->items[i]));
    return 0;
}

METHOD(list_count)
{
    UNUSED;
    int64_t n = 0;
    for (size_t i = 0; i < self.list->count; i++) {
        bool equal;
        PL_TRY(pl_tvalue_equal(run, self.list->items[i], argv[0], &equal));
        n += equal;
    }
    *out = pl_tint(n);
    return 0;
}

METHOD(list_index)
{
    UNUSED;
    int64_t n = (int64_t)self.list->count, from = 0, to = n;
    PL_TRY(pl_targ_int(run, argv[1], "index: start", &from));
    PL_TRY(pl_targ_int(run, argv[2], "index: stop", &to));
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to += n;
    for (int64_t i = from; i < n && i < to; i++) {
        bool equal;
        PL_TRY(pl_tvalue_equal(run, self.list->items[i], argv[0], &equal));
        *out = pl_tint(i);
        if (equal) return 0;
    }
    return PL_TFAIL(run, PL_EINPUT, "index: the value is not in the list");
}

METHOD(loop_cycle)
{
    UNUSED;
    if (!args->count) return PL_TFAIL(run, PL_EINPUT, "loop.cycle needs items to go through");
    *out = args->items[self.loop->index0 % args->count];
    return 0;
}

METHOD(loop_changed)
{
    UNUSED;
    pl_tvalue now;
    bool same = false;
    PL_TRY(pl_tlist_new(run, PL_T_TUPLE, args->count, &now));
    for (size_t i = 0; i < args->count; i++) PL_TRY(pl_tlist_add(run, now.list, args->items[i]));
    if (self.loop->changed.kind != PL_T_MISSING) PL_TRY(pl_tvalue_equal(run, self.loop->changed, now, &same));
    self.loop->changed = now;
    *out = pl_tbool(!same);
    return 0;
}

METHOD(cycler_next)
{
    UNUSED;
    *out = self.cycler->items->items[self.cycler->position];
    self.cycler->position = (self.cycler->position + 1) % self.cycler->items->count;
    return 0;
}

METHOD(cycler_reset)
{
    UNUSED;
    self.cycler->position = 0;
    *out = pl_tnone();
    return 0;
}

static const pl_tbuiltin dict_methods[] = {{"get", dict_get, "key,default", 1}, {"keys", dict_keys, "", 0},
    {"values", dict_values, "", 0}, {"items", dict_items, "", 0}, {"copy", dict_copy, "", 0},
    {"fromkeys", NULL, NULL, 0}};
static const pl_tbuiltin list_methods[] = {
    {"count", list_count, "value", 1}, {"index", list_index, "value,start,stop", 1}, {"copy", list_copy, "", 0}};
static const pl_tbuiltin loop_methods[] = {{"cycle", loop_cycle, NULL, 0}, {"changed", loop_changed, NULL, 0}};
static const pl_tbuiltin cycler_methods[] = {{"next", cycler_next, "", 0}, {"reset", cycler_reset, "", 0}};
static const pl_tbuiltin number_methods[] = {{"is_integer", NULL, NULL, 0}, {"bit_length", NULL, NULL, 0},
    {"real", NULL, NULL, 0}, {"imag", NULL, NULL, 0}, {"numerator", NULL, NULL, 0}, {"denominator", NULL, NULL, 0},
    {"conjugate", NULL, NULL, 0}, {"as_integer_ratio", NULL, NULL, 0}, {"hex", NULL, NULL, 0},
    {"to_bytes", NULL, NULL, 0}};

const pl_tbuiltin *pl_tfind_method(pl_tvalue v, const pl_tstring *name)
{
    switch (v.kind) {
    case PL_T_STRING: return pl_tfind_string_method(name);
    case PL_T_DICT: return pl_tfind(dict_methods, PL_COUNT(dict_methods), name);
    /* A tuple or range has all but copy, which it has no attribute for. */
    case PL_T_LIST:
        return v.list->flavour > PL_T_RANGE ? NULL
                                            : pl_tfind(list_methods, v.list->flavour == PL_T_PLAIN ? 3 : 2, name);
    case PL_T_LOOP: return pl_tfind(loop_methods, PL_COUNT(loop_methods), name);
    case PL_T_CYCLER: return pl_tfind(cycler_methods, PL_COUNT(cycler_methods), name);
    case PL_T_BOOL:
    case PL_T_INT:
    case PL_T_FLOAT: return pl_tfind(number_methods, PL_COUNT(number_methods), name);
    default: return NULL;
    }
}
