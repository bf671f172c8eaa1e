/* The methods of Python's types that templates call. */
#include <string.h>

#include "data/template_internal.h"

#define METHOD(name)                                                                                                   \
    static int name(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, const pl_targs *args, pl_tvalue *out)
#define UNUSED ((void)run, (void)argv, (void)args)

/* A part of a string, which stays marked as safe if it was. */
static int part(pl_trun *run, pl_tvalue self, size_t begin, size_t end, pl_tvalue *out)
{
    PL_TRY(pl_tstring_new(run, self.s->bytes + begin, end - begin, out));
    out->note = self.note;
    return 0;
}

static int add_part(pl_trun *run, pl_tvalue self, size_t begin, size_t end, pl_tlist *list)
{
    pl_tvalue v;
    PL_TRY(part(run, self, begin, end, &v));
    return pl_tlist_add(run, list, v);
}

static int strip(pl_trun *run, pl_tvalue self, pl_tvalue chars, bool left, bool right, pl_tvalue *out)
{
    pl_tstring *set = NULL;
    size_t begin, end;
    if (chars.kind != PL_T_NONE) PL_TRY(pl_targ_string(run, chars, "strip: chars", &set));
    PL_TRY(pl_twork(run, self.s->size * (set ? set->size : 1)));
    pl_tstrip(self.s, set, left, right, &begin, &end);
    return part(run, self, begin, end, out);
}

METHOD(method_strip)
{
    UNUSED;
    return strip(run, self, argv[0], true, true, out);
}

METHOD(method_lstrip)
{
    UNUSED;
    return strip(run, self, argv[0], true, false, out);
}

METHOD(method_rstrip)
{
    UNUSED;
    return strip(run, self, argv[0], false, true, out);
}

static int split_spaces(pl_trun *run, pl_tvalue self, int64_t limit, pl_tlist *list)
{
    const pl_tstring *s = self.s;
    for (size_t at = 0, used = 0;;) {
        while (at < s->size && pl_tspace(pl_tchar(s->bytes + at, s->size - at, &used))) at += used;
        if (at == s->size) return 0;
        size_t end = at;
        if (limit-- == 0) return add_part(run, self, at, s->size, list); /* the rest as it is */
        while (end < s->size && !pl_tspace(pl_tchar(s->bytes + end, s->size - end, &used))) end += used;
        PL_TRY(add_part(run, self, at, end, list));
        at = end;
    }
}

static int split_at(pl_trun *run, pl_tvalue self, const pl_tstring *sep, int64_t limit, pl_tlist *list)
{
    const pl_tstring *s = self.s;
    size_t at = 0;
    if (!sep->size) return PL_TFAIL(run, PL_EINPUT, "split: the separator is empty");
    for (const char *hit; limit-- != 0 && (hit = memmem(s->bytes + at, s->size - at, sep->bytes, sep->size));) {
        PL_TRY(add_part(run, self, at, (size_t)(hit - s->bytes), list));
        at = (size_t)(hit - s->bytes) + sep->size;
    }
    return add_part(run, self, at, s->size, list);
}

METHOD(method_split)
{
    UNUSED;
    int64_t limit = -1;
    pl_tstring *sep = NULL;
    if (argv[0].kind != PL_T_NONE) PL_TRY(pl_targ_string(run, argv[0], "split: sep", &sep));
    PL_TRY(pl_targ_int(run, argv[1], "split: maxsplit", &limit));
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, out));
    PL_TRY(pl_twork(run, self.s->size));
    return sep ? split_at(run, self, sep, limit, out->list) : split_spaces(run, self, limit, out->list);
}

/* The last place of `what` in s that ends by `end`; SIZE_MAX if there is none. */
static size_t find_last(const pl_tstring *s, size_t begin, size_t end, const pl_tstring *what)
{
    if (end < begin || what->size > end - begin) return SIZE_MAX;
    for (size_t at = end - what->size + 1; at-- > begin;)
        if (memcmp(s->bytes + at, what->bytes, what->size) == 0) return at;
    return SIZE_MAX;
}

static void reverse(pl_tlist *list)
{
    for (size_t i = 0, j = list->count; i + 1 < j; i++) {
        pl_tvalue v = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = v;
    }
}

