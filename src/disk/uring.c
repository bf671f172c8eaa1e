/* Transfers by the kernel's io_uring, through liburing. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "disk/disk.h"

#ifdef PL_HAVE_URING
#    include <liburing.h>

static int begin(pl_disk *d, pl_error *err, pl_disk_request *r)
{
    struct io_uring *ring = d->kind;
    struct io_uring_sqe *entry = io_uring_get_sqe(ring);
    if (!entry) return PL_FAIL(err, PL_EBUG, "io_uring has no place for a transfer");
    if (r->write) {
        io_uring_prep_write(entry, d->fd, r->data, (unsigned)r->bytes, (uint64_t)r->offset);
    } else {
        io_uring_prep_read(entry, d->fd, r->data, (unsigned)r->bytes, (uint64_t)r->offset);
    }
    io_uring_sqe_set_data(entry, r);
    int n;
    do n = io_uring_submit(ring);
    while (n == -EINTR || n == -EAGAIN || n == -EBUSY);
    return n > 0 ? 0 : PL_FAIL(err, PL_EIO, "io_uring: a transfer cannot be begun: %s", strerror(-n));
}

static int end(pl_disk *d, pl_error *err, pl_disk_request **request, int64_t *moved)
{
    struct io_uring *ring = d->kind;
    struct io_uring_cqe *entry;
    int rc;
    do rc = io_uring_wait_cqe(ring, &entry);
    while (rc == -EINTR || rc == -EAGAIN);
    if (rc < 0) return PL_FAIL(err, PL_EIO, "io_uring: transfers cannot be waited for: %s", strerror(-rc));
    *request = io_uring_cqe_get_data(entry);
    *moved = entry->res;
    io_uring_cqe_seen(ring, entry);
    return 0;
}

static void destroy(pl_disk *d)
{
    io_uring_queue_exit(d->kind);
    free(d->kind);
}

static const pl_disk_ops uring_ops = {"uring", begin, end, destroy};

/* Before Linux 5.6 rings know no plain reads and writes. */
static bool can_transfer(struct io_uring *ring)
{
    struct io_uring_probe *probe = io_uring_get_probe_ring(ring);
    if (!probe) return false;
    bool can = io_uring_opcode_supported(probe, IORING_OP_READ) && io_uring_opcode_supported(probe, IORING_OP_WRITE);
    io_uring_free_probe(probe);
    return can;
}

int pl_disk_by_uring(pl_error *err, pl_disk *d)
{
    struct io_uring *ring;
    PL_TRY(pl_calloc(err, 1, sizeof *ring, &ring));
    int rc = io_uring_queue_init(PL_DISK_DEPTH, ring, 0);
    if (rc == 0 && !can_transfer(ring)) {
        io_uring_queue_exit(ring);
        rc = -ENOSYS;
    }
    if (rc < 0) {
        free(ring);
        return PL_FAIL(err, PL_EIO, "io_uring cannot be used here: %s", strerror(-rc));
    }
    d->kind = ring;
    d->ops = &uring_ops;
    return 0;
}

#else

int pl_disk_by_uring(pl_error *err, pl_disk *d)
{
    (void)d;
    return PL_FAIL(err, PL_EUNSUPPORTED, "plait was built without liburing");
}

#endif
