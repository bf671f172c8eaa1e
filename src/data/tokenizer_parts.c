/* The parts of the pipeline as tokenizer.json describes them. Sequences are flattened, and what is a combination (the
   byte-level pre-tokenizer, Metaspace, BERT's normalizer) becomes several simple stages. */
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "data/tokenizer_internal.h"

enum { MAX_NESTING = 16 };

static const char gpt2_words[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

/* ---- What all parts share ---- */

/* The "type" of a part, or PL_EINPUT. */
static int type_of(
    pl_error *err, const char *where, const char *part, const json_t *value, int depth, const char **type)
{
    *type = NULL;
    if (!json_is_object(value)) {
        return PL_FAIL(err, PL_EINPUT, "%s: %s is %s; an object was expected", where, part, pl_json_type_name(value));
    }
    if (depth > MAX_NESTING)
        return PL_FAIL(err, PL_EINPUT, "%s: %s is nested more than %d deep", where, part, MAX_NESTING);
    PL_TRY(pl_json_string(err, where, value, "type", type));
    return *type ? 0 : PL_FAIL(err, PL_EINPUT, "%s: %s has no type", where, part);
}

/* Refuses fields that are not in the list (which ends with NULL): what is not read might change results. */
static int only(pl_error *err, const char *where, const char *type, const json_t *value, const char *const *known)
{
    const char *key;
    json_t *field;
    json_object_foreach((json_t *)(uintptr_t)value, key, field)
    {
        const char *const *k = known;
        while (*k && strcmp(*k, key) != 0) k++;
        if (!*k && strcmp(key, "type") != 0) {
            return PL_FAIL(
                err, PL_EUNSUPPORTED, "%s: %s has a field %.60s that this version does not know", where, type, key);
        }
    }
    return 0;
}

#define ONLY(...) PL_TRY(only(err, where, type, value, (const char *const[]){__VA_ARGS__, NULL}))
#define NO_FIELDS PL_TRY(only(err, where, type, value, (const char *const[]){NULL}))

/* A string that must be there; it may hold zero bytes. */
static int text_field(pl_error *err, const char *where, const char *type, const json_t *value, const char *key,
    const char **text, size_t *size)
{
    const json_t *field = json_object_get(value, key);
    if (!json_is_string(field)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: %s.%s is %s; a string was expected", where, type, key, pl_json_type_name(field));
    }
    *text = json_string_value(field);
    *size = json_string_length(field);
    return 0;
}

static int copy_field(
    pl_error *err, const char *where, const char *type, const json_t *value, const char *key, char **out, size_t *size)
{
    const char *text;
    PL_TRY(text_field(err, where, type, value, key, &text, size));
    return pl_strndup(err, text, *size, out);
}

static int char_field(
    pl_error *err, const char *where, const char *type, const json_t *value, const char *key, int32_t *c)
{
    const char *text;
    size_t size, at = 0;
    PL_TRY(text_field(err, where, type, value, key, &text, &size));
    if (size) *c = pl_utf8_next(text, &at);
    if (!size || at != size) {
        return PL_FAIL(err, PL_EINPUT, "%s: %s.%s is \"%.60s\"; one character was expected", where, type, key, text);
    }
    return 0;
}

/* {"String": text} or {"Regex": pattern} */
static int pattern_field(pl_error *err, const char *where, const char *type, const json_t *value, pl_pattern *out)
{
    const json_t *field = json_object_get(value, "pattern");
    const json_t *literal = json_object_get(field, "String"), *regex = json_object_get(field, "Regex");
    const json_t *text = json_is_string(literal) ? literal : regex;
    if (json_object_size(field) != 1 || !json_is_string(text)) {
        return PL_FAIL(err, PL_EINPUT, "%s: %s.pattern is %s; {\"String\": ...} or {\"Regex\": ...} was expected",
            where, type, pl_json_type_name(field));
    }
    return (text == literal ? pl_pattern_literal : pl_pattern_regex)(
        err, where, json_string_value(text), json_string_length(text), out);
}

static int each(pl_error *err, const char *where, const char *type, const json_t *value, const char *key,
    int (*read)(pl_error *, const char *, const json_t *, pl_tokenizer *, int), pl_tokenizer *t, int depth)
{
    const json_t *list = json_object_get(value, key);
    if (!json_is_array(list)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: %s.%s is %s; a list was expected", where, type, key, pl_json_type_name(list));
    }
    PL_TRY(only(err, where, type, value, (const char *const[]){key, NULL}));
    for (size_t i = 0; i < json_array_size(list); i++) PL_TRY(read(err, where, json_array_get(list, i), t, depth + 1));
    return 0;
}

static int unknown_type(pl_error *err, const char *where, const char *part, const char *type)
{
    return PL_FAIL(err, PL_EUNSUPPORTED, "%s: the %s %.60s is not supported", where, part, type);
}

/* ---- Normalizers ---- */

/* Adds an empty one; it is in the list, and so freed, before anything in it can fail. */
static int add_normalizer(pl_error *err, pl_tokenizer *t, pl_normalizer_kind kind, pl_normalizer **out)
{
    PL_TRY(pl_grow(err, &t->normalizers, &t->normalizers_capacity, t->nnormalizers + 1, sizeof *t->normalizers));
    pl_normalizer *n = &t->normalizers[t->nnormalizers++];
    *n = (pl_normalizer){.kind = kind};
    if (out) *out = n;
    return 0;
}

static int add_form(pl_error *err, pl_tokenizer *t, pl_form form)
{
    pl_normalizer *n;
    PL_TRY(add_normalizer(err, t, PL_NORM_FORM, &n));
    n->form = form;
    return t->forms[form].unstable ? 0 : pl_form_table_make(err, form, &t->forms[form]);
}

static int bert_normalizer(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    bool clean = true, chinese = true, lowercase = true;
    ONLY("clean_text", "handle_chinese_chars", "strip_accents", "lowercase");
    PL_TRY(pl_json_bool(err, where, value, "clean_text", &clean));
    PL_TRY(pl_json_bool(err, where, value, "handle_chinese_chars", &chinese));
    PL_TRY(pl_json_bool(err, where, value, "lowercase", &lowercase));
    bool accents = lowercase;
    PL_TRY(pl_json_bool(err, where, value, "strip_accents", &accents));
    if (clean) PL_TRY(add_normalizer(err, t, PL_NORM_CLEAN, NULL));
    if (chinese) PL_TRY(add_normalizer(err, t, PL_NORM_CHINESE, NULL));
    if (accents) {
        PL_TRY(add_form(err, t, PL_NFD));
        PL_TRY(add_normalizer(err, t, PL_NORM_STRIP_NONSPACING, NULL));
    }
    return lowercase ? add_normalizer(err, t, PL_NORM_LOWERCASE, NULL) : 0;
}

static int replace_normalizer(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_normalizer *n;
    ONLY("pattern", "content");
    PL_TRY(add_normalizer(err, t, PL_NORM_REPLACE, &n));
    PL_TRY(pattern_field(err, where, type, value, &n->pattern));
    return copy_field(err, where, type, value, "content", &n->content, &n->content_size);
}

int pl_parts_normalizer(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth)
{
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    static const struct {
        const char *name;
        pl_normalizer_kind kind;
    } plain[] = {{"Lowercase", PL_NORM_LOWERCASE}, {"StripAccents", PL_NORM_STRIP_ACCENTS},
        {"ByteLevel", PL_NORM_BYTES}, {"Nmt", PL_NORM_NMT}};
    const char *type;
    pl_normalizer *n;
    PL_TRY(type_of(err, where, "normalizer", value, depth, &type));
    if (!strcmp(type, "Sequence")) return each(err, where, type, value, "normalizers", pl_parts_normalizer, t, depth);
    for (int i = 0; i < PL_COUNT(forms); i++) {
        if (strcmp(type, forms[i]) != 0) continue;
        NO_FIELDS;
        return add_form(err, t, (pl_form)i);
    }
    for (int i = 0; i < PL_COUNT(plain); i++) {
        if (strcmp(type, plain[i].name) != 0) continue;
        NO_FIELDS;
        return add_normalizer(err, t, plain[i].kind, NULL);
    }
    if (!strcmp(type, "BertNormalizer")) return bert_normalizer(err, where, type, value, t);
    if (!strcmp(type, "Replace")) return replace_normalizer(err, where, type, value, t);
    if (!strcmp(type, "Strip")) {
        ONLY("strip_left", "strip_right");
        PL_TRY(add_normalizer(err, t, PL_NORM_STRIP, &n));
        n->left = n->right = true;
        PL_TRY(pl_json_bool(err, where, value, "strip_left", &n->left));
        return pl_json_bool(err, where, value, "strip_right", &n->right);
    }
    if (!strcmp(type, "Prepend")) {
        ONLY("prepend");
        PL_TRY(add_normalizer(err, t, PL_NORM_PREPEND, &n));
        return copy_field(err, where, type, value, "prepend", &n->content, &n->content_size);
    }
    if (!strcmp(type, "Precompiled")) {
        const char *text;
        size_t size;
        ONLY("precompiled_charsmap");
        PL_TRY(text_field(err, where, type, value, "precompiled_charsmap", &text, &size));
        PL_TRY(add_normalizer(err, t, PL_NORM_CHARSMAP, &n));
        return pl_charsmap_make(err, where, text, size, &n->charsmap);
    }
    return unknown_type(err, where, "normalizer", type);
}

/* ---- Pre-tokenizers ---- */

static int add_stage(pl_error *err, pl_tokenizer *t, pl_stage_kind kind, pl_stage **out)
{
    PL_TRY(pl_grow(err, &t->stages, &t->stages_capacity, t->nstages + 1, sizeof *t->stages));
    pl_stage *st = &t->stages[t->nstages++];
    *st = (pl_stage){.kind = kind};
    if (out) *out = st;
    return 0;
}

static int add_class(pl_error *err, pl_tokenizer *t, bool (*class)(int32_t), pl_behavior behavior)
{
    pl_stage *st;
    PL_TRY(add_stage(err, t, PL_STAGE_SPLIT_CLASS, &st));
    st->class = class;
    st->behavior = behavior;
    return 0;
}

static int add_regex(
    pl_error *err, const char *where, pl_tokenizer *t, const char *pattern, bool invert, pl_behavior behavior)
{
    pl_stage *st;
    PL_TRY(add_stage(err, t, PL_STAGE_SPLIT, &st));
    st->invert = invert;
    st->behavior = behavior;
    return pl_pattern_regex(err, where, pattern, strlen(pattern), &st->pattern);
}

static int add_char(pl_error *err, const char *where, pl_tokenizer *t, int32_t c, pl_behavior behavior)
{
    char text[4];
    pl_stage *st;
    PL_TRY(add_stage(err, t, PL_STAGE_SPLIT, &st));
    st->behavior = behavior;
    return pl_pattern_literal(err, where, text, pl_utf8_put(text, c), &st->pattern);
}

static int behavior_field(pl_error *err, const char *where, const char *type, const json_t *value, pl_behavior *out)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious", "MergedWithNext"};
    const char *name = NULL;
    PL_TRY(pl_json_string(err, where, value, "behavior", &name));
    for (int i = 0; name && i < PL_COUNT(names); i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (pl_behavior)i;
        return 0;
    }
    if (!name && !strcmp(type, "Punctuation")) return 0;
    return PL_FAIL(err, PL_EINPUT,
        "%s: %s.behavior is %.60s; Isolated, Removed, Contiguous, MergedWithPrevious or "
        "MergedWithNext was expected",
        where, type, name ? name : "missing");
}

