/* Filters on sequences and dicts. Where Jinja gives a generator we make its items at once, but the value behaves as
   one: it is true even when empty, has no length, and can be gone through once. */
#include <string.h>

#include "data/template_internal.h"

#define FILTER(name)                                                                                                   \
    static int name(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out)
#define UNUSED ((void)run, (void)argv, (void)args)

FILTER(filter_list)
{
    UNUSED;
    pl_tlist *items;
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, items->count, out));
    for (size_t i = 0; i < items->count; i++) PL_TRY(pl_tlist_add(run, out->list, items->items[i]));
    return 0;
}

FILTER(filter_first)
{
    UNUSED;
    pl_tlist *items;
    PL_TRY(pl_titerate(run, self, &items));
    *out = items->count ? items->items[0] : pl_tundefined(PL_T_NO_RESULT, NULL);
    return 0;
}

FILTER(filter_last)
{
    UNUSED;
    pl_tlist *items;
    if (self.kind == PL_T_LIST && self.list->flavour == PL_T_GENERATOR)
        return PL_TFAIL(run, PL_EINPUT, "'last' does not work on a generator; put it through the filter 'list' first");
    PL_TRY(pl_titerate(run, self, &items));
    *out = items->count ? items->items[items->count - 1] : pl_tundefined(PL_T_NO_RESULT, NULL);
    return 0;
}

static int join(pl_trun *run, const pl_tlist *items, const pl_tstring *between, pl_tvalue attribute, pl_ttext *out)
{
    for (size_t i = 0; i < items->count; i++) {
        pl_tvalue v;
        if (i) PL_TRY(pl_ttext_append(run, out, between->bytes, between->size));
        PL_TRY(pl_tpath(run, items->items[i], attribute, &v));
        PL_TRY(pl_ttext_print(run, out, v));
        PL_TRY(pl_twork(run, 0));
        if (out->buf.size > run->arena.limit)
            return PL_TFAIL(run, PL_ENOMEM, "join makes more than %zu MiB of text", run->arena.limit >> 20);
    }
    return 0;
}

FILTER(filter_join)
{
    UNUSED;
    pl_tstring nothing = {.bytes = "", .size = 0}, *between = &nothing;
    pl_tlist *items;
    pl_ttext text = {0};
    if (argv[0].kind != PL_T_MISSING) PL_TRY(pl_tvalue_text(run, argv[0], &between));
    PL_TRY(pl_titerate(run, self, &items));
    int rc = join(run, items, between, argv[1], &text);
    return pl_ttext_take(run, &text, rc, out);
}

FILTER(filter_items)
{
    UNUSED;
    if (self.kind != PL_T_DICT && self.kind != PL_T_UNDEFINED)
        return PL_TFAIL(run, PL_EINPUT, "'items' needs a dict, not %s", pl_tvalue_type(self));
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    return self.kind == PL_T_DICT ? pl_tdict_items(run, self.dict, out->list) : 0;
}

FILTER(filter_reverse)
{
    UNUSED;
    pl_tlist *items;
    if (self.kind == PL_T_STRING) return pl_tslice(run, self, (pl_tvalue[3]){{0}, {0}, pl_tint(-1)}, out);
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, items->count, out));
    for (size_t i = items->count; i-- > 0;) PL_TRY(pl_tlist_add(run, out->list, items->items[i]));
    return 0;
}

/* ---- sorting ---- */

/* What a value is compared by: its attribute, in lower case unless case matters. */
static int sort_key(pl_trun *run, pl_tvalue v, pl_tvalue attribute, bool case_sensitive, pl_tvalue *out)
{
    PL_TRY(pl_tpath(run, v, attribute, out));
    if (out->kind == PL_T_STRING && !case_sensitive) return pl_tcase_map(run, out->s, PL_T_LOWER, out);
    return 0;
}

/* The same for "a,b": a list of keys. */
static int sort_keys(pl_trun *run, pl_tvalue v, pl_tvalue attribute, bool case_sensitive, pl_tvalue *out)
{
    if (attribute.kind != PL_T_STRING || !memchr(attribute.s->bytes, ',', attribute.s->size))
        return sort_key(run, v, attribute, case_sensitive, out);
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 2, out));
    for (size_t at = 0; at <= attribute.s->size;) {
        const char *part = attribute.s->bytes + at, *comma = memchr(part, ',', attribute.s->size - at);
        size_t n = comma ? (size_t)(comma - part) : attribute.s->size - at;
        pl_tvalue name, key;
        PL_TRY(pl_tstring_new(run, part, n, &name));
        PL_TRY(sort_key(run, v, name, case_sensitive, &key));
        PL_TRY(pl_tlist_add(run, out->list, key));
        at += n + 1;
    }
    return 0;
}

