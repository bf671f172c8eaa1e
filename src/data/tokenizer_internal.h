/* What the tokenizer's files share. A text goes: added tokens cut out (tokenizer_encode.c) -> normalizers
   (tokenizer_normalize.c) -> pre-tokenizer stages (tokenizer_split.c) -> the model (tokenizer_bpe.c, _unigram.c,
   _word.c). Everything that a call changes lives in its pl_encoder, so that a pl_tokenizer can be shared by threads. */
#ifndef PL_DATA_TOKENIZER_INTERNAL_H
#define PL_DATA_TOKENIZER_INTERNAL_H

#include <jansson.h>

#include "base/utf8.h"
#include "data/tokenizer.h"

/* ---- Vocabulary (tokenizer_vocab.c): pieces by id and ids by piece ---- */

enum { PL_PIECE_MODEL = 1, PL_PIECE_ADDED = 2, PL_PIECE_SPECIAL = 4 };

typedef struct pl_piece {
    uint32_t offset, size; /* in the arena, where a 0 follows */
    uint32_t flags;        /* 0: no piece has this id */
} pl_piece;

typedef struct pl_vocab {
    pl_buf arena;
    pl_piece *pieces;
    size_t capacity;
    int32_t size; /* highest id + 1 */
    struct pl_vocab_slot {
        uint32_t tag; /* bits of the hash */
        int32_t id;   /* -1: empty */
    } * slots;
    size_t mask, count; /* slots - 1 (0 while there are none); pieces */
} pl_vocab;

/* PL_EINPUT when the piece or its id is taken. `limit`: ids must be below it. */
int pl_vocab_add(
    pl_error *err, pl_vocab *vocab, const char *piece, size_t size, int64_t id, int64_t limit, uint32_t flags);
int32_t pl_vocab_find(const pl_vocab *vocab, const char *piece, size_t size);       /* any piece; -1 */
int32_t pl_vocab_find_model(const pl_vocab *vocab, const char *piece, size_t size); /* only the model's own */
void pl_vocab_free(pl_vocab *vocab);

static inline const char *pl_vocab_text(const pl_vocab *vocab, int32_t id, size_t *size)
{
    *size = vocab->pieces[id].size;
    return vocab->arena.data + vocab->pieces[id].offset;
}

/* ---- A trie over bytes: node 0 is the root; the children of a node lie side by side, sorted by label ---- */

typedef struct pl_trie_key {
    const char *bytes;
    uint32_t size;
    int32_t value; /* >= 0 */
} pl_trie_key;

typedef struct pl_trie {
    uint32_t *first; /* [nodes + 1] */
    unsigned char *label;
    int32_t *value; /* -1: no key ends here */
    uint32_t nodes;
    uint64_t starts[1024]; /* bit (a | b << 8): some key begins with the bytes a, b */
    bool single[256];      /* some key is this one byte */
} pl_trie;

/* Sorts the keys, which must not be empty; of equal ones the lowest value counts. No keys: nodes is 0. */
int pl_trie_build(pl_error *err, pl_trie *trie, pl_trie_key *keys, size_t count);
void pl_trie_free(pl_trie *trie);

/* The child by that byte; 0: none. */
static inline uint32_t pl_trie_child(const pl_trie *trie, uint32_t node, unsigned char byte)
{
    uint32_t low = trie->first[node], high = trie->first[node + 1];
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (trie->label[middle] < byte) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < trie->first[node + 1] && trie->label[low] == byte ? low : 0;
}

/* ---- Patterns (tokenizer_regex.c) ---- */

typedef struct pl_pattern {
    char *text; /* as the file has it */
    size_t size;
    void *code; /* pcre2_code; NULL: the text itself is what is looked for */
    bool jit;
} pl_pattern;

/* The pattern is Oniguruma's; what PCRE2 reads otherwise is rewritten or PL_EUNSUPPORTED. `where` names the field. */
int pl_pattern_regex(pl_error *err, const char *where, const char *text, size_t size, pl_pattern *out);
int pl_pattern_literal(pl_error *err, const char *where, const char *text, size_t size, pl_pattern *out);
void pl_pattern_free(pl_pattern *pattern);

typedef struct pl_matcher { /* one call's; {0} to start with */
    void *data, *context, *stack;
} pl_matcher;

void pl_matcher_free(pl_matcher *matcher);

