#include "io_test.h"

#include "io/safetensors.h"
#include "tensor/convert.h"

/* ---- files that others made ---- */

/* Every line of an EXPECT.tsv: the file must open exactly if the line says "ok". */
static int check_corpus(const char *dir)
{
    pl_error err = {0};
    pl_buf list = {0};
    OK(pl_file_read(&err, path_of(dir, "EXPECT.tsv"), &list));
    int checked = 0;
    for (char *line = strchr(list.data, '\n') + 1; *line; line = strchr(line, '\n') + 1) {
        char name[256], expected[64];
        assert_int_equal(sscanf(line, "%255[^\t]\t%*d\t%63[^\t]", name, expected), 2);
        pl_safetensors *file = NULL;
        int rc = pl_safetensors_open(&err, path_of(dir, name), &file);
        if (strncmp(expected, "ok", 2) == 0) {
            if (rc != 0) fail_msg("%s", err.message);
        } else {
            if (rc != PL_EINPUT) fail_msg("%s: gave %d, expected a refusal: %s", name, rc, expected);
            assert_non_null(strstr(err.message, name));
            assert_null(file);
        }
        pl_safetensors_close(file);
        pl_error_clear(&err);
        checked++;
    }
    pl_buf_free(&list);
    return checked;
}

static void test_corpus(void **state)
{
    (void)state;
    assert_int_equal(check_corpus(GOLDEN "/safetensors"), 25);
}

static void test_whole_corpus(void **state)
{
    (void)state;
    if (!pl_dir_exists(SHARED)) skip();
    assert_true(check_corpus(SHARED "/data/safetensors-corpus") >= 26);
    static const char *const real[] = {"real-small/burn-mnist-trained", "real-small/burn-multi_layer",
        "real-small/mlverse-hello", "real-small/sd-lora_disney", "real-small/swift-tensor-2d-float64",
        "real-small/swift-tensor-4d-float32", "modelaudit-metadata/malicious_import",
        "modelaudit-metadata/obfuscated_metadata", "modelaudit-metadata/safe_model"};
    for (int i = 0; i < PL_COUNT(real); i++) {
        pl_error err = {0};
        char path[256];
        snprintf(path, sizeof path, SHARED "/data/safetensors-corpus/%s.safetensors", real[i]);
        pl_safetensors *file;
        OK(pl_safetensors_open(&err, path, &file));
        assert_true(pl_safetensors_count(file) > 0);
        pl_safetensors_close(file);
    }
}

static void test_content(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_safetensors *file;
    OK(pl_safetensors_open(&err, GOLDEN "/safetensors/valid/aligned_pad_i32_last1.safetensors", &file));
    assert_int_equal(pl_safetensors_count(file), 1);
    const pl_st_tensor *t = pl_safetensors_at(file, 0);
    assert_string_equal(t->dtype_name, "I32");
    assert_true(t->known && t->dtype == PL_I32 && t->ndim == 2 && t->numel == 4 && t->bytes == 16);
    int32_t values[4];
    OK(pl_st_read(&err, t, 0, 4, PL_I32, values));
    assert_true(values[0] == 0 && values[1] == 0 && values[2] == 0 && values[3] == 1);
    OK(pl_st_read(&err, t, 3, 1, PL_I32, values));
    assert_int_equal(values[0], 1);
    FAILS(pl_st_read(&err, t, 0, 4, PL_F32, values), PL_EUNSUPPORTED, "I32 cannot be read as f32");
    FAILS(pl_st_read(&err, t, 3, 2, PL_I32, values), PL_EBUG, "it has 4");
    pl_safetensors_close(file);

    OK(pl_safetensors_open(&err, GOLDEN "/safetensors/valid/metadata_framework_pt.safetensors", &file));
    assert_string_equal(pl_safetensors_metadata(file, "framework"), "pt");
    assert_null(pl_safetensors_metadata(file, "format"));
    pl_safetensors_close(file);

    OK(pl_safetensors_open(&err, GOLDEN "/safetensors/valid/unicode_name.safetensors", &file));
    t = pl_safetensors_find(file, "重み.🦙");
    assert_non_null(t);
    assert_memory_equal(t->data, "\1\2\3", 3);
    assert_null(pl_safetensors_find(file, "重み"));
    assert_null(pl_safetensors_metadata(file, "framework"));
    pl_safetensors_close(file);

    FAILS(pl_safetensors_open(&err, GOLDEN "/nothing", &file), PL_ENOENT, "nothing");
}

