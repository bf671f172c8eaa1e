#include "data/dataset.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "data_test.h"
#include "model/batch.h"

static pl_tokenizer *tokenizer;
static pl_chat *chat;
static pl_error err;
static pl_buf logged;

static void log_sink(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    (void)level;
    pl_error none = {0};
    pl_buf_printf(&none, &logged, "%s\n", message);
}
static const pl_log sink = {log_sink, NULL};

/* A data set of some files, with what tests change set beforehand. */
static pl_data_config config;
static pl_data_model model;
static pl_data_file files[8];

static void reset(void)
{
    pl_error_clear(&err);
    pl_buf_clear(&logged);
    config = (pl_data_config){.files = files, .file_count = 1, .sequence_length = 1000};
    model = (pl_data_model){.tokenizer = tokenizer, .vocab = TEST_VOCAB, .eos = TEST_EOS};
    memset(files, 0, sizeof files);
}

static pl_dataset *open_rows(const char *path, int threads)
{
    pl_dataset *d = NULL;
    if (path) files[0].path = path;
    if (pl_dataset_open(&err, &sink, &config, &model, threads, &d) < 0) return NULL;
    return d;
}

static pl_dataset *must_open(const char *path)
{
    pl_dataset *d = open_rows(path, 2);
    if (!d) fail_msg("%s", err.message);
    return d;
}

/* A row as text, what is trained in [ ]. */
static void show(pl_row row, pl_buf *out)
{
    for (int64_t i = 0, end; i < row.n; i = end) {
        bool trained = !row.labels || row.labels[i] != PL_NOT_TRAINED;
        for (end = i; end < row.n && (!row.labels || row.labels[end] != PL_NOT_TRAINED) == trained; end++) {
            if (trained && row.labels && end > 0) assert_int_equal(row.labels[end], row.ids[end]);
        }
        if (trained) pl_buf_putc(&err, out, '[');
        assert_int_equal(pl_tokenizer_decode(&err, tokenizer, row.ids + i, (size_t)(end - i), false, out), 0);
        if (trained) pl_buf_putc(&err, out, ']');
    }
    pl_buf_putc(&err, out, '|');
}

static void show_all(pl_dataset *d, pl_data_part part, pl_buf *out)
{
    pl_buf_clear(out);
    for (int64_t i = 0; i < pl_dataset_rows(d, part); i++) show(pl_dataset_row(d, part, i), out);
}

/* The rows of a .jsonl file with this text. */
static void check_rows(const char *text, pl_data_format format, const char *expected)
{
    pl_buf rows = {0};
    pl_dataset *d = must_open(write_text("rows.jsonl", text));
    show_all(d, PL_DATA_TRAIN, &rows);
    assert_string_equal(pl_buf_text(&rows), expected);
    assert_int_equal(pl_dataset_file_format(d, 0), format);
    pl_dataset_close(d);
    pl_buf_free(&rows);
}

static void check_error(const char *text, int code, const char *message)
{
    pl_dataset *d = open_rows(write_text("bad.jsonl", text), 2);
    if (d) fail_msg("no error, but \"%s\" was expected", message);
    if (!strstr(err.message, message) || err.code != code) {
        fail_msg("\"%s\" was expected, not %s \"%s\"", message, pl_error_name(err.code), err.message);
    }
    pl_error_clear(&err);
}

static void test_formats(void **state)
{
    (void)state;
    reset();
    check_rows("{\"text\": \"hello\"}\n{\"text\": \"a</s>\", \"id\": 3}", PL_DATA_TEXT, "[<s>hello</s>]|[<s>a</s>]|");
    check_rows("{\"prompt\": \"1+1=\", \"completion\": \"2\"}", PL_DATA_COMPLETION, "<s>1+1=[2</s>]|");
    check_rows("{\"prompt\": \"1+1=\", \"response\": \"2\"}", PL_DATA_COMPLETION, "<s>1+1=[2</s>]|");
    check_rows("{\"question\": \"who?\", \"answer\": \"me\"}", PL_DATA_QA, "<s>who?\n[me</s>]|");
    check_rows("{\"query\": \"who?\", \"response\": \"me\", \"history\": []}", PL_DATA_QA, "<s>who?\n[me</s>]|");
    /* The first byte of a token decides: "ll" starts in the prompt, " t" in the answer. */
    check_rows("{\"prompt\": \"al\", \"completion\": \"ly\"}", PL_DATA_COMPLETION, "<s>all[y</s>]|");
    check_rows("{\"prompt\": \"go\", \"completion\": \" to\"}", PL_DATA_COMPLETION, "<s>go[ to</s>]|");
    check_rows("{\"prompt\": \"go \", \"completion\": \"to\"}", PL_DATA_COMPLETION, "<s>go t[o</s>]|");
    check_rows("{\"instruction\": \"Say\", \"input\": \"\", \"output\": \"hm\", \"text\": \"...\"}", PL_DATA_ALPACA,
        "<s>Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nSay\n\n### Response:[hm</s>]|");
    check_rows("{\"instruction\": \"Add\", \"context\": \"1 2\", \"response\": \"3\"}", PL_DATA_ALPACA,
        "<s>Below is an instruction that describes a task, paired with an input that provides further context. Write a "
        "response that appropriately completes the request.\n\n### Instruction:\nAdd\n\n### Input:\n1 2\n\n### "
        "Response:[3</s>]|");
    /* Nothing is added to tokens. */
    check_rows("{\"input_ids\": [65, 66, 67]}", PL_DATA_TOKENS, "[ABC]|");
    check_rows("{\"input_ids\": [65, 66, 67], \"labels\": [-100, -100, 67]}", PL_DATA_TOKENS, "AB[C]|");
    check_rows("{\"input_ids\": [65, 66, 67, 0], \"labels\": [65, 66, 67, -100], \"attention_mask\": [1, true, 1, 0]}",
        PL_DATA_TOKENS, "[ABC]|");
    config.loss = PL_DATA_LOSS_ALL;
    check_rows("{\"prompt\": \"1+1=\", \"completion\": \"2\"}", PL_DATA_COMPLETION, "[<s>1+1=2</s>]|");
    reset();
    model.eos = -1;
    check_rows("{\"text\": \"hello\"}", PL_DATA_TEXT, "[<s>hello]|");
}

