#include "io_test.h"

#include "io/weights.h"

/* A safetensors file of f32 vectors: names and first values, ended by NULL. */
static void write_vectors(const char *name, const char *const *names, float first)
{
    pl_error err = {0};
    pl_st_source sources[8];
    float values[8][2];
    int n = 0;
    for (; names[n]; n++) {
        values[n][0] = first + (float)n;
        values[n][1] = -values[n][0];
        sources[n] = (pl_st_source){.spec = {names[n], PL_F32, 1, {2}}, .given = PL_F32, .data = values[n]};
    }
    pl_st_writer *w;
    OK(pl_st_write(&err, path_of(scratch, name), sources, n, NULL, &w));
    OK(pl_st_writer_commit(&err, w));
}

static float first_of(const pl_st_tensor *t)
{
    pl_error err = {0};
    float value;
    assert_non_null(t);
    OK(pl_st_read(&err, t, 0, 1, PL_F32, &value));
    return value;
}

static void test_golden_shards(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *shards, *whole;
    OK(pl_weights_open(&err, GOLDEN "/formats/llama-sharded", &shards));
    OK(pl_weights_open(&err, GOLDEN "/models/llama", &whole));
    assert_int_equal(pl_weights_count(shards), pl_weights_count(whole));
    for (int i = 0; i < pl_weights_count(whole); i++) {
        const pl_st_tensor *a = pl_weights_at(whole, i), *b;
        OK(pl_weights_find(&err, shards, a->name, &b));
        assert_non_null(b);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    OK(pl_weights_check(&err, shards, "config.json", NULL));
    FAILS(pl_weights_check(&err, whole, "config.json", NULL), PL_EINPUT, "without a place in the model");
    pl_weights_close(shards);
    pl_weights_close(whole);
}

/* The index decides: which shard a tensor comes from, and that others are not there. */
static void test_index_decides(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *w;
    write_vectors("one.safetensors", (const char *const[]){"a", "b", "hidden", NULL}, 1);
    write_vectors("two.safetensors", (const char *const[]){"a", "c", NULL}, 10);
    write_json(path_of(scratch, "model.safetensors.index.json"),
        "{'metadata': {}, 'weight_map': {'b': 'one.safetensors', 'a': 'two.safetensors', 'c': 'two.safetensors'}}");
    OK(pl_weights_open(&err, scratch, &w));
    assert_int_equal(pl_weights_count(w), 3);
    assert_true(first_of(pl_weights_peek(w, "a")) == 10 && first_of(pl_weights_peek(w, "b")) == 2);
    assert_null(pl_weights_peek(w, "hidden"));
    pl_weights_close(w);

    /* A whole file comes before an index, as in transformers. */
    write_vectors("model.safetensors", (const char *const[]){"hidden", NULL}, 5);
    OK(pl_weights_open(&err, scratch, &w));
    assert_int_equal(pl_weights_count(w), 1);
    pl_weights_close(w);
}

static void test_wrong_index(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        int code;
        const char *message;
    } cases[] = {
        {"{", PL_EINPUT, "JSON"},
        {"[]", PL_EINPUT, "weight_map is nothing"},
        {"{'weight_map': []}", PL_EINPUT, "weight_map is a list"},
        {"{'weight_map': {'a': 1}}", PL_EINPUT, "tensor a lies in a whole number"},
        {"{'weight_map': {'a': '../one.safetensors'}}", PL_EINPUT, "\"../one.safetensors\"; a file in the same folder"},
        {"{'weight_map': {'a': '/etc/passwd'}}", PL_EINPUT, "same folder"},
        {"{'weight_map': {'a': '..'}}", PL_EINPUT, "same folder"},
        {"{'weight_map': {'a': ''}}", PL_EINPUT, "same folder"},
        {"{'weight_map': {'a': 'x\\\\y'}}", PL_EINPUT, "same folder"},
        {"{'weight_map': {'z': 'one.safetensors'}}", PL_EINPUT, "tensor z is not in one.safetensors"},
        {"{'weight_map': {'a': 'three.safetensors'}}", PL_ENOENT, "tensor a: "},
        {"{'weight_map': {'a': 'model.safetensors.index.json'}}", PL_EINPUT, "no safetensors file"},
    };
    write_vectors("one.safetensors", (const char *const[]){"a", NULL}, 1);
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_weights *w;
        write_json(path_of(scratch, "model.safetensors.index.json"), cases[i].index);
        FAILS(pl_weights_open(&err, scratch, &w), cases[i].code, cases[i].message);
        assert_null(w);
    }
}

