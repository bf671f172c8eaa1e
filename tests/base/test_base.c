/* Errors, buffers, files, JSON and random numbers. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"

static char folder[] = "/tmp/plait-base-XXXXXX";
static pl_error err;

/* A path in this test's folder, valid until the next call but one. */
static const char *at(const char *name)
{
    static char paths[2][256];
    static int next;
    next = !next;
    snprintf(paths[next], sizeof paths[next], "%s/%s", folder, name);
    return paths[next];
}

/* The call fails with this code and says this among other things. */
static void refused(int rc, int code, const char *says)
{
    if (rc != code || err.code != code || !strstr(err.message, says)) {
        fail_msg("%s: %s (expected %s: ...%s...)", pl_error_name(rc), err.message, pl_error_name(code), says);
    }
    pl_error_clear(&err);
}

static int fails_inside(pl_error *e)
{
    PL_TRY(0);
    PL_TRY(PL_FAIL(e, PL_EIO, "first %d", 1));
    return 0;
}

static void test_error(void **state)
{
    (void)state;
    assert_int_equal(fails_inside(&err), PL_EIO);
    assert_int_equal(PL_FAIL(&err, PL_EINPUT, "second"), PL_EINPUT);
    assert_string_equal(err.message, "first 1"); /* the first one stays */
    assert_int_equal(err.code, PL_EIO);
    assert_non_null(strstr(err.file, "test_base.c"));
    assert_true(err.line > 0);
    assert_int_equal(pl_error_prefix(&err, "%s.txt", "file"), PL_EIO);
    assert_string_equal(err.message, "file.txt: first 1");
    pl_error_clear(&err);
    assert_int_equal(err.code, 0);
    /* A message that is too long is cut, and so is what a prefix pushes out. */
    char *longer = malloc(5000);
    assert_non_null(longer);
    memset(longer, 'x', 4999);
    longer[4999] = 0;
    assert_int_equal(PL_FAIL(&err, PL_EBUG, "%s", longer), PL_EBUG);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    pl_error_prefix(&err, "place");
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    assert_memory_equal(err.message, "place: xxx", 10);
    pl_error_prefix(&err, "%s", longer);
    assert_int_equal(strlen(err.message), sizeof err.message - 1);
    pl_error_clear(&err);
    free(longer);
    assert_string_equal(pl_error_name(PL_ENOMEM), "PL_ENOMEM");
    assert_string_equal(pl_error_text(PL_EINPUT), "wrong input");
    assert_string_equal(pl_error_text(0), "no error");
    assert_string_equal(pl_error_text(-999), "unknown error");
    assert_string_equal(pl_error_name(0), "PL_OK");
}

static void test_buf(void **state)
{
    (void)state;
    pl_buf buf = {0}, expected = {0};
    assert_string_equal(pl_buf_text(&buf), "");
    pl_buf_clear(&buf);
    assert_int_equal(pl_buf_append(&err, &buf, NULL, 0), 0);
    assert_int_equal(buf.size, 0);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(pl_buf_printf(&err, &buf, "%d,", i), 0);
        assert_int_equal(buf.data[buf.size], 0);
        char text[16];
        snprintf(text, sizeof text, "%d", i);
        assert_int_equal(pl_buf_puts(&err, &expected, text), 0);
        assert_int_equal(pl_buf_putc(&err, &expected, ','), 0);
    }
    assert_int_equal(buf.size, expected.size);
    assert_string_equal(pl_buf_text(&buf), pl_buf_text(&expected));
    pl_buf_clear(&buf);
    assert_string_equal(pl_buf_text(&buf), "");
    assert_int_equal(pl_buf_append(&err, &buf, "a\0b", 3), 0);
    assert_int_equal(buf.size, 3);
    assert_memory_equal(buf.data, "a\0b", 4);
    size_t size = buf.size;
    refused(pl_buf_reserve(&err, &buf, SIZE_MAX - 1), PL_ENOMEM, "memory");
    refused(pl_buf_reserve(&err, &buf, SIZE_MAX / 2 - 1), PL_ENOMEM, "memory");
    assert_int_equal(buf.size, size);
    pl_buf_free(&buf);
    pl_buf_free(&buf);
    assert_int_equal(pl_buf_puts(&err, &buf, "again"), 0);
    assert_string_equal(buf.data, "again");
    pl_buf_free(&buf);
    pl_buf_free(&expected);
}