/* Successive matches in text: *at is where the last one ended, *last the end of the last match (SIZE_MAX before the
   first). 1 with [*start, *end), 0 when there are no more, or an error. */
int pl_pattern_next(pl_error *err, const pl_pattern *pattern, pl_matcher *matcher, const char *text, size_t size,
    size_t *at, size_t *last, size_t *start, size_t *end);

/* ---- Unicode (tokenizer_unicode.c); the names are Rust's, whose meanings these have ---- */

bool pl_char_is_whitespace(int32_t c);
bool pl_char_is_numeric(int32_t c);     /* Nd, Nl, No */
bool pl_char_is_punctuation(int32_t c); /* ASCII punctuation, or P* */
bool pl_char_is_mark(int32_t c);        /* Mn, Mc, Me */
bool pl_char_is_nonspacing(int32_t c);  /* Mn */
bool pl_char_is_other(int32_t c);       /* Cc, Cf, Co */
bool pl_char_is_word(int32_t c);        /* \w */
bool pl_char_is_chinese(int32_t c);     /* BERT's CJK blocks */
size_t pl_char_lower(int32_t c, int32_t out[3]);

typedef enum pl_form { PL_NFC, PL_NFD, PL_NFKC, PL_NFKD } pl_form;

/* One bit a code point: set when a text of such characters alone is not known to be in the form already. */
typedef struct pl_form_table {
    uint8_t *unstable;
} pl_form_table;

int pl_form_table_make(pl_error *err, pl_form form, pl_form_table *table);

static inline bool pl_form_stable(const pl_form_table *table, int32_t c)
{
    return !(table->unstable[c >> 3] >> (c & 7) & 1);
}

/* A character of rewritten text and where it comes from: change 0 replaces the next source character, > 0 is inserted
   beside the one before, < 0 replaces the next and swallows -change more. */
typedef struct pl_change {
    int32_t codepoint;
    int32_t change;
} pl_change;

typedef struct pl_changes {
    pl_change *items;
    size_t count, capacity;
} pl_changes;

/* Appends the normal form of text[0..size), a whole number of segments (a starter and what follows it). */
int pl_form_apply(pl_error *err, pl_form form, const char *text, size_t size, pl_changes *out);

/* ---- Text on its way ---- */

typedef struct pl_text {
    const char *bytes;
    size_t size;
    const int32_t *begin,
        *end; /* for every byte, what of the original it stands for; NULL: the original, from origin */
    int32_t origin;
} pl_text;

/* Rewritten text; keeps its memory between uses. */
typedef struct pl_work {
    char *bytes;
    int32_t *begin, *end; /* if the encoder tracks them */
    size_t size, bytes_capacity, begin_capacity, end_capacity;
} pl_work;

void pl_work_free(pl_work *work);

typedef struct pl_encoder pl_encoder;

/* Writes a text anew, tracking where it comes from. */
typedef struct pl_rewriter {
    pl_encoder *encoder;
    const pl_text *in;
    pl_work *out;
    size_t at; /* how much of `in` was consumed */
} pl_rewriter;

int pl_rewrite_begin(pl_rewriter *r, pl_encoder *encoder, const pl_text *in, pl_work *out); /* out must not hold in */
int pl_rewrite_copy(pl_rewriter *r, size_t to);                                             /* in[at..to) unchanged */
void pl_rewrite_drop(pl_rewriter *r, size_t to);                                            /* in[at..to) is gone */
int pl_rewrite_put(pl_rewriter *r, int32_t c, int32_t change);                              /* as in pl_change */
pl_text pl_rewrite_end(const pl_rewriter *r);                                               /* the new text */
pl_text pl_text_slice(const pl_text *text, size_t from, size_t to);

/* ---- The parts of the pipeline ---- */

typedef struct pl_charsmap pl_charsmap;

typedef enum pl_normalizer_kind {
    PL_NORM_FORM,
    PL_NORM_LOWERCASE,
    PL_NORM_STRIP,
    PL_NORM_STRIP_ACCENTS,
    PL_NORM_STRIP_NONSPACING,
    PL_NORM_PREPEND,
    PL_NORM_REPLACE,
    PL_NORM_BYTES,
    PL_NORM_NMT,
    PL_NORM_CLEAN,
    PL_NORM_CHINESE,
    PL_NORM_CHARSMAP
} pl_normalizer_kind;