static void test_missing_and_surplus(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *w;
    const pl_st_tensor *t;
    static const char *const harmless[] = {"*.attn.bias", "lm_head.weight", NULL};
    write_vectors("model.safetensors",
        (const char *const[]){"h.0.attn.bias", "h.0.w", "lm_head.weight", "odd.1", "odd.2", NULL}, 1);
    OK(pl_weights_open(&err, scratch, &w));
    OK(pl_weights_find(&err, w, "h.0.w", &t));
    FAILS(pl_weights_check(&err, w, "config.json", harmless), PL_EINPUT,
        "does not fit config.json: 2 tensors are in it but without a place in the model: odd.1, odd.2");
    OK(pl_weights_find(&err, w, "odd.1", &t));
    OK(pl_weights_find(&err, w, "odd.2", &t));
    OK(pl_weights_check(&err, w, "config.json", harmless));
    FAILS(pl_weights_check(&err, w, "config.json", NULL), PL_EINPUT, "h.0.attn.bias, lm_head.weight");
    for (int i = 0; i < 10; i++) {
        char name[16];
        snprintf(name, sizeof name, "gone.%d", i);
        OK(pl_weights_find(&err, w, name, &t));
        assert_null(t);
    }
    assert_null(pl_weights_peek(w, "also.gone"));
    FAILS(pl_weights_check(&err, w, "config.json", harmless), PL_EINPUT, "10 tensors are missing: gone.0, gone.1, ");
    FAILS(pl_weights_check(&err, w, "config.json", harmless), PL_EINPUT, "gone.7 and 2 more");
    pl_weights_close(w);
}

static void test_prefixes(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *w;
    static const char *const bare[] = {"", NULL}, *const several[] = {"language_model.model.", "", NULL};
    write_vectors("model.safetensors", (const char *const[]){"h.0.w", "lm_head.w", "wte", NULL}, 1);
    OK(pl_weights_open(&err, scratch, &w));
    assert_null(pl_weights_peek(w, "transformer.h.0.w"));
    pl_weights_prefix(w, "transformer.", bare);
    assert_true(first_of(pl_weights_peek(w, "transformer.h.0.w")) == 1);
    assert_true(first_of(pl_weights_peek(w, "transformer.wte")) == 3);
    assert_true(first_of(pl_weights_peek(w, "lm_head.w")) == 2);
    assert_null(pl_weights_peek(w, "transformer.h.0"));
    assert_null(pl_weights_peek(w, "transformer.h.0.ww"));
    pl_weights_prefix(w, "model.", (const char *const[]){NULL});
    assert_null(pl_weights_peek(w, "model.wte"));
    pl_weights_close(w);

    /* Once any name has the prefix it is not left out of any other. */
    write_vectors("model.safetensors", (const char *const[]){"h.0.w", "transformer.wte", NULL}, 1);
    OK(pl_weights_open(&err, scratch, &w));
    pl_weights_prefix(w, "transformer.", bare);
    assert_null(pl_weights_peek(w, "transformer.h.0.w"));
    assert_non_null(pl_weights_peek(w, "transformer.wte"));
    pl_weights_close(w);

    write_vectors("model.safetensors", (const char *const[]){"language_model.model.n", "vision.n", NULL}, 1);
    OK(pl_weights_open(&err, scratch, &w));
    pl_weights_prefix(w, "model.", several);
    assert_true(first_of(pl_weights_peek(w, "model.n")) == 1);
    pl_weights_close(w);
}

static void test_other_folders(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_weights *w;
    FAILS(pl_weights_open(&err, scratch, &w), PL_ENOENT, "holds neither model.safetensors");
    FAILS(pl_weights_open(&err, path_of(scratch, "gone"), &w), PL_ENOENT, "there is no such folder");
    write_text(path_of(scratch, "pytorch_model.bin"), "x");
    FAILS(pl_weights_open(&err, scratch, &w), PL_EINPUT, "pytorch_model.bin only");
    FAILS(pl_weights_open(&err, path_of(scratch, "pytorch_model.bin"), &w), PL_EINPUT, "is a file");
    write_text(path_of(scratch, "adapter_model.safetensors"), "x");
    FAILS(pl_weights_open(&err, scratch, &w), PL_EINPUT, "is an adapter");
    FAILS(pl_weights_open_file(&err, path_of(scratch, "adapter_model.safetensors"), &w), PL_EINPUT, "has 1 bytes");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden_shards, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_index_decides, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_wrong_index, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_missing_and_surplus, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_prefixes, scratch_setup, scratch_teardown),
        cmocka_unit_test_setup_teardown(test_other_folders, scratch_setup, scratch_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
