/* The tokenizer against what Hugging Face's library says: tokenizer/cases.jsonl (see make_cases.py there), and a real
   model's files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "base/json.h"
#include "base/utf8.h"
#include "data/tokenizer.h"

static void ok(const pl_error *err, int rc)
{
    if (rc < 0) fail_msg("%s", err->message);
}

static void same_ids(const char *what, const char *text, const pl_tokens *tokens, const json_t *ids)
{
    size_t count = json_array_size(ids);
    for (size_t i = 0; i < tokens->count && i < count; i++) {
        int expected = (int)json_integer_value(json_array_get(ids, i));
        if (tokens->ids[i] != expected) {
            fail_msg("%s, \"%.60s\": token %zu is %d, not %d", what, text, i, tokens->ids[i], expected);
        }
    }
    if (tokens->count != count) fail_msg("%s, \"%.60s\": %zu tokens, not %zu", what, text, tokens->count, count);
}

static void same_spans(const char *what, const char *text, const pl_tokens *tokens, const json_t *spans)
{
    for (size_t i = 0; i < tokens->count; i++) {
        const json_t *span = json_array_get(spans, i);
        int64_t begin = json_is_null(span) ? -1 : json_integer_value(json_array_get(span, 0));
        int64_t end = json_is_null(span) ? -1 : json_integer_value(json_array_get(span, 1));
        if (tokens->begin[i] != begin || tokens->end[i] != end) {
            fail_msg("%s, \"%.60s\": token %zu spans %lld..%lld, not %lld..%lld", what, text, i,
                (long long)tokens->begin[i], (long long)tokens->end[i], (long long)begin, (long long)end);
        }
    }
}

static void same_text(const char *what, const pl_buf *got, const json_t *expected)
{
    if (got->size == json_string_length(expected) &&
        !memcmp(pl_buf_text(got), json_string_value(expected), got->size)) {
        return;
    }
    fail_msg("%s: decoded \"%.200s\", not \"%.200s\"", what, pl_buf_text(got), json_string_value(expected));
}

/* Decodes at once, and an id at a time: what came out must be the same, and whole characters after each. */
static void check_decoding(
    const char *what, const pl_tokenizer *t, const pl_tokens *tokens, bool skip, const json_t *expected)
{
    pl_error err = {0};
    pl_buf all = {0}, parts = {0};
    pl_decoder *decoder;
    ok(&err, pl_tokenizer_decode(&err, t, tokens->ids, tokens->count, skip, &all));
    same_text(what, &all, expected);
    ok(&err, pl_decoder_open(&err, t, skip, &decoder));
    for (int round = 0; round < 2; round++) { /* twice: finish must leave a decoder that can start again */
        pl_buf_clear(&parts);
        for (size_t i = 0; i < tokens->count; i++) {
            ok(&err, pl_decoder_push(&err, decoder, tokens->ids[i], &parts));
            assert_int_equal(pl_utf8_check(pl_buf_text(&parts), parts.size), parts.size);
            assert_true(parts.size <= all.size && !memcmp(pl_buf_text(&parts), pl_buf_text(&all), parts.size));
        }
        ok(&err, pl_decoder_finish(&err, decoder, &parts));
        same_text(what, &parts, expected);
    }
    pl_decoder_close(decoder);
    pl_buf_free(&parts);
    pl_buf_free(&all);
}

static void check_case(const char *what, const pl_tokenizer *t, const json_t *c)
{
    pl_error err = {0};
    const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids");
    const char *bytes = json_string_value(text);
    size_t size = json_string_length(text);
    bool special = json_is_true(json_object_get(c, "special"));
    pl_tokens plain = {0}, spanned = {.spans = true};
    ok(&err, pl_tokenizer_encode(&err, t, bytes, size, special, &plain));
    same_ids(what, bytes, &plain, ids);
    ok(&err, pl_tokenizer_encode(&err, t, bytes, size, special, &spanned));
    same_ids(what, bytes, &spanned, ids);
    same_spans(what, bytes, &spanned, json_object_get(c, "spans"));
    check_decoding(what, t, &plain, false, json_object_get(c, "decoded"));
    check_decoding(what, t, &plain, true, json_object_get(c, "skipped"));
    pl_tokens_free(&plain);
    pl_tokens_free(&spanned);
}