METHOD(method_rsplit)
{
    UNUSED;
    int64_t limit = -1;
    pl_tstring *sep = NULL;
    if (argv[0].kind != PL_T_NONE) PL_TRY(pl_targ_string(run, argv[0], "rsplit: sep", &sep));
    PL_TRY(pl_targ_int(run, argv[1], "rsplit: maxsplit", &limit));
    PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, out));
    PL_TRY(pl_twork(run, self.s->size));
    if (limit < 0 && !sep) return split_spaces(run, self, -1, out->list);
    if (sep && !sep->size) return PL_TFAIL(run, PL_EINPUT, "rsplit: the separator is empty");
    if (sep) PL_TRY(pl_twork(run, self.s->size * (sep->size < 8 ? sep->size : 8)));
    size_t end = self.s->size, at;
    if (sep) {
        for (; limit-- != 0 && (at = find_last(self.s, 0, end, sep)) != SIZE_MAX; end = at)
            PL_TRY(add_part(run, self, at + sep->size, end, out->list));
        PL_TRY(add_part(run, self, 0, end, out->list));
    } else {
        pl_tvalue words;
        PL_TRY(pl_tlist_new(run, PL_T_PLAIN, 0, &words));
        PL_TRY(split_spaces(run, self, -1, words.list));
        size_t n = words.list->count;
        for (; n > 0 && limit-- > 0; n--) PL_TRY(pl_tlist_add(run, out->list, words.list->items[n - 1]));
        if (n) {
            const pl_tstring *last = words.list->items[n - 1].s;
            PL_TRY(add_part(run, self, 0, (size_t)(last->bytes - self.s->bytes) + last->size, out->list));
        }
    }
    reverse(out->list);
    return 0;
}

METHOD(method_splitlines)
{
    UNUSED;
    return pl_tsplit_lines(run, self.s, pl_tvalue_truth(argv[0]), out);
}

static int partition(pl_trun *run, pl_tvalue self, pl_tvalue argument, bool last, pl_tvalue *out)
{
    pl_tstring *sep = NULL;
    PL_TRY(pl_targ_string(run, argument, "partition: sep", &sep));
    if (!sep->size) return PL_TFAIL(run, PL_EINPUT, "partition: the separator is empty");
    PL_TRY(pl_twork(run, self.s->size));
    const char *hit = memmem(self.s->bytes, self.s->size, sep->bytes, sep->size);
    size_t n = self.s->size, at = last ? find_last(self.s, 0, n, sep) : hit ? (size_t)(hit - self.s->bytes) : SIZE_MAX;
    PL_TRY(pl_tlist_new(run, PL_T_TUPLE, 3, out));
    bool found = at != SIZE_MAX;
    size_t first = found ? at : last ? 0 : n, second = found ? at + sep->size : first;
    PL_TRY(add_part(run, self, 0, first, out->list));
    PL_TRY(add_part(run, self, first, second, out->list));
    return add_part(run, self, second, n, out->list);
}

METHOD(method_partition)
{
    UNUSED;
    return partition(run, self, argv[0], false, out);
}

METHOD(method_rpartition)
{
    UNUSED;
    return partition(run, self, argv[0], true, out);
}

/* The bytes that the arguments `start` and `end` of a search leave; *empty when start lies beyond the text. */
static int window(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, size_t *begin, size_t *end, bool *empty)
{
    int64_t n = pl_tstring_chars(self.s), from = 0, to = n;
    PL_TRY(pl_twork(run, self.s->size));
    if (argv[0].kind != PL_T_NONE) PL_TRY(pl_targ_int(run, argv[0], "start", &from));
    if (argv[1].kind != PL_T_NONE) PL_TRY(pl_targ_int(run, argv[1], "end", &to));
    if (from < 0) from = from + n < 0 ? 0 : from + n;
    if (to < 0) to = to + n < 0 ? 0 : to + n;
    if (to > n) to = n;
    *empty = from > n || from > to;
    *begin = *empty ? 0 : pl_tstring_offset(self.s, from);
    *end = *empty ? 0 : pl_tstring_offset(self.s, to);
    return 0;
}

/* startswith and endswith; the argument may be a tuple of which one must fit. */
static int affix(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, bool tail, pl_tvalue *out)
{
    size_t begin, end;
    bool empty, fits = false;
    pl_tvalue one = argv[0], *items = &one;
    size_t count = 1;
    PL_TRY(window(run, self, argv + 1, &begin, &end, &empty));
    if (one.kind == PL_T_LIST && one.list->flavour == PL_T_TUPLE) {
        count = one.list->count;
        items = one.list->items;
    }
    for (size_t i = 0; i < count && !fits; i++) {
        pl_tstring *what = NULL;
        PL_TRY(pl_targ_string(run, items[i], tail ? "the argument of endswith" : "the argument of startswith", &what));
        if (empty || what->size > end - begin) continue;
        PL_TRY(pl_twork(run, what->size));
        fits = memcmp(self.s->bytes + (tail ? end - what->size : begin), what->bytes, what->size) == 0;
    }
    *out = pl_tbool(fits);
    return 0;
}

