/* Encoding: added tokens are cut out of the text, and what lies between goes through the pipeline. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

void pl_tokens_free(pl_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->begin);
    free(tokens->end);
    *tokens = (pl_tokens){.spans = tokens->spans};
}

/* Room for a good part of what the text will need, and then by doubling. */
int pl_emit_grow(pl_encoder *e)
{
    pl_tokens *out = e->out;
    size_t need = out->count + 1;
    if (out->count == e->out_base) need += e->text_size / 4 < 65536 ? e->text_size / 4 : 65536;
    size_t capacity = out->capacity;
    PL_TRY(pl_grow(e->err, &out->ids, &capacity, need, sizeof *out->ids));
    if (out->spans) {
        size_t begin = out->begin ? out->capacity : 0, end = out->end ? out->capacity : 0;
        PL_TRY(pl_grow(e->err, &out->begin, &begin, capacity, sizeof *out->begin));
        PL_TRY(pl_grow(e->err, &out->end, &end, capacity, sizeof *out->end));
    }
    out->capacity = capacity;
    return 0;
}

static bool is_continuation(char byte)
{
    return ((unsigned char)byte & 0xC0) == 0x80;
}

/* The span without the white space that the token has at its ends, counted in characters as the ByteLevel and Roberta
   post-processors do. A visible character may stand for the space. */
static void trim_span(const pl_encoder *e, const char *value, size_t size, int64_t *begin, int64_t *end)
{
    size_t leading = 0, trailing = 0, characters = 0;
    for (size_t at = 0; at < size; characters++) {
        int32_t c = pl_utf8_next(value, &at);
        bool space = c == pl_byte_char(' ') || pl_char_is_whitespace(c);
        if (space && leading == characters) leading++;
        trailing = space ? trailing + 1 : 0;
    }
    /* A single space at the start may be the one that the pre-tokenizer put there, which is not in the text. */
    if (leading == 1 && e->tokenizer->trim_keeps_one && (e->out->count == e->out_base || *begin == 0)) leading = 0;
    for (; leading && *begin < *end; leading--) *begin += (int64_t)pl_utf8_length((unsigned char)e->text[*begin]);
    for (; trailing && *end > *begin; trailing--) {
        do --*end;
        while (*end > *begin && is_continuation(e->text[*end]));
    }
}

void pl_emit_span(pl_encoder *e, const pl_text *text, size_t from, size_t to, const char *value, size_t value_size)
{
    pl_tokens *out = e->out;
    if (from >= text->size) from = text->size - 1;
    size_t last = to > from ? to - 1 : from;
    int64_t begin, end;
    if (text->begin) {
        begin = text->begin[from];
        end = text->end[last];
    } else {
        while (from > 0 && is_continuation(text->bytes[from])) from--;
        while (last + 1 < text->size && is_continuation(text->bytes[last + 1])) last++;
        begin = text->origin + (int64_t)from;
        end = text->origin + (int64_t)last + 1;
    }
    if (e->tokenizer->trim) trim_span(e, value, value_size, &begin, &end);
    out->begin[out->count] = begin;
    out->end[out->count] = end;
}

int pl_model_encode(pl_encoder *e, const pl_text *word)
{
    switch (e->tokenizer->kind) {
    case PL_MODEL_BPE: return pl_bpe_encode(e, word);
    case PL_MODEL_UNIGRAM: return pl_unigram_encode(e, word);
    case PL_MODEL_WORDLEVEL: return pl_wordlevel_encode(e, word);
    case PL_MODEL_WORDPIECE: return pl_wordpiece_encode(e, word);
    }
    return PL_FAIL(e->err, PL_EBUG, "model %d", (int)e->tokenizer->kind);
}

/* ---- Added tokens ---- */

/* The longest key at text[at]; its size, or 0. */
static size_t longest_key(const pl_trie *trie, const char *text, size_t size, size_t at, int32_t *value)
{
    size_t longest = 0;
    uint32_t node = 0;
    for (size_t end = at; end < size; end++) {
        node = pl_trie_child(trie, node, (unsigned char)text[end]);
        if (!node) break;
        if (trie->value[node] < 0) continue;
        longest = end + 1 - at;
        *value = trie->value[node];
    }
    return longest;
}

/* The next place at or after `at` where some key may begin. */
static size_t candidate(const pl_trie *trie, const char *text, size_t size, size_t at)
{
    const unsigned char *p = (const unsigned char *)text;
    for (; at + 1 < size; at++) {
        unsigned pair = p[at] | (unsigned)p[at + 1] << 8;
        if (trie->starts[pair / 64] >> pair % 64 & 1 || trie->single[p[at]]) return at;
    }
    return at < size && trie->single[p[at]] ? at : size;
}

static bool word_before(const char *text, size_t at)
{
    if (!at) return false;
    do at--;
    while (at && is_continuation(text[at]));
    return pl_char_is_word(pl_utf8_next(text, &at));
}

static bool word_after(const char *text, size_t size, size_t at)
{
    return at < size && pl_char_is_word(pl_utf8_next(text, &at));
}

/* Where the white space that ends at `at` begins. */
static size_t space_before(const char *text, size_t at)
{
    while (at) {
        size_t here = at;
        do here--;
        while (here && is_continuation(text[here]));
        size_t next = here;
        if (!pl_char_is_whitespace(pl_utf8_next(text, &next))) break;
        at = here;
    }
    return at;
}

