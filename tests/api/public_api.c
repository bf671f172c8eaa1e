/* The library as another program sees it: only plait.h, linked with libplait.so. Describes a run, plans it, trains it,
   stops it half-way, goes on, evaluates what came of it, and looks at it; merges an adapter. */
#include <math.h>
#include <plait.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: not so: %s (%s)\n", __FILE__, __LINE__, #condition, err.message);                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static pl_error err;

typedef struct seen {
    int64_t steps, last, stop_at;
    double loss;
    int messages;
} seen;

static void on_step(void *user, const pl_metrics *metrics)
{
    seen *s = user;
    s->steps++;
    s->last = metrics->step;
    s->loss = metrics->loss;
}

static bool on_question(void *user)
{
    seen *s = user;
    return s->last == s->stop_at;
}

static void on_message(void *user, enum pl_log_level level, const char *message)
{
    seen *s = user;
    CHECK(level == PL_LOG_INFO || level == PL_LOG_WARNING);
    CHECK(message[0]);
    s->messages++;
}

static pl_config *describe(const char *folder)
{
    char path[600];
    pl_config *config;
    CHECK(pl_config_new(&err, &config) == 0);
    CHECK(pl_config_set(&err, config, "from_scratch", PLAIT_TEST_DIR "/golden/models/llama/config.json") == 0);
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    CHECK(pl_config_set(&err, config, "data.files", path) == 0);
    snprintf(path, sizeof path, "%s/out", folder);
    CHECK(pl_config_set(&err, config, "output", path) == 0);
    CHECK(pl_config_set(&err, config, "train.steps", "6") == 0);
    CHECK(pl_config_set(&err, config, "data.sequence_length", "16") == 0);
    return config;
}

static void write_rows(const char *folder)
{
    char path[600];
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    FILE *file = fopen(path, "w");
    CHECK(file);
    for (int row = 0; row < 8; row++) {
        fputs("{\"input_ids\": [", file);
        for (int i = 0; i < 12; i++) fprintf(file, "%s%d", i ? ", " : "", (row * 5 + i * 3) % 60);
        fputs("]}\n", file);
    }
    CHECK(fclose(file) == 0);
}

static void check_errors(void)
{
    pl_config *config;
    CHECK(strcmp(pl_version(), PL_VERSION) == 0);
    CHECK(strcmp(pl_error_name(PL_EINPUT), "PL_EINPUT") == 0);
    CHECK(pl_config_new(&err, &config) == 0);
    CHECK(pl_config_set(&err, config, "lora.r", "0") == PL_EUSAGE);
    CHECK(err.code == PL_EUSAGE && strstr(err.message, "lora.r is 0"));
    pl_error_clear(&err);
    CHECK(pl_config_set(&err, config, "lora.rr", "1") == PL_EUSAGE);
    pl_error_clear(&err);
    CHECK(pl_config_read(&err, config, "/nowhere/run.yaml") == PL_ENOENT);
    pl_error_clear(&err);
    CHECK(pl_train(&err, NULL, config, NULL) == PL_EUSAGE && strstr(err.message, "model"));
    pl_error_clear(&err);
    pl_config_delete(config);
    pl_config_delete(NULL);
}

static bool on_text(void *user, const pl_written *of, const char *bytes, size_t size)
{
    CHECK(of->number == 1 && of->count == 1);
    size_t *total = user;
    CHECK(bytes);
    *total += size;
    return true;
}

static void check_generate(void)
{
    pl_config *config;
    pl_generate_result result;
    size_t total = 0;
    pl_text_sink sink = {.user = &total, .text = on_text};
    CHECK(pl_config_new(&err, &config) == 0);
    CHECK(pl_config_set(&err, config, "model", PLAIT_TEST_DIR "/../demo/stories260K") == 0);
    CHECK(pl_config_set(&err, config, "greedy", "true") == 0);
    CHECK(pl_config_set(&err, config, "max_tokens", "9") == 0);
    CHECK(pl_config_set(&err, config, "prompt", "Once upon a time") == 0);
    CHECK(pl_generate_texts(&err, NULL, config, &sink, &result) == 0);
    CHECK(result.texts == 1 && result.new_tokens == 9 && result.prompt_tokens > 1 && total >= 9);
    pl_config_delete(config);
}

