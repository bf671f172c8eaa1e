/* The parser of statements, and what makes a template of them. */
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "data/template_internal.h"

enum { PARSE_LIMIT = 64 << 20 }; /* bytes that a parse tree may take */

static int parse_body(pl_tparser *p, const char *const *ends, pl_tstatement **out);

static bool word_is(const pl_tparser *p, const char *word)
{
    return pl_tpeek_is(p, 0, PL_TOK_NAME, word);
}

static bool skip_word(pl_tparser *p, const char *word)
{
    return pl_tskip(p, PL_TOK_NAME, word);
}

/* A body that starts a scope of its own: conditions around it do not excuse unknown filters in it, as in Jinja. */
static int parse_scoped_body(pl_tparser *p, const char *end, pl_tstatement **out)
{
    const char *const ends[] = {end, NULL};
    int conditions = p->conditions;
    p->conditions = 0;
    PL_TRY(parse_body(p, ends, out));
    p->conditions = conditions;
    p->at++;
    return 0;
}

static int parse_set(pl_tparser *p, pl_tstatement *s)
{
    PL_TRY(pl_tparse_target(p, true, NULL, &s->target));
    if (pl_tskip(p, PL_TOK_OPERATOR, "=")) {
        s->kind = PL_T_SET;
        return pl_tparse_tuple(p, true, NULL, &s->expr);
    }
    s->kind = PL_T_CAPTURE;
    PL_TRY(pl_tparse_filters(p, NULL, false, &s->expr));
    return parse_scoped_body(p, "endset", &s->body);
}

static int parse_for(pl_tparser *p, pl_tstatement *s)
{
    static const char *const ends[] = {"endfor", "else", NULL};
    s->kind = PL_T_FOR;
    PL_TRY(pl_tparse_target(p, false, "in", &s->target));
    PL_TRY(pl_texpect(p, PL_TOK_NAME, "in"));
    PL_TRY(pl_tparse_tuple(p, false, "recursive", &s->expr));
    if (skip_word(p, "if")) PL_TRY(pl_tparse_expression(p, true, &s->test));
    s->recursive = skip_word(p, "recursive");
    int conditions = p->conditions;
    p->conditions = 0;
    p->loops++;
    PL_TRY(parse_body(p, ends, &s->body));
    p->loops--;
    if (skip_word(p, "else")) PL_TRY(parse_body(p, ends, &s->otherwise));
    p->conditions = conditions;
    return pl_texpect(p, PL_TOK_NAME, "endfor");
}

static int parse_if(pl_tparser *p, pl_tstatement *s)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const last[] = {"endif", NULL};
    p->conditions++;
    for (;;) {
        s->kind = PL_T_IF;
        PL_TRY(pl_tparse_tuple(p, false, NULL, &s->expr));
        PL_TRY(parse_body(p, ends, &s->body));
        if (!skip_word(p, "elif")) break;
        PL_TRY(pl_talloc(&p->run, 1, sizeof *s, &s->otherwise));
        s = s->otherwise;
        s->line = pl_tpeek(p, 0)->line;
    }
    if (skip_word(p, "else")) PL_TRY(parse_body(p, last, &s->otherwise));
    p->conditions--;
    return pl_texpect(p, PL_TOK_NAME, "endif");
}

/* "(a, b=1)" of a macro or call block. */
static int parse_signature(pl_tparser *p, pl_tmacro *m)
{
    size_t params = 0, defaults = 0;
    PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, "("));
    while (!pl_tpeek_is(p, 0, PL_TOK_OPERATOR, ")")) {
        if (m->count) PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ","));
        PL_TRY(pl_tgrow(&p->run, &m->params, &params, m->count + 1, sizeof *m->params));
        PL_TRY(pl_tgrow(&p->run, &m->defaults, &defaults, m->count + 1, sizeof *m->defaults));
        PL_TRY(pl_tparse_name(p, &m->params[m->count]));
        if (pl_tskip(p, PL_TOK_OPERATOR, "="))
            PL_TRY(pl_tparse_expression(p, true, &m->defaults[m->count]));
        else if (m->count && m->defaults[m->count - 1])
            return pl_tunexpected(p, "a default, like the parameter before has,");
        m->count++;
    }
    p->at++;
    return 0;
}

/* The body of a macro or call block. */
static int parse_macro_body(pl_tparser *p, pl_tmacro *m, const char *end)
{
    struct pl_tmacros enclosing = {m, p->macros};
    int loops = p->loops;
    p->macros = &enclosing;
    p->loops = 0;
    int rc = parse_scoped_body(p, end, &m->body);
    p->macros = enclosing.outer;
    p->loops = loops;
    return rc;
}

