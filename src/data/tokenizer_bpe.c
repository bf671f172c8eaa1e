/* Byte-pair encoding of a word: its characters (or bytes) become symbols, and of all neighbours that a merge joins,
   those with the lowest rank are joined first, the leftmost of equals. Sennrich et al. 2016. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

enum { SHORT_WORD = 128 }; /* bytes up to which scanning all pairs for the best one beats a heap */

static inline const pl_bpe_merge *find_merge(const pl_bpe *bpe, int32_t a, int32_t b)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    size_t bit = pl_pair_slot(a, b, bpe->merge_shift - 2), slot = bit >> 2;
    if (!(bpe->merge_bits[bit / 64] >> bit % 64 & 1)) return NULL;
    while (bpe->merges[slot].pair != pair) {
        if (bpe->merges[slot].pair == UINT64_MAX) return NULL;
        slot = (slot + 1) & ((size_t)-1 >> bpe->merge_shift);
    }
    return &bpe->merges[slot];
}

/* Has the processor fetch what find_merge will need. */
static inline void fetch_merge(const pl_bpe *bpe, int32_t a, int32_t b)
{
    __builtin_prefetch(&bpe->merges[pl_pair_slot(a, b, bpe->merge_shift)]);
}

/* ---- Symbols ---- */

typedef struct symbols {
    int32_t *ids;
    uint32_t *starts; /* in the word */
    size_t count;
    bool unknown; /* the last symbol is the unknown token, which the next unknown character joins if they are fused */
} symbols;

static void add_symbol(symbols *s, int32_t id, size_t start)
{
    s->ids[s->count] = id;
    s->starts[s->count++] = (uint32_t)start;
    s->unknown = false;
}

/* The piece of the character word[at..end), with the model's prefix and suffix where they apply. */
static int affixed_char(pl_encoder *e, const char *word, size_t size, size_t at, size_t end, int32_t *id)
{
    const pl_bpe *bpe = &e->tokenizer->bpe;
    pl_buf_clear(&e->scratch);
    if (at && bpe->prefix) PL_TRY(pl_buf_puts(e->err, &e->scratch, bpe->prefix));
    PL_TRY(pl_buf_append(e->err, &e->scratch, word + at, end - at));
    if (end == size && bpe->suffix) PL_TRY(pl_buf_puts(e->err, &e->scratch, bpe->suffix));
    *id = pl_vocab_find_model(&e->tokenizer->vocab, e->scratch.data, e->scratch.size);
    return 0;
}

static bool fall_back(const pl_bpe *bpe, symbols *s, const char *text, size_t size, size_t start)
{
    for (size_t i = 0; i < size; i++) {
        if (bpe->fallback_ids[(unsigned char)text[i]] < 0) return false;
    }
    for (size_t i = 0; i < size; i++) add_symbol(s, bpe->fallback_ids[(unsigned char)text[i]], start + i);
    return true;
}

static int add_unknown(pl_encoder *e, symbols *s, size_t start)
{
    const pl_tokenizer *t = e->tokenizer;
    if (t->unk < 0) {
        if (!t->unk_name) return 0; /* as in `tokenizers`, the model then has nothing to say about this character */
        return PL_FAIL(e->err, PL_EINPUT,
            "the text has a character that the tokenizer has no piece for, and its unknown "
            "token \"%s\" is not in its vocabulary",
            t->unk_name);
    }
    if (!s->unknown || !t->bpe.fuse_unk) add_symbol(s, t->unk, start);
    s->unknown = true;
    return 0;
}

static int split_chars(pl_encoder *e, const char *word, size_t size, symbols *s)
{
    const pl_tokenizer *t = e->tokenizer;
    const pl_bpe *bpe = &t->bpe;
    size_t at = 0;
    while (at < size) {
        size_t start = at;
        int32_t c = pl_utf8_next(word, &at), id;
        if (bpe->affixes) {
            PL_TRY(affixed_char(e, word, size, start, at, &id));
        } else {
            id = pl_bpe_char(t, c, word + start, at - start);
        }
        if (id >= 0) {
            add_symbol(s, id, start);
        } else if (!bpe->affixes && bpe->byte_fallback) {
            if (!fall_back(bpe, s, word + start, at - start, start)) PL_TRY(add_unknown(e, s, start));
        } else if (bpe->byte_fallback) {
            /* The prefix and suffix of an unknown character fall back too; their bytes stand for no text. */
            if (!fall_back(bpe, s, e->scratch.data, e->scratch.size, start)) PL_TRY(add_unknown(e, s, start));
        } else {
            PL_TRY(add_unknown(e, s, start));
        }
    }
    return 0;
}

