/* The "model" of a tokenizer.json: its settings, its pieces, its merges. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/tokenizer_internal.h"

/* The vocabulary and the merges are read in a second pass, because settings that tell how may come after them. */
typedef struct parts {
    json_t *fields; /* all the others */
    const char *vocab, *vocab_end, *merges, *merges_end;
} parts;

static int read_field(pl_scan *r, const char *key, size_t size, parts *m)
{
    static const char *const known[] = {"type", "dropout", "unk_token", "unk_id", "continuing_subword_prefix",
        "end_of_word_suffix", "fuse_unk", "byte_fallback", "ignore_merges", "max_input_chars_per_word"};
    const char **from = NULL, **to = NULL;
    if (size == 5 && !memcmp(key, "vocab", 5)) from = &m->vocab, to = &m->vocab_end;
    if (size == 6 && !memcmp(key, "merges", 6)) from = &m->merges, to = &m->merges_end;
    if (from) {
        if (*from) return pl_scan_fail(r, "model.%.*s is there twice", (int)size, key);
        pl_scan_peek(r);
        *from = r->p;
        PL_TRY(pl_scan_skip(r, 1));
        *to = r->p;
        return 0;
    }
    for (int i = 0; i < PL_COUNT(known); i++) {
        if (strlen(known[i]) != size || memcmp(known[i], key, size) != 0) continue;
        json_t *value;
        if (json_object_get(m->fields, known[i])) return pl_scan_fail(r, "model.%s is there twice", known[i]);
        PL_TRY(pl_scan_value(r, &value));
        return json_object_set_new(m->fields, known[i], value) ? PL_FAIL_NOMEM(r->err) : 0;
    }
    return PL_FAIL(r->err, PL_EUNSUPPORTED, "%s: model.%.*s is not a field that this version knows", r->where,
        (int)(size > 60 ? 60 : size), key);
}

/* Ids may leave gaps, but a table by id must not take more memory than a file of this size warrants: an entry takes at
   least 6 bytes of JSON. */
static int64_t id_limit(size_t bytes)
{
    int64_t limit = (int64_t)(bytes / 4) + 65536;
    return limit < (1 << 30) ? limit : 1 << 30;
}

static int read_vocab_object(pl_scan *r, pl_tokenizer *t, int64_t limit)
{
    int more = 1;
    PL_TRY(pl_scan_expect(r, '{'));
    if (pl_scan_peek(r) == '}') return 0;
    while (more > 0) {
        const char *piece;
        size_t size;
        int64_t id;
        PL_TRY(pl_scan_string(r, &piece, &size));
        PL_TRY(pl_scan_expect(r, ':'));
        PL_TRY(pl_scan_integer(r, &id)); /* which leaves r->text alone */
        PL_TRY(pl_scan_place(r, pl_vocab_add(r->err, &t->vocab, piece, size, id, limit, PL_PIECE_MODEL)));
        more = pl_scan_more(r, '}');
    }
    return more;
}

static int read_vocab_list(pl_scan *r, pl_tokenizer *t, int64_t limit)
{
    int more = 1;
    size_t capacity = 0;
    PL_TRY(pl_scan_expect(r, '['));
    if (pl_scan_peek(r) == ']') return 0;
    while (more > 0) {
        const char *piece;
        size_t size;
        int32_t id = t->vocab.size;
        PL_TRY(pl_scan_expect(r, '['));
        PL_TRY(pl_scan_string(r, &piece, &size));
        PL_TRY(pl_scan_place(r, pl_vocab_add(r->err, &t->vocab, piece, size, id, limit, PL_PIECE_MODEL)));
        PL_TRY(pl_scan_expect(r, ','));
        PL_TRY(pl_grow(r->err, &t->unigram.scores, &capacity, (size_t)id + 1, sizeof *t->unigram.scores));
        PL_TRY(pl_scan_real(r, &t->unigram.scores[id]));
        PL_TRY(pl_scan_expect(r, ']'));
        more = pl_scan_more(r, ']');
    }
    return more;
}

/* Files from before 2020 leave the type out. */
static int model_kind(pl_scan *r, const parts *m, pl_tokenizer *t)
{
    static const struct {
        const char *name;
        pl_model_kind kind;
    } kinds[] = {{"BPE", PL_MODEL_BPE}, {"Unigram", PL_MODEL_UNIGRAM}, {"WordLevel", PL_MODEL_WORDLEVEL},
        {"WordPiece", PL_MODEL_WORDPIECE}};
    const char *type = NULL;
    PL_TRY(pl_json_string(r->err, r->where, m->fields, "type", &type));
    if (!type) {
        t->kind = m->merges                                                ? PL_MODEL_BPE
                  : *m->vocab == '['                                       ? PL_MODEL_UNIGRAM
                  : json_object_get(m->fields, "max_input_chars_per_word") ? PL_MODEL_WORDPIECE
                                                                           : PL_MODEL_WORDLEVEL;
        return 0;
    }
    for (int i = 0; i < PL_COUNT(kinds); i++) {
        if (strcmp(type, kinds[i].name) != 0) continue;
        t->kind = kinds[i].kind;
        return 0;
    }
    return PL_FAIL(r->err, PL_EUNSUPPORTED, "%s: model.type is %s; BPE, Unigram, WordLevel and WordPiece are known",
        r->where, type);
}