static void check_line(const char *line, size_t size)
{
    pl_error err = {0};
    json_t *item;
    pl_tokenizer *t;
    ok(&err, pl_json_parse(&err, "cases.jsonl", line, size, &item));
    const char *name = json_string_value(json_object_get(item, "name"));
    char *definition = json_dumps(json_object_get(item, "tokenizer"), JSON_COMPACT);
    assert_non_null(definition);
    ok(&err, pl_tokenizer_parse(&err, name, definition, strlen(definition), &t));
    const json_t *cases = json_object_get(item, "cases");
    for (size_t i = 0; i < json_array_size(cases); i++) check_case(name, t, json_array_get(cases, i));
    pl_tokenizer_close(t);
    free(definition);
    json_decref(item);
}

static void test_cases(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_buf file = {0};
    size_t at = 0, lines = 0;
    ok(&err, pl_file_read(&err, PLAIT_TEST_DIR "/data/tokenizer/cases.jsonl", &file));
    while (at < file.size) {
        const char *end = memchr(file.data + at, '\n', file.size - at);
        assert_non_null(end);
        check_line(file.data + at, (size_t)(end - file.data) - at);
        at = (size_t)(end - file.data) + 1;
        lines++;
    }
    assert_int_equal(lines, 23);
    pl_buf_free(&file);
}

static void test_stories(void **state)
{
    (void)state;
    static const char text[] = "Once upon a time, there was a little girl";
    static const int32_t expected[] = {1, 403, 407, 261, 378, 432, 383, 286, 261, 376, 298, 315, 421};
    pl_error err = {0};
    pl_tokenizer *t;
    pl_tokens tokens = {0};
    pl_buf decoded = {0};
    size_t count;
    ok(&err, pl_tokenizer_open(&err, PLAIT_TEST_DIR "/data/stories260K", &t));
    ok(&err, pl_tokenizer_encode(&err, t, text, strlen(text), true, &tokens));
    assert_int_equal(tokens.count, PL_COUNT(expected));
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    ok(&err, pl_tokenizer_decode(&err, t, tokens.ids, tokens.count, true, &decoded));
    assert_string_equal(decoded.data, text);

    assert_int_equal(pl_tokenizer_vocab_size(t), 512);
    assert_int_equal(pl_tokenizer_id(t, "<s>"), 1);
    assert_int_equal(pl_tokenizer_id(t, "no such piece"), -1);
    assert_string_equal(pl_tokenizer_piece(t, 2), "</s>");
    assert_null(pl_tokenizer_piece(t, 512));
    assert_null(pl_tokenizer_piece(t, -1));
    assert_true(pl_tokenizer_is_special(t, 1));
    assert_false(pl_tokenizer_is_special(t, 403));
    assert_false(pl_tokenizer_is_special(t, 1000));
    assert_int_equal(pl_tokenizer_prefix(t, &count)[0], 1);
    assert_int_equal(count, 1);
    pl_tokenizer_suffix(t, &count);
    assert_int_equal(count, 0);
    pl_tokens_free(&tokens);
    pl_buf_free(&decoded);
    pl_tokenizer_close(t);
}

