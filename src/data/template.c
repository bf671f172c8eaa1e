/* What every part of the template interpreter stands on: memory, limits and messages. */
#include "data/template_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEPTH_LIMIT = 1000, /* of expressions, statements, calls and values within each other; keeps the C stack small */
    CHUNK = 1 << 14,    /* bytes; later chunks are larger */
    CHUNK_MAX = 1 << 22
};
static const uint64_t WORK_LIMIT = 100 * 1000 * 1000; /* steps: a few seconds */

void pl_tarena_free(pl_tarena *arena)
{
    while (arena->chunks) {
        pl_tchunk *next = arena->chunks->next;
        pl_pieces_free(&arena->chunks->origins);
        free(arena->chunks);
        arena->chunks = next;
    }
    arena->total = 0;
}

int pl_talloc(pl_trun *run, size_t count, size_t size, void *out)
{
    pl_tarena *arena = &run->arena;
    if (size && count > arena->limit / size)
        return PL_TFAIL(run, PL_ENOMEM, "this makes more than %zu MiB of values", arena->limit >> 20);
    size_t need = (count * size + sizeof(max_align_t) - 1) / sizeof(max_align_t) * sizeof(max_align_t);
    pl_tchunk *c = arena->chunks;
    if (!c || c->size - c->used < need) {
        size_t fresh = !c ? CHUNK : c->size >= CHUNK_MAX / 2 ? CHUNK_MAX : c->size * 2;
        if (fresh < need) fresh = need;
        if (fresh > arena->limit - arena->total) fresh = need;
        if (fresh > arena->limit - arena->total)
            return PL_TFAIL(run, PL_ENOMEM, "this makes more than %zu MiB of values", arena->limit >> 20);
        c = calloc(1, sizeof *c + fresh);
        if (!c) return PL_FAIL_NOMEM(run->err);
        c->size = fresh;
        c->next = arena->chunks;
        arena->chunks = c;
        arena->total += fresh;
    }
    void *memory = (char *)c->bytes + c->used;
    c->used += need;
    memcpy(out, &memory, sizeof memory);
    return 0;
}

int pl_tgrow(pl_trun *run, void *items, size_t *capacity, size_t need, size_t element)
{
    if (need <= *capacity) return 0;
    size_t next = *capacity < 4 ? 4 : *capacity * 2;
    if (next < need) next = need;
    void *old, *memory;
    memcpy(&old, items, sizeof old);
    PL_TRY(pl_talloc(run, next, element, &memory));
    if (*capacity) memcpy(memory, old, *capacity * element);
    memcpy(items, &memory, sizeof memory);
    *capacity = next;
    return 0;
}

int pl_twork(pl_trun *run, size_t bytes)
{
    run->work += 1 + bytes / 32;
    if (run->work > WORK_LIMIT)
        return PL_TFAIL(run, PL_EINPUT, "the template does not come to an end: it was stopped after %llu steps",
            (unsigned long long)WORK_LIMIT);
    return 0;
}

int pl_tenter(pl_trun *run)
{
    if (run->depth >= DEPTH_LIMIT)
        return PL_TFAIL(run, PL_EINPUT, "calls, brackets or values nest more than %d deep here", DEPTH_LIMIT);
    run->depth++;
    return 0;
}

void pl_tleave(pl_trun *run)
{
    run->depth--;
}

void pl_tfail(pl_trun *run, int code, const char *file, int line, const char *format, ...)
{
    char message[sizeof run->err->message];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    pl_error_set(run->err, code, file, line, "%s:%d: %s", run->where, run->line, message);
}

int pl_spans_add(pl_error *err, pl_spans *spans, size_t begin, size_t end)
{
    if (begin >= end) return 0;
    if (spans->count && spans->items[spans->count - 1].end == begin) {
        spans->items[spans->count - 1].end = end;
        return 0;
    }
    PL_TRY(pl_grow(err, &spans->items, &spans->capacity, spans->count + 1, sizeof *spans->items));
    spans->items[spans->count++] = (pl_span){begin, end};
    return 0;
}

void pl_spans_free(pl_spans *spans)
{
    free(spans->items);
    *spans = (pl_spans){0};
}

void pl_pieces_free(pl_pieces *pieces)
{
    free(pieces->items);
    *pieces = (pl_pieces){0};
}

const pl_tbuiltin *pl_tfind(const pl_tbuiltin *table, size_t count, const pl_tstring *name)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(table[i].name) == name->size && memcmp(table[i].name, name->bytes, name->size) == 0)
            return &table[i];
    return NULL;
}
