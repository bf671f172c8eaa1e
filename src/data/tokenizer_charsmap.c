/* The table of replacements that SentencePiece compiles a normalization rule into ("precompiled_charsmap"): a
   double-array trie of what is replaced, whose values are places in a pool of zero-terminated replacements. */
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "data/tokenizer_internal.h"

struct pl_charsmap {
    uint32_t *units;
    size_t nunits;
    char *pool;
    size_t pool_size;
};

static int base64_value(char c)
{
    return c >= 'A' && c <= 'Z'   ? c - 'A'
           : c >= 'a' && c <= 'z' ? c - 'a' + 26
           : c >= '0' && c <= '9' ? c - '0' + 52
           : c == '+'             ? 62
           : c == '/'             ? 63
                                  : -1;
}

static int decode_base64(pl_error *err, const char *where, const char *text, size_t size, pl_buf *out)
{
    uint32_t bits = 0;
    int have = 0;
    while (size && text[size - 1] == '=') size--;
    for (size_t i = 0; i < size; i++) {
        int value = base64_value(text[i]);
        if (value < 0) return PL_FAIL(err, PL_EINPUT, "%s: precompiled_charsmap is not base64", where);
        bits = bits << 6 | (uint32_t)value;
        have += 6;
        if (have < 8) continue;
        have -= 8;
        PL_TRY(pl_buf_putc(err, out, (char)(bits >> have & 0xFF)));
    }
    return 0;
}

static uint32_t little_endian(const char *bytes)
{
    const unsigned char *p = (const unsigned char *)bytes;
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static int fill(pl_error *err, const char *where, const pl_buf *blob, pl_charsmap *map)
{
    uint32_t size = blob->size >= 4 ? little_endian(blob->data) : 0;
    if (!size || size % 4 || size > blob->size - 4) {
        return PL_FAIL(err, PL_EINPUT, "%s: precompiled_charsmap is damaged: its trie has %u of %zu bytes", where, size,
            blob->size);
    }
    map->nunits = size / 4;
    map->pool_size = blob->size - 4 - size;
    PL_TRY(pl_calloc(err, map->nunits, sizeof *map->units, &map->units));
    PL_TRY(pl_strndup(err, blob->data + 4 + size, map->pool_size, &map->pool));
    for (size_t i = 0; i < map->nunits; i++) map->units[i] = little_endian(blob->data + 4 + 4 * i);
    if (pl_utf8_check(map->pool, map->pool_size) == map->pool_size) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s: precompiled_charsmap is damaged: its replacements are not UTF-8", where);
}

int pl_charsmap_make(pl_error *err, const char *where, const char *base64, size_t size, pl_charsmap **out)
{
    pl_buf blob = {0};
    pl_charsmap *map = NULL;
    int rc;
    PL_GO(done, pl_calloc(err, 1, sizeof *map, &map));
    PL_GO(done, decode_base64(err, where, base64, size, &blob));
    PL_GO(done, fill(err, where, &blob, map));
    *out = map;
    map = NULL;
done:
    pl_charsmap_free(map);
    pl_buf_free(&blob);
    return rc;
}

void pl_charsmap_free(pl_charsmap *map)
{
    if (!map) return;
    free(map->units);
    free(map->pool);
    free(map);
}

/* The units' layout is that of the Darts-clone library. */
static size_t unit_offset(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1U << 9) >> 6);
}

/* The replacement for the shortest key that text begins with; NULL: none. */
static const char *lookup(const pl_charsmap *map, const char *text, size_t size)
{
    size_t node = unit_offset(map->units[0]);
    for (size_t i = 0; i < size && text[i]; i++) {
        unsigned char c = (unsigned char)text[i];
        node ^= c;
        if (node >= map->nunits) return NULL;
        uint32_t unit = map->units[node];
        if ((unit & (1U << 31 | 0xFF)) != c) return NULL;
        node ^= unit_offset(unit);
        if (node >= map->nunits) return NULL;
        if (unit >> 8 & 1) {
            uint32_t place = map->units[node] & ~(1U << 31);
            /* A replacement that began inside a character would not be UTF-8. */
            return place < map->pool_size && ((unsigned char)map->pool[place] & 0xC0) != 0x80 ? map->pool + place
                                                                                              : NULL;
        }
    }
    return NULL;
}

static int put_replacement(pl_rewriter *r, const char *replacement, size_t from, size_t to)
{
    int32_t before = 0, after = 0;
    for (size_t at = from; at < to; before++) at += pl_utf8_length((unsigned char)r->in->bytes[at]);
    for (const char *p = replacement; *p; after++) p += pl_utf8_length((unsigned char)*p);
    int32_t n = 0;
    for (size_t at = 0; replacement[at]; n++) {
        /* Surplus characters are inserted at the end; the last one swallows those that are left over. */
        int32_t change = n >= before ? 1 : n == after - 1 && after < before ? after - before : 0;
        PL_TRY(pl_rewrite_put(r, pl_utf8_next(replacement, &at), change));
    }
    pl_rewrite_drop(r, to);
    return 0;
}

/* A grapheme of up to 5 bytes is replaced as one if it begins with a key, else its characters one by one. (So it is in
   `tokenizers`; SentencePiece itself takes the longest key.) */
static int apply_grapheme(const pl_charsmap *map, pl_rewriter *r, size_t from, size_t to)
{
    const char *text = r->in->bytes;
    const char *replacement = to - from < 6 ? lookup(map, text + from, to - from) : NULL;
    if (replacement) return put_replacement(r, replacement, from, to);
    while (from < to) {
        size_t end = from + pl_utf8_length((unsigned char)text[from]);
        replacement = lookup(map, text + from, end - from);
        if (replacement) {
            PL_TRY(put_replacement(r, replacement, from, end));
        } else {
            PL_TRY(pl_rewrite_copy(r, end));
        }
        from = end;
    }
    return 0;
}

int pl_charsmap_apply(const pl_charsmap *map, pl_rewriter *r)
{
    size_t from = 0, at = 0;
    int32_t last = 0, state = 0;
    while (at < r->in->size) {
        size_t here = at;
        int32_t c = pl_utf8_next(r->in->bytes, &at);
        if (here && utf8proc_grapheme_break_stateful(last, c, &state)) {
            PL_TRY(apply_grapheme(map, r, from, here));
            from = here;
        }
        last = c;
    }
    return from < at ? apply_grapheme(map, r, from, at) : 0;
}