static int split_bytes(pl_encoder *e, const char *word, size_t size, symbols *s)
{
    const pl_bpe *bpe = &e->tokenizer->bpe;
    for (size_t i = 0; i < size; i++) {
        int32_t id = bpe->byte_ids[(unsigned char)word[i]];
        if (id >= 0) {
            add_symbol(s, id, i);
        } else {
            char text[4];
            size_t n = pl_utf8_put(text, pl_byte_char((unsigned char)word[i]));
            if (!bpe->byte_fallback || !fall_back(bpe, s, text, n, i)) PL_TRY(add_unknown(e, s, i));
        }
    }
    return 0;
}

/* ---- Merging ---- */

typedef struct pairs {
    int32_t ranks[2 * SHORT_WORD], joined[2 * SHORT_WORD]; /* of symbols i and i + 1; INT32_MAX: they don't merge */
} pairs;

static inline void look_up(const pl_bpe *bpe, const symbols *s, pairs *p, size_t i)
{
    const pl_bpe_merge *m = find_merge(bpe, s->ids[i], s->ids[i + 1]);
    p->ranks[i] = m ? m->rank : INT32_MAX;
    p->joined[i] = m ? m->id : 0;
}

/* Few symbols: arrays that are kept dense. Returns how many are left. */
static size_t merge_short(const pl_bpe *bpe, symbols *s)
{
    pairs p;
    size_t n = s->count;
    for (size_t i = 0; i + 1 < n; i++) fetch_merge(bpe, s->ids[i], s->ids[i + 1]);
    for (size_t i = 0; i + 1 < n; i++) look_up(bpe, s, &p, i);
    while (n > 1) {
        int32_t best = INT32_MAX;
        size_t at = 0;
        for (size_t i = 0; i + 1 < n; i++) best = p.ranks[i] < best ? p.ranks[i] : best;
        if (best == INT32_MAX) break;
        while (p.ranks[at] != best) at++;
        s->ids[at] = p.joined[at];
        if (at + 2 < n) fetch_merge(bpe, s->ids[at], s->ids[at + 2]);
        if (at) fetch_merge(bpe, s->ids[at - 1], s->ids[at]);
        n--;
        for (size_t i = at + 1; i < n; i++) {
            s->ids[i] = s->ids[i + 1];
            s->starts[i] = s->starts[i + 1];
            p.ranks[i - 1] = p.ranks[i];
            p.joined[i - 1] = p.joined[i];
        }
        if (at) look_up(bpe, s, &p, at - 1);
        if (at + 1 < n) look_up(bpe, s, &p, at);
    }
    return n;
}