/* Looks at `path`, or at what config names (NULL: one that names nothing), and finds `expected` in the document. */
static void check_inspect(pl_config *config, const char *path, const char *expected)
{
    char *json;
    pl_config *empty = NULL;
    if (!config) CHECK(pl_config_new(&err, &empty) == 0);
    CHECK(pl_inspect(&err, NULL, config ? config : empty, path, &json) == 0);
    CHECK(json[0] == '{' && strstr(json, expected));
    free(json);
    pl_config_delete(empty);
}

static void check_merge(const char *folder)
{
    char path[600];
    pl_config *config;
    CHECK(pl_config_new(&err, &config) == 0);
    CHECK(pl_config_set(&err, config, "model", PLAIT_TEST_DIR "/golden/models/llama") == 0);
    CHECK(pl_merge(&err, NULL, config) == PL_EUSAGE && strstr(err.message, "nothing to merge"));
    pl_error_clear(&err);
    CHECK(pl_config_set(&err, config, "adapter", PLAIT_TEST_DIR "/golden/adapters/llama/lora") == 0);
    check_inspect(NULL, PLAIT_TEST_DIR "/golden/adapters/llama/lora", "\"kind\": \"adapter\"");
    snprintf(path, sizeof path, "%s/merged", folder);
    CHECK(pl_config_set(&err, config, "output", path) == 0);
    CHECK(pl_merge(&err, NULL, config) == 0);
    check_inspect(NULL, path, "\"model_type\": \"llama\"");
    strcat(path, "/model.safetensors");
    check_inspect(NULL, path, "\"kind\": \"weights\"");
    pl_config_delete(config);
}

int main(void)
{
    char folder[] = "/tmp/plait-api-XXXXXX", path[600];
    CHECK(mkdtemp(folder));
    write_rows(folder);
    check_errors();
    check_generate();
    check_merge(folder);

    seen s = {.stop_at = 3};
    pl_log log = {.sink = on_message, .user = &s};
    pl_train_observer observer = {.user = &s, .step = on_step, .stop = on_question};
    pl_config *config = describe(folder);
    pl_plan plan;
    CHECK(pl_plan_run(&err, &log, config, &plan) == 0);
    CHECK(plan.steps == 6 && plan.trainable > 0 && plan.bytes[PL_MEM_OPTIMIZER] > 0 && plan.step_flops > 0);
    CHECK(pl_train(&err, &log, config, &observer) == PL_ESTOPPED);
    CHECK(s.steps == 3 && s.last == 3);
    pl_error_clear(&err);
    pl_config_delete(config);

    config = describe(folder);
    s.stop_at = 0;
    CHECK(pl_train(&err, &log, config, &observer) == 0);
    CHECK(s.steps == 6 && s.last == 6 && isfinite(s.loss));
    pl_config_delete(config);

    pl_eval_result result;
    CHECK(pl_config_new(&err, &config) == 0);
    snprintf(path, sizeof path, "%s/out", folder);
    CHECK(pl_config_set(&err, config, "model", path) == 0);
    snprintf(path, sizeof path, "%s/rows.jsonl", folder);
    CHECK(pl_config_set(&err, config, "data.files", path) == 0);
    CHECK(pl_eval(&err, &log, config, &result) == 0);
    CHECK(result.rows == 8 && result.targets == 8 * 11 && isfinite(result.loss));
    check_inspect(config, NULL, "\"kind\": \"dataset\"");
    pl_config_delete(config);

    snprintf(path, sizeof path, "rm -rf '%s'", folder);
    return system(path) == 0 ? 0 : 1;
}
