/* Tokenizers that are broken, truncated or lie: each is an error that says what is wrong, none is a crash. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "data/tokenizer.h"

static int parse(pl_error *err, const char *json, size_t size)
{
    pl_tokenizer *t = NULL;
    pl_tokens tokens = {.spans = true};
    pl_buf text = {0};
    static const char sample[] = "Once upon a time <s>\n\xE4\xBD\xA0 x</s>";
    int rc = pl_tokenizer_parse(err, "t.json", json, size, &t);
    if (rc == 0) { /* what was accepted must also work, or fail in an orderly way */
        pl_error later = {0};
        if (pl_tokenizer_encode(&later, t, sample, strlen(sample), true, &tokens) == 0) {
            assert_int_equal(pl_tokenizer_decode(&later, t, tokens.ids, tokens.count, false, &text), 0);
        } else {
            assert_true(later.message[0] != 0);
        }
    } else {
        assert_true(err->code == rc && err->message[0]);
    }
    pl_tokens_free(&tokens);
    pl_buf_free(&text);
    pl_tokenizer_close(t);
    return rc;
}

#define BPE(vocab, merges) "{\"model\": {\"type\": \"BPE\", \"vocab\": {" vocab "}, \"merges\": [" merges "]}}"
#define WITH(field) "{" field ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}"
#define REGEX(pattern)                                                                                                 \
    WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"" pattern                                \
         "\"}, \"behavior\": \"Isolated\"}")

