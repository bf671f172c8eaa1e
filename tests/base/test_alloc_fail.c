/* Every allocation of these functions is made to fail once: they must say PL_ENOMEM and leave nothing behind. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "api/config.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "data/chat.h"
#include "data/tokenizer.h"
#include "mem/mem.h"
#include "model/arch.h"
#include "support/alloc_fail.h"

static char folder[] = "/tmp/plait-alloc-fail-XXXXXX";

static int use_buf(pl_error *err, void *user)
{
    (void)user;
    pl_buf buf = {0};
    char *a = NULL, *b = NULL, *items = NULL;
    size_t capacity = 0;
    int rc = 0;
    for (int i = 0; i < 40; i++) {
        PL_GO(done, pl_buf_printf(err, &buf, "line %d of forty; ", i));
        PL_GO(done, pl_buf_puts(err, &buf, "and more"));
    }
    PL_GO(done, pl_strdup(err, pl_buf_text(&buf), &a));
    PL_GO(done, pl_format(err, &b, "%s%s", a, a));
    for (size_t n = 1; n < 100; n *= 3) PL_GO(done, pl_grow(err, &items, &capacity, n, 16));
done:
    free(items);
    free(b);
    free(a);
    pl_buf_free(&buf);
    return rc;
}

static int use_files(pl_error *err, void *user)
{
    (void)user;
    pl_buf buf = {0};
    pl_map map = {0};
    char *path = NULL, *deep = NULL;
    int rc = 0;
    PL_GO(done, pl_path_join(err, folder, "some.txt", &path));
    PL_GO(done, pl_path_join(err, folder, "a/b/c", &deep));
    PL_GO(done, pl_dir_make(err, deep));
    PL_GO(done, pl_file_write(err, path, "hello", 5));
    PL_GO(done, pl_file_read(err, path, &buf));
    PL_GO(done, pl_map_open(err, path, &map));
done:
    pl_map_close(&map);
    free(deep);
    free(path);
    pl_buf_free(&buf);
    return rc;
}

static int use_json(pl_error *err, void *user)
{
    static const char text[] = "{\"a\": [1, 2.5, true, null, \"x\\u00e9\"], \"b\": {\"c\": {}, \"d\": \"text\"}}";
    (void)user;
    json_t *value = NULL;
    char *path = NULL;
    int rc = 0;
    PL_GO(done, pl_json_parse(err, "text", text, sizeof text - 1, &value));
    PL_GO(done, pl_path_join(err, folder, "some.json", &path));
    PL_GO(done, pl_json_write(err, path, value));
    json_decref(value);
    value = NULL;
    PL_GO(done, pl_json_read(err, path, &value));
done:
    free(path);
    json_decref(value);
    return rc;
}

static void no_sink(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    (void)level;
    (void)message;
}

static int use_arch(pl_error *err, void *user)
{
    pl_log log = {no_sink, NULL};
    pl_arch arch;
    PL_TRY(pl_arch_parse(err, &log, "config.json", user, NULL, &arch));
    pl_arch_free(&arch);
    return 0;
}

/* The three devices, with some memory on each. */
static int use_devices(pl_error *err, void *user)
{
    (void)user;
    pl_device *devices[3] = {0};
    pl_mem mems[3];
    pl_stack stacks[3] = {0};
    int rc = 0;
    PL_GO(done, pl_device_cpu(err, 1, &devices[0]));
    PL_GO(done, pl_device_ref(err, &devices[1]));
    PL_GO(done, pl_device_dry(err, devices[0], &devices[2]));
    for (int i = 0; i < 3; i++) {
        pl_mem_init(&mems[i], devices[i]);
        PL_GO(done, pl_stack_open(err, &stacks[i], &mems[i], PL_MEM_WORK, 1 << 20));
    }
done:
    for (int i = 2; i >= 0; i--) {
        pl_stack_close(&stacks[i]);
        pl_device_close(devices[i]);
    }
    return rc;
}

static void test_devices(void **state)
{
    (void)state;
    assert_true(alloc_fail_run("devices", use_devices, NULL) >= 5);
}

static void test_buf(void **state)
{
    (void)state;
    assert_true(alloc_fail_run("buf", use_buf, NULL) >= 5);
}

static void test_files(void **state)
{
    (void)state;
    assert_true(alloc_fail_run("file", use_files, NULL) >= 7);
}

static void test_json(void **state)
{
    (void)state;
    assert_true(alloc_fail_run("json", use_json, NULL) >= 20);
}

