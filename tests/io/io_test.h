/* What the tests of src/io share: cmocka, an error record that must stay clean, paths, and a folder to write in. */
#ifndef PL_IO_TEST_H
#define PL_IO_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "support/expect.h"

#define GOLDEN PLAIT_TEST_DIR "/golden"
#define SHARED PLAIT_TEST_DIR "/../../shared"

/* A path in one of some rotating buffers. */
static inline const char *path_of(const char *dir, const char *name)
{
    static char paths[16][1024];
    static int next;
    char path[1024]; /* dir may be one of the buffers */
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return strcpy(paths[next++ % 16], path);
}

/* A fresh folder for one test; remove it with pl_dir_remove. */
static inline void scratch_make(char dir[64])
{
    strcpy(dir, "/tmp/plait-test-XXXXXX");
    assert_non_null(mkdtemp(dir));
}

static inline void scratch_remove(char dir[64])
{
    pl_error err = {0};
    OK(pl_dir_remove(&err, dir));
}

/* The same as fixtures, for files whose tests each have a folder. */
static char scratch[64];

static inline int scratch_setup(void **state)
{
    (void)state;
    scratch_make(scratch);
    return 0;
}

static inline int scratch_teardown(void **state)
{
    (void)state;
    scratch_remove(scratch);
    return 0;
}

static inline void write_text(const char *path, const char *text)
{
    pl_error err = {0};
    OK(pl_file_write(&err, path, text, strlen(text)));
}

/* A JSON document written with ' for ", so that tests stay readable. */
static inline void write_json(const char *path, const char *text)
{
    pl_error err = {0};
    pl_buf buf = {0};
    OK(pl_buf_puts(&err, &buf, text));
    for (char *c = buf.data; *c; c++) {
        if (*c == '\'') *c = '"';
    }
    OK(pl_file_write(&err, path, buf.data, buf.size));
    pl_buf_free(&buf);
}

static inline void copy_file(const char *from, const char *to)
{
    pl_error err = {0};
    pl_buf buf = {0};
    OK(pl_file_read(&err, from, &buf));
    OK(pl_file_write(&err, to, buf.data, buf.size));
    pl_buf_free(&buf);
}

static inline void assert_same_bytes(const char *a, const char *b)
{
    pl_error err = {0};
    pl_buf x = {0}, y = {0};
    OK(pl_file_read(&err, a, &x));
    OK(pl_file_read(&err, b, &y));
    assert_int_equal(x.size, y.size);
    assert_memory_equal(x.data, y.data, x.size);
    pl_buf_free(&x);
    pl_buf_free(&y);
}

#endif
