#include "data/reader.h"

#include "data_test.h"

/* All examples of a file, "line:bytes|" each, or the message of the error. */
static int read_all(const char *path, pl_buf *out)
{
    static pl_error err;
    pl_reader *reader = NULL;
    pl_error_clear(&err);
    pl_buf_clear(out);
    pl_record record;
    int rc = pl_reader_open(&err, path, &reader);
    while (rc == 0 && (rc = pl_reader_next(&err, reader, &record)) == 0 && record.bytes) {
        pl_error none = {0};
        pl_buf_printf(&none, out, "%lld:%.*s|", (long long)record.line, (int)record.size, record.bytes);
    }
    if (rc < 0) {
        pl_error none = {0};
        pl_buf_clear(out);
        pl_buf_puts(&none, out, err.message);
        assert_true(strncmp(err.message, path, strlen(path)) == 0);
        memmove(out->data, out->data + strlen(path), out->size - strlen(path) + 1);
    }
    pl_reader_close(reader);
    return rc;
}

static void check(const char *name, const char *text, const char *expected)
{
    static const char *const packing[] = {"", ".gz", ".zst"};
    pl_buf out = {0};
    for (int i = 0; i < 3; i++) {
        for (size_t members = 1; members <= 3; members += 2) {
            char full[64];
            snprintf(full, sizeof full, "%s%s", name, packing[i]);
            if (i && strlen(text) < 8) continue;
            read_all(write_packed(full, text, strlen(text), members), &out);
            assert_string_equal(pl_buf_text(&out), expected);
        }
    }
    pl_buf_free(&out);
}

static void test_lines(void **state)
{
    (void)state;
    check("a.jsonl", "{\"a\": 1}\n{\"a\": 2}\n", "1:{\"a\": 1}|2:{\"a\": 2}|");
    check("a.jsonl", "{\"a\": 1}\r\n\r\n  \n {\"a\": 2} \r\n\n", "1:{\"a\": 1}|4:{\"a\": 2}|");
    check("a.ndjson", "\xef\xbb\xbf{\"a\": 1}\n{\"a\": 2}", "1:{\"a\": 1}|2:{\"a\": 2}|");
    check("A.JSONL", "[{\"a\": 1},\n{\"a\": 2}]", "1:{\"a\": 1}|2:{\"a\": 2}|");
    check("a.jsonl", "", "");
    check("a.jsonl", "\n\n", "");
    check("a.jsonl", "{\"a\": \n", "1:{\"a\":|"); /* what is in a line is the caller's to parse */
}

static void test_json(void **state)
{
    (void)state;
    check("a.json", "[{\"a\": \"]}\\\"\"},\n\n {\"b\": [1, {}]} ]\n", "1:{\"a\": \"]}\\\"\"}|3:{\"b\": [1, {}]}|");
    check("a.json", " [ ] ", "");
    check("a.json", "[1, \"x\", true,{}]", "1:1|1:\"x\"|1:true|1:{}|");
    check("a.json", "{\"a\": 1}\n{\"a\": 2}", "1:{\"a\": 1}|2:{\"a\": 2}|");
    check("a.json", "{\"a\":\n 1}{\"a\": 2}", "1:{\"a\":\n 1}|2:{\"a\": 2}|");
    check("a.json",
        "{\"version\": \"1\", \"x\": [{}],\n \"data\": [\n{\"a\": 1}, {\"a\": 2}], \"n\": {\"m\": [2]}, \"k\": 3}\n",
        "3:{\"a\": 1}|3:{\"a\": 2}|");
    /* Fields of an example are no wrapper. */
    check("a.json", "{\"messages\": [{\"role\": \"user\"}]}", "1:{\"messages\": [{\"role\": \"user\"}]}|");
    check("a.json", "{\"data\": \"text\"}", "1:{\"data\": \"text\"}|");
}

