/* Parts of a file, at any places and of any sizes, against the same parts copied into an array. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/file.h"
#include "base/patch.h"

#define SIZE ((size_t)5 << 20)

static void check(const char *path, bool direct)
{
    pl_error err = {0};
    pl_patch p;
    pl_buf got = {0};
    char *want = malloc(SIZE), *bytes = malloc(SIZE);
    memset(want, 'a', SIZE);
    assert_int_equal(pl_file_write(&err, path, want, SIZE), 0);
    for (size_t i = 0; i < SIZE; i++) bytes[i] = (char)(i * 2654435761u >> 13);
    assert_int_equal(pl_patch_open(&err, path, &p), 0);
    if (!direct && p.direct >= 0) {
        close(p.direct);
        p.direct = -1;
    }
    srand(4);
    size_t offset = 0;
    for (int i = 0; i < 200; i++) {
        size_t most = i % 3 == 0 ? (size_t)3 << 20 : (i % 3 == 1 ? 9000 : 100);
        if (i % 4 == 0) offset = (size_t)rand() % SIZE; /* else right behind the last */
        if (i % 8 == 0) offset = offset / 4096 * 4096;
        if (offset >= SIZE) offset = 0;
        size_t n = (size_t)rand() % most, from = (size_t)rand() % (SIZE - most);
        if (n > SIZE - offset) n = SIZE - offset;
        assert_int_equal(pl_patch_write(&err, &p, bytes + from, n, offset), 0);
        memcpy(want + offset, bytes + from, n);
        offset += n;
    }
    assert_int_equal(pl_patch_sync(&err, &p), 0);
    pl_patch_close(&p);
    assert_int_equal(pl_file_read(&err, path, &got), 0);
    assert_int_equal(got.size, SIZE);
    assert_memory_equal(got.data, want, SIZE);
    pl_buf_free(&got);
    unlink(path);
    free(want);
    free(bytes);
}

static void any_parts(void **state)
{
    (void)state;
    check("patch.tmp", true); /* of the build's file system, which most often takes direct writes */
    check("patch.tmp", false);
    check("/dev/shm/plait-patch.tmp", true); /* which takes them or not, by the kernel */
}

static void errors(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_patch p;
    assert_int_equal(pl_patch_open(&err, "/nowhere/file", &p), PL_EIO);
    assert_non_null(strstr(err.message, "/nowhere/file: cannot be written: No such file"));
    pl_error_clear(&err);
    char bytes[100000] = {0};
    assert_int_equal(pl_patch_open(&err, "/dev/full", &p), 0);
    int rc = pl_patch_write(&err, &p, bytes, sizeof bytes, 0);
    if (rc == 0) rc = pl_patch_sync(&err, &p);
    assert_int_equal(rc, PL_EIO);
    assert_non_null(strstr(err.message, "/dev/full: cannot be written: No space left"));
    pl_patch_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(any_parts), cmocka_unit_test(errors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
