/* Reading tokenizer.json, or what stands for it, and tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

/* Parts of the file that are read once the vocabulary is known. */
typedef struct sections {
    json_t *added, *normalizer, *pre_tokenizer, *post_processor, *decoder;
    bool model;
} sections;

static void free_sections(sections *s)
{
    json_decref(s->added);
    json_decref(s->normalizer);
    json_decref(s->pre_tokenizer);
    json_decref(s->post_processor);
    json_decref(s->decoder);
}

static int read_section(pl_scan *r, pl_tokenizer *t, const char *key, size_t size, sections *s)
{
    const struct {
        const char *name;
        json_t **value;
    } kept[] = {{"added_tokens", &s->added}, {"normalizer", &s->normalizer}, {"pre_tokenizer", &s->pre_tokenizer},
        {"post_processor", &s->post_processor}, {"decoder", &s->decoder}};
    static const char *const skipped[] = {"version", "truncation", "padding"};
    for (int i = 0; i < PL_COUNT(kept); i++) {
        if (strlen(kept[i].name) != size || memcmp(kept[i].name, key, size) != 0) continue;
        if (*kept[i].value) return pl_scan_fail(r, "%s is there twice", kept[i].name);
        return pl_scan_value(r, kept[i].value);
    }
    for (int i = 0; i < PL_COUNT(skipped); i++) {
        if (strlen(skipped[i]) == size && !memcmp(skipped[i], key, size)) return pl_scan_skip(r, 0);
    }
    if (size == 5 && !memcmp(key, "model", 5)) {
        if (s->model) return pl_scan_fail(r, "model is there twice");
        s->model = true;
        return pl_model_read(r, t);
    }
    return PL_FAIL(r->err, PL_EUNSUPPORTED, "%s: a field \"%.*s\" that this version does not know", r->where,
        (int)(size > 60 ? 60 : size), key);
}

static int read_document(pl_scan *r, pl_tokenizer *t, sections *s)
{
    int more = 1;
    PL_TRY(pl_scan_expect(r, '{'));
    if (pl_scan_peek(r) == '}') more = 0;
    while (more > 0) {
        const char *key;
        size_t size;
        PL_TRY(pl_scan_string(r, &key, &size));
        PL_TRY(pl_scan_expect(r, ':'));
        PL_TRY(read_section(r, t, key, size, s));
        PL_TRY(more = pl_scan_more(r, '}'));
    }
    if (!s->model) return PL_FAIL(r->err, PL_EINPUT, "%s: there is no model", r->where);
    return pl_scan_finish(r);
}

/* ---- Added tokens ---- */

static pl_added *find_added(pl_tokenizer *t, int32_t id)
{
    /* They mostly come in order and without gaps. */
    size_t guess = t->nadded ? (size_t)(id - t->added[0].id) : 0;
    if (guess < t->nadded && t->added[guess].id == id) return &t->added[guess];
    for (size_t i = 0; i < t->nadded; i++) {
        if (t->added[i].id == id) return &t->added[i];
    }
    return NULL;
}

/* Adds a token, or changes the settings of one that was added before. id < 0: the piece must be in the vocabulary. */
static int add_token(pl_error *err, const char *where, pl_tokenizer *t, const char *text, size_t size, pl_added added,
    int64_t id, bool special)
{
    int32_t known = pl_vocab_find(&t->vocab, text, size);
    bool fresh = known < 0 || !(t->vocab.pieces[known].flags & PL_PIECE_ADDED);
    if (!size) return PL_FAIL(err, PL_EINPUT, "%s: an added token is empty", where);
    if (known < 0) {
        /* The limit: added tokens may leave gaps, but not claim a table out of all proportion. */
        int rc = pl_vocab_add(err, &t->vocab, text, size, id, 2 * (int64_t)t->vocab.size + 65536, PL_PIECE_ADDED);
        if (rc < 0) return pl_error_prefix(err, "%s: added token", where);
        known = (int32_t)id;
    } else if (id >= 0 && id != known) {
        return PL_FAIL(err, PL_EINPUT, "%s: the added token \"%.60s\" has the id %lld, but in the vocabulary it is %d",
            where, text, (long long)id, known);
    }
    uint32_t *flags = &t->vocab.pieces[known].flags;
    *flags |= PL_PIECE_ADDED;
    if (special) *flags |= PL_PIECE_SPECIAL; /* for good, whatever comes later */
    added.id = known;
    pl_added *old = fresh ? NULL : find_added(t, known);
    if (old) {
        *old = added;
        return 0;
    }
    PL_TRY(pl_grow(err, &t->added, &t->added_capacity, t->nadded + 1, sizeof *t->added));
    t->added[t->nadded++] = added;
    return 0;
}