static int byte_level(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    bool prefix = true, words = true, trim;
    ONLY("add_prefix_space", "trim_offsets", "use_regex");
    PL_TRY(pl_json_bool(err, where, value, "add_prefix_space", &prefix));
    PL_TRY(pl_json_bool(err, where, value, "use_regex", &words));
    PL_TRY(pl_json_bool(err, where, value, "trim_offsets", &trim)); /* matters in the post-processor only */
    if (prefix) PL_TRY(add_stage(err, t, PL_STAGE_PREFIX_SPACE, NULL));
    if (words) PL_TRY(add_regex(err, where, t, gpt2_words, false, PL_ISOLATED));
    return add_stage(err, t, PL_STAGE_BYTES, NULL);
}

/* prepend_scheme, or what older files have in its place. */
static int scheme_field(pl_error *err, const char *where, const char *type, const json_t *value, pl_scheme *out)
{
    const char *name = NULL;
    bool prefix = true;
    PL_TRY(pl_json_string(err, where, value, "prepend_scheme", &name));
    PL_TRY(pl_json_bool(err, where, value, "add_prefix_space", &prefix));
    *out = name && !strcmp(name, "first") ? PL_FIRST : name && !strcmp(name, "never") ? PL_NEVER : PL_ALWAYS;
    if (name && *out == PL_ALWAYS && strcmp(name, "always") != 0) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: %s.prepend_scheme is %.60s; first, always or never was expected", where, type, name);
    }
    if (prefix) return 0;
    if (name && *out != PL_NEVER) {
        return PL_FAIL(err, PL_EINPUT, "%s: %s.add_prefix_space is false, but prepend_scheme is %s", where, type, name);
    }
    *out = PL_NEVER;
    return 0;
}

