/* Running statements, and the rendering of a whole template. */
#include <string.h>

#include "data/template_internal.h"

enum { GO_ON, BREAK, CONTINUE }; /* how statements end, unless with an error */

static const size_t MEMORY_LIMIT = (size_t)256 << 20; /* bytes of values; the context comes on top */

int pl_tscope_push(pl_trun *run, pl_tscope *outer, pl_tscope **out)
{
    PL_TRY(pl_talloc(run, 1, sizeof **out, out));
    (*out)->outer = outer;
    return 0;
}

int pl_tscope_set(pl_trun *run, pl_tscope *scope, pl_tstring *name, pl_tvalue value)
{
    for (size_t i = 0; i < scope->count; i++)
        if (scope->names[i] == name) {
            scope->values[i] = value;
            return 0;
        }
    size_t capacity = scope->capacity;
    PL_TRY(pl_tgrow(run, &scope->names, &capacity, scope->count + 1, sizeof *scope->names));
    PL_TRY(pl_tgrow(run, &scope->values, &scope->capacity, scope->count + 1, sizeof *scope->values));
    scope->names[scope->count] = name;
    scope->values[scope->count++] = value;
    return 0;
}

int pl_twrite(pl_trun *run, const char *bytes, size_t size)
{
    run->written += size;
    if (run->written > run->arena.limit)
        return PL_TFAIL(run, PL_ENOMEM, "this writes more than %zu MiB", run->arena.limit >> 20);
    PL_TRY(pl_twork(run, size));
    PL_TRY(pl_torigin_copy(run, bytes, size, run->out->buf.size, run->captures == 0, &run->out->origins));
    return pl_buf_append(run->err, &run->out->buf, bytes, size);
}

static int print(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue v;
    pl_tstring *text;
    PL_TRY(pl_teval(run, s->expr, &v));
    run->line = s->line;
    PL_TRY(pl_tvalue_text(run, v, &text));
    return pl_twrite(run, text->bytes, text->size);
}

static int assign(pl_trun *run, const pl_texpr *target, pl_tvalue v)
{
    pl_tvalue on, key;
    pl_tlist *items;
    switch (target->op) {
    case PL_T_NAME: return pl_tscope_set(run, run->scope, target->name, v);
    case PL_T_NSREF:
        PL_TRY(pl_teval(run, target->a, &on));
        if (on.kind == PL_T_UNDEFINED) return pl_tundefined_fail(run, on);
        if (on.kind != PL_T_NAMESPACE)
            return PL_TFAIL(
                run, PL_EINPUT, "only attributes of a namespace() can be set, not of a %s", pl_tvalue_type(on));
        PL_TRY(pl_tstring_new(run, target->name->bytes, target->name->size, &key));
        return pl_tdict_set(run, on.dict, key, v);
    default: break;
    }
    PL_TRY(pl_titerate(run, v, &items));
    if (items->count != target->count)
        return PL_TFAIL(run, PL_EINPUT, "%zu values cannot be assigned to %zu names", items->count, target->count);
    for (size_t i = 0; i < items->count; i++) PL_TRY(assign(run, target->items[i], items->items[i]));
    return 0;
}

/* What statements write, as a string. Returns how they ended. */
static int capture(pl_trun *run, const pl_tstatement *body, pl_tvalue *out)
{
    pl_ttext text = {0}, *outer = run->out;
    run->out = &text;
    run->captures++;
    int rc = pl_trun_statements(run, body), taken = pl_ttext_take(run, &text, rc, out);
    run->captures--;
    run->out = outer;
    return taken < 0 ? taken : rc;
}

/* The same in a scope of its own, inside that of the run. */
static int capture_scoped(pl_trun *run, const pl_tstatement *body, pl_tvalue *out)
{
    pl_tscope *outer = run->scope;
    PL_TRY(pl_tscope_push(run, outer, &run->scope));
    int rc = capture(run, body, out);
    run->scope = outer;
    return rc;
}

static int run_capture(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue v;
    int rc = capture_scoped(run, s->body, &v);
    if (rc != GO_ON) return rc;
    run->line = s->line;
    if (s->expr) PL_TRY(pl_teval_filter(run, s->expr, v, &v));
    return assign(run, s->target, v);
}