static int read_added(pl_error *err, const char *where, const json_t *item, pl_tokenizer *t, int64_t id)
{
    const json_t *content = json_object_get(item, "content");
    pl_added added = {.normalized = true};
    bool special = false;
    if (!json_is_string(content)) {
        return PL_FAIL(err, PL_EINPUT, "%s: the content of an added token is %s; a string was expected", where,
            pl_json_type_name(content));
    }
    PL_TRY(pl_json_int(err, where, item, "id", &id));
    PL_TRY(pl_json_bool(err, where, item, "special", &special));
    PL_TRY(pl_json_bool(err, where, item, "normalized", &added.normalized));
    PL_TRY(pl_json_bool(err, where, item, "lstrip", &added.lstrip));
    PL_TRY(pl_json_bool(err, where, item, "rstrip", &added.rstrip));
    PL_TRY(pl_json_bool(err, where, item, "single_word", &added.single_word));
    if (id < 0) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: the added token \"%.60s\" has no id that could be", where, json_string_value(content));
    }
    return add_token(err, where, t, json_string_value(content), json_string_length(content), added, id, special);
}

static int read_added_tokens(pl_error *err, const char *where, const json_t *list, pl_tokenizer *t)
{
    if (!list || json_is_null(list)) return 0;
    if (!json_is_array(list)) {
        return PL_FAIL(err, PL_EINPUT, "%s: added_tokens is %s; a list was expected", where, pl_json_type_name(list));
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        PL_TRY(read_added(err, where, json_array_get(list, i), t, -1));
    }
    return 0;
}

/* ---- tokenizer_config.json ---- */

/* Makes a piece special: value is its text, or an object with "content". */
static int add_special(pl_error *err, const char *where, pl_tokenizer *t, const json_t *value)
{
    pl_added added = {0};
    const json_t *content = json_is_object(value) ? json_object_get(value, "content") : value;
    const char *text = json_string_value(content);
    int32_t id = text ? pl_vocab_find(&t->vocab, text, json_string_length(content)) : -1;
    /* What is no piece at all has no row in the model either; what is added already keeps its settings. */
    if (id < 0) return 0;
    uint32_t *flags = &t->vocab.pieces[id].flags;
    if (!(*flags & PL_PIECE_ADDED)) {
        return add_token(err, where, t, text, json_string_length(content), added, -1, true);
    }
    *flags |= PL_PIECE_SPECIAL;
    return 0;
}

static int read_config_tokens(pl_error *err, const char *where, const json_t *config, pl_tokenizer *t)
{
    static const char *const names[] = {
        "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"};
    static const char *const lists[] = {"additional_special_tokens", "extra_special_tokens"};
    const char *key;
    json_t *item;
    size_t k;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, item)
    {
        char *end;
        long long id = strtoll(key, &end, 10);
        if (*end || end == key) {
            return PL_FAIL(
                err, PL_EINPUT, "%s: added_tokens_decoder has a key \"%.60s\"; an id was expected", where, key);
        }
        PL_TRY(read_added(err, where, item, t, id));
    }
    for (int i = 0; i < PL_COUNT(names); i++) PL_TRY(add_special(err, where, t, json_object_get(config, names[i])));
    for (int i = 0; i < PL_COUNT(lists); i++) { /* lists, or objects whose keys are of no interest here */
        json_t *list = json_object_get(config, lists[i]);
        json_array_foreach(list, k, item) PL_TRY(add_special(err, where, t, item));
        json_object_foreach(list, key, item) PL_TRY(add_special(err, where, t, item));
    }
    return 0;
}

/* ---- Putting it together ---- */

static bool present(const json_t *value)
{
    return value && !json_is_null(value);
}

static int read_parts(pl_error *err, const char *where, pl_tokenizer *t, const sections *s)
{
    if (present(s->normalizer)) PL_TRY(pl_parts_normalizer(err, where, s->normalizer, t, 0));
    if (present(s->pre_tokenizer)) PL_TRY(pl_parts_pre_tokenizer(err, where, s->pre_tokenizer, t, 0));
    if (present(s->post_processor)) PL_TRY(pl_parts_post_processor(err, where, s->post_processor, t, 0));
    if (present(s->decoder)) PL_TRY(pl_parts_decoder(err, where, s->decoder, t, 0));
    t->joins_with_spaces = !present(s->decoder);
    t->raw_bytes =
        t->kind == PL_MODEL_BPE && !t->bpe.affixes && t->nstages && t->stages[t->nstages - 1].kind == PL_STAGE_BYTES;
    for (size_t i = 0; t->nnormalizers && i < t->nstages; i++) {
        if (t->stages[i].kind == PL_STAGE_METASPACE && t->stages[i].scheme == PL_FIRST) t->needs_origins = true;
    }
    return pl_model_finish(err, where, t);
}