static size_t space_after(const char *text, size_t size, size_t at)
{
    size_t next = at;
    while (next < size && pl_char_is_whitespace(pl_utf8_next(text, &next))) at = next;
    return at;
}

static int emit_added(pl_encoder *e, const pl_text *text, size_t from, size_t to, int32_t id)
{
    pl_tokens *out = e->out;
    if (out->count == out->capacity) PL_TRY(pl_emit_grow(e));
    if (out->spans) pl_emit_span(e, text, from, to, text->bytes + from, to - from);
    out->ids[out->count++] = id;
    return 0;
}

/* Calls `rest` for what lies between the added tokens of the trie, and emits those. */
static int cut_added(pl_encoder *e, const pl_trie *trie, const pl_text *text, int (*rest)(pl_encoder *, pl_text *))
{
    const pl_tokenizer *t = e->tokenizer;
    size_t done = 0, at = 0;
    while (trie->nodes && (at = candidate(trie, text->bytes, text->size, at)) < text->size) {
        int32_t which = 0;
        size_t size = longest_key(trie, text->bytes, text->size, at, &which);
        if (!size) {
            at++;
            continue;
        }
        const pl_added *added = &t->added[which];
        size_t from = at, to = at + size;
        at = to;
        if (added->single_word && (word_before(text->bytes, from) || word_after(text->bytes, text->size, to))) continue;
        if (added->lstrip) {
            from = space_before(text->bytes, from);
            if (from < done) from = done; /* white space that the one before has taken already */
        }
        if (added->rstrip) to = space_after(text->bytes, text->size, to);
        if (to <= from) continue;
        if (done < from) {
            pl_text between = pl_text_slice(text, done, from);
            PL_TRY(rest(e, &between));
        }
        PL_TRY(emit_added(e, text, from, to, added->id));
        done = to;
    }
    if (done == text->size) return 0;
    pl_text between = pl_text_slice(text, done, text->size);
    return rest(e, &between);
}

static int encode_plain(pl_encoder *e, pl_text *text)
{
    return text->size ? pl_stage_run(e, 0, text) : 0;
}

static int encode_normalized(pl_encoder *e, pl_text *text)
{
    PL_TRY(pl_normalize(e, text));
    return cut_added(e, &e->tokenizer->added_normalized, text, encode_plain);
}

/* ---- The call ---- */

int pl_encoder_begin(
    pl_encoder *e, pl_error *err, const pl_tokenizer *t, const char *text, size_t text_size, pl_tokens *out)
{
    *e = (pl_encoder){
        .err = err, .tokenizer = t, .out = out, .out_base = out->count, .text = text, .text_size = text_size};
    e->tracks = out->spans || t->needs_origins;
    if (t->nstages) PL_TRY(pl_calloc(err, t->nstages, sizeof *e->stage_work, &e->stage_work));
    if (t->kind != PL_MODEL_BPE || text_size < 256) return 0;
    size_t lines = 64;
    while (lines < text_size / 8 && lines < 16384) lines *= 2;
    PL_TRY(pl_calloc(err, lines, sizeof *e->cache, &e->cache));
    e->cache_mask = lines - 1;
    return 0;
}

void pl_encoder_end(pl_encoder *e)
{
    for (size_t i = 0; e->stage_work && i < e->tokenizer->nstages; i++) pl_work_free(&e->stage_work[i]);
    free(e->stage_work);
    pl_work_free(&e->work[0]);
    pl_work_free(&e->work[1]);
    pl_matcher_free(&e->matcher);
    free(e->changes.items);
    free(e->cache);
    free(e->ids);
    free(e->prev);
    free(e->next);
    free(e->starts);
    free(e->heap);
    free(e->nodes);
    pl_buf_free(&e->scratch);
}

static int add_fixed(pl_encoder *e, const int32_t *ids, size_t count)
{
    pl_tokens *out = e->out;
    for (size_t i = 0; i < count; i++) {
        if (out->count == out->capacity) PL_TRY(pl_emit_grow(e));
        if (out->spans) out->begin[out->count] = out->end[out->count] = -1;
        out->ids[out->count++] = ids[i];
    }
    return 0;
}

int pl_tokenizer_encode(
    pl_error *err, const pl_tokenizer *t, const char *text, size_t size, bool add_special_tokens, pl_tokens *out)
{
    if (size > INT32_MAX) return PL_FAIL(err, PL_EUNSUPPORTED, "a text of %zu bytes; 2^31 - 1 is the most", size);
    if (out->spans && out->capacity && !out->begin) return PL_FAIL(err, PL_EBUG, "spans were switched on too late");
    size_t good = pl_utf8_check(text, size), base = out->count;
    if (good < size) {
        return PL_FAIL(
            err, PL_EINPUT, "the text is not UTF-8: byte 0x%02X at offset %zu", (unsigned char)text[good], good);
    }
    pl_encoder e;
    pl_text all = {.bytes = text, .size = size};
    int rc;
    PL_GO(done, pl_encoder_begin(&e, err, t, text, size, out));
    if (add_special_tokens) PL_GO(done, add_fixed(&e, t->prefix, t->nprefix));
    e.out_base = out->count;
    if (size) PL_GO(done, cut_added(&e, &t->added_raw, &all, encode_normalized));
    if (add_special_tokens) PL_GO(done, add_fixed(&e, t->suffix, t->nsuffix));
done:
    if (rc < 0) out->count = base;
    pl_encoder_end(&e);
    return rc;
}
