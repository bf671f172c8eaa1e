/* Data sets as they are found: each file of the shared collection is recognised, or refused with a reason. Skipped
   where the collection is not there. */
#include "data/dataset.h"

#include "data_test.h"

#define DATASETS PLAIT_TEST_DIR "/../../shared/data/datasets"

static const struct {
    const char *path;
    pl_data_format format;
    int64_t examples;
    const char *refused; /* part of the message; NULL: it is read */
} cases[] = {
    {"axolotl-fixtures/conversation.json", PL_DATA_SHAREGPT, 1, NULL},
    {"axolotl-fixtures/conversation.missingturns.json", PL_DATA_SHAREGPT, 1, NULL},
    {"axolotl-fixtures/conversation.tokenized.json", PL_DATA_TOKENS, 1, NULL},
    {"axolotl-fixtures/conversation.tokenized_llama2chat.json", PL_DATA_TOKENS, 1, NULL},
    {"cs336-a5/alpaca_eval.jsonl", PL_DATA_ALPACA, 805, NULL},
    {"cs336-a5/sft_sample.jsonl", PL_DATA_COMPLETION, 5, NULL},
    {"cs336-a5/tokenized_sft_sample.json", PL_DATA_TOKENS, 75, NULL},
    {"cs336-a5/simple_safety_tests.csv", PL_DATA_AUTO, 0, "data files are .txt, .jsonl or .json"},
    {"fastchat/dummy_conversation.json", PL_DATA_SHAREGPT, 500, NULL},
    {"fastchat/mt_bench_question.jsonl", PL_DATA_AUTO, 0, "(it has question_id, category, turns)"},
    {"gsm8k/test.jsonl", PL_DATA_QA, 1319, NULL},
    {"gsm8k/train.jsonl", PL_DATA_QA, 7473, NULL},
    {"llamafactory/alpaca_en_demo.json", PL_DATA_ALPACA, 999, NULL},
    {"llamafactory/alpaca_zh_demo.json", PL_DATA_ALPACA, 1000, NULL},
    {"llamafactory/c4_demo.jsonl", PL_DATA_TEXT, 300, NULL},
    {"llamafactory/dataset_info.json", PL_DATA_AUTO, 0, "cannot be told"},
    {"llamafactory/dpo_en_demo.json", PL_DATA_AUTO, 0, "preference data"},
    {"llamafactory/v1_dpo_demo.jsonl", PL_DATA_AUTO, 0, "preference data"},
    {"llamafactory/glaive_toolcall_en_demo.json", PL_DATA_SHAREGPT, 300, NULL},
    {"llamafactory/glaive_toolcall_zh_demo.json", PL_DATA_SHAREGPT, 300, NULL},
    {"llamafactory/identity.json", PL_DATA_ALPACA, 91, NULL},
    {"llamafactory/kto_en_demo.json", PL_DATA_MESSAGES, 300, NULL},
    {"llamafactory/reason_tool_use_demo_50.jsonl", PL_DATA_AUTO, 0, "is of type \"reasoning\""},
    {"llamafactory/v1_sft_demo.jsonl", PL_DATA_MESSAGES, 500, NULL},
    {"llamafactory/wiki_demo.txt", PL_DATA_TEXT, 1, NULL},
    {"makemore-names/names.txt", PL_DATA_TEXT, 1, NULL},
    {"ms-swift-format-samples/alpaca.jsonl", PL_DATA_ALPACA, 3, NULL},
    {"ms-swift-format-samples/chatml.jsonl", PL_DATA_MESSAGES, 3, NULL},
    {"ms-swift-format-samples/conversations.jsonl", PL_DATA_SHAREGPT, 3, NULL},
    {"ms-swift-format-samples/sharegpt.jsonl", PL_DATA_AUTO, 0, "(it has system, conversation)"},
    {"ms-swift-format-samples/swift_multi.json", PL_DATA_QA, 0, "system has no place in plain text"},
    {"ms-swift-format-samples/swift_pre.jsonl", PL_DATA_AUTO, 0, "(it has response)"},
    {"self-instruct/seed_tasks.jsonl", PL_DATA_AUTO, 0, "cannot be told"},
    {"tinyshakespeare/input.txt", PL_DATA_TEXT, 1, NULL},
    {"tinystories/tinystories_200K.txt", PL_DATA_TEXT, 1, NULL},
    {"wikitext-2/valid.txt", PL_DATA_TEXT, 1, NULL},
};

static void check_case(const pl_data_model *model, int i)
{
    static pl_error err;
    const pl_log log = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", DATASETS, cases[i].path);
    const pl_data_file file = {.path = path};
    const pl_data_config config = {.files = &file, .file_count = 1, .sequence_length = 1 << 22};
    pl_dataset *d;
    pl_error_clear(&err);
    int rc = pl_dataset_open(&err, &log, &config, model, 2, &d);
    if (cases[i].refused) {
        if (rc == 0) fail_msg("%s: is read, but should be refused", path);
        if (!strstr(err.message, cases[i].refused) || !strstr(err.message, path)) fail_msg("%s", err.message);
        return;
    }
    if (rc < 0) fail_msg("%s", err.message);
    const pl_data_stats *s = pl_dataset_stats(d, PL_DATA_TRAIN);
    assert_int_equal(pl_dataset_file_format(d, 0), cases[i].format);
    assert_int_equal(s->examples, cases[i].examples);
    assert_int_equal(s->rows, cases[i].examples);
    assert_true(s->trained > 0 && s->trained < s->tokens);
    pl_dataset_close(d);
}

static void test_corpus(void **state)
{
    (void)state;
    if (!pl_dir_exists(DATASETS)) {
        print_message("%s is not there\n", DATASETS);
        skip();
    }
    pl_tokenizer *tokenizer = test_tokenizer();
    pl_chat *chat = test_chat();
    const pl_data_model model = {.tokenizer = tokenizer, .chat = chat, .vocab = 200000, .eos = TEST_EOS};
    for (int i = 0; i < PL_COUNT(cases); i++) check_case(&model, i);
    pl_chat_free(chat);
    pl_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_corpus)};
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
