#include "comm/collective.h"

#include <stdlib.h>

#include "base/buf.h"
#include "op/op.h"

/* A dry device's memory is NULL. */
static void *at(void *data, int64_t bytes)
{
    return data ? (char *)data + bytes : NULL;
}

/* Messages go to and from device memory itself, or host memory in its place. */
static int open_bounce(pl_run *run, pl_collective *c, int64_t bytes)
{
    if (run->device->host_memory) return 0;
    return pl_calloc(run->err, (size_t)bytes, 1, &c->bounce);
}

static const void *to_send(pl_run *run, pl_collective *c, void *data, int64_t bytes, int64_t place)
{
    if (!c->bounce) return data;
    run->device->ops->copy_out(run->device, c->bounce + place, data, bytes);
    return c->bounce + place;
}

static void *to_receive(pl_collective *c, void *data, int64_t place)
{
    return c->bounce ? c->bounce + place : data;
}

static void received(pl_run *run, pl_collective *c, void *data, int64_t bytes, int64_t place)
{
    if (c->bounce) run->device->ops->copy_in(run->device, data, c->bounce + place, bytes);
}

/* After the messages: whatever happened, nothing is under way any more. */
static void end(pl_collective *c)
{
    free(c->bounce);
    c->bounce = NULL;
    c->comm = NULL;
}

/* The process that is the i-th after this one, and the i-th before: so that not all talk to the same one at once. */
static int after(const pl_comm *comm, int i)
{
    return (comm->rank + i) % comm->size;
}

static int before(const pl_comm *comm, int i)
{
    return (comm->rank + comm->size - i) % comm->size;
}

void pl_collective_close(pl_collective *c)
{
    pl_error ignored = {0};
    if (c->comm) pl_comm_wait(&ignored, c->comm, &c->transfer);
    end(c);
    pl_transfer_close(&c->transfer);
}

int pl_collective_test(pl_run *run, pl_collective *c, bool *done)
{
    *done = true;
    return c->comm ? pl_comm_test(run->err, c->comm, &c->transfer, done) : 0;
}

/* ---- reduce_scatter ---- */

/* The elements of slice r that take part. */
static pl_tensor slice(pl_tensor buffer, const int64_t *bounds, int r, int64_t skip, int64_t most)
{
    int64_t from = bounds[r] + skip, n = bounds[r + 1] - from;
    if (n > most) n = most;
    return n > 0 ? pl_tensor_rows(buffer, from, n) : pl_tensor_rows(buffer, bounds[r], 0);
}

/* Where what process r sends is put until it is added: in the order of ranks, this one left out. */
static int64_t staged(const pl_comm *comm, int r, int64_t n)
{
    return (r < comm->rank ? r : r - 1) * n;
}

int pl_reduce_scatter_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor buffer, const int64_t *bounds,
    int64_t skip, int64_t most, pl_tensor staging, pl_traffic_kind kind)
{
    c->own = slice(buffer, bounds, comm->rank, skip, most);
    int64_t n = c->own.shape[0], place = (comm->size - 1) * n * 4;
    if (c->comm || pl_tensor_numel(staging) < (comm->size - 1) * n) {
        return PL_FAIL(run->err, PL_EBUG, "reduce_scatter: it is under way already, or its staging is too small");
    }
    c->staging = staging;
    PL_TRY(open_bounce(run, c, 4 * bounds[comm->size] + place));
    c->comm = comm;
    for (int i = 1; i < comm->size; i++) {
        pl_tensor out = slice(buffer, bounds, after(comm, i), skip, most);
        int64_t bytes = pl_tensor_bytes(out), in = staged(comm, before(comm, i), n);
        const void *from = to_send(run, c, out.data, bytes, place);
        void *to = to_receive(c, pl_tensor_rows(staging, in, n).data, 4 * in);
        PL_TRY(pl_comm_receive(run->err, comm, &c->transfer, before(comm, i), to, 4 * n));
        PL_TRY(pl_comm_send(run->err, comm, &c->transfer, after(comm, i), from, bytes, kind));
        place += bytes;
    }
    return 0;
}

/* own = (((before + s0) + s1) + ...), own being s[rank]: until it is its turn the sum is kept in place of what came
   first. */
static int add_up(pl_run *run, const pl_comm *comm, pl_tensor own, pl_tensor staging, pl_tensor before_all)
{
    int64_t n = own.shape[0];
    bool begun = !pl_tensor_none(before_all);
    pl_tensor sum = before_all, kept = begun ? pl_tensor_rows(before_all, 0, n) : own;
    for (int r = 0; r < comm->size && n > 0; r++) {
        pl_tensor next = r == comm->rank ? own : pl_tensor_rows(staging, staged(comm, r, n), n);
        pl_tensor to = r < comm->rank ? kept : own;
        if (!begun) {
            sum = kept = next;
            begun = true;
            continue;
        }
        PL_TRY(pl_add(run, to, pl_tensor_rows(sum, 0, n), next, 1));
        sum = to;
    }
    return 0;
}

int pl_reduce_scatter_end(pl_run *run, pl_collective *c, pl_tensor before_all)
{
    const pl_comm *comm = c->comm;
    int64_t bytes = (comm->size - 1) * pl_tensor_bytes(c->own);
    int rc = pl_comm_wait(run->err, c->comm, &c->transfer);
    if (rc == 0) received(run, c, c->staging.data, bytes, 0);
    end(c);
    return rc < 0 ? rc : add_up(run, comm, c->own, c->staging, before_all);
}

