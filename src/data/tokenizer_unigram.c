/* The unigram model: of all ways to write a word as pieces, the one with the highest sum of scores. Kudo 2018. */
#include <float.h>
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

static const double UNKNOWN_PENALTY = 10; /* an unknown character scores so much below the worst piece */

int pl_unigram_finish(pl_error *err, const char *where, pl_tokenizer *t)
{
    pl_unigram *u = &t->unigram;
    pl_trie_key *keys;
    size_t count = 0;
    u->longest = 4; /* an unknown character's bytes */
    double lowest = DBL_MAX;
    char text[8];
    if (!t->vocab.count) return PL_FAIL(err, PL_EINPUT, "%s: model.vocab is empty", where);
    PL_TRY(pl_calloc(err, (size_t)t->vocab.size, sizeof *keys, &keys));
    for (int32_t id = 0; id < t->vocab.size; id++) {
        if (!(t->vocab.pieces[id].flags & PL_PIECE_MODEL)) continue;
        if (u->scores[id] < lowest) lowest = u->scores[id];
        size_t size;
        const char *piece = pl_vocab_text(&t->vocab, id, &size);
        if (size > u->longest) u->longest = size;
        if (size) keys[count++] = (pl_trie_key){piece, (uint32_t)size, id};
    }
    u->unk_score = lowest - UNKNOWN_PENALTY;
    for (int b = 0; b < 256; b++) {
        snprintf(text, sizeof text, "<0x%02X>", b);
        u->fallback_ids[b] = pl_vocab_find_model(&t->vocab, text, 6);
    }
    int rc = pl_trie_build(err, &u->trie, keys, count);
    free(keys);
    return rc;
}

void pl_unigram_free(pl_unigram *u)
{
    free(u->scores);
    pl_trie_free(&u->trie);
}

static void offer(pl_node *node, double score, int32_t id, size_t start)
{
    if (node->start != UINT32_MAX && score <= node->score) return;
    *node = (pl_node){score, id, (uint32_t)start};
}

/* Offers all pieces that begin at text[at]; nodes[i] is the place at + i. *far: the furthest end so far. */
static int reach(pl_encoder *e, const char *text, size_t size, size_t at, pl_node *nodes, size_t *far)
{
    const pl_tokenizer *t = e->tokenizer;
    const pl_unigram *u = &t->unigram;
    size_t character = pl_utf8_length((unsigned char)text[at]);
    double before = nodes[at].score;
    bool single = false;
    uint32_t node = 0;
    for (size_t end = at; end < size;) {
        node = u->trie.nodes ? pl_trie_child(&u->trie, node, (unsigned char)text[end]) : 0;
        if (!node) break;
        end++;
        int32_t id = u->trie.value[node];
        if (id < 0) continue;
        offer(&nodes[end], before + u->scores[id], id, at);
        if (end > *far) *far = end;
        if (end - at == character) single = true;
    }
    if (single) return 0;
    if (t->unk < 0) {
        return PL_FAIL(e->err, PL_EINPUT,
            "the text has a character that the tokenizer has no piece for, and its model "
            "has no unk_id");
    }
    offer(&nodes[at + character], before + u->unk_score, t->unk, at);
    if (at + character > *far) *far = at + character;
    return 0;
}

/* Unknown text word[from..to): by its bytes if the model has them all, else as one unknown token. */
static int emit_unknown(pl_encoder *e, const pl_text *word, size_t from, size_t to)
{
    const pl_tokenizer *t = e->tokenizer;
    int32_t id = pl_vocab_find_model(&t->vocab, word->bytes + from, to - from);
    if (id >= 0) return pl_emit(e, word, from, to, id);
    bool fallback = t->unigram.byte_fallback;
    for (size_t i = from; fallback && i < to; i++) {
        fallback = t->unigram.fallback_ids[(unsigned char)word->bytes[i]] >= 0;
    }
    if (!fallback) return pl_emit(e, word, from, to, t->unk);
    for (size_t i = from; i < to; i++) {
        PL_TRY(pl_emit(e, word, from, to, t->unigram.fallback_ids[(unsigned char)word->bytes[i]]));
    }
    return 0;
}

/* Emits the best path through word[base..base + size), whose nodes are e->nodes; *unknown is where a run of unknown
   characters began that reaches base (SIZE_MAX: none does). */
static int emit_path(pl_encoder *e, const pl_text *word, size_t base, size_t size, size_t *unknown)
{
    pl_node *nodes = e->nodes;
    uint32_t next = 0, end = (uint32_t)size;
    while (end > 0) { /* the links are turned round, to lead from each end to the next one */
        uint32_t start = nodes[end].start;
        nodes[end].start = next;
        next = end;
        end = start;
    }
    size_t from = base;
    for (; next; next = nodes[next].start) {
        size_t to = base + next;
        if (nodes[next].id == e->tokenizer->unk) {
            if (*unknown == SIZE_MAX) *unknown = from;
        } else {
            if (*unknown != SIZE_MAX) PL_TRY(emit_unknown(e, word, *unknown, from));
            *unknown = SIZE_MAX;
            PL_TRY(pl_emit(e, word, from, to, nodes[next].id));
        }
        from = to;
    }
    return 0;
}

int pl_unigram_encode(pl_encoder *e, const pl_text *word)
{
    size_t base = 0, unknown = SIZE_MAX;
    double score = 0; /* of the path up to base */
    while (base < word->size) {
        /* Where no piece reaches across, all paths meet, and what lies before is settled: the nodes are needed only
           from one such place to the next. */
        const char *text = word->bytes + base;
        size_t size = word->size - base, at = 0, far = 0, ready = 1;
        PL_TRY(pl_grow(e->err, &e->nodes, &e->nodes_capacity, 1, sizeof *e->nodes));
        e->nodes[0] = (pl_node){score, -1, 0};
        do {
            size_t need = at + e->tokenizer->unigram.longest + 1;
            PL_TRY(pl_grow(e->err, &e->nodes, &e->nodes_capacity, need, sizeof *e->nodes));
            for (; ready < need; ready++) e->nodes[ready] = (pl_node){0, -1, UINT32_MAX};
            PL_TRY(reach(e, text, size, at, e->nodes, &far));
            at += pl_utf8_length((unsigned char)text[at]);
        } while (at < far);
        score = e->nodes[at].score;
        PL_TRY(emit_path(e, word, base, at, &unknown));
        base += at;
    }
    return unknown == SIZE_MAX ? 0 : emit_unknown(e, word, unknown, word->size);
}
