/* vocab.json and merges.txt, as GPT-2 has them, put together to the tokenizer.json that transformers makes of them. */
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer_internal.h"

enum { VOCAB, MERGES, CONFIG, TOKENS, ADDED, MODEL, FILES };
static const char *const names[FILES] = {
    "vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "config.json"};

typedef struct gpt2 {
    pl_error *err;
    char *paths[FILES];
    json_t *files[FILES]; /* NULL: not there; merges.txt is none */
} gpt2;

static void close_files(gpt2 *g)
{
    for (int i = 0; i < FILES; i++) {
        json_decref(g->files[i]);
        free(g->paths[i]);
    }
}

static int open_files(gpt2 *g, const char *folder)
{
    for (int i = 0; i < FILES; i++) {
        PL_TRY(pl_path_join(g->err, folder, names[i], &g->paths[i]));
        if (i == MERGES || !pl_file_exists(g->paths[i])) continue;
        PL_TRY(pl_json_read(g->err, g->paths[i], &g->files[i]));
        if (!json_is_object(g->files[i]))
            return PL_FAIL(
                g->err, PL_EINPUT, "%s: is %s; an object was expected", g->paths[i], pl_json_type_name(g->files[i]));
    }
    return 0;
}

int pl_gpt2_hash(pl_error *err, const char *folder, uint64_t *hash)
{
    int rc = 0;
    for (int i = 0; i < FILES && rc == 0; i++) {
        char *path;
        PL_TRY(pl_path_join(err, folder, names[i], &path));
        if (pl_file_exists(path)) rc = pl_tokenizer_hash_file(err, path, hash);
        free(path);
    }
    return rc;
}

/* Other classes split text otherwise, and the files do not say how. */
static int check_class(const gpt2 *g)
{
    const char *class = json_string_value(json_object_get(g->files[CONFIG], "tokenizer_class")),
               *family = json_string_value(json_object_get(g->files[MODEL], "model_type"));
    bool known = class ? strcmp(class, "GPT2Tokenizer") == 0 || strcmp(class, "GPT2TokenizerFast") == 0
                       : family && (strcmp(family, "gpt2") == 0 || strcmp(family, "opt") == 0);
    if (known) return 0;
    return PL_FAIL(g->err, PL_EUNSUPPORTED,
        "%s: there is no tokenizer.json, and without one plait reads a GPT2Tokenizer alone, not "
        "%s%s; " PL_TOKENIZER_HINT,
        g->paths[VOCAB], class ? class : "that of a model of type ",
        class    ? ""
        : family ? family
                 : "unknown");
}

/* The lines of merges.txt as a list. */
static int add_merges(const gpt2 *g, json_t *model)
{
    pl_buf text = {0};
    json_t *list = json_array();
    int rc = list ? pl_file_read(g->err, g->paths[MERGES], &text) : PL_FAIL_NOMEM(g->err);
    const char *at = pl_buf_text(&text), *end = at + text.size;
    if (rc == 0 && pl_utf8_check(at, text.size) != text.size)
        rc = PL_FAIL(g->err, PL_EINPUT, "%s: byte %zu is not UTF-8", g->paths[MERGES], pl_utf8_check(at, text.size));
    for (bool first = true; rc == 0 && at < end; first = false) {
        const char *stop = memchr(at, '\n', (size_t)(end - at)), *next = stop ? stop + 1 : end;
        size_t size = (size_t)((stop ? stop : end) - at);
        if (size && at[size - 1] == '\r') size--;
        if (size && !(first && size >= 8 && memcmp(at, "#version", 8) == 0)) {
            if (json_array_append_new(list, json_stringn(at, size)) < 0) rc = PL_FAIL_NOMEM(g->err);
        }
        at = next;
    }
    pl_buf_free(&text);
    if (rc == 0 && json_object_set(model, "merges", list) < 0) rc = PL_FAIL_NOMEM(g->err);
    json_decref(list);
    return rc;
}

/* The text of a special token: as the folder's files name it, else the class's own. */
static const char *special_text(const gpt2 *g, const char *name)
{
    static const int order[] = {CONFIG, TOKENS};
    for (int i = 0; i < PL_COUNT(order); i++) {
        const json_t *token = json_object_get(g->files[order[i]], name);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token)) return json_string_value(token);
    }
    return "<|endoftext|>";
}

