/* plait merge: folders that need no adapter, against PEFT's merged weights, and what cannot be merged. */
#include <math.h>

#include "api/config.h"
#include "io/io_test.h"
#include "io/peft.h"
#include "io/weights.h"

/* As in test_golden_adapters: a product of four terms in f32, relative to the largest element. */
#define MERGED 1e-6

typedef struct job {
    pl_error err;
    pl_config config;
} job;

static void job_open(job *j, const char *model, const char *adapter, const char *output, const char *precision)
{
    *j = (job){0};
    const char *fields[][2] = {
        {"model", model}, {"adapter", adapter}, {"output", output}, {"precision", precision}, {"threads", "1"}};
    if (pl_config_open(&j->err, &j->config) < 0) fail_msg("%s", j->err.message);
    for (int i = 0; i < PL_COUNT(fields); i++) {
        if (fields[i][1] && pl_config_set(&j->err, &j->config, fields[i][0], fields[i][1]) < 0) {
            fail_msg("%s", j->err.message);
        }
    }
    if (pl_config_check(&j->err, &j->config, PL_CMD_MERGE) < 0) fail_msg("%s", j->err.message);
}

static void count_rounding(void *user, enum pl_log_level level, const char *message)
{
    (void)level;
    if (strstr(message, "rounds the adapter's part")) ++*(int *)user;
}

/* Returns how often it was told that the merged weights are rounded. */
static int merge_into(const char *model, const char *adapter, const char *output, const char *precision)
{
    job j;
    int told = 0;
    const pl_log log = {.sink = count_rounding, .user = &told};
    job_open(&j, model, adapter, output, precision);
    if (pl_merge(&j.err, &log, &j.config) < 0) fail_msg("%s", j.err.message);
    pl_config_close(&j.config);
    return told;
}

static void refuse(const char *model, const char *adapter, const char *output, int code, const char *message)
{
    job j;
    const pl_log quiet = {0};
    job_open(&j, model, adapter, output, NULL);
    int rc = pl_merge(&j.err, &quiet, &j.config);
    if (rc != code || !strstr(j.err.message, message)) fail_msg("%d: %s", rc, j.err.message);
    pl_config_close(&j.config);
}

static bool config_says_tied(const char *folder, bool otherwise)
{
    pl_error err = {0};
    json_t *json;
    OK(pl_json_read(&err, path_of(folder, "config.json"), &json));
    const json_t *tie = json_object_get(json, "tie_word_embeddings");
    bool tied = tie ? json_is_true(tie) : otherwise;
    json_decref(json);
    return tied;
}

/* Whether the merged tensor is what PEFT's is, or else the base's to the bit. */
static void check_tensor(const pl_st_tensor *t, pl_weights *base, pl_safetensors *expected)
{
    pl_error err = {0};
    char name[512];
    snprintf(name, sizeof name, "merged.%s", t->name);
    const pl_st_tensor *want = pl_safetensors_find(expected, name), *same = pl_weights_peek(base, t->name);
    if (!want) {
        assert_non_null(same);
        assert_int_equal(t->bytes, same->bytes);
        assert_memory_equal(t->data, same->data, t->bytes);
        return;
    }
    float *a = malloc(t->bytes), *b = malloc(t->bytes), largest = 0;
    assert_int_equal(t->numel, want->numel);
    OK(pl_st_read(&err, t, 0, t->numel, PL_F32, a));
    OK(pl_st_read(&err, want, 0, t->numel, PL_F32, b));
    for (int64_t i = 0; i < t->numel; i++) largest = fmaxf(largest, fabsf(b[i]));
    for (int64_t i = 0; i < t->numel; i++) {
        if (fabsf(a[i] - b[i]) > (float)MERGED * largest) fail_msg("%s: %g, not %g", name, (double)a[i], (double)b[i]);
    }
    free(a);
    free(b);
}