typedef struct pl_normalizer {
    pl_normalizer_kind kind;
    pl_form form;
    bool left, right;   /* STRIP */
    pl_pattern pattern; /* REPLACE */
    char *content;      /* REPLACE, PREPEND */
    size_t content_size;
    pl_charsmap *charsmap;
} pl_normalizer;

typedef enum pl_stage_kind {
    PL_STAGE_SPLIT,        /* at a pattern */
    PL_STAGE_SPLIT_CLASS,  /* at single characters of a class */
    PL_STAGE_LENGTH,       /* every so many characters */
    PL_STAGE_PREFIX_SPACE, /* a space in front, if there is none */
    PL_STAGE_METASPACE,    /* spaces replaced, and one in front by the scheme */
    PL_STAGE_BYTES         /* each byte becomes a visible character */
} pl_stage_kind;

typedef enum pl_behavior { PL_ISOLATED, PL_REMOVED, PL_CONTIGUOUS, PL_WITH_PREVIOUS, PL_WITH_NEXT } pl_behavior;
typedef enum pl_scheme { PL_ALWAYS, PL_FIRST, PL_NEVER } pl_scheme;

typedef struct pl_stage {
    pl_stage_kind kind;
    pl_pattern pattern;
    bool (*class)(int32_t c);
    pl_behavior behavior;
    bool invert;
    int32_t replacement; /* METASPACE */
    pl_scheme scheme;
    size_t length;
} pl_stage;

typedef enum pl_decode_kind {
    PL_DECODE_BYTES,
    PL_DECODE_BYTE_FALLBACK,
    PL_DECODE_REPLACE,
    PL_DECODE_FUSE,
    PL_DECODE_STRIP,
    PL_DECODE_METASPACE,
    PL_DECODE_SUFFIX, /* BPEDecoder */
    PL_DECODE_WORDPIECE
} pl_decode_kind;

typedef struct pl_decode_stage {
    pl_decode_kind kind;
    pl_pattern pattern; /* REPLACE */
    char *content;      /* REPLACE: the new text; SUFFIX: the suffix; WORDPIECE: the prefix */
    size_t content_size;
    int32_t codepoint; /* STRIP, METASPACE */
    int64_t start, stop;
    bool drop_first; /* METASPACE: the first token's spaces are the tokenizer's own */
    bool cleanup;    /* WORDPIECE */
} pl_decode_stage;

typedef struct pl_added {
    int32_t id;
    bool normalized, lstrip, rstrip, single_word;
} pl_added;

typedef struct pl_bpe_merge {
    uint64_t pair; /* left id << 32 | right id; UINT64_MAX: empty */
    int32_t rank;
    int32_t id; /* what the pair becomes */
} pl_bpe_merge;

typedef struct pl_bpe {
    bool fuse_unk, byte_fallback, ignore_merges;
    bool affixes; /* continuing_subword_prefix or end_of_word_suffix is in use */
    char *prefix, *suffix;
    pl_bpe_merge *merges;
    int merge_shift; /* 64 - bits of the table's size */
    /* A bit for each of 4 times as many slots, set where a pair of the table falls: most pairs are in no merge, and
       this says so from memory that stays in the processor's cache. */
    uint64_t *merge_bits;
    int32_t byte_ids[256];     /* the piece of a byte that is written as a visible character; -1: none */
    int32_t fallback_ids[256]; /* <0xNN>; -1 */
    bool fallback_complete;
    int32_t *char_ids; /* [65536], for the first plane; -1 */
    /* Where two characters never stand side by side inside a piece that merges make, the text can be cut without
       changing the result. One bit for each pair of them (for pieces that begin or end inside a character: of parts of
       characters): exact for ASCII, hashed for the rest, where a false bit only costs time. */
    bool cuts, partial;
    uint64_t ascii_pairs[128][2];
    uint64_t *pairs;
    int pair_shift;
} pl_bpe;

typedef struct pl_unigram {
    double *scores; /* by id */
    double unk_score;
    bool byte_fallback;
    int32_t fallback_ids[256];
    size_t longest; /* bytes of the longest piece */
    pl_trie trie;
} pl_unigram;

typedef enum pl_model_kind { PL_MODEL_BPE, PL_MODEL_UNIGRAM, PL_MODEL_WORDLEVEL, PL_MODEL_WORDPIECE } pl_model_kind;

