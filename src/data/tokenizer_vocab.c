/* The table of pieces, and the trie that finds the longest of many keys at a place in a text. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "data/tokenizer_internal.h"

static int grow_slots(pl_error *err, pl_vocab *v)
{
    size_t count = v->mask ? 2 * (v->mask + 1) : 1024;
    struct pl_vocab_slot *slots = malloc(count * sizeof *slots);
    if (!slots) return PL_FAIL_NOMEM(err);
    for (size_t i = 0; i < count; i++) slots[i] = (struct pl_vocab_slot){0, -1};
    for (int32_t id = 0; id < v->size; id++) {
        if (!v->pieces[id].flags) continue;
        uint64_t hash = XXH3_64bits(v->arena.data + v->pieces[id].offset, v->pieces[id].size);
        size_t i = hash & (count - 1);
        while (slots[i].id >= 0) i = (i + 1) & (count - 1);
        slots[i] = (struct pl_vocab_slot){(uint32_t)(hash >> 32), id};
    }
    free(v->slots);
    v->slots = slots;
    v->mask = count - 1;
    return 0;
}

static size_t slot_of(const pl_vocab *v, const char *piece, size_t size, uint32_t *tag)
{
    uint64_t hash = XXH3_64bits(piece, size);
    size_t i = hash & v->mask;
    *tag = (uint32_t)(hash >> 32);
    for (; v->slots[i].id >= 0; i = (i + 1) & v->mask) {
        if (v->slots[i].tag != *tag) continue;
        const pl_piece *p = &v->pieces[v->slots[i].id];
        if (p->size == size && !memcmp(v->arena.data + p->offset, piece, size)) break;
    }
    return i;
}

int32_t pl_vocab_find(const pl_vocab *v, const char *piece, size_t size)
{
    if (!v->mask) return -1;
    uint32_t tag;
    return v->slots[slot_of(v, piece, size, &tag)].id;
}

int32_t pl_vocab_find_model(const pl_vocab *v, const char *piece, size_t size)
{
    int32_t id = pl_vocab_find(v, piece, size);
    return id >= 0 && v->pieces[id].flags & PL_PIECE_MODEL ? id : -1;
}

/* Pieces are cut short in messages. */
#define SHOW_SIZE(size) (int)((size) > 60 ? 60 : (size))

int pl_vocab_add(pl_error *err, pl_vocab *v, const char *piece, size_t size, int64_t id, int64_t limit, uint32_t flags)
{
    if (id < 0) return PL_FAIL(err, PL_EINPUT, "\"%.*s\" has the id %lld", SHOW_SIZE(size), piece, (long long)id);
    if (id >= limit) {
        return PL_FAIL(err, PL_EINPUT, "\"%.*s\" has the id %lld, far beyond the number of pieces", SHOW_SIZE(size),
            piece, (long long)id);
    }
    if (!v->mask || 2 * v->count >= v->mask) PL_TRY(grow_slots(err, v));
    uint32_t tag;
    size_t slot = slot_of(v, piece, size, &tag);
    if (v->slots[slot].id >= 0) {
        return PL_FAIL(err, PL_EINPUT, "\"%.*s\" is there twice, with the ids %d and %lld", SHOW_SIZE(size), piece,
            v->slots[slot].id, (long long)id);
    }
    if (id < v->size && v->pieces[id].flags) {
        return PL_FAIL(err, PL_EINPUT, "the id %lld belongs to two pieces, \"%.*s\" and \"%.*s\"", (long long)id,
            SHOW_SIZE(v->pieces[id].size), v->arena.data + v->pieces[id].offset, SHOW_SIZE(size), piece);
    }
    if (v->arena.size + size + 1 > UINT32_MAX) return PL_FAIL(err, PL_EUNSUPPORTED, "the pieces take more than 4 GiB");
    if (id >= v->size) {
        PL_TRY(pl_grow(err, &v->pieces, &v->capacity, (size_t)id + 1, sizeof *v->pieces));
        memset(v->pieces + v->size, 0, ((size_t)id + 1 - (size_t)v->size) * sizeof *v->pieces);
        v->size = (int32_t)id + 1;
    }
    size_t offset = v->arena.size;
    PL_TRY(pl_buf_append(err, &v->arena, piece, size));
    PL_TRY(pl_buf_putc(err, &v->arena, 0));
    v->pieces[id] = (pl_piece){(uint32_t)offset, (uint32_t)size, flags};
    v->slots[slot] = (struct pl_vocab_slot){tag, (int32_t)id};
    v->count++;
    return 0;
}