/* Types that we do not compute with are seen with their size, and their data is out of reach. */
static void test_every_dtype(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_safetensors *file;
    OK(pl_safetensors_open(&err, GOLDEN "/safetensors/valid/all_dtypes.safetensors", &file));
    assert_int_equal(pl_safetensors_count(file), 15);
    int known = 0;
    for (int i = 0; i < 15; i++) {
        const pl_st_tensor *t = pl_safetensors_at(file, i);
        assert_int_equal(t->numel, 2);
        assert_string_equal(t->name + 2, t->dtype_name);
        assert_true(pl_safetensors_find(file, t->name) == t);
        known += t->known;
        char out[16];
        if (!t->known) FAILS(pl_st_read(&err, t, 0, 2, PL_F32, out), PL_EUNSUPPORTED, t->dtype_name);
    }
    assert_int_equal(known, 5);
    assert_int_equal(pl_safetensors_find(file, "t_F64")->bytes, 16);
    float two[2];
    OK(pl_st_read(&err, pl_safetensors_find(file, "t_F16"), 0, 2, PL_F32, two));
    assert_true(two[0] == 0 && two[1] == 0x1p-24f); /* raw 1 is the smallest subnormal */
    OK(pl_st_read(&err, pl_safetensors_find(file, "t_BF16"), 1, 1, PL_F32, two));
    assert_true(two[0] == 0x1p-133f);
    pl_safetensors_close(file);
}

/* ---- headers made here ---- */

static int parse_header(pl_error *err, const char *header, size_t data, pl_safetensors **out)
{
    static unsigned char bytes[4096];
    size_t n = strlen(header);
    assert_true(8 + n + data <= sizeof bytes);
    memset(bytes, 0, sizeof bytes);
    bytes[0] = (unsigned char)n;
    bytes[1] = (unsigned char)(n >> 8);
    for (size_t i = 0; i < n; i++) bytes[8 + i] = (unsigned char)(header[i] == '\'' ? '"' : header[i]);
    return pl_safetensors_parse(err, "made.safetensors", bytes, 8 + n + data, out);
}

/* ' stands for ". Each of them is refused by the reference too, except the repeated name. */
static void test_refused_headers(void **state)
{
    (void)state;
#define INFO(dtype, shape, offsets) "{'a':{'dtype':'" dtype "','shape':" shape ",'data_offsets':" offsets "}}"
#define HUGE "4611686018427387904"
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } cases[] = {
        {"", 0, "JSON"},
        {"null", 0, "an object was expected"},
        {"{'a':1}", 0, "tensor a: its description is not an object"},
        {INFO("F32", "[1]", "[0,4]") "x", 4, "JSON"},
        {INFO("f32", "[1]", "[0,4]"), 4, "no dtype f32"},
        {INFO("F32", "[-1]", "[0,4]"), 4, "whole number"},
        {INFO("F32", "['1']", "[0,4]"), 4, "whole number"},
        {INFO("F32", "[1.0]", "[0,4]"), 4, "whole number"},
        {INFO("F32", "[true]", "[0,4]"), 4, "whole number"},
        {INFO("F32", "1", "[0,4]"), 4, "shape is missing or no list"},
        {INFO("F32", "[1]", "[0]"), 4, "data_offsets"},
        {INFO("F32", "[1]", "[0,4,8]"), 4, "data_offsets"},
        {INFO("F32", "[1]", "[0.0,4]"), 4, "data_offsets"},
        {INFO("F32", "[1]", "[-4,0]"), 0, "data_offsets"},
        {INFO("F32", "[1]", "[4,0]"), 4, "F32 [1] takes 4 bytes, but data_offsets are [4, 0]"},
        {INFO("F32", "[1]", "[4,8]"), 8, "nothing covers the bytes from 0"},
        {INFO("F32", "[1]", "[0,4]"), 3, "cut off"},
        {INFO("F32", "[1]", "[0,4]"), 5, "1 bytes after its last tensor"},
        {INFO("F32", "[2]", "[0,4]"), 4, "takes 8 bytes"},
        {INFO("F32", "[" HUGE ",4]", "[0,0]"), 0, "more elements"},
        {INFO("F32", "[" HUGE ",4,0]", "[0,0]"), 0, "more elements"},
        {INFO("F32", "[" HUGE "]", "[0,0]"), 0, "more bytes"},
        {INFO("F32", "[99999999999999999999]", "[0,0]"), 0, "whole number"},
        {INFO("F4", "[3]", "[0,1]"), 1, "whole bytes"},
        {"{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]}}", 2,
            "duplicate"},
        {"{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},'b':{'dtype':'U8','shape':[2],'data_offsets':[1,3]}}", 3,
            "tensor b: its data begins at 1, inside of another tensor's, which ends at 2"},
        {"{'a':{'dtype':'U8','shape':[2],'data_offsets':[0,2]},'b':{'dtype':'U8','shape':[2],'data_offsets':[3,5]}}", 5,
            "tensor b: its data begins at 3"},
        {"{'__metadata__':{'a':1}}", 0, "__metadata__: a is a whole number"},
        {"{'__metadata__':'x'}", 0, "__metadata__"},
        {"{'a\xff':{'dtype':'U8','shape':[],'data_offsets':[0,1]}}", 1, "JSON"},
        {"{'a':{'shape':[],'data_offsets':[0,1]}}", 1, "dtype"},
        {"{'a':{'dtype':'U8','data_offsets':[0,1]}}", 1, "shape"},
        {"{'a':{'dtype':'U8','shape':[]}}", 1, "data_offsets"},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_safetensors *file;
        FAILS(parse_header(&err, cases[i].header, cases[i].data, &file), PL_EINPUT, cases[i].message);
        assert_null(file);
    }
    pl_error err = {0};
    pl_safetensors *file;
    const char *pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n";
    FAILS(pl_safetensors_parse(&err, "p", pointer, strlen(pointer), &file), PL_EINPUT, "git lfs pull");
}