static void test_strings(void **state)
{
    (void)state;
    char *a, *b, *c;
    assert_int_equal(pl_strdup(&err, "plait", &a), 0);
    assert_int_equal(pl_strndup(&err, "plait", 2, &b), 0);
    assert_int_equal(pl_format(&err, &c, "%s-%05d", a, 42), 0);
    assert_string_equal(a, "plait");
    assert_string_equal(b, "pl");
    assert_string_equal(c, "plait-00042");
    free(a);
    free(b);
    free(c);
    int *zeros, *items = NULL;
    assert_int_equal(pl_calloc(&err, 100, sizeof *zeros, &zeros), 0);
    for (int i = 0; i < 100; i++) assert_int_equal(zeros[i], 0);
    free(zeros);
    assert_int_equal(pl_calloc(&err, 0, sizeof *zeros, &zeros), 0);
    assert_non_null(zeros);
    free(zeros);
    refused(pl_calloc(&err, SIZE_MAX / 2, 4, &zeros), PL_ENOMEM, "memory");
    size_t capacity = 0;
    for (size_t n = 0; n < 1000; n++) {
        assert_int_equal(pl_grow(&err, &items, &capacity, n + 1, sizeof *items), 0);
        assert_true(capacity > n);
        items[n] = (int)n;
    }
    for (int n = 0; n < 1000; n++) assert_int_equal(items[n], n);
    refused(pl_grow(&err, &items, &capacity, SIZE_MAX / 2, sizeof *items), PL_ENOMEM, "memory");
    refused(pl_grow(&err, &items, &capacity, SIZE_MAX, sizeof *items), PL_ENOMEM, "memory");
    assert_int_equal(items[999], 999);
    free(items);
}

static int count_piece(pl_error *e, void *user, const void *bytes, size_t size)
{
    (void)e;
    (void)bytes;
    *(size_t *)user += size;
    return 0;
}

static int refuse_piece(pl_error *e, void *user, const void *bytes, size_t size)
{
    (void)user;
    (void)bytes;
    (void)size;
    return PL_FAIL(e, PL_EINPUT, "that is enough");
}