METHOD(method_startswith)
{
    UNUSED;
    return affix(run, self, argv, false, out);
}

METHOD(method_endswith)
{
    UNUSED;
    return affix(run, self, argv, true, out);
}

static int remove_affix(pl_trun *run, pl_tvalue self, pl_tvalue argument, bool tail, pl_tvalue *out)
{
    pl_tstring *what = NULL;
    size_t n = self.s->size;
    PL_TRY(pl_targ_string(run, argument, "the argument of removeprefix or removesuffix", &what));
    bool fits = what->size <= n && memcmp(self.s->bytes + (tail ? n - what->size : 0), what->bytes, what->size) == 0;
    return part(run, self, fits && !tail ? what->size : 0, fits && tail ? n - what->size : n, out);
}

METHOD(method_removeprefix)
{
    UNUSED;
    return remove_affix(run, self, argv[0], false, out);
}

METHOD(method_removesuffix)
{
    UNUSED;
    return remove_affix(run, self, argv[0], true, out);
}

static int find(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, bool last, bool must, pl_tvalue *out)
{
    pl_tstring *what = NULL;
    size_t begin, end, at = SIZE_MAX;
    bool empty;
    PL_TRY(pl_targ_string(run, argv[0], "what is searched", &what));
    PL_TRY(window(run, self, argv + 1, &begin, &end, &empty));
    if (last && !empty) PL_TRY(pl_twork(run, (end - begin) * (what->size < 8 ? what->size : 8)));
    if (!empty && last) {
        at = find_last(self.s, begin, end, what);
    } else if (!empty) {
        const char *hit =
            what->size ? memmem(self.s->bytes + begin, end - begin, what->bytes, what->size) : self.s->bytes + begin;
        if (hit) at = (size_t)(hit - self.s->bytes);
    }
    pl_tstring before = {.bytes = self.s->bytes, .size = at, .chars = -1};
    if (at == SIZE_MAX && must) return PL_TFAIL(run, PL_EINPUT, "index: '%.*s' is not in the string", PL_TSHOW(what));
    *out = pl_tint(at == SIZE_MAX ? -1 : pl_tstring_chars(&before));
    return 0;
}

METHOD(method_find)
{
    UNUSED;
    return find(run, self, argv, false, false, out);
}

METHOD(method_rfind)
{
    UNUSED;
    return find(run, self, argv, true, false, out);
}

METHOD(method_index)
{
    UNUSED;
    return find(run, self, argv, false, true, out);
}

METHOD(method_rindex)
{
    UNUSED;
    return find(run, self, argv, true, true, out);
}

METHOD(method_count)
{
    UNUSED;
    pl_tstring *what = NULL;
    size_t begin, end;
    bool empty;
    int64_t n = 0;
    PL_TRY(pl_targ_string(run, argv[0], "what is counted", &what));
    PL_TRY(window(run, self, argv + 1, &begin, &end, &empty));
    if (!what->size && !empty) {
        pl_tstring inside = {.bytes = self.s->bytes + begin, .size = end - begin, .chars = -1};
        n = pl_tstring_chars(&inside) + 1;
    }
    const char *at = self.s->bytes + begin, *stop = self.s->bytes + end, *hit;
    for (; what->size && !empty && (hit = memmem(at, (size_t)(stop - at), what->bytes, what->size));
         at = hit + what->size)
        n++;
    *out = pl_tint(n);
    return 0;
}