#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define ASSISTANT(text) "<|im_start|>assistant\n[" text "<|im_end|>]\n"
#define SYSTEM(text) "<|im_start|>system\n" text "<|im_end|>\n"
#define TOOL(text) "<|im_start|>tool\n" text "<|im_end|>\n"

static void test_chats(void **state)
{
    (void)state;
    reset();
    model.chat = chat;
    check_rows("{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", \"content\": "
               "\"hello\"}]}",
        PL_DATA_MESSAGES, USER("hi") ASSISTANT("hello") "|");
    check_rows(
        "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "
        "\"text\", "
        "\"text\": \"b\"}]}, {\"role\": \"assistant\", \"content\": \"c\", \"loss_weight\": 1.0}, {\"role\": \"user\", "
        "\"content\": \"d\"}, {\"role\": \"assistant\", \"content\": \"e\"}]}",
        PL_DATA_MESSAGES, USER("ab") ASSISTANT("c") USER("d") ASSISTANT("e") "|");
    check_rows(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"add\"}, {\"role\": \"assistant\", \"content\": null, "
        "\"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}]}, "
        "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"is 2\"}], \"tools\": "
        "[{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}",
        PL_DATA_MESSAGES, "<tools 1 f>" USER("add") ASSISTANT("(f {\"x\": 1})") TOOL("2") ASSISTANT("is 2") "|");
    check_rows(
        "{\"system\": \"be good\", \"conversations\": [{\"from\": \"human\", \"value\": \"add\"}, {\"from\": "
        "\"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {\\\"x\\\": 1}}\"}, {\"from\": "
        "\"observation\", \"value\": \"2\"}, {\"from\": \"gpt\", \"value\": \"is 2\"}], \"tools\": \"[{\\\"name\\\": "
        "\\\"f\\\"}]\"}",
        PL_DATA_SHAREGPT,
        "<tools 1 f>" SYSTEM("be good") USER("add") ASSISTANT("(f {\"x\": 1})") TOOL("2") ASSISTANT("is 2") "|");
    check_rows(
        "{\"conversations\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"gpt\", \"content\": \"b\"}]}",
        PL_DATA_SHAREGPT, USER("a") ASSISTANT("b") "|");
    assert_int_equal(logged.size, 0);
    /* What this template does not write is told. */
    check_rows(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
        "\"tools\": [{\"name\": \"f\"}, {\"name\": \"gg\"}]}",
        PL_DATA_MESSAGES, "<tools 2 f>" USER("a") ASSISTANT("b") "|");
    assert_non_null(strstr(pl_buf_text(&logged), "1 conversations have tools or calls"));
    /* Alpaca is a conversation where there is a template; a question and a completion only when asked for. */
    check_rows(
        "{\"instruction\": \"Add\", \"input\": \"1 2\", \"output\": \"3\", \"system\": \"s\", \"history\": [[\"a\", "
        "\"b\"]]}",
        PL_DATA_ALPACA, SYSTEM("s") USER("a") ASSISTANT("b") USER("Add\n1 2") ASSISTANT("3") "|");
    check_rows("{\"question\": \"a\", \"answer\": \"b\"}", PL_DATA_QA, "<s>a\n[b</s>]|");
    config.template = PL_DATA_TEMPLATE_CHAT;
    check_rows("{\"question\": \"a\", \"answer\": \"b\"}", PL_DATA_QA, USER("a") ASSISTANT("b") "|");
    check_rows("{\"prompt\": \"a\", \"completion\": \"b\"}", PL_DATA_COMPLETION, USER("a") ASSISTANT("b") "|");
    pl_buf_clear(&logged);
    check_rows("{\"text\": \"a\"}", PL_DATA_TEXT, "[<s>a</s>]|");
    assert_non_null(strstr(pl_buf_text(&logged), "a chat template is asked for, but"));
    config.loss = PL_DATA_LOSS_ALL;
    check_rows("{\"prompt\": \"a\", \"completion\": \"b\"}", PL_DATA_COMPLETION,
        "[<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n]|");
    config.template = PL_DATA_TEMPLATE_PLAIN;
    config.loss = PL_DATA_LOSS_AUTO;
    check_rows("{\"instruction\": \"Say\", \"output\": \"hm\"}", PL_DATA_ALPACA,
        "<s>Below is an instruction that describes a task. Write a response that appropriately completes the "
        "request.\n\n### Instruction:\nSay\n\n### Response:[hm</s>]|");
}

