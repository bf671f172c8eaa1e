/* The values of templates: making them, truth, equality. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/template_internal.h"

int pl_tstring_new(pl_trun *run, const char *bytes, size_t size, pl_tvalue *out)
{
    pl_tstring *s;
    PL_TRY(pl_talloc(run, 1, sizeof *s, &s));
    *s = (pl_tstring){.bytes = bytes, .size = size, .chars = -1};
    *out = (pl_tvalue){.kind = PL_T_STRING, .s = s};
    return 0;
}

int pl_tstring_copy(pl_trun *run, const char *bytes, size_t size, pl_tvalue *out)
{
    char *copy;
    PL_TRY(pl_twork(run, size));
    PL_TRY(pl_talloc(run, size, 1, &copy));
    if (size) memcpy(copy, bytes, size);
    return pl_tstring_new(run, copy, size, out);
}

int pl_tstring_take(pl_trun *run, pl_buf *buf, int rc, pl_tvalue *out)
{
    if (rc >= 0) rc = pl_tstring_copy(run, pl_buf_text(buf), buf->size, out);
    pl_buf_free(buf);
    return rc;
}

int pl_tlist_new(pl_trun *run, pl_tsequence flavour, size_t capacity, pl_tvalue *out)
{
    pl_tlist *list;
    PL_TRY(pl_talloc(run, 1, sizeof *list, &list));
    if (capacity) PL_TRY(pl_talloc(run, capacity, sizeof *list->items, &list->items));
    list->capacity = capacity;
    list->flavour = flavour;
    *out = (pl_tvalue){.kind = PL_T_LIST, .list = list};
    return 0;
}

int pl_tlist_add(pl_trun *run, pl_tlist *list, pl_tvalue item)
{
    PL_TRY(pl_twork(run, 0));
    PL_TRY(pl_tgrow(run, &list->items, &list->capacity, list->count + 1, sizeof *list->items));
    list->items[list->count++] = item;
    return 0;
}

int pl_tdict_new(pl_trun *run, pl_tvalue *out)
{
    pl_tdict *dict;
    PL_TRY(pl_talloc(run, 1, sizeof *dict, &dict));
    dict->message = run->traced ? run->message + 1 : 0;
    *out = (pl_tvalue){.kind = PL_T_DICT, .dict = dict};
    return 0;
}

static uint32_t hash_bytes(const char *bytes, size_t size)
{
    uint32_t h = 2166136261u; /* FNV-1a */
    for (size_t i = 0; i < size; i++) h = (h ^ (unsigned char)bytes[i]) * 16777619u;
    return h ^ (h >> 15);
}

static uint32_t hash_int(int64_t i)
{
    return (uint32_t)(((uint64_t)i * 0x9e3779b97f4a7c15u) >> 32);
}

/* Equal values hash alike: 1, 1.0 and true too. */
static int hash(pl_trun *run, pl_tvalue v, uint32_t *out)
{
    switch (v.kind) {
    case PL_T_BOOL: *out = hash_int(v.b); return 0;
    case PL_T_INT: *out = hash_int(v.i); return 0;
    case PL_T_FLOAT:
        *out = fabs(v.f) < 9e18 && v.f == floor(v.f) ? hash_int((int64_t)v.f) : hash_bytes((char *)&v.f, sizeof v.f);
        return 0;
    case PL_T_STRING: *out = hash_bytes(v.s->bytes, v.s->size); return pl_twork(run, v.s->size);
    case PL_T_DICT: break;
    case PL_T_LIST:
        if (v.list->flavour == PL_T_PLAIN || v.list->flavour == PL_T_VIEW) break;
        *out = 77;
        for (size_t i = 0; i < v.list->count; i++) {
            uint32_t h;
            PL_TRY(pl_tenter(run));
            int rc = hash(run, v.list->items[i], &h);
            pl_tleave(run);
            if (rc < 0) return rc;
            *out = *out * 31 + h;
        }
        return 0;
    default: *out = v.kind; return 0;
    }
    return PL_TFAIL(run, PL_EINPUT, "a %s cannot be a key or an element of a set (unhashable)", pl_tvalue_type(v));
}

enum { SMALL_DICT = 8 };

