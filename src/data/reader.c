#include "data/reader.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/utf8.h"
#include "data/reader_source.h"

#define READ_SIZE ((size_t)256 << 10)     /* how much is asked of the source at once */
#define MAX_RECORD ((size_t)1 << 30)      /* a value that is longer is rather a broken file */
#define WRAPPER_SEARCH ((size_t)64 << 10) /* how far {"...": ..., "data": [ is looked for */

enum layout {
    LAYOUT_TEXT,
    LAYOUT_LINES,
    LAYOUT_ARRAY,   /* [value, value...] */
    LAYOUT_WRAPPED, /* {..., "data": [value, value...], ...} */
    LAYOUT_VALUES   /* value value... */
};

struct pl_reader {
    char *path;
    pl_source *source;
    enum layout layout;
    char *bytes; /* bytes[at .. have) are not used yet */
    size_t at, have, capacity;
    bool ended;   /* the source has no more */
    bool inside;  /* of an array: after its [ */
    bool first;   /* of an array: no value yet */
    bool closed;  /* nothing but white space may follow */
    int64_t line; /* of bytes[at] */
};

#define READER_FAIL(err, r, ...) (reader_fail((err), (r), __FILE__, __LINE__, __VA_ARGS__), (int)PL_EINPUT)
static void reader_fail(pl_error *err, const pl_reader *r, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static void reader_fail(pl_error *err, const pl_reader *r, const char *file, int line, const char *format, ...)
{
    char message[256];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    pl_error_set(err, PL_EINPUT, file, line, "%s:%lld: %s", r->path, (long long)r->line, message);
}

/* Brings more bytes behind those that are not used yet. */
static int more_bytes(pl_error *err, pl_reader *r)
{
    if (r->at > 0) {
        memmove(r->bytes, r->bytes + r->at, r->have - r->at);
        r->have -= r->at;
        r->at = 0;
    }
    if (r->have > MAX_RECORD) {
        return READER_FAIL(
            err, r, "a value is longer than %zu MiB; is a closing bracket or quote missing?", MAX_RECORD >> 20);
    }
    PL_TRY(pl_grow(err, &r->bytes, &r->capacity, r->have + READ_SIZE, 1));
    size_t got;
    PL_TRY(pl_source_read(err, r->source, r->line, r->bytes + r->have, r->capacity - r->have, &got));
    r->have += got;
    r->ended = got == 0;
    return 0;
}

static int64_t count_lines(const char *bytes, size_t size)
{
    int64_t lines = 0;
    for (const char *p = bytes, *end = bytes + size; (p = memchr(p, '\n', (size_t)(end - p))); p++) lines++;
    return lines;
}

static void consume(pl_reader *r, size_t size)
{
    r->line += count_lines(r->bytes + r->at, size);
    r->at += size;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Skips white space and tells the next character, -1 at the end of the file. */
static int peek(pl_error *err, pl_reader *r, int *c)
{
    for (;;) {
        while (r->at < r->have && is_space(r->bytes[r->at])) {
            r->line += r->bytes[r->at] == '\n';
            r->at++;
        }
        if (r->at < r->have) {
            *c = (unsigned char)r->bytes[r->at];
            return 0;
        }
        if (r->ended) {
            *c = -1;
            return 0;
        }
        PL_TRY(more_bytes(err, r));
    }
}

/* The scan for the end of a JSON value that may stop anywhere for want of bytes and go on later. */
typedef struct scan {
    size_t at; /* bytes of the value seen */
    int depth;
    bool in_string, escaped, scalar;
} scan;

/* Goes on with bytes[s->at .. size). True when the value ends, and then s->at is its size. A number or word ends before
   the first byte that cannot be part of it, so it needs one byte more, or the end of the file. */
static bool scan_value(scan *s, const char *bytes, size_t size)
{
    size_t i = s->at;
    bool done = false;
    for (; i < size && !done; i++) {
        char c = bytes[i];
        if (s->escaped) {
            s->escaped = false;
        } else if (s->in_string) {
            if (c == '\\') {
                s->escaped = true;
            } else if (c == '"') {
                s->in_string = false;
                done = s->depth == 0;
            }
        } else if (s->scalar) {
            if (is_space(c) || c == ',' || c == ']' || c == '}' || c == '[' || c == '{' || c == '"' || c == ':') {
                s->at = i;
                return true;
            }
        } else if (c == '"') {
            s->in_string = true;
        } else if (c == '{' || c == '[') {
            s->depth++;
        } else if (c == '}' || c == ']') {
            done = --s->depth <= 0;
        } else if (s->depth == 0) {
            s->scalar = true;
        }
    }
    s->at = i;
    return done;
}

/* The whole value that starts at bytes[at]: its size. */
static int find_value(pl_error *err, pl_reader *r, size_t *size)
{
    scan s = {0};
    while (!scan_value(&s, r->bytes + r->at, r->have - r->at)) {
        if (r->ended) {
            if (s.scalar) break;
            return READER_FAIL(err, r,
                "the value that starts here has no end; is the file cut off, or a bracket or "
                "quote missing?");
        }
        PL_TRY(more_bytes(err, r));
    }
    *size = s.at;
    return 0;
}

static int take_value(pl_error *err, pl_reader *r, pl_record *record)
{
    size_t size;
    PL_TRY(find_value(err, r, &size));
    *record = (pl_record){r->bytes + r->at, size, r->line};
    consume(r, size);
    return 0;
}

static int next_line(pl_error *err, pl_reader *r, pl_record *record)
{
    for (;;) {
        size_t seen = 0;
        const char *newline;
        while (!(newline = memchr(r->bytes + r->at + seen, '\n', r->have - r->at - seen)) && !r->ended) {
            seen = r->have - r->at;
            PL_TRY(more_bytes(err, r));
        }
        char *line = r->bytes + r->at;
        size_t size = newline ? (size_t)(newline - line) : r->have - r->at, start = 0;
        int64_t number = r->line;
        r->at += size + (newline != NULL);
        r->line += newline != NULL;
        while (size > start && is_space(line[size - 1])) size--;
        while (start < size && is_space(line[start])) start++;
        if (size > start) {
            *record = (pl_record){line + start, size - start, number};
            return 0;
        }
        if (!newline) {
            *record = (pl_record){0};
            return 0;
        }
    }
}

/* Keys under which an object holds the examples of a file, as tools write them. Names that an example itself has
   (messages, conversations...) are not among them. */
static bool is_wrapper(const char *key, size_t size)
{
    static const char *const names[] = {
        "data", "train", "examples", "rows", "records", "samples", "items", "entries", "dataset"};
    for (int i = 0; i < PL_COUNT(names); i++) {
        if (strlen(names[i]) == size && memcmp(names[i], key, size) == 0) return true;
    }
    return false;
}

/* Goes to the next key of the object around the array; *key is NULL after its end. */
static int wrapper_key(pl_error *err, pl_reader *r, bool first, pl_record *key)
{
    int c;
    PL_TRY(peek(err, r, &c));
    *key = (pl_record){0};
    if (c == '}') {
        r->at++;
        return 0;
    }
    if (!first) {
        if (c != ',') return READER_FAIL(err, r, "a , or } was expected after the array of examples");
        r->at++;
        PL_TRY(peek(err, r, &c));
    }
    if (c != '"') return READER_FAIL(err, r, "a key in quotes was expected");
    PL_TRY(take_value(err, r, key));
    /* Bytes move when more are read, so the key is looked at first; only its name matters from here on. */
    return 0;
}

static int wrapper_colon(pl_error *err, pl_reader *r, int *c)
{
    PL_TRY(peek(err, r, c));
    if (*c != ':') return READER_FAIL(err, r, "a : was expected after a key");
    r->at++;
    return peek(err, r, c);
}

/* After the array of {"data": [...], ...}: other fields are skipped, a second array of examples is not. */
static int finish_wrapper(pl_error *err, pl_reader *r)
{
    for (;;) {
        pl_record key, value;
        int c;
        PL_TRY(wrapper_key(err, r, false, &key));
        if (!key.bytes) return 0;
        bool named =
            is_wrapper(key.bytes + 1, key.size - 2) || (key.size == 6 && memcmp(key.bytes, "\"test\"", 6) == 0);
        PL_TRY(wrapper_colon(err, r, &c));
        if (named && c == '[') {
            return READER_FAIL(err, r, "a second array of examples in one file; make each a file of its own");
        }
        PL_TRY(take_value(err, r, &value));
    }
}

/* A position in the bytes at hand, for looking ahead without reading on. */
static size_t skip_space(const pl_reader *r, size_t i)
{
    while (i < r->have && is_space(r->bytes[i])) i++;
    return i;
}

/* The file starts with {. If that object holds the examples in an array under a known name, goes to the [; else stays.
 */
static int find_wrapper(pl_error *err, pl_reader *r, bool *found)
{
    *found = false;
    while (!r->ended && r->have - r->at < WRAPPER_SEARCH) PL_TRY(more_bytes(err, r));
    size_t i = skip_space(r, r->at + 1);
    while (i < r->have && r->bytes[i] == '"') {
        scan key = {0}, value = {0};
        if (!scan_value(&key, r->bytes + i, r->have - i)) return 0;
        bool named = is_wrapper(r->bytes + i + 1, key.at - 2);
        i = skip_space(r, i + key.at);
        if (i == r->have || r->bytes[i] != ':') return 0;
        i = skip_space(r, i + 1);
        if (named && i < r->have && r->bytes[i] == '[') {
            size_t inner = skip_space(r, i + 1);
            if (inner < r->have && (r->bytes[inner] == '{' || r->bytes[inner] == ']')) {
                consume(r, i - r->at);
                *found = true;
                return 0;
            }
        }
        if (!scan_value(&value, r->bytes + i, r->have - i)) return 0;
        i = skip_space(r, i + value.at);
        if (i < r->have && r->bytes[i] == ',') i = skip_space(r, i + 1);
    }
    return 0;
}

static int next_element(pl_error *err, pl_reader *r, pl_record *record)
{
    int c;
    if (!r->inside) {
        r->at++; /* the [ */
        r->inside = r->first = true;
    }
    PL_TRY(peek(err, r, &c));
    if (c == ']') {
        r->at++;
        if (r->layout == LAYOUT_WRAPPED) PL_TRY(finish_wrapper(err, r));
        r->closed = true;
        return 0;
    }
    if (!r->first && c != -1) {
        if (c != ',') return READER_FAIL(err, r, "a , or ] was expected between the values of the array");
        r->at++;
        PL_TRY(peek(err, r, &c));
        if (c == ']') return READER_FAIL(err, r, "a value was expected after the last , of the array");
    }
    if (c == -1) return READER_FAIL(err, r, "the array of examples is not closed; is the file cut off?");
    if (c == ',' || c == '}' || c == ':') return READER_FAIL(err, r, "a value was expected, not %c", c);
    r->first = false;
    return take_value(err, r, record);
}

int pl_reader_next(pl_error *err, pl_reader *r, pl_record *record)
{
    *record = (pl_record){0};
    if (r->layout == LAYOUT_LINES) return next_line(err, r, record);
    if (!r->closed && (r->layout == LAYOUT_ARRAY || r->layout == LAYOUT_WRAPPED)) {
        PL_TRY(next_element(err, r, record));
        if (!r->closed) return 0;
    }
    int c;
    PL_TRY(peek(err, r, &c));
    if (c == -1) return 0;
    if (r->closed) return READER_FAIL(err, r, "more text after the end of the array of examples");
    if (c != '{') return READER_FAIL(err, r, "an example (a JSON object) was expected, not %c", c);
    return take_value(err, r, record);
}

int pl_reader_text(pl_error *err, pl_reader *r, size_t want, pl_buf *out, bool *more)
{
    size_t goal = out->size + want;
    *more = true;
    while (out->size < goal) {
        size_t left = r->have - r->at;
        /* A character or a CR LF may be cut by the end of what is here, so the last bytes wait for more. */
        if (left < 4 && !r->ended) {
            PL_TRY(more_bytes(err, r));
            continue;
        }
        if (left == 0) {
            *more = false;
            return 0;
        }
        char *text = r->bytes + r->at;
        size_t take = left < goal - out->size + 4 ? left : goal - out->size + 4;
        size_t valid = pl_utf8_check(text, take);
        if (valid + 4 <= take || (valid < take && take == left && r->ended)) {
            r->line += count_lines(text, valid);
            return READER_FAIL(err, r, "byte 0x%02x is not UTF-8 here", (unsigned char)text[valid]);
        }
        if (valid > 0 && text[valid - 1] == '\r' && (valid < left ? text[valid] == '\n' : !r->ended)) valid--;
        if (valid == 0) {
            PL_TRY(more_bytes(err, r));
            continue;
        }
        PL_TRY(pl_buf_reserve(err, out, valid));
        for (size_t i = 0; i < valid; i++) {
            if (text[i] == '\r' && i + 1 < valid && text[i + 1] == '\n') continue;
            out->data[out->size++] = text[i];
        }
        out->data[out->size] = 0;
        consume(r, valid);
    }
    return 0;
}

bool pl_reader_is_text(const pl_reader *r)
{
    return r->layout == LAYOUT_TEXT;
}

void pl_reader_identity(const pl_reader *r, pl_file_identity *out)
{
    pl_source_identity(r->source, out);
}

static int layout_by_name(pl_error *err, pl_reader *r)
{
    static const struct {
        const char *ending;
        enum layout layout;
    } endings[] = {
        {".txt", LAYOUT_TEXT}, {".jsonl", LAYOUT_LINES}, {".ndjson", LAYOUT_LINES}, {".json", LAYOUT_VALUES}};
    static const char *const packed[] = {".gz", ".zst"};
    size_t n = strlen(r->path);
    for (int i = 0; i < PL_COUNT(packed); i++) {
        size_t p = strlen(packed[i]);
        if (n > p && strcasecmp(r->path + n - p, packed[i]) == 0) {
            n -= p;
            break;
        }
    }
    for (int i = 0; i < PL_COUNT(endings); i++) {
        size_t e = strlen(endings[i].ending);
        if (n > e && strncasecmp(r->path + n - e, endings[i].ending, e) == 0) {
            r->layout = endings[i].layout;
            return 0;
        }
    }
    return PL_FAIL(err, PL_EINPUT,
        "%s: the name does not tell what it holds; data files are .txt, .jsonl or .json, each also with .gz or .zst "
        "behind it",
        r->path);
}

static int skip_mark(pl_error *err, pl_reader *r)
{
    while (!r->ended && r->have < 3) PL_TRY(more_bytes(err, r));
    const unsigned char *b = (const unsigned char *)r->bytes;
    if (r->have >= 3 && b[0] == 0xef && b[1] == 0xbb && b[2] == 0xbf) r->at = 3;
    if (r->have >= 2 && ((b[0] == 0xff && b[1] == 0xfe) || (b[0] == 0xfe && b[1] == 0xff))) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: is UTF-16; UTF-8 was expected (iconv -f utf-16 -t utf-8 makes it)", r->path);
    }
    return 0;
}

/* The name says what to expect, the first character whether it is an array. */
static int layout_by_content(pl_error *err, pl_reader *r)
{
    PL_TRY(skip_mark(err, r));
    if (r->layout == LAYOUT_TEXT) return 0;
    int c;
    PL_TRY(peek(err, r, &c));
    if (c == '[') {
        r->layout = LAYOUT_ARRAY;
    } else if (c == '{' && r->layout == LAYOUT_VALUES) {
        bool found;
        PL_TRY(find_wrapper(err, r, &found));
        if (found) r->layout = LAYOUT_WRAPPED;
    }
    return 0;
}

int pl_reader_open(pl_error *err, const char *path, pl_reader **out)
{
    pl_reader *r;
    PL_TRY(pl_calloc(err, 1, sizeof *r, &r));
    r->line = 1;
    int rc = 0;
    PL_GO(failed, pl_strdup(err, path, &r->path));
    PL_GO(failed, pl_source_open(err, path, &r->source));
    PL_GO(failed, layout_by_name(err, r));
    PL_GO(failed, layout_by_content(err, r));
    *out = r;
    return 0;
failed:
    pl_reader_close(r);
    return rc;
}

void pl_reader_close(pl_reader *r)
{
    if (!r) return;
    pl_source_close(r->source);
    free(r->bytes);
    free(r->path);
    free(r);
}