/* The word cache and the heap only come into play in long texts; the ids must not depend on either. */
static void test_long_texts(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_tokenizer *t;
    pl_tokens one = {0}, many = {0};
    pl_buf text = {0};
    static const char part[] = "there was\n"; /* nothing merges across the end of a line */
    ok(&err, pl_tokenizer_open(&err, PLAIT_TEST_DIR "/data/stories260K", &t));
    ok(&err, pl_tokenizer_encode(&err, t, "x\nthere was\n", 12, false, &one));
    ok(&err, pl_buf_puts(&err, &text, "x\n"));
    for (int i = 0; i < 3000; i++) ok(&err, pl_buf_append(&err, &text, part, strlen(part)));
    ok(&err, pl_tokenizer_encode(&err, t, text.data, text.size, false, &many));
    size_t first = 3, each = one.count - first; /* "_", "x", the byte of the newline */
    assert_int_equal(many.count, first + 3000 * each);
    for (size_t i = first; i < many.count; i++) assert_int_equal(many.ids[i], one.ids[first + (i - first) % each]);
    pl_tokens_free(&one);
    pl_tokens_free(&many);
    pl_buf_free(&text);
    pl_tokenizer_close(t);
}

/* Encoding appends, and after an error leaves what was there. */
static void test_appending(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_tokenizer *t;
    pl_tokens tokens = {.spans = true};
    ok(&err, pl_tokenizer_open(&err, PLAIT_TEST_DIR "/data/stories260K", &t));
    ok(&err, pl_tokenizer_encode(&err, t, "a", 1, true, &tokens));
    size_t count = tokens.count;
    ok(&err, pl_tokenizer_encode(&err, t, "a", 1, true, &tokens));
    assert_int_equal(tokens.count, 2 * count);
    assert_memory_equal(tokens.ids, tokens.ids + count, count * sizeof *tokens.ids);
    assert_memory_equal(tokens.begin, tokens.begin + count, count * sizeof *tokens.begin);
    assert_int_equal(tokens.begin[0], -1);
    assert_int_equal(pl_tokenizer_encode(&err, t, "good \xC3\x28 bad", 11, true, &tokens), PL_EINPUT);
    assert_string_equal(err.message, "the text is not UTF-8: byte 0xC3 at offset 5");
    assert_int_equal(tokens.count, 2 * count);
    pl_error_clear(&err);
    int32_t ids[] = {403, 512};
    pl_buf out = {0};
    ok(&err, pl_buf_puts(&err, &out, "before"));
    assert_int_equal(pl_tokenizer_decode(&err, t, ids, 2, false, &out), PL_EINPUT);
    assert_string_equal(err.message, "512 is not the id of a token; the highest is 511");
    assert_string_equal(out.data, "before");
    pl_buf_free(&out);
    pl_tokens_free(&tokens);
    pl_tokenizer_close(t);
}

/* tokenizer_config.json adds tokens and makes pieces special; the numbers that Python writes there are no obstacle. */
static void test_config(void **state)
{
    (void)state;
    static const char config[] = "{\"model_max_length\": 1000000000000000019884624838656, \"pad_token\": \"<pad>\","
                                 "\"additional_special_tokens\": [{\"content\": \"little\"}], \"eos_token\": null,"
                                 "\"extra_special_tokens\": {\"image_token\": \"was\"}, \"added_tokens_decoder\":"
                                 "{\"1\": {\"content\": \"<s>\", \"rstrip\": true, \"normalized\": false},"
                                 " \"512\": {\"content\": \"<new>\", \"special\": true}}}";
    static const char tokenizer[] =
        "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"a\": 0, \"<s>\": 1, \"was\": 2, "
        "\"little\": 3, \" \": 4, \"l\": 5}}}";
    static const char text[] = "a<s> <new>waslittlea<pad>";
    static const int32_t expected[] = {0, 1, 512, 2, 3, 0, 0}; /* of <pad>, which is no token, only the a is a piece */
    char folder[] = "/tmp/plait-tokenizer-XXXXXX", path[100];
    pl_error err = {0};
    pl_tokenizer *t;
    pl_tokens tokens = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    ok(&err, pl_file_write(&err, path, tokenizer, strlen(tokenizer)));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    ok(&err, pl_file_write(&err, path, config, strlen(config)));
    ok(&err, pl_tokenizer_open(&err, folder, &t));
    ok(&err, pl_tokenizer_encode(&err, t, text, strlen(text), true, &tokens));
    assert_int_equal(tokens.count, PL_COUNT(expected));
    assert_memory_equal(tokens.ids, expected, sizeof expected);
    assert_true(pl_tokenizer_is_special(t, 2) && pl_tokenizer_is_special(t, 3) && pl_tokenizer_is_special(t, 512));
    assert_false(pl_tokenizer_is_special(t, 0));
    assert_int_equal(pl_tokenizer_id(t, "<pad>"), -1);
    pl_tokens_free(&tokens);
    pl_tokenizer_close(t);
    ok(&err, pl_dir_remove(&err, folder));
}