static void test_golden(void **state)
{
    (void)state;
    static const struct {
        const char *model, *adapter;
        int more; /* tensors than the model's file has */
    } cases[] = {{"llama", "lora", 0}, {"llama", "dora", 0}, {"llama", "all-head-and-embed", 0},
        {"llama", "init-olora", 0}, {"gpt2", "bias-all", 0}, {"gpt2", "modules_to_save", 1}, {"qwen2", "lora_bias", 0}};
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_weights *base, *merged;
        pl_safetensors *expected;
        char dir[64];
        scratch_make(dir);
        const char *out = path_of(dir, "out"), *model = path_of(GOLDEN "/models", cases[i].model);
        const char *adapter = path_of(path_of(GOLDEN "/adapters", cases[i].model), cases[i].adapter);
        merge_into(model, adapter, out, NULL);
        OK(pl_weights_open(&err, model, &base));
        OK(pl_weights_open(&err, out, &merged));
        OK(pl_safetensors_open(&err, path_of(adapter, "expected.safetensors"), &expected));
        assert_int_equal(pl_weights_count(merged), pl_weights_count(base) + cases[i].more);
        for (int t = 0; t < pl_weights_count(merged); t++) check_tensor(pl_weights_at(merged, t), base, expected);
        bool tied = config_says_tied(model, strcmp(cases[i].model, "gpt2") == 0);
        assert_int_equal(config_says_tied(out, tied), tied && cases[i].more == 0);
        pl_safetensors_close(expected);
        pl_weights_close(base);
        pl_weights_close(merged);
        scratch_remove(dir);
    }
}

/* The model's dtype stays, and it is told what that costs, or becomes what was asked for. */
static void test_dtypes(void **state)
{
    (void)state;
    static const struct {
        const char *precision, *config;
        pl_dtype dtype;
    } cases[] = {{NULL, "bfloat16", PL_BF16}, {"bf16", "bfloat16", PL_BF16}, {"f32", "float32", PL_F32}};
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_weights *merged;
        json_t *json;
        char dir[64];
        scratch_make(dir);
        const char *out = path_of(dir, "out");
        int told = merge_into(GOLDEN "/formats/llama-bf16", GOLDEN "/adapters/llama/dora", out, cases[i].precision);
        assert_int_equal(told, cases[i].precision == NULL);
        OK(pl_weights_open(&err, out, &merged));
        for (int t = 0; t < pl_weights_count(merged); t++) {
            assert_int_equal(pl_weights_at(merged, t)->dtype, cases[i].dtype);
        }
        OK(pl_json_read(&err, path_of(out, "config.json"), &json));
        const json_t *dtype = json_object_get(json, "dtype");
        if (!dtype) dtype = json_object_get(json, "torch_dtype");
        assert_string_equal(json_string_value(dtype), cases[i].config);
        json_decref(json);
        pl_weights_close(merged);
        scratch_remove(dir);
    }
}

/* An adapter of one layer, written to a folder: A is 0, 0.01, 0.02..., B likewise from its end. */
static void write_adapter(const char *folder, const char *module, int64_t in, int64_t out, bool bias, float spoil)
{
    enum { R = 2 };
    pl_error err = {0};
    pl_lora_config c;
    pl_lora_config_init(&c);
    c.r = R;
    c.lora_alpha = 3;
    c.lora_bias = bias;
    OK(pl_modules_parse(&err, "test", module, &c.target_modules));
    float *a = calloc((size_t)(R * in), sizeof *a), *b = calloc((size_t)(R * out), sizeof *b);
    for (int64_t i = 0; i < R * in; i++) a[i] = 0.01f * (float)i;
    for (int64_t i = 0; i < R * out; i++) b[i] = 0.01f * (float)(R * out - i);
    b[3] += spoil;
    char *keys[3];
    OK(pl_peft_key(&err, module, PL_PEFT_LORA_A, &keys[0]));
    OK(pl_peft_key(&err, module, PL_PEFT_LORA_B, &keys[1]));
    OK(pl_peft_key(&err, module, PL_PEFT_LORA_B_BIAS, &keys[2]));
    const pl_st_source sources[] = {{.spec = {keys[0], PL_F32, 2, {R, in}}, .given = PL_F32, .data = a},
        {.spec = {keys[1], PL_F32, 2, {out, R}}, .given = PL_F32, .data = b},
        {.spec = {keys[2], PL_F32, 1, {out}}, .given = PL_F32, .data = b}};
    OK(pl_adapter_write(&err, folder, &c, sources, bias ? 3 : 2));
    for (int i = 0; i < 3; i++) free(keys[i]);
    free(a);
    free(b);
    pl_lora_config_free(&c);
}