static const struct {
    const char *json;
    int code;
    const char *says; /* a part of the message; NULL: no error */
} files[] = {
    {BPE("\"a\": 0, \"b\": 1, \"ab\": 2", "\"a b\""), 0, NULL},
    {BPE("\"a\": 0, \"b\": 1, \"ab\": 2", "[\"a\", \"b\"]"), 0, NULL},
    {"", PL_EINPUT, "t.json:1: the file ends where '{' was expected"},
    {"[]", PL_EINPUT, "'[' stands where '{' was expected"},
    {"{}", PL_EINPUT, "there is no model"},
    {"{\"model\": 3}", PL_EINPUT, "'3' stands where '{' was expected"},
    {"{\"model\": {\"type\": \"BPE\"}}", PL_EINPUT, "model.vocab is missing"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", PL_EINPUT, "model.merges is missing"},
    {"{\"model\": {\"type\": \"Magic\", \"vocab\": {}}}", PL_EUNSUPPORTED, "model.type is Magic"},
    {"{\"model\": {\"type\": 1, \"vocab\": {}}}", PL_EINPUT, "type is a whole number"},
    {"{\"model\": {\"magic\": 1}}", PL_EUNSUPPORTED, "model.magic"},
    {"{\"magic\": {}}", PL_EUNSUPPORTED, "\"magic\""},
    {BPE("\"a\": 0", "") "x", PL_EINPUT, "something follows"},
    {BPE("\"a\": -1", ""), PL_EINPUT, "\"a\" has the id -1"},
    {BPE("\"a\": 2000000000", ""), PL_EINPUT, "far beyond"},
    {BPE("\"a\": 99999999999999999999", ""), PL_EINPUT, "too large"},
    {BPE("\"a\": 1.5", ""), PL_EINPUT, "1.5 is not a whole number"},
    {BPE("\"a\": \"0\"", ""), PL_EINPUT, "a whole number was expected"},
    {BPE("\"a\": 0, \"b\": 0", ""), PL_EINPUT, "the id 0 belongs to two pieces, \"a\" and \"b\""},
    {BPE("\"a\": 0,\n\"a\": 1", ""), PL_EINPUT, "t.json:2: \"a\" is there twice, with the ids 0 and 1"},
    {BPE("\"a\": 0", "\"a b\""), PL_EINPUT, "merge 0 names \"b\", which is not in model.vocab"},
    {BPE("\"a\": 0, \"b\": 1", "\"a b\""), PL_EINPUT, "merge 0 names \"ab\""},
    {BPE("\"a\": 0", "\"a\""), PL_EINPUT, "two pieces with one space"},
    {BPE("\"a\": 0", "\"a a a\""), PL_EINPUT, "two pieces with one space"},
    {BPE("\"a\": 0", "[\"a\"]"), PL_EINPUT, "',' was expected"},
    {BPE("\"a\": 0", "[\"a\", \"a\", \"a\"]"), PL_EINPUT, "']' was expected"},
    {BPE("\"a\": 0", "3"), PL_EINPUT, "a string was expected"},
    {BPE("\"\\ud800\": 0", ""), PL_EINPUT, "surrogate"},
    {BPE("\"\xFF\": 0", ""), PL_EINPUT, "byte 0xFF is not UTF-8"},
    {BPE("\"a\": 0,", ""), PL_EINPUT, "a string was expected"},
    {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}", PL_EUNSUPPORTED,
        "dropout is 0.1"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", -1]], \"unk_id\": 1}}", PL_EINPUT, "unk_id is 1"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", \"b\"]]}}", PL_EINPUT, "a number was expected"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [], \"unk_id\": null}}", PL_EINPUT, "model.vocab is empty"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": {\"a\": 0}}}", PL_EINPUT, "'{' stands where '[' was expected"},
    {WITH("\"added_tokens\": 3"), PL_EINPUT, "added_tokens is a whole number"},
    {WITH("\"added_tokens\": [{\"id\": 5}]"), PL_EINPUT, "content of an added token is nothing"},
    {WITH("\"added_tokens\": [{\"content\": \"x\"}]"), PL_EINPUT, "no id"},
    {WITH("\"added_tokens\": [{\"id\": 2, \"content\": \"\"}]"), PL_EINPUT, "empty"},
    {WITH("\"added_tokens\": [{\"id\": 1, \"content\": \"x\"}]"), PL_EINPUT, "belongs to two pieces"},
    {WITH("\"added_tokens\": [{\"id\": 3, \"content\": \"a\"}]"), PL_EINPUT,
        "has the id 3, but in the vocabulary it is 0"},
    {WITH("\"added_tokens\": [{\"id\": 1000000000, \"content\": \"x\"}]"), PL_EINPUT, "far beyond"},
    {WITH("\"added_tokens\": [{\"id\": 2, \"content\": \"x\", \"special\": \"yes\"}]"), PL_EINPUT,
        "special is a string"},
    {WITH("\"normalizer\": []"), PL_EINPUT, "normalizer is a list"},
    {WITH("\"normalizer\": {}"), PL_EINPUT, "normalizer has no type"},
    {WITH("\"normalizer\": {\"type\": \"Magic\"}"), PL_EUNSUPPORTED, "the normalizer Magic"},
    {WITH("\"normalizer\": {\"type\": \"NFC\", \"magic\": 1}"), PL_EUNSUPPORTED, "NFC has a field magic"},
    {WITH("\"normalizer\": {\"type\": \"Sequence\"}"), PL_EINPUT, "Sequence.normalizers is nothing"},
    {WITH("\"normalizer\": {\"type\": \"Replace\", \"pattern\": \"x\", \"content\": \"\"}"), PL_EINPUT,
        "Replace.pattern"},
    {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"!\"}"), PL_EINPUT, "not base64"},
    {WITH("\"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAAAAAA\"}"), PL_EINPUT, "damaged"},
    {WITH("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), PL_EUNSUPPORTED, "the pre_tokenizer UnicodeScripts"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"ab\"}"), PL_EINPUT, "one character"},
    {WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"last\"}"),
        PL_EINPUT, "prepend_scheme is last"},
    {WITH("\"pre_tokenizer\": {\"type\": \"FixedLength\", \"length\": 0}"), PL_EINPUT, "length is 0"},
    {REGEX("("), PL_EUNSUPPORTED, "cannot be compiled"},
    {REGEX("[a&&b]"), PL_EUNSUPPORTED, "an intersection of classes"},
    {REGEX("[a[b]]"), PL_EUNSUPPORTED, "a class inside a class"},
    {REGEX("(?m:a)"), PL_EUNSUPPORTED, "a group of that kind"},
    {REGEX("(*UCP)a"), PL_EUNSUPPORTED, "(*"},
    {REGEX("\\\\y"), PL_EUNSUPPORTED, "\\y"},
    {REGEX(""), PL_EUNSUPPORTED, "the pattern is empty"},
    {WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}"),
        PL_EINPUT, "special_tokens has no ids"},
    {WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}"), PL_EUNSUPPORTED, "0 times"},
    {WITH("\"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"b\", 7], \"cls\": [\"a\", 0]}"), PL_EINPUT,
        "the id 7, which no token has"},
    {WITH("\"decoder\": {\"type\": \"CTC\"}"), PL_EUNSUPPORTED, "the decoder CTC"},
    {WITH("\"decoder\": {\"type\": \"Strip\", \"content\": \" \", \"start\": -1, \"stop\": 0}"), PL_EINPUT, "negative"},
};