static pl_tokenizer *parse(const char *json)
{
    pl_error err = {0};
    pl_tokenizer *t;
    ok(&err, pl_tokenizer_parse(&err, "test", json, strlen(json), &t));
    return t;
}

/* Of equal merges the leftmost comes first, however long the word is: an odd letter is left over at the end. */
static void test_ties(void **state)
{
    (void)state;
    pl_tokenizer *t = parse("{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"aa\": 1, \"aaaa\": 2}, "
                            "\"merges\": [\"a a\", \"aa aa\"]}}");
    static const size_t sizes[] = {5, 21, 61, 201, 2001};
    char text[2001];
    memset(text, 'a', sizeof text);
    for (int i = 0; i < PL_COUNT(sizes); i++) {
        pl_error err = {0};
        pl_tokens tokens = {0};
        ok(&err, pl_tokenizer_encode(&err, t, text, sizes[i], false, &tokens));
        assert_int_equal(tokens.count, sizes[i] / 4 + 1);
        for (size_t k = 0; k + 1 < tokens.count; k++) assert_int_equal(tokens.ids[k], 2);
        assert_int_equal(tokens.ids[tokens.count - 1], 0);
        pl_tokens_free(&tokens);
    }
    pl_tokenizer_close(t);
}

/* A byte-level piece may join the last byte of a character with the first of the next, so that the word must not be cut
   between them. The bytes of the two characters are E5 A4 A9, E6 B0 94; the merge is of A9 and E6. */
static void test_cuts(void **state)
{
    (void)state;
    static const int32_t unit[] = {0xE5, 0xA4, 256, 0xB0, 0x94};
    pl_error err = {0};
    pl_buf json = {0}, text = {0};
    pl_tokens tokens = {0};
    ok(&err, pl_buf_puts(&err, &json,
                 "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, \"model\": "
                 "{\"type\": \"BPE\", \"merges\": [\"\xC2\xA9 \xC3\xA6\"], \"vocab\": {"));
    int moved = 256; /* the bytes that are not visible themselves are U+0100 and on */
    for (int b = 0; b < 256; b++) {
        bool visible = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        ok(&err, pl_buf_printf(&err, &json, "\"\\u%04x\": %d, ", visible ? b : moved++, b));
    }
    ok(&err, pl_buf_puts(&err, &json, "\"\xC2\xA9\xC3\xA6\": 256}}}"));
    pl_tokenizer *t = parse(json.data);
    for (int i = 0; i < 20; i++) ok(&err, pl_buf_puts(&err, &text, "\xE5\xA4\xA9\xE6\xB0\x94"));
    ok(&err, pl_tokenizer_encode(&err, t, text.data, text.size, false, &tokens));
    assert_int_equal(tokens.count, 20 * PL_COUNT(unit));
    for (size_t i = 0; i < tokens.count; i++) assert_int_equal(tokens.ids[i], unit[i % PL_COUNT(unit)]);
    pl_tokens_free(&tokens);
    pl_buf_free(&text);
    pl_buf_free(&json);
    pl_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_stories),
        cmocka_unit_test(test_long_texts), cmocka_unit_test(test_config), cmocka_unit_test(test_ties),
        cmocka_unit_test(test_cuts), cmocka_unit_test(test_appending)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
