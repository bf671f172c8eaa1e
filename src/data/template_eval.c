/* Evaluation of expressions. */
#include <string.h>

#include "data/template_internal.h"

static int lookup(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    for (const pl_tscope *s = run->scope; s; s = s->outer)
        for (size_t i = 0; i < s->count; i++)
            if (s->names[i] == e->name) {
                *out = s->values[i];
                if (out->kind == PL_T_MISSING) *out = pl_tundefined(PL_T_NO_VARIABLE, e->name);
                return 0;
            }
    bool time = e->name == run->template->names.strftime_now;
    const pl_tvalue *v = time ? NULL : pl_tdict_get(run->variables, e->name->bytes, e->name->size);
    const pl_tbuiltin *global = v ? NULL : pl_tfind_global(e->name);
    if (v) {
        *out = *v;
    } else if (global) {
        pl_tfunction *f;
        if (!global->call) return PL_TFAIL(run, PL_EUNSUPPORTED, "the function '%s' is not supported", global->name);
        PL_TRY(pl_talloc(run, 1, sizeof *f, &f));
        f->builtin = global;
        *out = (pl_tvalue){.kind = PL_T_FUNCTION, .function = f};
    } else {
        *out = pl_tundefined(PL_T_NO_VARIABLE, e->name);
    }
    return 0;
}

static int make_list(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue item;
    PL_TRY(pl_tlist_new(run, e->op == PL_T_MAKE_LIST ? PL_T_PLAIN : PL_T_TUPLE, e->count, out));
    for (size_t i = 0; i < e->count; i++) {
        PL_TRY(pl_teval(run, e->items[i], &item));
        PL_TRY(pl_tlist_add(run, out->list, item));
    }
    return 0;
}

static int make_dict(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue key, value;
    PL_TRY(pl_tdict_new(run, out));
    for (size_t i = 0; i < e->count; i += 2) {
        PL_TRY(pl_teval(run, e->items[i], &key));
        PL_TRY(pl_teval(run, e->items[i + 1], &value));
        PL_TRY(pl_tdict_set(run, out->dict, key, value));
    }
    return 0;
}

/* a < b < c: each operand once, and no further than the first that is false. */
static int compare(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue left, right;
    bool holds = true;
    PL_TRY(pl_teval(run, e->a, &left));
    for (size_t i = 0; i < e->count && holds; i++, left = right) {
        PL_TRY(pl_teval(run, e->items[i], &right));
        run->line = e->line;
        PL_TRY(pl_tcompare_values(run, e->ops[i], left, right, &holds));
    }
    *out = pl_tbool(holds);
    return 0;
}

static int concat(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_ttext text = {0};
    int rc = 0;
    for (size_t i = 0; i < e->count && rc == 0; i++) {
        pl_tvalue v;
        rc = pl_teval(run, e->items[i], &v);
        if (rc == 0) rc = pl_ttext_print(run, &text, v);
        if (rc == 0 && text.buf.size > run->arena.limit)
            rc = PL_TFAIL(run, PL_ENOMEM, "this makes more than %zu MiB of text", run->arena.limit >> 20);
    }
    return pl_ttext_take(run, &text, rc, out);
}

static int negate(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue v;
    PL_TRY(pl_teval(run, e->a, &v));
    run->line = e->line;
    if (v.kind == PL_T_FLOAT) {
        *out = pl_tfloat(e->op == PL_T_NEG ? -v.f : v.f);
        return 0;
    }
    if (v.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, v);
    if (v.kind != PL_T_INT && v.kind != PL_T_BOOL)
        return PL_TFAIL(run, PL_EINPUT, "a number is needed after the sign, not %s", pl_tvalue_type(v));
    return pl_tarith(run, e->op == PL_T_NEG ? PL_T_SUB : PL_T_ADD, pl_tint(0), v, out);
}

static int slice(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue v, bounds[3] = {{0}};
    PL_TRY(pl_teval(run, e->a, &v));
    for (int i = 0; i < 3; i++)
        if (e->items[i]) PL_TRY(pl_teval(run, e->items[i], &bounds[i]));
    run->line = e->line;
    return pl_tslice(run, v, bounds, out);
}

/* ---- calls ---- */

static int add_named(
    pl_trun *run, pl_targs *args, pl_tstring **names, pl_tvalue *named, pl_tstring *name, pl_tvalue value)
{
    for (size_t i = 0; i < args->named_count; i++)
        if (names[i]->size == name->size && memcmp(names[i]->bytes, name->bytes, name->size) == 0)
            return PL_TFAIL(run, PL_EINPUT, "the argument %.*s is given twice", PL_TSHOW(name));
    names[args->named_count] = name;
    named[args->named_count++] = value;
    return 0;
}

