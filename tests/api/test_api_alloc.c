/* What users do, from the configuration to the result, with each allocation made to fail once: PL_ENOMEM, and
   nothing leaked. Jansson reads undisturbed: refused memory in the middle of a string it drops a
   character without a word. All else that it allocates is watched. */
#include "api/config.h"
#include "base/json.h"
#include "io/io_test.h"
#include "support/alloc_fail.h"

int __wrap_fsync(int fd);
void *__real_malloc(size_t size);
void __real_free(void *memory);
void *__wrap_malloc(size_t size);
void __wrap_free(void *memory);
json_t *__real_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);
json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error);

int __wrap_fsync(int fd)
{
    (void)fd; /* hundreds of them would only take time */
    return 0;
}

json_t *__wrap_json_loadb(const char *text, size_t size, size_t flags, json_error_t *error)
{
    json_set_alloc_funcs(__real_malloc, __real_free);
    json_t *json = __real_json_loadb(text, size, flags, error);
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    return json;
}

#define MODEL GOLDEN "/models/llama"
#define ADAPTER GOLDEN "/adapters/llama/dora"
#define STORIES PLAIT_TEST_DIR "/../demo/stories260K"

/* What is done, with these fields set, up to one without a name. */
typedef struct job {
    enum { TRAIN, PLAN, EVAL, MERGE, GENERATE, INSPECT } what;
    const char *fields[8][2];
    const char *path; /* of inspect */
    int output;       /* a new folder for each call where it is not 0: its number */
} job;

static bool on_text(void *user, const pl_written *of, const char *bytes, size_t size)
{
    (void)user;
    (void)of;
    (void)bytes;
    return size > 0;
}

static int do_it(pl_error *err, const job *j, pl_config *config)
{
    pl_plan plan;
    pl_eval_result evaluated;
    pl_generate_result generated;
    const pl_text_sink sink = {.text = on_text};
    char *json;
    switch (j->what) {
    case TRAIN: return pl_train(err, NULL, config, NULL);
    case PLAN: return pl_plan_run(err, NULL, config, &plan);
    case EVAL: return pl_eval(err, NULL, config, &evaluated);
    case MERGE: return pl_merge(err, NULL, config);
    case GENERATE: return pl_generate_texts(err, NULL, config, &sink, &generated);
    case INSPECT: PL_TRY(pl_inspect(err, NULL, config, j->path, &json)); free(json);
    }
    return 0;
}

static int start(pl_error *err, void *user)
{
    job *j = user;
    pl_config *config;
    char output[128];
    PL_TRY(pl_config_new(err, &config));
    int rc = pl_config_set(err, config, "threads", "1");
    for (int i = 0; i < PL_COUNT(j->fields) && j->fields[i][0] && rc == 0; i++) {
        rc = pl_config_set(err, config, j->fields[i][0], j->fields[i][1]);
    }
    if (j->output && rc == 0) {
        snprintf(output, sizeof output, "%s/out%d", scratch, j->output++);
        rc = pl_config_set(err, config, "output", output);
    }
    if (rc == 0) rc = do_it(err, j, config);
    pl_config_delete(config);
    return rc;
}

static void check(const char *name, job j)
{
    /* The first call makes what libraries keep for good. */
    pl_error err = {0};
    if (start(&err, &j) < 0) fail_msg("%s: %s", name, err.message);
    assert_true(alloc_fail_run(name, start, &j) > 20);
}

/* A file in the scratch folder; the path is good until it is removed. */
static const char *put(const char *name, const char *text)
{
    pl_error err = {0};
    const char *path = path_of(scratch, name);
    OK(pl_file_write(&err, path, text, strlen(text)));
    return path;
}

#define ROWS "{\"input_ids\": [1, 2, 3, 4]}\n{\"input_ids\": [5, 6, 7], \"labels\": [5, -100, 7]}\n"

static void test_inspect(void **state)
{
    (void)state;
    const char *rows = put("rows.jsonl", ROWS);
    const char *qa = put("qa.jsonl", "{\"question\": \"Who?\", \"answer\": \"You.\"}\n");
    check("inspect model", (job){INSPECT, .path = MODEL});
    check("inspect model with a tokenizer", (job){INSPECT, .path = STORIES});
    check("inspect adapter", (job){INSPECT, .path = ADAPTER});
    check("inspect weights", (job){INSPECT, .path = MODEL "/model.safetensors"});
    check("inspect rows", (job){INSPECT, .fields = {{"model", MODEL}, {"data.files", rows}}});
    check("inspect texts", (job){INSPECT, .fields = {{"model", STORIES}, {"data.files", qa}}});
}

static void test_use(void **state)
{
    (void)state;
    const char *rows = put("rows.jsonl", ROWS);
    check("eval", (job){EVAL, .fields = {{"model", MODEL}, {"adapter", ADAPTER}, {"data.files", rows}}});
    check("plan",
        (job){PLAN, .fields = {{"model", MODEL}, {"data.files", rows}, {"method", "lora"}, {"train.steps", "2"}}});
    check("merge", (job){MERGE, .fields = {{"model", MODEL}, {"adapter", ADAPTER}}, .output = 1});
    check("generate",
        (job){GENERATE, .fields = {{"model", STORIES}, {"max_tokens", "2"}, {"seed", "1"}, {"prompt", "Once"},
                            {"prompt", "Once upon a time"}, {"prompt", "The"}, {"batch", "2"}}});
    const char *prompts =
        put("prompts.jsonl", "{\"prompt\": \"Once\"}\n{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}]}\n");
    const char *template = put("template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    check(
        "generate from a file", (job){GENERATE, .fields = {{"model", STORIES}, {"max_tokens", "2"}, {"greedy", "true"},
                                                    {"prompts", prompts}, {"data.template", template}}});
}

/* Training, its checkpoint, and the checkpoint as inspect sees it. */
static void test_train(void **state)
{
    (void)state;
    const char *rows = put("rows.jsonl", ROWS);
    const char *held = put("held.jsonl", ROWS);
    job full = {TRAIN,
        .fields = {{"model", MODEL}, {"data.files", rows}, {"train.steps", "1"}, {"data.validation", held}},
        .output = 1000};
    check("train", full);
    check("train an adapter", (job){TRAIN,
                                  .fields = {{"model", MODEL}, {"data.files", rows}, {"train.steps", "1"},
                                      {"method", "lora"}, {"precision", "bf16"}},
                                  .output = 5000});
    check("inspect checkpoint", (job){INSPECT, .path = path_of(scratch, "out1000/checkpoints/step-00000001")});
    check("inspect run", (job){INSPECT, .path = path_of(scratch, "out5000")});
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(test_inspect, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_use, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_train, scratch_setup, scratch_teardown)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