/* The trie of the added tokens that are looked for before (or after) normalization; the latter are normalized too. */
static int make_added_trie(pl_error *err, pl_tokenizer *t, bool normalized, pl_trie *trie)
{
    pl_tokens none = {0};
    pl_trie_key *keys = NULL;
    pl_buf *texts = NULL;
    pl_encoder e;
    size_t count = 0;
    int rc = pl_encoder_begin(&e, err, t, "", 0, &none);
    if (rc < 0) goto done;
    PL_GO(done, pl_calloc(err, t->nadded, sizeof *keys, &keys));
    PL_GO(done, pl_calloc(err, t->nadded, sizeof *texts, &texts));
    for (size_t i = 0; i < t->nadded; i++) {
        if (t->added[i].normalized != normalized) continue;
        pl_text text = {0};
        text.bytes = pl_vocab_text(&t->vocab, t->added[i].id, &text.size);
        if (normalized) PL_GO(done, pl_normalize(&e, &text));
        PL_GO(done, pl_buf_append(err, &texts[i], text.bytes, text.size));
        if (text.size) keys[count++] = (pl_trie_key){texts[i].data, (uint32_t)text.size, (int32_t)i};
    }
    PL_GO(done, pl_trie_build(err, trie, keys, count));
done:
    for (size_t i = 0; texts && i < t->nadded; i++) pl_buf_free(&texts[i]);
    free(texts);
    free(keys);
    pl_encoder_end(&e);
    return rc;
}

static int read_json(pl_error *err, const char *where, const char *json, size_t size, pl_tokenizer *t)
{
    sections s = {0};
    pl_scan r;
    int rc;
    PL_TRY(pl_scan_open(&r, err, where, json, size));
    t->unk = -1;
    PL_GO(done, read_document(&r, t, &s));
    PL_GO(done, read_added_tokens(err, where, s.added, t));
    PL_GO(done, read_parts(err, where, t, &s));
done:
    free_sections(&s);
    pl_buf_free(&r.text);
    return rc;
}

static int read_config(pl_error *err, const char *path, pl_tokenizer *t)
{
    pl_map map;
    pl_scan r = {0};
    json_t *config = NULL;
    int rc;
    PL_TRY(pl_map_open(err, path, &map));
    PL_GO(done, pl_scan_open(&r, err, path, map.data ? (const char *)map.data : "", map.size));
    PL_GO(done, pl_scan_value(&r, &config));
    PL_GO(done, pl_scan_finish(&r));
    if (!json_is_object(config)) {
        rc = PL_FAIL(err, PL_EINPUT, "%s is %s; an object was expected", path, pl_json_type_name(config));
        goto done;
    }
    PL_GO(done, read_config_tokens(err, path, config, t));
done:
    json_decref(config);
    pl_buf_free(&r.text);
    pl_map_close(&map);
    return rc;
}

/* `configs`: files that name special tokens, as many as there are before a NULL. */
static int open_tokenizer(
    pl_error *err, const char *where, const char *json, size_t size, char *const *configs, pl_tokenizer **out)
{
    pl_tokenizer *t;
    int rc;
    PL_TRY(pl_calloc(err, 1, sizeof *t, &t));
    PL_GO(fail, read_json(err, where, json, size, t));
    for (; *configs; configs++)
        if (pl_file_exists(*configs)) PL_GO(fail, read_config(err, *configs, t));
    PL_GO(fail, make_added_trie(err, t, false, &t->added_raw));
    PL_GO(fail, make_added_trie(err, t, true, &t->added_normalized));
    *out = t;
    return 0;
fail:
    pl_tokenizer_close(t);
    return rc;
}

int pl_tokenizer_parse(pl_error *err, const char *where, const char *json, size_t size, pl_tokenizer **out)
{
    char *none = NULL;
    PL_TRY(open_tokenizer(err, where, json, size, &none, out));
    (*out)->hash = XXH3_64bits(json, size);
    return 0;
}

/* The folder's files by which it is known, in this order. */
enum { TOKENIZER, VOCAB, MERGES, CONFIG, TOKENS, NAMES };

static int find_files(pl_error *err, const char *folder, char *paths[NAMES])
{
    static const char *const names[NAMES] = {
        "tokenizer.json", "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json"};
    for (int i = 0; i < NAMES; i++) PL_TRY(pl_path_join(err, folder, names[i], &paths[i]));
    return 0;
}

static bool is_gpt2(char *const paths[NAMES])
{
    return !pl_file_exists(paths[TOKENIZER]) && pl_file_exists(paths[VOCAB]) && pl_file_exists(paths[MERGES]);
}