/* A stable merge sort of the indices order[0..n) by keys; spare has room for n too. */
static int merge_sort(pl_trun *run, const pl_tvalue *keys, bool reverse, size_t *order, size_t *spare, size_t n)
{
    if (n < 2) return 0;
    size_t half = n / 2, a = 0, b = half;
    PL_TRY(merge_sort(run, keys, reverse, order, spare, half));
    PL_TRY(merge_sort(run, keys, reverse, order + half, spare, n - half));
    for (size_t i = 0; i < n; i++) {
        bool right = a == half;
        if (a < half && b < n) {
            pl_tvalue x = keys[order[a]], y = keys[order[b]];
            PL_TRY(reverse ? pl_tcompare_values(run, PL_T_LT, x, y, &right)
                           : pl_tcompare_values(run, PL_T_LT, y, x, &right));
        }
        spare[i] = right ? order[b++] : order[a++];
    }
    memcpy(order, spare, n * sizeof *order);
    return 0;
}

static int sorted(pl_trun *run, const pl_tlist *items, const pl_tvalue *keys, bool reverse, pl_tvalue *out)
{
    size_t *order, *spare, n = items->count;
    PL_TRY(pl_talloc(run, n, sizeof *order, &order));
    PL_TRY(pl_talloc(run, n, sizeof *spare, &spare));
    for (size_t i = 0; i < n; i++) order[i] = i;
    PL_TRY(merge_sort(run, keys, reverse, order, spare, n));
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, n, out));
    for (size_t i = 0; i < n; i++) PL_TRY(pl_tlist_add(run, out->list, items->items[order[i]]));
    return 0;
}

static int sort_by(pl_trun *run, pl_tvalue self, pl_tvalue attribute, bool case_sensitive, bool reverse, pl_tvalue *out)
{
    pl_tlist *items;
    pl_tvalue *keys;
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_talloc(run, items->count, sizeof *keys, &keys));
    for (size_t i = 0; i < items->count; i++)
        PL_TRY(sort_keys(run, items->items[i], attribute, case_sensitive, &keys[i]));
    return sorted(run, items, keys, reverse, out);
}

FILTER(filter_sort)
{
    UNUSED;
    return sort_by(run, self, argv[2], pl_tvalue_truth(argv[1]), pl_tvalue_truth(argv[0]), out);
}

FILTER(filter_dictsort)
{
    pl_tvalue pairs;
    int64_t by = 0;
    if (self.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, self);
    if (self.kind != PL_T_DICT)
        return PL_TFAIL(run, PL_EINPUT, "'dictsort' needs a dict, not %s", pl_tvalue_type(self));
    if (argv[1].kind != PL_T_MISSING) {
        by = pl_tis_text(argv[1], "value", 5);
        if (!by && !pl_tis_text(argv[1], "key", 3))
            return PL_TFAIL(run, PL_EINPUT, "dictsort: by must be 'key' or 'value'");
    }
    PL_TRY(filter_items(run, self, argv, args, &pairs));
    return sort_by(run, pairs, pl_tint(by), pl_tvalue_truth(argv[0]), pl_tvalue_truth(argv[2]), out);
}

FILTER(filter_unique)
{
    UNUSED;
    pl_tlist *items;
    pl_tvalue seen;
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_tdict_new(run, &seen));
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    for (size_t i = 0; i < items->count; i++) {
        pl_tvalue key;
        size_t before = seen.dict->count;
        PL_TRY(sort_key(run, items->items[i], argv[1], pl_tvalue_truth(argv[0]), &key));
        PL_TRY(pl_tdict_set(run, seen.dict, key, pl_tnone()));
        if (seen.dict->count > before) PL_TRY(pl_tlist_add(run, out->list, items->items[i]));
    }
    return 0;
}

