/* Everything in src/io with each allocation failing once: PL_ENOMEM, nothing leaked, nothing half-written. */
#include "io_test.h"

#include "io/model_folder.h"
#include "io/peft.h"
#include "support/alloc_fail.h"

int __wrap_fsync(int fd);

int __wrap_fsync(int fd)
{
    (void)fd; /* thousands of them would only take time */
    return 0;
}

void *__real_malloc(size_t size);
void __real_free(void *memory);

/* jansson's own allocations are left alone: refused memory in the middle of a string it drops a character without a
   word, or fails an assertion. */
static void spare_jansson(void)
{
    json_set_alloc_funcs(__real_malloc, __real_free);
}

static int open_shards(pl_error *err, void *user)
{
    (void)user;
    spare_jansson();
    pl_weights *w = NULL;
    const pl_st_tensor *t;
    int rc = 0;
    PL_GO(done, pl_weights_open(err, GOLDEN "/formats/llama-sharded", &w));
    PL_GO(done, pl_weights_find(err, w, "model.norm.weight", &t));
    PL_GO(done, pl_weights_find(err, w, "not.there", &t));
    PL_GO(done, pl_weights_find(err, w, "not.there.either", &t));
done:
    pl_weights_close(w);
    return rc;
}

/* Finds faults, which need memory to be told. */
static int check_shards(pl_error *err, void *user)
{
    PL_TRY(pl_weights_check(err, user, "config.json", NULL) == PL_EINPUT ? 0 : PL_ENOMEM);
    pl_error_clear(err);
    return 0;
}

static int write_folder(pl_error *err, void *user)
{
    static const float values[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    static const pl_st_source sources[] = {
        {.spec = {"a", PL_F32, 2, {2, 4}}, .given = PL_F32, .data = values},
        {.spec = {"b", PL_BF16, 1, {8}}, .given = PL_F32, .data = values},
        {.spec = {"c", PL_F16, 1, {8}}, .given = PL_F32, .data = values},
    };
    spare_jansson();
    pl_model_folder options = {
        .source = GOLDEN "/models/llama", .dtype = "bfloat16", .shard_bytes = *(const uint64_t *)user};
    return pl_model_folder_write(err, scratch, &options, sources, PL_COUNT(sources));
}

static int use_adapter(pl_error *err, void *user)
{
    spare_jansson();
    pl_lora_config c = {0}, copy = {0};
    pl_weights *w = NULL;
    pl_st_source *sources = NULL;
    int rc = 0;
    PL_GO(done, pl_adapter_open(err, user, &c, &w));
    PL_GO(done, pl_lora_config_copy(err, &c, &copy));
    int n = pl_weights_count(w);
    PL_GO(done, pl_calloc(err, (size_t)n, sizeof *sources, &sources));
    for (int i = 0; i < n; i++) {
        const pl_st_tensor *t = pl_weights_at(w, i);
        sources[i] = (pl_st_source){.spec = {t->name, t->dtype, t->ndim, {0}}, .given = t->dtype, .data = t->data};
        memcpy(sources[i].spec.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
    }
    PL_GO(done, pl_adapter_write(err, scratch, &copy, sources, n));
done:
    free(sources);
    pl_weights_close(w);
    pl_lora_config_free(&c);
    pl_lora_config_free(&copy);
    return rc;
}

static int match_modules(pl_error *err, void *user)
{
    pl_lora_match match;
    double scaling;
    int rc = 0;
    pl_lora_config c;
    (void)user;
    pl_lora_config_init(&c);
    PL_GO(done, pl_modules_parse(err, "t", " q_proj, v_proj", &c.target_modules));
    PL_GO(done, pl_lora_patterns_add(err, &c.rank_pattern, "v_proj", 2));
    PL_GO(done, pl_lora_matches(err, &c, "model.layers.0.self_attn.v_proj", &match));
    PL_GO(done, pl_lora_scaling(err, &c, "model.layers.0.self_attn.v_proj", &scaling));
    PL_GO(done, pl_lora_config_check(err, "x", &c));
done:
    pl_lora_config_free(&c);
    return rc;
}

static void test_weights(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *w;
    const pl_st_tensor *t;
    assert_true(alloc_fail_run("weights", open_shards, NULL) > 30);
    OK(pl_weights_open(&err, GOLDEN "/formats/llama-sharded", &w));
    OK(pl_weights_find(&err, w, "not.there", &t));
    assert_true(alloc_fail_run("check", check_shards, w) > 10);
    pl_weights_close(w);
}

static void test_model_folder(void **state)
{
    (void)state;
    uint64_t limits[] = {0, 40};
    for (int i = 0; i < PL_COUNT(limits); i++) {
        assert_true(alloc_fail_run("model folder", write_folder, &limits[i]) > 20);
        pl_error err = {0};
        pl_weights *w;
        OK(pl_weights_open(&err, scratch, &w));
        assert_int_equal(pl_weights_count(w), 3);
        pl_weights_close(w);
    }
}

static void test_adapter(void **state)
{
    (void)state;
    alloc_fail_run("adapter", use_adapter, GOLDEN "/adapters/llama/patterns");
    alloc_fail_run("adapter", use_adapter, GOLDEN "/adapters/gpt2/token-indices");
    assert_true(alloc_fail_run("match", match_modules, NULL) > 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_weights),
        cmocka_unit_test_setup_teardown(test_model_folder, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_adapter, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