static void test_broken(void **state)
{
    (void)state;
    check("a.json", "[{\"a\": 1}\n {\"a\": 2}]", ":2: a , or ] was expected between the values of the array");
    check("a.json", "[{\"a\": 1},\n]  ", ":2: a value was expected after the last , of the array");
    check("a.json", "[{\"a\": 1},\n {\"a\": 2}\n", ":3: the array of examples is not closed; is the file cut off?");
    check("a.json", "[{\"a\": 1}]\n{\"a\": 2}", ":2: more text after the end of the array of examples");
    check("a.json", "[{\"a\": 1},\n\n{\"a\": [2}",
        ":3: the value that starts here has no end; is the file cut off, or a bracket or quote missing?");
    check("a.json", "{\"a\": 1}\n12345678", ":2: an example (a JSON object) was expected, not 1");
    check("a.json", "{\"data\": [{\"a\": 1}],\n\"train\": [{\"a\": 2}]}",
        ":2: a second array of examples in one file; make each a file of its own");
    check("a.json", "{\"data\": [{\"a\": 1}]\n", ":2: a , or } was expected after the array of examples");
    pl_buf out = {0};
    assert_int_equal(read_all(write_text("a.csv", "a,b\n"), &out), PL_EINPUT);
    assert_non_null(strstr(out.data, ".jsonl"));
    assert_int_equal(read_all(write_packed("u.jsonl", "\xff\xfe{\0", 4, 1), &out), PL_EINPUT);
    assert_non_null(strstr(out.data, "UTF-16"));
    assert_int_equal(read_all(in_folder("none.jsonl"), &out), PL_ENOENT);
    pl_buf_free(&out);
}

/* A packed file that is cut off anywhere is an error, and so is one with a flipped bit or with something behind it. */
static void test_damaged(void **state)
{
    (void)state;
    static const char *const names[] = {"d.jsonl.gz", "d.jsonl.zst"};
    pl_error err = {0};
    pl_buf text = {0}, packed = {0}, out = {0};
    for (int i = 0; i < 500; i++) pl_buf_printf(&err, &text, "{\"text\": \"line %d of it, %x\"}\n", i, i * 2654435761u);
    for (int i = 0; i < 2; i++) {
        pl_buf_clear(&packed);
        pack(names[i], text.data, text.size, &packed);
        const char *path = in_folder(names[i]);
        for (size_t cut = 5; cut < packed.size; cut += 97) {
            assert_int_equal(pl_file_write(&err, path, packed.data, cut), 0);
            assert_int_equal(read_all(path, &out), PL_EINPUT);
            assert_non_null(strstr(out.data, "cut off"));
        }
        pl_buf_append(&err, &packed, "rubbish", 7);
        assert_int_equal(pl_file_write(&err, path, packed.data, packed.size), 0);
        assert_int_equal(read_all(path, &out), PL_EINPUT);
        assert_non_null(strstr(out.data, ":501: "));
    }
    pl_buf_clear(&packed);
    pack(names[0], text.data, text.size, &packed);
    packed.data[packed.size / 2] ^= 0x10;
    pl_file_write(&err, in_folder(names[0]), packed.data, packed.size);
    assert_int_equal(read_all(in_folder(names[0]), &out), PL_EINPUT);
    assert_int_equal(read_all(write_text("n.jsonl.gz", "") /* no bytes at all */, &out), 0);
    pl_file_write(&err, in_folder("n.jsonl.gz"), "{}\n", 3);
    assert_int_equal(read_all(in_folder("n.jsonl.gz"), &out), PL_EINPUT);
    assert_non_null(strstr(out.data, "not gzip"));
    pl_buf_free(&text);
    pl_buf_free(&packed);
    pl_buf_free(&out);
}

/* Lines and values far longer than what is read at once, and right across its borders. */
static void test_long(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_buf line = {0}, file = {0};
    for (size_t n = 262130; n < 262150; n += 3) {
        pl_buf_clear(&line);
        pl_buf_puts(&err, &line, "{\"text\": \"");
        for (size_t i = 0; i < n; i++) pl_buf_putc(&err, &line, (char)('a' + i % 26));
        pl_buf_puts(&err, &line, "\"}");
        for (int kind = 0; kind < 2; kind++) {
            pl_buf_clear(&file);
            for (int i = 0; i < 5; i++) {
                pl_buf_puts(&err, &file, kind == 0 ? "" : i == 0 ? "[" : ",");
                pl_buf_append(&err, &file, line.data, line.size);
                pl_buf_puts(&err, &file, kind == 1 && i == 4 ? "]" : "\r\n");
            }
            const char *path = write_packed(kind ? "long.json.zst" : "long.jsonl", file.data, file.size, 2);
            pl_reader *reader;
            pl_record record;
            assert_int_equal(pl_reader_open(&err, path, &reader), 0);
            for (int i = 0; i < 5; i++) {
                assert_int_equal(pl_reader_next(&err, reader, &record), 0);
                assert_int_equal(record.line, i + 1);
                assert_int_equal(record.size, line.size);
                assert_memory_equal(record.bytes, line.data, line.size);
            }
            assert_int_equal(pl_reader_next(&err, reader, &record), 0);
            assert_null(record.bytes);
            pl_reader_close(reader);
        }
    }
    pl_buf_free(&line);
    pl_buf_free(&file);
}

