/* Where the bytes of a rendered text come from. A byte belongs to the message that the template goes through when it
   puts it into a text for the first time: into the rendering itself, or into a string that is built up and written
   later. Copies keep what is known of their bytes. */
#include <string.h>

#include "data/template_internal.h"

/* ---- what is known of strings ---- */

static bool same_origin(const pl_piece *a, const pl_piece *b)
{
    return a->writes == b->writes && a->quotes == b->quotes && a->literal == b->literal && a->generated == b->generated;
}

static int add(pl_trun *run, pl_pieces *to, pl_piece piece)
{
    if (piece.begin == piece.end) return 0;
    pl_piece *last = to->count ? &to->items[to->count - 1] : NULL;
    if (last && last->end == piece.begin && same_origin(last, &piece)) {
        last->end = piece.end;
        return 0;
    }
    PL_TRY(pl_grow(run->err, &to->items, &to->capacity, to->count + 1, sizeof *to->items));
    to->items[to->count++] = piece;
    return 0;
}

/* The chunk of the run's arena that has these bytes; NULL: they are the template's own, or the context's. */
static pl_tchunk *chunk_of(const pl_trun *run, const char *bytes)
{
    uintptr_t at = (uintptr_t)bytes;
    for (pl_tchunk *c = run->arena.chunks; c; c = c->next)
        if (at >= (uintptr_t)c->bytes && at < (uintptr_t)c->bytes + c->used) return c;
    return NULL;
}

/* The first piece that ends behind `at`. */
static size_t find(const pl_pieces *in, size_t at)
{
    size_t low = 0, high = in->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (in->items[middle].end > at)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* A copy of bytes that are known: what the template goes through now says whose they are in the text itself, and where
   nothing was known of that before. */
static pl_piece copied(const pl_trun *run, pl_piece piece, size_t begin, size_t end, bool last)
{
    if (piece.writes < 0 || (last && run->message >= 0)) piece.writes = run->message;
    piece.generated |= run->generations > 0;
    piece.begin = begin;
    piece.end = end;
    return piece;
}

int pl_torigin_copy(pl_trun *run, const char *bytes, size_t size, size_t at, bool last, pl_pieces *to)
{
    static const pl_piece literal = {.writes = -1, .quotes = -1, .literal = true}, made = {.writes = -1, .quotes = -1};
    if (!run->traced || size == 0) return 0;
    const pl_tchunk *chunk = chunk_of(run, bytes);
    if (!chunk) return add(run, to, copied(run, literal, at, at + size, last));
    const pl_pieces *from = &chunk->origins;
    size_t offset = (size_t)(bytes - (const char *)chunk->bytes), done = 0;
    for (size_t i = find(from, offset); done < size; i++) {
        /* Up to the next piece, of which there may be none, nothing is known: a filter made it. */
        size_t begin = i < from->count && from->items[i].begin < offset + size ? from->items[i].begin : offset + size;
        if (begin > offset + done) {
            PL_TRY(add(run, to, copied(run, made, at + done, at + begin - offset, last)));
            done = begin - offset;
        }
        if (done == size) break;
        pl_piece piece = from->items[i];
        size_t end = piece.end < offset + size ? piece.end - offset : size;
        PL_TRY(add(run, to, copied(run, piece, at + done, at + end, last)));
        done = end;
    }
    return 0;
}

int pl_torigin_copy_text(pl_trun *run, const char *from, size_t size, const char *to)
{
    if (!run->traced || size == 0) return 0;
    pl_tchunk *chunk = run->arena.chunks;
    return pl_torigin_copy(run, from, size, (size_t)(to - (char *)chunk->bytes), false, &chunk->origins);
}

/* ---- messages ---- */

/* The words of a message, however deep in it: copies, whose place tells what they are. */
static int adopt_words(pl_trun *run, pl_tvalue *v, int64_t message)
{
    int rc = 0;
    if (v->kind == PL_T_STRING && v->s->size) {
        PL_TRY(pl_tstring_copy(run, v->s->bytes, v->s->size, v));
        pl_tchunk *chunk = chunk_of(run, v->s->bytes);
        size_t at = (size_t)(v->s->bytes - (const char *)chunk->bytes);
        return add(
            run, &chunk->origins, (pl_piece){.begin = at, .end = at + v->s->size, .writes = -1, .quotes = message});
    }
    if (v->kind != PL_T_LIST && v->kind != PL_T_DICT) return 0;
    size_t count = v->kind == PL_T_LIST ? v->list->count : v->dict->count;
    PL_TRY(pl_tenter(run));
    for (size_t i = 0; i < count && rc == 0; i++)
        rc = adopt_words(run, v->kind == PL_T_LIST ? &v->list->items[i] : &v->dict->values[i], message);
    pl_tleave(run);
    return rc;
}

int pl_torigin_adopt(pl_trun *run, pl_tdict *context)
{
    const pl_tvalue *messages = run->traced ? pl_tdict_get(context, "messages", 8) : NULL;
    if (!messages || messages->kind != PL_T_LIST) return 0;
    for (size_t i = 0; i < messages->list->count; i++) {
        if (messages->list->items[i].kind != PL_T_DICT) continue;
        pl_tdict *message = messages->list->items[i].dict;
        message->message = (int64_t)i + 1;
        for (size_t k = 0; k < message->count; k++) /* a role is a part of headers, and nobody's words */
            if (!pl_tis_text(message->keys[k], "role", 4)) PL_TRY(adopt_words(run, &message->values[k], (int64_t)i));
    }
    return 0;
}

void pl_torigin_name(pl_trun *run, pl_tvalue v)
{
    if (!run->traced || !run->numbers || v.kind != PL_T_DICT || !v.dict->message) return;
    run->message = v.dict->message - 1;
    run->numbers = false;
}

/* ---- texts that grow ---- */

int pl_ttext_append(pl_trun *run, pl_ttext *text, const char *bytes, size_t size)
{
    PL_TRY(pl_torigin_copy(run, bytes, size, text->buf.size, false, &text->origins));
    return pl_buf_append(run->err, &text->buf, bytes, size);
}

int pl_ttext_print(pl_trun *run, pl_ttext *text, pl_tvalue v)
{
    if (v.kind == PL_T_STRING) return pl_ttext_append(run, text, v.s->bytes, v.s->size);
    return pl_tvalue_print(run, v, &text->buf); /* a gap in the origins: made */
}

int pl_ttext_take(pl_trun *run, pl_ttext *text, int rc, pl_tvalue *out)
{
    if (rc >= 0) {
        int copied = pl_tstring_copy(run, pl_buf_text(&text->buf), text->buf.size, out);
        if (copied < 0) rc = copied;
    }
    if (rc >= 0 && text->origins.count) {
        pl_tchunk *chunk = chunk_of(run, out->s->bytes);
        size_t at = (size_t)(out->s->bytes - (const char *)chunk->bytes);
        for (size_t i = 0; i < text->origins.count; i++) {
            pl_piece piece = text->origins.items[i];
            piece.begin += at;
            piece.end += at;
            int added = add(run, &chunk->origins, piece);
            if (added < 0) rc = added;
        }
    }
    pl_ttext_free(text);
    return rc;
}

void pl_ttext_free(pl_ttext *text)
{
    pl_buf_free(&text->buf);
    pl_pieces_free(&text->origins);
}