static int metaspace(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_stage *st;
    bool cut = true;
    ONLY("replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep");
    PL_TRY(add_stage(err, t, PL_STAGE_METASPACE, &st));
    PL_TRY(char_field(err, where, type, value, "replacement", &st->replacement));
    PL_TRY(scheme_field(err, where, type, value, &st->scheme));
    PL_TRY(pl_json_bool(err, where, value, "split", &cut));
    return cut ? add_char(err, where, t, st->replacement, PL_WITH_NEXT) : 0;
}

static int split_pre_tokenizer(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_stage *st;
    ONLY("pattern", "behavior", "invert");
    PL_TRY(add_stage(err, t, PL_STAGE_SPLIT, &st));
    PL_TRY(behavior_field(err, where, type, value, &st->behavior));
    PL_TRY(pl_json_bool(err, where, value, "invert", &st->invert));
    return pattern_field(err, where, type, value, &st->pattern);
}

static int simple_pre_tokenizer(
    pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    if (!strcmp(type, "Whitespace")) {
        NO_FIELDS; /* runs of word characters, and runs of others */
        PL_TRY(add_class(err, t, pl_char_is_whitespace, PL_REMOVED));
        return add_class(err, t, pl_char_is_word, PL_CONTIGUOUS);
    }
    if (!strcmp(type, "WhitespaceSplit")) {
        NO_FIELDS;
        return add_class(err, t, pl_char_is_whitespace, PL_REMOVED);
    }
    if (!strcmp(type, "BertPreTokenizer")) {
        NO_FIELDS;
        PL_TRY(add_class(err, t, pl_char_is_whitespace, PL_REMOVED));
        return add_class(err, t, pl_char_is_punctuation, PL_ISOLATED);
    }
    if (!strcmp(type, "Punctuation")) {
        pl_behavior behavior = PL_ISOLATED;
        ONLY("behavior");
        PL_TRY(behavior_field(err, where, type, value, &behavior));
        return add_class(err, t, pl_char_is_punctuation, behavior);
    }
    if (!strcmp(type, "Digits")) {
        bool single = false;
        ONLY("individual_digits");
        PL_TRY(pl_json_bool(err, where, value, "individual_digits", &single));
        return add_class(err, t, pl_char_is_numeric, single ? PL_ISOLATED : PL_CONTIGUOUS);
    }
    if (!strcmp(type, "CharDelimiterSplit")) {
        int32_t c = 0;
        ONLY("delimiter");
        PL_TRY(char_field(err, where, type, value, "delimiter", &c));
        return add_char(err, where, t, c, PL_REMOVED);
    }
    return unknown_type(err, where, "pre_tokenizer", type);
}

