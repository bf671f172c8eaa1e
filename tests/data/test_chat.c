/* A model's chat template, found in its folder with its special tokens. */
#include "chat_test.h"

#include <unistd.h>

static void put(const char *folder, const char *name, const char *text)
{
    pl_error err = {0};
    char path[256];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (pl_file_write(&err, path, text, strlen(text)) < 0) fail_msg("%s", err.message);
}

/* What the folder's template makes of one message, or its error. */
static void check_folder(const char *folder, const char *tools_text, const char *expected)
{
    pl_error err = {0};
    pl_chat *chat = NULL;
    pl_buf out = {0};
    json_t *messages = conversation("{'role': 'user', 'content': 'Hi'}"),
           *tools = tools_text ? parse(tools_text) : NULL;
    int rc = pl_chat_open(&err, folder, &chat);
    if (rc == 0 && !chat)
        rc = pl_buf_puts(&err, &out, "none");
    else if (rc == 0)
        rc = pl_chat_render(&err, chat, messages, tools, true, &out);
    const char *got = rc < 0 ? err.message : pl_buf_text(&out);
    if (!strstr(got, expected)) fail_msg("%s was expected, not: %s", expected, got);
    json_decref(messages);
    json_decref(tools);
    pl_buf_free(&out);
    pl_chat_free(chat);
}

static void test_folder(void **state)
{
    (void)state;
    pl_error err = {0};
    char folder[] = "/tmp/plait-chat-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    check_folder(folder, NULL, "none");
    put(folder, "tokenizer_config.json", "{\"bos_token\": null, \"eos_token\": \"</s>\"}");
    check_folder(folder, NULL, "none");
    put(folder, "chat_template.json",
        "{\"chat_template\": \"json {{ bos_token }}{{ eos_token }} {{ tools is none }} {{ documents is none }}\"}");
    put(folder, "special_tokens_map.json",
        "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": \"not this\", \"additional_special_tokens\": "
        "[\"<x>\"]}");
    check_folder(folder, NULL, "json <s></s> True True");
    put(folder, "tokenizer_config.json",
        "{\"eos_token\": {\"content\": \"<end>\"}, \"chat_template\": \"config {{ eos_token }} {{ "
        "additional_special_tokens[0] }}\"}");
    check_folder(folder, NULL, "config <end> <x>");
    put(folder, "tokenizer_config.json",
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T{{ tools | length }}\"}, {\"name\": "
        "\"default\", \"template\": \"D{{ messages[0].content }}\"}]}");
    check_folder(folder, NULL, "DHi");
    check_folder(folder, "[{}, {}]", "T2");
    put(folder, "chat_template.jinja", "file {{ add_generation_prompt }}");
    check_folder(folder, NULL, "file True");
    put(folder, "chat_template.jinja", "\n{{ 1 | nope }}");
    check_folder(folder, NULL, "chat_template.jinja:2: the filter 'nope' is not supported");
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    assert_int_equal(unlink(path), 0);
    put(folder, "tokenizer_config.json", "{\"chat_template\": \"a\\n{% x %}\"}");
    check_folder(folder, NULL, "tokenizer_config.json: chat_template:2: the tag {% x %} is not supported");
    put(folder, "tokenizer_config.json", "{\"chat_template\": 3}");
    check_folder(folder, NULL, "chat_template is a whole number");
    put(folder, "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"\"}]}");
    check_folder(folder, NULL, "none is named \"default\"");
    put(folder, "tokenizer_config.json", "{\"chat_template\": [3]}");
    check_folder(folder, NULL, "chat_template[0] needs a name and a template");
    put(folder, "tokenizer_config.json", "[1]");
    check_folder(folder, NULL, "tokenizer_config.json: is a list; an object was expected");
    assert_int_equal(pl_dir_remove(&err, folder), 0);
}