static int extreme(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, pl_tcompare better, pl_tvalue *out)
{
    pl_tlist *items;
    pl_tvalue best = {0}, key;
    PL_TRY(pl_titerate(run, self, &items));
    *out = pl_tundefined(PL_T_NO_RESULT, NULL);
    for (size_t i = 0; i < items->count; i++) {
        bool take = i == 0;
        PL_TRY(sort_key(run, items->items[i], argv[1], pl_tvalue_truth(argv[0]), &key));
        if (i) PL_TRY(pl_tcompare_values(run, better, key, best, &take));
        if (take) best = key, *out = items->items[i];
    }
    return 0;
}

FILTER(filter_min)
{
    UNUSED;
    return extreme(run, self, argv, PL_T_LT, out);
}

FILTER(filter_max)
{
    UNUSED;
    return extreme(run, self, argv, PL_T_GT, out);
}

FILTER(filter_sum)
{
    UNUSED;
    pl_tlist *items;
    PL_TRY(pl_titerate(run, self, &items));
    *out = argv[1].kind == PL_T_MISSING ? pl_tint(0) : argv[1];
    if (out->kind == PL_T_STRING) return PL_TFAIL(run, PL_EINPUT, "'sum' does not add strings; use 'join'");
    for (size_t i = 0; i < items->count; i++) {
        pl_tvalue v;
        PL_TRY(pl_tpath(run, items->items[i], argv[0], &v));
        PL_TRY(pl_tarith(run, PL_T_ADD, *out, v, out));
    }
    return 0;
}

/* ---- map, select, reject ---- */

/* The arguments behind the first `skip`. */
static pl_targs rest(const pl_targs *args, size_t skip)
{
    pl_targs r = *args;
    if (skip) r.items += skip;
    r.count -= skip;
    return r;
}

static int map_attribute(pl_trun *run, pl_tlist *items, const pl_targs *args, pl_tvalue *out)
{
    pl_tvalue attribute = {0}, otherwise = {0}, v;
    for (size_t i = 0; i < args->named_count; i++) {
        const pl_tstring *name = args->names[i];
        if (name->size == 9 && memcmp(name->bytes, "attribute", 9) == 0)
            attribute = args->named[i];
        else if (name->size == 7 && memcmp(name->bytes, "default", 7) == 0)
            otherwise = args->named[i];
        else
            return PL_TFAIL(run, PL_EINPUT, "'map' has no argument '%.*s'", PL_TSHOW(name));
    }
    if (attribute.kind == PL_T_MISSING)
        return PL_TFAIL(run, PL_EINPUT, "'map' needs the name of a filter or attribute=");
    for (size_t i = 0; i < items->count; i++) {
        PL_TRY(pl_tpath(run, items->items[i], attribute, &v));
        if (v.kind == PL_T_UNDEFINED && otherwise.kind != PL_T_MISSING && otherwise.kind != PL_T_NONE) v = otherwise;
        PL_TRY(pl_tlist_add(run, out->list, v));
    }
    return 0;
}

FILTER(filter_map)
{
    UNUSED;
    pl_tlist *items;
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    if (!pl_tvalue_truth(self)) return 0;
    PL_TRY(pl_titerate(run, self, &items));
    if (!args->count) return map_attribute(run, items, args, out);
    pl_tstring *name = NULL;
    PL_TRY(pl_targ_string(run, args->items[0], "map: the filter's name", &name));
    const pl_tbuiltin *filter = pl_tfind_filter(name);
    if (!filter || !filter->call)
        return PL_TFAIL(run, PL_EUNSUPPORTED, "the filter '%.*s' is not supported", PL_TSHOW(name));
    pl_targs more = rest(args, 1);
    for (size_t i = 0; i < items->count; i++) {
        pl_tvalue v;
        PL_TRY(pl_tenter(run));
        int rc = pl_tcall_builtin(run, filter, "filter", items->items[i], &more, &v);
        pl_tleave(run);
        if (rc < 0) return rc;
        PL_TRY(pl_tlist_add(run, out->list, v));
    }
    return 0;
}

