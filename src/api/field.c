#include "api/field.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *pl_field_name(const pl_field *field, char out[PL_FIELD_NAME_SIZE])
{
    bool nested = field->section && !field->flag_only;
    snprintf(out, PL_FIELD_NAME_SIZE, "%s%s%s", nested ? field->section : "", nested ? "." : "", field->name);
    return out;
}

const char *pl_field_flag(const pl_field *field, char out[PL_FIELD_NAME_SIZE])
{
    char name[PL_FIELD_NAME_SIZE];
    snprintf(out, PL_FIELD_NAME_SIZE, "--%.60s", field->flag ? field->flag : pl_field_name(field, name));
    /* Flags of one word group are written with dashes, as everywhere; dotted ones are fields, as in the file. */
    if (!strchr(out, '.')) {
        for (char *p = out; *p; p++) {
            if (*p == '_') *p = '-';
        }
    }
    return out;
}

bool pl_field_is_list(const pl_field *field)
{
    switch (field->kind) {
    case PL_FIELD_FILES:
    case PL_FIELD_STRINGS:
    case PL_FIELD_NAMES:
    case PL_FIELD_INTS:
    case PL_FIELD_REALS: return true;
    default: return false;
    }
}

bool pl_field_is_map(const pl_field *field)
{
    return field->kind == PL_FIELD_TEXTS || field->kind == PL_FIELD_INT_MAP || field->kind == PL_FIELD_REAL_MAP;
}

static void free_strings(pl_strings *list)
{
    for (int i = 0; i < list->count; i++) free(list->items[i]);
    free(list->items);
    *list = (pl_strings){0};
}

static void free_entries(pl_entries *map)
{
    for (int i = 0; i < map->count; i++) {
        free(map->keys[i]);
        free(map->texts[i]);
    }
    free(map->keys);
    free(map->texts);
    *map = (pl_entries){0};
}

void pl_field_free(const pl_field *field, void *object)
{
    switch (field->kind) {
    case PL_FIELD_TEXT:
    case PL_FIELD_FILE:
    case PL_FIELD_FOLDER:
        free(*PL_MEMBER(char *, field, object));
        *PL_MEMBER(char *, field, object) = NULL;
        break;
    case PL_FIELD_FILES:
    case PL_FIELD_STRINGS:
    case PL_FIELD_NAMES: free_strings(PL_MEMBER(pl_strings, field, object)); break;
    case PL_FIELD_INTS:
    case PL_FIELD_REALS:
        free(PL_MEMBER(pl_numbers, field, object)->items);
        *PL_MEMBER(pl_numbers, field, object) = (pl_numbers){0};
        break;
    case PL_FIELD_TEXTS:
    case PL_FIELD_INT_MAP:
    case PL_FIELD_REAL_MAP: free_entries(PL_MEMBER(pl_entries, field, object)); break;
    case PL_FIELD_SWITCH: *PL_MEMBER(bool, field, object) = false; break;
    case PL_FIELD_INT: *PL_MEMBER(int64_t, field, object) = PL_INT_UNSET; break;
    case PL_FIELD_BYTES: *PL_MEMBER(int64_t, field, object) = 0; break;
    case PL_FIELD_REAL: *PL_MEMBER(double, field, object) = NAN; break;
    case PL_FIELD_WORD: *PL_MEMBER(int, field, object) = -1; break;
    }
}

int pl_field_reset(pl_error *err, const pl_field *field, void *object)
{
    pl_field_free(field, object);
    if (!field->fallback) return 0;
    char name[PL_FIELD_NAME_SIZE];
    return pl_field_set(err, field, object, pl_field_name(field, name), field->fallback);
}

bool pl_field_has_value(const pl_field *field, const void *object)
{
    switch (field->kind) {
    case PL_FIELD_TEXT:
    case PL_FIELD_FILE:
    case PL_FIELD_FOLDER: return *PL_CONST_MEMBER(char *, field, object) != NULL;
    case PL_FIELD_FILES:
    case PL_FIELD_STRINGS:
    case PL_FIELD_NAMES: return PL_CONST_MEMBER(pl_strings, field, object)->count > 0;
    case PL_FIELD_INTS:
    case PL_FIELD_REALS: return PL_CONST_MEMBER(pl_numbers, field, object)->count > 0;
    case PL_FIELD_TEXTS:
    case PL_FIELD_INT_MAP:
    case PL_FIELD_REAL_MAP: return PL_CONST_MEMBER(pl_entries, field, object)->count > 0;
    case PL_FIELD_INT: return *PL_CONST_MEMBER(int64_t, field, object) != PL_INT_UNSET;
    case PL_FIELD_REAL: return !isnan(*PL_CONST_MEMBER(double, field, object));
    case PL_FIELD_WORD: return *PL_CONST_MEMBER(int, field, object) >= 0;
    case PL_FIELD_SWITCH:
    case PL_FIELD_BYTES: return true;
    }
    return false;
}

const char *pl_word(const char *words, int i, int *size)
{
    for (const char *p = words; p; i--) {
        const char *end = strchr(p, '|');
        *size = end ? (int)(end - p) : (int)strlen(p);
        if (i == 0) return p;
        p = end ? end + 1 : NULL;
    }
    return NULL;
}

int pl_word_index(const char *words, const char *text)
{
    int size;
    const char *word;
    for (int i = 0; (word = pl_word(words, i, &size)); i++) {
        if (strncmp(word, text, (size_t)size) == 0 && text[size] == 0) return i;
    }
    return -1;
}

bool pl_is_regex(const char *text)
{
    return strpbrk(text, "*+?()[]{}|\\^$") != NULL;
}

int pl_edit_distance(const char *a, const char *b)
{
    /* Three rows of the table of Damerau and Levenshtein; names are short, and longer texts are cut. */
    enum { MAX = 63 };
    int rows[3][MAX + 1];
    int na = (int)strnlen(a, MAX), nb = (int)strnlen(b, MAX);
    int *above2 = rows[0], *above = rows[1], *row = rows[2];
    for (int j = 0; j <= nb; j++) row[j] = j;
    for (int i = 1; i <= na; i++) {
        int *free_row = above2;
        above2 = above;
        above = row;
        row = free_row;
        row[0] = i;
        for (int j = 1; j <= nb; j++) {
            int best = above[j - 1] + (a[i - 1] != b[j - 1]);
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped && above2[j - 2] + 1 < best) best = above2[j - 2] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}