/* ---- all_gather ---- */

/* The bytes of slice r that take part. */
static int64_t part(const pl_collective *c, int r, int64_t *bytes)
{
    int64_t n = c->bounds[r + 1] - c->bounds[r] - c->skip;
    if (n > c->most) n = c->most;
    *bytes = n > 0 ? n : 0;
    return c->bounds[r] + c->skip;
}

int pl_all_gather_begin(pl_run *run, pl_comm *comm, pl_collective *c, void *data, const int64_t *bounds, int64_t skip,
    int64_t most, pl_traffic_kind kind)
{
    if (c->comm) return PL_FAIL(run->err, PL_EBUG, "all_gather: it is under way already");
    PL_TRY(open_bounce(run, c, bounds[comm->size]));
    c->comm = comm;
    c->data = data;
    c->bounds = bounds;
    c->skip = skip;
    c->most = most;
    int64_t bytes, come, first = part(c, comm->rank, &bytes);
    const void *own = to_send(run, c, at(data, first), bytes, first);
    for (int i = 1; i < comm->size; i++) {
        int from = before(comm, i);
        int64_t place = part(c, from, &come);
        PL_TRY(pl_comm_receive(run->err, comm, &c->transfer, from, to_receive(c, at(data, place), place), come));
        PL_TRY(pl_comm_send(run->err, comm, &c->transfer, after(comm, i), own, bytes, kind));
    }
    return 0;
}

int pl_all_gather_end(pl_run *run, pl_collective *c)
{
    int rc = pl_comm_wait(run->err, c->comm, &c->transfer);
    for (int r = 0; rc == 0 && r < c->comm->size; r++) {
        int64_t bytes, first = part(c, r, &bytes);
        if (r != c->comm->rank && bytes > 0) received(run, c, at(c->data, first), bytes, first);
    }
    end(c);
    return rc;
}

/* ---- between two ---- */

int pl_tensor_send_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor t, int to, pl_traffic_kind kind)
{
    int64_t bytes = pl_tensor_bytes(t);
    if (c->comm) return PL_FAIL(run->err, PL_EBUG, "send: it is under way already");
    PL_TRY(open_bounce(run, c, bytes));
    c->comm = comm;
    c->own = t;
    return pl_comm_send(run->err, comm, &c->transfer, to, to_send(run, c, t.data, bytes, 0), bytes, kind);
}

int pl_tensor_send_end(pl_run *run, pl_collective *c)
{
    int rc = pl_comm_wait(run->err, c->comm, &c->transfer);
    end(c);
    return rc;
}

int pl_tensor_receive_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor t, int from)
{
    int64_t bytes = pl_tensor_bytes(t);
    if (c->comm) return PL_FAIL(run->err, PL_EBUG, "receive: it is under way already");
    PL_TRY(open_bounce(run, c, bytes));
    c->comm = comm;
    c->own = t;
    return pl_comm_receive(run->err, comm, &c->transfer, from, to_receive(c, t.data, 0), bytes);
}

int pl_tensor_receive_end(pl_run *run, pl_collective *c)
{
    int rc = pl_comm_wait(run->err, c->comm, &c->transfer);
    if (rc == 0) received(run, c, c->own.data, pl_tensor_bytes(c->own), 0);
    end(c);
    return rc;
}

/* ---- all at once ---- */

int pl_all_reduce(pl_run *run, pl_comm *comm, pl_tensor buffer, pl_tensor staging, pl_traffic_kind kind)
{
    pl_collective c = {0};
    int64_t *bounds;
    if (comm->size == 1) return 0;
    PL_TRY(pl_calloc(run->err, (size_t)comm->size + 1, sizeof *bounds, &bounds));
    for (int r = 0; r <= comm->size; r++) bounds[r] = pl_comm_cut(buffer.shape[0], 1, comm->size, r);
    int64_t most = staging.shape[0] / (comm->size - 1);
    int rc = most > 0 ? 0 : PL_FAIL(run->err, PL_EBUG, "all_reduce: it has no staging");
    for (int64_t skip = 0; rc == 0 && skip * comm->size < buffer.shape[0] + comm->size; skip += most) {
        rc = pl_reduce_scatter_begin(run, comm, &c, buffer, bounds, skip, most, staging, kind);
        if (rc == 0) rc = pl_reduce_scatter_end(run, &c, (pl_tensor){0});
    }
    for (int r = 0; r <= comm->size; r++) bounds[r] *= 4;
    if (rc == 0) rc = pl_all_gather_begin(run, comm, &c, buffer.data, bounds, 0, INT64_MAX, kind);
    if (rc == 0) rc = pl_all_gather_end(run, &c);
    pl_collective_close(&c);
    free(bounds);
    return rc;
}

int pl_broadcast(pl_run *run, pl_comm *comm, void *data, int64_t bytes, int root)
{
    pl_collective c = {0};
    PL_TRY(open_bounce(run, &c, bytes));
    void *host = c.bounce ? c.bounce : data;
    if (c.bounce && comm->rank == root) run->device->ops->copy_out(run->device, c.bounce, data, bytes);
    int rc = pl_comm_broadcast(run->err, comm, host, bytes, root);
    if (rc == 0) received(run, &c, data, bytes, 0);
    end(&c);
    return rc;
}
