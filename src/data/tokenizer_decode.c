/* Decoding: the pieces go through the decoder's stages one by one, so that a text can be shown while it is generated.
 */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

typedef struct stage_state {
    pl_buf partial;   /* what came of a token that comes in fragments */
    pl_buf held;      /* what cannot be passed on yet */
    int64_t stripped; /* STRIP: of the current token, from its start */
    int64_t tokens;   /* that came by */
    bool holding;     /* SUFFIX: a whole token is held, for the last one is treated otherwise */
} stage_state;

struct pl_decoder {
    const pl_tokenizer *tokenizer;
    bool skip_special;
    bool started; /* some token was put out (for the spaces of a tokenizer without decoder) */
    stage_state *states;
    pl_error *err; /* of the current call */
    pl_buf *out;
};

static int feed(pl_decoder *d, size_t stage, const char *text, size_t size, bool end);

/* A whole token for the next stage. */
static int next(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    return feed(d, stage + 1, text, size, true);
}

/* ---- Bytes that were written as visible characters: what comes out is one token ---- */

/* The length of the longest prefix of held bytes that is final: whole characters, and broken ones that nothing can
 * mend. */
static int flush_bytes(pl_decoder *d, size_t stage, bool all)
{
    static const char replacement[] = "\xEF\xBF\xBD";
    pl_buf *held = &d->states[stage].held;
    size_t at = 0;
    while (at < held->size) {
        size_t good = pl_utf8_check(held->data + at, held->size - at);
        if (good) PL_TRY(feed(d, stage + 1, held->data + at, good, false));
        at += good;
        if (at == held->size) break;
        /* As Rust's lossy conversion: one U+FFFD for the longest start of a well-formed sequence, or for one byte. */
        unsigned char lead = (unsigned char)held->data[at];
        size_t want = lead < 0xC2 || lead > 0xF4 ? 1 : pl_utf8_length(lead), have = 1;
        for (; have < want && at + have < held->size; have++) {
            unsigned char c = (unsigned char)held->data[at + have], low = 0x80, high = 0xBF;
            if (have == 1 && lead == 0xE0) low = 0xA0;
            if (have == 1 && lead == 0xED) high = 0x9F;
            if (have == 1 && lead == 0xF0) low = 0x90;
            if (have == 1 && lead == 0xF4) high = 0x8F;
            if (c < low || c > high) break;
        }
        if (!all && have < want && at + have == held->size) break; /* the rest may still come */
        PL_TRY(feed(d, stage + 1, replacement, 3, false));
        at += have;
    }
    if (held->data) memmove(held->data, held->data + at, held->size - at);
    held->size -= at;
    return 0;
}

static int feed_bytes(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    pl_buf *held = &d->states[stage].held;
    size_t before = held->size;
    for (size_t at = 0; at < size;) {
        int byte = pl_char_byte(pl_utf8_next(text, &at));
        if (byte < 0) { /* a token with any other character stands for itself */
            held->size = before;
            PL_TRY(pl_buf_append(d->err, held, text, size));
            break;
        }
        PL_TRY(pl_buf_putc(d->err, held, (char)byte));
    }
    return flush_bytes(d, stage, false);
}

/* ---- <0xNN> ---- */

