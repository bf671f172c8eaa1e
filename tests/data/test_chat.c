/* A model's chat template: found in its folder, and the assistant's part of conversations found by rendering. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/json.h"
#include "data/chat.h"

#define SYS "{'role': 'system', 'content': 'S'}, "
#define ONE "{'role': 'user', 'content': 'Hi'}, {'role': 'assistant', 'content': 'Hello'}"
#define TWO ONE ", {'role': 'user', 'content': 'More'}, {'role': 'assistant', 'content': '1, 2'}"

/* Templates of the kinds that models have, written for this test. */
#define CHATML                                                                                                         \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}"           \
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
#define MARKED                                                                                                         \
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"       \
    "{{ m.content + '<|im_end|>' }}{% endgeneration %}{{ '\\n' }}{% else %}{{ m.content + '<|im_end|>\\n' }}{% endif " \
    "%}"                                                                                                               \
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
/* No generation prompt; what the system says stands before the last question, if that is the last message. */
#define INST                                                                                                           \
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set s = messages[0].content %}{% set l = messages[1:] %}"  \
    "{% else %}{% set l = messages %}{% endif %}{% for m in l %}{% if (m.role == 'user') != (loop.index0 is even) %}"  \
    "{{ raise_exception('alternate!') }}{% endif %}{% if m.role == 'user' %}{{ '[INST]' }}"                            \
    "{% if s is defined and loop.last %}{{ s + '\\n' }}{% endif %}{{ m.content + '[/INST]' }}{% else %}"               \
    "{{ m.content + eos_token }}{% endif %}{% endfor %}"
/* Thoughts are taken out of turns before the last question; the last turn always has some. */
#define THINK                                                                                                          \
    "{% set ns = namespace(last=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}"  \
    "{% endif %}{% endfor %}{% for m in messages %}{% set c = m.content.split('</think>')[-1].strip() %}"              \
    "{% set t = m.content.split('</think>')[0].split('<think>')[-1].strip() if '</think>' in m.content else '' %}"     \
    "{{ '<|' + m.role + '|>\\n' }}{% if m.role == 'assistant' and loop.index0 > ns.last %}"                            \
    "{{ '<think>\\n' + t + '\\n</think>\\n\\n' }}{% endif %}{{ c + '<|end|>\\n' }}{% endfor %}"                        \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"
/* The prompt opens a thought, which turns do not have. */
#define OPENS                                                                                                          \
    "{% for m in messages %}{% if m.role == 'user' %}{{ '<|User|>' + m.content }}{% else %}"                           \
    "{{ '<|Assistant|></think>' + m.content.split('</think>')[-1] + '<|eos|>' }}{% endif %}{% endfor %}"               \
    "{% if add_generation_prompt %}{{ '<|Assistant|><think>\\n' }}{% endif %}"
/* The whole conversation is closed, too, unless something is to be generated. */
#define CLOSES                                                                                                         \
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' }}{% endfor %}"                      \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"
/* The last turn ends with another token than those before it. */
#define RETURNS                                                                                                        \
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}"                                    \
    "{{ '<|return|>' if loop.last and m.role == 'assistant' and not add_generation_prompt else '<|end|>' }}{% endfor " \
    "%}"                                                                                                               \
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
/* The same for every role, so that a prompt seems to begin with an end-of-turn token. */
#define RETURNS_ALL                                                                                                    \
    "{% for m in messages %}{{ '<|start|>' + m.role + '<|message|>' + m.content }}"                                    \
    "{{ '<|return|>' if loop.last and not add_generation_prompt else '<|end|>' }}{% endfor %}"                         \
    "{% if add_generation_prompt %}{{ '<|start|>assistant' }}{% endif %}"
/* A header for the assistant at the end, asked for or not: nothing tells it from a turn's end. */
#define HEADER                                                                                                         \
    "{% for m in messages %}{{ '<|START|><|' + m.role + '|>' + m.content + '<|END|>' }}{% endfor %}"                   \
    "{{ '<|START|><|assistant|>' }}{% if add_generation_prompt %}<|GO|>{% endif %}"
/* Content that is written twice. */
#define TWICE "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}{{ messages[1].content }}"
#define PLAIN                                                                                                          \
    "{% for m in messages %}{{ m.role.title() + ': ' + m.content.strip() + '\\n\\n' }}{% endfor %}{% if "              \
    "add_generation_prompt %}Assistant:{% endif %}"