struct pl_tokenizer {
    uint64_t hash;
    pl_vocab vocab;
    pl_added *added;
    size_t nadded, added_capacity;
    pl_trie added_raw, added_normalized; /* value: index in added */
    pl_normalizer *normalizers;
    size_t nnormalizers, normalizers_capacity;
    pl_form_table forms[4];
    pl_stage *stages;
    size_t nstages, stages_capacity;
    bool raw_bytes;     /* the last stage is BYTES, and the model reads bytes as they are in its place */
    bool needs_origins; /* a stage asks where a piece of normalized text comes from */
    pl_model_kind kind;
    int32_t unk;    /* -1 */
    char *unk_name; /* what the model calls it; NULL: characters that no piece covers are dropped */
    pl_bpe bpe;
    pl_unigram unigram;
    char *word_prefix; /* WORDPIECE */
    int64_t word_limit;
    int32_t *prefix, *suffix; /* what the post-processor adds */
    size_t nprefix, prefix_capacity, nsuffix, suffix_capacity;
    bool trim, trim_keeps_one; /* trim_offsets and add_prefix_space of the post-processor */
    pl_decode_stage *decoders;
    size_t ndecoders, decoders_capacity;
    bool joins_with_spaces; /* there is no decoder */
};

/* ---- Reading (tokenizer_open.c, tokenizer_model.c, tokenizer_parts.c) ---- */

/* A place in a JSON document, which the reader has checked to be UTF-8. */
typedef struct pl_scan {
    pl_error *err;
    const char *where;
    const char *start, *p, *end;
    pl_buf text; /* the last string that had escapes in it */
} pl_scan;

