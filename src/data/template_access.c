/* v.name and v[key], as Jinja's sandbox looks them up: a dot prefers methods, brackets prefer items. */
#include <string.h>

#include "data/template_internal.h"

/* Binds a method to its object. One that Python has but we lack is an error at once: `undefined` would be wrong. */
static int bind(pl_trun *run, pl_tvalue v, const pl_tbuiltin *method, pl_tvalue *out)
{
    pl_tfunction *f;
    if (!method->call)
        return PL_TFAIL(
            run, PL_EUNSUPPORTED, "the method '%s' of %s is not supported", method->name, pl_tvalue_type(v));
    PL_TRY(pl_talloc(run, 1, sizeof *f, &f));
    f->builtin = method;
    f->self = v;
    *out = (pl_tvalue){.kind = PL_T_FUNCTION, .function = f};
    return 0;
}

static bool changes(pl_tvalue v, const pl_tstring *name)
{
    static const char *const of_lists[] = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};
    static const char *const of_dicts[] = {"clear", "pop", "popitem", "setdefault", "update"};
    bool list = v.kind == PL_T_LIST && v.list->flavour == PL_T_PLAIN;
    if (!list && v.kind != PL_T_DICT) return false;
    const char *const *names = list ? of_lists : of_dicts;
    for (int i = 0; i < (list ? PL_COUNT(of_lists) : PL_COUNT(of_dicts)); i++)
        if (strlen(names[i]) == name->size && memcmp(names[i], name->bytes, name->size) == 0) return true;
    return false;
}

static bool is(const pl_tstring *name, const char *text)
{
    return name->size == strlen(text) && memcmp(name->bytes, text, name->size) == 0;
}

static int loop_attribute(pl_trun *run, pl_tvalue v, const pl_tstring *name, pl_tvalue *out)
{
    const pl_tloop *l = v.loop;
    int64_t i = (int64_t)l->index0, n = (int64_t)l->items->count;
    if (is(name, "index"))
        *out = pl_tint(i + 1);
    else if (is(name, "index0"))
        *out = pl_tint(i);
    else if (is(name, "first"))
        *out = pl_tbool(i == 0);
    else if (is(name, "last"))
        *out = pl_tbool(i + 1 == n);
    else if (is(name, "length"))
        *out = pl_tint(n);
    else if (is(name, "revindex"))
        *out = pl_tint(n - i);
    else if (is(name, "revindex0"))
        *out = pl_tint(n - i - 1);
    else if (is(name, "depth"))
        *out = pl_tint(l->depth0 + 1);
    else if (is(name, "depth0"))
        *out = pl_tint(l->depth0);
    else if (is(name, "previtem"))
        *out = i > 0 ? l->items->items[i - 1] : pl_tundefined(PL_T_NO_RESULT, (pl_tstring *)name);
    else if (is(name, "nextitem"))
        *out = i + 1 < n ? l->items->items[i + 1] : pl_tundefined(PL_T_NO_RESULT, (pl_tstring *)name);
    else if (is(name, "cycle") || is(name, "changed"))
        return bind(run, v, pl_tfind_method(v, name), out);
    else
        *out = pl_tundefined(PL_T_LOOP, (pl_tstring *)name);
    return 0;
}

/* What Python's getattr finds; *found false when there is no such attribute. */
static int attribute(pl_trun *run, pl_tvalue v, pl_tstring *name, pl_tvalue *out, bool *found)
{
    *found = true;
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind == PL_T_LOOP) return loop_attribute(run, v, name, out);
    if ((name->size > 1 && memcmp(name->bytes, "__", 2) == 0) || changes(v, name)) {
        *out = pl_tundefined(PL_T_UNSAFE, name);
        return 0;
    }
    const pl_tvalue *field = v.kind == PL_T_NAMESPACE ? pl_tdict_get(v.dict, name->bytes, name->size) : NULL;
    if (field) {
        *out = *field;
        return 0;
    }
    if (v.kind == PL_T_CYCLER && is(name, "current")) {
        *out = v.cycler->items->items[v.cycler->position];
        return 0;
    }
    const pl_tbuiltin *method = pl_tfind_method(v, name);
    if (method) return bind(run, v, method, out);
    *found = false;
    return 0;
}