static void test_files(void **state)
{
    (void)state;
    for (int i = 0; i < PL_COUNT(files); i++) {
        pl_error err = {0};
        int rc = parse(&err, files[i].json, strlen(files[i].json));
        if (rc == files[i].code && (!files[i].says || strstr(err.message, files[i].says))) continue;
        fail_msg("%s\ngave %s \"%s\", not %s \"%s\"", files[i].json, pl_error_name(rc), err.message,
            pl_error_name(files[i].code), files[i].says ? files[i].says : "");
    }
}

static pl_buf read_stories(void)
{
    pl_error err = {0};
    pl_buf file = {0};
    assert_int_equal(pl_file_read(&err, PLAIT_TEST_DIR "/data/stories260K/tokenizer.json", &file), 0);
    return file;
}

/* Every truncation is an error. (The file ends with a newline after the last brace.) */
static void test_truncated(void **state)
{
    (void)state;
    pl_buf file = read_stories();
    while (file.size && file.data[file.size - 1] != '}') file.size--;
    for (size_t size = 0; size < file.size; size += size < 1500 ? 1 : 23) {
        pl_error err = {0};
        char *copy = malloc(size + 1); /* exactly so long, so that ASan sees a read behind the end */
        assert_non_null(copy);
        memcpy(copy, file.data, size);
        if (parse(&err, copy, size) != PL_EINPUT) fail_msg("%zu bytes were accepted", size);
        free(copy);
    }
    pl_buf_free(&file);
}

/* Single bytes changed: no crash, and no error without a message. */
static void test_mutated(void **state)
{
    (void)state;
    static const char bytes[] = "\"\\{}[],:0-x \xC3";
    pl_buf file = read_stories();
    int refused = 0;
    for (size_t at = 0; at < file.size; at += 13) {
        pl_error err = {0};
        char was = file.data[at];
        file.data[at] = bytes[at % (sizeof bytes - 1)];
        refused += parse(&err, file.data, file.size) < 0;
        file.data[at] = was;
    }
    assert_true(refused > 100);
    pl_buf_free(&file);
}

static void test_absent(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_tokenizer *t;
    char folder[] = "/tmp/plait-tokenizer-XXXXXX";
    assert_non_null(mkdtemp(folder));
    assert_int_equal(pl_tokenizer_open(&err, folder, &t), PL_ENOENT);
    assert_non_null(strstr(err.message, "tokenizer.json"));
    rmdir(folder);
}

/* tokenizer_config.json contradicts tokenizer.json. */
static void test_config(void **state)
{
    static const struct {
        const char *json, *says;
    } configs[] = {{"[]", "a list"}, {"{", "a string was expected"},
        {"{\"added_tokens_decoder\": {\"x\": {\"content\": \"a\"}}}", "an id was expected"},
        {"{\"added_tokens_decoder\": {\"7\": {\"content\": \"a\"}}}", "has the id 7, but in the vocabulary it is 0"}};
    (void)state;
    static const char tokenizer[] = BPE("\"a\": 0, \"b\": 1", "");
    char folder[] = "/tmp/plait-tokenizer-XXXXXX", path[100];
    pl_error err = {0};
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    assert_int_equal(pl_file_write(&err, path, tokenizer, strlen(tokenizer)), 0);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    for (int i = 0; i < PL_COUNT(configs); i++) {
        pl_tokenizer *t;
        pl_error_clear(&err);
        assert_int_equal(pl_file_write(&err, path, configs[i].json, strlen(configs[i].json)), 0);
        assert_int_equal(pl_tokenizer_open(&err, folder, &t), PL_EINPUT);
        if (!strstr(err.message, configs[i].says)) fail_msg("%s: \"%s\"", configs[i].json, err.message);
    }
    pl_error_clear(&err);
    assert_int_equal(pl_dir_remove(&err, folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_files), cmocka_unit_test(test_truncated),
        cmocka_unit_test(test_mutated), cmocka_unit_test(test_absent), cmocka_unit_test(test_config)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