/* The arguments of a call, filter or test; `caller` (PL_T_MISSING if none) is one more keyword. */
static int evaluate_args(pl_trun *run, const pl_texpr *e, pl_tvalue caller, pl_targs *out)
{
    pl_tvalue star = {0}, star_star = {0}, *items, *named;
    pl_tstring **names;
    pl_tlist *more = NULL;
    *out = (pl_targs){0};
    if (!e->count && !e->named_count && !e->star && !e->star_star && caller.kind == PL_T_MISSING) return 0;
    if (e->star) {
        PL_TRY(pl_teval(run, e->star, &star));
        PL_TRY(pl_titerate(run, star, &more));
    }
    if (e->star_star) {
        PL_TRY(pl_teval(run, e->star_star, &star_star));
        if (star_star.kind != PL_T_DICT)
            return PL_TFAIL(run, PL_EINPUT, "** needs a dict, not %s", pl_tvalue_type(star_star));
    }
    PL_TRY(pl_talloc(run, e->count + (more ? more->count : 0), sizeof *items, &items));
    for (size_t i = 0; i < e->count; i++) PL_TRY(pl_teval(run, e->items[i], &items[out->count++]));
    for (size_t i = 0; more && i < more->count; i++) items[out->count++] = more->items[i];
    size_t count = e->named_count + (e->star_star ? star_star.dict->count : 0) + 1;
    PL_TRY(pl_talloc(run, count, sizeof *names, &names));
    PL_TRY(pl_talloc(run, count, sizeof *named, &named));
    out->items = items;
    out->names = names;
    out->named = named;
    for (size_t i = 0; i < e->named_count; i++) {
        pl_tvalue v;
        PL_TRY(pl_teval(run, e->named[i], &v));
        PL_TRY(add_named(run, out, names, named, e->names[i], v));
    }
    for (size_t i = 0; e->star_star && i < star_star.dict->count; i++) {
        pl_tvalue key = star_star.dict->keys[i];
        if (key.kind != PL_T_STRING) return PL_TFAIL(run, PL_EINPUT, "the keys of a ** argument must be strings");
        PL_TRY(add_named(run, out, names, named, key.s, star_star.dict->values[i]));
    }
    if (caller.kind != PL_T_MISSING) PL_TRY(add_named(run, out, names, named, run->template->names.caller, caller));
    return 0;
}

/* The place of a name in "old,new,count", -1 if it is not there. */
static int param_index(const char *params, const pl_tstring *name)
{
    for (int i = 0; *params; i++) {
        size_t n = strcspn(params, ",");
        if (n == name->size && memcmp(params, name->bytes, n) == 0) return i;
        params += n + (params[n] == ',');
    }
    return -1;
}

int pl_tcall_builtin(
    pl_trun *run, const pl_tbuiltin *b, const char *what, pl_tvalue self, const pl_targs *args, pl_tvalue *out)
{
    pl_tvalue argv[PL_T_MAX_PARAMS] = {{0}};
    PL_TRY(pl_twork(run, 0));
    if (!b->params) return b->call(run, self, argv, args, out);
    size_t count = b->params[0] ? 1 : 0;
    for (const char *p = b->params; *p; p++) count += *p == ',';
    if (args->count > count)
        return PL_TFAIL(
            run, PL_EINPUT, "the %s '%s' takes at most %zu arguments, not %zu", what, b->name, count, args->count);
    for (size_t i = 0; i < args->count; i++) argv[i] = args->items[i];
    for (size_t i = 0; i < args->named_count; i++) {
        int at = param_index(b->params, args->names[i]);
        if (at < 0)
            return PL_TFAIL(
                run, PL_EINPUT, "the %s '%s' has no argument '%.*s'", what, b->name, PL_TSHOW(args->names[i]));
        if (argv[at].kind != PL_T_MISSING)
            return PL_TFAIL(
                run, PL_EINPUT, "the %s '%s' is given '%.*s' twice", what, b->name, PL_TSHOW(args->names[i]));
        argv[at] = args->named[i];
    }
    for (int i = 0; i < b->required; i++)
        if (argv[i].kind == PL_T_MISSING)
            return PL_TFAIL(run, PL_EINPUT, "the %s '%s' needs %d arguments", what, b->name, b->required);
    return b->call(run, self, argv, args, out);
}