/* What the reference accepts, however odd. */
static void test_accepted_headers(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        int count;
    } cases[] = {
        {" \t\n{}", 0, 0},
        {"{'__metadata__':null}", 0, 0},
        {"{'__metadata__':{}}", 0, 0},
        {INFO("F4", "[4]", "[0,2]"), 2, 1},
        {INFO("F6_E2M3", "[4]", "[0,3]"), 3, 1},
        {INFO("F8_E8M0", "[4]", "[0,4]"), 4, 1},
        {INFO("F8_E4M3FNUZ", "[1]", "[0,1]"), 1, 1},
        {INFO("C64", "[1]", "[0,8]"), 8, 1},
        {INFO("F32", "[0," HUGE ",4]", "[0,0]"), 0, 1},
        {INFO("F32", "[1,1,1,1,1,1,1]", "[0,4]"), 4, 1},
        {"{'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1],'note':'x'}}", 1, 1},
        {"{'':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}", 1, 1},
        /* Empty tensors may lie anywhere on a boundary, and the header may list in any order. */
        {"{'b':{'dtype':'U8','shape':[2],'data_offsets':[1,3]},'e':{'dtype':'U8','shape':[0],'data_offsets':[1,1]},"
         "'a':{'dtype':'U8','shape':[1],'data_offsets':[0,1]}}",
            3, 3},
    };
    for (int i = 0; i < PL_COUNT(cases); i++) {
        pl_error err = {0};
        pl_safetensors *file;
        OK(parse_header(&err, cases[i].header, cases[i].data, &file));
        assert_int_equal(pl_safetensors_count(file), cases[i].count);
        pl_safetensors_close(file);
    }
}

/* Cut anywhere, or with any byte changed, a file is refused or read: nothing else may happen. */
static void test_every_cut_and_change(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_buf good = {0};
    OK(pl_file_read(&err, GOLDEN "/safetensors/valid/two_tensors_aligned.safetensors", &good));
    pl_safetensors *file;
    for (size_t n = 0; n < good.size; n++) {
        char *part = malloc(n + 1); /* of its own, so that a read past the end is seen */
        memcpy(part, good.data, n);
        assert_int_equal(pl_safetensors_parse(&err, "cut", n ? part : NULL, n, &file), PL_EINPUT);
        pl_error_clear(&err);
        free(part);
    }
    for (size_t i = 0; i < good.size; i++) {
        char kept = good.data[i];
        for (int change = 1; change < 256; change++) {
            good.data[i] = (char)(kept ^ change);
            int rc = pl_safetensors_parse(&err, "changed", good.data, good.size, &file);
            assert_true(rc == 0 || rc == PL_EINPUT);
            pl_safetensors_close(file);
            pl_error_clear(&err);
        }
        good.data[i] = kept;
    }
    pl_buf_free(&good);
}