/* What Python's v[key] finds. */
static int item(pl_trun *run, pl_tvalue v, pl_tvalue key, pl_tvalue *out, bool *found)
{
    *found = false;
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind == PL_T_DICT) {
        size_t at = 0;
        /* An unhashable key is a TypeError, which Jinja takes for "not there". */
        if (key.kind == PL_T_DICT ||
            (key.kind == PL_T_LIST && key.list->flavour != PL_T_TUPLE && key.list->flavour != PL_T_RANGE))
            return 0;
        PL_TRY(pl_tdict_find(run, v.dict, key, &at, found));
        if (*found) *out = v.dict->values[at];
        return 0;
    }
    bool list = v.kind == PL_T_LIST && v.list->flavour <= PL_T_RANGE;
    if ((key.kind != PL_T_INT && key.kind != PL_T_BOOL) || (!list && v.kind != PL_T_STRING)) return 0;
    int64_t i = key.kind == PL_T_INT ? key.i : key.b, n;
    PL_TRY(pl_tlength(run, v, &n));
    if (i < 0) i += n;
    *found = i >= 0 && i < n;
    if (!*found) return 0;
    if (list) {
        *out = v.list->items[i];
        return 0;
    }
    PL_TRY(pl_twork(run, v.s->size == (size_t)n ? 0 : v.s->size));
    size_t at = pl_tstring_offset(v.s, i);
    PL_TRY(pl_tstring_new(run, v.s->bytes + at, pl_tchar_size((unsigned char)v.s->bytes[at]), out));
    out->note = v.note;
    return 0;
}

int pl_tattribute(pl_trun *run, pl_tvalue v, pl_tstring *name, pl_tvalue *out)
{
    bool found;
    PL_TRY(attribute(run, v, name, out, &found));
    if (found) return 0;
    if (v.kind == PL_T_DICT) {
        const pl_tvalue *value = pl_tdict_get(v.dict, name->bytes, name->size);
        if (value) {
            *out = *value;
            return 0;
        }
    }
    *out = pl_tundefined(v.kind, name);
    return 0;
}

int pl_titem(pl_trun *run, pl_tvalue v, pl_tvalue key, pl_tvalue *out)
{
    bool found;
    PL_TRY(item(run, v, key, out, &found));
    if (found) return 0;
    if (key.kind == PL_T_STRING) {
        PL_TRY(attribute(run, v, key.s, out, &found));
        if (!found) *out = pl_tundefined(v.kind, key.s);
        return 0;
    }
    *out = pl_tundefined(PL_T_NO_ELEMENT, NULL);
    if (key.kind == PL_T_INT) PL_TRY(pl_tvalue_text(run, key, &out->s));
    return 0;
}

int pl_tpath(pl_trun *run, pl_tvalue v, pl_tvalue path, pl_tvalue *out)
{
    *out = v;
    if (path.kind == PL_T_NONE || path.kind == PL_T_MISSING) return 0;
    if (path.kind != PL_T_STRING) return pl_titem(run, v, path, out);
    for (size_t at = 0; at <= path.s->size;) {
        const char *part = path.s->bytes + at, *dot = memchr(part, '.', path.s->size - at);
        size_t n = dot ? (size_t)(dot - part) : path.s->size - at, digits = 0;
        while (digits < n && part[digits] >= '0' && part[digits] <= '9') digits++;
        pl_tvalue key;
        PL_TRY(pl_tstring_new(run, part, n, &key));
        if (n && digits == n && n < 18) {
            int64_t i = 0;
            for (size_t k = 0; k < n; k++) i = i * 10 + (part[k] - '0');
            key = pl_tint(i);
        }
        PL_TRY(pl_titem(run, *out, key, out));
        at += n + 1;
    }
    return 0;
}