static int parse_macro(pl_tparser *p, pl_tstatement *s)
{
    s->kind = PL_T_MACRO;
    PL_TRY(pl_talloc(&p->run, 1, sizeof *s->macro, &s->macro));
    PL_TRY(pl_tparse_name(p, &s->macro->name));
    PL_TRY(parse_signature(p, s->macro));
    return parse_macro_body(p, s->macro, "endmacro");
}

static int parse_call_block(pl_tparser *p, pl_tstatement *s)
{
    s->kind = PL_T_CALL_BLOCK;
    PL_TRY(pl_talloc(&p->run, 1, sizeof *s->macro, &s->macro));
    if (pl_tpeek_is(p, 0, PL_TOK_OPERATOR, "(")) PL_TRY(parse_signature(p, s->macro));
    PL_TRY(pl_tparse_expression(p, true, &s->expr));
    if (s->expr->op != PL_T_CALL)
        return PL_TFAIL(&p->run, PL_EINPUT, "{%% call %%} needs a call, like {%% call macro() %%}");
    return parse_macro_body(p, s->macro, "endcall");
}

static int parse_with(pl_tparser *p, pl_tstatement *s)
{
    size_t targets = 0, values = 0;
    s->kind = PL_T_WITH;
    PL_TRY(pl_talloc(&p->run, 1, sizeof *s->target, &s->target));
    PL_TRY(pl_talloc(&p->run, 1, sizeof *s->expr, &s->expr));
    while (pl_tpeek(p, 0)->kind != PL_TOK_BLOCK_END) {
        pl_texpr *t = s->target, *v = s->expr;
        if (t->count) PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, ","));
        PL_TRY(pl_tgrow(&p->run, &t->items, &targets, t->count + 1, sizeof *t->items));
        PL_TRY(pl_tgrow(&p->run, &v->items, &values, v->count + 1, sizeof *v->items));
        PL_TRY(pl_tparse_target(p, false, NULL, &t->items[t->count]));
        PL_TRY(pl_texpect(p, PL_TOK_OPERATOR, "="));
        PL_TRY(pl_tparse_expression(p, true, &v->items[v->count]));
        t->count = ++v->count;
    }
    return parse_scoped_body(p, "endwith", &s->body);
}

static int parse_filter_block(pl_tparser *p, pl_tstatement *s)
{
    s->kind = PL_T_FILTER_BLOCK;
    PL_TRY(pl_tparse_filters(p, NULL, true, &s->expr));
    return parse_scoped_body(p, "endfilter", &s->body);
}

static int parse_generation(pl_tparser *p, pl_tstatement *s)
{
    s->kind = PL_T_GENERATION;
    p->template->has_generation = true;
    return parse_scoped_body(p, "endgeneration", &s->body);
}

static int parse_print(pl_tparser *p, pl_tstatement *s)
{
    s->kind = PL_T_PRINT;
    return pl_tparse_expression(p, true, &s->expr);
}

static int parse_jump(pl_tparser *p, pl_tstatement *s)
{
    s->kind = s->text->bytes[0] == 'b' ? PL_T_BREAK : PL_T_CONTINUE;
    if (p->loops) return 0;
    return PL_TFAIL(&p->run, PL_EINPUT, "{%% %.*s %%} outside of a loop", PL_TSHOW(s->text));
}

static int parse_statement(pl_tparser *p, pl_tstatement *s)
{
    static const struct {
        const char *word;
        int (*parse)(pl_tparser *, pl_tstatement *);
    } table[] = {{"set", parse_set}, {"for", parse_for}, {"if", parse_if}, {"macro", parse_macro},
        {"call", parse_call_block}, {"filter", parse_filter_block}, {"with", parse_with},
        {"generation", parse_generation}, {"print", parse_print}, {"break", parse_jump}, {"continue", parse_jump}};
    PL_TRY(pl_tparse_name(p, &s->text));
    for (int k = 0; k < PL_COUNT(table); k++)
        if (s->text->size == strlen(table[k].word) && memcmp(s->text->bytes, table[k].word, s->text->size) == 0)
            return table[k].parse(p, s);
    p->run.line = s->line;
    if (s->text->size > 3 && (memcmp(s->text->bytes, "end", 3) == 0 || memcmp(s->text->bytes, "el", 2) == 0))
        return PL_TFAIL(&p->run, PL_EINPUT, "{%% %.*s %%} ends nothing here", PL_TSHOW(s->text));
    return PL_TFAIL(&p->run, PL_EUNSUPPORTED, "the tag {%% %.*s %%} is not supported", PL_TSHOW(s->text));
}

/* Statements until one of the words in `ends`, at which it stays; with ends NULL until the end of the template. They
   belong to the tag in line `begin`. */