int pl_tcall_value(pl_trun *run, pl_tvalue f, const pl_targs *args, pl_tvalue *out)
{
    if (f.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, f);
    if (f.kind == PL_T_LOOP) {
        if (args->count != 1 || args->named_count) return PL_TFAIL(run, PL_EINPUT, "loop(...) takes one argument");
        return pl_trun_loop(run, f.loop, args->items[0], out);
    }
    if (f.kind != PL_T_FUNCTION) return PL_TFAIL(run, PL_EINPUT, "a %s cannot be called", pl_tvalue_type(f));
    if (!f.function->builtin) return pl_trun_macro(run, f.function, args, out);
    pl_tvalue self = f.function->self;
    if (self.kind == PL_T_MISSING) self = f; /* a joiner is its own object */
    return pl_tcall_builtin(run, f.function->builtin, "function", self, args, out);
}

int pl_teval_call(pl_trun *run, const pl_texpr *e, pl_tvalue caller, pl_tvalue *out)
{
    pl_tvalue f;
    pl_targs args;
    PL_TRY(pl_teval(run, e->a, &f));
    PL_TRY(evaluate_args(run, e, caller, &args));
    int line = run->line = e->line;
    PL_TRY(pl_tcall_value(run, f, &args, out));
    run->line = line;
    return 0;
}

static int apply(pl_trun *run, const pl_texpr *e, pl_tvalue on, pl_tvalue *out)
{
    const char *what = e->op == PL_T_FILTER ? "filter" : "test";
    pl_targs args;
    PL_TRY(evaluate_args(run, e, (pl_tvalue){0}, &args));
    run->line = e->line;
    if (!e->builtin || !e->builtin->call)
        return PL_TFAIL(run, PL_EUNSUPPORTED, "the %s '%.*s' is not supported", what, PL_TSHOW(e->name));
    return pl_tcall_builtin(run, e->builtin, what, on, &args, out);
}

int pl_teval_filter(pl_trun *run, const pl_texpr *e, pl_tvalue on, pl_tvalue *out)
{
    if (e->a) {
        PL_TRY(pl_tenter(run));
        int rc = pl_teval_filter(run, e->a, on, &on);
        pl_tleave(run);
        if (rc < 0) return rc;
    }
    return apply(run, e, on, out);
}

static int binary(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue a, b;
    PL_TRY(pl_teval(run, e->a, &a));
    PL_TRY(pl_teval(run, e->b, &b));
    run->line = e->line;
    return e->op == PL_T_ITEM ? pl_titem(run, a, b, out) : pl_tarith(run, e->op, a, b, out);
}

static int condition(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue test;
    PL_TRY(pl_teval(run, e->b, &test));
    if (pl_tvalue_truth(test)) return pl_teval(run, e->a, out);
    if (e->c) return pl_teval(run, e->c, out);
    *out = pl_tundefined(PL_T_NO_RESULT, NULL);
    return 0;
}

static int eval(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    pl_tvalue a;
    switch (e->op) {
    case PL_T_CONST: *out = e->value; return 0;
    case PL_T_NAME: return lookup(run, e, out);
    case PL_T_NSREF: break;
    case PL_T_MAKE_LIST:
    case PL_T_MAKE_TUPLE: return make_list(run, e, out);
    case PL_T_MAKE_DICT: return make_dict(run, e, out);
    case PL_T_COND: return condition(run, e, out);
    case PL_T_AND:
    case PL_T_OR:
        PL_TRY(pl_teval(run, e->a, out));
        return pl_tvalue_truth(*out) == (e->op == PL_T_AND) ? pl_teval(run, e->b, out) : 0;
    case PL_T_NOT:
        PL_TRY(pl_teval(run, e->a, &a));
        *out = pl_tbool(!pl_tvalue_truth(a));
        return 0;
    case PL_T_COMPARE: return compare(run, e, out);
    case PL_T_CONCAT: return concat(run, e, out);
    case PL_T_NEG:
    case PL_T_POS: return negate(run, e, out);
    case PL_T_ATTRIBUTE:
        PL_TRY(pl_teval(run, e->a, &a));
        run->line = e->line;
        return pl_tattribute(run, a, e->name, out);
    case PL_T_SLICE: return slice(run, e, out);
    case PL_T_CALL: return pl_teval_call(run, e, (pl_tvalue){0}, out);
    case PL_T_FILTER:
    case PL_T_TEST: PL_TRY(pl_teval(run, e->a, &a)); return apply(run, e, a, out);
    default: return binary(run, e, out);
    }
    return PL_TFAIL(run, PL_EINPUT, "this can only be assigned to");
}

int pl_teval(pl_trun *run, const pl_texpr *e, pl_tvalue *out)
{
    PL_TRY(pl_twork(run, 0));
    PL_TRY(pl_tenter(run));
    run->line = e->line;
    int rc = eval(run, e, out);
    pl_tleave(run);
    return rc;
}
