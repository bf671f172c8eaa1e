#include "base/patch.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK ((size_t)4096)
#define BUFFER ((size_t)1 << 20)

int pl_patch_open(pl_error *err, const char *path, pl_patch *p)
{
    void *buffer;
    *p = (pl_patch){.path = path, .fd = -1, .direct = -1};
    if (posix_memalign(&buffer, BLOCK, BUFFER) != 0) return PL_FAIL_NOMEM(err);
    p->buffer = buffer;
    p->fd = open(path, O_WRONLY | O_CLOEXEC);
    if (p->fd < 0) {
        int rc = PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", path, strerror(errno));
        pl_patch_close(p);
        return rc;
    }
    p->direct = open(path, O_WRONLY | O_CLOEXEC | O_DIRECT);
    return 0;
}

static int fail(pl_error *err, const pl_patch *p)
{
    return PL_FAIL(err, PL_EIO, "%s: cannot be written: %s", p->path, strerror(errno));
}

/* buffer[from, to), by one of the two descriptors. */
static int write_part(pl_error *err, const pl_patch *p, int fd, size_t from, size_t to)
{
    while (from < to) {
        ssize_t n = pwrite(fd, p->buffer + from, to - from, (off_t)(p->base + from));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return fail(err, p);
        from += (size_t)n;
    }
    return 0;
}

/* Whole blocks directly; *from is where the rest begins. A file system that takes no such write may say so only now,
   and one that wrote a part of a block has that part written again. */
static int write_blocks(pl_error *err, pl_patch *p, size_t *from, size_t to)
{
    while (*from < to) {
        ssize_t n = pwrite(p->direct, p->buffer + *from, to - *from, (off_t)(p->base + *from));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0 && errno == EINVAL) {
            close(p->direct);
            p->direct = -1;
            return 0;
        }
        if (n < 0) return fail(err, p);
        if ((size_t)n < BLOCK) return 0;
        *from += (size_t)n / BLOCK * BLOCK;
    }
    return 0;
}

static int flush(pl_error *err, pl_patch *p)
{
    size_t first = (p->begin + BLOCK - 1) / BLOCK * BLOCK, last = p->end / BLOCK * BLOCK;
    if (p->direct >= 0 && first < last) {
        PL_TRY(write_part(err, p, p->fd, p->begin, first));
        p->begin = first;
        PL_TRY(write_blocks(err, p, &p->begin, last));
    }
    PL_TRY(write_part(err, p, p->fd, p->begin, p->end));
    p->begin = p->end;
    return 0;
}

int pl_patch_write(pl_error *err, pl_patch *p, const void *bytes, size_t size, uint64_t offset)
{
    const char *from = bytes;
    while (size > 0) {
        if (offset != p->base + p->end || p->end == BUFFER) {
            PL_TRY(flush(err, p));
            p->base = offset / BLOCK * BLOCK;
            p->begin = p->end = (size_t)(offset - p->base);
        }
        size_t n = size < BUFFER - p->end ? size : BUFFER - p->end;
        memcpy(p->buffer + p->end, from, n);
        p->end += n;
        from += n;
        offset += n;
        size -= n;
    }
    return 0;
}

int pl_patch_sync(pl_error *err, pl_patch *p)
{
    PL_TRY(flush(err, p));
    return fsync(p->fd) == 0 ? 0 : fail(err, p);
}

void pl_patch_close(pl_patch *p)
{
    if (p->fd >= 0) close(p->fd);
    if (p->direct >= 0) close(p->direct);
    free(p->buffer);
    *p = (pl_patch){.fd = -1, .direct = -1};
}