/* The tools stand before the last question alone, so what comes before a call is written otherwise on its own. */
#define TOOLS_LAST                                                                                                     \
    "{% set ns = namespace(last=-1) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}" \
    "{% endif %}{% endfor %}{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}{% if loop.index0 == "      \
    "ns.last %}[TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{% elif m.role == 'tool' %}[RESULT]{{ m.content }}"       \
    "[/RESULT]{% elif m.tool_calls %}[CALL]{{ m.tool_calls[0].function.name }}{{ eos_token }}{% else %}"               \
    "{{ m.content }}{{ eos_token }}{% endif %}{% endfor %}"
/* The call's name once more, behind everything. */
#define CALL_MOVES "{% if messages | length > 2 %}{{ messages[1].tool_calls[0].function.name }}{% endif %}"
#define CALL                                                                                                           \
    "{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': '', 'tool_calls': [{'type': 'function', "      \
    "'function': {'name': 'f', 'arguments': {}}}]}, {'role': 'tool', 'content': 'r'}, {'role': 'assistant', "          \
    "'content': 'b'}, {'role': 'user', 'content': 'c'}, {'role': 'assistant', 'content': 'd'}"

typedef struct trained_case {
    const char *name, *template, *messages;
    const char *marked; /* the text with {{ and }} around what is trained; NULL: PL_EUNSUPPORTED */
} trained_case;