static void test_chat_errors(void **state)
{
    (void)state;
    reset();
    model.chat = chat;
#define MESSAGES(turns) "\n{\"messages\": [" turns "]}"
#define FROM(turns) "{\"conversations\": [" turns "]}"
    check_error(MESSAGES(""), PL_EINPUT, "bad.jsonl:2: messages is empty");
    check_error("{\"messages\": \"hi\"}", PL_EINPUT, "messages is a string; a list was expected");
    check_error(MESSAGES("7"), PL_EINPUT, "message 1 is a whole number; an object was expected");
    check_error(
        MESSAGES("{\"content\": \"a\"}"), PL_EINPUT, "message 1 has neither role and content nor from and value");
    check_error(MESSAGES("{\"role\": 1, \"content\": \"a\"}"), PL_EINPUT, "role of message 1 is a whole number");
    check_error(MESSAGES("{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\"}"), PL_EINPUT,
        "the content of message 2 is nothing; a string was expected");
    check_error(MESSAGES("{\"role\": \"user\", \"content\": [{\"type\": \"image\", \"url\": \"x\"}]}"), PL_EINPUT,
        "part 1 of the content of message 1 is of type \"image\"");
    check_error(MESSAGES("{\"role\": \"assistant\", \"content\": \"a\", \"train\": false}"), PL_EUNSUPPORTED,
        "train of message 1 asks for a weight of its own");
    check_error(FROM("{\"from\": \"alien\", \"value\": \"a\"}"), PL_EINPUT, "from of message 1 is \"alien\"");
    check_error(FROM("{\"from\": \"human\", \"value\": null}"), PL_EINPUT, "the value of message 1 is null");
    check_error(FROM("{\"from\": \"function_call\", \"value\": \"f(1)\"}"), PL_EINPUT, "the call of message 1 is not");
    check_error("{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"tools\": \"no list\"}", PL_EINPUT,
        "tools is not a list");
    check_error(
        "{\"instruction\": \"a\", \"output\": \"b\", \"history\": [\"a\"]}", PL_EINPUT, "history is not a list of");
    check_error(MESSAGES("{\"role\": \"user\", \"content\": \"no answer\"}"), PL_EINPUT, "no row is left for training");
    reset();
    config.template = PL_DATA_TEMPLATE_CHAT;
    check_error("{\"question\": \"a\", \"answer\": \"b\"}", PL_EINPUT, "or take data.template plain");
}

/* "field=name,field=name" into the config. */
static void name_fields(const char *text)
{
    static char copy[256];
    static const char *fields[8], *names[8];
    config.fields = fields;
    config.names = names;
    config.field_count = 0;
    strcpy(copy, text);
    for (char *item = strtok(copy, ","); item; item = strtok(NULL, ",")) {
        char *equals = strchr(item, '=');
        *equals = 0;
        fields[config.field_count] = item;
        names[config.field_count++] = equals + 1;
    }
}

static void test_names(void **state)
{
    (void)state;
    reset();
    name_fields("question=prompt_text,answer=gold");
    check_rows("{\"prompt_text\": \"a\", \"gold\": \"b\", \"text\": \"c\"}", PL_DATA_QA, "<s>a\n[b</s>]|");
    config.format = PL_DATA_QA;
    check_error("{\"prompt_text\": \"a\"}", PL_EINPUT,
        "bad.jsonl:1: an example of format qa needs the field gold (it has prompt_text)");
    name_fields("text=body");
    check_error("{\"body\": \"a\"}", PL_EUSAGE, "data.fields names text, which data.format qa does not have");
    name_fields("txt=body");
    check_error("{\"body\": \"a\"}", PL_EUSAGE, "no format has a field \"txt\"; the fields are");
    name_fields("text=a,text=b");
    check_error("{\"body\": \"a\"}", PL_EUSAGE, "names text twice");
    reset();
    check_error(
        "{\"query\": \"a\", \"response\": \"b\", \"system\": \"be good\"}", PL_EINPUT, "system has no place in plain");
    name_fields("system=");
    check_rows("{\"query\": \"a\", \"response\": \"b\", \"system\": \"be good\"}", PL_DATA_QA, "<s>a\n[b</s>]|");
    pl_data_format format;
    assert_int_equal(pl_data_format_parse(&err, "sharegpt", &format), 0);
    assert_int_equal(format, PL_DATA_SHAREGPT);
    assert_string_equal(pl_data_format_name(format), "sharegpt");
    assert_int_equal(pl_data_format_parse(&err, "shargpt", &format), PL_EUSAGE);
}

