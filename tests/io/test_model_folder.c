/* Writing model folders. This program is linked so that rename, link, unlink, fsync and write come by here first: at a
   chosen call the process ends as if killed, or the call fails. After each the folder must hold the old model or the
   new one. */
#include "io_test.h"

#include <errno.h>
#include <sys/wait.h>

#include "base/json.h"
#include "io/model_folder.h"
#include "io/weights.h"

/* ---- calls that can be made to fail ---- */

static int calls, fatal_call, failing_call; /* counted from 1; 0: none */

static bool trouble(void)
{
    calls++;
    if (calls == fatal_call) _exit(9);
    if (calls != failing_call) return false;
    errno = EIO;
    return true;
}

int __real_rename(const char *from, const char *to);
int __real_link(const char *from, const char *to);
int __real_unlink(const char *path);
int __real_fsync(int fd);
ssize_t __real_write(int fd, const void *bytes, size_t size);
int __wrap_rename(const char *from, const char *to);
int __wrap_link(const char *from, const char *to);
int __wrap_unlink(const char *path);
int __wrap_fsync(int fd);
ssize_t __wrap_write(int fd, const void *bytes, size_t size);

int __wrap_rename(const char *from, const char *to)
{
    return trouble() ? -1 : __real_rename(from, to);
}
int __wrap_link(const char *from, const char *to)
{
    return trouble() ? -1 : __real_link(from, to);
}
int __wrap_unlink(const char *path)
{
    return trouble() ? -1 : __real_unlink(path);
}
int __wrap_fsync(int fd)
{
    (void)fd; /* nothing here loses power, so it would only take time */
    return trouble() ? -1 : 0;
}
ssize_t __wrap_write(int fd, const void *bytes, size_t size)
{
    return trouble() ? -1 : __real_write(fd, bytes, size);
}

/* ---- a small model of which every tensor holds one value ---- */

enum { TENSORS = 6, ELEMENTS = 20 };
static const char *const names[TENSORS] = {"a.weight", "b.weight", "c.weight", "d.weight", "e.weight", "f.weight"};
static char dir[64];

static int read_value(pl_error *err, void *user, int64_t first, int64_t count, void *out)
{
    (void)err;
    assert_true(first >= 0 && first + count <= ELEMENTS);
    for (int64_t i = 0; i < count; i++) ((float *)out)[i] = *(float *)user + (float)(first + i);
    return 0;
}

/* Writes that model with `count` tensors and this value; two tensors to a shard if it is sharded. */
static int write_model(pl_error *err, const char *folder, float value, int count, bool sharded, const char *config)
{
    pl_st_source sources[TENSORS];
    for (int i = 0; i < count; i++) {
        sources[i] =
            (pl_st_source){.spec = {names[i], PL_F32, 2, {4, 5}}, .given = PL_F32, .read = read_value, .user = &value};
    }
    pl_model_folder options = {.config = config, .shard_bytes = sharded ? ELEMENTS * 4 * 2 : 0};
    return pl_model_folder_write(err, folder, &options, sources, count);
}

/* The value of the model in a folder (all tensors must agree), -1 if it cannot be opened; *count: of its tensors. */
static float model_value(const char *folder, int *count)
{
    pl_error err = {0};
    pl_weights *w;
    if (pl_weights_open(&err, folder, &w) < 0) return -1;
    float value = -1;
    *count = pl_weights_count(w);
    for (int i = 0; i < *count; i++) {
        float x[ELEMENTS];
        const pl_st_tensor *t = pl_weights_peek(w, names[i]);
        assert_non_null(t);
        OK(pl_st_read(&err, t, 0, ELEMENTS, PL_F32, x));
        if (i == 0) value = x[0];
        for (int k = 0; k < ELEMENTS; k++) assert_true(x[k] == value + (float)k);
    }
    pl_weights_close(w);
    return value;
}

static int make(void **state)
{
    (void)state;
    scratch_make(dir);
    calls = fatal_call = failing_call = 0;
    return 0;
}

static int clean(void **state)
{
    (void)state;
    scratch_remove(dir);
    return 0;
}