static int copy_string(pl_scan *r, const parts *m, const char *key, char **out)
{
    const char *text = NULL;
    PL_TRY(pl_json_string(r->err, r->where, m->fields, key, &text));
    return text ? pl_strdup(r->err, text, out) : 0;
}

static int read_settings(pl_scan *r, const parts *m, pl_tokenizer *t)
{
    double dropout = 0;
    bool byte_fallback = false;
    PL_TRY(pl_json_real(r->err, r->where, m->fields, "dropout", &dropout));
    if (dropout != 0) {
        return PL_FAIL(r->err, PL_EUNSUPPORTED,
            "%s: model.dropout is %g; only null and 0 are supported, since the same "
            "text must give the same ids",
            r->where, dropout);
    }
    PL_TRY(pl_json_bool(r->err, r->where, m->fields, "byte_fallback", &byte_fallback));
    PL_TRY(pl_json_bool(r->err, r->where, m->fields, "fuse_unk", &t->bpe.fuse_unk));
    PL_TRY(pl_json_bool(r->err, r->where, m->fields, "ignore_merges", &t->bpe.ignore_merges));
    t->bpe.byte_fallback = t->unigram.byte_fallback = byte_fallback;
    PL_TRY(copy_string(r, m, "unk_token", &t->unk_name));
    t->word_limit = 100;
    PL_TRY(pl_json_int(r->err, r->where, m->fields, "max_input_chars_per_word", &t->word_limit));
    if (t->kind == PL_MODEL_WORDPIECE) {
        PL_TRY(copy_string(r, m, "continuing_subword_prefix", &t->word_prefix));
        return t->word_prefix ? 0 : pl_strdup(r->err, "##", &t->word_prefix);
    }
    PL_TRY(copy_string(r, m, "continuing_subword_prefix", &t->bpe.prefix));
    PL_TRY(copy_string(r, m, "end_of_word_suffix", &t->bpe.suffix));
    t->bpe.affixes = (t->bpe.prefix && *t->bpe.prefix) || (t->bpe.suffix && *t->bpe.suffix);
    return 0;
}

static int find_unk(pl_scan *r, const parts *m, pl_tokenizer *t)
{
    int64_t unk = -1;
    t->unk = -1;
    if (t->kind == PL_MODEL_UNIGRAM) {
        PL_TRY(pl_json_int(r->err, r->where, m->fields, "unk_id", &unk));
        if (unk < -1 || unk >= t->vocab.size) {
            return PL_FAIL(r->err, PL_EINPUT, "%s: model.unk_id is %lld, but there are %d pieces", r->where,
                (long long)unk, t->vocab.size);
        }
        t->unk = (int32_t)unk;
    } else if (t->unk_name) {
        t->unk = pl_vocab_find_model(&t->vocab, t->unk_name, strlen(t->unk_name));
    }
    return 0;
}

static int read_contents(pl_scan *r, const parts *m, pl_tokenizer *t)
{
    pl_scan part = *r; /* shares nothing that both would free: its own text buffer */
    part.text = (pl_buf){0};
    part.p = m->vocab;
    part.end = m->vocab_end;
    int rc;
    int64_t limit = id_limit((size_t)(m->vocab_end - m->vocab));
    if (t->kind == PL_MODEL_UNIGRAM) {
        PL_GO(done, read_vocab_list(&part, t, limit));
    } else {
        PL_GO(done, read_vocab_object(&part, t, limit));
    }
    PL_GO(done, find_unk(r, m, t));
    if (t->kind == PL_MODEL_BPE) {
        if (!m->merges) {
            rc = PL_FAIL(r->err, PL_EINPUT, "%s: model.merges is missing", r->where);
            goto done;
        }
        part.p = m->merges;
        part.end = m->merges_end;
        PL_GO(done, pl_bpe_read_merges(&part, t));
    }
done:
    pl_buf_free(&part.text);
    return rc;
}

int pl_model_read(pl_scan *r, pl_tokenizer *t)
{
    parts m = {.fields = json_object()};
    if (!m.fields) return PL_FAIL_NOMEM(r->err);
    int rc, more = 1;
    PL_GO(done, pl_scan_expect(r, '{'));
    while (more > 0) {
        const char *key;
        size_t size;
        PL_GO(done, pl_scan_string(r, &key, &size));
        PL_GO(done, pl_scan_expect(r, ':'));
        PL_GO(done, read_field(r, key, size, &m));
        PL_GO(done, more = pl_scan_more(r, '}'));
    }
    if (!m.vocab) {
        rc = PL_FAIL(r->err, PL_EINPUT, "%s: model.vocab is missing", r->where);
        goto done;
    }
    PL_GO(done, model_kind(r, &m, t));
    PL_GO(done, read_settings(r, &m, t));
    PL_GO(done, read_contents(r, &m, t));
done:
    json_decref(m.fields);
    return rc;
}

int pl_model_finish(pl_error *err, const char *where, pl_tokenizer *t)
{
    switch (t->kind) {
    case PL_MODEL_BPE: return pl_bpe_finish(err, t);
    case PL_MODEL_UNIGRAM: return pl_unigram_finish(err, where, t);
    case PL_MODEL_WORDLEVEL:
    case PL_MODEL_WORDPIECE: break;
    }
    return 0;
}
