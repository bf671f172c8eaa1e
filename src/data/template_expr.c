/* The parser of expressions: Jinja's grammar, by recursive descent. */
#include <string.h>

#include "data/template_internal.h"

const pl_ttoken *pl_tpeek(const pl_tparser *p, size_t ahead)
{
    size_t last = p->tokens.count - 1; /* PL_TOK_END */
    return &p->tokens.items[p->at + ahead < last ? p->at + ahead : last];
}

bool pl_tpeek_is(const pl_tparser *p, size_t ahead, pl_ttoken_kind kind, const char *text)
{
    const pl_ttoken *t = pl_tpeek(p, ahead);
    if (t->kind != kind) return false;
    return !text || (t->text.size == strlen(text) && memcmp(t->text.bytes, text, t->text.size) == 0);
}

bool pl_tskip(pl_tparser *p, pl_ttoken_kind kind, const char *text)
{
    if (!pl_tpeek_is(p, 0, kind, text)) return false;
    p->at++;
    return true;
}

static bool operator_is(const pl_tparser *p, const char *text)
{
    return pl_tpeek_is(p, 0, PL_TOK_OPERATOR, text);
}

static bool skip_operator(pl_tparser *p, const char *text)
{
    return pl_tskip(p, PL_TOK_OPERATOR, text);
}

static bool skip_word(pl_tparser *p, const char *text)
{
    return pl_tskip(p, PL_TOK_NAME, text);
}

int pl_tunexpected(pl_tparser *p, const char *expected)
{
    const pl_ttoken *t = pl_tpeek(p, 0);
    p->run.line = t->line;
    if (t->kind == PL_TOK_END) return PL_TFAIL(&p->run, PL_EINPUT, "the template ends where %s was expected", expected);
    return PL_TFAIL(&p->run, PL_EINPUT, "unexpected '%.*s' where %s was expected", PL_TSHOW(&t->text), expected);
}

int pl_texpect(pl_tparser *p, pl_ttoken_kind kind, const char *text)
{
    if (pl_tskip(p, kind, text)) return 0;
    return pl_tunexpected(p, text ? text : kind == PL_TOK_NAME ? "a name" : kind == PL_TOK_BLOCK_END ? "%}" : "}}");
}

int pl_tintern(pl_tparser *p, const char *bytes, size_t size, pl_tstring **out)
{
    const pl_tvalue *known = pl_tdict_get(&p->names, bytes, size);
    pl_tvalue v;
    if (known) {
        v = *known;
    } else {
        PL_TRY(pl_tstring_copy(&p->run, bytes, size, &v));
        pl_tstring_chars(v.s); /* counted now: later, several threads look at it */
        PL_TRY(pl_tdict_set(&p->run, &p->names, v, v));
    }
    *out = v.s;
    return 0;
}

int pl_tparse_name(pl_tparser *p, pl_tstring **out)
{
    const pl_ttoken *t = pl_tpeek(p, 0);
    PL_TRY(pl_texpect(p, PL_TOK_NAME, NULL));
    return pl_tintern(p, t->text.bytes, t->text.size, out);
}

static int new_expr(pl_tparser *p, pl_top op, pl_texpr *a, pl_texpr *b, pl_texpr **out)
{
    PL_TRY(pl_talloc(&p->run, 1, sizeof **out, out));
    (*out)->op = op;
    (*out)->line = pl_tpeek(p, 0)->line;
    (*out)->a = a;
    (*out)->b = b;
    return 0;
}

/* Appends to e->items, whose capacity is kept by the caller. */
static int add_item(pl_tparser *p, pl_texpr *e, size_t *capacity, pl_texpr *item)
{
    PL_TRY(pl_tgrow(&p->run, &e->items, capacity, e->count + 1, sizeof *e->items));
    e->items[e->count++] = item;
    return 0;
}

/* Names that a macro's body uses and its caller must then provide. */
static void note_special(pl_tparser *p, const pl_tstring *name)
{
    const pl_tnames *names = &p->template->names;
    for (struct pl_tmacros *m = p->macros; m; m = m->outer) {
        m->macro->uses_caller |= name == names->caller;
        m->macro->uses_varargs |= name == names->varargs;
        m->macro->uses_kwargs |= name == names->kwargs;
    }
}