static void test_errors(void **state)
{
    (void)state;
    reset();
    check_error("{\"text\": \"a\"}\n\n{\"text\": \"b\n", PL_EINPUT, "bad.jsonl:3: is not valid JSON");
    check_error("{\"text\": \"a\"}\n{\"text\": \"b\", \"x\": NaN}\n{", PL_EINPUT, "bad.jsonl:2: is not valid JSON");
    check_error("{\"text\": \"a\"}\n{\"text\": \"\xff\"}\n{", PL_EINPUT, "bad.jsonl:2: is not valid JSON");
    check_error("{\"text\": \"a\"}\n[1]\n", PL_EINPUT, "bad.jsonl:2: an example is a list; an object was expected");
    check_error("{\"text\": \"a\"}\n{\"txt\": \"b\"}\n", PL_EINPUT,
        "bad.jsonl:2: an example of format text needs the field text (it has txt)");
    check_error("{\"text\": \"a\"}\n{\"text\": null}\n", PL_EINPUT, "needs the field text, which is null");
    check_error(
        "{\"text\": \"a\"}\n{\"text\": 7}\n", PL_EINPUT, "bad.jsonl:2: text is a whole number; a string was expected");
    check_error("{\"a\": 1, \"b\": 2}", PL_EINPUT, "format cannot be told from the example's fields (it has a, b)");
    check_error("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}", PL_EINPUT, "preference data");
    check_error("", PL_EINPUT, "bad.jsonl: there is no example in it");
    check_error("{\"messages\": []}", PL_EINPUT, "has no chat template");
    check_error(
        "{\"text\": \"\"}\n{\"text\": \"\"}", PL_EINPUT, "no row is left for training: of 2 examples 2 have no token");
    config.template = PL_DATA_TEMPLATE_PLAIN;
    check_error("{\"messages\": []}", PL_EUSAGE, "data.template plain");
    reset();
    config.loss = PL_DATA_LOSS_ANSWERS;
    check_error("{\"text\": \"a\"}", PL_EUSAGE, "no answers");
    reset();
    model.tokenizer = NULL;
    check_error("{\"text\": \"a\"}", PL_EINPUT, "no tokenizer.json");
    reset();
    model.vocab = 100;
    check_error(
        "{\"text\": \"a~b\"}", PL_EINPUT, "bad.jsonl:1: token 0 has the id 258, and the model's vocabulary is 0..99");
    reset();
    model.positions = 4;
    check_error("{\"text\": \"abcdef\"}", PL_EINPUT, "a row for training has 8 tokens, and the model has 4 positions");
    reset();
    config.sequence_length = 1;
    check_error("{\"text\": \"abcdef\"}", PL_EUSAGE, "data.sequence_length is 1");
    reset();
    config.validation_split = 0.5;
    files[0].validation = true;
    check_error("{\"text\": \"abcdef\"}", PL_EUSAGE, "choose one");
    reset();
    assert_null(open_rows(in_folder("none.jsonl"), 1));
    assert_int_equal(err.code, PL_ENOENT);
}

static void test_tokens(void **state)
{
    (void)state;
    reset();
    model.tokenizer = NULL; /* a folder without one */
    check_error("{\"input_ids\": \"a\"}", PL_EINPUT, "input_ids is a string");
    check_error("{\"input_ids\": [[1, 2], [3]]}", PL_EINPUT, "input_ids[0] is a list");
    check_error("{\"input_ids\": [1, 2.5]}", PL_EINPUT, "input_ids[1] is a number");
    check_error("{\"input_ids\": [1, 99999999999]}", PL_EINPUT, "input_ids[1] is out of range");
    check_error("{\"input_ids\": [1, -1]}", PL_EINPUT, "bad.jsonl:1: token 1 has the id -1");
    check_error("{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 262]}", PL_EINPUT, "bad.jsonl:2: token 1 has the id 262");
    check_error("{\"input_ids\": [1, 2], \"labels\": [1]}", PL_EINPUT, "1 labels for 2 input_ids");
    check_error("{\"input_ids\": [1, 2], \"labels\": [1, -1]}", PL_EINPUT, "labels[1] is -1");
    check_error("{\"input_ids\": [1, 2], \"attention_mask\": [0, 1]}", PL_EINPUT, "attention_mask[0] is not 1");
    check_error("{\"input_ids\": [1, 2], \"attention_mask\": [1]}", PL_EINPUT, "attention_mask is not a list");
    check_error("{\"input_ids\": [1, 2], \"position_ids\": [0, 0]}", PL_EINPUT, "position_ids[1] is not 1");
    config.loss = PL_DATA_LOSS_ALL;
    check_error("{\"input_ids\": [1, 2]}", PL_EUSAGE, "labels say what is trained");
    reset();
    /* Labels may be anything; a row's first is never used, and without another one the row goes. */
    pl_dataset *d = must_open(write_text("rows.jsonl", "{\"input_ids\": [1, 2, 3], \"labels\": [9, 8, -100]}\n"
                                                       "{\"input_ids\": [1, 2, 3], \"labels\": [9, -100, -100]}\n"
                                                       "{\"input_ids\": [1], \"labels\": [1]}\n{\"input_ids\": []}\n"
                                                       "{\"input_ids\": [1, 2, 3], \"labels\": [-100, 2, 3]}\n"));
    const pl_data_stats *s = pl_dataset_stats(d, PL_DATA_TRAIN);
    assert_int_equal(s->examples, 5);
    assert_int_equal(s->rows, 2);
    assert_int_equal(s->trained, 3);
    assert_int_equal(s->dropped_untrained, 3);
    pl_row row = pl_dataset_row(d, PL_DATA_TRAIN, 0);
    assert_int_equal(row.labels[1], 8);
    assert_int_equal(row.trained, 1);
    assert_null(pl_dataset_row(d, PL_DATA_TRAIN, 1).labels);
    pl_dataset_close(d);
}

