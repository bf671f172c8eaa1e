/* What the files of the template interpreter share: values, the parse tree, and the state of a run. Nobody else
   includes this. Everything lives in arenas: one per template for the tree, one per rendering for its values, freed at
   once. */
#ifndef PL_DATA_TEMPLATE_INTERNAL_H
#define PL_DATA_TEMPLATE_INTERNAL_H

#include <stddef.h>
#include <stdint.h>

#include "data/template.h"

/* ---- memory ---- */

typedef struct pl_tchunk {
    struct pl_tchunk *next;
    size_t size, used;
    pl_pieces origins; /* of the texts in it, as far as they are known; positions count from `bytes` */
    max_align_t bytes[];
} pl_tchunk;

typedef struct pl_tarena {
    pl_tchunk *chunks;   /* the newest first */
    size_t total, limit; /* bytes taken from the system, and how many may be */
} pl_tarena;

void pl_tarena_free(pl_tarena *arena);

/* ---- values ---- */

typedef enum pl_tkind {
    PL_T_MISSING, /* an argument that was not given; never seen by templates */
    PL_T_UNDEFINED,
    PL_T_NONE,
    PL_T_BOOL,
    PL_T_INT,
    PL_T_FLOAT,
    PL_T_STRING,
    PL_T_LIST, /* and whatever else is a sequence, see pl_tsequence */
    PL_T_DICT,
    PL_T_NAMESPACE, /* namespace(): a dict whose items are attributes that `set` may change */
    PL_T_FUNCTION,
    PL_T_LOOP,
    PL_T_CYCLER
} pl_tkind;

/* Text in UTF-8, immutable, not zero-terminated; parts of a text share its bytes. */
typedef struct pl_tstring {
    const char *bytes;
    size_t size;
    int64_t chars; /* code points, -1 while nobody has counted */
} pl_tstring;

typedef struct pl_tvalue {
    uint8_t kind; /* pl_tkind */
    /* PL_T_STRING: 1 if it went through `safe` (markupsafe.Markup).  PL_T_UNDEFINED: pl_tmissing, why it is undefined.
     */
    uint8_t note;
    union {
        bool b;
        int64_t i;
        double f;
        pl_tstring *s; /* of PL_T_UNDEFINED: the name that was looked up */
        struct pl_tlist *list;
        struct pl_tdict *dict;
        struct pl_tfunction *function;
        struct pl_tloop *loop;
        struct pl_tcycler *cycler;
    };
} pl_tvalue;

/* Why a value is undefined, for the message of whoever uses it; a kind above these: an attribute of that kind. */
enum { PL_T_NO_VARIABLE = 200, PL_T_NO_RESULT, PL_T_UNSAFE, PL_T_NO_ELEMENT };

typedef enum pl_tsequence { PL_T_PLAIN, PL_T_TUPLE, PL_T_RANGE, PL_T_VIEW, PL_T_GENERATOR } pl_tsequence;

typedef struct pl_tlist {
    pl_tvalue *items;
    size_t count, capacity;
    pl_tsequence flavour; /* views have a length but no elements; a generator can be gone through once */
    bool spent;           /* of a generator */
    const char *name;     /* of views: "dict_keys"... */
} pl_tlist;

typedef struct pl_tdict {
    pl_tvalue *keys, *values; /* in order of insertion */
    size_t count, capacity;
    uint32_t *slots; /* open addressing, entry + 1; NULL while small */
    size_t slot_count;
    int64_t message; /* its number + 1 if it is one of the conversation's, or was made from one; else 0 */
} pl_tdict;

typedef struct pl_trun pl_trun;

typedef struct pl_targs {
    const pl_tvalue *items;
    size_t count;
    pl_tstring *const *names; /* of keyword arguments */
    const pl_tvalue *named;
    size_t named_count;
} pl_targs;

/* A filter, test, method or global function. The arguments are bound to `params` ("old,new,count"; the first `required`
   must be there) and come in argv, PL_T_MISSING where not given; with params NULL they come in args only. `self` is
   what is filtered or tested, or the method's object. */
