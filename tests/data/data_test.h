/* What the tests of the data folder share: a folder of their own and files in it, plain or packed. */
#ifndef PL_TESTS_DATA_DATA_TEST_H
#define PL_TESTS_DATA_DATA_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <zlib.h>
#include <zstd.h>

#include "base/file.h"
#include "data/chat.h"
#include "data/tokenizer.h"

static char test_folder[] = "/tmp/plait-data-test-XXXXXX";

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(test_folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    pl_error err = {0};
    return pl_dir_remove(&err, test_folder);
}

/* The path of a file in the folder; the last few stay valid. */
static inline const char *in_folder(const char *name)
{
    static char paths[8][256];
    static int next;
    char *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", test_folder, name);
    return path;
}

/* A member of gzip or a frame of zstd, by the ending of the name; appended to `out`. */
static inline void pack(const char *name, const void *bytes, size_t size, pl_buf *out)
{
    pl_error err = {0};
    size_t n = strlen(name);
    if (n > 3 && strcmp(name + n - 3, ".gz") == 0) {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        size_t bound = deflateBound(&z, size);
        assert_int_equal(pl_buf_reserve(&err, out, bound), 0);
        z.next_in = (unsigned char *)bytes;
        z.avail_in = (unsigned)size;
        z.next_out = (unsigned char *)out->data + out->size;
        z.avail_out = (unsigned)bound;
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        out->size += z.total_out;
        deflateEnd(&z);
    } else if (n > 4 && strcmp(name + n - 4, ".zst") == 0) {
        size_t bound = ZSTD_compressBound(size);
        assert_int_equal(pl_buf_reserve(&err, out, bound), 0);
        size_t used = ZSTD_compress(out->data + out->size, bound, bytes, size, 3);
        assert_false(ZSTD_isError(used));
        out->size += used;
    } else {
        assert_int_equal(pl_buf_append(&err, out, bytes, size), 0);
    }
}

/* Writes a file of the folder, packed as its name says, in `members` parts. */
static inline const char *write_packed(const char *name, const void *bytes, size_t size, size_t members)
{
    pl_error err = {0};
    pl_buf packed = {0};
    for (size_t i = 0; i < members; i++) {
        size_t from = size * i / members, to = size * (i + 1) / members;
        pack(name, (const char *)bytes + from, to - from, &packed);
    }
    const char *path = in_folder(name);
    assert_int_equal(pl_file_write(&err, path, pl_buf_text(&packed), packed.size), 0);
    pl_buf_free(&packed);
    return path;
}

static inline const char *write_text(const char *name, const char *text)
{
    return write_packed(name, text, strlen(text), 1);
}

/* A tokenizer with a token for each byte (its id is the byte), "ll" and " t" besides, <s> in front of a text, and </s>,
   <|im_start|> and <|im_end|>: byte-level BPE as GPT-2's, so that ids are easy to tell by hand. */
enum { TEST_LL = 256, TEST_SPACE_T, TEST_BOS, TEST_EOS, TEST_IM_START, TEST_IM_END, TEST_VOCAB };

static inline void test_byte_name(int byte, pl_buf *out)
{
    pl_error err = {0};
    int code = byte, next = 256;
    for (int b = 0; b <= byte; b++) {
        bool plain = (b > 32 && b < 127) || (b > 160 && b != 173);
        code = plain ? b : next++;
    }
    if (code < 128) {
        if (code == '"' || code == '\\') pl_buf_putc(&err, out, '\\');
        pl_buf_putc(&err, out, (char)code);
    } else {
        pl_buf_printf(&err, out, "\\u%04x", code);
    }
}

/* Appends its tokenizer.json. */
static inline void test_tokenizer_json(pl_buf *out)
{
    static const char *const special[] = {"<s>", "</s>", "<|im_start|>", "<|im_end|>"};
    pl_error err = {0};
    pl_buf_puts(&err, out, "{\"version\": \"1.0\", \"truncation\": null, \"padding\": null, \"added_tokens\": [");
    for (int i = 0; i < 4; i++) {
        pl_buf_printf(&err, out,
            "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, \"lstrip\": false, "
            "\"rstrip\": false, \"normalized\": false, \"special\": true}",
            i ? "," : "", TEST_BOS + i, special[i]);
    }
    pl_buf_puts(&err, out,
        "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false, \"trim_offsets\": true, \"use_regex\": true}, \"post_processor\": {\"type\": "
        "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, "
        "{\"Sequence\": {\"id\": \"A\", \"type_id\": 0}}], \"pair\": [{\"Sequence\": {\"id\": \"A\", "
        "\"type_id\": 0}}, {\"Sequence\": {\"id\": \"B\", \"type_id\": 1}}], \"special_tokens\": {\"<s>\": "
        "{\"id\": \"<s>\", \"ids\": [258], \"tokens\": [\"<s>\"]}}}, \"decoder\": {\"type\": "
        "\"ByteLevel\"}, \"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (int b = 0; b < 256; b++) {
        pl_buf_puts(&err, out, "\"");
        test_byte_name(b, out);
        pl_buf_printf(&err, out, "\": %d,", b);
    }
    pl_buf_puts(&err, out, "\"ll\": 256, \"\\u0120t\": 257}, \"merges\": [\"l l\", \"\\u0120 t\"]}}");
}

static inline pl_tokenizer *test_tokenizer(void)
{
    pl_error err = {0};
    pl_buf j = {0};
    pl_tokenizer *tokenizer = NULL;
    test_tokenizer_json(&j);
    if (pl_tokenizer_parse(&err, "test", j.data, j.size, &tokenizer) < 0) fail_msg("%s", err.message);
    pl_buf_free(&j);
    return tokenizer;
}

/* The same in a folder of that name. */
static inline const char *test_tokenizer_folder(const char *name)
{
    pl_error err = {0};
    pl_buf j = {0};
    const char *folder = in_folder(name);
    char path[300];
    test_tokenizer_json(&j);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    if (pl_dir_make(&err, folder) < 0 || pl_file_write(&err, path, j.data, j.size) < 0) fail_msg("%s", err.message);
    pl_buf_free(&j);
    return folder;
}

/* A chat template in the manner of ChatML, with calls and the number of tools. */
static inline pl_chat *test_chat(void)
{
    static const char text[] =
        "{% if tools %}<tools {{ tools | length }} {{ tools[0].function.name }}>{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
        "{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments | tojson }}){% endfor %}"
        "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    pl_error err = {0};
    pl_chat *chat = NULL;
    if (pl_chat_from_text(&err, "test", text, sizeof text - 1, NULL, &chat) < 0) fail_msg("%s", err.message);
    return chat;
}

#endif