static void test_show(void **state)
{
    (void)state;
    pl_buf text = {0};
    pl_spans trained = {0};
    reset();
    /* A character of three tokens, and a first token that is never a target. */
    pl_dataset *d =
        must_open(write_text("rows.jsonl", "{\"prompt\": \"say \", \"completion\": \"\xe4\xb8\xad!\"}\n{\"text\": 1, "
                                           "\"prompt\": \"\", \"completion\": \"x\"}"));
    assert_int_equal(pl_row_show(&err, tokenizer, pl_dataset_row(d, PL_DATA_TRAIN, 0), &text, &trained), 0);
    assert_string_equal(text.data, "<s>say \xe4\xb8\xad!</s>");
    assert_int_equal(trained.count, 1);
    assert_int_equal(trained.items[0].begin, 7);
    assert_int_equal(trained.items[0].end, text.size);
    assert_int_equal(pl_row_show(&err, tokenizer, pl_dataset_row(d, PL_DATA_TRAIN, 1), &text, &trained), 0);
    assert_string_equal(text.data + trained.items[1].begin, "x</s>");
    pl_dataset_close(d);
    pl_spans_free(&trained);
    pl_buf_free(&text);
}

static void test_overlong(void **state)
{
    (void)state;
    static const char text[] = "{\"text\": \"abcdefghij\"}\n{\"text\": \"xy\"}";
    static const char pairs[] = "{\"prompt\": \"abc\", \"completion\": \"defgh\"}\n"
                                "{\"prompt\": \"abcdefgh\", \"completion\": \"i\"}\n"
                                "{\"prompt\": \"abc\", \"completion\": \"d\"}\n";
    pl_buf rows = {0};
    reset();
    config.sequence_length = 6;
    /* <s>abcdefghij</s> is 12 tokens; the rest of a cut text is not lost. */
    check_rows(text, PL_DATA_TEXT, "[<s>abcde]|[fghij</s>]|[<s>xy</s>]|");
    pl_dataset *d = must_open(write_text("rows.jsonl", pairs));
    const pl_data_stats *s = pl_dataset_stats(d, PL_DATA_TRAIN);
    show_all(d, PL_DATA_TRAIN, &rows);
    assert_string_equal(rows.data, "<s>abc[de]|<s>abc[d</s>]|");
    assert_int_equal(s->cut, 2);
    assert_int_equal(s->dropped_cut, 1);
    assert_int_equal(s->longest, 6);
    assert_int_equal(s->lengths[2], 2);
    pl_dataset_close(d);
    config.overlong = PL_DATA_DROP;
    check_rows(text, PL_DATA_TEXT, "[<s>xy</s>]|");
    d = must_open(write_text("rows.jsonl", pairs));
    s = pl_dataset_stats(d, PL_DATA_TRAIN);
    show_all(d, PL_DATA_TRAIN, &rows);
    assert_string_equal(rows.data, "<s>abc[d</s>]|");
    assert_int_equal(s->dropped_overlong, 2);
    pl_dataset_close(d);
    config.sequence_length = 3;
    check_error(pairs, PL_EINPUT, "and 3 are longer than that");
    config.overlong = PL_DATA_CUT;
    check_error(pairs, PL_EINPUT, "3 have theirs beyond data.sequence_length 3");
    pl_buf_free(&rows);
}

/* Examples of several kinds of length, many enough for several chunks. */
static void make_examples(pl_buf *out, int count)
{
    uint32_t x = 12345;
    pl_buf_clear(out);
    for (int i = 0; i < count; i++) {
        x = x * 1664525 + 1013904223;
        pl_buf_printf(&err, out, "{\"question\": \"what is %u all told?\", \"answer\": \"", x >> 8);
        for (uint32_t k = 0; k < x >> 26; k++) pl_buf_printf(&err, out, "%u to ", k * x);
        pl_buf_puts(&err, out, "\"}\n");
    }
}