typedef int (*pl_tcall)(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out);
typedef struct pl_tbuiltin {
    const char *name;
    pl_tcall call; /* NULL: known to Jinja or Python, but not here */
    const char *params;
    int required;
} pl_tbuiltin;
enum { PL_T_MAX_PARAMS = 8 };

typedef struct pl_tfunction {
    const pl_tbuiltin *builtin; /* NULL for a macro */
    pl_tvalue self;
    const struct pl_tmacro *macro;
    struct pl_tscope *scope; /* where the macro was defined */
    bool called;             /* of a joiner */
} pl_tfunction;

typedef struct pl_tloop {
    pl_tlist *items;
    size_t index0;
    int depth0;
    const struct pl_tstatement *recursive; /* NULL unless the loop is */
    struct pl_tscope *scope;               /* around the loop */
    pl_tvalue changed;                     /* the last arguments of loop.changed() */
} pl_tloop;

typedef struct pl_tcycler {
    pl_tlist *items;
    size_t position;
} pl_tcycler;

/* ---- the parse tree ---- */

typedef enum pl_top {
    PL_T_CONST,     /* value */
    PL_T_NAME,      /* name */
    PL_T_NSREF,     /* name.a: only a target of `set` */
    PL_T_MAKE_LIST, /* items */
    PL_T_MAKE_TUPLE,
    PL_T_MAKE_DICT, /* items: key, value, key, value... */
    PL_T_COND,      /* a if b else c (may be NULL) */
    PL_T_AND,       /* a, b */
    PL_T_OR,
    PL_T_NOT,
    PL_T_COMPARE, /* a, then (operator, operand) pairs: ops, items */
    PL_T_CONCAT,  /* items */
    PL_T_ADD,     /* a, b and so on */
    PL_T_SUB,
    PL_T_MUL,
    PL_T_DIV,
    PL_T_FLOORDIV,
    PL_T_MOD,
    PL_T_POW,
    PL_T_NEG, /* a */
    PL_T_POS,
    PL_T_ATTRIBUTE, /* a.name */
    PL_T_ITEM,      /* a[b] */
    PL_T_SLICE,     /* a[items[0]:items[1]:items[2]], each may be NULL */
    PL_T_CALL,      /* a(arguments) */
    PL_T_FILTER,    /* a | name(arguments); a is NULL at the start of a filter block */
    PL_T_TEST       /* a is name(arguments) */
} pl_top;

typedef enum pl_tcompare { PL_T_EQ, PL_T_NE, PL_T_LT, PL_T_LE, PL_T_GT, PL_T_GE, PL_T_IN, PL_T_NOT_IN } pl_tcompare;

typedef struct pl_texpr {
    pl_top op;
    int line;
    pl_tvalue value;
    pl_tstring *name;
    struct pl_texpr *a, *b, *c;
    struct pl_texpr **items; /* also the positional arguments */
    size_t count;
    pl_tcompare *ops;
    pl_tstring **names; /* keyword arguments */
    struct pl_texpr **named;
    size_t named_count;
    struct pl_texpr *star, *star_star; /* *args, **kwargs of a call */
    const pl_tbuiltin *builtin;        /* of a filter or test; NULL: there is none of that name */
} pl_texpr;

typedef enum pl_tstatement_kind {
    PL_T_TEXT,    /* text */
    PL_T_PRINT,   /* expr */
    PL_T_SET,     /* target = expr */
    PL_T_CAPTURE, /* set target (filtered by expr, if any) to what body writes */
    PL_T_IF,      /* expr, body, otherwise (another PL_T_IF for elif) */
    PL_T_FOR,     /* target in expr if test: body, otherwise */
    PL_T_BREAK,
    PL_T_CONTINUE,
    PL_T_MACRO,        /* macro */
    PL_T_CALL_BLOCK,   /* expr is the call, macro its caller */
    PL_T_FILTER_BLOCK, /* expr, body */
    PL_T_WITH,         /* targets = values (items of target and expr), body */
    PL_T_GENERATION    /* body */
} pl_tstatement_kind;

