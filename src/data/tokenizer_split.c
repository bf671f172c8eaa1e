/* Pre-tokenizers. The stages call each other, a piece at a time and in order, so that no list of pieces is ever kept.
 */
#include <string.h>

#include "data/tokenizer_internal.h"

/* What a split has found and not yet passed on, because what follows may still be joined to it. */
typedef struct splitter {
    pl_encoder *encoder;
    const pl_text *text;
    size_t next_stage;
    pl_behavior behavior;
    bool invert;
    bool pending, last_match;
    size_t from, to;
} splitter;

static int pass_on(splitter *s, size_t from, size_t to)
{
    if (from == to) return 0;
    pl_text piece = pl_text_slice(s->text, from, to);
    return pl_stage_run(s->encoder, s->next_stage, &piece);
}

/* text[from..to) is a match or lies between two; called in order. */
static int found(splitter *s, size_t from, size_t to, bool match)
{
    match = match != s->invert;
    bool joins = false;
    switch (s->behavior) {
    case PL_ISOLATED: return pass_on(s, from, to);
    case PL_REMOVED: return match ? 0 : pass_on(s, from, to);
    case PL_CONTIGUOUS: joins = match == s->last_match; break;
    case PL_WITH_PREVIOUS: joins = match && !s->last_match; break;
    case PL_WITH_NEXT: joins = !match && s->last_match; break;
    }
    s->last_match = match;
    if (joins && s->pending) {
        s->to = to;
        return 0;
    }
    if (s->pending) PL_TRY(pass_on(s, s->from, s->to));
    s->pending = true;
    s->from = from;
    s->to = to;
    return 0;
}

static int split_pattern(splitter *s, const pl_pattern *pattern)
{
    const pl_text *text = s->text;
    pl_encoder *e = s->encoder;
    size_t at = 0, last = SIZE_MAX, done = 0, start, end;
    int rc;
    while (
        (rc = pl_pattern_next(e->err, pattern, &e->matcher, text->bytes, text->size, &at, &last, &start, &end)) > 0) {
        if (done != start) PL_TRY(found(s, done, start, false));
        PL_TRY(found(s, start, end, true));
        done = end;
    }
    if (rc == 0 && done != text->size) rc = found(s, done, text->size, false);
    return rc;
}

static int split_class(splitter *s, bool (*class)(int32_t c))
{
    const pl_text *text = s->text;
    size_t done = 0, at = 0;
    while (at < text->size) {
        size_t here = at;
        if (!class(pl_utf8_next(text->bytes, &at))) continue;
        if (done < here) PL_TRY(found(s, done, here, false));
        PL_TRY(found(s, here, at, true));
        done = at;
    }
    return done < text->size ? found(s, done, text->size, false) : 0;
}

static int split(pl_encoder *e, size_t stage, const pl_text *text)
{
    const pl_stage *st = &e->tokenizer->stages[stage];
    splitter s = {.encoder = e, .text = text, .next_stage = stage + 1, .behavior = st->behavior, .invert = st->invert};
    if (st->kind == PL_STAGE_SPLIT) {
        PL_TRY(split_pattern(&s, &st->pattern));
    } else {
        PL_TRY(split_class(&s, st->class));
    }
    return s.pending ? pass_on(&s, s.from, s.to) : 0;
}

static int split_length(pl_encoder *e, size_t stage, const pl_text *text)
{
    splitter s = {.encoder = e, .text = text, .next_stage = stage + 1};
    size_t from = 0, at = 0;
    while (at < text->size) {
        for (size_t n = 0; n < e->tokenizer->stages[stage].length && at < text->size; n++) {
            at += pl_utf8_length((unsigned char)text->bytes[at]);
        }
        PL_TRY(pass_on(&s, from, at));
        from = at;
    }
    return 0;
}

/* The new character takes the place of the first, which then counts as inserted behind it. */
static int prepend(pl_rewriter *r, int32_t c)
{
    size_t next = 0;
    int32_t first = pl_utf8_next(r->in->bytes, &next);
    PL_TRY(pl_rewrite_put(r, c, 0));
    return pl_rewrite_put(r, first, 1);
}

static int prefix_space(pl_encoder *e, size_t stage, const pl_text *text)
{
    if (text->bytes[0] == ' ') return pl_stage_run(e, stage + 1, text);
    pl_rewriter r;
    PL_TRY(pl_rewrite_begin(&r, e, text, &e->stage_work[stage]));
    PL_TRY(prepend(&r, ' '));
    PL_TRY(pl_rewrite_copy(&r, text->size));
    pl_text longer = pl_rewrite_end(&r);
    return pl_stage_run(e, stage + 1, &longer);
}

static int metaspace(pl_encoder *e, size_t stage, const pl_text *text)
{
    const pl_stage *st = &e->tokenizer->stages[stage];
    size_t next = 0;
    int32_t first = pl_utf8_next(text->bytes, &next);
    bool at_start = (text->begin ? text->begin[0] : text->origin) == 0;
    bool in_front = st->scheme == PL_ALWAYS || (st->scheme == PL_FIRST && at_start);
    pl_rewriter r;
    PL_TRY(pl_rewrite_begin(&r, e, text, &e->stage_work[stage]));
    if (in_front && first != st->replacement && first != ' ') PL_TRY(prepend(&r, st->replacement));
    for (;;) {
        const char *space = memchr(text->bytes + r.at, ' ', text->size - r.at);
        PL_TRY(pl_rewrite_copy(&r, space ? (size_t)(space - text->bytes) : text->size));
        if (!space) break;
        PL_TRY(pl_rewrite_put(&r, st->replacement, 0));
    }
    pl_text changed = pl_rewrite_end(&r);
    return pl_stage_run(e, stage + 1, &changed);
}

static int visible_bytes(pl_encoder *e, size_t stage, const pl_text *text)
{
    if (e->tokenizer->raw_bytes && stage + 1 == e->tokenizer->nstages) return pl_stage_run(e, stage + 1, text);
    pl_rewriter r;
    PL_TRY(pl_rewrite_begin(&r, e, text, &e->stage_work[stage]));
    for (size_t at = 0; at < text->size;) {
        size_t n = pl_utf8_length((unsigned char)text->bytes[at]);
        for (size_t i = 0; i < n; i++) {
            PL_TRY(pl_rewrite_put(&r, pl_byte_char((unsigned char)text->bytes[at + i]), i > 0));
        }
        at += n;
    }
    pl_text changed = pl_rewrite_end(&r);
    return pl_stage_run(e, stage + 1, &changed);
}

int pl_stage_run(pl_encoder *e, size_t stage, const pl_text *piece)
{
    if (stage == e->tokenizer->nstages) return pl_model_encode(e, piece);
    switch (e->tokenizer->stages[stage].kind) {
    case PL_STAGE_SPLIT:
    case PL_STAGE_SPLIT_CLASS: return split(e, stage, piece);
    case PL_STAGE_LENGTH: return split_length(e, stage, piece);
    case PL_STAGE_PREFIX_SPACE: return prefix_space(e, stage, piece);
    case PL_STAGE_METASPACE: return metaspace(e, stage, piece);
    case PL_STAGE_BYTES: return visible_bytes(e, stage, piece);
    }
    return PL_FAIL(e->err, PL_EBUG, "pre-tokenizer stage %d", (int)e->tokenizer->stages[stage].kind);
}