static void test_threads(void **state)
{
    (void)state;
    pl_buf text = {0}, one = {0}, many = {0};
    reset();
    make_examples(&text, 3000);
    static const char *const names[] = {"threads.jsonl", "threads.json.gz", "threads.jsonl.zst"};
    for (int i = 0; i < 3; i++) {
        const char *path = write_packed(names[i], text.data, text.size, 2);
        for (int threads = 1; threads <= 7; threads += 3) {
            pl_dataset *d = open_rows(path, threads);
            assert_non_null(d);
            assert_int_equal(pl_dataset_rows(d, PL_DATA_TRAIN), 3000);
            show_all(d, PL_DATA_TRAIN, &many);
            if (one.size == 0) pl_buf_append(&err, &one, many.data, many.size);
            assert_int_equal(one.size, many.size);
            assert_memory_equal(one.data, many.data, one.size);
            pl_dataset_close(d);
        }
    }
    /* The first mistake is the one that is told, whoever meets it. */
    pl_buf_clear(&many);
    for (int i = 0; i < 3000; i++)
        pl_buf_puts(&err, &many, i == 1500 || i == 1501 || i > 2000 ? "{]\n" : "{\"text\": \"a\"}\n");
    for (int threads = 1; threads <= 4; threads++)
        check_error(many.data, PL_EINPUT, "bad.jsonl:1501: is not valid JSON");
    pl_buf_free(&text);
    pl_buf_free(&one);
    pl_buf_free(&many);
}

/* The rows of a text file are the tokens of the whole text, however it is read. */
static void check_text(const pl_buf *text, bool full_rows)
{
    pl_tokens tokens = {0};
    assert_int_equal(pl_tokenizer_encode(&err, tokenizer, pl_buf_text(text), text->size, true, &tokens), 0);
    for (int threads = 1; threads <= 3; threads += 2) {
        size_t at = 0;
        pl_dataset *d = open_rows(write_packed("text.txt.zst", text->data, text->size, 1), threads);
        if (!d) fail_msg("%s", err.message);
        for (int64_t i = 0; i < pl_dataset_rows(d, PL_DATA_TRAIN); i++) {
            pl_row row = pl_dataset_row(d, PL_DATA_TRAIN, i);
            assert_null(row.labels);
            assert_true(row.n == config.sequence_length || i + 1 == pl_dataset_rows(d, PL_DATA_TRAIN));
            for (int64_t k = 0; k < row.n; k++, at++) {
                assert_int_equal(row.ids[k], at < tokens.count ? tokens.ids[at] : TEST_EOS);
            }
        }
        assert_int_equal(at, tokens.count + (full_rows ? 0 : 1));
        pl_dataset_close(d);
    }
    pl_tokens_free(&tokens);
}

static void test_text(void **state)
{
    (void)state;
    pl_buf text = {0};
    reset();
    config.sequence_length = 100;
    pl_buf_puts(&err, &text, "hello there, all of you");
    check_text(&text, false);
    /* 99 bytes, bos and eos: the row of eos alone has no target and is dropped. */
    pl_buf_clear(&text);
    for (int i = 0; text.size < 99; i++) pl_buf_putc(&err, &text, (char)('a' + i % 7));
    check_text(&text, true);
    /* Many windows; no white space in them for long; runs of one merge, whose pairs depend on where they start. */
    pl_buf_clear(&text);
    uint32_t x = 1;
    while (text.size < 900000) {
        x = x * 1664525 + 1013904223;
        size_t run = x >> 30 ? (x >> 20) % 9 : (x >> 16) % 6000;
        for (size_t i = 0; i < run; i++) pl_buf_puts(&err, &text, x & 0x400 ? "l" : "\xe4\xb8\xad");
        pl_buf_puts(&err, &text, x & 0x800 ? " to " : "\n\n");
    }
    check_text(&text, false);
    /* Nothing but one run: neighbours agree on nothing when they start an odd number of bytes apart. */
    pl_buf_clear(&text);
    for (int i = 0; i < 300001; i++) pl_buf_putc(&err, &text, 'l');
    check_text(&text, false);
    pl_buf_free(&text);
    config.format = PL_DATA_QA;
    assert_null(open_rows(write_text("t.txt", "abc"), 1));
    assert_non_null(strstr(err.message, "text file"));
    reset();
    model.vocab = 100;
    assert_null(open_rows(write_text("t.txt", "abc"), 1));
    assert_non_null(strstr(err.message, "another model's"));
    reset();
    assert_null(open_rows(write_text("t.txt", ""), 1));
    assert_non_null(strstr(err.message, "no row is left"));
}