/* The template of a file gets the folder's tokens: those that its files name, else the class's own. */
static void test_file(void **state)
{
    (void)state;
    static const struct {
        const char *config, *map, *model, *expected;
    } given[] = {{"{}", NULL, "{\"model_type\": \"llama\"}", "|||"},
        {"{\"bos_token\": \"<b>\", \"eos_token\": {\"content\": \"<e>\"}}", "{\"pad_token\": \"<p>\"}", NULL,
            "<b>|<e>|<p>|"},
        {NULL, NULL, "{\"model_type\": \"gpt2\"}", "<|endoftext|>|<|endoftext|>||"},
        {"{\"bos_token\": null}", NULL, "{\"model_type\": \"gpt2\"}", "|<|endoftext|>||"},
        {"{\"tokenizer_class\": \"Qwen2TokenizerFast\", \"eos_token\": \"<|im_end|>\"}", NULL,
            "{\"model_type\": \"gpt2\"}", "|<|im_end|>|<|endoftext|>|"},
        {"{\"tokenizer_class\": \"GemmaTokenizer\"}", NULL, NULL, "<bos>|<eos>|<pad>|"},
        {"{\"tokenizer_class\": \"GPT2TokenizerX\"}", NULL, "{\"model_type\": \"gpt2\"}", "|||"}};
    for (int i = 0; i < PL_COUNT(given); i++) {
        pl_error err = {0};
        pl_chat *chat;
        pl_buf out = {0};
        char folder[] = "/tmp/plait-chat-XXXXXX", path[64];
        json_t *messages = json_array();
        assert_non_null(mkdtemp(folder));
        /* The folder's own template is not asked. */
        put(folder, "chat_template.jinja", "{% wrong %}");
        put(folder, "other.jinja", "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|");
        if (given[i].config) put(folder, "tokenizer_config.json", given[i].config);
        if (given[i].map) put(folder, "special_tokens_map.json", given[i].map);
        if (given[i].model) put(folder, "config.json", given[i].model);
        snprintf(path, sizeof path, "%s/other.jinja", folder);
        if (pl_chat_from_file(&err, folder, path, &chat) < 0) fail_msg("%s", err.message);
        assert_int_equal(pl_chat_render(&err, chat, messages, NULL, false, &out), 0);
        assert_string_equal(pl_buf_text(&out), given[i].expected);
        pl_chat_free(chat);
        pl_buf_free(&out);
        json_decref(messages);
        snprintf(path, sizeof path, "%s/none.jinja", folder);
        assert_int_equal(pl_chat_from_file(&err, folder, path, &chat), PL_ENOENT);
        assert_null(chat);
        pl_error_clear(&err);
        assert_int_equal(pl_dir_remove(&err, folder), 0);
    }
}

static void test_variables(void **state)
{
    (void)state;
    static const char text[] = "{{ enable_thinking }} {{ strftime_now('%d %b %Y') }}";
    pl_error err = {0};
    pl_chat *chat = NULL;
    pl_buf out = {0};
    json_t *messages = json_array(), *object = json_object(), *now = json_string("2024-02-29T00:00:00"),
           *no = json_false();
    assert_int_equal(pl_chat_from_text(&err, "t", text, strlen(text), NULL, &chat), 0);
    assert_int_equal(pl_chat_set(&err, chat, "enable_thinking", no), 0);
    assert_int_equal(pl_chat_set(&err, chat, "strftime_now", now), 0);
    assert_int_equal(pl_chat_render(&err, chat, messages, NULL, false, &out), 0);
    assert_string_equal(pl_buf_text(&out), "False 29 Feb 2024");
    assert_int_equal(pl_chat_render(&err, chat, object, NULL, false, &out), PL_EINPUT);
    assert_string_equal(err.message, "t: messages are an object; a list was expected");
    pl_chat_free(chat);
    pl_buf_free(&out);
    json_decref(messages);
    json_decref(object);
    json_decref(now);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_folder), cmocka_unit_test(test_file), cmocka_unit_test(test_variables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