int pl_parts_pre_tokenizer(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth)
{
    const char *type;
    PL_TRY(type_of(err, where, "pre_tokenizer", value, depth, &type));
    if (!strcmp(type, "Sequence"))
        return each(err, where, type, value, "pretokenizers", pl_parts_pre_tokenizer, t, depth);
    if (!strcmp(type, "ByteLevel")) return byte_level(err, where, type, value, t);
    if (!strcmp(type, "Metaspace")) return metaspace(err, where, type, value, t);
    if (!strcmp(type, "Split")) return split_pre_tokenizer(err, where, type, value, t);
    if (!strcmp(type, "FixedLength")) {
        int64_t length = 5;
        pl_stage *st;
        ONLY("length");
        PL_TRY(pl_json_int(err, where, value, "length", &length));
        if (length < 1) return PL_FAIL(err, PL_EINPUT, "%s: FixedLength.length is %lld", where, (long long)length);
        PL_TRY(add_stage(err, t, PL_STAGE_LENGTH, &st));
        st->length = (size_t)length;
        return 0;
    }
    return simple_pre_tokenizer(err, where, type, value, t);
}

/* ---- Post-processors: only what they do to a single text ---- */

static int add_fixed(pl_error *err, const char *where, pl_tokenizer *t, bool after, int64_t id)
{
    if (id < 0 || id >= t->vocab.size || !t->vocab.pieces[id].flags) {
        return PL_FAIL(err, PL_EINPUT, "%s: post_processor adds the id %lld, which no token has", where, (long long)id);
    }
    int32_t **list = after ? &t->suffix : &t->prefix;
    size_t *count = after ? &t->nsuffix : &t->nprefix;
    PL_TRY(pl_grow(err, list, after ? &t->suffix_capacity : &t->prefix_capacity, *count + 1, sizeof **list));
    (*list)[(*count)++] = (int32_t)id;
    return 0;
}