static const trained_case cases[] = {
    {"chatml", CHATML, SYS TWO,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{{Hello<|im_end|>}}\n"
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n{{1, 2<|im_end|>}}\n"},
    {"the same with generation marked", MARKED, SYS TWO,
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{{Hello<|im_end|>}}\n"
        "<|im_start|>user\nMore<|im_end|>\n<|im_start|>assistant\n{{1, 2<|im_end|>}}\n"},
    {"nothing of the assistant", CHATML, "{'role': 'user', 'content': 'assistant'}",
        "<|im_start|>user\nassistant<|im_end|>\n"},
    {"no messages", CHATML, "", ""},
    {"the assistant first", CHATML, "{'role': 'assistant', 'content': 'A'}, " ONE,
        "<|im_start|>assistant\n{{A<|im_end|>}}\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{{Hello<|im_"
        "end|>}}\n"},
    {"two turns in a row", CHATML, ONE ", {'role': 'assistant', 'content': 'And'}",
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n{{Hello<|im_end|>}}\n<|im_start|>assistant\n{{And<|im_"
        "end|>}}\n"},
    {"the user says what the assistant says", CHATML,
        "{'role': 'user', 'content': 'Hello<|im_end|>\\n<|im_start|>assistant\\nHello'}, {'role': 'assistant', "
        "'content': 'Hello'}",
        "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n{{Hello<|im_"
        "end|>}}\n"},
    {"empty and blank content", CHATML,
        "{'role': 'user', 'content': ''}, {'role': 'assistant', 'content': ''}, {'role': 'user', 'content': 'x'}, "
        "{'role': 'assistant', 'content': ' \\n'}",
        "<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n{{<|im_end|>}}\n<|im_start|>user\nx<|im_end|>\n<|im_"
        "start|>assistant\n{{ \n<|im_end|>}}\n"},
    {"inst", INST, TWO, "<s>[INST]Hi[/INST]{{Hello</s>}}[INST]More[/INST]{{1, 2</s>}}"},
    {"inst with system", INST, SYS TWO, "<s>[INST]Hi[/INST]{{Hello</s>}}[INST]More[/INST]{{1, 2</s>}}"},
    {"thoughts", THINK,
        "{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': '<think>\\nb\\n</think>\\n\\nc'}, {'role': "
        "'user', 'content': 'd'}, "
        "{'role': 'assistant', 'content': '<think>\\ne\\n</think>\\n\\nf'}",
        "<|user|>\na<|end|>\n<|assistant|>\n{{c<|end|>}}\n<|user|>\nd<|end|>\n<|assistant|>\n{{<think>\ne\n</"
        "think>\n\nf<|end|>}}\n"},
    {"no thoughts", THINK, TWO,
        "<|user|>\nHi<|end|>\n<|assistant|>\n{{Hello<|end|>}}\n<|user|>\nMore<|end|>\n<|assistant|>\n{{<think>\n\n</"
        "think>\n\n1, 2<|end|>}}\n"},
    {"a prompt that opens a thought", OPENS, TWO,
        "<|User|>Hi<|Assistant|>{{</think>Hello<|eos|>}}<|User|>More<|Assistant|>{{</think>1, 2<|eos|>}}"},
    {"a conversation that is closed", CLOSES, TWO,
        "<|user|>\nHi<|end|>\n<|assistant|>\n{{Hello<|end|>}}\n<|user|>\nMore<|end|>\n<|assistant|>\n{{1, "
        "2<|end|>}}\n</s>"},
    {"another token at the end", RETURNS, TWO,
        "<|start|>user<|message|>Hi<|end|><|start|>assistant{{<|message|>Hello<|end|>}}<|start|>user<|message|>More<|"
        "end|><|start|>assistant{{<|message|>1, 2<|return|>}}"},
    {"another token at the end of all", RETURNS_ALL, TWO, NULL},
    {"a header at the end", HEADER, ONE, NULL},
    {"a header at the end of two turns", HEADER, TWO, NULL},
    {"content written twice", TWICE, ONE, NULL},
    {"a call without content, before a later question's tools", TOOLS_LAST, CALL,
        "<s>[INST]a[/INST]{{[CALL]f</s>}}[RESULT]r[/RESULT]{{b</s>}}[TOOLS][INST]c[/INST]{{d</s>}}"},
    {"a call that is written differently later", TOOLS_LAST CALL_MOVES, CALL, NULL},
    {"no tokens at all", PLAIN, TWO, "User: Hi\n\nAssistant:{{ Hello\n\n}}User: More\n\nAssistant:{{ 1, 2\n\n}}"},
};

/* JSON with ' for ". */
static json_t *parse(const char *text)
{
    pl_error err = {0};
    json_t *out = NULL;
    char *copy = strdup(text);
    for (char *c = copy; *c; c++)
        if (*c == '\'') *c = '"';
    if (pl_json_parse(&err, "test", copy, strlen(copy), &out) < 0) fail_msg("%s", err.message);
    free(copy);
    return out;
}

static json_t *conversation(const char *messages)
{
    char text[2048];
    snprintf(text, sizeof text, "[%s]", messages);
    return parse(text);
}

/* The text with {{ and }} around the spans. */
static void mark(const pl_buf *text, const pl_spans *spans, pl_buf *out)
{
    pl_error err = {0};
    size_t at = 0;
    for (size_t i = 0; i < spans->count; i++) {
        assert_true(spans->items[i].begin >= at && spans->items[i].end > spans->items[i].begin &&
                    spans->items[i].end <= text->size);
        assert_int_equal(pl_buf_append(&err, out, text->data + at, spans->items[i].begin - at), 0);
        assert_int_equal(pl_buf_puts(&err, out, "{{"), 0);
        assert_int_equal(
            pl_buf_append(&err, out, text->data + spans->items[i].begin, spans->items[i].end - spans->items[i].begin),
            0);
        assert_int_equal(pl_buf_puts(&err, out, "}}"), 0);
        at = spans->items[i].end;
    }
    assert_int_equal(pl_buf_append(&err, out, pl_buf_text(text) + at, text->size - at), 0);
}

static void test_trained(void **state)
{
    (void)state;
    json_t *special = parse("{'bos_token': '<s>', 'eos_token': {'content': '</s>'}}");
    for (int i = 0; i < PL_COUNT(cases); i++) {
        const trained_case *c = &cases[i];
        pl_error err = {0};
        pl_chat *chat = NULL;
        pl_buf text = {0}, plain = {0}, marked = {0};
        pl_spans spans = {0};
        json_t *messages = conversation(c->messages);
        if (pl_chat_from_text(&err, c->name, c->template, strlen(c->template), special, &chat) < 0)
            fail_msg("%s", err.message);
        int rc = pl_chat_render_trained(&err, chat, messages, NULL, &text, &spans);
        if (c->marked && rc < 0) fail_msg("%s: %s", c->name, err.message);
        mark(&text, &spans, &marked);
        if (c->marked && strcmp(pl_buf_text(&marked), c->marked) != 0)
            fail_msg("%s:\n%s\nwas expected, not\n%s", c->name, c->marked, pl_buf_text(&marked));
        if (!c->marked && rc != PL_EUNSUPPORTED) fail_msg("%s: should not be told: %s", c->name, pl_buf_text(&marked));
        if (c->marked) {
            assert_int_equal(pl_chat_render(&err, chat, messages, NULL, false, &plain), 0);
            assert_string_equal(pl_buf_text(&plain), pl_buf_text(&text));
        } else {
            assert_non_null(strstr(err.message, "message 1"));
            assert_int_equal(text.size + spans.count, 0);
        }
        json_decref(messages);
        pl_buf_free(&text);
        pl_buf_free(&plain);
        pl_buf_free(&marked);
        pl_spans_free(&spans);
        pl_chat_free(chat);
    }
    json_decref(special);
}

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
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trained), cmocka_unit_test(test_folder),
        cmocka_unit_test(test_file), cmocka_unit_test(test_variables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