static int replace(
    pl_trun *run, const pl_tstring *s, const pl_tstring *old, const pl_tstring *fresh, int64_t limit, pl_buf *buf)
{
    size_t at = 0;
    for (; limit != 0; limit--) {
        const char *hit = old->size ? memmem(s->bytes + at, s->size - at, old->bytes, old->size) : s->bytes + at;
        if (!hit) break;
        PL_TRY(pl_buf_append(run->err, buf, s->bytes + at, (size_t)(hit - s->bytes) - at));
        PL_TRY(pl_buf_append(run->err, buf, fresh->bytes, fresh->size));
        PL_TRY(pl_twork(run, fresh->size));
        if (buf->size > run->arena.limit)
            return PL_TFAIL(run, PL_ENOMEM, "replace makes more than %zu MiB of text", run->arena.limit >> 20);
        at = (size_t)(hit - s->bytes) + old->size;
        if (old->size) continue;
        if (at == s->size) return 0; /* an empty string is found before every character and at the end */
        size_t n = pl_tchar_size((unsigned char)s->bytes[at]);
        PL_TRY(pl_buf_append(run->err, buf, s->bytes + at, n));
        at += n;
    }
    return pl_buf_append(run->err, buf, s->bytes + at, s->size - at);
}

METHOD(method_replace)
{
    UNUSED;
    pl_tstring *old = NULL, *fresh = NULL;
    int64_t limit = -1;
    pl_buf buf = {0};
    PL_TRY(pl_targ_string(run, argv[0], "replace: old", &old));
    PL_TRY(pl_targ_string(run, argv[1], "replace: new", &fresh));
    PL_TRY(pl_targ_int(run, argv[2], "replace: count", &limit));
    PL_TRY(pl_twork(run, self.s->size));
    int rc = replace(run, self.s, old, fresh, limit, &buf);
    PL_TRY(pl_tstring_take(run, &buf, rc, out));
    out->note = self.note;
    return 0;
}

METHOD(method_join)
{
    UNUSED;
    pl_tlist *items;
    pl_ttext text = {0};
    int rc = 0;
    PL_TRY(pl_titerate(run, argv[0], &items));
    for (size_t i = 0; i < items->count && rc == 0; i++) {
        pl_tstring *s = NULL;
        if (i) rc = pl_ttext_append(run, &text, self.s->bytes, self.s->size);
        if (rc == 0) rc = pl_targ_string(run, items->items[i], "what join is given", &s);
        if (rc == 0) rc = pl_ttext_append(run, &text, s->bytes, s->size);
        if (rc == 0) rc = pl_twork(run, 0);
        if (rc == 0 && text.buf.size > run->arena.limit)
            rc = PL_TFAIL(run, PL_ENOMEM, "join makes more than %zu MiB of text", run->arena.limit >> 20);
    }
    return pl_ttext_take(run, &text, rc, out);
}

METHOD(method_format)
{
    UNUSED;
    return pl_tformat_braces(run, self.s, args, out);
}

/* ljust, rjust, center, zfill: `left` and `right` say where the filling goes. */
static int pad(pl_trun *run, pl_tvalue self, const pl_tvalue *argv, bool left, bool right, pl_tvalue *out)
{
    int64_t width = 0, n;
    pl_tvalue fill, before, after;
    PL_TRY(pl_targ_int(run, argv[0], "width", &width));
    PL_TRY(pl_tstring_new(run, " ", 1, &fill));
    if (argv[1].kind != PL_T_MISSING) fill = argv[1];
    if (fill.kind != PL_T_STRING || pl_tstring_chars(fill.s) != 1)
        return PL_TFAIL(run, PL_EINPUT, "fillchar must be one character");
    PL_TRY(pl_tlength(run, self, &n));
    *out = self;
    if (width <= n) return 0;
    /* Python puts the odd one of a centred text on the left when the width is odd, too. */
    int64_t more = width - n, first = !left ? 0 : !right ? more : more / 2 + (more & width & 1);
    PL_TRY(pl_tarith(run, PL_T_MUL, fill, pl_tint(first), &before));
    PL_TRY(pl_tarith(run, PL_T_MUL, fill, pl_tint(more - first), &after));
    PL_TRY(pl_tarith(run, PL_T_ADD, before, self, out));
    return pl_tarith(run, PL_T_ADD, *out, after, out);
}

METHOD(method_ljust)
{
    UNUSED;
    return pad(run, self, argv, false, true, out);
}

METHOD(method_rjust)
{
    UNUSED;
    return pad(run, self, argv, true, false, out);
}

METHOD(method_center)
{
    UNUSED;
    return pad(run, self, argv, true, true, out);
}

