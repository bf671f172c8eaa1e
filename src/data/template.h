/* Chat templates: an interpreter for Jinja2 as the transformers library sets it up (sandboxed and immutable,
   trim_blocks, lstrip_blocks, loop controls, tojson, raise_exception, strftime_now, {% generation %}). Expressions mean
   what Python makes of them. What is lacking is PL_EUNSUPPORTED, naming the construct and its line. */
#ifndef PL_DATA_TEMPLATE_H
#define PL_DATA_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "base/error.h"

typedef struct pl_template pl_template; /* parsed and immutable: many threads may render it at once */

typedef struct pl_span {
    size_t begin, end; /* bytes [begin, end) of a rendered text */
} pl_span;

typedef struct pl_spans {
    pl_span *items; /* in order, not overlapping */
    size_t count, capacity;
} pl_spans;

/* Bytes [begin, end) of a rendered text that come from one place. Messages are those of the context's list `messages`,
   counted from 0; -1 is none. */
typedef struct pl_piece {
    size_t begin, end;
    int64_t writes; /* the message that the template was going through when it made these bytes */
    int64_t quotes; /* the message whose words they are, character by character */
    bool literal;   /* the template's own words, or those of a special token */
    bool generated; /* inside {% generation %} */
} pl_piece;

typedef struct pl_pieces {
    pl_piece *items; /* in order; of a rendering, they cover it */
    size_t count, capacity;
} pl_pieces;

/* Appends a span, or lengthens the last one when they touch; an empty span is dropped. */
int pl_spans_add(pl_error *err, pl_spans *spans, size_t begin, size_t end);
void pl_spans_free(pl_spans *spans); /* empty and usable afterwards */
void pl_pieces_free(pl_pieces *pieces);

/* `where` names the template in messages ("chat_template.jinja:12: ..."). PL_EINPUT for bad syntax. The caller frees.
 */
int pl_template_parse(pl_error *err, const char *where, const char *text, size_t size, pl_template **out);
void pl_template_free(pl_template *t); /* NULL is fine */

/* Appends the text to `out`, and sets `pieces` (may be NULL, is empty before) to where its bytes come from; positions
   count from the start of what is appended. `context` is an object of the template's variables, not changed.
   strftime_now() tells local time, or the time in the context's variable "strftime_now" ("2026-01-15T12:00:00") if
   there is one. raise_exception(m) is PL_EINPUT with m; mistakes that Python would raise are PL_EINPUT too. Time and
   memory are bounded whatever the template does. On failure `out` and `pieces` are as they were. */
int pl_template_render(pl_error *err, const pl_template *t, const json_t *context, pl_buf *out, pl_pieces *pieces);

uint64_t pl_template_hash(const pl_template *t); /* of its text */
/* The template has a {% generation %} block. */
bool pl_template_has_generation(const pl_template *t);

#endif