static json_t *added_token(const char *text, const json_t *id, bool special)
{
    return json_pack("{s:O, s:s, s:b, s:b, s:b, s:b, s:b}", "id", id, "content", text, "single_word", 0, "lstrip", 0,
        "rstrip", 0, "normalized", !special, "special", special);
}

/* What text is looked through for before it is split: special tokens that have a row, and what was added. */
static int add_tokens(const gpt2 *g, json_t *document)
{
    static const char *const special[] = {"bos_token", "eos_token", "unk_token"};
    const char *text;
    json_t *list = json_array(), *id;
    bool made = list != NULL;
    for (int i = 0; made && i < PL_COUNT(special); i++) {
        text = special_text(g, special[i]);
        id = json_object_get(g->files[VOCAB], text);
        if (id) made = json_array_append_new(list, added_token(text, id, true)) == 0;
    }
    json_object_foreach(g->files[ADDED], text, id) made =
        made && json_array_append_new(list, added_token(text, id, false)) == 0;
    made = made && json_object_set(document, "added_tokens", list) == 0;
    json_decref(list);
    return made ? 0 : PL_FAIL_NOMEM(g->err);
}

/* Tokens around every text, where tokenizer_config.json asks for them. */
static int add_frame(const gpt2 *g, json_t *document)
{
    static const struct {
        const char *field, *name;
    } ends[] = {{"add_bos_token", "bos_token"}, {"add_eos_token", "eos_token"}};
    json_t *single = json_array(), *tokens = json_object();
    bool made = single && tokens, any = false, wanted[2] = {false, false};
    int rc = 0;
    for (int i = 0; i < 2 && rc == 0; i++)
        rc = pl_json_bool(g->err, g->paths[CONFIG], g->files[CONFIG], ends[i].field, &wanted[i]);
    for (int i = 0; i < 3 && made && rc == 0; i++) {
        if (i == 1) {
            made = json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "Sequence", "id", "A", "type_id", 0)) == 0;
            continue;
        }
        if (!wanted[i / 2]) continue;
        const char *text = special_text(g, ends[i / 2].name);
        json_t *id = json_object_get(g->files[VOCAB], text);
        if (!id) continue; /* transformers would add a token that the model has no row for */
        any = true;
        made =
            json_array_append_new(single, json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", 0)) == 0 &&
            json_object_set_new(
                tokens, text, json_pack("{s:s, s:[O], s:[s]}", "id", text, "ids", id, "tokens", text)) == 0;
    }
    if (rc == 0 && made && any)
        made = json_object_set_new(document, "post_processor",
                   json_pack("{s:s, s:O, s:[], s:O}", "type", "TemplateProcessing", "single", single, "pair",
                       "special_tokens", tokens)) == 0;
    if (rc == 0 && !made) rc = PL_FAIL_NOMEM(g->err);
    json_decref(single);
    json_decref(tokens);
    return rc;
}

static int put_together(const gpt2 *g, pl_buf *out)
{
    bool prefix_space = false;
    int rc;
    PL_TRY(pl_json_bool(g->err, g->paths[CONFIG], g->files[CONFIG], "add_prefix_space", &prefix_space));
    json_t *document = json_pack("{s:{s:s, s:b, s:b, s:b}, s:{s:s, s:b, s:b, s:b}, s:{s:s, s:O}}", "pre_tokenizer",
        "type", "ByteLevel", "add_prefix_space", prefix_space, "trim_offsets", 1, "use_regex", 1, "decoder", "type",
        "ByteLevel", "add_prefix_space", 1, "trim_offsets", 1, "use_regex", 1, "model", "type", "BPE", "vocab",
        g->files[VOCAB]);
    if (!document) return PL_FAIL_NOMEM(g->err);
    PL_GO(done, add_merges(g, json_object_get(document, "model")));
    PL_GO(done, add_tokens(g, document));
    PL_GO(done, add_frame(g, document));
    PL_GO(done, pl_json_text(g->err, document, 0, out));
done:
    json_decref(document);
    return rc;
}

int pl_gpt2_tokenizer(pl_error *err, const char *folder, pl_buf *out)
{
    gpt2 g = {.err = err};
    int rc;
    PL_GO(done, open_files(&g, folder));
    PL_GO(done, check_class(&g));
    PL_GO(done, put_together(&g, out));
done:
    close_files(&g);
    return rc;
}