static int parse_list(pl_tparser *p, pl_texpr **out)
{
    size_t capacity = 0;
    PL_TRY(new_expr(p, PL_T_MAKE_LIST, NULL, NULL, out));
    p->at++;
    while (!operator_is(p, "]")) {
        if ((*out)->count) PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ","));
        if (operator_is(p, "]")) break;
        pl_texpr *item;
        PL_TRY(pl_tparse_expression(p, true, &item));
        PL_TRY(add_item(p, *out, &capacity, item));
    }
    p->at++;
    return 0;
}

static int parse_dict(pl_tparser *p, pl_texpr **out)
{
    size_t capacity = 0;
    PL_TRY(new_expr(p, PL_T_MAKE_DICT, NULL, NULL, out));
    p->at++;
    while (!operator_is(p, "}")) {
        if ((*out)->count) PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ","));
        if (operator_is(p, "}")) break;
        pl_texpr *item;
        PL_TRY(pl_tparse_expression(p, true, &item));
        PL_TRY(add_item(p, *out, &capacity, item));
        PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ":"));
        PL_TRY(pl_tparse_expression(p, true, &item));
        PL_TRY(add_item(p, *out, &capacity, item));
    }
    p->at++;
    return 0;
}

/* String literals side by side are one. */
static int parse_strings(pl_tparser *p, pl_tvalue *out)
{
    const pl_ttoken *t = pl_tpeek(p, 0);
    p->at++;
    if (pl_tpeek(p, 0)->kind != PL_TOK_STRING) {
        PL_TRY(pl_tstring_new(&p->run, t->text.bytes, t->text.size, out));
    } else {
        pl_buf buf = {0};
        int rc = pl_buf_append(p->run.err, &buf, t->text.bytes, t->text.size);
        for (; rc == 0 && (t = pl_tpeek(p, 0))->kind == PL_TOK_STRING; p->at++)
            rc = pl_buf_append(p->run.err, &buf, t->text.bytes, t->text.size);
        PL_TRY(pl_tstring_take(&p->run, &buf, rc, out));
    }
    pl_tstring_chars(out->s); /* counted now: later, several threads look at it */
    return 0;
}

static int parse_word(pl_tparser *p, bool with_namespace, pl_texpr **out)
{
    pl_tstring *name;
    PL_TRY(new_expr(p, PL_T_CONST, NULL, NULL, out));
    if (skip_word(p, "true") || skip_word(p, "True")) {
        (*out)->value = pl_tbool(true);
    } else if (skip_word(p, "false") || skip_word(p, "False")) {
        (*out)->value = pl_tbool(false);
    } else if (skip_word(p, "none") || skip_word(p, "None")) {
        (*out)->value = pl_tnone();
    } else {
        PL_TRY(pl_tparse_name(p, &name));
        (*out)->op = PL_T_NAME;
        (*out)->name = name;
        note_special(p, name);
        if (with_namespace && skip_operator(p, ".")) {
            pl_texpr *on = *out;
            PL_TRY(new_expr(p, PL_T_NSREF, on, NULL, out));
            return pl_tparse_name(p, &(*out)->name);
        }
    }
    return 0;
}

static int parse_tuple_items(pl_tparser *p, bool with_condition, bool target, bool with_namespace, bool parentheses,
    const char *end, pl_texpr **out);

static int parse_primary(pl_tparser *p, bool with_namespace, pl_texpr **out)
{
    const pl_ttoken *t = pl_tpeek(p, 0);
    switch (t->kind) {
    case PL_TOK_NAME: return parse_word(p, with_namespace, out);
    case PL_TOK_STRING: PL_TRY(new_expr(p, PL_T_CONST, NULL, NULL, out)); return parse_strings(p, &(*out)->value);
    case PL_TOK_INT:
    case PL_TOK_FLOAT:
        PL_TRY(new_expr(p, PL_T_CONST, NULL, NULL, out));
        (*out)->value = t->kind == PL_TOK_INT ? pl_tint(t->i) : pl_tfloat(t->f);
        p->at++;
        return 0;
    default: break;
    }
    if (operator_is(p, "[")) return parse_list(p, out);
    if (operator_is(p, "{")) return parse_dict(p, out);
    if (!skip_operator(p, "(")) return pl_tunexpected(p, "an expression");
    PL_TRY(parse_tuple_items(p, true, false, false, true, NULL, out));
    return pl_texpect(p, PL_TOK_OPERATOR, ")");
}

