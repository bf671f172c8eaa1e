/* Normalizers: the text is rewritten, and for every new byte it is kept what of the original it stands for. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

void pl_work_free(pl_work *work)
{
    free(work->bytes);
    free(work->begin);
    free(work->end);
    *work = (pl_work){0};
}

pl_text pl_text_slice(const pl_text *text, size_t from, size_t to)
{
    return (pl_text){text->bytes + from, to - from, text->begin ? text->begin + from : NULL,
        text->end ? text->end + from : NULL, text->origin + (int32_t)from};
}

static int reserve(pl_rewriter *r, size_t more)
{
    pl_work *w = r->out;
    size_t need = w->size + more;
    if (need > INT32_MAX) {
        return PL_FAIL(r->encoder->err, PL_EUNSUPPORTED, "a text has more than 2^31 bytes once it is normalized");
    }
    PL_TRY(pl_grow(r->encoder->err, &w->bytes, &w->bytes_capacity, need, 1));
    if (!r->encoder->tracks) return 0;
    PL_TRY(pl_grow(r->encoder->err, &w->begin, &w->begin_capacity, need, sizeof *w->begin));
    return pl_grow(r->encoder->err, &w->end, &w->end_capacity, need, sizeof *w->end);
}

int pl_rewrite_begin(pl_rewriter *r, pl_encoder *encoder, const pl_text *in, pl_work *out)
{
    *r = (pl_rewriter){.encoder = encoder, .in = in, .out = out};
    out->size = 0;
    return reserve(r, in->size + 8);
}

/* What of the original in[at], the first byte of a character, stands for. */
static void origin_of(const pl_text *in, size_t at, int32_t *begin, int32_t *end)
{
    if (in->begin) {
        *begin = in->begin[at];
        *end = in->end[at];
    } else {
        *begin = in->origin + (int32_t)at;
        *end = *begin + (int32_t)pl_utf8_length((unsigned char)in->bytes[at]);
    }
}

int pl_rewrite_copy(pl_rewriter *r, size_t to)
{
    size_t size = to - r->at;
    pl_work *w = r->out;
    if (!size) return 0;
    PL_TRY(reserve(r, size));
    memcpy(w->bytes + w->size, r->in->bytes + r->at, size);
    if (r->encoder->tracks && r->in->begin) {
        memcpy(w->begin + w->size, r->in->begin + r->at, size * sizeof *w->begin);
        memcpy(w->end + w->size, r->in->end + r->at, size * sizeof *w->end);
    } else if (r->encoder->tracks) {
        for (size_t at = r->at, k = w->size; at < to;) {
            int32_t begin, end;
            origin_of(r->in, at, &begin, &end);
            for (size_t n = pl_utf8_length((unsigned char)r->in->bytes[at]); n; n--, at++, k++) {
                w->begin[k] = begin;
                w->end[k] = end;
            }
        }
    }
    w->size += size;
    r->at = to;
    return 0;
}

void pl_rewrite_drop(pl_rewriter *r, size_t to)
{
    r->at = to;
}

int pl_rewrite_put(pl_rewriter *r, int32_t c, int32_t change)
{
    pl_work *w = r->out;
    const pl_text *in = r->in;
    char bytes[4];
    size_t size = pl_utf8_put(bytes, c), from = r->at;
    PL_TRY(reserve(r, size));
    int32_t begin = in->origin, end = in->origin;
    if (change > 0) { /* beside the character before; an insertion at the very start stands for nothing */
        while (from > 0 && from-- && ((unsigned char)in->bytes[from] & 0xC0) == 0x80) continue;
        if (r->at && r->encoder->tracks) origin_of(in, from, &begin, &end);
    } else {
        if (from >= in->size) return PL_FAIL(r->encoder->err, PL_EBUG, "a normalizer replaces more than there is");
        if (r->encoder->tracks) origin_of(in, from, &begin, &end);
        for (int32_t n = change; n <= 0 && r->at < in->size; n++) {
            r->at += pl_utf8_length((unsigned char)in->bytes[r->at]);
        }
    }
    memcpy(w->bytes + w->size, bytes, size);
    for (size_t i = 0; r->encoder->tracks && i < size; i++) {
        w->begin[w->size + i] = begin;
        w->end[w->size + i] = end;
    }
    w->size += size;
    return 0;
}

