/* Every allocation of reading, building and loading data is made to fail once: PL_ENOMEM, and nothing stays behind. */
#include "data_test.h"

#include "data/loader.h"
#include "support/alloc_fail.h"

static pl_tokenizer *tokenizer;
static pl_data_file files[3];
static const char *cache, *messages, *folder; /* folder: the tokenizer's, instead of it */
static pl_chat *chat;

static int use_dataset(pl_error *err, void *user)
{
    (void)user;
    const pl_log log = {0};
    const char *const fields[] = {"text"}, *const names[] = {"text"};
    const pl_data_config config = {.files = files,
        .file_count = 3,
        .validation_split = 0.5,
        .seed = 2,
        .fields = fields,
        .names = names,
        .sequence_length = 8,
        .cache_dir = cache};
    const pl_data_model model = {
        .tokenizer = folder ? NULL : tokenizer, .tokenizer_folder = folder, .vocab = TEST_VOCAB, .eos = TEST_EOS};
    const double weights[] = {1, 2, 1};
    const pl_loader_config order = {
        .micro_batch_tokens = 20, .accumulation = 2, .epochs = 2, .weights = weights, .weight_count = 3};
    pl_dataset *dataset = NULL;
    pl_loader *loader = NULL;
    pl_batch batch = {0};
    int64_t steps;
    int rc = 0;
    PL_GO(done, pl_dataset_open(err, &log, &config, &model, 2, &dataset));
    PL_GO(done, pl_loader_open(err, dataset, &order, &loader));
    PL_GO(done, pl_loader_steps(err, loader, &steps));
    PL_GO(done, pl_batch_open(err, &batch, 20, 10));
    for (int64_t i = 0; i < steps; i++) PL_GO(done, pl_loader_fill(err, loader, i, 0, &batch));
done:
    pl_batch_close(&batch);
    pl_loader_close(loader);
    pl_dataset_close(dataset);
    return rc;
}

static int use_messages(pl_error *err, void *user)
{
    (void)user;
    const pl_log log = {0};
    const pl_data_file file = {.path = messages};
    const pl_data_config config = {.files = &file, .file_count = 1, .sequence_length = 100};
    const pl_data_model model = {.tokenizer = tokenizer, .chat = chat, .vocab = TEST_VOCAB, .eos = TEST_EOS};
    pl_dataset *dataset = NULL;
    PL_TRY(pl_dataset_open(err, &log, &config, &model, 1, &dataset));
    pl_dataset_close(dataset);
    return 0;
}

static void test_build(void **state)
{
    (void)state;
    cache = NULL;
    files[0].path = write_text("a.jsonl", "{\"text\": \"one\"}\n{\"text\": \"two and three\"}\n{\"text\": \"more\"}\n");
    files[1].path = write_text("b.txt.gz", "some text, some of it longer than a row");
    files[2].path = write_text("c.json", "{\"data\": [{\"text\": \"q\"}, {\"text\": \"a\"}, {\"text\": \"?\"}]}");
    assert_true(alloc_fail_run("dataset", use_dataset, NULL) >= 50);
}

static void test_found(void **state)
{
    (void)state;
    pl_error err = {0};
    cache = in_folder("cache");
    assert_int_equal(use_dataset(&err, NULL), 0);
    assert_true(alloc_fail_run("cached dataset", use_dataset, NULL) >= 5);
}

/* A tokenizer that is read for the rows; where they are there already, it is not read at all. */
static void test_folder_of_tokenizer(void **state)
{
    (void)state;
    pl_error err = {0};
    cache = NULL;
    int with = alloc_fail_run("dataset", use_dataset, NULL);
    folder = test_tokenizer_folder("tokenizer");
    int reading = alloc_fail_run("dataset and tokenizer", use_dataset, NULL) - with;
    assert_true(reading >= 50);
    cache = in_folder("cache-of-folder");
    assert_int_equal(use_dataset(&err, NULL), 0);
    int found = alloc_fail_run("cached dataset and tokenizer", use_dataset, NULL);
    folder = NULL;
    assert_int_equal(use_dataset(&err, NULL), 0);
    assert_in_range(found - alloc_fail_run("cached dataset", use_dataset, NULL), 1, 20);
}

static void test_messages(void **state)
{
    (void)state;
    /* No escapes: where an allocation fails in the middle of one, jansson 2.14 stops the program. */
    messages = write_text("messages.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", "
                                            "\"text\": \"a\"}]}, {\"from\": \"gpt\", "
                                            "\"value\": \"b\"}, {\"role\": \"assistant\", \"content\": null, "
                                            "\"tool_calls\": [{\"function\": {\"name\": \"f\", "
                                            "\"arguments\": {}}}]}], \"tools\": [{\"name\": \"f\"}]}");
    assert_true(alloc_fail_run("messages", use_messages, NULL) >= 50);
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
    return remove_folder(state);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_build), cmocka_unit_test(test_found),
        cmocka_unit_test(test_folder_of_tokenizer), cmocka_unit_test(test_messages)};
    return cmocka_run_group_tests(tests, setup, teardown);
}