/* The arguments of a call, filter or test, into e. */
static int parse_arguments(pl_tparser *p, pl_texpr *e)
{
    size_t items = 0, names = 0, named = 0;
    bool comma = false;
    PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, "("));
    for (; !operator_is(p, ")"); comma = true) {
        if (comma) PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ","));
        if (comma && operator_is(p, ")")) break;
        pl_texpr *value;
        if (!e->star && !e->star_star && skip_operator(p, "*")) {
            PL_TRY(pl_tparse_expression(p, true, &e->star));
        } else if (!e->star_star && skip_operator(p, "**")) {
            PL_TRY(pl_tparse_expression(p, true, &e->star_star));
        } else if (!e->star_star && pl_tpeek(p, 0)->kind == PL_TOK_NAME && pl_tpeek_is(p, 1, PL_TOK_OPERATOR, "=")) {
            pl_tstring *name;
            PL_TRY(pl_tparse_name(p, &name));
            p->at++;
            PL_TRY(pl_tparse_expression(p, true, &value));
            PL_TRY(pl_tgrow(&p->run, &e->names, &names, e->named_count + 1, sizeof *e->names));
            PL_TRY(pl_tgrow(&p->run, &e->named, &named, e->named_count + 1, sizeof *e->named));
            e->names[e->named_count] = name;
            e->named[e->named_count++] = value;
        } else if (!e->star && !e->star_star && !e->named_count) {
            PL_TRY(pl_tparse_expression(p, true, &value));
            PL_TRY(add_item(p, e, &items, value));
        } else {
            return pl_tunexpected(p, "a keyword argument (positional ones come first)");
        }
    }
    p->at++;
    return 0;
}

static int parse_call(pl_tparser *p, pl_texpr *on, pl_texpr **out)
{
    PL_TRY(new_expr(p, PL_T_CALL, on, NULL, out));
    return parse_arguments(p, *out);
}

/* What is inside the brackets of a subscript: an expression or a slice (then e becomes a PL_T_SLICE). */
static int parse_subscribed(pl_tparser *p, pl_texpr *e)
{
    pl_texpr *parts[3] = {NULL};
    int part = 0;
    if (!operator_is(p, ":")) {
        PL_TRY(pl_tparse_expression(p, true, &e->b));
        if (!operator_is(p, ":")) return 0;
        parts[0] = e->b;
        e->b = NULL;
    }
    while (part < 2 && skip_operator(p, ":")) {
        part++;
        if (!operator_is(p, ":") && !operator_is(p, "]")) PL_TRY(pl_tparse_expression(p, true, &parts[part]));
    }
    e->op = PL_T_SLICE;
    e->count = 3;
    PL_TRY(pl_talloc(&p->run, 3, sizeof *e->items, &e->items));
    memcpy(e->items, parts, sizeof parts);
    return 0;
}

static int parse_subscript(pl_tparser *p, pl_texpr *on, pl_texpr **out)
{
    PL_TRY(new_expr(p, PL_T_ATTRIBUTE, on, NULL, out));
    if (skip_operator(p, ".")) {
        const pl_ttoken *t = pl_tpeek(p, 0);
        if (t->kind != PL_TOK_INT) return pl_tparse_name(p, &(*out)->name);
        (*out)->op = PL_T_ITEM;
        PL_TRY(new_expr(p, PL_T_CONST, NULL, NULL, &(*out)->b));
        (*out)->b->value = pl_tint(t->i);
        p->at++;
        return 0;
    }
    p->at++;
    (*out)->op = PL_T_ITEM;
    PL_TRY(parse_subscribed(p, *out));
    if (operator_is(p, ","))
        return PL_TFAIL(&p->run, PL_EUNSUPPORTED, "a subscript of several parts, x[a, b], is not supported");
    return pl_texpect(p, PL_TOK_OPERATOR, "]");
}