static void test_arch(void **state)
{
    (void)state;
    static const char *const models[] = {"phi3-longrope", "gemma3", "llama-rope-yarn", "gpt2"};
    for (int i = 0; i < PL_COUNT(models); i++) {
        char path[512];
        pl_error err = {0};
        json_t *config;
        snprintf(path, sizeof path, "%s/golden/models/%s/config.json", PLAIT_TEST_DIR, models[i]);
        /* Read outside: jansson cuts a string short, and says nothing, when its buffer cannot grow. */
        assert_int_equal(pl_json_read(&err, path, &config), 0);
        assert_true(alloc_fail_run(models[i], use_arch, config) >= 2);
        json_decref(config);
    }
}

/* A tokenizer is read, a text goes there and back. */
static int use_tokenizer(pl_error *err, void *user)
{
    static const char text[] =
        "The dog's  12345 foxes, e\xCC\x81 <mask> \xE5\xA4\xA9\xE6\xB0\x94 thethethethethethethe<s>x \n"
        "a text that is long enough for the cache of words to be in use: The quick brown fox jumps "
        "over the lazy dog, and the quick brown fox jumps over the lazy dog once more, and yet again; "
        "wordswithoutanyspacebetweenthemthatgoonandonandonsothattheheapoflongwordshastobeusedaswellas"
        "everythingelsethatthereisinthetokenizerandthensomemoreuntiltheend";
    const char *json = user;
    pl_tokenizer *t = NULL;
    pl_tokens tokens = {.spans = true};
    pl_buf decoded = {0};
    int rc;
    PL_GO(done, pl_tokenizer_parse(err, "test", json, strlen(json), &t));
    PL_GO(done, pl_tokenizer_encode(err, t, text, strlen(text), true, &tokens));
    PL_GO(done, pl_tokenizer_decode(err, t, tokens.ids, tokens.count, false, &decoded));
done:
    pl_buf_free(&decoded);
    pl_tokens_free(&tokens);
    pl_tokenizer_close(t);
    return rc;
}

static void test_tokenizer(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_buf file = {0};
    int tokenizers = 0;
    assert_int_equal(pl_file_read(&err, PLAIT_TEST_DIR "/data/tokenizer/cases.jsonl", &file), 0);
    for (char *line = file.data, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *item;
        if (tokenizers++ % 3) continue; /* each is run once for every allocation it makes */
        assert_int_equal(pl_json_parse(&err, "cases.jsonl", line, (size_t)(end - line), &item), 0);
        char *json = json_dumps(json_object_get(item, "tokenizer"), JSON_COMPACT);
        assert_true(alloc_fail_run(json_string_value(json_object_get(item, "name")), use_tokenizer, json) >= 20);
        free(json);
        json_decref(item);
    }
    assert_true(tokenizers > 20);
    pl_buf_free(&file);
}

/* A tokenizer from the files that GPT-2 has. */
static int use_gpt2(pl_error *err, void *user)
{
    pl_tokenizer *t = NULL;
    (void)user;
    PL_TRY(pl_tokenizer_open(err, folder, &t));
    pl_tokenizer_close(t);
    return 0;
}

static void test_gpt2(void **state)
{
    (void)state;
    static const char *const files[][2] = {{"vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2, \"</s>\": 3}"},
        {"merges.txt", "#version: 0.2\na b\n"}, {"added_tokens.json", "{\"<x>\": 4}"},
        {"config.json", "{\"model_type\": \"gpt2\"}"},
        {"tokenizer_config.json",
            "{\"tokenizer_class\": \"GPT2Tokenizer\", \"bos_token\": \"</s>\", \"add_bos_token\": "
            "true}"}};
    char path[sizeof folder + 32];
    pl_error err = {0};
    for (int i = 0; i < PL_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
        assert_int_equal(pl_file_write(&err, path, files[i][1], strlen(files[i][1])), 0);
    }
    assert_true(alloc_fail_run("GPT-2's files", use_gpt2, NULL) >= 40);
    for (int i = 0; i < PL_COUNT(files); i++) {
        snprintf(path, sizeof path, "%s/%s", folder, files[i][0]);
        assert_int_equal(unlink(path), 0);
    }
}

/* A chat template from its folder, and a conversation through it; the last has {% generation %}. */
static int use_chat(pl_error *err, void *user)
{
    const json_t *messages = user;
    pl_chat *chat = NULL;
    pl_buf out = {0};
    pl_spans trained = {0};
    int rc;
    PL_GO(done, pl_chat_open(err, folder, &chat));
    PL_GO(done, pl_chat_set(err, chat, "strftime_now", json_array_get(messages, 0)));
    PL_GO(done, pl_chat_render(err, chat, json_array_get(messages, 1), NULL, true, &out));
    PL_GO(done, pl_chat_render_trained(err, chat, json_array_get(messages, 1), NULL, &out, &trained));
done:
    pl_spans_free(&trained);
    pl_buf_free(&out);
    pl_chat_free(chat);
    return rc;
}