static int read_text(const char *path, size_t want, pl_buf *out, char *message)
{
    static pl_error err;
    pl_error_clear(&err);
    pl_reader *reader = NULL;
    bool more = true;
    pl_buf_clear(out);
    int rc = pl_reader_open(&err, path, &reader);
    if (rc == 0) assert_true(pl_reader_is_text(reader));
    while (rc == 0 && more) {
        size_t before = out->size;
        rc = pl_reader_text(&err, reader, want, out, &more);
        if (rc == 0 && more) assert_true(out->size - before >= want);
    }
    strcpy(message, err.message + (rc < 0 ? strlen(path) : 0));
    pl_reader_close(reader);
    return rc;
}

static void test_text(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_buf text = {0}, expected = {0}, out = {0};
    char message[2048];
    pl_buf_puts(&err, &text, "\xef\xbb\xbf");
    for (int i = 0; i < 20000; i++) {
        const char *line = i % 3 == 0   ? "\xe4\xb8\xad\xe6\x96\x87 \xf0\x9f\x99\x82"
                           : i % 3 == 1 ? "caf\xc3\xa9\r!"
                                        : "";
        pl_buf_printf(&err, &text, "%s\r\n", line);
        pl_buf_printf(&err, &expected, "%s\n", line);
    }
    pl_buf_puts(&err, &text, "end\r");
    pl_buf_puts(&err, &expected, "end\r");
    static const char *const names[] = {"t.txt", "t.txt.gz", "t.txt.zst"};
    for (int i = 0; i < 3; i++) {
        const char *path = write_packed(names[i], text.data, text.size, 3);
        for (size_t want = 1; want < 200000; want = want * 3 + 1) {
            assert_int_equal(read_text(path, want, &out, message), 0);
            assert_int_equal(out.size, expected.size);
            assert_memory_equal(out.data, expected.data, out.size);
        }
    }
    static const char *const bad[] = {"\xff", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe4\xb8", "\x80 x"};
    for (int i = 0; i < 6; i++) {
        for (int tail = 0; tail < 2; tail++) {
            pl_buf_clear(&text);
            pl_buf_printf(&err, &text, "one\ntwo\r\nthree %s%s", bad[i], tail ? " and on and on\n" : "");
            const char *path = write_packed("bad.txt", text.data, text.size, 1);
            assert_int_equal(read_text(path, 100, &out, message), PL_EINPUT);
            assert_memory_equal(message, ":3: byte 0x", 11);
        }
    }
    assert_int_equal(read_text(write_text("empty.txt", ""), 100, &out, message), 0);
    assert_int_equal(out.size, 0);
    pl_buf_free(&text);
    pl_buf_free(&expected);
    pl_buf_free(&out);
}

static void test_identity(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_file_identity whole, read, other;
    pl_buf out = {0};
    const char *path = write_text("i.jsonl.gz", "{\"a\": 1}\n{\"a\": 2}\n");
    pl_reader *reader;
    pl_record record = {.bytes = ""};
    assert_int_equal(pl_reader_open(&err, path, &reader), 0);
    while (record.bytes) assert_int_equal(pl_reader_next(&err, reader, &record), 0);
    pl_reader_identity(reader, &read);
    pl_reader_close(reader);
    assert_int_equal(pl_file_identify(&err, path, true, &whole), 0);
    assert_memory_equal(&whole, &read, sizeof whole);
    path = write_text("i.jsonl.gz", "{\"a\": 1}\n{\"a\": 3}\n");
    assert_int_equal(pl_file_identify(&err, path, true, &other), 0);
    assert_memory_not_equal(other.hash, whole.hash, sizeof whole.hash);
    pl_buf_free(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_json),
        cmocka_unit_test(test_broken),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_identity),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