/* ---- what is written ---- */

static void test_single(void **state)
{
    (void)state;
    pl_error err = {0};
    int count;
    write_json(path_of(dir, "c.json"), "{'model_type':  'x'}");
    OK(write_model(&err, path_of(dir, "deep/er"), 3, TENSORS, false, path_of(dir, "c.json")));
    assert_true(model_value(path_of(dir, "deep/er"), &count) == 3 && count == TENSORS);
    assert_same_bytes(path_of(dir, "c.json"), path_of(dir, "deep/er/config.json")); /* not even a blank is changed */
    pl_safetensors *file;
    OK(pl_safetensors_open(&err, path_of(dir, "deep/er/model.safetensors"), &file));
    assert_string_equal(pl_safetensors_metadata(file, "format"), "pt");
    pl_safetensors_close(file);
    assert_false(pl_file_exists(path_of(dir, "deep/er/model.safetensors.index.json")));
}

static void test_shards(void **state)
{
    (void)state;
    pl_error err = {0};
    int count;
    write_json(path_of(dir, "c.json"), "{}");
    OK(write_model(&err, path_of(dir, "m"), 3, 5, true, path_of(dir, "c.json")));
    assert_true(model_value(path_of(dir, "m"), &count) == 3 && count == 5);
    json_t *index;
    OK(pl_json_read(&err, path_of(dir, "m/model.safetensors.index.json"), &index));
    json_t *metadata = json_object_get(index, "metadata"), *map = json_object_get(index, "weight_map");
    assert_int_equal(json_integer_value(json_object_get(metadata, "total_size")), 5 * ELEMENTS * 4);
    assert_string_equal(json_string_value(json_object_get(map, "c.weight")), "model-00002-of-00003.safetensors");
    assert_string_equal(json_string_value(json_object_get(map, "e.weight")), "model-00003-of-00003.safetensors");
    assert_int_equal(json_object_size(map), 5);
    json_decref(index);
    assert_true(pl_file_exists(path_of(dir, "m/model-00003-of-00003.safetensors")));
    assert_false(pl_file_exists(path_of(dir, "m/model.safetensors")));
}

/* Real models: all three golden folders come out as transformers wrote them, the shards' order apart. */
static void test_golden_bytes(void **state)
{
    (void)state;
    static const char *const models[] = {GOLDEN "/models/llama", GOLDEN "/formats/llama-bf16"};
    for (int m = 0; m < PL_COUNT(models); m++) {
        pl_error err = {0};
        pl_weights *w;
        OK(pl_weights_open(&err, models[m], &w));
        int n = pl_weights_count(w);
        pl_st_source *sources = calloc((size_t)n, sizeof *sources);
        for (int i = 0; i < n; i++) {
            const pl_st_tensor *t = pl_weights_at(w, i);
            sources[i] = (pl_st_source){.spec = {t->name, t->dtype, t->ndim, {0}}, .given = t->dtype, .data = t->data};
            memcpy(sources[i].spec.shape, t->shape, (size_t)t->ndim * sizeof *t->shape);
        }
        OK(pl_model_folder_write(&err, dir, &(pl_model_folder){.source = models[m]}, sources, n));
        assert_same_bytes(path_of(dir, "model.safetensors"), path_of(models[m], "model.safetensors"));
        assert_same_bytes(path_of(dir, "config.json"), path_of(models[m], "config.json"));
        /* And over itself, from its own mapping. */
        OK(pl_model_folder_write(&err, dir, &(pl_model_folder){.source = dir, .shard_bytes = 50000}, sources, n));
        assert_false(pl_file_exists(path_of(dir, "model.safetensors")));
        pl_weights *again;
        OK(pl_weights_open(&err, dir, &again));
        for (int i = 0; i < n; i++) {
            const pl_st_tensor *a = pl_weights_at(w, i), *b = pl_weights_peek(again, a->name);
            assert_non_null(b);
            assert_memory_equal(a->data, b->data, a->bytes);
        }
        pl_weights_close(again);
        pl_weights_close(w);
        free(sources);
        clean(NULL);
        make(NULL);
    }
}

