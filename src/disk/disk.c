/* What all kinds have in common: the file, and that every transfer is done as a whole or is an error. */
#include "disk/disk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"

#define LONGEST ((int64_t)8 << 20) /* bytes of one transfer; longer ones are cut */
#define PATIENCE 100               /* attempts without a byte, as the system may ask for by EAGAIN */
#define BOUNCE ((int64_t)1 << 20)  /* bytes that are fetched or put at a time */
#define IN_MEMORY_TMPFS 0x01021994 /* statfs(2) */
#define IN_MEMORY_RAMFS 0x858458f6

/* ---- the file ---- */

static int make_file(pl_error *err, pl_disk *d, const char *where)
{
    char *path;
    if (!pl_dir_exists(d->folder)) {
        return PL_FAIL(err, PL_ENOENT, "%s is %s, and there is no such folder; it must be there, on a disk with room",
            where, d->folder);
    }
    PL_TRY(pl_path_join(err, d->folder, ".plait-offload-XXXXXX", &path));
    int rc = 0;
    d->fd = mkostemp(path, O_CLOEXEC);
    if (d->fd < 0) {
        rc = PL_FAIL(err, PL_EIO, "%s is %s, where no file can be made: %s", where, d->folder, strerror(errno));
    } else if (unlink(path) != 0) {
        rc = PL_FAIL(err, PL_EIO, "%s: cannot be removed: %s", path, strerror(errno));
    }
    free(path);
    return rc;
}

static void warn_of_memory(const pl_disk *d, const char *where)
{
    struct statfs fs;
    if (fstatfs(d->fd, &fs) != 0) return;
    if (fs.f_type != IN_MEMORY_TMPFS && (unsigned long)fs.f_type != IN_MEMORY_RAMFS) return;
    pl_logf(d->log, PL_LOG_WARNING,
        "%s is %s, which lies in memory (tmpfs): what is offloaded there frees none; name a folder on a disk", where,
        d->folder);
}

static int choose_kind(pl_error *err, pl_disk *d)
{
    pl_error refused = {0};
    int rc = pl_disk_by_uring(&refused, d);
    if (rc == 0) return 0;
    if (rc == PL_ENOMEM) return PL_FAIL_NOMEM(err);
    PL_TRY(pl_disk_by_thread(err, d));
    pl_logf(d->log, PL_LOG_INFO, "a thread reads and writes what is offloaded: %s", refused.message);
    return 0;
}

int pl_disk_open(pl_error *err, const pl_log *log, const char *where, const char *folder, pl_disk **out)
{
    pl_disk *d;
    int rc;
    *out = NULL;
    PL_TRY(pl_calloc(err, 1, sizeof *d, &d));
    *d = (pl_disk){.fd = -1, .log = log, .calls = {pread, pwrite}};
    PL_GO(failed, pl_strdup(err, folder, &d->folder));
    PL_GO(failed, make_file(err, d, where));
    warn_of_memory(d, where);
    PL_GO(failed, choose_kind(err, d));
    *out = d;
    return 0;
failed:
    pl_disk_close(d);
    return rc;
}

void pl_disk_close(pl_disk *d)
{
    if (!d) return;
    pl_disk_drain(d);
    if (d->ops) d->ops->destroy(d);
    if (d->fd >= 0) close(d->fd);
    free(d->folder);
    free(d);
}

