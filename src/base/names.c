#include "base/names.h"

#include <stdlib.h>
#include <string.h>

bool pl_names_has(const pl_names *names, const char *name)
{
    for (int i = 0; i < names->count; i++) {
        if (strcmp(names->items[i], name) == 0) return true;
    }
    return false;
}

int pl_names_add(pl_error *err, pl_names *names, const char *name)
{
    if (pl_names_has(names, name)) return 0;
    char **items = realloc(names->items, ((size_t)names->count + 1) * sizeof *items);
    if (!items) return PL_FAIL_NOMEM(err);
    names->items = items;
    PL_TRY(pl_strdup(err, name, &items[names->count]));
    names->count++;
    return 0;
}

int pl_names_copy(pl_error *err, const pl_names *from, pl_names *to)
{
    for (int i = 0; i < from->count; i++) PL_TRY(pl_names_add(err, to, from->items[i]));
    return 0;
}

void pl_names_free(pl_names *names)
{
    for (int i = 0; i < names->count; i++) free(names->items[i]);
    free(names->items);
    *names = (pl_names){0};
}

int pl_names_print(pl_error *err, const pl_names *names, int limit, pl_buf *text)
{
    for (int i = 0; i < names->count && i < limit; i++) {
        PL_TRY(pl_buf_printf(err, text, "%s%.256s", i ? ", " : "", names->items[i]));
    }
    if (names->count > limit) PL_TRY(pl_buf_printf(err, text, " and %d more", names->count - limit));
    return 0;
}