int pl_tdict_find(pl_trun *run, const pl_tdict *dict, pl_tvalue key, size_t *out, bool *found)
{
    uint32_t h;
    PL_TRY(hash(run, key, &h));
    *found = false;
    if (!dict->slots) {
        for (size_t i = 0; i < dict->count && !*found; i++) {
            PL_TRY(pl_tvalue_equal(run, dict->keys[i], key, found));
            *out = i;
        }
        return 0;
    }
    for (size_t at = h & (dict->slot_count - 1); dict->slots[at] && !*found; at = (at + 1) & (dict->slot_count - 1)) {
        *out = dict->slots[at] - 1;
        PL_TRY(pl_tvalue_equal(run, dict->keys[*out], key, found));
    }
    return 0;
}

static void put_slot(pl_tdict *dict, uint32_t h, size_t entry)
{
    size_t at = h & (dict->slot_count - 1);
    while (dict->slots[at]) at = (at + 1) & (dict->slot_count - 1);
    dict->slots[at] = (uint32_t)entry + 1;
}

static int rehash(pl_trun *run, pl_tdict *dict)
{
    size_t count = dict->slot_count ? dict->slot_count * 4 : SMALL_DICT * 8;
    if (count > UINT32_MAX) return PL_TFAIL(run, PL_ENOMEM, "a dict is too large");
    PL_TRY(pl_talloc(run, count, sizeof *dict->slots, &dict->slots));
    dict->slot_count = count;
    for (size_t i = 0; i < dict->count; i++) {
        uint32_t h;
        PL_TRY(hash(run, dict->keys[i], &h));
        put_slot(dict, h, i);
    }
    return 0;
}

int pl_tdict_set(pl_trun *run, pl_tdict *dict, pl_tvalue key, pl_tvalue value)
{
    size_t at;
    bool found;
    PL_TRY(pl_twork(run, 0));
    PL_TRY(pl_tdict_find(run, dict, key, &at, &found));
    if (found) {
        dict->values[at] = value;
        return 0;
    }
    size_t capacity = dict->capacity;
    PL_TRY(pl_tgrow(run, &dict->keys, &capacity, dict->count + 1, sizeof key));
    PL_TRY(pl_tgrow(run, &dict->values, &dict->capacity, dict->count + 1, sizeof value));
    dict->keys[dict->count] = key;
    dict->values[dict->count] = value;
    dict->count++;
    if (dict->count > (dict->slots ? dict->slot_count / 2 : SMALL_DICT)) return rehash(run, dict);
    if (dict->slots) {
        uint32_t h;
        PL_TRY(hash(run, key, &h));
        put_slot(dict, h, dict->count - 1);
    }
    return 0;
}

int pl_tdict_items(pl_trun *run, const pl_tdict *dict, pl_tlist *out)
{
    for (size_t i = 0; i < dict->count; i++) {
        pl_tvalue pair;
        PL_TRY(pl_tlist_new(run, PL_T_TUPLE, 2, &pair));
        PL_TRY(pl_tlist_add(run, pair.list, dict->keys[i]));
        PL_TRY(pl_tlist_add(run, pair.list, dict->values[i]));
        PL_TRY(pl_tlist_add(run, out, pair));
    }
    return 0;
}

const pl_tvalue *pl_tdict_get(const pl_tdict *dict, const char *key, size_t size)
{
    if (!dict->slots) {
        for (size_t i = 0; i < dict->count; i++)
            if (pl_tis_text(dict->keys[i], key, size)) return &dict->values[i];
        return NULL;
    }
    for (size_t at = hash_bytes(key, size) & (dict->slot_count - 1); dict->slots[at];
         at = (at + 1) & (dict->slot_count - 1)) {
        size_t entry = dict->slots[at] - 1;
        if (pl_tis_text(dict->keys[entry], key, size)) return &dict->values[entry];
    }
    return NULL;
}

static int object_from_json(pl_trun *run, const json_t *json, pl_tvalue *out)
{
    const char *name;
    json_t *item;
    PL_TRY(pl_tdict_new(run, out));
    json_object_foreach((json_t *)json, name, item)
    {
        pl_tvalue key, value;
        PL_TRY(pl_tstring_new(run, name, strlen(name), &key));
        PL_TRY(pl_tvalue_from_json(run, item, &value));
        PL_TRY(pl_tdict_set(run, out->dict, key, value));
    }
    return 0;
}

static int array_from_json(pl_trun *run, const json_t *json, pl_tvalue *out)
{
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, json_array_size(json), out));
    for (size_t i = 0; i < json_array_size(json); i++) {
        pl_tvalue item;
        PL_TRY(pl_tvalue_from_json(run, json_array_get(json, i), &item));
        PL_TRY(pl_tlist_add(run, out->list, item));
    }
    return 0;
}

