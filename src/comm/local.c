/* The communicators whose messages go nowhere: `self` has nobody to talk to, `dry` only counts. */
#include "base/buf.h"
#include "comm/comm.h"

#include <stdlib.h>

static int message(pl_comm *comm, pl_error *err, int peer, const void *data, int64_t bytes, void *handle)
{
    (void)data;
    (void)bytes;
    *(char *)handle = 0;
    if (peer != comm->rank && peer >= 0 && peer < comm->size) return 0;
    return PL_FAIL(err, PL_EBUG, "a message to process %d from process %d of %d", peer, comm->rank, comm->size);
}

static int send(pl_comm *comm, pl_error *err, int to, const void *data, int64_t bytes, void *handle)
{
    return message(comm, err, to, data, bytes, handle);
}

static int receive(pl_comm *comm, pl_error *err, int from, void *data, int64_t bytes, void *handle)
{
    return message(comm, err, from, data, bytes, handle);
}

static int test(pl_comm *comm, pl_error *err, void *handles, size_t count, bool *done)
{
    (void)comm;
    (void)err;
    (void)handles;
    (void)count;
    *done = true;
    return 0;
}

static int open_local(pl_error *err, const pl_comm_ops *ops, int rank, int size, pl_comm **out)
{
    pl_comm *comm;
    PL_TRY(pl_calloc(err, 1, sizeof *comm, &comm));
    *comm = (pl_comm){.ops = ops, .rank = rank, .size = size};
    comm->traffic = &comm->own;
    *out = comm;
    return 0;
}

static int split(pl_comm *comm, pl_error *err, int color, int rank, int size, pl_comm **out)
{
    (void)color;
    return open_local(err, comm->ops, rank, size, out);
}

static void abort_nobody(pl_comm *comm, int status)
{
    (void)comm;
    (void)status;
}

static void destroy(pl_comm *comm)
{
    free(comm);
}

static const pl_comm_ops self_ops = {"self", 1, send, receive, test, split, abort_nobody, destroy};
static const pl_comm_ops dry_ops = {"dry", 1, send, receive, test, split, abort_nobody, destroy};

int pl_comm_self(pl_error *err, pl_comm **out)
{
    return open_local(err, &self_ops, 0, 1, out);
}

int pl_comm_dry(pl_error *err, int rank, int size, pl_comm **out)
{
    if (size >= 1 && rank >= 0 && rank < size) return open_local(err, &dry_ops, rank, size, out);
    return PL_FAIL(err, PL_EBUG, "a dry communicator's process %d of %d", rank, size);
}