static int refuse_room(pl_error *err, const pl_disk *d, int64_t bytes, int code)
{
    struct statvfs fs;
    double free_bytes = fstatvfs(d->fd, &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize : 0;
    return PL_FAIL(err, PL_EIO,
        "%s has no room for what is offloaded: %.1f MiB are needed and %.1f MiB are free (%s); memory.offload.path can "
        "name another folder",
        d->folder, (double)bytes / 0x1p20, free_bytes / 0x1p20, strerror(code));
}

/* Past the page cache, if a first block can be read that way. */
static int go_direct(pl_error *err, pl_disk *d)
{
    int flags = fcntl(d->fd, F_GETFL);
    if (flags < 0 || fcntl(d->fd, F_SETFL, flags | O_DIRECT) != 0) goto refused;
    void *block = aligned_alloc((size_t)PL_DISK_BLOCK, (size_t)PL_DISK_BLOCK);
    if (!block) return PL_FAIL_NOMEM(err);
    ssize_t n = pread(d->fd, block, (size_t)PL_DISK_BLOCK, 0);
    free(block);
    d->direct = n == (ssize_t)PL_DISK_BLOCK;
    if (d->direct) return 0;
    if (fcntl(d->fd, F_SETFL, flags) != 0) return PL_FAIL(err, PL_EIO, "%s: %s", d->folder, strerror(errno));
refused:
    pl_logf(d->log, PL_LOG_INFO,
        "%s is on a file system without O_DIRECT: what is offloaded there goes through the system's page cache",
        d->folder);
    return 0;
}

int pl_disk_reserve(pl_error *err, pl_disk *d, int64_t bytes)
{
    if (d->bytes > 0) return PL_FAIL(err, PL_EBUG, "the offload file has its room already");
    d->bytes = pl_disk_round(bytes);
    if (d->fd < 0 || bytes == 0) return 0;
    int code;
    do code = posix_fallocate(d->fd, 0, (off_t)d->bytes);
    while (code == EINTR);
    if (code != 0) return refuse_room(err, d, d->bytes, code);
    return go_direct(err, d);
}

/* ---- transfers ---- */

static void fail(pl_disk_request *r, int code)
{
    if (r->batch->failed) return;
    r->batch->failed = code;
    r->batch->failed_write = r->write;
    r->batch->failed_at = r->offset;
}

/* Waits for one transfer to end, and begins again what is left of it. */
static int settle(pl_error *err, pl_disk *d)
{
    pl_disk_request *r;
    int64_t moved;
    int rc = d->ops->end(d, err, &r, &moved);
    if (rc < 0) {
        d->broken = true;
        d->running = 0; /* nobody will ever tell of them */
        return rc;
    }
    /* A part of a block cannot be gone on from. */
    if (moved > 0 && moved < r->bytes) moved -= moved % PL_DISK_BLOCK;
    if (moved > 0) {
        r->data += moved;
        r->offset += moved;
        r->bytes -= moved;
    }
    bool again = moved >= 0 || moved == -EINTR || moved == -EAGAIN;
    r->stalled = moved > 0 ? 0 : r->stalled + 1;
    if (r->bytes > 0 && again && r->stalled < PATIENCE) {
        rc = d->ops->begin(d, err, r);
        d->broken = rc < 0;
        if (rc == 0) return 0;
    }
    if (r->bytes > 0) fail(r, moved < 0 ? (int)-moved : EIO);
    r->batch->pending--;
    r->batch = NULL;
    d->running--;
    return rc;
}

static int begin(pl_error *err, pl_disk *d, pl_disk_batch *batch, bool write, int64_t offset, char *data, int64_t bytes)
{
    pl_disk_request *r = d->requests;
    if (d->broken) return PL_FAIL(err, PL_EIO, "the offload file in %s cannot be used any more", d->folder);
    while (d->running == PL_DISK_DEPTH) PL_TRY(settle(err, d));
    while (r->batch) r++;
    *r = (pl_disk_request){.batch = batch, .write = write, .data = data, .offset = offset, .bytes = bytes};
    int rc = d->ops->begin(d, err, r);
    if (rc < 0) {
        r->batch = NULL;
        d->broken = true;
        return rc;
    }
    batch->pending++;
    d->running++;
    return 0;
}

static int begin_all(
    pl_error *err, pl_disk *d, pl_disk_batch *batch, bool write, int64_t offset, char *data, int64_t bytes)
{
    if (offset < 0 || bytes < 0 || offset + bytes > d->bytes || offset % PL_DISK_BLOCK || bytes % PL_DISK_BLOCK ||
        (uintptr_t)data % PL_DISK_BLOCK) {
        return PL_FAIL(err, PL_EBUG, "the offload file of %lld bytes: %lld bytes at %lld of %p", (long long)d->bytes,
            (long long)bytes, (long long)offset, (void *)data);
    }
    *(write ? &d->counts.written : &d->counts.read) += bytes;
    for (int64_t at = 0; at < bytes && d->fd >= 0; at += LONGEST) {
        int64_t n = bytes - at < LONGEST ? bytes - at : LONGEST;
        PL_TRY(begin(err, d, batch, write, offset + at, data + at, n));
    }
    return 0;
}

int pl_disk_read(pl_error *err, pl_disk *d, pl_disk_batch *batch, int64_t offset, void *data, int64_t bytes)
{
    return begin_all(err, d, batch, false, offset, data, bytes);
}

int pl_disk_write(pl_error *err, pl_disk *d, pl_disk_batch *batch, int64_t offset, const void *data, int64_t bytes)
{
    return begin_all(err, d, batch, true, offset, (char *)data, bytes);
}

static int tell_failure(pl_error *err, const pl_disk *d, bool write, int64_t offset, int code)
{
    return PL_FAIL(err, PL_EIO, "the offload file in %s cannot be %s at byte %lld: %s", d->folder,
        write ? "written" : "read", (long long)offset, strerror(code));
}

int pl_disk_wait(pl_error *err, pl_disk *d, pl_disk_batch *batch)
{
    double begun = pl_clock();
    while (batch->pending > 0 && d->running > 0) PL_TRY(settle(err, d));
    d->counts.waited_s += pl_clock() - begun;
    if (batch->pending > 0) return PL_FAIL(err, PL_EIO, "the offload file in %s: transfers were lost", d->folder);
    pl_disk_batch ended = *batch;
    *batch = (pl_disk_batch){0};
    return ended.failed ? tell_failure(err, d, ended.failed_write, ended.failed_at, ended.failed) : 0;
}

void pl_disk_drain(pl_disk *d)
{
    pl_error ignored = {0};
    while (d && d->running > 0) settle(&ignored, d);
}

/* ---- at once ---- */

/* Moves whole blocks. */
static int move(pl_error *err, const pl_disk *d, bool write, int64_t offset, char *data, int64_t bytes)
{
    for (int stalled = 0; bytes > 0;) {
        ssize_t n = write ? d->calls.write(d->fd, data, (size_t)bytes, (off_t)offset)
                          : d->calls.read(d->fd, data, (size_t)bytes, (off_t)offset);
        int code = n < 0 ? errno : EIO;
        if (n > 0 && n < bytes) n -= n % PL_DISK_BLOCK;
        bool again = n >= 0 || code == EINTR || code == EAGAIN;
        stalled = n > 0 ? 0 : stalled + 1;
        if (!again || stalled == PATIENCE) return tell_failure(err, d, write, offset, code);
        if (n <= 0) continue;
        data += n;
        offset += n;
        bytes -= n;
    }
    return 0;
}

/* What is to be put is laid into the blocks that are there. */
static int move_any(pl_error *err, const pl_disk *d, bool write, int64_t offset, char *data, int64_t bytes)
{
    if (bytes == 0 || d->fd < 0) return 0;
    char *blocks = aligned_alloc((size_t)PL_DISK_BLOCK, (size_t)BOUNCE);
    if (!blocks) return PL_FAIL_NOMEM(err);
    int rc = 0;
    while (bytes > 0 && rc == 0) {
        int64_t skip = (int64_t)((uint64_t)offset % PL_DISK_BLOCK), n = bytes < BOUNCE - skip ? bytes : BOUNCE - skip,
                whole = pl_disk_round(skip + n);
        bool covered = write && skip == 0 && whole == n;
        if (!covered) rc = move(err, d, false, offset - skip, blocks, whole);
        if (rc == 0 && !write) memcpy(data, blocks + skip, (size_t)n);
        if (rc == 0 && write) {
            memcpy(blocks + skip, data, (size_t)n);
            rc = move(err, d, true, offset - skip, blocks, whole);
        }
        offset += n;
        data += n;
        bytes -= n;
    }
    free(blocks);
    return rc;
}

int pl_disk_fetch(pl_error *err, const pl_disk *d, int64_t offset, void *data, int64_t bytes)
{
    return move_any(err, d, false, offset, data, bytes);
}

int pl_disk_put(pl_error *err, pl_disk *d, int64_t offset, const void *data, int64_t bytes)
{
    return move_any(err, d, true, offset, (char *)data, bytes);
}

/* ---- dry ---- */

static int end_nothing(pl_disk *d, pl_error *err, pl_disk_request **request, int64_t *moved)
{
    (void)d;
    *request = NULL;
    *moved = 0;
    return PL_FAIL(err, PL_EBUG, "a dry disk has nothing on its way");
}

static int begin_nothing(pl_disk *d, pl_error *err, pl_disk_request *r)
{
    pl_disk_request *ignored;
    int64_t none;
    (void)r;
    return end_nothing(d, err, &ignored, &none);
}

static void destroy_nothing(pl_disk *d)
{
    (void)d;
}

static const pl_disk_ops dry_ops = {"dry", begin_nothing, end_nothing, destroy_nothing};

int pl_disk_dry(pl_error *err, pl_disk **out)
{
    pl_disk *d;
    PL_TRY(pl_calloc(err, 1, sizeof *d, &d));
    d->fd = -1;
    d->ops = &dry_ops;
    *out = d;
    return 0;
}