static int parse_postfix(pl_tparser *p, pl_texpr **e)
{
    for (;;) {
        if (operator_is(p, ".") || operator_is(p, "["))
            PL_TRY(parse_subscript(p, *e, e));
        else if (operator_is(p, "("))
            PL_TRY(parse_call(p, *e, e));
        else
            return 0;
    }
}

/* A filter or test that does not exist is an error at once, but in a condition only when it is come to, as in Jinja. */
static int check_builtin(pl_tparser *p, const pl_texpr *e)
{
    if (p->conditions || (e->builtin && e->builtin->call)) return 0;
    p->run.line = e->line;
    return PL_TFAIL(&p->run, PL_EUNSUPPORTED, "the %s '%.*s' is not supported",
        e->op == PL_T_FILTER ? "filter" : "test", PL_TSHOW(e->name));
}

int pl_tparse_filters(pl_tparser *p, pl_texpr *on, bool start_inline, pl_texpr **out)
{
    *out = on;
    while (start_inline || skip_operator(p, "|")) {
        start_inline = false;
        pl_texpr *e;
        PL_TRY(new_expr(p, PL_T_FILTER, *out, NULL, &e));
        PL_TRY(pl_tparse_name(p, &e->name));
        if (operator_is(p, "(")) PL_TRY(parse_arguments(p, e));
        e->builtin = pl_tfind_filter(e->name);
        PL_TRY(check_builtin(p, e));
        *out = e;
    }
    return 0;
}

static int parse_test(pl_tparser *p, pl_texpr *on, pl_texpr **out)
{
    size_t capacity = 0;
    bool negated = skip_word(p, "not");
    PL_TRY(new_expr(p, PL_T_TEST, on, NULL, out));
    PL_TRY(pl_tparse_name(p, &(*out)->name));
    (*out)->builtin = pl_tfind_test((*out)->name);
    PL_TRY(check_builtin(p, *out));
    pl_ttoken_kind next = pl_tpeek(p, 0)->kind;
    bool word = next == PL_TOK_NAME && !pl_tpeek_is(p, 0, PL_TOK_NAME, "else") &&
                !pl_tpeek_is(p, 0, PL_TOK_NAME, "or") && !pl_tpeek_is(p, 0, PL_TOK_NAME, "and");
    if (operator_is(p, "(")) {
        PL_TRY(parse_arguments(p, *out));
    } else if (word || next == PL_TOK_STRING || next == PL_TOK_INT || next == PL_TOK_FLOAT || operator_is(p, "[") ||
               operator_is(p, "{")) {
        if (pl_tpeek_is(p, 0, PL_TOK_NAME, "is"))
            return pl_tunexpected(p, "the end of this test (tests cannot be chained)");
        pl_texpr *argument;
        PL_TRY(parse_primary(p, false, &argument));
        PL_TRY(parse_postfix(p, &argument));
        PL_TRY(add_item(p, *out, &capacity, argument));
    }
    return negated ? new_expr(p, PL_T_NOT, *out, NULL, out) : 0;
}

static int parse_unary(pl_tparser *p, bool with_filter, pl_texpr **out)
{
    bool minus = operator_is(p, "-");
    if (minus || operator_is(p, "+")) {
        PL_TRY(new_expr(p, minus ? PL_T_NEG : PL_T_POS, NULL, NULL, out));
        pl_texpr *e = *out;
        p->at++;
        PL_TRY(pl_tenter(&p->run));
        int rc = parse_unary(p, false, &e->a);
        pl_tleave(&p->run);
        if (rc < 0) return rc;
    } else {
        PL_TRY(parse_primary(p, false, out));
    }
    PL_TRY(parse_postfix(p, out));
    while (with_filter) {
        if (operator_is(p, "|"))
            PL_TRY(pl_tparse_filters(p, *out, false, out));
        else if (skip_word(p, "is"))
            PL_TRY(parse_test(p, *out, out));
        else if (operator_is(p, "("))
            PL_TRY(parse_call(p, *out, out));
        else
            break;
    }
    return 0;
}