static void test_files(void **state)
{
    (void)state;
    pl_buf buf = {0};
    pl_map map;
    refused(pl_map_open(&err, at("nothing"), &map), PL_ENOENT, "nothing");
    refused(pl_map_open(&err, folder, &map), PL_EINPUT, "folder");
    refused(pl_map_open(&err, "/dev/null", &map), PL_EINPUT, "regular");
    refused(pl_file_read(&err, at("nothing/deeper"), &buf), PL_ENOENT, "nothing/deeper");
    assert_false(pl_file_exists(at("nothing")));
    assert_true(pl_dir_exists(folder));
    assert_false(pl_file_exists(folder));

    assert_int_equal(pl_file_write(&err, at("empty"), "", 0), 0);
    assert_int_equal(pl_map_open(&err, at("empty"), &map), 0);
    assert_true(map.data == NULL && map.size == 0);
    pl_map_close(&map);
    assert_int_equal(pl_file_read(&err, at("empty"), &buf), 0);
    assert_int_equal(buf.size, 0);

    /* Larger than the writer's buffer, in pieces of all sizes. */
    size_t size = (size_t)3 << 20;
    unsigned char *bytes = malloc(size);
    assert_non_null(bytes);
    for (size_t i = 0; i < size; i++) bytes[i] = (unsigned char)(i * 7 + i / 251);
    pl_writer w;
    assert_int_equal(pl_writer_open(&err, &w, at("large")), 0);
    for (size_t i = 0, n = 1; i < size; i += n, n = n * 3 % 1500007) {
        if (n > size - i) n = size - i;
        assert_int_equal(pl_writer_write(&err, &w, bytes + i, n), 0);
    }
    assert_int_equal(w.written, size);
    assert_false(pl_file_exists(at("large"))); /* not before the commit */
    assert_int_equal(pl_writer_commit(&err, &w), 0);
    pl_writer_abort(&w);
    assert_false(pl_file_exists(at("large.tmp")));
    assert_int_equal(pl_map_open(&err, at("large"), &map), 0);
    assert_int_equal(map.size, size);
    assert_memory_equal(map.data, bytes, size);
    pl_map_close(&map);
    pl_buf_clear(&buf);
    assert_int_equal(pl_buf_puts(&err, &buf, "before"), 0);
    assert_int_equal(pl_file_read(&err, at("large"), &buf), 0);
    assert_int_equal(buf.size, size + 6);
    assert_memory_equal(buf.data + 6, bytes, size);

    assert_int_equal(pl_file_copy(&err, at("large"), at("copy")), 0);
    assert_int_equal(pl_map_open(&err, at("copy"), &map), 0);
    assert_int_equal(map.size, size);
    assert_memory_equal(map.data, bytes, size);
    pl_map_close(&map);
    refused(pl_file_copy(&err, at("nothing"), at("copy")), PL_ENOENT, "nothing");
    assert_false(pl_file_exists(at("copy.tmp")));
    size_t seen = 0;
    assert_int_equal(pl_file_stream(&err, at("large"), count_piece, &seen), 0);
    assert_int_equal(seen, size);
    refused(pl_file_stream(&err, at("large"), refuse_piece, NULL), PL_EINPUT, "enough");

    /* An aborted write leaves the old file and nothing beside it. */
    assert_int_equal(pl_writer_open(&err, &w, at("large")), 0);
    assert_int_equal(pl_writer_write(&err, &w, "x", 1), 0);
    pl_writer_abort(&w);
    assert_false(pl_file_exists(at("large.tmp")));
    assert_int_equal(pl_map_open(&err, at("large"), &map), 0);
    assert_int_equal(map.size, size);
    pl_map_close(&map);
    refused(pl_writer_open(&err, &w, at("nowhere/file")), PL_EIO, "nowhere/file");
    pl_writer_abort(&w);
    free(bytes);
    pl_buf_free(&buf);
}

/* KiB of the mapping that are resident in this process. */
static long resident(const pl_map *map)
{
    char line[512], start[32];
    long kib = -1;
    bool found = false;
    FILE *smaps = fopen("/proc/self/smaps", "r");
    assert_non_null(smaps);
    snprintf(start, sizeof start, "%lx-", (unsigned long)map->data);
    while (kib < 0 && fgets(line, sizeof line, smaps)) {
        found |= strncmp(line, start, strlen(start)) == 0;
        if (found && strncmp(line, "Rss:", 4) == 0) kib = strtol(line + 4, NULL, 10);
    }
    fclose(smaps);
    assert_true(kib >= 0);
    return kib;
}

static unsigned sum_of(const pl_map *map)
{
    unsigned sum = 0;
    for (size_t i = 0; i < map->size; i += 1024) sum += map->data[i];
    return sum;
}