static void check_dtype(const char *before, const char *after)
{
    pl_error err = {0};
    const float value = 1;
    pl_st_source source = {.spec = {"a", PL_BF16, 1, {1}}, .given = PL_F32, .data = &value};
    write_json(path_of(dir, "c.json"), before);
    write_json(path_of(dir, "want.json"), after);
    pl_model_folder options = {.config = path_of(dir, "c.json"), .dtype = "bfloat16"};
    OK(pl_model_folder_write(&err, path_of(dir, "m"), &options, &source, 1));
    json_t *got, *want;
    OK(pl_json_read(&err, path_of(dir, "m/config.json"), &got));
    OK(pl_json_read(&err, path_of(dir, "want.json"), &want));
    assert_true(json_equal(got, want));
    json_decref(got);
    json_decref(want);
}

static void test_dtype_in_config(void **state)
{
    (void)state;
    pl_error err = {0};
    check_dtype("{'eps': 1e-05, 'dtype': 'float32'}", "{'eps': 1e-05, 'dtype': 'bfloat16'}");
    check_dtype("{'torch_dtype': 'float32', 'n': 1}", "{'torch_dtype': 'bfloat16', 'n': 1}");
    check_dtype("{'torch_dtype': 'float16', 'dtype': 'bfloat16'}", "{'torch_dtype': 'bfloat16', 'dtype': 'bfloat16'}");
    check_dtype("{}", "{'torch_dtype': 'bfloat16'}");
    write_text(path_of(dir, "c.json"), "[]");
    FAILS(write_model(&err, path_of(dir, "m"), 1, 1, false, path_of(dir, "c.json")), PL_EINPUT, "is a list");
    FAILS(write_model(&err, path_of(dir, "m"), 1, 1, false, path_of(dir, "none.json")), PL_ENOENT, "none.json");
}

static void test_companions(void **state)
{
    (void)state;
    pl_error err = {0};
    const float value = 1;
    static const char *const copied[] = {"config.json", "generation_config.json", "tokenizer.json",
        "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt",
        "tokenizer.model", "chat_template.jinja", "LICENSE", "additional_chat_templates/tool.jinja"};
    static const char *const left[] = {"pytorch_model.bin", "optimizer.pt", "model-00001-of-00002.safetensors",
        "notes.txt", "trainer_state.json", "additional_chat_templates/x.txt"};
    OK(pl_dir_make(&err, path_of(dir, "s/additional_chat_templates")));
    for (int i = 0; i < PL_COUNT(copied); i++) write_text(path_of(path_of(dir, "s"), copied[i]), "{ }");
    for (int i = 0; i < PL_COUNT(left); i++) write_text(path_of(path_of(dir, "s"), left[i]), "x");
    pl_st_source source = {.spec = {"a", PL_F32, 1, {1}}, .given = PL_F32, .data = &value};
    OK(pl_model_folder_write(&err, path_of(dir, "m"), &(pl_model_folder){.source = path_of(dir, "s")}, &source, 1));
    for (int i = 0; i < PL_COUNT(copied); i++) {
        assert_same_bytes(path_of(path_of(dir, "s"), copied[i]), path_of(path_of(dir, "m"), copied[i]));
    }
    for (int i = 0; i < PL_COUNT(left); i++) assert_false(pl_file_exists(path_of(path_of(dir, "m"), left[i])));
}

/* ---- killed, or failing, at every call ---- */

static void check_old_or_new(int old_count, int new_count, bool killed)
{
    int count = 0;
    float value = model_value(path_of(dir, "m"), &count);
    bool is_new = value == 200 && count == new_count;
    if (!is_new && !(value == 100 && count == old_count)) fail_msg("call %d: value %g", fatal_call, (double)value);
    pl_error err = {0};
    pl_buf config = {0};
    if (pl_file_exists(path_of(dir, "m/config.json"))) {
        OK(pl_file_read(&err, path_of(dir, "m/config.json"), &config));
        assert_string_equal(config.data, is_new ? "{\"new\": 1}" : "{\"old\": 1}");
    } else {
        /* Only in the middle of the change, or where the very rename of config.json fails; the old one is beside. */
        assert_true(killed || is_new);
        assert_true(pl_file_exists(path_of(dir, "m/config.json.replaced")));
    }
    pl_buf_free(&config);
}

