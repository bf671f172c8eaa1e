/* Folders with vocab.json and merges.txt and no tokenizer.json, against transformers (data/tokenizer/gpt2.json). */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"

static void put(const char *folder, const char *name, const char *text, size_t size)
{
    pl_error err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (pl_file_write(&err, path, text, size) < 0) fail_msg("%s", err.message);
}

static void put_json(const char *folder, const char *name, const json_t *value)
{
    pl_error err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (pl_json_write(&err, path, value) < 0) fail_msg("%s", err.message);
}

static json_t *read_golden(void)
{
    pl_error err = {0};
    json_t *golden = NULL;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/data/tokenizer/gpt2.json", &golden) < 0) fail_msg("%s", err.message);
    return golden;
}

static void check_ids(const char *name, const pl_tokenizer *t, const json_t *texts, const json_t *ids, bool special)
{
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *expected = json_array_get(ids, i);
        pl_error err = {0};
        pl_tokens tokens = {0};
        if (pl_tokenizer_encode(&err, t, json_string_value(text), json_string_length(text), special, &tokens) < 0)
            fail_msg("%s", err.message);
        bool same = tokens.count == json_array_size(expected);
        for (size_t k = 0; same && k < tokens.count; k++)
            same = tokens.ids[k] == json_integer_value(json_array_get(expected, k));
        if (!same) fail_msg("%s: \"%s\" has other ids", name, json_string_value(text));
        pl_tokens_free(&tokens);
    }
}

static void test_transformers(void **state)
{
    (void)state;
    json_t *golden = read_golden(), *c, *file;
    size_t i;
    const char *name;
    json_array_foreach(json_object_get(golden, "cases"), i, c)
    {
        char folder[] = "/tmp/plait-gpt2-XXXXXX";
        pl_error err = {0};
        pl_tokenizer *t = NULL;
        bool there = false;
        const json_t *merges = json_object_get(golden, "merges");
        assert_non_null(mkdtemp(folder));
        put_json(folder, "vocab.json", json_object_get(golden, "vocab"));
        assert_int_equal(pl_tokenizer_exists(&err, folder, &there), 0);
        assert_false(there);
        put(folder, "merges.txt", json_string_value(merges), json_string_length(merges));
        put(folder, "config.json", "{\"model_type\": \"gpt2\"}", 22);
        json_object_foreach(json_object_get(c, "files"), name, file) put_json(folder, name, file);
        assert_int_equal(pl_tokenizer_exists(&err, folder, &there), 0);
        assert_true(there);
        if (pl_tokenizer_open(&err, folder, &t) < 0) fail_msg("%s", err.message);
        name = json_string_value(json_object_get(c, "name"));
        uint64_t hash;
        assert_int_equal(pl_tokenizer_hash_folder(&err, folder, &hash), 0);
        assert_true(hash == pl_tokenizer_hash(t));
        check_ids(name, t, json_object_get(golden, "texts"), json_object_get(c, "ids"), true);
        check_ids(name, t, json_object_get(golden, "texts"), json_object_get(c, "plain"), false);
        assert_true(pl_tokenizer_is_special(t, pl_tokenizer_id(t, "<|endoftext|>")));
        pl_tokenizer_close(t);
        assert_int_equal(pl_dir_remove(&err, folder), 0);
    }
    assert_int_equal(i, 7);
    json_decref(golden);
}

/* A file's name and text, and what is said of it. */
static void test_errors(void **state)
{
    (void)state;
    static const struct {
        const char *name, *text, *message;
        int code;
    } cases[] = {
        {"tokenizer_config.json", "{\"tokenizer_class\": \"Qwen2Tokenizer\"}",
            "reads a GPT2Tokenizer alone, not Qwen2Tokenizer; ", PL_EUNSUPPORTED},
        {"config.json", "{\"model_type\": \"clip\"}", "not that of a model of type clip; ", PL_EUNSUPPORTED},
        {"config.json", "{}", "not that of a model of type unknown; ", PL_EUNSUPPORTED},
        {"vocab.json", "{\"a\": 0", "vocab.json:1: ", PL_EINPUT},
        {"vocab.json", "[]", "vocab.json: is a list; an object was expected", PL_EINPUT},
        {"vocab.json", "{\"a\": \"b\"}", "vocab.json", PL_EINPUT},
        {"merges.txt", "a\n", "merge", PL_EINPUT},
        {"merges.txt", "a \xff\n", "merges.txt: byte 2 is not UTF-8", PL_EINPUT},
        {"added_tokens.json", "{\"x\": \"y\"}", "id", PL_EINPUT},
        {"tokenizer_config.json", "{\"tokenizer_class\": \"GPT2Tokenizer\", \"add_bos_token\": 3}",
            "tokenizer_config.json: add_bos_token", PL_EINPUT},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        char folder[] = "/tmp/plait-gpt2-XXXXXX";
        pl_error err = {0};
        pl_tokenizer *t = NULL;
        assert_non_null(mkdtemp(folder));
        put(folder, "vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2}", 25);
        put(folder, "merges.txt", "a b", 3);
        put(folder, "config.json", "{\"model_type\": \"gpt2\"}", 22);
        if (pl_tokenizer_open(&err, folder, &t) < 0) fail_msg("%s", err.message);
        uint64_t hash = pl_tokenizer_hash(t);
        pl_tokenizer_close(t);
        put(folder, cases[i].name, cases[i].text, strlen(cases[i].text));
        uint64_t after;
        assert_int_equal(pl_tokenizer_hash_folder(&err, folder, &after), 0);
        assert_true(hash != after);
        int rc = pl_tokenizer_open(&err, folder, &t);
        if (rc != cases[i].code || !strstr(err.message, cases[i].message))
            fail_msg("%s was expected of %s, not %d: %s", cases[i].message, cases[i].text, rc, err.message);
        pl_error_clear(&err);
        assert_int_equal(pl_dir_remove(&err, folder), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_transformers), cmocka_unit_test(test_errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