int pl_scan_open(pl_scan *r, pl_error *err, const char *where, const char *text, size_t size); /* checks UTF-8 */
int pl_scan_finish(pl_scan *r); /* nothing may follow but white space */
int pl_scan_fail(pl_scan *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
char pl_scan_peek(pl_scan *r); /* skips white space; 0 at the end */
int pl_scan_expect(pl_scan *r, char c);
int pl_scan_string(pl_scan *r, const char **text, size_t *size); /* valid until the next string */
int pl_scan_integer(pl_scan *r, int64_t *out);
int pl_scan_real(pl_scan *r, double *out);
int pl_scan_skip(pl_scan *r, int depth);     /* a whole value, checked */
int pl_scan_value(pl_scan *r, json_t **out); /* a whole value, read */
/* After an item of a list or object: 1 when another one follows (the comma is consumed), 0 at `close` (consumed). */
int pl_scan_more(pl_scan *r, char close);
/* Puts where:line in front of the message of a failure (rc < 0) that happened at this place. */
int pl_scan_place(pl_scan *r, int rc);

int pl_model_read(pl_scan *r, pl_tokenizer *t);
int pl_model_finish(pl_error *err, const char *where, pl_tokenizer *t); /* once the stages are known */
int pl_parts_normalizer(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth);
int pl_parts_pre_tokenizer(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth);
int pl_parts_post_processor(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth);
int pl_parts_decoder(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth);

/* tokenizer_gpt2.c: appends what tokenizer.json would be of a folder that has vocab.json and merges.txt instead. */
int pl_gpt2_tokenizer(pl_error *err, const char *folder, pl_buf *out);
/* Goes on hashing with the bytes of the files that are put together; *hash is what came before them. */
int pl_gpt2_hash(pl_error *err, const char *folder, uint64_t *hash);
/* The same with one file's. */
int pl_tokenizer_hash_file(pl_error *err, const char *path, uint64_t *hash);
void pl_parts_free(pl_tokenizer *t);
int pl_charsmap_make(pl_error *err, const char *where, const char *base64, size_t size, pl_charsmap **out);
void pl_charsmap_free(pl_charsmap *charsmap);
int pl_charsmap_apply(const pl_charsmap *charsmap, pl_rewriter *r);

/* The place of a pair in a table of 2^(64 - shift) slots. */
static inline size_t pl_pair_slot(int32_t a, int32_t b, int shift)
{
    uint64_t pair = (uint64_t)(uint32_t)a << 32 | (uint32_t)b;
    return (size_t)((pair ^ pair >> 29) * UINT64_C(0x9E3779B97F4A7C15) >> shift);
}

/* Up to four bytes as one number. */
static inline uint32_t pl_bpe_code(const char *bytes, size_t size)
{
    uint32_t code = 0;
    for (size_t i = 0; i < size; i++) code = code << 8 | (unsigned char)bytes[i];
    return code;
}

/* The piece of one character (text is its bytes) in the model's vocabulary; -1. */
static inline int32_t pl_bpe_char(const pl_tokenizer *t, int32_t c, const char *text, size_t size)
{
    return c < 0x10000 ? t->bpe.char_ids[c] : pl_vocab_find_model(&t->vocab, text, size);
}

int pl_bpe_read_merges(pl_scan *r, pl_tokenizer *t);
int pl_bpe_finish(pl_error *err, pl_tokenizer *t);
void pl_bpe_free(pl_bpe *bpe);
int pl_unigram_finish(pl_error *err, const char *where, pl_tokenizer *t);
void pl_unigram_free(pl_unigram *unigram);

/* ---- Encoding ---- */

#define PL_WORD_KEY 24 /* longest word in the cache, in bytes */
#define PL_WORD_IDS 7

typedef struct pl_word { /* one line of the cache */
    uint64_t key[PL_WORD_KEY / 8];
    int32_t ids[PL_WORD_IDS];
    uint8_t sizes[PL_WORD_IDS]; /* bytes of each token */
    uint8_t size, count;        /* size 0: empty; the top bit of size: not a word, but a part of one */
} pl_word;

typedef struct pl_candidate {
    int32_t rank;
    uint32_t at;
    int32_t id;
} pl_candidate;

typedef struct pl_node { /* the best way to reach a place in the text */
    double score;
    int32_t id;
    uint32_t start; /* UINT32_MAX: not reached */
} pl_node;

struct pl_encoder {
    pl_error *err;
    const pl_tokenizer *tokenizer;
    pl_tokens *out;
    size_t out_base;  /* tokens that were there before */
    const char *text; /* the original */
    size_t text_size;
    bool tracks; /* rewritten text keeps where it comes from */
    pl_matcher matcher;
    pl_work work[2];
    pl_work *stage_work; /* [nstages] */
    pl_changes changes;
    pl_word *cache;
    size_t cache_mask;
    int32_t *ids, *prev, *next; /* the list that long words are merged in; an id of -1 was merged into the one before */
    uint32_t *starts;
    size_t ids_capacity, prev_capacity, next_capacity, starts_capacity;
    pl_candidate *heap;
    size_t heap_size, heap_capacity;
    pl_node *nodes;
    size_t nodes_capacity;
    pl_buf scratch;
};

int pl_encoder_begin(
    pl_encoder *e, pl_error *err, const pl_tokenizer *t, const char *text, size_t text_size, pl_tokens *out);
void pl_encoder_end(pl_encoder *e);
int pl_normalize(pl_encoder *e, pl_text *text);                      /* *text may then lie in e->work */
int pl_stage_run(pl_encoder *e, size_t stage, const pl_text *piece); /* this stage, all later ones and the model */
int pl_model_encode(pl_encoder *e, const pl_text *word);
int pl_bpe_encode(pl_encoder *e, const pl_text *word);
int pl_unigram_encode(pl_encoder *e, const pl_text *word);
int pl_wordlevel_encode(pl_encoder *e, const pl_text *word);
int pl_wordpiece_encode(pl_encoder *e, const pl_text *word);

int pl_emit_grow(pl_encoder *e);
void pl_emit_span(pl_encoder *e, const pl_text *text, size_t from, size_t to, const char *value, size_t value_size);

/* Appends the token that stands for word[from..to). */
static inline int pl_emit(pl_encoder *e, const pl_text *word, size_t from, size_t to, int32_t id)
{
    pl_tokens *out = e->out;
    if (out->count == out->capacity) PL_TRY(pl_emit_grow(e));
    if (out->spans) {
        size_t size;
        const char *piece = pl_vocab_text(&e->tokenizer->vocab, id, &size);
        pl_emit_span(e, word, from, to, piece, size);
    }
    out->ids[out->count++] = id;
    return 0;
}

/* The visible character that stands for a byte in byte-level pieces, and back (-1: the character stands for none). */
int32_t pl_byte_char(unsigned char byte);
int pl_char_byte(int32_t c);

#endif