static void check_replacement(int old_count, bool old_sharded, int new_count, bool new_sharded)
{
    pl_error err = {0};
    write_text(path_of(dir, "old.json"), "{\"old\": 1}");
    write_text(path_of(dir, "new.json"), "{\"new\": 1}");
    for (int how = 0; how < 2; how++) {
        bool done = false;
        for (int at = 1; !done; at++) {
            fatal_call = failing_call = 0;
            OK(pl_dir_remove(&err, path_of(dir, "m")));
            OK(write_model(&err, path_of(dir, "m"), 100, old_count, old_sharded, path_of(dir, "old.json")));
            pid_t child = fork();
            assert_true(child >= 0);
            if (child == 0) {
                calls = 0;
                *(how == 0 ? &fatal_call : &failing_call) = at;
                int rc = write_model(&err, path_of(dir, "m"), 200, new_count, new_sharded, path_of(dir, "new.json"));
                _exit(rc == 0 ? 0 : 8);
            }
            int status;
            waitpid(child, &status, 0);
            assert_true(WIFEXITED(status));
            done = WEXITSTATUS(status) == 0 && how == 0;
            check_old_or_new(old_count, new_count, how == 0);
            if (how == 1) done = at > 80; /* past the last call */
            /* Whatever was left lying about, the next write succeeds and leaves nothing of it. */
            OK(write_model(&err, path_of(dir, "m"), 200, new_count, new_sharded, path_of(dir, "new.json")));
            check_old_or_new(-1, new_count, false);
            assert_false(pl_file_exists(path_of(dir, "m/config.json.replaced")));
            assert_int_equal(pl_file_exists(path_of(dir, "m/model.safetensors")), !new_sharded);
            assert_int_equal(pl_file_exists(path_of(dir, "m/model.safetensors.index.json")), new_sharded);
            assert_int_equal(
                pl_file_exists(path_of(dir, "m/model-00001-of-00002.safetensors")), new_sharded && new_count == 4);
            assert_int_equal(
                pl_file_exists(path_of(dir, "m/model-00001-of-00003.safetensors")), new_sharded && new_count == 6);
            assert_false(pl_file_exists(path_of(dir, "m/new1-model-00001-of-00003.safetensors")));
            assert_false(pl_file_exists(path_of(dir, "m/model-00001-of-00003.safetensors.tmp")));
            assert_true(at < 200);
        }
    }
}

static void test_single_over_single(void **state)
{
    (void)state;
    check_replacement(4, false, 6, false);
}

static void test_single_over_shards(void **state)
{
    (void)state;
    check_replacement(6, true, 5, false);
}

static void test_shards_over_single(void **state)
{
    (void)state;
    check_replacement(3, false, 6, true);
}

static void test_shards_over_other_shards(void **state)
{
    (void)state;
    check_replacement(4, true, 6, true);
}

/* The old shards have the names that the new ones shall have. */
static void test_shards_over_equal_shards(void **state)
{
    (void)state;
    check_replacement(6, true, 6, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_single, make, clean),
        cmocka_unit_test_setup_teardown(test_shards, make, clean),
        cmocka_unit_test_setup_teardown(test_golden_bytes, make, clean),
        cmocka_unit_test_setup_teardown(test_dtype_in_config, make, clean),
        cmocka_unit_test_setup_teardown(test_companions, make, clean),
        cmocka_unit_test_setup_teardown(test_single_over_single, make, clean),
        cmocka_unit_test_setup_teardown(test_single_over_shards, make, clean),
        cmocka_unit_test_setup_teardown(test_shards_over_single, make, clean),
        cmocka_unit_test_setup_teardown(test_shards_over_other_shards, make, clean),
        cmocka_unit_test_setup_teardown(test_shards_over_equal_shards, make, clean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
