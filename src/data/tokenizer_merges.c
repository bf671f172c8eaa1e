/* Byte-pair encoding, as it is read: the table of merges and the tables that make encoding fast. */
#include <stdlib.h>
#include <string.h>

#include "data/tokenizer_internal.h"

typedef struct merge_list {
    pl_bpe_merge *items;
    size_t count, capacity;
    pl_buf joined;
} merge_list;

static int32_t piece_id(pl_scan *r, const pl_tokenizer *t, size_t rank, const char *text, size_t size)
{
    int32_t id = pl_vocab_find_model(&t->vocab, text, size);
    if (id < 0) {
        return pl_scan_fail(
            r, "merge %zu names \"%.*s\", which is not in model.vocab", rank, (int)(size > 60 ? 60 : size), text);
    }
    return id;
}

static int add_merge(pl_scan *r, const pl_tokenizer *t, merge_list *list, const char *left, size_t left_size,
    const char *right, size_t right_size)
{
    size_t rank = list->count, skip = t->bpe.prefix ? strlen(t->bpe.prefix) : 0;
    int32_t a, b, id;
    PL_TRY(a = piece_id(r, t, rank, left, left_size));
    PL_TRY(b = piece_id(r, t, rank, right, right_size));
    if (skip > right_size) return pl_scan_fail(r, "merge %zu: its right part is shorter than the subword prefix", rank);
    pl_buf_clear(&list->joined);
    PL_TRY(pl_buf_append(r->err, &list->joined, left, left_size));
    PL_TRY(pl_buf_append(r->err, &list->joined, right + skip, right_size - skip));
    PL_TRY(id = piece_id(r, t, rank, list->joined.data, list->joined.size));
    if (rank >= INT32_MAX - 1) return pl_scan_fail(r, "there are more than 2^31 merges");
    PL_TRY(pl_grow(r->err, &list->items, &list->capacity, rank + 1, sizeof *list->items));
    list->items[list->count++] = (pl_bpe_merge){(uint64_t)(uint32_t)a << 32 | (uint32_t)b, (int32_t)rank, id};
    return 0;
}

/* "left right", or ["left", "right"] where pieces may have spaces in them. */
static int read_merge(pl_scan *r, const pl_tokenizer *t, merge_list *list, pl_buf *left)
{
    const char *text;
    size_t size;
    if (pl_scan_peek(r) == '[') {
        r->p++;
        PL_TRY(pl_scan_string(r, &text, &size));
        pl_buf_clear(left); /* the second string may take the place of the first */
        PL_TRY(pl_buf_append(r->err, left, text, size));
        PL_TRY(pl_scan_expect(r, ','));
        PL_TRY(pl_scan_string(r, &text, &size));
        PL_TRY(pl_scan_expect(r, ']'));
        return add_merge(r, t, list, left->data, left->size, text, size);
    }
    PL_TRY(pl_scan_string(r, &text, &size));
    if (size >= 8 && !memcmp(text, "#version", 8)) return 0;
    const char *space = memchr(text, ' ', size);
    size_t left_size = space ? (size_t)(space - text) : 0;
    if (!space || memchr(space + 1, ' ', size - left_size - 1)) {
        return pl_scan_fail(r, "merge %zu is \"%.*s\"; two pieces with one space between them were expected",
            list->count, (int)(size > 60 ? 60 : size), text);
    }
    return add_merge(r, t, list, text, left_size, space + 1, size - left_size - 1);
}

static int make_table(pl_error *err, pl_bpe *bpe, const merge_list *list)
{
    size_t size = 16;
    bpe->merge_shift = 60;
    while (size < 2 * list->count) {
        size *= 2;
        bpe->merge_shift--;
    }
    PL_TRY(pl_calloc(err, size, sizeof *bpe->merges, &bpe->merges));
    PL_TRY(pl_calloc(err, 4 * size / 64, sizeof *bpe->merge_bits, &bpe->merge_bits));
    for (size_t i = 0; i < size; i++) bpe->merges[i].pair = UINT64_MAX;
    for (size_t i = 0; i < list->count; i++) {
        const pl_bpe_merge *m = &list->items[i];
        size_t bit = pl_pair_slot((int32_t)(m->pair >> 32), (int32_t)(uint32_t)m->pair, bpe->merge_shift - 2);
        size_t slot = bit >> 2;
        bpe->merge_bits[bit / 64] |= UINT64_C(1) << bit % 64;
        while (bpe->merges[slot].pair != UINT64_MAX && bpe->merges[slot].pair != m->pair)
            slot = (slot + 1) & (size - 1);
        bpe->merges[slot] = *m; /* of a pair that is there twice, the later counts */
    }
    return 0;
}

int pl_bpe_read_merges(pl_scan *r, pl_tokenizer *t)
{
    merge_list list = {0};
    pl_buf left = {0};
    int rc, more = 1;
    PL_GO(done, pl_scan_expect(r, '['));
    if (pl_scan_peek(r) == ']') more = 0;
    while (more > 0) {
        PL_GO(done, read_merge(r, t, &list, &left));
        PL_GO(done, more = pl_scan_more(r, ']'));
    }
    PL_GO(done, make_table(r->err, &t->bpe, &list));
done:
    pl_buf_free(&left);
    pl_buf_free(&list.joined);
    free(list.items);
    return rc;
}

