/* From text to a field's value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/field.h"
#include "base/number.h"

/* "WHERE is 'TEXT'; WHAT was expected", with very long texts cut. */
static int wrong(pl_error *err, const char *where, const char *text, const char *expected)
{
    if (*text == 0) return PL_FAIL(err, PL_EUSAGE, "%s is empty; %s was expected", where, expected);
    return PL_FAIL(
        err, PL_EUSAGE, "%s is '%.80s%s'; %s was expected", where, text, strlen(text) > 80 ? "..." : "", expected);
}

static int check_range(pl_error *err, const pl_range *range, const char *where, const char *text, double value)
{
    bool low = range->above_min ? value <= range->min : value < range->min;
    bool high = range->below_max ? value >= range->max : value > range->max;
    if (!low && !high) return 0;
    pl_buf bounds = {0};
    int rc = pl_range_print(err, range, &bounds);
    if (rc == 0) rc = PL_FAIL(err, PL_EUSAGE, "%s is %.80s; it must be %s", where, text, pl_buf_text(&bounds));
    pl_buf_free(&bounds);
    return rc;
}

static int words_expected(pl_error *err, const pl_field *field, const char *where, const char *text, const char *more)
{
    pl_buf list = {0};
    int rc = 0, size;
    const char *word;
    for (int i = 0; (word = pl_word(field->words, i, &size)); i++) {
        bool last = !more && !pl_word(field->words, i + 1, &(int){0});
        const char *before = i == 0 ? "" : last ? " or " : ", ";
        PL_GO(done, pl_buf_printf(err, &list, "%s%.*s", before, size, word));
    }
    if (more) PL_GO(done, pl_buf_printf(err, &list, " or %s", more));
    rc = wrong(err, where, text, pl_buf_text(&list));
done:
    pl_buf_free(&list);
    return rc;
}

static int parse_int(pl_error *err, const pl_field *field, const char *where, const char *text, int64_t *out)
{
    int word = field->words ? pl_word_index(field->words, text) : -1;
    if (word >= 0) {
        *out = word;
        return 0;
    }
    int64_t value;
    if (!pl_parse_int(text, &value)) {
        double real;
        if (pl_parse_real(text, &real) && real == floor(real) && fabs(real) >= 9.2e18) {
            return PL_FAIL(err, PL_EUSAGE, "%s is %.80s, which is too large", where, text);
        }
        if (field->words) return words_expected(err, field, where, text, "a whole number");
        return wrong(err, where, text, "a whole number");
    }
    PL_TRY(check_range(err, &field->range, where, text, (double)value));
    *out = value;
    return 0;
}

/* What people try, and what they should do. */
static int check_refused(pl_error *err, const pl_field *field, const char *where, const char *text)
{
    size_t n = strlen(text);
    if (!field->refused || n == 0 || strncmp(field->refused, text, n) != 0 || field->refused[n] != ':') return 0;
    return PL_FAIL(err, PL_EUNSUPPORTED, "%s is %s, which is not supported%s", where, text, field->refused + n);
}

static int parse_real(pl_error *err, const pl_field *field, const char *where, const char *text, double *out)
{
    double value;
    if (!pl_parse_real(text, &value)) return wrong(err, where, text, "a number");
    PL_TRY(check_refused(err, field, where, text));
    PL_TRY(check_range(err, &field->range, where, text, value));
    *out = value;
    return 0;
}

static int parse_switch(pl_error *err, const char *where, const char *text, bool *out)
{
    bool yes = strcmp(text, "true") == 0 || strcmp(text, "True") == 0 || strcmp(text, "TRUE") == 0;
    bool no = strcmp(text, "false") == 0 || strcmp(text, "False") == 0 || strcmp(text, "FALSE") == 0;
    if (!yes && !no) return wrong(err, where, text, "true or false");
    *out = yes;
    return 0;
}