pl_text pl_rewrite_end(const pl_rewriter *r)
{
    bool spans = r->encoder->tracks;
    return (pl_text){
        r->out->bytes, r->out->size, spans ? r->out->begin : NULL, spans ? r->out->end : NULL, r->in->origin};
}

/* ---- The normalizers ---- */

static int apply_form(pl_rewriter *r, pl_form form)
{
    const pl_text *in = r->in;
    const pl_form_table *table = &r->encoder->tokenizer->forms[form];
    pl_changes *changes = &r->encoder->changes;
    size_t at = 0, starter = 0; /* starter: the last stable character, which marks may combine with */
    while (at < in->size) {
        size_t here = at;
        if (pl_form_stable(table, pl_utf8_next(in->bytes, &at))) {
            starter = here;
            continue;
        }
        while (at < in->size) {
            size_t next = at;
            if (pl_form_stable(table, pl_utf8_next(in->bytes, &next))) break;
            at = next;
        }
        if (starter < r->at) starter = r->at;
        PL_TRY(pl_rewrite_copy(r, starter));
        changes->count = 0;
        PL_TRY(pl_form_apply(r->encoder->err, form, in->bytes + starter, at - starter, changes));
        for (size_t i = 0; i < changes->count; i++) {
            PL_TRY(pl_rewrite_put(r, changes->items[i].codepoint, changes->items[i].change));
        }
        pl_rewrite_drop(r, at);
    }
    return pl_rewrite_copy(r, in->size);
}

static int apply_lowercase(pl_rewriter *r)
{
    for (size_t at = 0; at < r->in->size;) {
        int32_t lower[3], c = pl_utf8_next(r->in->bytes, &at);
        size_t n = pl_char_lower(c, lower);
        for (size_t i = 0; i < n; i++) PL_TRY(pl_rewrite_put(r, lower[i], i > 0));
    }
    return 0;
}

static int apply_strip(pl_rewriter *r, bool left, bool right)
{
    size_t from = 0, to = 0, next = 0;
    while (left && next < r->in->size && pl_char_is_whitespace(pl_utf8_next(r->in->bytes, &next))) from = next;
    to = r->in->size;
    if (right) {
        to = from;
        for (size_t at = from; at < r->in->size;) {
            if (!pl_char_is_whitespace(pl_utf8_next(r->in->bytes, &at))) to = at;
        }
    }
    pl_rewrite_drop(r, from);
    return pl_rewrite_copy(r, to);
}

static int apply_filter(pl_rewriter *r, bool (*drop)(int32_t c))
{
    for (size_t at = 0; at < r->in->size;) {
        size_t here = at;
        if (!drop(pl_utf8_next(r->in->bytes, &at))) continue;
        PL_TRY(pl_rewrite_copy(r, here));
        pl_rewrite_drop(r, at);
    }
    return pl_rewrite_copy(r, r->in->size);
}

/* The new characters take the place of the first one, which then counts as inserted behind them. */
static int apply_prepend(pl_rewriter *r, const char *content, size_t size)
{
    if (!r->in->size) return 0;
    size_t next = 0;
    int32_t first = pl_utf8_next(r->in->bytes, &next);
    for (size_t at = 0; at < size;) {
        bool inserted = at > 0;
        PL_TRY(pl_rewrite_put(r, pl_utf8_next(content, &at), inserted));
    }
    if (size) PL_TRY(pl_rewrite_put(r, first, 1));
    return pl_rewrite_copy(r, r->in->size);
}

static int apply_replace(pl_rewriter *r, const pl_pattern *pattern, const char *content, size_t size)
{
    const pl_text *in = r->in;
    size_t at = 0, last = SIZE_MAX, start, end;
    int found;
    while ((found = pl_pattern_next(
                r->encoder->err, pattern, &r->encoder->matcher, in->bytes, in->size, &at, &last, &start, &end)) > 0) {
        PL_TRY(pl_rewrite_copy(r, start));
        pl_rewrite_drop(r, end);
        for (size_t k = 0; k < size;) PL_TRY(pl_rewrite_put(r, pl_utf8_next(content, &k), 1));
    }
    return found < 0 ? found : pl_rewrite_copy(r, in->size);
}