/* What is forgotten is no longer resident, and is there again when it is looked at. */
static void test_forget(void **state)
{
    (void)state;
    enum { SIZE = 5 << 20 };
    pl_map map;
    unsigned char *bytes = malloc(SIZE);
    assert_non_null(bytes);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (unsigned char)(i * 13 + i / 509);
    assert_int_equal(pl_file_write(&err, at("pages"), bytes, SIZE - 100), 0);
    free(bytes);
    assert_int_equal(pl_map_open(&err, at("pages"), &map), 0);
    unsigned sum = sum_of(&map);
    assert_int_equal(resident(&map), SIZE >> 10);
    pl_map_forget(&map, map.data + 1000, 3 << 20);
    assert_in_range(resident(&map), 0, 2 << 10);
    pl_map_forget(&map, map.data, map.size);
    assert_int_equal(resident(&map), 0);
    assert_int_equal(sum_of(&map), sum);
    pl_map_forget(NULL, map.data, map.size); /* of another's memory nothing is known */
    pl_map_forget(&(pl_map){0}, map.data, map.size);
    assert_int_equal(resident(&map), SIZE >> 10);
    pl_map_close(&map);
}

/* A disk without room: the error names the file, and the old one stays. */
static void test_full_disk(void **state)
{
    (void)state;
    pl_writer w;
    assert_int_equal(pl_file_write(&err, at("old"), "old", 3), 0);
    assert_int_equal(pl_writer_open(&err, &w, at("old")), 0);
    int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
    if (full < 0) {
        pl_writer_abort(&w);
        skip();
    }
    assert_true(dup2(full, w.fd) >= 0);
    close(full);
    assert_int_equal(pl_writer_write(&err, &w, "new", 3), 0); /* into the buffer */
    refused(pl_writer_commit(&err, &w), PL_EIO, "old");
    assert_false(pl_file_exists(at("old.tmp")));
    pl_buf buf = {0};
    assert_int_equal(pl_file_read(&err, at("old"), &buf), 0);
    assert_string_equal(buf.data, "old");
    pl_buf_free(&buf);
}