/* "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}} */
static int template_ids(
    pl_error *err, const char *where, const json_t *value, const char *name, pl_tokenizer *t, bool after)
{
    const json_t *ids = json_object_get(json_object_get(json_object_get(value, "special_tokens"), name), "ids");
    if (!json_is_array(ids)) {
        return PL_FAIL(
            err, PL_EINPUT, "%s: TemplateProcessing uses \"%.60s\", but special_tokens has no ids for it", where, name);
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        if (!json_is_integer(id)) {
            return PL_FAIL(err, PL_EINPUT,
                "%s: an id of \"%.60s\" in TemplateProcessing is %s; a whole number was expected", where, name,
                pl_json_type_name(id));
        }
        PL_TRY(add_fixed(err, where, t, after, json_integer_value(id)));
    }
    return 0;
}

static int template_processing(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    ONLY("single", "pair", "special_tokens");
    const json_t *single = json_object_get(value, "single");
    int texts = 0;
    if (t->nprefix || t->nsuffix)
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: two post-processors that add tokens", where);
    if (!json_is_array(single)) {
        return PL_FAIL(err, PL_EINPUT, "%s: TemplateProcessing.single is %s; a list was expected", where,
            pl_json_type_name(single));
    }
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *item = json_array_get(single, i), *special = json_object_get(item, "SpecialToken");
        const json_t *sequence = json_object_get(item, "Sequence");
        const char *id = NULL;
        PL_TRY(pl_json_string(err, where, special ? special : sequence, "id", &id));
        if (!id || (!special && strcmp(id, "A") != 0)) {
            return PL_FAIL(err, PL_EINPUT,
                "%s: item %zu of TemplateProcessing.single is neither a SpecialToken nor the "
                "Sequence A",
                where, i);
        }
        if (special) PL_TRY(template_ids(err, where, value, id, t, texts > 0));
        if (!special) texts++;
    }
    if (texts == 1) return 0;
    return PL_FAIL(
        err, PL_EUNSUPPORTED, "%s: TemplateProcessing.single has the text %d times; once is supported", where, texts);
}

/* RobertaProcessing and BertProcessing: "cls": ["<s>", 0], "sep": ["</s>", 2] */
static int classic_processing(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    static const char *const keys[] = {"cls", "sep"};
    ONLY("cls", "sep", "trim_offsets", "add_prefix_space");
    if (t->nprefix || t->nsuffix)
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: two post-processors that add tokens", where);
    for (int i = 0; i < 2; i++) {
        const json_t *id = json_array_get(json_object_get(value, keys[i]), 1);
        if (!json_is_integer(id)) {
            return PL_FAIL(err, PL_EINPUT, "%s: %s.%s must be [\"token\", id]", where, type, keys[i]);
        }
        PL_TRY(add_fixed(err, where, t, i == 1, json_integer_value(id)));
    }
    if (strcmp(type, "RobertaProcessing") != 0) return 0;
    t->trim = t->trim_keeps_one = true;
    PL_TRY(pl_json_bool(err, where, value, "trim_offsets", &t->trim));
    return pl_json_bool(err, where, value, "add_prefix_space", &t->trim_keeps_one);
}

int pl_parts_post_processor(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth)
{
    const char *type;
    PL_TRY(type_of(err, where, "post_processor", value, depth, &type));
    if (!strcmp(type, "Sequence"))
        return each(err, where, type, value, "processors", pl_parts_post_processor, t, depth);
    if (!strcmp(type, "TemplateProcessing")) return template_processing(err, where, type, value, t);
    if (!strcmp(type, "RobertaProcessing") || !strcmp(type, "BertProcessing")) {
        return classic_processing(err, where, type, value, t);
    }
    if (!strcmp(type, "ByteLevel")) {
        ONLY("add_prefix_space", "trim_offsets", "use_regex");
        t->trim = t->trim_keeps_one = true;
        PL_TRY(pl_json_bool(err, where, value, "trim_offsets", &t->trim));
        return pl_json_bool(err, where, value, "add_prefix_space", &t->trim_keeps_one);
    }
    return unknown_type(err, where, "post_processor", type);
}

/* ---- Decoders ---- */