void pl_vocab_free(pl_vocab *v)
{
    free(v->slots);
    free(v->pieces);
    pl_buf_free(&v->arena);
    *v = (pl_vocab){0};
}

static int by_bytes(const void *a, const void *b)
{
    const pl_trie_key *x = a, *y = b;
    int c = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    if (!c) c = (x->size > y->size) - (x->size < y->size);
    return c ? c : (x->value > y->value) - (x->value < y->value);
}

typedef struct range { /* the keys below a node, all alike in their first `depth` bytes */
    uint32_t low, high;
} range;

typedef struct builder {
    pl_trie *trie;
    range *ranges; /* by node */
    size_t first_capacity, label_capacity, value_capacity, ranges_capacity;
} builder;

static int add_node(pl_error *err, builder *b, unsigned char label, range keys)
{
    pl_trie *t = b->trie;
    if (t->nodes == UINT32_MAX - 1) return PL_FAIL(err, PL_EUNSUPPORTED, "the pieces need more than 2^32 trie nodes");
    PL_TRY(pl_grow(err, &t->first, &b->first_capacity, (size_t)t->nodes + 2, sizeof *t->first));
    PL_TRY(pl_grow(err, &t->label, &b->label_capacity, (size_t)t->nodes + 1, sizeof *t->label));
    PL_TRY(pl_grow(err, &t->value, &b->value_capacity, (size_t)t->nodes + 1, sizeof *t->value));
    PL_TRY(pl_grow(err, &b->ranges, &b->ranges_capacity, (size_t)t->nodes + 1, sizeof *b->ranges));
    t->label[t->nodes] = label;
    t->value[t->nodes] = -1;
    b->ranges[t->nodes++] = keys;
    return 0;
}

/* Breadth first, so that the children of a node come to lie side by side and first[] needs no counts. */
static int add_children(pl_error *err, builder *b, uint32_t node, uint32_t depth, const pl_trie_key *keys)
{
    range all = b->ranges[node];
    uint32_t i = all.low;
    if (i < all.high && keys[i].size == depth) b->trie->value[node] = keys[i].value;
    while (i < all.high && keys[i].size == depth) i++;
    b->trie->first[node] = b->trie->nodes;
    while (i < all.high) {
        unsigned char label = (unsigned char)keys[i].bytes[depth];
        uint32_t low = i;
        while (i < all.high && (unsigned char)keys[i].bytes[depth] == label) i++;
        PL_TRY(add_node(err, b, label, (range){low, i}));
    }
    return 0;
}

int pl_trie_build(pl_error *err, pl_trie *trie, pl_trie_key *keys, size_t count)
{
    *trie = (pl_trie){0};
    if (!count) return 0;
    if (count > INT32_MAX) return PL_FAIL(err, PL_EUNSUPPORTED, "more than 2^31 pieces");
    qsort(keys, count, sizeof *keys, by_bytes);
    for (size_t i = 0; i < count; i++) {
        unsigned char a = (unsigned char)keys[i].bytes[0];
        if (keys[i].size == 1) {
            trie->single[a] = true;
        } else {
            unsigned pair = a | (unsigned)(unsigned char)keys[i].bytes[1] << 8;
            trie->starts[pair / 64] |= UINT64_C(1) << pair % 64;
        }
    }
    builder b = {.trie = trie};
    int rc;
    PL_GO(done, add_node(err, &b, 0, (range){0, (uint32_t)count}));
    uint32_t level = 0, depth = 0;
    while (level < trie->nodes) {
        uint32_t level_end = trie->nodes;
        for (uint32_t node = level; node < level_end; node++) PL_GO(done, add_children(err, &b, node, depth, keys));
        level = level_end;
        depth++;
    }
    trie->first[trie->nodes] = trie->nodes;
done:
    free(b.ranges);
    if (rc < 0) pl_trie_free(trie);
    return rc;
}

void pl_trie_free(pl_trie *trie)
{
    free(trie->first);
    free(trie->label);
    free(trie->value);
    *trie = (pl_trie){0};
}