static int parse_bytes(pl_error *err, const pl_field *field, const char *where, const char *text, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"B", 1}, {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"kB", 1e3}, {"KB", 1e3},
        {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
    const char *expected = "a size such as 8GiB, 512MiB or 4000000000";
    size_t digits = strspn(text, "0123456789.");
    char number[64];
    if (digits == 0 || digits >= sizeof number) return wrong(err, where, text, expected);
    memcpy(number, text, digits);
    number[digits] = 0;
    const char *unit = text + digits + strspn(text + digits, " ");
    double scale = *unit ? 0 : 1, value;
    for (int i = 0; i < PL_COUNT(units); i++) {
        if (strcmp(unit, units[i].name) == 0) scale = units[i].bytes;
    }
    if (scale == 0 || !pl_parse_real(number, &value)) return wrong(err, where, text, expected);
    if (value * scale >= 0x1p62) return PL_FAIL(err, PL_EUSAGE, "%s is %.80s, which is too large", where, text);
    PL_TRY(check_range(err, &field->range, where, text, value * scale));
    *out = (int64_t)(value * scale);
    return 0;
}

static int set_text(pl_error *err, const pl_field *field, void *object, const char *where, const char *text)
{
    if (*text == 0) return wrong(err, where, text, field->kind == PL_FIELD_TEXT ? "a text" : "a path");
    char *copy;
    PL_TRY(pl_strdup(err, text, &copy));
    char **member = PL_MEMBER(char *, field, object);
    free(*member);
    *member = copy;
    return 0;
}

static int set_word(pl_error *err, const pl_field *field, void *object, const char *where, const char *text)
{
    int word = pl_word_index(field->words, text);
    PL_TRY(check_refused(err, field, where, text));
    if (word < 0) return words_expected(err, field, where, text, NULL);
    *PL_MEMBER(int, field, object) = word;
    return 0;
}

/* Lists and maps grow by one at a time: they are short. */
static int add_string(pl_error *err, pl_strings *list, const char *text)
{
    char **items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) return PL_FAIL_NOMEM(err);
    list->items = items;
    PL_TRY(pl_strdup(err, text, &items[list->count]));
    list->count++;
    return 0;
}

static int add_number(pl_error *err, const pl_field *field, pl_numbers *list, const char *where, const char *text)
{
    double value;
    if (field->kind == PL_FIELD_INTS) {
        int64_t whole;
        PL_TRY(parse_int(err, field, where, text, &whole));
        value = (double)whole;
    } else {
        PL_TRY(parse_real(err, field, where, text, &value));
    }
    double *items = realloc(list->items, ((size_t)list->count + 1) * sizeof *items);
    if (!items) return PL_FAIL_NOMEM(err);
    list->items = items;
    items[list->count++] = value;
    return 0;
}

int pl_field_add(pl_error *err, const pl_field *field, void *object, const char *where, const char *text)
{
    if (field->kind == PL_FIELD_INTS || field->kind == PL_FIELD_REALS) {
        return add_number(err, field, PL_MEMBER(pl_numbers, field, object), where, text);
    }
    if (*text == 0 && field->kind != PL_FIELD_STRINGS) return PL_FAIL(err, PL_EUSAGE, "%s has an empty item", where);
    return add_string(err, PL_MEMBER(pl_strings, field, object), text);
}

int pl_field_put(
    pl_error *err, const pl_field *field, void *object, const char *where, const char *key, const char *text)
{
    pl_entries *map = PL_MEMBER(pl_entries, field, object);
    if (*key == 0) return PL_FAIL(err, PL_EUSAGE, "%s has an entry without a name", where);
    for (int i = 0; i < map->count; i++) {
        if (strcmp(map->keys[i], key) == 0) return PL_FAIL(err, PL_EUSAGE, "%s gives %.80s twice", where, key);
    }
    char *entry;
    PL_TRY(pl_format(err, &entry, "%s of %.80s", where, key));
    int64_t whole;
    double real;
    int rc = 0;
    if (field->kind == PL_FIELD_INT_MAP) rc = parse_int(err, field, entry, text, &whole);
    if (field->kind == PL_FIELD_REAL_MAP) rc = parse_real(err, field, entry, text, &real);
    if (*text == 0 && rc == 0) rc = wrong(err, entry, text, "a text");
    free(entry);
    PL_TRY(rc);
    size_t count = (size_t)map->count + 1;
    char **keys = realloc(map->keys, count * sizeof *keys);
    if (!keys) return PL_FAIL_NOMEM(err);
    map->keys = keys;
    char **texts = realloc(map->texts, count * sizeof *texts);
    if (!texts) return PL_FAIL_NOMEM(err);
    map->texts = texts;
    PL_TRY(pl_strdup(err, key, &keys[count - 1]));
    rc = pl_strdup(err, text, &texts[count - 1]);
    if (rc < 0) {
        free(keys[count - 1]);
        return rc;
    }
    map->count++;
    return 0;
}