/* ---- writing ---- */

/* Reads a file and writes the same tensors, listed backwards: the bytes must be those of the reference's writer. */
static void check_rewrite(const char *source, pl_dtype as, const char *target)
{
    pl_error err = {0};
    pl_safetensors *file;
    OK(pl_safetensors_open(&err, source, &file));
    int n = pl_safetensors_count(file);
    pl_st_spec *specs = calloc((size_t)n, sizeof *specs);
    for (int i = 0; i < n; i++) {
        const pl_st_tensor *t = pl_safetensors_at(file, n - 1 - i);
        specs[i] = (pl_st_spec){.name = t->name, .dtype = t->dtype, .ndim = t->ndim};
        memcpy(specs[i].shape, t->shape, (size_t)t->ndim * sizeof t->shape[0]);
    }
    pl_st_writer *w;
    OK(pl_st_writer_open(&err, target, specs, n, NULL, &w));
    float piece[4000];
    for (int i; (i = pl_st_writer_next(w)) >= 0;) {
        const pl_st_tensor *t = pl_safetensors_find(file, specs[i].name);
        for (int64_t at = 0, step = 1; at < t->numel; at += step) { /* pieces of all sizes */
            step = step * 3 % 4000 + 1;
            if (step > t->numel - at) step = t->numel - at;
            OK(pl_st_read(&err, t, at, step, as, piece));
            OK(pl_st_writer_append(&err, w, piece, as, step));
        }
    }
    assert_false(pl_file_exists(target));
    OK(pl_st_writer_commit(&err, w));
    free(specs);
    pl_safetensors_close(file);
    assert_same_bytes(source, target);
}

static void test_writes_as_the_reference(void **state)
{
    (void)state;
    char dir[64];
    scratch_make(dir);
    check_rewrite(GOLDEN "/models/llama/model.safetensors", PL_F32, path_of(dir, "a"));
    check_rewrite(GOLDEN "/formats/llama-bf16/model.safetensors", PL_BF16, path_of(dir, "b"));
    check_rewrite(GOLDEN "/formats/llama-bf16/model.safetensors", PL_F32, path_of(dir, "c")); /* there and back */
    scratch_remove(dir);
}

static void test_mixed_types(void **state)
{
    (void)state;
    pl_error err = {0};
    char dir[64];
    scratch_make(dir);
    const pl_st_spec specs[] = {{"z", PL_U8, 1, {3}}, {"b\"\\\n", PL_F16, 2, {2, 1}}, {"empty", PL_F32, 2, {0, 5}},
        {"c", PL_BF16, 1, {2}}, {"a", PL_F16, 0, {0}}, {"i", PL_I32, 1, {1}}, {"f", PL_F32, 1, {2}}};
    static const int expected[] = {6, 5, 3, 4, 1, 0}; /* f, i, c, a, b, z */
    json_t *metadata = json_pack("{s:s, s:s}", "format", "pt", "step", "7");
    pl_st_writer *w;
    OK(pl_st_writer_open(&err, path_of(dir, "m"), specs, PL_COUNT(specs), metadata, &w));
    const float values[] = {1.5f, -2.25f};
    for (int k = 0; k < PL_COUNT(expected); k++) {
        int i = pl_st_writer_next(w);
        assert_int_equal(i, expected[k]);
        int64_t n = specs[i].ndim ? specs[i].shape[0] : 1;
        if (specs[i].dtype == PL_U8) {
            FAILS(pl_st_writer_append(&err, w, values, PL_F32, 2), PL_EBUG, "no conversion");
            FAILS(pl_st_writer_append(&err, w, "xyz", PL_U8, 4), PL_EBUG, "more elements");
            OK(pl_st_writer_append(&err, w, "xyz", PL_U8, 3));
        } else if (specs[i].dtype == PL_I32) {
            const int32_t seven = 7;
            OK(pl_st_writer_append(&err, w, &seven, PL_I32, 1));
        } else {
            OK(pl_st_writer_append(&err, w, values, PL_F32, n));
        }
    }
    assert_int_equal(pl_st_writer_next(w), -1);
    FAILS(pl_st_writer_append(&err, w, values, PL_F32, 1), PL_EBUG, "none is left");
    OK(pl_st_writer_commit(&err, w));
    json_decref(metadata);

    pl_safetensors *file;
    OK(pl_safetensors_open(&err, path_of(dir, "m"), &file));
    assert_int_equal(pl_safetensors_count(file), PL_COUNT(specs));
    assert_string_equal(pl_safetensors_metadata(file, "step"), "7");
    assert_int_equal(pl_safetensors_at(file, 0)->offset % 8, 0);
    float got[2];
    OK(pl_st_read(&err, pl_safetensors_find(file, "b\"\\\n"), 0, 2, PL_F32, got));
    assert_memory_equal(got, values, sizeof got);
    OK(pl_st_read(&err, pl_safetensors_find(file, "c"), 0, 2, PL_F32, got));
    assert_memory_equal(got, values, sizeof got);
    assert_int_equal(pl_safetensors_find(file, "empty")->numel, 0);
    pl_safetensors_close(file);
    scratch_remove(dir);
}