static void test_split(void **state)
{
    (void)state;
    pl_buf text = {0}, all = {0}, train = {0}, validation = {0};
    reset();
    make_examples(&text, 1000);
    const char *path = write_text("split.jsonl", text.data);
    pl_dataset *d = must_open(path);
    show_all(d, PL_DATA_TRAIN, &all);
    pl_dataset_close(d);
    config.validation_split = 0.1;
    d = must_open(path);
    show_all(d, PL_DATA_TRAIN, &train);
    show_all(d, PL_DATA_VALIDATION, &validation);
    int64_t held = pl_dataset_rows(d, PL_DATA_VALIDATION);
    assert_in_range(held, 70, 130);
    assert_int_equal(held + pl_dataset_rows(d, PL_DATA_TRAIN), 1000);
    assert_int_equal(all.size, train.size + validation.size);
    for (char *row = strtok(validation.data, "|"); row; row = strtok(NULL, "|")) {
        assert_non_null(strstr(all.data, row));
        assert_null(strstr(train.data, row));
    }
    pl_dataset_close(d);
    /* More examples behind them change nothing for those that were there. */
    show_all(d = must_open(path), PL_DATA_VALIDATION, &validation);
    pl_dataset_close(d);
    make_examples(&text, 2000);
    d = must_open(write_text("split.jsonl", text.data));
    show_all(d, PL_DATA_VALIDATION, &all);
    assert_memory_equal(all.data, validation.data, validation.size);
    pl_dataset_close(d);
    config.validation_split = 1e-9;
    assert_null(open_rows(path, 1));
    assert_non_null(strstr(err.message, "no row is left for validation"));
    reset();
    config.file_count = 3;
    files[0].path = write_text("one.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"}\n");
    files[1] = (pl_data_file){write_text("two.txt", "held"), true};
    files[2].path = write_text("three.json", "[{\"prompt\": \"c\", \"completion\": \"d\"}]");
    d = must_open(NULL);
    show_all(d, PL_DATA_TRAIN, &train);
    show_all(d, PL_DATA_VALIDATION, &validation);
    assert_string_equal(train.data, "[<s>a</s>]|[<s>b</s>]|<s>c[d</s>]|");
    assert_string_equal(validation.data, "[<s>held</s>]|");
    int64_t first, count;
    pl_dataset_file_rows(d, PL_DATA_TRAIN, 2, &first, &count);
    assert_int_equal(first, 2);
    assert_int_equal(count, 1);
    pl_dataset_file_rows(d, PL_DATA_VALIDATION, 1, &first, &count);
    assert_int_equal(first, 0);
    assert_int_equal(count, 1);
    pl_dataset_close(d);
    pl_buf_free(&text);
    pl_buf_free(&all);
    pl_buf_free(&train);
    pl_buf_free(&validation);
}