static void test_folders(void **state)
{
    (void)state;
    assert_int_equal(pl_dir_make(&err, at("a/b/c")), 0);
    assert_int_equal(pl_dir_make(&err, at("a/b/c")), 0);
    assert_true(pl_dir_exists(at("a/b/c")));
    assert_int_equal(pl_file_write(&err, at("a/b/file"), "x", 1), 0);
    refused(pl_dir_make(&err, at("a/b/file")), PL_EIO, "is a file");
    refused(pl_dir_make(&err, at("a/b/file/below")), PL_EIO, "file");
    assert_int_equal(symlink("/etc", at("a/link")), 0); /* removed, not followed */
    assert_int_equal(pl_dir_sync(&err, at("a")), 0);
    refused(pl_dir_sync(&err, at("nothing")), PL_ENOENT, "nothing");
    assert_int_equal(pl_dir_remove(&err, at("a")), 0);
    assert_false(pl_dir_exists(at("a")));
    assert_true(pl_dir_exists("/etc"));
    assert_int_equal(pl_dir_remove(&err, at("a")), 0);
    static const char *const joins[][3] = {{"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"", "b", "b"}, {"/", "b", "/b"}};
    for (int i = 0; i < PL_COUNT(joins); i++) {
        char *path;
        assert_int_equal(pl_path_join(&err, joins[i][0], joins[i][1], &path), 0);
        assert_string_equal(path, joins[i][2]);
        free(path);
    }
}

static void test_json(void **state)
{
    (void)state;
    static const char text[] =
        "{\"i\": 7, \"r\": 2.5, \"whole\": 3.0, \"b\": true, \"s\": \"x\", \"n\": null, \"z\": \"a\\u0000b\"}";
    json_t *value;
    assert_int_equal(pl_json_parse(&err, "some.json", text, sizeof text - 1, &value), 0);
    int64_t i = -1;
    double r = -1;
    bool b = false;
    const char *s = "default";
    assert_int_equal(pl_json_int(&err, "some.json", value, "i", &i), 0);
    assert_int_equal(i, 7);
    assert_int_equal(pl_json_int(&err, "some.json", value, "whole", &i), 0);
    assert_int_equal(i, 3);
    assert_int_equal(pl_json_real(&err, "some.json", value, "r", &r), 0);
    assert_true(r == 2.5);
    assert_int_equal(pl_json_real(&err, "some.json", value, "i", &r), 0);
    assert_true(r == 7);
    assert_int_equal(pl_json_bool(&err, "some.json", value, "b", &b), 0);
    assert_true(b);
    assert_int_equal(pl_json_string(&err, "some.json", value, "absent", &s), 0);
    assert_int_equal(pl_json_string(&err, "some.json", value, "n", &s), 0);
    assert_string_equal(s, "default");
    assert_int_equal(pl_json_string(&err, "some.json", value, "s", &s), 0);
    assert_string_equal(s, "x");
    refused(pl_json_int(&err, "some.json", value, "r", &i), PL_EINPUT, "r is a number; a whole number");
    refused(pl_json_int(&err, "some.json", value, "s", &i), PL_EINPUT, "some.json: s is a string");
    refused(pl_json_real(&err, "some.json", value, "b", &r), PL_EINPUT, "b is true");
    refused(pl_json_bool(&err, "some.json", value, "i", &b), PL_EINPUT, "i is a whole number");
    refused(pl_json_string(&err, "some.json", value, "i", &s), PL_EINPUT, "a string was expected");
    refused(pl_json_string(&err, "some.json", value, "z", &s), PL_EINPUT, "zero byte");
    json_decref(value);

    static const char *const wrong[] = {
        "", "{", "[1, 2", "{\"a\": 1, \"a\": 2}", "[1] 2", "nul", "\"\xff\"", "[NaN]", "[Infinity]", "{\"a\" 1}"};
    for (int k = 0; k < PL_COUNT(wrong); k++) {
        refused(pl_json_parse(&err, "wrong.json", wrong[k], strlen(wrong[k]), &value), PL_EINPUT, "wrong.json:1: ");
    }
    refused(pl_json_parse(&err, "wrong.json", "{\n\"a\": 1,\n]", 11, &value), PL_EINPUT, "wrong.json:3: ");
    refused(pl_json_read(&err, at("absent.json"), &value), PL_ENOENT, "absent.json");
}

static void test_json_file(void **state)
{
    (void)state;
    json_t *value = json_pack("{s:[i,f,b], s:s}", "list", 1, 0.1, 1, "text", "h\xc3\xa9"), *back;
    assert_non_null(value);
    assert_int_equal(pl_json_write(&err, at("some.json"), value), 0);
    assert_int_equal(pl_json_read(&err, at("some.json"), &back), 0);
    assert_true(json_equal(value, back));
    pl_buf buf = {0};
    assert_int_equal(pl_file_read(&err, at("some.json"), &buf), 0);
    assert_int_equal(buf.data[buf.size - 1], '\n');
    assert_non_null(strstr(buf.data, "\n  \"list\""));
    pl_buf_free(&buf);
    json_decref(value);
    json_decref(back);
}

static int messages;

static void take_message(void *user, enum pl_log_level level, const char *message)
{
    assert_ptr_equal(user, &messages);
    assert_int_equal(level, PL_LOG_WARNING);
    assert_string_equal(message, "seven 7");
    messages++;
}

static void test_log(void **state)
{
    (void)state;
    pl_log log = {.sink = take_message, .user = &messages}, none = {0};
    pl_logf(&log, PL_LOG_WARNING, "seven %d", 7);
    pl_logf(&none, PL_LOG_INFO, "nobody");
    pl_logf(NULL, PL_LOG_INFO, "nobody");
    assert_int_equal(messages, 1);
}

/* Known answers of Philox 4x32-10: the vectors that came with Salmon et al. 2011. */
static void test_philox(void **state)
{
    (void)state;
    static const struct {
        pl_rng rng;
        uint64_t index;
        uint32_t out[4];
    } known[] = {
        {{0, 0, 0}, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{UINT64_MAX, UINT32_MAX, UINT32_MAX}, UINT64_MAX, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x299f31d0a4093822, 0x03707344, 0x13198a2e}, 0x85a308d3243f6a88,
            {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (int k = 0; k < PL_COUNT(known); k++) {
        uint32_t out[4];
        pl_rng_block(&known[k].rng, known[k].index, out);
        assert_memory_equal(out, known[k].out, sizeof out);
    }
}

static void test_distributions(void **state)
{
    (void)state;
    enum { N = 100000 };
    pl_rng rng = {.seed = 42, .stream = PL_RNG_INIT, .domain = 3}, other = rng;
    other.domain = 4;
    double sum = 0, square = 0, mean = 0, variance = 0, fourth = 0, product = 0;
    int counts[7] = {0};
    for (uint64_t i = 0; i < N; i++) {
        double u = pl_rng_uniform(&rng, i), z = pl_rng_normal(&rng, i);
        assert_true(u >= 0 && u < 1 && isfinite(z));
        sum += u;
        square += u * u;
        product += (u - 0.5) * (pl_rng_uniform(&other, i) - 0.5);
        mean += z;
        variance += z * z;
        fourth += z * z * z * z;
        uint64_t below = pl_rng_below(&rng, i, 7);
        assert_true(below < 7);
        counts[below]++;
    }
    /* Five standard errors each. */
    double root = sqrt(N);
    assert_true(fabs(sum / N - 0.5) < 5 * sqrt(1 / 12.0) / root);
    assert_true(fabs(square / N - 1 / 3.0) < 5 * sqrt(4 / 45.0) / root);
    assert_true(fabs(product / N) < 5 / 12.0 / root);
    assert_true(fabs(mean / N) < 5 / root);
    assert_true(fabs(variance / N - 1) < 5 * sqrt(2) / root);
    assert_true(fabs(fourth / N - 3) < 5 * sqrt(96) / root);
    for (int k = 0; k < 7; k++) assert_true(fabs(counts[k] - N / 7.0) < 5 * sqrt(N * 6 / 49.0));
    assert_int_equal(pl_rng_below(&rng, 5, 1), 0);
}

/* Every n up to 300 and some larger ones: each place is taken once. And it is not the identity. */
static void test_permute(void **state)
{
    (void)state;
    static const uint64_t large[] = {1023, 1024, 1025, 4096, 4097, 65537, 100003};
    unsigned char *seen = malloc(100003);
    assert_non_null(seen);
    for (uint64_t k = 1; k < 300 + PL_COUNT(large); k++) {
        uint64_t n = k < 300 ? k : large[k - 300], fixed = 0;
        pl_rng rng = {.seed = k, .stream = PL_RNG_SHUFFLE, .domain = 1};
        memset(seen, 0, n);
        for (uint64_t i = 0; i < n; i++) {
            uint64_t p = pl_rng_permute(&rng, i, n);
            assert_true(p < n && !seen[p]);
            seen[p] = 1;
            fixed += p == i;
        }
        /* A random permutation has one fixed point on average. */
        assert_true(n < 20 || fixed < 12);
    }
    free(seen);
    /* Where a table would not fit: still in range, still injective on a sample. */
    pl_rng rng = {.seed = 9};
    uint64_t huge = (uint64_t)1 << 62, last = huge;
    for (uint64_t i = 0; i < 100; i++) {
        uint64_t p = pl_rng_permute(&rng, huge - 1 - i, huge);
        assert_true(p < huge && p != last);
        last = p;
    }
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return pl_dir_remove(&err, folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error),
        cmocka_unit_test(test_buf),
        cmocka_unit_test(test_strings),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_forget),
        cmocka_unit_test(test_full_disk),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_json_file),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_philox),
        cmocka_unit_test(test_distributions),
        cmocka_unit_test(test_permute),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
