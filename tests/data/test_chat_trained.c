/* The assistant's part of conversations, found by rendering. */
#include "chat_test.h"

#define SHARED PLAIT_TEST_DIR "/../../shared/data/chat-templates/"

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
/* A header for the assistant at the end, asked for or not. */
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

/* Other ways to go through the messages than a loop over them. */
#define TURN "'<|' ~ m.role ~ '|>' ~ m.content ~ '<|end|>\\n'"
#define PROMPT "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
#define NUMBERS "{% for i in range(messages | length) %}{% set m = messages[i] %}{{ " TURN " }}{% endfor %}" PROMPT
#define PAIRS                                                                                                          \
    "{% for i in range(0, messages | length, 2) %}{{ '[INST]' + messages[i].content + '[/INST]' + "                    \
    "(messages[i + 1].content + '</s>' if messages[i + 1] is defined else '') }}{% endfor %}"
#define MACROS                                                                                                         \
    "{% macro turn(m) %}{{ " TURN " }}{% endmacro %}{% for i in range(messages | length) %}{{ turn(messages[i]) }}"    \
    "{% endfor %}" PROMPT
/* The text is built up first and written at the end. */
#define BUILT                                                                                                          \
    "{% set ns = namespace(out='') %}{% for m in messages %}{% set ns.out = ns.out ~ " TURN " %}{% endfor %}"          \
    "{% if add_generation_prompt %}{% set ns.out = ns.out + '<|assistant|>' %}{% endif %}{{ ns.out }}"
#define BLOCK "{% set all %}{% for m in messages %}{{ " TURN " }}{% endfor %}{% endset %}{{ all | trim }}\n" PROMPT
#define JOINED                                                                                                         \
    "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [" TURN "] %}{% endfor %}"              \
    "{{ ns.l | join }}{{ ''.join(ns.l[:0]) }}" PROMPT
#define MADE                                                                                                           \
    "{% set ns = namespace(l=[]) %}{% for m in messages %}{% set ns.l = ns.l + [{'role': m.role, 'content': "          \
    "m.content | upper}] %}{% endfor %}{% for m in ns.l %}{{ " TURN " }}{% endfor %}" PROMPT
/* Turns without an end of their own: the next one ends them, and the last is closed, if nothing is to be generated. */
#define OPEN_END                                                                                                       \
    "{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"                                        \
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"
/* The end of a turn is written before the next one, and at the end. */
#define BETWEEN                                                                                                        \
    "{% for m in messages %}{{ '<|eom|>' if not loop.first }}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}"       \
    "{{ '<|eom|>' if messages }}" PROMPT
/* The same, but it may as well begin the next turn. */
#define BEHIND "{% for m in messages %}{{ m.role + ':' + m.content }}{% endfor %}{{ '<|x|>' }}" PROMPT
/* A generation prompt at the end, asked for or not. */
#define ALWAYS                                                                                                         \
    "{% for m in messages %}{{ '<|s|><|' + m.role + '|>' + m.content + '<|e|>' }}{% endfor %}"                         \
    "{{ '<|s|><|assistant|><think></think>' }}"
/* The prompt begins the answer, by words that an answer may begin with by chance. */
#define STEPS                                                                                                          \
    "{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content }}{{ '<|end|>' if not loop.last }}{% endfor %}"     \
    "{% if add_generation_prompt %}{{ '<|assistant|>\\nHere are my steps:' }}{% endif %}"
/* Something for the system in front of whatever comes first. */
#define GREETS "{% for m in messages %}{{ '<s>You help.\\n' if loop.first }}{{ " TURN " }}{% endfor %}" PROMPT
/* No prompt behind a turn of the assistant. */
#define NO_PROMPT                                                                                                      \
    "{% for m in messages %}{{ " TURN " }}{% endfor %}{% if add_generation_prompt and messages and messages[-1].role " \
    "!= 'assistant' %}{{ '<|assistant|>' }}{% endif %}"