static inline bool before(pl_candidate a, pl_candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void sift_down(pl_candidate *heap, size_t size, size_t at)
{
    pl_candidate item = heap[at];
    for (;;) {
        size_t child = 2 * at + 1;
        if (child >= size) break;
        if (child + 1 < size && before(heap[child + 1], heap[child])) child++;
        if (!before(heap[child], item)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = item;
}

static int push(pl_encoder *e, int32_t left, int32_t right, uint32_t at)
{
    const pl_bpe_merge *m = find_merge(&e->tokenizer->bpe, left, right);
    if (!m) return 0;
    PL_TRY(pl_grow(e->err, &e->heap, &e->heap_capacity, e->heap_size + 1, sizeof *e->heap));
    pl_candidate item = {m->rank, at, m->id};
    size_t i = e->heap_size++;
    while (i && before(item, e->heap[(i - 1) / 2])) {
        e->heap[i] = e->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    e->heap[i] = item;
    return 0;
}

static pl_candidate pop(pl_encoder *e)
{
    pl_candidate top = e->heap[0];
    e->heap[0] = e->heap[--e->heap_size];
    if (e->heap_size) sift_down(e->heap, e->heap_size, 0);
    return top;
}

/* Many symbols: a linked list and a heap of candidates, some of which are stale when their turn comes. */
static int merge_long(pl_encoder *e, symbols *s)
{
    const pl_bpe *bpe = &e->tokenizer->bpe;
    int32_t n = (int32_t)s->count;
    PL_TRY(pl_grow(e->err, &e->prev, &e->prev_capacity, s->count, sizeof *e->prev));
    PL_TRY(pl_grow(e->err, &e->next, &e->next_capacity, s->count, sizeof *e->next));
    e->heap_size = 0;
    for (int32_t i = 0; i < n; i++) {
        e->prev[i] = i - 1;
        e->next[i] = i + 1 < n ? i + 1 : -1;
        const pl_bpe_merge *m = i + 1 < n ? find_merge(bpe, s->ids[i], s->ids[i + 1]) : NULL;
        if (!m) continue;
        PL_TRY(pl_grow(e->err, &e->heap, &e->heap_capacity, e->heap_size + 1, sizeof *e->heap));
        e->heap[e->heap_size++] = (pl_candidate){m->rank, (uint32_t)i, m->id};
    }
    for (size_t i = e->heap_size / 2; i-- > 0;) sift_down(e->heap, e->heap_size, i);
    while (e->heap_size) {
        pl_candidate top = pop(e);
        int32_t at = (int32_t)top.at, right = e->next[at];
        if (s->ids[at] < 0 || right < 0) continue;
        const pl_bpe_merge *m = find_merge(bpe, s->ids[at], s->ids[right]);
        if (!m || m->id != top.id) continue;
        s->ids[at] = top.id;
        s->ids[right] = -1;
        e->next[at] = e->next[right];
        if (e->next[at] >= 0) e->prev[e->next[at]] = at;
        if (e->prev[at] >= 0) PL_TRY(push(e, s->ids[e->prev[at]], top.id, (uint32_t)e->prev[at]));
        if (e->next[at] >= 0) PL_TRY(push(e, top.id, s->ids[e->next[at]], top.at));
    }
    size_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (s->ids[i] < 0) continue;
        s->ids[kept] = s->ids[i];
        s->starts[kept++] = s->starts[i];
    }
    s->count = kept;
    return 0;
}

static int emit_symbols(pl_encoder *e, const pl_text *word, size_t from, size_t to, const symbols *s)
{
    for (size_t i = 0; i < s->count; i++) {
        size_t end = i + 1 < s->count ? s->starts[i + 1] : to - from;
        PL_TRY(pl_emit(e, word, from + s->starts[i], from + end, s->ids[i]));
    }
    return 0;
}

static int encode_long(pl_encoder *e, const pl_text *word, size_t from, size_t to)
{
    size_t size = to - from, most = size;
    if (e->tokenizer->bpe.affixes) { /* characters that fall back bring the bytes of their prefix and suffix */
        const pl_bpe *bpe = &e->tokenizer->bpe;
        most *= 1 + (bpe->prefix ? strlen(bpe->prefix) : 0) + (bpe->suffix ? strlen(bpe->suffix) : 0);
    }
    if (e->tokenizer->raw_bytes) most *= 2;
    if (most > INT32_MAX) return PL_FAIL(e->err, PL_EUNSUPPORTED, "a word of %zu bytes is too long", size);
    PL_TRY(pl_grow(e->err, &e->ids, &e->ids_capacity, most, sizeof *e->ids));
    PL_TRY(pl_grow(e->err, &e->starts, &e->starts_capacity, most, sizeof *e->starts));
    symbols s = {.ids = e->ids, .starts = e->starts};
    PL_TRY((e->tokenizer->raw_bytes ? split_bytes : split_chars)(e, word->bytes + from, size, &s));
    PL_TRY(merge_long(e, &s));
    return emit_symbols(e, word, from, to, &s);
}

/* ---- The cache of short words, one line a word ---- */

static pl_word *cache_line(pl_encoder *e, const char *word, size_t size, uint64_t key[PL_WORD_KEY / 8])
{
    key[0] = key[1] = key[2] = 0;
    memcpy(key, word, size);
    uint64_t hash = (key[0] ^ key[0] >> 32) * UINT64_C(0x9E3779B97F4A7C15);
    if (size > 8) {
        hash = (hash ^ key[1]) * UINT64_C(0xC2B2AE3D27D4EB4F);
        hash = (hash ^ hash >> 29 ^ key[2]) * UINT64_C(0x165667B19E3779F9);
    }
    return &e->cache[(hash ^ size << 40) >> 40 & e->cache_mask];
}

static int emit_line(pl_encoder *e, const pl_text *word, size_t from, const pl_word *line)
{
    pl_tokens *out = e->out;
    for (unsigned i = 0; i < line->count; i++) {
        if (out->spans) {
            PL_TRY(pl_emit(e, word, from, from + line->sizes[i], line->ids[i]));
            from += line->sizes[i];
        } else {
            if (out->count == out->capacity) PL_TRY(pl_emit_grow(e));
            out->ids[out->count++] = line->ids[i];
        }
    }
    return 0;
}

static void fill_line(pl_word *line, const uint64_t *key, size_t size, size_t mark, const symbols *s)
{
    if (s->count > PL_WORD_IDS || (s->count && s->starts[0])) return;
    memcpy(line->key, key, sizeof line->key);
    line->size = (uint8_t)mark;
    line->count = (uint8_t)s->count;
    for (size_t i = 0; i < s->count; i++) {
        line->ids[i] = s->ids[i];
        line->sizes[i] = (uint8_t)((i + 1 < s->count ? s->starts[i + 1] : size) - s->starts[i]);
    }
}

/* The whole word as a piece, in a model that looks for that before it merges; -1. */
static int whole_word(pl_encoder *e, const char *word, size_t size, int32_t *id)
{
    const pl_tokenizer *t = e->tokenizer;
    if (!t->raw_bytes) {
        *id = pl_vocab_find_model(&t->vocab, word, size);
        return 0;
    }
    pl_buf_clear(&e->scratch);
    PL_TRY(pl_buf_reserve(e->err, &e->scratch, 2 * size));
    for (size_t i = 0; i < size; i++) {
        e->scratch.size += pl_utf8_put(e->scratch.data + e->scratch.size, pl_byte_char((unsigned char)word[i]));
    }
    *id = pl_vocab_find_model(&t->vocab, e->scratch.data, e->scratch.size);
    return 0;
}

/* word[from..to), merged by itself. whole: it is a whole word, which some models look for as a piece first. */
static int encode_part(pl_encoder *e, const pl_text *word, size_t from, size_t to, bool whole)
{
    const pl_tokenizer *t = e->tokenizer;
    const char *text = word->bytes + from;
    size_t size = to - from, mark = whole ? size : size | 0x80;
    int32_t ids[2 * SHORT_WORD], id = -1;
    uint32_t starts[2 * SHORT_WORD];
    symbols s = {.ids = ids, .starts = starts};
    uint64_t key[PL_WORD_KEY / 8];
    pl_word *line = NULL;
    if (e->cache && size <= PL_WORD_KEY) {
        line = cache_line(e, text, size, key);
        if (line->size == mark && !memcmp(line->key, key, sizeof key)) return emit_line(e, word, from, line);
    }
    if (whole && t->bpe.ignore_merges) PL_TRY(whole_word(e, text, size, &id));
    if (id >= 0) {
        add_symbol(&s, id, 0);
    } else if (size > SHORT_WORD || t->bpe.affixes) {
        return encode_long(e, word, from, to);
    } else {
        PL_TRY((t->raw_bytes ? split_bytes : split_chars)(e, text, size, &s));
        s.count = merge_short(&t->bpe, &s);
    }
    if (line) fill_line(line, key, size, mark, &s);
    return emit_symbols(e, word, from, to, &s);
}

static inline bool is_pair(const pl_bpe *bpe, uint32_t a, uint32_t b)
{
    if (a < 128 && b < 128) return bpe->ascii_pairs[a][b >> 6] >> (b & 63) & 1;
    size_t bit = pl_pair_slot((int32_t)a, (int32_t)b, bpe->pair_shift);
    return bpe->pairs[bit >> 6] >> (bit & 63) & 1;
}

/* May some piece reach across from the character text[a..b) to the character text[b..c)? */
static inline bool may_join(const pl_bpe *bpe, const char *text, size_t a, size_t b, size_t c)
{
    if (is_pair(bpe, pl_bpe_code(text + a, b - a), pl_bpe_code(text + b, c - b))) return true;
    if (!bpe->partial) return false;
    for (size_t from = a; from < b; from++) {
        uint32_t left = pl_bpe_code(text + from, b - from), right = 0;
        for (size_t to = b; to < c; to++) {
            right = right << 8 | (unsigned char)text[to];
            if (is_pair(bpe, left, right)) return true;
        }
    }
    return false;
}

static bool is_unknown(const pl_tokenizer *t, const char *text)
{
    size_t at = 0;
    int32_t c = pl_utf8_next(text, &at);
    return pl_bpe_char(t, c, text, at) < 0;
}

/* Cuts the word where no merge can reach across: a text without pre-tokenizer would be one enormous word, and the words
   of a script without spaces are long and seldom the same, while their parts are short and often so. */
static int encode_cut(pl_encoder *e, const pl_text *word)
{
    const pl_tokenizer *t = e->tokenizer;
    const char *text = word->bytes;
    bool unknowns_join = !t->raw_bytes && t->bpe.fuse_unk && !t->bpe.byte_fallback;
    size_t from = 0, last = 0, at = word->size ? pl_utf8_length((unsigned char)text[0]) : 0;
    while (at < word->size) {
        size_t end = at + pl_utf8_length((unsigned char)text[at]);
        if (!may_join(&t->bpe, text, last, at, end) &&
            !(unknowns_join && is_unknown(t, text + last) && is_unknown(t, text + at))) {
            PL_TRY(encode_part(e, word, from, at, false));
            from = at;
        }
        last = at;
        at = end;
    }
    return encode_part(e, word, from, word->size, false);
}

int pl_bpe_encode(pl_encoder *e, const pl_text *word)
{
    const pl_bpe *bpe = &e->tokenizer->bpe;
    if (!bpe->cuts || word->size <= PL_WORD_KEY) return encode_part(e, word, 0, word->size, true);
    if (bpe->ignore_merges) {
        int32_t id;
        PL_TRY(whole_word(e, word->bytes, word->size, &id));
        if (id >= 0) return pl_emit(e, word, 0, word->size, id);
    }
    return encode_cut(e, word);
}