static int parse_until(pl_tparser *p, const char *const *ends, int begin, pl_tstatement **tail)
{
    for (;;) {
        const pl_ttoken *t = pl_tpeek(p, 0);
        p->run.line = t->line;
        if (t->kind == PL_TOK_END) {
            if (!ends) return 0;
            p->run.line = begin;
            while (strncmp(*ends, "end", 3) != 0) ends++;
            return PL_TFAIL(&p->run, PL_EINPUT, "what begins here has no {%% %s %%}", *ends);
        }
        p->at++;
        for (int k = 0; t->kind == PL_TOK_BLOCK_BEGIN && ends && ends[k]; k++)
            if (word_is(p, ends[k])) return 0;
        pl_tstatement *s;
        PL_TRY(pl_talloc(&p->run, 1, sizeof *s, &s));
        s->line = t->line;
        if (t->kind == PL_TOK_DATA) {
            PL_TRY(pl_talloc(&p->run, 1, sizeof *s->text, &s->text));
            *s->text = t->text;
        } else if (t->kind == PL_TOK_PRINT_BEGIN) {
            s->kind = PL_T_PRINT;
            PL_TRY(pl_tparse_tuple(p, true, NULL, &s->expr));
            PL_TRY(pl_texpect(p, PL_TOK_PRINT_END, NULL));
        } else {
            PL_TRY(parse_statement(p, s));
            PL_TRY(pl_texpect(p, PL_TOK_BLOCK_END, NULL));
        }
        *tail = s;
        tail = &s->next;
    }
}

static int parse_body(pl_tparser *p, const char *const *ends, pl_tstatement **out)
{
    int begin = pl_tpeek(p, 0)->line;
    pl_tskip(p, PL_TOK_OPERATOR, ":");
    PL_TRY(pl_texpect(p, PL_TOK_BLOCK_END, NULL));
    PL_TRY(pl_tenter(&p->run));
    int rc = parse_until(p, ends, begin, out);
    pl_tleave(&p->run);
    return rc;
}

/* The text with \r\n and \r as \n, and without its last newline: Jinja reads it so. */
static int normalise(pl_trun *run, const char *text, size_t size, pl_tstring *out)
{
    char *copy;
    size_t n = 0;
    PL_TRY(pl_talloc(run, size + 1, 1, &copy));
    run->line = 1;
    for (size_t i = 0; i < size; i++) {
        if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n') i++;
        copy[n++] = text[i] == '\r' ? '\n' : text[i];
        run->line += copy[n - 1] == '\n';
        size_t used;
        if ((unsigned char)text[i] >= 0x80 && pl_tchar(text + i, size - i, &used) == UINT32_MAX)
            return PL_TFAIL(run, PL_EINPUT, "the template is not UTF-8: byte %zu", i);
        else if ((unsigned char)text[i] >= 0x80)
            for (; used > 1; used--) copy[n++] = text[++i];
    }
    if (n && copy[n - 1] == '\n') n--;
    *out = (pl_tstring){.bytes = copy, .size = n, .chars = -1};
    return 0;
}

static int parse_template(pl_tparser *p, const char *text, size_t size)
{
    pl_tnames *names = &p->template->names;
    pl_tstring source;
    PL_TRY(normalise(&p->run, text, size, &source));
    PL_TRY(pl_tintern(p, "loop", 4, &names->loop));
    PL_TRY(pl_tintern(p, "caller", 6, &names->caller));
    PL_TRY(pl_tintern(p, "varargs", 7, &names->varargs));
    PL_TRY(pl_tintern(p, "kwargs", 6, &names->kwargs));
    PL_TRY(pl_tintern(p, "strftime_now", 12, &names->strftime_now));
    PL_TRY(pl_tlex_run(&p->run, source.bytes, source.size, &p->tokens));
    return parse_until(p, NULL, 1, &p->template->body);
}

int pl_template_parse(pl_error *err, const char *where, const char *text, size_t size, pl_template **out)
{
    pl_template *t = NULL;
    pl_tparser p = {.run = {.err = err, .where = where, .arena = {.limit = PARSE_LIMIT}}};
    int rc;
    PL_TRY(pl_calloc(err, 1, sizeof *t, &t));
    p.template = t;
    t->hash = XXH3_64bits(text, size);
    PL_GO(fail, pl_strdup(err, where, &t->where));
    PL_GO(fail, parse_template(&p, text, size));
    t->arena = p.run.arena;
    *out = t;
    return 0;
fail:
    t->arena = p.run.arena;
    pl_template_free(t);
    return rc;
}

void pl_template_free(pl_template *t)
{
    if (!t) return;
    pl_tarena_free(&t->arena);
    free(t->where);
    free(t);
}

bool pl_template_has_generation(const pl_template *t)
{
    return t->has_generation;
}

uint64_t pl_template_hash(const pl_template *t)
{
    return t->hash;
}