static int apply_bytes(pl_rewriter *r)
{
    const pl_text *in = r->in;
    for (size_t at = 0; at < in->size;) {
        size_t n = pl_utf8_length((unsigned char)in->bytes[at]);
        for (size_t i = 0; i < n; i++) {
            PL_TRY(pl_rewrite_put(r, pl_byte_char((unsigned char)in->bytes[at + i]), i > 0));
        }
        at += n;
    }
    return 0;
}

static bool nmt_drops(int32_t c)
{
    return (c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
}

static bool nmt_is_space(int32_t c)
{
    return c == 0x09 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
           c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
}

static bool clean_drops(int32_t c)
{
    return c == 0 || c == 0xFFFD || (c != '\t' && c != '\n' && c != '\r' && pl_char_is_other(c));
}

/* Drops some characters and makes spaces of others. */
static int apply_clean(pl_rewriter *r, bool (*drop)(int32_t c), bool (*space)(int32_t c))
{
    for (size_t at = 0; at < r->in->size;) {
        size_t here = at;
        int32_t c = pl_utf8_next(r->in->bytes, &at);
        bool gone = drop(c);
        if (!gone && !space(c)) continue;
        PL_TRY(pl_rewrite_copy(r, here));
        if (gone) {
            pl_rewrite_drop(r, at);
        } else {
            PL_TRY(pl_rewrite_put(r, ' ', 0));
        }
    }
    return pl_rewrite_copy(r, r->in->size);
}

static int apply_chinese(pl_rewriter *r)
{
    for (size_t at = 0; at < r->in->size;) {
        size_t here = at;
        int32_t c = pl_utf8_next(r->in->bytes, &at);
        if (!pl_char_is_chinese(c)) continue;
        PL_TRY(pl_rewrite_copy(r, here));
        PL_TRY(pl_rewrite_put(r, ' ', 0));
        PL_TRY(pl_rewrite_put(r, c, 1));
        PL_TRY(pl_rewrite_put(r, ' ', 1));
    }
    return pl_rewrite_copy(r, r->in->size);
}

static int apply(pl_rewriter *r, const pl_normalizer *n)
{
    switch (n->kind) {
    case PL_NORM_FORM: return apply_form(r, n->form);
    case PL_NORM_LOWERCASE: return apply_lowercase(r);
    case PL_NORM_STRIP: return apply_strip(r, n->left, n->right);
    case PL_NORM_STRIP_ACCENTS: return apply_filter(r, pl_char_is_mark);
    case PL_NORM_STRIP_NONSPACING: return apply_filter(r, pl_char_is_nonspacing);
    case PL_NORM_PREPEND: return apply_prepend(r, n->content, n->content_size);
    case PL_NORM_REPLACE: return apply_replace(r, &n->pattern, n->content, n->content_size);
    case PL_NORM_BYTES: return apply_bytes(r);
    case PL_NORM_NMT: return apply_clean(r, nmt_drops, nmt_is_space);
    case PL_NORM_CLEAN: return apply_clean(r, clean_drops, pl_char_is_whitespace);
    case PL_NORM_CHINESE: return apply_chinese(r);
    case PL_NORM_CHARSMAP: return pl_charsmap_apply(n->charsmap, r);
    }
    return PL_FAIL(r->encoder->err, PL_EBUG, "normalizer %d", (int)n->kind);
}

/* Most texts are in normal form already; then nothing needs to be written. */
static bool changes_nothing(const pl_tokenizer *t, const pl_normalizer *n, const pl_text *text)
{
    if (n->kind != PL_NORM_FORM) return false;
    for (size_t at = 0; at < text->size;) {
        if ((unsigned char)text->bytes[at] < 0x80) {
            at++;
        } else if (!pl_form_stable(&t->forms[n->form], pl_utf8_next(text->bytes, &at))) {
            return false;
        }
    }
    return true;
}

int pl_normalize(pl_encoder *e, pl_text *text)
{
    for (size_t i = 0; i < e->tokenizer->nnormalizers; i++) {
        const pl_normalizer *n = &e->tokenizer->normalizers[i];
        if (changes_nothing(e->tokenizer, n, text)) continue;
        pl_work *out = &e->work[text->bytes == e->work[0].bytes];
        pl_rewriter r;
        PL_TRY(pl_rewrite_begin(&r, e, text, out));
        PL_TRY(apply(&r, n));
        *text = pl_rewrite_end(&r);
    }
    return 0;
}