METHOD(method_zfill)
{
    UNUSED;
    pl_tvalue with[2] = {argv[0]}, sign, rest;
    size_t signs = self.s->size && (self.s->bytes[0] == '-' || self.s->bytes[0] == '+');
    PL_TRY(pl_tstring_new(run, "0", 1, &with[1]));
    PL_TRY(part(run, self, 0, signs, &sign));
    PL_TRY(part(run, self, signs, self.s->size, &rest));
    if (with[0].kind == PL_T_INT) with[0].i -= with[0].i > 0 && signs;
    PL_TRY(pad(run, rest, with, true, false, &rest));
    return pl_tarith(run, PL_T_ADD, sign, rest, out);
}

#define CASE(name, how)                                                                                                \
    METHOD(name)                                                                                                       \
    {                                                                                                                  \
        UNUSED;                                                                                                        \
        PL_TRY(pl_tcase_map(run, self.s, how, out));                                                                   \
        out->note = self.note;                                                                                         \
        return 0;                                                                                                      \
    }
#define CLASS(name, what)                                                                                              \
    METHOD(name)                                                                                                       \
    {                                                                                                                  \
        UNUSED;                                                                                                        \
        PL_TRY(pl_twork(run, self.s->size * 8));                                                                       \
        *out = pl_tbool(pl_tstring_is(self.s, what));                                                                  \
        return 0;                                                                                                      \
    }

CASE(method_upper, PL_T_UPPER)
CASE(method_lower, PL_T_LOWER)
CASE(method_title, PL_T_TITLE)
CASE(method_capitalize, PL_T_CAPITALIZE)
CASE(method_swapcase, PL_T_SWAPCASE)
CLASS(method_isalpha, PL_T_ISALPHA)
CLASS(method_isdigit, PL_T_ISDIGIT)
CLASS(method_isalnum, PL_T_ISALNUM)
CLASS(method_isspace, PL_T_ISSPACE)
CLASS(method_isupper, PL_T_ISUPPER)
CLASS(method_islower, PL_T_ISLOWER)

/* A method without `call` is one that Python has and we lack. */
static const pl_tbuiltin string_methods[] = {{"strip", method_strip, "chars", 0}, {"lstrip", method_lstrip, "chars", 0},
    {"rstrip", method_rstrip, "chars", 0}, {"split", method_split, "sep,maxsplit", 0},
    {"rsplit", method_rsplit, "sep,maxsplit", 0}, {"splitlines", method_splitlines, "keepends", 0},
    {"partition", method_partition, "sep", 1}, {"rpartition", method_rpartition, "sep", 1},
    {"startswith", method_startswith, "prefix,start,end", 1}, {"endswith", method_endswith, "suffix,start,end", 1},
    {"removeprefix", method_removeprefix, "prefix", 1}, {"removesuffix", method_removesuffix, "suffix", 1},
    {"find", method_find, "sub,start,end", 1}, {"rfind", method_rfind, "sub,start,end", 1},
    {"index", method_index, "sub,start,end", 1}, {"rindex", method_rindex, "sub,start,end", 1},
    {"count", method_count, "sub,start,end", 1}, {"replace", method_replace, "old,new,count", 2},
    {"join", method_join, "iterable", 1}, {"format", method_format, NULL, 0},
    {"ljust", method_ljust, "width,fillchar", 1}, {"rjust", method_rjust, "width,fillchar", 1},
    {"center", method_center, "width,fillchar", 1}, {"zfill", method_zfill, "width", 1}, {"upper", method_upper, "", 0},
    {"lower", method_lower, "", 0}, {"title", method_title, "", 0}, {"capitalize", method_capitalize, "", 0},
    {"swapcase", method_swapcase, "", 0}, {"isalpha", method_isalpha, "", 0}, {"isdigit", method_isdigit, "", 0},
    {"isalnum", method_isalnum, "", 0}, {"isspace", method_isspace, "", 0}, {"isupper", method_isupper, "", 0},
    {"islower", method_islower, "", 0}, {"casefold", NULL, NULL, 0}, {"encode", NULL, NULL, 0},
    {"expandtabs", NULL, NULL, 0}, {"format_map", NULL, NULL, 0}, {"isascii", NULL, NULL, 0},
    {"isdecimal", NULL, NULL, 0}, {"isidentifier", NULL, NULL, 0}, {"isnumeric", NULL, NULL, 0},
    {"isprintable", NULL, NULL, 0}, {"istitle", NULL, NULL, 0}, {"maketrans", NULL, NULL, 0},
    {"translate", NULL, NULL, 0}};

const pl_tbuiltin *pl_tfind_string_method(const pl_tstring *name)
{
    return pl_tfind(string_methods, PL_COUNT(string_methods), name);
}