typedef struct pl_tmacro {
    pl_tstring *name; /* NULL: a caller */
    pl_tstring **params;
    pl_texpr **defaults; /* as many as params, NULL where there is none */
    size_t count;
    bool uses_caller, uses_varargs, uses_kwargs;
    struct pl_tstatement *body;
} pl_tmacro;

typedef struct pl_tstatement {
    pl_tstatement_kind kind;
    int line;
    bool recursive;
    pl_tstring *text;
    pl_texpr *target, *expr, *test;
    pl_tmacro *macro;
    struct pl_tstatement *body, *otherwise, *next;
} pl_tstatement;

/* Names that the interpreter itself defines; interned like all names of a template, so they compare by address. */
typedef struct pl_tnames {
    pl_tstring *loop, *caller, *varargs, *kwargs, *strftime_now;
} pl_tnames;

struct pl_template {
    pl_tarena arena;
    char *where;
    pl_tstatement *body;
    pl_tnames names;
    bool has_generation;
    uint64_t hash; /* of the text */
};

/* ---- a run ---- */

typedef struct pl_tscope {
    struct pl_tscope *outer;
    pl_tstring **names;
    pl_tvalue *values;
    size_t count, capacity;
} pl_tscope;

/* A text that grows, and where its bytes come from if the rendering is to tell. */
typedef struct pl_ttext {
    pl_buf buf;
    pl_pieces origins;
} pl_ttext;

/* The state of a parse or a rendering. */
struct pl_trun {
    pl_error *err;
    const char *where;
    int line; /* of what is being done, for messages */
    int depth;
    uint64_t work; /* steps so far */
    pl_tarena arena;
    /* The rest is for renderings only. */
    const pl_template *template;
    const json_t *context;
    pl_tdict *variables; /* the context */
    pl_tscope *scope;
    pl_ttext *out;
    size_t written; /* bytes over all outputs so far, for the limit */
    int captures;   /* how many outputs deep: 0 is the text itself */
    /* Whether to tell where the text comes from, and what the interpreter is at. */
    bool traced;
    int64_t message; /* that it goes through, -1: none */
    bool numbers;    /* the innermost loop goes through numbers, none of which has been made a message yet */
    int generations; /* how many {% generation %} deep */
};