/* The binary operators by how tightly they bind; level 1 is ~, whose operands go into one node. */
static int parse_binary(pl_tparser *p, int level, pl_texpr **out)
{
    static const struct {
        const char *text;
        pl_top op;
        int level;
    } table[] = {{"+", PL_T_ADD, 0}, {"-", PL_T_SUB, 0}, {"~", PL_T_CONCAT, 1}, {"*", PL_T_MUL, 2}, {"/", PL_T_DIV, 2},
        {"//", PL_T_FLOORDIV, 2}, {"%", PL_T_MOD, 2}, {"**", PL_T_POW, 3}};
    size_t capacity = 0;
    if (level == 4) return parse_unary(p, true, out);
    PL_TRY(parse_binary(p, level + 1, out));
    for (;;) {
        int k = 0;
        while (k < PL_COUNT(table) && !(table[k].level == level && operator_is(p, table[k].text))) k++;
        if (k == PL_COUNT(table)) return 0;
        pl_texpr *left = *out, *right;
        bool again = level == 1 && left->op == PL_T_CONCAT && capacity;
        if (!again) PL_TRY(new_expr(p, table[k].op, left, NULL, out));
        if (level == 1 && !again) PL_TRY(add_item(p, *out, &capacity, left));
        p->at++;
        PL_TRY(parse_binary(p, level + 1, &right));
        if (level == 1)
            PL_TRY(add_item(p, *out, &capacity, right));
        else
            (*out)->b = right;
    }
}

static bool skip_comparison(pl_tparser *p, pl_tcompare *op)
{
    static const char *const table[] = {"==", "!=", "<", "<=", ">", ">="};
    for (int k = 0; k < PL_COUNT(table); k++) {
        *op = (pl_tcompare)k;
        if (skip_operator(p, table[k])) return true;
    }
    *op = PL_T_IN;
    if (skip_word(p, "in")) return true;
    *op = PL_T_NOT_IN;
    if (!pl_tpeek_is(p, 0, PL_TOK_NAME, "not") || !pl_tpeek_is(p, 1, PL_TOK_NAME, "in")) return false;
    p->at += 2;
    return true;
}

static int parse_comparison(pl_tparser *p, pl_texpr **out)
{
    size_t items = 0, ops = 0;
    pl_tcompare op;
    PL_TRY(parse_binary(p, 0, out));
    pl_texpr *first = *out, *right;
    while (skip_comparison(p, &op)) {
        if (*out == first) PL_TRY(new_expr(p, PL_T_COMPARE, first, NULL, out));
        PL_TRY(parse_binary(p, 0, &right));
        PL_TRY(pl_tgrow(&p->run, &(*out)->ops, &ops, (*out)->count + 1, sizeof *(*out)->ops));
        (*out)->ops[(*out)->count] = op;
        PL_TRY(add_item(p, *out, &items, right));
    }
    return 0;
}

static int parse_not(pl_tparser *p, pl_texpr **out)
{
    if (!skip_word(p, "not")) return parse_comparison(p, out);
    PL_TRY(new_expr(p, PL_T_NOT, NULL, NULL, out));
    PL_TRY(pl_tenter(&p->run));
    int rc = parse_not(p, &(*out)->a);
    pl_tleave(&p->run);
    return rc;
}

static int parse_and(pl_tparser *p, pl_texpr **out)
{
    PL_TRY(parse_not(p, out));
    while (skip_word(p, "and")) {
        PL_TRY(new_expr(p, PL_T_AND, *out, NULL, out));
        PL_TRY(parse_not(p, &(*out)->b));
    }
    return 0;
}

static int parse_or(pl_tparser *p, pl_texpr **out)
{
    PL_TRY(parse_and(p, out));
    while (skip_word(p, "or")) {
        PL_TRY(new_expr(p, PL_T_OR, *out, NULL, out));
        PL_TRY(parse_and(p, &(*out)->b));
    }
    return 0;
}