static int run_filter_block(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue v;
    pl_tstring *text;
    int rc = capture_scoped(run, s->body, &v);
    if (rc != GO_ON) return rc;
    run->line = s->line;
    PL_TRY(pl_teval_filter(run, s->expr, v, &v));
    PL_TRY(pl_tvalue_text(run, v, &text));
    return pl_twrite(run, text->bytes, text->size);
}

static int run_if(pl_trun *run, const pl_tstatement *s)
{
    for (;;) {
        pl_tvalue test;
        PL_TRY(pl_teval(run, s->expr, &test));
        if (pl_tvalue_truth(test)) return pl_trun_statements(run, s->body);
        /* An elif is an `if` alone in the place of the else; an else with nothing but an `if` in it means the same. */
        const pl_tstatement *next = s->otherwise;
        if (!next || next->kind != PL_T_IF || next->next) return pl_trun_statements(run, next);
        s = next;
    }
}

/* The items of a loop that pass its `if`. */
static int select_items(pl_trun *run, const pl_tstatement *s, pl_tlist **items)
{
    pl_tvalue kept;
    pl_tscope *outer = run->scope;
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, &kept));
    for (size_t i = 0; i < (*items)->count; i++) {
        pl_tvalue test;
        PL_TRY(pl_tscope_push(run, outer, &run->scope));
        PL_TRY(assign(run, s->target, (*items)->items[i]));
        PL_TRY(pl_teval(run, s->test, &test));
        if (pl_tvalue_truth(test)) PL_TRY(pl_tlist_add(run, kept.list, (*items)->items[i]));
    }
    run->scope = outer;
    *items = kept.list;
    return 0;
}

/* A loop over `over` in the run's scope, which a failure leaves as it is: the run ends then anyway. */
static int run_loop(pl_trun *run, const pl_tstatement *s, pl_tvalue over, int depth0)
{
    pl_tloop *loop;
    pl_tscope *outer = run->scope;
    pl_tvalue self = {.kind = PL_T_LOOP};
    const int64_t message = run->message;
    const bool numbers = run->numbers;
    int rc = GO_ON;
    PL_TRY(pl_talloc(run, 1, sizeof *loop, &loop));
    loop->depth0 = depth0;
    loop->scope = outer;
    loop->recursive = s->recursive ? s : NULL;
    self.loop = loop;
    PL_TRY(pl_titerate(run, over, &loop->items));
    if (s->test) PL_TRY(select_items(run, s, &loop->items));
    size_t count = loop->items->count;
    for (; loop->index0 < count; loop->index0++) {
        PL_TRY(pl_tscope_push(run, outer, &run->scope));
        PL_TRY(pl_tscope_set(run, run->scope, run->template->names.loop, self));
        run->line = s->line;
        run->message = message;
        run->numbers = true;
        pl_torigin_name(run, loop->items->items[loop->index0]);
        run->numbers = loop->items->items[loop->index0].kind == PL_T_INT;
        PL_TRY(assign(run, s->target, loop->items->items[loop->index0]));
        if ((rc = pl_trun_statements(run, s->body)) < 0) return rc;
        if (rc == BREAK) break;
    }
    run->message = message;
    run->numbers = numbers;
    if (count == 0 && s->otherwise) {
        PL_TRY(pl_tscope_push(run, outer, &run->scope));
        if ((rc = pl_trun_statements(run, s->otherwise)) < 0) return rc;
    }
    run->scope = outer;
    return count ? GO_ON : rc;
}

static int run_for(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue over;
    PL_TRY(pl_teval(run, s->expr, &over));
    run->line = s->line;
    return run_loop(run, s, over, 0);
}

int pl_trun_loop(pl_trun *run, pl_tloop *loop, pl_tvalue over, pl_tvalue *out)
{
    if (!loop->recursive) return PL_TFAIL(run, PL_EINPUT, "loop(...) needs a loop that is marked 'recursive'");
    pl_ttext text = {0}, *outer = run->out;
    pl_tscope *scope = run->scope;
    PL_TRY(pl_tenter(run));
    run->out = &text;
    run->captures++;
    run->scope = loop->scope;
    int rc = run_loop(run, loop->recursive, over, loop->depth0 + 1);
    run->scope = scope;
    run->captures--;
    run->out = outer;
    pl_tleave(run);
    return pl_ttext_take(run, &text, rc, out);
}