static int add_decoder(pl_error *err, pl_tokenizer *t, pl_decode_kind kind, pl_decode_stage **out)
{
    PL_TRY(pl_grow(err, &t->decoders, &t->decoders_capacity, t->ndecoders + 1, sizeof *t->decoders));
    pl_decode_stage *st = &t->decoders[t->ndecoders++];
    *st = (pl_decode_stage){.kind = kind};
    if (out) *out = st;
    return 0;
}

static int strip_decoder(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_decode_stage *st;
    ONLY("content", "start", "stop");
    PL_TRY(add_decoder(err, t, PL_DECODE_STRIP, &st));
    PL_TRY(char_field(err, where, type, value, "content", &st->codepoint));
    PL_TRY(pl_json_int(err, where, value, "start", &st->start));
    PL_TRY(pl_json_int(err, where, value, "stop", &st->stop));
    if (st->start >= 0 && st->stop >= 0) return 0;
    return PL_FAIL(err, PL_EINPUT, "%s: Strip.start is %lld and Strip.stop %lld; neither may be negative", where,
        (long long)st->start, (long long)st->stop);
}

static int affix_decoder(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_decode_stage *st;
    if (!strcmp(type, "BPEDecoder")) {
        ONLY("suffix");
        PL_TRY(add_decoder(err, t, PL_DECODE_SUFFIX, &st));
        return copy_field(err, where, type, value, "suffix", &st->content, &st->content_size);
    }
    ONLY("prefix", "cleanup");
    PL_TRY(add_decoder(err, t, PL_DECODE_WORDPIECE, &st));
    st->cleanup = true;
    PL_TRY(pl_json_bool(err, where, value, "cleanup", &st->cleanup));
    return copy_field(err, where, type, value, "prefix", &st->content, &st->content_size);
}

static int metaspace_decoder(pl_error *err, const char *where, const char *type, const json_t *value, pl_tokenizer *t)
{
    pl_decode_stage *st;
    pl_scheme scheme;
    ONLY("replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep");
    PL_TRY(add_decoder(err, t, PL_DECODE_METASPACE, &st));
    PL_TRY(char_field(err, where, type, value, "replacement", &st->codepoint));
    PL_TRY(scheme_field(err, where, type, value, &scheme));
    st->drop_first = scheme != PL_NEVER;
    return 0;
}

int pl_parts_decoder(pl_error *err, const char *where, const json_t *value, pl_tokenizer *t, int depth)
{
    const char *type;
    pl_decode_stage *st;
    PL_TRY(type_of(err, where, "decoder", value, depth, &type));
    if (!strcmp(type, "Sequence")) return each(err, where, type, value, "decoders", pl_parts_decoder, t, depth);
    if (!strcmp(type, "ByteLevel")) {
        ONLY("add_prefix_space", "trim_offsets", "use_regex");
        return add_decoder(err, t, PL_DECODE_BYTES, NULL);
    }
    if (!strcmp(type, "ByteFallback") || !strcmp(type, "Fuse")) {
        NO_FIELDS;
        return add_decoder(err, t, *type == 'F' ? PL_DECODE_FUSE : PL_DECODE_BYTE_FALLBACK, NULL);
    }
    if (!strcmp(type, "Replace")) {
        ONLY("pattern", "content");
        PL_TRY(add_decoder(err, t, PL_DECODE_REPLACE, &st));
        PL_TRY(pattern_field(err, where, type, value, &st->pattern));
        return copy_field(err, where, type, value, "content", &st->content, &st->content_size);
    }
    if (!strcmp(type, "Strip")) return strip_decoder(err, where, type, value, t);
    if (!strcmp(type, "Metaspace")) return metaspace_decoder(err, where, type, value, t);
    if (!strcmp(type, "BPEDecoder") || !strcmp(type, "WordPiece")) return affix_decoder(err, where, type, value, t);
    return unknown_type(err, where, "decoder", type);
}

void pl_parts_free(pl_tokenizer *t)
{
    for (size_t i = 0; i < t->nnormalizers; i++) {
        pl_pattern_free(&t->normalizers[i].pattern);
        free(t->normalizers[i].content);
        pl_charsmap_free(t->normalizers[i].charsmap);
    }
    for (size_t i = 0; i < t->nstages; i++) pl_pattern_free(&t->stages[i].pattern);
    for (size_t i = 0; i < t->ndecoders; i++) {
        pl_pattern_free(&t->decoders[i].pattern);
        free(t->decoders[i].content);
    }
    for (int i = 0; i < 4; i++) free(t->forms[i].unstable);
    free(t->normalizers);
    free(t->stages);
    free(t->decoders);
    free(t->prefix);
    free(t->suffix);
}