/* A filter on the left of an `if` is parsed before the `if` is seen; this finds out ahead, by brackets. */
static bool condition_ahead(const pl_tparser *p)
{
    int depth = 0;
    for (size_t at = p->at; at < p->tokens.count; at++) {
        const pl_ttoken *t = &p->tokens.items[at];
        if (t->kind == PL_TOK_OPERATOR && t->text.size == 1) {
            char c = t->text.bytes[0];
            if (c == '(' || c == '[' || c == '{') depth++;
            if (c == ')' || c == ']' || c == '}') depth--;
            if (depth < 0 || (depth == 0 && c == ',')) return false;
        } else if (t->kind == PL_TOK_NAME && depth == 0 && t->text.size == 2 && memcmp(t->text.bytes, "if", 2) == 0) {
            return true;
        } else if (t->kind != PL_TOK_NAME && t->kind != PL_TOK_STRING && t->kind != PL_TOK_INT &&
                   t->kind != PL_TOK_FLOAT && t->kind != PL_TOK_OPERATOR) {
            return false;
        }
    }
    return false;
}

static int parse_condition(pl_tparser *p, pl_texpr **out)
{
    PL_TRY(parse_or(p, out));
    while (skip_word(p, "if")) {
        pl_texpr *value = *out, *otherwise = NULL;
        PL_TRY(new_expr(p, PL_T_COND, value, NULL, out));
        pl_texpr *e = *out;
        PL_TRY(parse_or(p, &e->b));
        if (skip_word(p, "else")) PL_TRY(pl_tparse_expression(p, true, &otherwise));
        e->c = otherwise;
        *out = e;
    }
    return 0;
}

int pl_tparse_expression(pl_tparser *p, bool with_condition, pl_texpr **out)
{
    PL_TRY(pl_tenter(&p->run));
    p->run.line = pl_tpeek(p, 0)->line;
    int conditional = with_condition && !p->conditions && condition_ahead(p);
    p->conditions += conditional;
    int rc = with_condition ? parse_condition(p, out) : parse_or(p, out);
    p->conditions -= conditional;
    pl_tleave(&p->run);
    return rc;
}

static bool tuple_ends(const pl_tparser *p, const char *end)
{
    pl_ttoken_kind kind = pl_tpeek(p, 0)->kind;
    return kind == PL_TOK_PRINT_END || kind == PL_TOK_BLOCK_END || operator_is(p, ")") ||
           (end && pl_tpeek_is(p, 0, PL_TOK_NAME, end));
}

static int parse_tuple_items(pl_tparser *p, bool with_condition, bool target, bool with_namespace, bool parentheses,
    const char *end, pl_texpr **out)
{
    pl_texpr *tuple, *item = NULL;
    size_t capacity = 0;
    bool comma = false;
    PL_TRY(new_expr(p, PL_T_MAKE_TUPLE, NULL, NULL, &tuple));
    while (!tuple_ends(p, end)) {
        PL_TRY(target ? parse_primary(p, with_namespace, &item) : pl_tparse_expression(p, with_condition, &item));
        PL_TRY(add_item(p, tuple, &capacity, item));
        if (!skip_operator(p, ",")) break;
        comma = true;
    }
    if (!comma && tuple->count == 0 && !parentheses) return pl_tunexpected(p, "an expression");
    *out = comma || tuple->count == 0 ? tuple : item;
    return 0;
}

int pl_tparse_tuple(pl_tparser *p, bool with_condition, const char *end, pl_texpr **out)
{
    return parse_tuple_items(p, with_condition, false, false, false, end, out);
}

static int check_target(pl_tparser *p, const pl_texpr *e)
{
    if (e->op == PL_T_NAME || e->op == PL_T_NSREF) return 0;
    if (e->op != PL_T_MAKE_TUPLE) {
        p->run.line = e->line;
        return PL_TFAIL(&p->run, PL_EINPUT, "only names can be assigned to");
    }
    for (size_t i = 0; i < e->count; i++) {
        PL_TRY(pl_tenter(&p->run));
        int rc = check_target(p, e->items[i]);
        pl_tleave(&p->run);
        if (rc < 0) return rc;
    }
    return 0;
}

int pl_tparse_target(pl_tparser *p, bool with_namespace, const char *end, pl_texpr **out)
{
    PL_TRY(parse_tuple_items(p, true, true, with_namespace, false, end, out));
    return check_target(p, *out);
}