static int make_macro(pl_trun *run, const pl_tmacro *macro, pl_tvalue *out)
{
    pl_tfunction *f;
    PL_TRY(pl_talloc(run, 1, sizeof *f, &f));
    f->macro = macro;
    f->scope = run->scope;
    *out = (pl_tvalue){.kind = PL_T_FUNCTION, .function = f};
    return 0;
}

/* Keyword arguments that are no parameters: `caller`, then whatever kwargs may take. */
static int bind_rest(pl_trun *run, const pl_tmacro *m, const char *name, const pl_targs *args, const bool *used)
{
    const pl_tnames *names = &run->template->names;
    pl_tvalue kwargs = {0}, caller = pl_tundefined(PL_T_NO_VARIABLE, names->caller), key;
    bool explicit_caller = false;
    for (size_t i = 0; i < m->count; i++) explicit_caller |= m->params[i] == names->caller;
    if (m->uses_kwargs) PL_TRY(pl_tdict_new(run, &kwargs));
    for (size_t i = 0; i < args->named_count; i++) {
        pl_tstring *n = args->names[i];
        if (used[i]) continue;
        if (m->uses_caller && !explicit_caller && n->size == 6 && memcmp(n->bytes, "caller", 6) == 0) {
            caller = args->named[i];
            continue;
        }
        if (!m->uses_kwargs)
            return PL_TFAIL(run, PL_EINPUT, "the macro '%s' has no parameter '%.*s'", name, PL_TSHOW(n));
        PL_TRY(pl_tstring_new(run, n->bytes, n->size, &key));
        PL_TRY(pl_tdict_set(run, kwargs.dict, key, args->named[i]));
    }
    if (m->uses_kwargs) PL_TRY(pl_tscope_set(run, run->scope, names->kwargs, kwargs));
    if (m->uses_caller && !explicit_caller) PL_TRY(pl_tscope_set(run, run->scope, names->caller, caller));
    return 0;
}

/* The arguments of a macro into the run's scope, which is the macro's own. */
static int bind_params(pl_trun *run, const pl_tmacro *m, const pl_targs *args)
{
    char name[64] = "caller";
    bool *used;
    if (m->name) snprintf(name, sizeof name, "%.*s", PL_TSHOW(m->name));
    PL_TRY(pl_talloc(run, args->named_count + 1, sizeof *used, &used));
    for (size_t i = 0; i < m->count; i++) {
        pl_tvalue v = i < args->count ? args->items[i] : (pl_tvalue){0};
        for (size_t k = 0; k < args->named_count && v.kind == PL_T_MISSING; k++) {
            const pl_tstring *n = args->names[k];
            if (n->size != m->params[i]->size || memcmp(n->bytes, m->params[i]->bytes, n->size) != 0) continue;
            used[k] = true;
            v = args->named[k];
        }
        if (v.kind == PL_T_MISSING && m->defaults[i]) PL_TRY(pl_teval(run, m->defaults[i], &v));
        pl_torigin_name(run, v);
        PL_TRY(pl_tscope_set(run, run->scope, m->params[i], v));
    }
    PL_TRY(bind_rest(run, m, name, args, used));
    if (args->count > m->count && !m->uses_varargs)
        return PL_TFAIL(
            run, PL_EINPUT, "the macro '%s' takes at most %zu arguments, not %zu", name, m->count, args->count);
    if (!m->uses_varargs) return 0;
    pl_tvalue rest;
    PL_TRY(pl_tlist_new(run, PL_T_TUPLE, 0, &rest));
    for (size_t i = m->count; i < args->count; i++) PL_TRY(pl_tlist_add(run, rest.list, args->items[i]));
    return pl_tscope_set(run, run->scope, run->template->names.varargs, rest);
}

int pl_trun_macro(pl_trun *run, const pl_tfunction *f, const pl_targs *args, pl_tvalue *out)
{
    pl_tscope *scope = run->scope;
    const int64_t message = run->message;
    const bool numbers = run->numbers;
    PL_TRY(pl_tenter(run));
    int rc = pl_tscope_push(run, f->scope, &run->scope);
    run->numbers |= message < 0; /* outside of loops the message that a macro is given is the one it writes */
    if (rc == 0) rc = bind_params(run, f->macro, args);
    run->numbers = false;
    if (rc == 0) rc = capture(run, f->macro->body, out);
    run->message = message;
    run->numbers = numbers;
    run->scope = scope;
    pl_tleave(run);
    return rc;
}