/* A tied head with an adapter and the embedding become two. */
static void test_tied_head(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *base, *merged;
    const int64_t in = 40, out = 131;
    char dir[64];
    scratch_make(dir);
    const char *folder = path_of(dir, "out"), *model = GOLDEN "/models/gpt2";
    write_adapter(path_of(dir, "adapter"), "lm_head", in, out, false, 0);
    merge_into(model, path_of(dir, "adapter"), folder, NULL);
    OK(pl_weights_open(&err, model, &base));
    OK(pl_weights_open(&err, folder, &merged));
    assert_int_equal(pl_weights_count(merged), pl_weights_count(base) + 1);
    const pl_st_tensor *table = pl_weights_peek(base, "transformer.wte.weight"),
                       *kept = pl_weights_peek(merged, "transformer.wte.weight"),
                       *head = pl_weights_peek(merged, "lm_head.weight");
    assert_non_null(head);
    assert_memory_equal(table->data, kept->data, table->bytes);
    float *w = malloc(table->bytes), *h = malloc(table->bytes);
    OK(pl_st_read(&err, table, 0, in * out, PL_F32, w));
    OK(pl_st_read(&err, head, 0, in * out, PL_F32, h));
    for (int64_t o = 0; o < out; o++) {
        for (int64_t i = 0; i < in; i++) {
            double up[2] = {0.01 * (double)(2 * out - 2 * o), 0.01 * (double)(2 * out - 2 * o - 1)};
            double want = (double)w[o * in + i] + 1.5 * (up[0] * 0.01 * (double)i + up[1] * 0.01 * (double)(in + i));
            assert_true(fabs((double)h[o * in + i] - want) <= MERGED * 10);
        }
    }
    assert_false(config_says_tied(folder, true));
    free(w);
    free(h);
    pl_weights_close(base);
    pl_weights_close(merged);
    scratch_remove(dir);
}

/* PEFT saves embedding and head along with an adapter of the head, and reads them in the model's place. */
static void test_saved_along(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *merged;
    char dir[64];
    scratch_make(dir);
    float head[131 * 40], a[2 * 40] = {0}, b[131 * 2] = {0};
    for (int i = 0; i < PL_COUNT(head); i++) head[i] = (float)i;
    pl_lora_config c;
    pl_lora_config_init(&c);
    c.r = 2;
    OK(pl_modules_parse(&err, "test", "lm_head", &c.target_modules));
    const pl_st_source sources[] = {
        {.spec = {"base_model.model.lm_head.lora_A.weight", PL_F32, 2, {2, 40}}, .given = PL_F32, .data = a},
        {.spec = {"base_model.model.lm_head.lora_B.weight", PL_F32, 2, {131, 2}}, .given = PL_F32, .data = b},
        {.spec = {"base_model.model.lm_head.base_layer.weight", PL_F32, 2, {131, 40}}, .given = PL_F32, .data = head}};
    OK(pl_adapter_write(&err, path_of(dir, "adapter"), &c, sources, 3));
    pl_lora_config_free(&c);
    merge_into(GOLDEN "/models/gpt2", path_of(dir, "adapter"), path_of(dir, "out"), NULL);
    OK(pl_weights_open(&err, path_of(dir, "out"), &merged));
    assert_memory_equal(pl_weights_peek(merged, "lm_head.weight")->data, head, sizeof head);
    assert_memory_equal(pl_weights_peek(merged, "transformer.wte.weight")->data, head, sizeof head);
    pl_weights_close(merged);
    scratch_remove(dir);
}

static void test_refused(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    const char *model = GOLDEN "/models/llama", *adapter = path_of(dir, "adapter"), *out = path_of(dir, "out");
    const char *q_proj = "model.layers.0.self_attn.q_proj";
    /* A folder with an adapter in it is never a model's. */
    refuse(model, GOLDEN "/adapters/llama/lora", GOLDEN "/adapters/llama/dora", PL_EUSAGE, "holds an adapter");
    write_adapter(adapter, q_proj, 48, 48, true, 0);
    refuse(model, adapter, out, PL_EUNSUPPORTED, "lora_bias, but model.layers.0.self_attn.q_proj has no bias");
    write_adapter(adapter, q_proj, 48, 48, false, NAN);
    refuse(model, adapter, out, PL_ENUMERIC, "model.layers.0.self_attn.q_proj.weight: element");
    write_adapter(adapter, q_proj, 47, 48, false, 0);
    refuse(model, adapter, out, PL_EINPUT, "[2, 47] f32");
    refuse(model, path_of(dir, "nothing"), out, PL_ENOENT, "nothing");
    assert_false(pl_file_exists(path_of(out, "model.safetensors")));
    assert_false(pl_file_exists(path_of(out, "config.json")));
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_golden), cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_tied_head), cmocka_unit_test(test_saved_along), cmocka_unit_test(test_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