/* Finds the pieces of single bytes; true if the model's bytes are all there. */
static bool find_byte_pieces(pl_tokenizer *t)
{
    char text[16];
    bool all = true;
    t->bpe.fallback_complete = true;
    for (int b = 0; b < 256; b++) {
        size_t size = pl_utf8_put(text, pl_byte_char((unsigned char)b));
        t->bpe.byte_ids[b] = pl_vocab_find_model(&t->vocab, text, size);
        if (t->bpe.byte_ids[b] < 0) all = false;
        snprintf(text, sizeof text, "<0x%02X>", b);
        t->bpe.fallback_ids[b] = pl_vocab_find_model(&t->vocab, text, 6);
        if (t->bpe.fallback_ids[b] < 0) t->bpe.fallback_complete = false;
    }
    return all;
}

/* Are byte pieces, or the unknown token, parts of merges? Then what happens at a cut could depend on both sides. */
static bool merges_special(const pl_tokenizer *t)
{
    size_t size = (size_t)1 << (64 - t->bpe.merge_shift);
    for (size_t i = 0; i < size; i++) {
        if (t->bpe.merges[i].pair == UINT64_MAX) continue;
        int32_t parts[2] = {(int32_t)(t->bpe.merges[i].pair >> 32), (int32_t)(uint32_t)t->bpe.merges[i].pair};
        for (int k = 0; k < 2; k++) {
            size_t length;
            const char *text = pl_vocab_text(&t->vocab, parts[k], &length);
            if (parts[k] == t->unk || (length == 6 && !memcmp(text, "<0x", 3) && text[5] == '>')) return true;
        }
    }
    return false;
}

static void set_pair(pl_bpe *bpe, uint32_t a, uint32_t b)
{
    if (a < 128 && b < 128) {
        bpe->ascii_pairs[a][b >> 6] |= UINT64_C(1) << (b & 63);
    } else {
        size_t bit = pl_pair_slot((int32_t)a, (int32_t)b, bpe->pair_shift);
        bpe->pairs[bit >> 6] |= UINT64_C(1) << (bit & 63);
    }
}

/* The pairs of neighbours in a piece. A byte-level piece may begin and end inside a character: then it is the part that
   it has which stands beside the neighbour. */
static void set_pairs(pl_bpe *bpe, const unsigned char *bytes, size_t size)
{
    for (size_t at = 1; at < size; at++) {
        if ((bytes[at] & 0xC0) == 0x80) continue;
        size_t from = at - 1, to = at + pl_utf8_length(bytes[at]);
        while (from && at - from < 4 && (bytes[from] & 0xC0) == 0x80) from--;
        if ((bytes[from] & 0xC0) == 0x80 || to > size) bpe->partial = true;
        if (to > size) to = size;
        set_pair(
            bpe, pl_bpe_code((const char *)bytes + from, at - from), pl_bpe_code((const char *)bytes + at, to - at));
    }
}

/* The bytes that a byte-level piece stands for; false when it has characters that stand for none, and so takes no part
   in merges. */
static bool piece_bytes(const char *text, size_t size, pl_buf *out)
{
    out->size = 0;
    for (size_t at = 0; at < size;) {
        int byte = pl_char_byte(pl_utf8_next(text, &at));
        if (byte < 0) return false;
        out->data[out->size++] = (char)byte;
    }
    return true;
}

static int make_pairs(pl_error *err, pl_tokenizer *t)
{
    pl_bpe *bpe = &t->bpe;
    pl_buf bytes = {0};
    size_t bits = 4096;
    int rc;
    bpe->pair_shift = 52;
    while (bits < 4 * t->vocab.arena.size && bits < (1 << 23)) {
        bits *= 2;
        bpe->pair_shift--;
    }
    PL_GO(done, pl_calloc(err, bits / 64, sizeof *bpe->pairs, &bpe->pairs));
    for (int32_t id = 0; id < t->vocab.size; id++) {
        if (!(t->vocab.pieces[id].flags & PL_PIECE_MODEL)) continue;
        size_t size;
        const char *text = pl_vocab_text(&t->vocab, id, &size);
        if (!t->raw_bytes) {
            set_pairs(bpe, (const unsigned char *)text, size);
            continue;
        }
        bytes.size = 0;
        PL_GO(done, pl_buf_reserve(err, &bytes, size));
        if (piece_bytes(text, size, &bytes)) set_pairs(bpe, (const unsigned char *)bytes.data, bytes.size);
    }
done:
    pl_buf_free(&bytes);
    return rc;
}

static int make_char_table(pl_error *err, pl_tokenizer *t)
{
    pl_bpe *bpe = &t->bpe;
    PL_TRY(pl_calloc(err, 65536, sizeof *bpe->char_ids, &bpe->char_ids));
    for (int32_t c = 0; c < 65536; c++) bpe->char_ids[c] = -1;
    for (int32_t id = 0; id < t->vocab.size; id++) {
        if (!(t->vocab.pieces[id].flags & PL_PIECE_MODEL)) continue;
        size_t size, at = 0;
        const char *text = pl_vocab_text(&t->vocab, id, &size);
        int32_t c = size ? pl_utf8_next(text, &at) : 65536;
        if (at == size && c < 65536) bpe->char_ids[c] = id;
    }
    return 0;
}

int pl_bpe_finish(pl_error *err, pl_tokenizer *t)
{
    pl_bpe *bpe = &t->bpe;
    bool all_bytes = find_byte_pieces(t);
    if (!t->raw_bytes) PL_TRY(make_char_table(err, t));
    bpe->cuts = t->raw_bytes ? all_bytes
                             : !bpe->affixes && (bpe->fallback_complete || !bpe->byte_fallback) && !merges_special(t);
    return bpe->cuts ? make_pairs(err, t) : 0;
}

void pl_bpe_free(pl_bpe *bpe)
{
    free(bpe->prefix);
    free(bpe->suffix);
    free(bpe->merges);
    free(bpe->merge_bits);
    free(bpe->char_ids);
    free(bpe->pairs);
}