static void age(const char *path)
{
    struct timespec times[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Opens with the cache: was it found there, what was logged, and are the rows right? */
static void check_cache(const char *path, bool found, const char *log, const char *rows)
{
    pl_buf shown = {0};
    pl_buf_clear(&logged);
    pl_dataset *d = must_open(path);
    assert_int_equal(pl_dataset_cached(d), found);
    if (!strstr(pl_buf_text(&logged), log)) fail_msg("\"%s\" was expected in \"%s\"", log, pl_buf_text(&logged));
    show_all(d, PL_DATA_TRAIN, &shown);
    assert_string_equal(shown.data, rows);
    pl_dataset_close(d);
    pl_buf_free(&shown);
}

static int count_files(const char *folder)
{
    char command[300];
    int n = -1;
    snprintf(command, sizeof command, "ls %s | wc -l", folder);
    FILE *p = popen(command, "r");
    assert_non_null(p);
    assert_int_equal(fscanf(p, "%d", &n), 1);
    pclose(p);
    return n;
}

static void test_cache(void **state)
{
    (void)state;
    reset();
    config.cache_dir = in_folder("cache/deep");
    const char *path = write_text("c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n");
    check_cache(path, false, "", "[<s>ab</s>]|[<s>cd</s>]|");
    check_cache(path, true, "", "[<s>ab</s>]|[<s>cd</s>]|");
    /* Touched, or written again with the same content: its hash decides. */
    age(path);
    check_cache(path, true, "", "[<s>ab</s>]|[<s>cd</s>]|");
    write_text("c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"cd\"}\n");
    check_cache(path, true, "", "[<s>ab</s>]|[<s>cd</s>]|");
    /* Another content of the same size and time. */
    write_text("c.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"xy\"}\n");
    age(path);
    check_cache(path, false, "c.jsonl has changed", "[<s>ab</s>]|[<s>xy</s>]|");
    check_cache(path, true, "", "[<s>ab</s>]|[<s>xy</s>]|");
    assert_int_equal(count_files(config.cache_dir), 1);
    /* Other settings, another tokenizer's vocabulary: a file of their own. */
    model.eos = -1;
    check_cache(path, false, "", "[<s>ab]|[<s>xy]|");
    config.sequence_length = 2;
    check_cache(path, false, "", "[<s>a]|[<s>x]|");
    check_cache(path, true, "", "[<s>a]|[<s>x]|");
    assert_int_equal(count_files(config.cache_dir), 3);
}

/* A file of the tokenizer's folder is written, and the rows are made again; or what is wrong with it is told. */
static void check_tokenizer_file(const char *data, const char *name, const char *text, const char *rows)
{
    char path[300];
    snprintf(path, sizeof path, "%s/%s", model.tokenizer_folder, name);
    assert_int_equal(pl_file_write(&err, path, text, strlen(text)), 0);
    if (rows) {
        check_cache(data, false, "", rows);
        check_cache(data, true, "", rows);
        return;
    }
    assert_null(open_rows(data, 2));
    assert_int_equal(err.code, PL_EINPUT);
    assert_non_null(strstr(err.message, name));
    pl_error_clear(&err);
}

/* The cache is the same whether a tokenizer is given or where it lies, and knows its files. */
static void test_tokenizer_files(void **state)
{
    (void)state;
    reset();
    config.cache_dir = in_folder("cache-of-files");
    const char *path = write_text("e.jsonl", "{\"text\": \"ab\"}\n");
    check_cache(path, false, "", "[<s>ab</s>]|");
    model.tokenizer = NULL;
    model.tokenizer_folder = test_tokenizer_folder("tokenizer");
    check_cache(path, true, "", "[<s>ab</s>]|");
    config.sequence_length = 500;
    check_cache(path, false, "", "[<s>ab</s>]|");
    check_tokenizer_file(path, "tokenizer_config.json", "{}", "[<s>ab</s>]|");
    check_tokenizer_file(path, "tokenizer_config.json", "{\"eos_token\": \"</s>\"}", "[<s>ab</s>]|");
    check_tokenizer_file(path, "tokenizer_config.json", "[]", NULL);
    check_tokenizer_file(path, "tokenizer.json", "{", NULL);
    assert_int_equal(pl_dir_remove(&err, model.tokenizer_folder), 0);
    assert_null(open_rows(path, 2));
    assert_int_equal(err.code, PL_ENOENT);
    /* Rows that come tokenized need none. */
    pl_error_clear(&err);
    model.tokenizer_folder = NULL;
    check_cache(write_text("i.jsonl", "{\"input_ids\": [97, 98]}\n"), false, "", "[ab]|");
}

/* A cache file with any byte changed, or any of its end missing, is made again and never believed. */
static void test_damaged_cache(void **state)
{
    (void)state;
    char command[300], name[128];
    pl_buf good = {0};
    reset();
    config.cache_dir = in_folder("cache-damaged");
    const char *path = write_text("d.jsonl", "{\"text\": \"ab\"}\n{\"prompt\": \"c\", \"text\": \"d\"}\n");
    check_cache(path, false, "", "[<s>ab</s>]|[<s>d</s>]|");
    snprintf(command, sizeof command, "ls %s", config.cache_dir);
    FILE *p = popen(command, "r");
    assert_int_equal(fscanf(p, "%100s", name), 1);
    pclose(p);
    char file[400];
    snprintf(file, sizeof file, "%s/%s", config.cache_dir, name);
    assert_int_equal(pl_file_read(&err, file, &good), 0);
    for (size_t at = 0; at < good.size; at += 19) {
        good.data[at] ^= 0x40;
        assert_int_equal(pl_file_write(&err, file, good.data, good.size), 0);
        good.data[at] ^= 0x40;
        check_cache(path, false, "tokenized again", "[<s>ab</s>]|[<s>d</s>]|");
    }
    for (size_t size = 0; size < good.size; size += 113) {
        assert_int_equal(pl_file_write(&err, file, good.data, size), 0);
        check_cache(path, false, "tokenized again", "[<s>ab</s>]|[<s>d</s>]|");
    }
    pl_buf_clear(&good);
    assert_int_equal(pl_file_read(&err, file, &good), 0);
    /* A folder that cannot be written is an error, and a broken data file leaves nothing behind. */
    write_text("d.jsonl", "{\"text\": \"ab\"}\n{");
    assert_null(open_rows(path, 1));
    assert_int_equal(count_files(config.cache_dir), 1);
    pl_error_clear(&err);
    config.cache_dir = write_text("no-folder", "");
    assert_null(open_rows(write_text("d.jsonl", "{\"text\": \"ab\"}"), 1));
    assert_int_equal(err.code, PL_EIO);
    pl_buf_free(&good);
}

/* More rows than the index keeps in memory while it is built. */
static void test_many_rows(void **state)
{
    (void)state;
    pl_buf text = {0};
    reset();
    for (int i = 0; i < 150000; i++) pl_buf_printf(&err, &text, "{\"input_ids\": [%d,%d]}\n", i & 255, i >> 8 & 255);
    config.validation_split = 0.5;
    pl_dataset *d = must_open(write_text("many.jsonl", text.data));
    int64_t sum = 0;
    for (int p = 0; p < PL_DATA_PARTS; p++) {
        int last = -1;
        for (int64_t i = 0; i < pl_dataset_rows(d, (pl_data_part)p); i++) {
            pl_row row = pl_dataset_row(d, (pl_data_part)p, i);
            int n = (row.ids[0] | row.ids[1] << 8) + (last & ~0xffff);
            if (n <= last) n += 65536;
            assert_true(n > last);
            last = n;
            sum += n;
        }
    }
    assert_int_equal(sum, (int64_t)150000 * 149999 / 2);
    pl_dataset_close(d);
    pl_buf_free(&text);
}

static int setup(void **state)
{
    tokenizer = test_tokenizer();
    chat = test_chat();
    return make_folder(state);
}

static int teardown(void **state)
{
    pl_tokenizer_close(tokenizer);
    pl_chat_free(chat);
    pl_buf_free(&logged);
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),
        cmocka_unit_test(test_chats),
        cmocka_unit_test(test_chat_errors),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_show),
        cmocka_unit_test(test_overlong),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_cache),
        cmocka_unit_test(test_tokenizer_files),
        cmocka_unit_test(test_damaged_cache),
        cmocka_unit_test(test_many_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