/* Calls pl_field_add or pl_field_put for each part between commas. */
static int set_parts(pl_error *err, const pl_field *field, void *object, const char *where, const char *text)
{
    bool map = pl_field_is_map(field);
    int rc = 0;
    for (const char *p = text;;) {
        const char *end = strchr(p, ',');
        char *part;
        PL_TRY(pl_strndup(err, p, end ? (size_t)(end - p) : strlen(p), &part));
        char *value = map ? strrchr(part, '=') : NULL;
        if (map && !value) {
            rc = wrong(err, where, part, "name=value");
        } else if (map) {
            *value++ = 0;
            rc = pl_field_put(err, field, object, where, part, value);
        } else {
            rc = pl_field_add(err, field, object, where, part);
        }
        free(part);
        if (rc < 0 || !end) return rc;
        p = end + 1;
    }
}

int pl_field_set(pl_error *err, const pl_field *field, void *object, const char *where, const char *text)
{
    switch (field->kind) {
    case PL_FIELD_TEXT:
    case PL_FIELD_FILE:
    case PL_FIELD_FOLDER: return set_text(err, field, object, where, text);
    case PL_FIELD_SWITCH: return parse_switch(err, where, text, PL_MEMBER(bool, field, object));
    case PL_FIELD_INT: return parse_int(err, field, where, text, PL_MEMBER(int64_t, field, object));
    case PL_FIELD_REAL: return parse_real(err, field, where, text, PL_MEMBER(double, field, object));
    case PL_FIELD_BYTES: return parse_bytes(err, field, where, text, PL_MEMBER(int64_t, field, object));
    case PL_FIELD_WORD: return set_word(err, field, object, where, text);
    case PL_FIELD_FILES:
    case PL_FIELD_STRINGS: return pl_field_add(err, field, object, where, text);
    case PL_FIELD_NAMES:
        /* A comma inside a regular expression separates nothing. */
        if (pl_is_regex(text)) return pl_field_add(err, field, object, where, text);
        return set_parts(err, field, object, where, text);
    case PL_FIELD_INTS:
    case PL_FIELD_REALS:
    case PL_FIELD_TEXTS:
    case PL_FIELD_INT_MAP:
    case PL_FIELD_REAL_MAP: return set_parts(err, field, object, where, text);
    }
    return PL_FAIL(err, PL_EBUG, "%s has no kind", where);
}

int pl_field_complete(pl_error *err, const pl_field *field, const void *object, const char *where)
{
    if (field->kind == PL_FIELD_NAMES) {
        const pl_strings *list = PL_CONST_MEMBER(pl_strings, field, object);
        for (int i = 0; i < list->count && list->count > 1; i++) {
            if (!pl_is_regex(list->items[i])) continue;
            return PL_FAIL(err, PL_EUSAGE,
                "%s holds a regular expression ('%.80s') beside others; give names, or one expression alone", where,
                list->items[i]);
        }
    }
    if (field->size == 0 || (field->kind != PL_FIELD_INTS && field->kind != PL_FIELD_REALS)) return 0;
    int count = PL_CONST_MEMBER(pl_numbers, field, object)->count;
    if (count == field->size) return 0;
    return PL_FAIL(
        err, PL_EUSAGE, "%s has %d number%s; %d were expected", where, count, count == 1 ? "" : "s", field->size);
}