static void test_chat(void **state)
{
    (void)state;
    static const char config[] =
        "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"additional_special_tokens\": [\"<x>\"]}";
    /* One whose turns are found by rendering, with much in it; one that writes a turn otherwise than its prompt does,
       at the end and without an end; and one that marks them. */
    static const char *const templates[] = {
        "{% macro f(a, b='x') %}{{ a ~ b }}{% for i in range(3) %}{{ i }}{% endfor %}{{ caller() if caller }}{% "
        "endmacro %}"
        "{% set ns = namespace(t='') %}{% for m in messages if m.role %}{% set ns.t = ns.t + m.content | upper %}"
        "{{ '<|%s|>' % m.role }}{{ m.content.split('e') | join('e') }}<|end|>\n{% endfor %}{% if add_generation_prompt "
        "%}"
        "<|assistant|>{% else %}{{ eos_token }}{% endif %}"
        "{% set d %}{{ f(1, b='{:>4}'.format(2)) }}{{ strftime_now('%d %b') }}{{ {'a': [1, 2.5], 'b': messages} | "
        "tojson(indent=2) }}"
        "{{ messages | map(attribute='role') | list | sort | unique | join }}{{ ns.t | replace('A', 'bb') | indent | "
        "trim }}"
        "{% call f(1) %}in{% endcall %}{{ {1: 2, 2: 3, 3: 4, 4: 5, 5: 6, 6: 7, 7: 8, 8: 9, 9: 10} | dictsort }}{% "
        "endset %}",
        ("{% set ns = namespace(t='') %}{% for m in messages %}{% set ns.t = ns.t ~ '<|' ~ m.role ~ '|>' ~ m.content %}"
         "{% endfor %}{% if add_generation_prompt %}{% set ns.t = ns.t + '<|assistant|><think>' %}"
         "{% else %}{% set ns.t = ns.t + '<|end|>' %}{% endif %}{{ ns.t }}"),
        ("{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}"
         "{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}")};
    char path[sizeof folder + 32];
    pl_error err = {0};
    json_t *messages = json_pack("[s, [{s:s, s:s}, {s:s, s:s}, {s:s, s:s}, {s:s, s:s}]]", "2026-01-15T12:00:00", "role",
        "user", "content", "Hello there", "role", "assistant", "content", "Yes", "role", "user", "content", "More",
        "role", "assistant", "content", "No");
    assert_non_null(messages);
    snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    assert_int_equal(pl_file_write(&err, path, config, strlen(config)), 0);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    for (int i = 0; i < PL_COUNT(templates); i++) {
        assert_int_equal(pl_file_write(&err, path, templates[i], strlen(templates[i])), 0);
        assert_true(alloc_fail_run(templates[i], use_chat, messages) >= 20);
    }
    json_decref(messages);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    pl_error err = {0};
    return pl_dir_remove(&err, folder);
}

static int use_config(pl_error *err, void *user)
{
    static const char text[] = "model: m\ndata: [d, e]\nmethod: lora\ndata.fields: {prompt: q}\n"
                               "lora: {targets: [q, k], rank_pattern: {q: 2}, layers: [0, 1], modules_to_save: [h]}\n";
    static char flag[] = "--lora.alpha_pattern", value[] = "q=3";
    char *argv[] = {flag, value};
    const char *positional[2];
    int npositional, rc = 0;
    pl_config config = {0}, back = {0};
    pl_buf out = {0};
    (void)user;
    PL_GO(done, pl_config_open(err, &config));
    PL_GO(done, pl_config_flags(err, &config, PL_CMD_TRAIN, 2, argv, positional, &npositional));
    PL_GO(done, pl_config_parse(err, &config, "run.yaml", text, sizeof text - 1));
    PL_GO(done, pl_config_check(err, &config, PL_CMD_TRAIN));
    PL_GO(done, pl_config_print(err, &config, PL_YAML_RESOLVED, &out));
    PL_GO(done, pl_config_open(err, &back));
    PL_GO(done, pl_config_parse(err, &back, "out/run.yaml", pl_buf_text(&out), out.size));
    PL_GO(done, pl_config_compare(err, &config, &back, "out"));
done:
    pl_buf_free(&out);
    pl_config_close(&back);
    pl_config_close(&config);
    return rc;
}

static void test_config(void **state)
{
    (void)state;
    assert_true(alloc_fail_run("config", use_config, NULL) >= 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_arch),
        cmocka_unit_test(test_devices),
        cmocka_unit_test(test_tokenizer),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_chat),
        cmocka_unit_test(test_config),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
