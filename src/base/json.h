/* JSON through jansson, with errors that name the file, the line or the field, and what was expected.
   Where memory runs out in the middle of a long string or number, jansson drops a character of it and says nothing.
   What it allocates with is one setting for the whole process (json_set_alloc_funcs), so a library leaves that alone;
   the cli ends the program in its place, which loses nothing that a kill would not lose. */
#ifndef PL_BASE_JSON_H
#define PL_BASE_JSON_H

#include <jansson.h>
#include <stdint.h>

#include "base/buf.h"

/* Reads a document; duplicate keys, bad UTF-8 and trailing bytes are errors (PL_EINPUT with `where`:line). NaN and
   Infinity, which Python writes, are errors too. A document with a whole number beyond 64 bits has all its whole
   numbers as reals (model_max_length is often 1e30 written out). The caller calls json_decref. */
int pl_json_parse(pl_error *err, const char *where, const char *text, size_t size, json_t **out);
/* The same for a text that starts at this line of the file `where`. */
int pl_json_parse_from(pl_error *err, const char *where, int64_t line, const char *text, size_t size, json_t **out);
int pl_json_read(pl_error *err, const char *path, json_t **out);
/* Appends it with two spaces of indentation, keys in their order; numbers with a fraction in the fewest digits that
   give the same value back. flags: jansson's, such as JSON_ENSURE_ASCII. */
int pl_json_text(pl_error *err, const json_t *value, size_t flags, pl_buf *out);
/* That and a final newline into a file, whole or not at all. */
int pl_json_write(pl_error *err, const char *path, const json_t *value);

/* Fields of an object. `where` is the file's name, for messages. An absent or null field leaves *out as it is (so set
   the default first) and returns 0; a value of another type is PL_EINPUT. Strings are borrowed from the document. */
int pl_json_int(pl_error *err, const char *where, const json_t *object, const char *key, int64_t *out);
int pl_json_real(pl_error *err, const char *where, const json_t *object, const char *key, double *out); /* ints too */
int pl_json_bool(pl_error *err, const char *where, const json_t *object, const char *key, bool *out);
int pl_json_string(pl_error *err, const char *where, const json_t *object, const char *key, const char **out);
/* Copies: jansson's own leave out silently what they have no memory for. The shallow one shares what is inside. */
int pl_json_copy(pl_error *err, const json_t *value, json_t **out);
int pl_json_deep_copy(pl_error *err, const json_t *value, json_t **out);
/* "object", "string"...: how messages name a value's type. */
const char *pl_json_type_name(const json_t *value);

#endif