/* The answers of tools are written within the turn that calls them; a call ends by the token that begins its answer. */
#define INSIDE                                                                                                         \
    "{% for m in messages %}{% if m.role != 'tool' %}{% set n = namespace(a=false) %}{% if not (m.role == "            \
    "'assistant' and loop.previtem.role == 'tool') %}{{ '<|' + m.role + '|>' }}{% endif %}{% for c in "                \
    "m.tool_calls or [] %}{{ '<call>' + c.function.name + '</call>' }}{% endfor %}{% if m.tool_calls %}{% for k in "   \
    "range(loop.index, messages | length) %}{% set t = messages[k] %}{% if t.role == 'tool' and not n.a %}"            \
    "{{ '<answer>' + t.content + '</answer>' }}{% set n.a = true %}{% endif %}{% endfor %}{{ '<answer>' if not n.a }}" \
    "{% else %}{{ m.content + '<|end|>' }}{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt and "          \
    "messages[-1].role != 'tool' %}{{ '<|assistant|>' }}{% endif %}"
#define ONE_CALL                                                                                                       \
    "{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': '', 'tool_calls': [{'function': {'name': "     \
    "'f'}}]}, {'role': 'tool', 'content': 'r'}, {'role': 'assistant', 'content': 'b'}"
#define FORMATTED "{% for m in messages %}{{ '<|%s|>%s<|end|>' % (m.role, m.content) }}\n{% endfor %}" PROMPT
/* Other words before a turn than the prompt's. */
#define FOREIGN                                                                                                        \
    "{% for m in messages %}{{ 'BOT: ' if m.role == 'assistant' else 'YOU: ' }}{{ m.content + ';' }}{% endfor %}"      \
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
#define SILENT "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }};{% endif %}{% endfor %}"
#define BACKWARDS "{% for m in messages[::-1] %}{{ " TURN " }}{% endfor %}"

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
    {"another token at the end of all", RETURNS_ALL, TWO,
        "<|start|>user<|message|>Hi<|end|><|start|>assistant{{<|message|>Hello<|end|>}}<|start|>user<|message|>More<|"
        "end|><|start|>assistant{{<|message|>1, 2<|return|>}}"},
    {"a header at the end", HEADER, ONE,
        "<|START|><|user|>Hi<|END|><|START|><|assistant|>{{Hello<|END|>}}<|START|><|assistant|>"},
    {"a header at the end of two turns", HEADER, TWO,
        "<|START|><|user|>Hi<|END|><|START|><|assistant|>{{Hello<|END|>}}<|START|><|user|>More<|END|><|START|>"
        "<|assistant|>{{1, 2<|END|>}}<|START|><|assistant|>"},
    {"content written twice", TWICE, ONE, NULL},
    {"a call without content, before a later question's tools", TOOLS_LAST, CALL,
        "<s>[INST]a[/INST]{{[CALL]f</s>}}[RESULT]r[/RESULT]{{b</s>}}[TOOLS][INST]c[/INST]{{d</s>}}"},
    {"a call that is told once more at the end", TOOLS_LAST CALL_MOVES, CALL,
        "<s>[INST]a[/INST]{{[CALL]f</s>}}[RESULT]r[/RESULT]{{b</s>}}[TOOLS][INST]c[/INST]{{d</s>}}f"},
    {"messages by number", NUMBERS, TWO,
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|user|>More<|end|>\n<|assistant|>{{1, 2<|end|>}}\n"},
    {"two messages at a time", PAIRS, TWO, "[INST]Hi[/INST]{{Hello</s>}}[INST]More[/INST]{{1, 2</s>}}"},
    {"a macro for a message", MACROS, TWO,
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|user|>More<|end|>\n<|assistant|>{{1, 2<|end|>}}\n"},
    {"a text that is built up", BUILT, TWO,
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|user|>More<|end|>\n<|assistant|>{{1, 2<|end|>}}\n"},
    {"a block that is trimmed", BLOCK, TWO,
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|user|>More<|end|>\n<|assistant|>{{1, 2<|end|>}}\n"},
    {"a list that is joined", JOINED, TWO,
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|user|>More<|end|>\n<|assistant|>{{1, 2<|end|>}}\n"},
    {"messages that the template makes", MADE, ONE, "<|user|>HI<|end|>\n<|assistant|>{{HELLO<|end|>}}\n"},
    /* A formatted text is not known to end by words of the template, so that the line break is the turn's, too. */
    {"formatted", FORMATTED, ONE, "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>\n}}"},
    {"turns without an end", OPEN_END, TWO, "<|user|>Hi<|assistant|>{{Hello}}<|user|>More<|assistant|>{{1, 2</s>}}"},
    {"ends between turns", BETWEEN, TWO,
        "<|user|>Hi<|eom|><|assistant|>{{Hello<|eom|>}}<|user|>More<|eom|><|assistant|>{{1, 2<|eom|>}}"},
    {"a token that may be an end", BEHIND, ONE, NULL},
    {"a prompt always", ALWAYS, TWO,
        "<|s|><|user|>Hi<|e|><|s|><|assistant|>{{Hello<|e|>}}<|s|><|user|>More<|e|><|s|><|assistant|>{{1, 2<|e|>}}<|s|>"
        "<|assistant|><think></think>"},
    {"a prompt that begins the answer", STEPS, TWO,
        "<|user|>\nHi<|end|><|assistant|>\n{{Hello<|end|>}}<|user|>\nMore<|end|><|assistant|>\n{{1, 2}}"},
    {"the system before the assistant", GREETS, "{'role': 'assistant', 'content': 'A'}, " ONE,
        "<s>You help.\n<|assistant|>{{A<|end|>}}\n<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n"},
    {"no prompt behind the assistant", NO_PROMPT, ONE ", {'role': 'assistant', 'content': 'And'}",
        "<|user|>Hi<|end|>\n<|assistant|>{{Hello<|end|>}}\n<|assistant|>{{And<|end|>}}\n"},
    {"answers inside of turns", INSIDE, ONE_CALL,
        "<|user|>a<|end|><|assistant|>{{<call>f</call><answer>}}r</answer>{{b<|end|>}}"},
    {"other words than the prompt's", FOREIGN, ONE, NULL},
    {"nothing of the assistant's", SILENT, ONE, NULL},
    {"the last message first", BACKWARDS, TWO, NULL},
    {"no tokens at all", PLAIN, TWO, "User: Hi\n\nAssistant:{{ Hello\n\n}}User: More\n\nAssistant:{{ 1, 2\n\n}}"},
};

/* The text with the spans between `open` and `close`. */
static void mark(const pl_buf *text, const pl_spans *spans, const char *open, const char *close, pl_buf *out)
{
    pl_error err = {0};
    size_t at = 0;
    for (size_t i = 0; i < spans->count; i++) {
        assert_true(spans->items[i].begin >= at && spans->items[i].end > spans->items[i].begin &&
                    spans->items[i].end <= text->size);
        assert_int_equal(pl_buf_append(&err, out, text->data + at, spans->items[i].begin - at), 0);
        assert_int_equal(pl_buf_puts(&err, out, open), 0);
        assert_int_equal(
            pl_buf_append(&err, out, text->data + spans->items[i].begin, spans->items[i].end - spans->items[i].begin),
            0);
        assert_int_equal(pl_buf_puts(&err, out, close), 0);
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
        mark(&text, &spans, "{{", "}}", &marked);
        if (c->marked && strcmp(pl_buf_text(&marked), c->marked) != 0)
            fail_msg("%s:\n%s\nwas expected, not\n%s", c->name, c->marked, pl_buf_text(&marked));
        if (!c->marked && rc != PL_EUNSUPPORTED) fail_msg("%s: should not be told: %s", c->name, pl_buf_text(&marked));
        if (c->marked) {
            assert_int_equal(pl_chat_render(&err, chat, messages, NULL, false, &plain), 0);
            assert_string_equal(pl_buf_text(&plain), pl_buf_text(&text));
        } else {
            assert_non_null(strstr(err.message, "message "));
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

/* What transformers' return_assistant_tokens_mask trains of templates that mark it. */
static void test_generation(void **state)
{
    (void)state;
    static const char path[] = PLAIT_TEST_DIR "/golden/generation.json";
    pl_error err = {0};
    json_t *golden = NULL, *c;
    size_t i;
    if (pl_json_read(&err, path, &golden) < 0) fail_msg("%s", err.message);
    json_array_foreach(golden, i, c)
    {
        const char *template = json_string_value(json_object_get(c, "template"));
        pl_chat *chat = NULL;
        pl_buf text = {0}, marked = {0};
        pl_spans spans = {0};
        if (pl_chat_from_text(&err, "golden", template, strlen(template), NULL, &chat) < 0 ||
            pl_chat_render_trained(&err, chat, json_object_get(c, "messages"), NULL, &text, &spans) < 0)
            fail_msg("%s", err.message);
        mark(&text, &spans, "\u27e6", "\u27e7", &marked);
        assert_string_equal(pl_buf_text(&marked), json_string_value(json_object_get(c, "marked")));
        pl_buf_free(&text);
        pl_buf_free(&marked);
        pl_spans_free(&spans);
        pl_chat_free(chat);
    }
    assert_int_equal(i, 16);
    json_decref(golden);
}

/* ---- the models' own templates ---- */

typedef struct model_corpus {
    json_t *conversations, *golden;
    int told, by_prompt; /* conversations that are trained, and turns that could be found by the prompt alone too */
    bool marked;         /* the template says itself what is trained */
} model_corpus;

static json_t *first_messages(const json_t *messages, size_t count)
{
    json_t *out = json_array();
    for (size_t i = 0; i < count; i++) json_array_append(out, json_array_get(messages, i));
    return out;
}

static bool is_role(const json_t *messages, size_t i, const char *role)
{
    const char *its = json_string_value(json_object_get(json_array_get(messages, i), "role"));
    return its && strcmp(its, role) == 0;
}

static bool begins(const pl_buf *text, const pl_buf *with, size_t size)
{
    return size <= text->size && memcmp(pl_buf_text(text), pl_buf_text(with), size) == 0;
}

/* Where the conversation up to the generation prompt begins the one up to the turn, and that one the whole, there is
   nothing to find out: what is added is the turn. Behind the last turn, or if the template leaves tools' answers
   out, there may be more, so that only its beginning is sure. */
static void check_by_prompt(const char *name, const pl_chat *chat, const json_t *messages, const json_t *tools,
    const pl_buf *text, const pl_spans *spans, model_corpus *corpus)
{
    size_t count = json_array_size(messages);
    for (size_t i = 0; i < count; i++) {
        /* Turns in a row may touch, and some templates write nothing before the second. */
        if (!is_role(messages, i, "assistant") || is_role(messages, i - 1, "assistant") ||
            is_role(messages, i + 1, "assistant"))
            continue;
        pl_error err = {0};
        pl_buf before = {0}, upto = {0};
        json_t *some = first_messages(messages, i), *more = first_messages(messages, i + 1);
        bool known = i > 0 && pl_chat_render(&err, chat, some, tools, true, &before) == 0 &&
                     pl_chat_render(&err, chat, more, tools, false, &upto) == 0 && begins(&upto, &before, before.size);
        size_t least = upto.size;
        while (known && least > before.size && strchr(" \n", upto.data[least - 1])) least--;
        if (known && least > before.size && begins(text, &upto, least)) {
            bool found = false, to_user = is_role(messages, i + 1, "user");
            for (size_t k = 0; k < spans->count; k++)
                found = found || (spans->items[k].begin == before.size &&
                                     (!to_user || (spans->items[k].end >= least && spans->items[k].end <= upto.size)));
            if (!found) fail_msg("%s: message %zu is not what is added to its prompt", name, i);
            corpus->by_prompt++;
        }
        json_decref(some);
        json_decref(more);
        pl_buf_free(&before);
        pl_buf_free(&upto);
    }
}

/* The trained texts of a conversation; an error's beginning where it cannot be told; NULL where the template refuses
 * it. */
static json_t *trained_texts(const char *name, const pl_chat *chat, const json_t *conversation, model_corpus *corpus)
{
    const json_t *messages = json_object_get(conversation, "messages"), *tools = json_object_get(conversation, "tools");
    pl_error err = {0};
    pl_buf text = {0};
    pl_spans spans = {0};
    json_t *out = NULL;
    if (pl_chat_render_trained(&err, chat, messages, tools, &text, &spans) == 0) {
        out = json_array();
        for (size_t i = 0; i < spans.count; i++)
            json_array_append_new(
                out, json_stringn(text.data + spans.items[i].begin, spans.items[i].end - spans.items[i].begin));
        corpus->told++;
        if (!corpus->marked) check_by_prompt(name, chat, messages, tools, &text, &spans, corpus);
    } else if (err.code == PL_EUNSUPPORTED && !strstr(err.message, "is not supported")) {
        out = json_string("cannot be told");
    }
    pl_buf_free(&text);
    pl_spans_free(&spans);
    return out;
}

/* Sets in `out` what is trained of every conversation by the template of a file. */
static void train_file(const char *file, model_corpus *corpus, json_t *out)
{
    pl_error err = {0};
    pl_chat *chat = NULL;
    pl_buf text = {0};
    char path[512], name[512];
    const char *conversation;
    json_t *c, *special = parse("{'bos_token': '<s>', 'eos_token': '</s>'}"), *now = json_string("2026-01-15T12:00:00"),
               *texts = json_object();
    snprintf(path, sizeof path, "%s%s", SHARED, file);
    if (pl_file_read(&err, path, &text) < 0 ||
        pl_chat_from_text(&err, file, pl_buf_text(&text), text.size, special, &chat) < 0 ||
        pl_chat_set(&err, chat, "strftime_now", now) < 0)
        fail_msg("%s", err.message);
    corpus->marked = strstr(pl_buf_text(&text), "endgeneration") != NULL;
    json_object_foreach(corpus->conversations, conversation, c)
    {
        snprintf(name, sizeof name, "%s: %s", file, conversation);
        json_t *trained = trained_texts(name, chat, c, corpus);
        if (trained) json_object_set_new(texts, conversation, trained);
    }
    json_object_set_new(out, file, texts);
    pl_chat_free(chat);
    pl_buf_free(&text);
    json_decref(special);
    json_decref(now);
}

static const char *const golden_path = PLAIT_TEST_DIR "/data/chat/trained.json";

static void compare(const char *file, const json_t *expected, const json_t *got)
{
    const char *conversation;
    json_t *texts;
    json_object_foreach((json_t *)expected, conversation, texts)
    {
        const json_t *other = json_object_get(got, conversation);
        if (json_equal(texts, other)) continue;
        char *a = json_dumps(texts, JSON_ENCODE_ANY), *b = json_dumps(other ? other : json_null(), JSON_ENCODE_ANY);
        fail_msg("%s: %s: %s was expected to be trained, not %s", file, conversation, a, b);
    }
    assert_int_equal(json_object_size(expected), json_object_size(got));
}

static void test_models(void **state)
{
    pl_error err = {0};
    model_corpus corpus = {0};
    const char *file;
    json_t *expected, *got = json_object();
    if (!pl_file_exists(SHARED "README.md")) {
        print_message("no ../shared here: the models' own templates are not tested\n");
        skip();
    }
    if (pl_json_read(&err, PLAIT_TEST_DIR "/data/chat/conversations.json", &corpus.conversations) < 0 ||
        pl_json_read(&err, golden_path, &corpus.golden) < 0)
        fail_msg("%s", err.message);
    json_object_foreach(corpus.golden, file, expected) train_file(file, &corpus, got);
    if (*state) {
        assert_int_equal(json_dump_file(got, golden_path, JSON_INDENT(1) | JSON_ENSURE_ASCII), 0);
    } else {
        json_object_foreach(corpus.golden, file, expected) compare(file, expected, json_object_get(got, file));
    }
    print_message("%d conversations, %d turns that the prompt alone finds\n", corpus.told, corpus.by_prompt);
    assert_int_equal(json_object_size(corpus.golden), 91);
    assert_true(corpus.by_prompt > 2000);
    json_decref(got);
    json_decref(corpus.golden);
    json_decref(corpus.conversations);
}

/* `--write` makes data/chat/trained.json again, of the templates that it names. */
int main(int argc, char **argv)
{
    bool write = argc > 1 && strcmp(argv[1], "--write") == 0;
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_trained), cmocka_unit_test(test_generation),
        cmocka_unit_test_prestate(test_models, write ? argv[1] : NULL)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