static int select_items(
    pl_trun *run, pl_tvalue self, const pl_targs *args, bool by_attribute, bool wanted, pl_tvalue *out)
{
    pl_tlist *items;
    const pl_tbuiltin *test = NULL;
    size_t skip = by_attribute;
    pl_tvalue attribute = {0};
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    if (!pl_tvalue_truth(self)) return 0;
    if (by_attribute) {
        if (!args->count) return PL_TFAIL(run, PL_EINPUT, "the name of an attribute is missing");
        attribute = args->items[0];
    }
    if (args->count > skip) {
        pl_tstring *name = NULL;
        PL_TRY(pl_targ_string(run, args->items[skip], "the test's name", &name));
        test = pl_tfind_test(name);
        if (!test || !test->call)
            return PL_TFAIL(run, PL_EUNSUPPORTED, "the test '%.*s' is not supported", PL_TSHOW(name));
        skip++;
    }
    pl_targs more = rest(args, skip);
    PL_TRY(pl_titerate(run, self, &items));
    for (size_t i = 0; i < items->count; i++) {
        pl_tvalue v;
        PL_TRY(pl_tpath(run, items->items[i], attribute, &v));
        if (test) PL_TRY(pl_tcall_builtin(run, test, "test", v, &more, &v));
        if (pl_tvalue_truth(v) == wanted) PL_TRY(pl_tlist_add(run, out->list, items->items[i]));
    }
    return 0;
}

FILTER(filter_select)
{
    UNUSED;
    return select_items(run, self, args, false, true, out);
}

FILTER(filter_reject)
{
    UNUSED;
    return select_items(run, self, args, false, false, out);
}

FILTER(filter_selectattr)
{
    UNUSED;
    return select_items(run, self, args, true, true, out);
}

FILTER(filter_rejectattr)
{
    UNUSED;
    return select_items(run, self, args, true, false, out);
}

/* ---- grouping ---- */

FILTER(filter_batch)
{
    UNUSED;
    pl_tlist *items;
    pl_tvalue group = {0};
    int64_t size = 0;
    PL_TRY(pl_targ_int(run, argv[0], "batch: linecount", &size));
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    for (size_t i = 0; i < items->count; i++) {
        if (!i || (int64_t)group.list->count == size) {
            PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, &group));
            PL_TRY(pl_tlist_add(run, out->list, group));
        }
        PL_TRY(pl_tlist_add(run, group.list, items->items[i]));
    }
    bool fill = items->count && argv[1].kind != PL_T_MISSING && argv[1].kind != PL_T_NONE;
    while (fill && (int64_t)group.list->count < size) PL_TRY(pl_tlist_add(run, group.list, argv[1]));
    return 0;
}

FILTER(filter_slice)
{
    UNUSED;
    pl_tlist *items;
    int64_t slices = 0;
    PL_TRY(pl_targ_int(run, argv[0], "slice: slices", &slices));
    if (slices == 0) return PL_TFAIL(run, PL_EINPUT, "slice: slices is 0");
    PL_TRY(pl_titerate(run, self, &items));
    PL_TRY(pl_tlist_new(run, PL_T_GENERATOR, 0, out));
    int64_t n = (int64_t)items->count, at = 0;
    bool fill = argv[1].kind != PL_T_MISSING && argv[1].kind != PL_T_NONE;
    for (int64_t k = 0; k < slices; k++) {
        pl_tvalue group;
        bool extra = k < n % slices;
        PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, &group));
        for (int64_t i = 0; i < n / slices + extra; i++) PL_TRY(pl_tlist_add(run, group.list, items->items[at++]));
        if (fill && !extra) PL_TRY(pl_tlist_add(run, group.list, argv[1]));
        PL_TRY(pl_tlist_add(run, out->list, group));
    }
    return 0;
}

static const pl_tbuiltin filters[] = {{"batch", filter_batch, "linecount,fill_with", 1},
    {"dictsort", filter_dictsort, "case_sensitive,by,reverse", 0}, {"first", filter_first, "", 0},
    {"items", filter_items, "", 0}, {"join", filter_join, "d,attribute", 0}, {"last", filter_last, "", 0},
    {"list", filter_list, "", 0}, {"map", filter_map, NULL, 0}, {"max", filter_max, "case_sensitive,attribute", 0},
    {"min", filter_min, "case_sensitive,attribute", 0}, {"reject", filter_reject, NULL, 0},
    {"rejectattr", filter_rejectattr, NULL, 0}, {"reverse", filter_reverse, "", 0}, {"select", filter_select, NULL, 0},
    {"selectattr", filter_selectattr, NULL, 0}, {"slice", filter_slice, "slices,fill_with", 1},
    {"sort", filter_sort, "reverse,case_sensitive,attribute", 0}, {"sum", filter_sum, "attribute,start", 0},
    {"unique", filter_unique, "case_sensitive,attribute", 0}};

const pl_tbuiltin *pl_tfind_sequence_filter(const pl_tstring *name)
{
    return pl_tfind(filters, PL_COUNT(filters), name);
}