/* Until commit the old file is as it was; what was not finished leaves nothing behind. */
static void test_whole_or_not_at_all(void **state)
{
    (void)state;
    pl_error err = {0};
    char dir[64];
    scratch_make(dir);
    const pl_st_spec spec = {"a", PL_F32, 1, {2}};
    const float values[] = {1, 2};
    write_text(path_of(dir, "m"), "old");
    pl_st_writer *w;
    OK(pl_st_writer_open(&err, path_of(dir, "m"), &spec, 1, NULL, &w));
    OK(pl_st_writer_append(&err, w, values, PL_F32, 1));
    FAILS(pl_st_writer_commit(&err, w), PL_EBUG, "1 elements of tensor a were never given");
    assert_false(pl_file_exists(path_of(dir, "m.tmp")));
    OK(pl_st_writer_open(&err, path_of(dir, "m"), &spec, 1, NULL, &w));
    OK(pl_st_writer_append(&err, w, values, PL_F32, 2));
    OK(pl_st_writer_sync(&err, w));
    pl_buf old = {0};
    OK(pl_file_read(&err, path_of(dir, "m"), &old));
    assert_string_equal(old.data, "old");
    pl_buf_free(&old);
    pl_st_writer_abort(w);
    assert_false(pl_file_exists(path_of(dir, "m.tmp")));

    const pl_st_spec twice[] = {spec, spec}, taken = {"__metadata__", PL_F32, 1, {1}},
                     negative = {"n", PL_F32, 1, {-1}};
    FAILS(pl_st_writer_open(&err, path_of(dir, "m"), twice, 2, NULL, &w), PL_EBUG, "the name is taken");
    FAILS(pl_st_writer_open(&err, path_of(dir, "m"), &taken, 1, NULL, &w), PL_EBUG, "the name is taken");
    FAILS(pl_st_writer_open(&err, path_of(dir, "m"), &negative, 1, NULL, &w), PL_EBUG, "shape");
    FAILS(pl_st_writer_open(&err, path_of(dir, "no/m"), &spec, 1, NULL, &w), PL_EIO, "no/m");
    assert_null(w);
    if (access("/dev/full", W_OK) == 0) {
        assert_int_equal(symlink("/dev/full", path_of(dir, "f.tmp")), 0);
        OK(pl_st_writer_open(&err, path_of(dir, "f"), &spec, 1, NULL, &w));
        OK(pl_st_writer_append(&err, w, values, PL_F32, 2));
        FAILS(pl_st_writer_commit(&err, w), PL_EIO, "No space left");
        assert_false(pl_file_exists(path_of(dir, "f")));
    }
    scratch_remove(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_corpus),
        cmocka_unit_test(test_whole_corpus),
        cmocka_unit_test(test_content),
        cmocka_unit_test(test_every_dtype),
        cmocka_unit_test(test_refused_headers),
        cmocka_unit_test(test_accepted_headers),
        cmocka_unit_test(test_every_cut_and_change),
        cmocka_unit_test(test_writes_as_the_reference),
        cmocka_unit_test(test_mixed_types),
        cmocka_unit_test(test_whole_or_not_at_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