static int run_macro(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue macro;
    PL_TRY(make_macro(run, s->macro, &macro));
    return pl_tscope_set(run, run->scope, s->macro->name, macro);
}

static int run_call_block(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue caller, v;
    pl_tstring *text;
    PL_TRY(make_macro(run, s->macro, &caller));
    PL_TRY(pl_teval_call(run, s->expr, caller, &v));
    PL_TRY(pl_tvalue_text(run, v, &text));
    return pl_twrite(run, text->bytes, text->size);
}

static int run_with(pl_trun *run, const pl_tstatement *s)
{
    pl_tscope *outer = run->scope, *inner;
    PL_TRY(pl_tscope_push(run, outer, &inner));
    for (size_t i = 0; i < s->expr->count; i++) {
        pl_tvalue v;
        run->scope = outer; /* values see nothing of the targets before them */
        PL_TRY(pl_teval(run, s->expr->items[i], &v));
        run->scope = inner;
        PL_TRY(assign(run, s->target->items[i], v));
    }
    run->scope = inner;
    int rc = pl_trun_statements(run, s->body);
    run->scope = outer;
    return rc;
}

static int run_generation(pl_trun *run, const pl_tstatement *s)
{
    pl_tscope *outer = run->scope;
    PL_TRY(pl_tscope_push(run, outer, &run->scope));
    run->generations++;
    int rc = pl_trun_statements(run, s->body);
    run->generations--;
    run->scope = outer;
    return rc;
}

static int run_statement(pl_trun *run, const pl_tstatement *s)
{
    pl_tvalue v;
    switch (s->kind) {
    case PL_T_TEXT: return pl_twrite(run, s->text->bytes, s->text->size);
    case PL_T_PRINT: return print(run, s);
    case PL_T_SET:
        PL_TRY(pl_teval(run, s->expr, &v));
        run->line = s->line;
        pl_torigin_name(run, v);
        return assign(run, s->target, v);
    case PL_T_CAPTURE: return run_capture(run, s);
    case PL_T_IF: return run_if(run, s);
    case PL_T_FOR: return run_for(run, s);
    case PL_T_BREAK: return BREAK;
    case PL_T_CONTINUE: return CONTINUE;
    case PL_T_MACRO: return run_macro(run, s);
    case PL_T_CALL_BLOCK: return run_call_block(run, s);
    case PL_T_FILTER_BLOCK: return run_filter_block(run, s);
    case PL_T_WITH: return run_with(run, s);
    case PL_T_GENERATION: return run_generation(run, s);
    }
    return PL_TFAIL(run, PL_EBUG, "a statement of unknown kind");
}

int pl_trun_statements(pl_trun *run, const pl_tstatement *s)
{
    int rc = GO_ON;
    PL_TRY(pl_tenter(run));
    for (; s && rc == GO_ON; s = s->next) {
        run->line = s->line;
        rc = pl_twork(run, 0);
        if (rc == 0) rc = run_statement(run, s);
    }
    pl_tleave(run);
    return rc;
}

static int render(pl_trun *run)
{
    pl_tvalue context = {.kind = PL_T_DICT};
    run->line = 1;
    if (!json_is_object(run->context)) return PL_TFAIL(run, PL_EBUG, "the context of a template must be an object");
    PL_TRY(pl_tvalue_from_json(run, run->context, &context));
    run->variables = context.dict;
    PL_TRY(pl_torigin_adopt(run, context.dict));
    run->arena.limit += run->arena.total;
    PL_TRY(pl_tscope_push(run, NULL, &run->scope));
    return pl_trun_statements(run, run->template->body);
}

int pl_template_render(pl_error *err, const pl_template *t, const json_t *context, pl_buf *out, pl_pieces *pieces)
{
    pl_ttext text = {0};
    pl_trun run = {.err = err,
        .where = t->where,
        .arena = {.limit = MEMORY_LIMIT},
        .template = t,
        .context = context,
        .out = &text,
        .traced = pieces != NULL,
        .message = -1};
    int rc = render(&run);
    if (rc >= 0) rc = pl_buf_append(err, out, pl_buf_text(&text.buf), text.buf.size);
    if (rc >= 0 && pieces) {
        *pieces = text.origins;
        text.origins = (pl_pieces){0};
    }
    pl_ttext_free(&text);
    pl_tarena_free(&run.arena);
    return rc < 0 ? rc : 0;
}
