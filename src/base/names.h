/* A list of different names, in the order in which they came. */
#ifndef PL_BASE_NAMES_H
#define PL_BASE_NAMES_H

#include "base/buf.h"

typedef struct pl_names {
    int count;
    char **items;
} pl_names;

int pl_names_add(pl_error *err, pl_names *names, const char *name);   /* copies it; one that is there already is fine */
int pl_names_copy(pl_error *err, const pl_names *from, pl_names *to); /* adds them all */
bool pl_names_has(const pl_names *names, const char *name);
void pl_names_free(pl_names *names); /* {0} is fine */
/* Appends "a, b, c" to text, at most `limit` of them, then "and 7 more". */
int pl_names_print(pl_error *err, const pl_names *names, int limit, pl_buf *text);

#endif