static int hex_byte(const char *text, size_t size)
{
    if (size != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') return -1;
    char digits[3] = {text[3], text[4], 0}, *stop;
    if (!strchr("0123456789abcdefABCDEF", digits[0]) || !digits[0]) return -1;
    long byte = strtol(digits, &stop, 16);
    return stop == digits + 2 ? (int)byte : -1;
}

/* A run of byte tokens is one text if it is UTF-8 as a whole, else each of its bytes is a U+FFFD. */
static int flush_fallback(pl_decoder *d, size_t stage)
{
    pl_buf *held = &d->states[stage].held;
    if (!held->size) return 0;
    if (pl_utf8_check(held->data, held->size) == held->size) {
        PL_TRY(next(d, stage, held->data, held->size));
    } else {
        for (size_t i = 0; i < held->size; i++) PL_TRY(next(d, stage, "\xEF\xBF\xBD", 3));
    }
    pl_buf_clear(held);
    return 0;
}

static int feed_fallback(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    int byte = hex_byte(text, size);
    if (byte >= 0) return pl_buf_putc(d->err, &d->states[stage].held, (char)byte);
    PL_TRY(flush_fallback(d, stage));
    return next(d, stage, text, size);
}

/* ---- The others ---- */

static int feed_replace(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    pl_matcher matcher = {0};
    pl_buf result = {0};
    size_t at = 0, last = SIZE_MAX, done = 0, start, end;
    int rc;
    while ((rc = pl_pattern_next(d->err, &st->pattern, &matcher, text, size, &at, &last, &start, &end)) > 0) {
        PL_GO(cleanup, pl_buf_append(d->err, &result, text + done, start - done));
        PL_GO(cleanup, pl_buf_append(d->err, &result, st->content, st->content_size));
        done = end;
    }
    if (rc < 0) goto cleanup;
    PL_GO(cleanup, pl_buf_append(d->err, &result, text + done, size - done));
    PL_GO(cleanup, next(d, stage, pl_buf_text(&result), result.size));
cleanup:
    pl_matcher_free(&matcher);
    pl_buf_free(&result);
    return rc;
}

static int feed_metaspace(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    bool first = d->states[stage].tokens++ == 0;
    pl_buf result = {0};
    int rc = pl_buf_reserve(d->err, &result, size);
    for (size_t at = 0; rc == 0 && at < size;) {
        size_t here = at;
        if (pl_utf8_next(text, &at) != st->codepoint) {
            rc = pl_buf_append(d->err, &result, text + here, at - here);
        } else if (!first || !st->drop_first) {
            rc = pl_buf_putc(d->err, &result, ' ');
        }
    }
    if (rc == 0) rc = next(d, stage, pl_buf_text(&result), result.size);
    pl_buf_free(&result);
    return rc;
}

/* The token comes in fragments; characters at its end are held back while they may be the ones to strip. */
static int feed_strip(pl_decoder *d, size_t stage, const char *text, size_t size, bool end)
{
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    stage_state *s = &d->states[stage];
    for (size_t at = 0; at < size;) {
        size_t here = at;
        bool match = pl_utf8_next(text, &at) == st->codepoint;
        if (match && s->stripped >= 0 && s->stripped < st->start) {
            s->stripped++;
            continue;
        }
        s->stripped = -1; /* the start is over */
        if (!match && s->held.size) {
            PL_TRY(feed(d, stage + 1, s->held.data, s->held.size, false));
            pl_buf_clear(&s->held);
        }
        if (match && st->stop) {
            PL_TRY(pl_buf_append(d->err, &s->held, text + here, at - here));
        } else {
            PL_TRY(feed(d, stage + 1, text + here, at - here, false));
        }
    }
    if (!end) return 0;
    char character[4];
    size_t width = pl_utf8_put(character, st->codepoint), held = s->held.size / width, stop = (size_t)st->stop;
    PL_TRY(feed(d, stage + 1, pl_buf_text(&s->held), held > stop ? (held - stop) * width : 0, true));
    pl_buf_clear(&s->held);
    s->stripped = 0;
    return 0;
}

/* BPEDecoder: the suffix of a token is a space, and nothing in the last one. */
static int put_suffixed(pl_decoder *d, size_t stage, const char *by)
{
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    stage_state *s = &d->states[stage];
    pl_buf result = {0};
    int rc = 0;
    size_t at = 0;
    const char *found;
    while (rc == 0 && st->content_size && s->held.size > at &&
           (found = memmem(s->held.data + at, s->held.size - at, st->content, st->content_size))) {
        size_t start = (size_t)(found - s->held.data);
        rc = pl_buf_append(d->err, &result, s->held.data + at, start - at);
        if (rc == 0) rc = pl_buf_puts(d->err, &result, by);
        at = start + st->content_size;
    }
    if (rc == 0) rc = pl_buf_append(d->err, &result, pl_buf_text(&s->held) + at, s->held.size - at);
    if (rc == 0) rc = next(d, stage, pl_buf_text(&result), result.size);
    pl_buf_free(&result);
    pl_buf_clear(&s->held);
    s->holding = false;
    return rc;
}

static int feed_suffix(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    stage_state *s = &d->states[stage];
    if (s->holding) PL_TRY(put_suffixed(d, stage, " "));
    s->holding = true;
    return pl_buf_append(d->err, &s->held, text, size);
}

static int replace_all(pl_error *err, pl_buf *text, const char *from, const char *to)
{
    size_t from_size = strlen(from), at = 0;
    const char *found;
    pl_buf result = {0};
    int rc = 0;
    while (rc == 0 && at < text->size && (found = memmem(text->data + at, text->size - at, from, from_size))) {
        size_t start = (size_t)(found - text->data);
        rc = pl_buf_append(err, &result, text->data + at, start - at);
        if (rc == 0) rc = pl_buf_puts(err, &result, to);
        at = start + from_size;
    }
    if (rc == 0 && at) {
        rc = pl_buf_append(err, &result, text->data + at, text->size - at);
        if (rc == 0) {
            pl_buf swap = *text;
            *text = result;
            result = swap;
        }
    }
    pl_buf_free(&result);
    return rc;
}

static int feed_wordpiece(pl_decoder *d, size_t stage, const char *text, size_t size)
{
    static const char *const clean[][2] = {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    bool first = d->states[stage].tokens++ == 0;
    bool joins = st->content_size <= size && !memcmp(text, st->content, st->content_size);
    pl_buf result = {0};
    int rc = 0;
    if (!first && joins) {
        rc = pl_buf_append(d->err, &result, text + st->content_size, size - st->content_size);
    } else {
        if (!first) rc = pl_buf_putc(d->err, &result, ' ');
        if (rc == 0) rc = pl_buf_append(d->err, &result, text, size);
    }
    for (int i = 0; rc == 0 && st->cleanup && i < PL_COUNT(clean); i++) {
        rc = replace_all(d->err, &result, clean[i][0], clean[i][1]);
    }
    if (rc == 0) rc = next(d, stage, pl_buf_text(&result), result.size);
    pl_buf_free(&result);
    return rc;
}

/* text is a token, or (end false) the beginning or middle of one, for a stage. */
static int feed(pl_decoder *d, size_t stage, const char *text, size_t size, bool end)
{
    if (stage == d->tokenizer->ndecoders) return pl_buf_append(d->err, d->out, text, size);
    const pl_decode_stage *st = &d->tokenizer->decoders[stage];
    if (st->kind == PL_DECODE_STRIP) return feed_strip(d, stage, text, size, end);
    if (st->kind == PL_DECODE_FUSE) return feed(d, stage + 1, text, size, false);
    pl_buf *partial = &d->states[stage].partial, whole = {0};
    if (!end) return pl_buf_append(d->err, partial, text, size);
    if (partial->size) {
        PL_TRY(pl_buf_append(d->err, partial, text, size));
        whole = *partial;
        *partial = (pl_buf){0};
        text = whole.data;
        size = whole.size;
    }
    int rc = 0;
    switch (st->kind) {
    case PL_DECODE_BYTES: rc = feed_bytes(d, stage, text, size); break;
    case PL_DECODE_BYTE_FALLBACK: rc = feed_fallback(d, stage, text, size); break;
    case PL_DECODE_REPLACE: rc = feed_replace(d, stage, text, size); break;
    case PL_DECODE_METASPACE: rc = feed_metaspace(d, stage, text, size); break;
    case PL_DECODE_SUFFIX: rc = feed_suffix(d, stage, text, size); break;
    case PL_DECODE_WORDPIECE: rc = feed_wordpiece(d, stage, text, size); break;
    case PL_DECODE_FUSE:
    case PL_DECODE_STRIP: break;
    }
    pl_buf_free(&whole);
    return rc;
}

/* No more tokens come to this stage. */
static int finish(pl_decoder *d, size_t stage)
{
    switch (d->tokenizer->decoders[stage].kind) {
    case PL_DECODE_BYTES: PL_TRY(flush_bytes(d, stage, true)); return feed(d, stage + 1, "", 0, true);
    case PL_DECODE_FUSE: return feed(d, stage + 1, "", 0, true);
    case PL_DECODE_BYTE_FALLBACK: return flush_fallback(d, stage);
    case PL_DECODE_SUFFIX: return d->states[stage].holding ? put_suffixed(d, stage, "") : 0;
    case PL_DECODE_REPLACE:
    case PL_DECODE_STRIP:
    case PL_DECODE_METASPACE:
    case PL_DECODE_WORDPIECE: break;
    }
    return 0;
}

static void reset(pl_decoder *d)
{
    for (size_t i = 0; i < d->tokenizer->ndecoders; i++) {
        stage_state *s = &d->states[i];
        pl_buf_clear(&s->partial);
        pl_buf_clear(&s->held);
        *s = (stage_state){.partial = s->partial, .held = s->held};
    }
    d->started = false;
}

int pl_decoder_open(pl_error *err, const pl_tokenizer *t, bool skip_special_tokens, pl_decoder **out)
{
    pl_decoder *d;
    PL_TRY(pl_calloc(err, 1, sizeof *d, &d));
    d->tokenizer = t;
    d->skip_special = skip_special_tokens;
    int rc = pl_calloc(err, t->ndecoders, sizeof *d->states, &d->states);
    if (rc < 0) {
        free(d);
        return rc;
    }
    *out = d;
    return 0;
}

void pl_decoder_close(pl_decoder *d)
{
    if (!d) return;
    for (size_t i = 0; i < d->tokenizer->ndecoders; i++) {
        pl_buf_free(&d->states[i].partial);
        pl_buf_free(&d->states[i].held);
    }
    free(d->states);
    free(d);
}

int pl_decoder_push(pl_error *err, pl_decoder *d, int32_t id, pl_buf *out)
{
    const pl_tokenizer *t = d->tokenizer;
    if (id < 0 || id >= t->vocab.size || !t->vocab.pieces[id].flags) {
        return PL_FAIL(err, PL_EINPUT, "%d is not the id of a token; the highest is %d", id, t->vocab.size - 1);
    }
    if (d->skip_special && t->vocab.pieces[id].flags & PL_PIECE_SPECIAL) return 0;
    size_t size;
    const char *piece = pl_vocab_text(&t->vocab, id, &size);
    d->err = err;
    d->out = out;
    if (t->joins_with_spaces && d->started) PL_TRY(pl_buf_putc(err, out, ' '));
    d->started = true;
    return feed(d, 0, piece, size, true);
}

int pl_decoder_finish(pl_error *err, pl_decoder *d, pl_buf *out)
{
    int rc = 0;
    d->err = err;
    d->out = out;
    for (size_t i = 0; rc == 0 && i < d->tokenizer->ndecoders; i++) rc = finish(d, i);
    reset(d);
    return rc;
}

int pl_tokenizer_decode(
    pl_error *err, const pl_tokenizer *t, const int32_t *ids, size_t count, bool skip_special_tokens, pl_buf *out)
{
    pl_decoder *d = NULL;
    size_t before = out->size;
    int rc;
    PL_TRY(pl_decoder_open(err, t, skip_special_tokens, &d));
    for (size_t i = 0; i < count; i++) PL_GO(done, pl_decoder_push(err, d, ids[i], out));
    PL_GO(done, pl_decoder_finish(err, d, out));
done:
    if (rc < 0 && out->data) {
        out->size = before;
        out->data[before] = 0;
    }
    pl_decoder_close(d);
    return rc;
}