/* Fails with "file:line: " in front of the message. */
#define PL_TFAIL(run, code, ...) (pl_tfail((run), (code), __FILE__, __LINE__, __VA_ARGS__), (int)(code))
void pl_tfail(pl_trun *run, int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* A text for the "%.*s" of a message, cut to a readable length. */
#define PL_TSHOW(s) ((int)((s)->size < 200 ? (s)->size : 200)), (s)->bytes

/* template.c: limits, memory. Memory comes zeroed. */
int pl_talloc(pl_trun *run, size_t count, size_t size, void *out);
int pl_tgrow(pl_trun *run, void *items, size_t *capacity, size_t need, size_t element);
int pl_twork(pl_trun *run, size_t bytes); /* counts a step that looks at so many bytes */
int pl_tenter(pl_trun *run);              /* one level deeper; pl_tleave on every way out, also after a failure */
void pl_tleave(pl_trun *run);

/* template_lex.c, template_expr.c, template_parse.c */
typedef enum pl_ttoken_kind {
    PL_TOK_END,
    PL_TOK_DATA,
    PL_TOK_PRINT_BEGIN,
    PL_TOK_PRINT_END,
    PL_TOK_BLOCK_BEGIN,
    PL_TOK_BLOCK_END,
    PL_TOK_NAME,
    PL_TOK_STRING,
    PL_TOK_INT,
    PL_TOK_FLOAT,
    PL_TOK_OPERATOR
} pl_ttoken_kind;

typedef struct pl_ttoken {
    pl_ttoken_kind kind;
    int line;
    pl_tstring text; /* of strings: with the escapes resolved */
    int64_t i;
    double f;
} pl_ttoken;

typedef struct pl_tlex {
    pl_ttoken *items;
    size_t count, capacity;
} pl_tlex;

int pl_tlex_run(pl_trun *run, const char *text, size_t size, pl_tlex *out);

typedef struct pl_tparser {
    pl_trun run;
    pl_template *template;
    pl_tlex tokens;
    size_t at;
    pl_tdict names;            /* interned */
    struct pl_tmacros *macros; /* those that enclose this point */
    int loops;                 /* loops around this point, within the innermost macro */
    int conditions;            /* conditions around it: an unknown filter there fails only when it is reached */
} pl_tparser;

struct pl_tmacros {
    pl_tmacro *macro;
    struct pl_tmacros *outer;
};

const pl_ttoken *pl_tpeek(const pl_tparser *p, size_t ahead);
bool pl_tpeek_is(const pl_tparser *p, size_t ahead, pl_ttoken_kind kind, const char *text);
bool pl_tskip(pl_tparser *p, pl_ttoken_kind kind, const char *text);
int pl_texpect(pl_tparser *p, pl_ttoken_kind kind, const char *text);
int pl_tparse_name(pl_tparser *p, pl_tstring **out); /* a name, interned */
int pl_tintern(pl_tparser *p, const char *bytes, size_t size, pl_tstring **out);
int pl_tunexpected(pl_tparser *p, const char *expected);
int pl_tparse_expression(pl_tparser *p, bool with_condition, pl_texpr **out);
/* An expression, or a tuple without parentheses; `end` (may be NULL) is a name that ends it. */
int pl_tparse_tuple(pl_tparser *p, bool with_condition, const char *end, pl_texpr **out);
int pl_tparse_target(pl_tparser *p, bool with_namespace, const char *end, pl_texpr **out);
int pl_tparse_filters(pl_tparser *p, pl_texpr *on, bool start_inline, pl_texpr **out);
int pl_tparse_statements(pl_tparser *p);

/* template_value.c */
int pl_tstring_new(pl_trun *run, const char *bytes, size_t size, pl_tvalue *out);  /* shares the bytes */
int pl_tstring_copy(pl_trun *run, const char *bytes, size_t size, pl_tvalue *out); /* copies them */
int pl_tlist_new(pl_trun *run, pl_tsequence flavour, size_t capacity, pl_tvalue *out);
int pl_tlist_add(pl_trun *run, pl_tlist *list, pl_tvalue item);
int pl_tdict_new(pl_trun *run, pl_tvalue *out);
int pl_tdict_set(pl_trun *run, pl_tdict *dict, pl_tvalue key, pl_tvalue value); /* fails on unhashable keys */
int pl_tdict_find(pl_trun *run, const pl_tdict *dict, pl_tvalue key, size_t *out, bool *found);
int pl_tdict_items(pl_trun *run, const pl_tdict *dict, pl_tlist *out); /* adds (key, value) for each */
/* The value of a key that is a string, NULL if there is none. */
const pl_tvalue *pl_tdict_get(const pl_tdict *dict, const char *key, size_t size);
int pl_tvalue_from_json(pl_trun *run, const json_t *json, pl_tvalue *out);
bool pl_tvalue_truth(pl_tvalue v);
int pl_tvalue_equal(pl_trun *run, pl_tvalue a, pl_tvalue b, bool *out);
const char *pl_tvalue_type(pl_tvalue v); /* Python's name of the type: "str" */
static inline pl_tvalue pl_tbool(bool b)
{
    return (pl_tvalue){.kind = PL_T_BOOL, .b = b};
}
static inline pl_tvalue pl_tint(int64_t i)
{
    return (pl_tvalue){.kind = PL_T_INT, .i = i};
}
static inline pl_tvalue pl_tfloat(double f)
{
    return (pl_tvalue){.kind = PL_T_FLOAT, .f = f};
}
static inline pl_tvalue pl_tnone(void)
{
    return (pl_tvalue){.kind = PL_T_NONE};
}
static inline pl_tvalue pl_tundefined(uint8_t why, pl_tstring *name)
{
    return (pl_tvalue){.kind = PL_T_UNDEFINED, .note = why, .s = name};
}
static inline bool pl_tis_text(pl_tvalue v, const char *text, size_t size)
{
    return v.kind == PL_T_STRING && v.s->size == size && __builtin_memcmp(v.s->bytes, text, size) == 0;
}

/* template_text.c: str(), repr() and json.dumps(), appended to `out`. */
int pl_tvalue_print(pl_trun *run, pl_tvalue v, pl_buf *out);
int pl_tvalue_repr(pl_trun *run, pl_tvalue v, pl_buf *out);
int pl_tvalue_text(pl_trun *run, pl_tvalue v, pl_tstring **out); /* str(v) as a string */
int pl_tfloat_repr(pl_trun *run, double f, pl_buf *out);
typedef struct pl_tjson {
    pl_tstring *indent; /* NULL: all on one line */
    pl_tstring *item_separator, *key_separator;
    bool ascii, sort_keys;
} pl_tjson;
int pl_tvalue_json(pl_trun *run, pl_tvalue v, const pl_tjson *how, int level, pl_buf *out);
/* Moves what was built in `buf` to a string of the run, and frees buf, also when that fails. */
int pl_tstring_take(pl_trun *run, pl_buf *buf, int rc, pl_tvalue *out);

/* template_origin.c: where bytes come from. All of it does nothing unless the run is traced. */
int pl_torigin_adopt(pl_trun *run, pl_tdict *context); /* knows the context's messages, and their words, from here on */
/* Notes in `to` the origins of size bytes, which were copied to position `at`; `last` if that is in the text itself. */
int pl_torigin_copy(pl_trun *run, const char *bytes, size_t size, size_t at, bool last, pl_pieces *to);
/* The same for a copy within the arena. Texts there must be noted in the order in which they were allocated. */
int pl_torigin_copy_text(pl_trun *run, const char *from, size_t size, const char *to);
/* What the run goes through once a message has got a name; what it went through before is for the caller to restore. */
void pl_torigin_name(pl_trun *run, pl_tvalue v);
int pl_ttext_append(pl_trun *run, pl_ttext *text, const char *bytes, size_t size);
int pl_ttext_print(pl_trun *run, pl_ttext *text, pl_tvalue v);           /* str(v) */
int pl_ttext_take(pl_trun *run, pl_ttext *text, int rc, pl_tvalue *out); /* as pl_tstring_take */
void pl_ttext_free(pl_ttext *text);

/* template_unicode.c */
uint32_t pl_tchar(const char *bytes, size_t size, size_t *used); /* the code point at bytes[0] */
size_t pl_tchar_size(unsigned char first);                       /* bytes of the character that starts so */
int pl_tchar_put(pl_error *err, pl_buf *out, uint32_t c);        /* as UTF-8 */
int64_t pl_tstring_chars(pl_tstring *s);
size_t pl_tstring_offset(pl_tstring *s, int64_t index); /* the byte where a code point begins */
bool pl_tspace(uint32_t c);                             /* str.isspace */
bool pl_tprintable(uint32_t c);                         /* str.isprintable */
void pl_tstrip(const pl_tstring *s, const pl_tstring *chars, bool left, bool right, size_t *begin, size_t *end);
enum pl_tcase { PL_T_UPPER, PL_T_LOWER, PL_T_TITLE, PL_T_CAPITALIZE, PL_T_SWAPCASE, PL_T_JINJA_TITLE };
int pl_tcase_map(pl_trun *run, pl_tstring *s, enum pl_tcase how, pl_tvalue *out);
enum pl_tclass { PL_T_ISALPHA, PL_T_ISDIGIT, PL_T_ISALNUM, PL_T_ISSPACE, PL_T_ISUPPER, PL_T_ISLOWER };
int pl_thtml_escape(pl_trun *run, const pl_tstring *s, pl_buf *out);
bool pl_tstring_is(const pl_tstring *s, enum pl_tclass what);

/* template_op.c */
int pl_tundefined_fail(pl_trun *run, pl_tvalue v); /* what using v where it must be defined gives */
int pl_tarith(pl_trun *run, pl_top op, pl_tvalue a, pl_tvalue b, pl_tvalue *out);
int pl_tcompare_values(pl_trun *run, pl_tcompare op, pl_tvalue a, pl_tvalue b, bool *out);
int pl_tcontains(pl_trun *run, pl_tvalue container, pl_tvalue item, bool *out);
/* What a loop over v sees: a list (its own one where it is one). A generator is spent by it. */
int pl_titerate(pl_trun *run, pl_tvalue v, pl_tlist **out);
int pl_tlength(pl_trun *run, pl_tvalue v, int64_t *out);
int pl_tslice(pl_trun *run, pl_tvalue v, const pl_tvalue bounds[3], pl_tvalue *out);

/* template_access.c */
int pl_tattribute(pl_trun *run, pl_tvalue v, pl_tstring *name, pl_tvalue *out); /* v.name */
int pl_titem(pl_trun *run, pl_tvalue v, pl_tvalue key, pl_tvalue *out);         /* v[key] */
/* Follows "a.b.0", as the attribute= of filters does. `attribute` is a string or an integer. */
int pl_tpath(pl_trun *run, pl_tvalue v, pl_tvalue attribute, pl_tvalue *out);

/* template_eval.c */
int pl_teval(pl_trun *run, const pl_texpr *e, pl_tvalue *out);
/* A call; `caller` (PL_T_MISSING if none) is given to it as one more keyword argument. */
int pl_teval_call(pl_trun *run, const pl_texpr *e, pl_tvalue caller, pl_tvalue *out);
int pl_tcall_value(pl_trun *run, pl_tvalue function, const pl_targs *args, pl_tvalue *out);
int pl_tcall_builtin(
    pl_trun *run, const pl_tbuiltin *b, const char *what, pl_tvalue self, const pl_targs *args, pl_tvalue *out);
/* Applies the filters of a block or of `set` to a value. */
int pl_teval_filter(pl_trun *run, const pl_texpr *e, pl_tvalue on, pl_tvalue *out);

/* template_run.c */
int pl_trun_statements(pl_trun *run, const pl_tstatement *s);
int pl_trun_macro(pl_trun *run, const pl_tfunction *f, const pl_targs *args, pl_tvalue *out);
int pl_trun_loop(pl_trun *run, pl_tloop *loop, pl_tvalue over, pl_tvalue *out); /* loop(over) of a recursive loop */
int pl_tscope_push(pl_trun *run, pl_tscope *outer, pl_tscope **out);
int pl_tscope_set(pl_trun *run, pl_tscope *scope, pl_tstring *name, pl_tvalue value);
int pl_twrite(pl_trun *run, const char *bytes, size_t size);

/* Tables of builtins, and how to look one up; NULL when there is none. */
const pl_tbuiltin *pl_tfind(const pl_tbuiltin *table, size_t count, const pl_tstring *name);
const pl_tbuiltin *pl_tfind_filter(const pl_tstring *name);
const pl_tbuiltin *pl_tfind_sequence_filter(const pl_tstring *name);
const pl_tbuiltin *pl_tfind_test(const pl_tstring *name);
const pl_tbuiltin *pl_tfind_global(const pl_tstring *name);
const pl_tbuiltin *pl_tfind_string_method(const pl_tstring *name);
const pl_tbuiltin *pl_tfind_method(pl_tvalue v, const pl_tstring *name); /* of any type */

/* template_format.c */
int pl_tformat_percent(pl_trun *run, pl_tstring *format, pl_tvalue argument, pl_tvalue *out);  /* format % argument */
int pl_tformat_braces(pl_trun *run, pl_tstring *format, const pl_targs *args, pl_tvalue *out); /* format.format(...) */
int pl_tformat_time(pl_trun *run, pl_tstring *format, pl_tvalue *out);

/* str.splitlines */
int pl_tsplit_lines(pl_trun *run, const pl_tstring *s, bool keep_ends, pl_tvalue *out);

/* Arguments, left alone when not given. `what` names the parameter in messages. */
int pl_targ_int(pl_trun *run, pl_tvalue v, const char *what, int64_t *out);
int pl_targ_string(pl_trun *run, pl_tvalue v, const char *what, pl_tstring **out);

#endif