int pl_tvalue_from_json(pl_trun *run, const json_t *json, pl_tvalue *out)
{
    int rc = 0;
    switch (json_typeof(json)) {
    case JSON_NULL: *out = pl_tnone(); return 0;
    case JSON_TRUE: *out = pl_tbool(true); return 0;
    case JSON_FALSE: *out = pl_tbool(false); return 0;
    case JSON_INTEGER: *out = pl_tint(json_integer_value(json)); return 0;
    case JSON_REAL: *out = pl_tfloat(json_real_value(json)); return 0;
    case JSON_STRING: return pl_tstring_new(run, json_string_value(json), json_string_length(json), out);
    case JSON_ARRAY:
    case JSON_OBJECT:
        PL_TRY(pl_tenter(run));
        rc = json_is_array(json) ? array_from_json(run, json, out) : object_from_json(run, json, out);
        pl_tleave(run);
        return rc;
    }
    return PL_TFAIL(run, PL_EBUG, "a JSON value of unknown type");
}

bool pl_tvalue_truth(pl_tvalue v)
{
    switch (v.kind) {
    case PL_T_MISSING:
    case PL_T_UNDEFINED:
    case PL_T_NONE: return false;
    case PL_T_BOOL: return v.b;
    case PL_T_INT: return v.i != 0;
    case PL_T_FLOAT: return v.f != 0;
    case PL_T_STRING: return v.s->size > 0;
    case PL_T_LIST: return v.list->flavour == PL_T_GENERATOR || v.list->count > 0;
    case PL_T_DICT: return v.dict->count > 0;
    default: return true;
    }
}

static bool is_number(pl_tvalue v)
{
    return v.kind == PL_T_BOOL || v.kind == PL_T_INT || v.kind == PL_T_FLOAT;
}

static int lists_equal(pl_trun *run, const pl_tlist *a, const pl_tlist *b, bool *out)
{
    *out = a == b;
    if (a == b || a->flavour != b->flavour || a->flavour > PL_T_RANGE || a->count != b->count) return 0;
    *out = true;
    for (size_t i = 0; i < a->count && *out; i++) PL_TRY(pl_tvalue_equal(run, a->items[i], b->items[i], out));
    return 0;
}

static int dicts_equal(pl_trun *run, const pl_tdict *a, const pl_tdict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; i < a->count && *out && a != b; i++) {
        size_t at = 0;
        PL_TRY(pl_tdict_find(run, b, a->keys[i], &at, out));
        if (*out) PL_TRY(pl_tvalue_equal(run, a->values[i], b->values[at], out));
    }
    return 0;
}

int pl_tvalue_equal(pl_trun *run, pl_tvalue a, pl_tvalue b, bool *out)
{
    int rc = 0;
    PL_TRY(pl_twork(run, 0));
    *out = false;
    if (is_number(a) && is_number(b)) return pl_tcompare_values(run, PL_T_EQ, a, b, out);
    if (a.kind != b.kind) return 0;
    switch (a.kind) {
    case PL_T_UNDEFINED:
    case PL_T_NONE: *out = true; return 0;
    case PL_T_STRING:
        PL_TRY(pl_twork(run, a.s->size == b.s->size ? a.s->size : 0));
        *out = pl_tis_text(a, b.s->bytes, b.s->size);
        return 0;
    case PL_T_LIST:
    case PL_T_DICT:
        PL_TRY(pl_tenter(run));
        rc = a.kind == PL_T_LIST ? lists_equal(run, a.list, b.list, out) : dicts_equal(run, a.dict, b.dict, out);
        pl_tleave(run);
        return rc;
    default: *out = a.list == b.list; return 0; /* the same object */
    }
}

const char *pl_tvalue_type(pl_tvalue v)
{
    static const char *const sequences[] = {"list", "tuple", "range", "dict view", "generator"};
    switch (v.kind) {
    case PL_T_NONE: return "None";
    case PL_T_BOOL: return "bool";
    case PL_T_INT: return "int";
    case PL_T_FLOAT: return "float";
    case PL_T_STRING: return "str";
    case PL_T_LIST: return v.list->name ? v.list->name : sequences[v.list->flavour];
    case PL_T_DICT: return "dict";
    case PL_T_NAMESPACE: return "Namespace";
    case PL_T_FUNCTION: return "function";
    case PL_T_LOOP: return "loop";
    case PL_T_CYCLER: return "Cycler";
    default: return "Undefined";
    }
}
