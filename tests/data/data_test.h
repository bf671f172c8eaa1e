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

#endif