int pl_tokenizer_exists(pl_error *err, const char *folder, bool *out)
{
    char *paths[NAMES] = {0};
    int rc = find_files(err, folder, paths);
    *out = rc == 0 && (pl_file_exists(paths[TOKENIZER]) || is_gpt2(paths));
    for (int i = 0; i < NAMES; i++) free(paths[i]);
    return rc;
}

static int open_gpt2(pl_error *err, const char *folder, char *const paths[NAMES], pl_tokenizer **out)
{
    char *const configs[] = {paths[CONFIG], paths[TOKENS], NULL};
    pl_buf json = {0};
    int rc = pl_gpt2_tokenizer(err, folder, &json);
    if (rc == 0) rc = open_tokenizer(err, paths[VOCAB], json.data, json.size, configs, out);
    pl_buf_free(&json);
    return rc;
}

static int open_file(pl_error *err, char *const paths[NAMES], pl_tokenizer **out)
{
    char *const configs[] = {paths[CONFIG], NULL};
    pl_map map;
    PL_TRY(pl_map_open(err, paths[TOKENIZER], &map));
    int rc = pl_file_check_fetched(err, paths[TOKENIZER], map.data, map.size);
    const char *json = map.data ? (const char *)map.data : "";
    if (rc == 0) rc = open_tokenizer(err, paths[TOKENIZER], json, map.size, configs, out);
    pl_map_close(&map);
    return rc;
}

int pl_tokenizer_hash_file(pl_error *err, const char *path, uint64_t *hash)
{
    pl_map map;
    PL_TRY(pl_map_open(err, path, &map));
    *hash = XXH3_64bits_withSeed(map.data, map.size, *hash);
    pl_map_close(&map);
    return 0;
}

/* What a file says may change between its hashing and its reading; whoever keeps the hash compares it. */
static int hash_files(pl_error *err, const char *folder, char *const paths[NAMES], uint64_t *hash)
{
    *hash = 0;
    if (is_gpt2(paths)) return pl_gpt2_hash(err, folder, hash);
    PL_TRY(pl_tokenizer_hash_file(err, paths[TOKENIZER], hash));
    return pl_file_exists(paths[CONFIG]) ? pl_tokenizer_hash_file(err, paths[CONFIG], hash) : 0;
}

int pl_tokenizer_hash_folder(pl_error *err, const char *folder, uint64_t *out)
{
    char *paths[NAMES] = {0};
    int rc = find_files(err, folder, paths);
    if (rc == 0) rc = hash_files(err, folder, paths, out);
    for (int i = 0; i < NAMES; i++) free(paths[i]);
    return rc;
}

int pl_tokenizer_open(pl_error *err, const char *folder, pl_tokenizer **out)
{
    char *paths[NAMES] = {0};
    uint64_t hash = 0;
    int rc;
    PL_GO(done, find_files(err, folder, paths));
    PL_GO(done, hash_files(err, folder, paths, &hash));
    PL_GO(done, is_gpt2(paths) ? open_gpt2(err, folder, paths, out) : open_file(err, paths, out));
    (*out)->hash = hash;
done:
    for (int i = 0; i < NAMES; i++) free(paths[i]);
    return rc;
}

void pl_tokenizer_close(pl_tokenizer *t)
{
    if (!t) return;
    pl_parts_free(t);
    pl_bpe_free(&t->bpe);
    pl_unigram_free(&t->unigram);
    pl_trie_free(&t->added_raw);
    pl_trie_free(&t->added_normalized);
    pl_vocab_free(&t->vocab);
    free(t->added);
    free(t->unk_name);
    free(t->word_prefix);
    free(t);
}

int32_t pl_tokenizer_vocab_size(const pl_tokenizer *t)
{
    return t->vocab.size;
}

int32_t pl_tokenizer_id(const pl_tokenizer *t, const char *token)
{
    return pl_vocab_find(&t->vocab, token, strlen(token));
}

const char *pl_tokenizer_piece(const pl_tokenizer *t, int32_t id)
{
    if (id < 0 || id >= t->vocab.size || !t->vocab.pieces[id].flags) return NULL;
    return t->vocab.arena.data + t->vocab.pieces[id].offset;
}

bool pl_tokenizer_is_special(const pl_tokenizer *t, int32_t id)
{
    return id >= 0 && id < t->vocab.size && t->vocab.pieces[id].flags & PL_PIECE_SPECIAL;
}

const int32_t *pl_tokenizer_prefix(const pl_tokenizer *t, size_t *count)
{
    *count = t->nprefix;
    return t->prefix;
}

const int32_t *pl_tokenizer_suffix(const pl_tokenizer *t, size_t *count)
{
    *count = t->nsuffix;
    return t->suffix;
}

uint64_t pl_tokenizer_hash(const pl_tokenizer *t)
{
    return t->hash;
}
