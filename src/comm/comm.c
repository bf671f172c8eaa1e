#include "comm/comm.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"

/* Questions in a row before a waiting process begins to sleep between them, and for how long. */
#define PATIENCE 200
#define SLEEP_US 50

const char *pl_traffic_name(pl_traffic_kind kind)
{
    static const char *const names[] = {
#define X(kind, name) [kind] = name,
        PL_TRAFFIC_LIST(X)
#undef X
    };
    return names[kind];
}

int pl_world_open(pl_error *err, pl_comm **out)
{
    return pl_comm_mpi(err, out);
}

void pl_world_close(pl_comm *world)
{
    pl_comm_close(world);
}

int pl_world_rank(const pl_comm *world)
{
    return world->rank;
}

int pl_world_size(const pl_comm *world)
{
    return world->size;
}

void pl_world_abort(pl_comm *world, int status)
{
    world->ops->abort(world, status);
}

bool pl_world_agreed(const pl_comm *world)
{
    return world->agreed;
}

void pl_comm_close(pl_comm *comm)
{
    if (comm) comm->ops->destroy(comm);
}

int pl_comm_split(pl_error *err, pl_comm *comm, const int *colors, pl_comm **out)
{
    int color = colors[comm->rank], rank = 0, size = 0;
    for (int r = 0; r < comm->size; r++) {
        if (colors[r] != color) continue;
        if (r < comm->rank) rank++;
        size++;
    }
    PL_TRY(comm->ops->split(comm, err, color, rank, size, out));
    (*out)->traffic = comm->traffic;
    return 0;
}

int64_t pl_comm_cut(int64_t n, int64_t grain, int parts, int part)
{
    return (int64_t)((__int128)(n / grain) * part / parts) * grain;
}

/* ---- messages ---- */

void pl_transfer_close(pl_transfer *transfer)
{
    free(transfer->handles);
    *transfer = (pl_transfer){0};
}

static int add_message(pl_error *err, pl_comm *comm, pl_transfer *t, void **handle)
{
    size_t size = comm->ops->handle_size;
    PL_TRY(pl_grow(err, &t->handles, &t->capacity, t->count + 1, size));
    *handle = t->handles + t->count * size;
    return 0;
}

int pl_comm_send(
    pl_error *err, pl_comm *comm, pl_transfer *t, int to, const void *data, int64_t bytes, pl_traffic_kind kind)
{
    comm->traffic->sent[kind] += bytes;
    for (int64_t at = 0; at < bytes; at += PL_COMM_PIECE) {
        int64_t n = bytes - at < PL_COMM_PIECE ? bytes - at : PL_COMM_PIECE;
        void *handle;
        PL_TRY(add_message(err, comm, t, &handle));
        PL_TRY(comm->ops->send(comm, err, to, data ? (const char *)data + at : NULL, n, handle));
        t->count++;
    }
    return 0;
}

int pl_comm_receive(pl_error *err, pl_comm *comm, pl_transfer *t, int from, void *data, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += PL_COMM_PIECE) {
        int64_t n = bytes - at < PL_COMM_PIECE ? bytes - at : PL_COMM_PIECE;
        void *handle;
        PL_TRY(add_message(err, comm, t, &handle));
        PL_TRY(comm->ops->receive(comm, err, from, data ? (char *)data + at : NULL, n, handle));
        t->count++;
    }
    return 0;
}

int pl_comm_test(pl_error *err, pl_comm *comm, pl_transfer *t, bool *done)
{
    *done = true;
    if (t->count == 0) return 0;
    int rc = comm->ops->test(comm, err, t->handles, t->count, done);
    if (*done || rc < 0) t->count = 0;
    return rc;
}

int pl_comm_wait(pl_error *err, pl_comm *comm, pl_transfer *t)
{
    if (t->count == 0) return 0;
    double begin = pl_clock();
    bool done;
    int rc = pl_comm_test(err, comm, t, &done);
    for (int asked = 0; rc == 0 && !done; asked++) {
        rc = pl_comm_pause(err, comm, asked);
        if (rc == 0) rc = pl_comm_test(err, comm, t, &done);
    }
    comm->traffic->waited_s += pl_clock() - begin;
    return rc;
}

int pl_comm_pause(pl_error *err, pl_comm *comm, int asked)
{
    for (pl_aside *a = comm->traffic->asides; a; a = a->next) PL_TRY(a->move(a->user, err));
    if (asked < PATIENCE) {
        sched_yield();
    } else {
        nanosleep(&(struct timespec){.tv_nsec = SLEEP_US * 1000}, NULL);
    }
    return 0;
}

void pl_comm_begin_aside(pl_comm *comm, pl_aside *aside)
{
    aside->next = comm->traffic->asides;
    comm->traffic->asides = aside;
}

void pl_comm_end_aside(pl_comm *comm, pl_aside *aside)
{
    for (pl_aside **at = &comm->traffic->asides; *at; at = &(*at)->next) {
        if (*at != aside) continue;
        *at = aside->next;
        return;
    }
}

/* ---- collective calls on host memory ---- */

/* What was begun must end before its memory goes; the first error is the one to tell. */
static int finish(pl_error *err, pl_comm *comm, pl_transfer *t, int rc)
{
    int waited = pl_comm_wait(err, comm, t);
    pl_transfer_close(t);
    return rc < 0 ? rc : waited;
}

int pl_comm_gather(pl_error *err, pl_comm *comm, const void *mine, int64_t bytes, void *all)
{
    pl_transfer t = {0};
    int rc = 0;
    /* What does not come, on a dry communicator, is as if it were this process's own. */
    for (int r = 0; r < comm->size; r++) memcpy((char *)all + r * bytes, mine, (size_t)bytes);
    for (int i = 1; i < comm->size && rc == 0; i++) {
        int to = (comm->rank + i) % comm->size, from = (comm->rank + comm->size - i) % comm->size;
        rc = pl_comm_send(err, comm, &t, to, mine, bytes, PL_TRAFFIC_CONTROL);
        if (rc == 0) rc = pl_comm_receive(err, comm, &t, from, (char *)all + from * bytes, bytes);
    }
    return finish(err, comm, &t, rc);
}

int pl_comm_broadcast(pl_error *err, pl_comm *comm, void *data, int64_t bytes, int root)
{
    /* Along a binomial tree whose root is `root`: each process hears it once, and passes it on to those above. */
    int place = (comm->rank + comm->size - root) % comm->size, bit = 1;
    pl_transfer t = {0};
    int rc = 0;
    while (bit < comm->size && !(place & bit)) bit <<= 1;
    if (place) {
        rc = pl_comm_receive(err, comm, &t, (place - bit + root) % comm->size, data, bytes);
        if (rc == 0) rc = pl_comm_wait(err, comm, &t);
    }
    for (bit >>= 1; bit > 0 && rc == 0; bit >>= 1) {
        if (place + bit >= comm->size) continue;
        rc = pl_comm_send(err, comm, &t, (place + bit + root) % comm->size, data, bytes, PL_TRAFFIC_CONTROL);
    }
    return finish(err, comm, &t, rc);
}

int pl_comm_sum(pl_error *err, pl_comm *comm, double *values, int n)
{
    double *all;
    if (comm->size == 1) return 0;
    PL_TRY(pl_calloc(err, (size_t)comm->size * (size_t)n, sizeof *all, &all));
    int rc = pl_comm_gather(err, comm, values, n * (int64_t)sizeof *values, all);
    for (int i = 0; i < n && rc == 0; i++) {
        values[i] = all[i];
        for (int r = 1; r < comm->size; r++) values[i] += all[r * n + i];
    }
    free(all);
    return rc;
}

int pl_comm_barrier(pl_error *err, pl_comm *comm)
{
    /* Dissemination: after round k everybody has heard, at first or second hand, of 2^(k+1) others. */
    for (int step = 1; step < comm->size; step *= 2) {
        pl_transfer t = {0};
        char out = 0, in;
        int rc = pl_comm_send(err, comm, &t, (comm->rank + step) % comm->size, &out, 1, PL_TRAFFIC_CONTROL);
        if (rc == 0) rc = pl_comm_receive(err, comm, &t, (comm->rank + comm->size - step) % comm->size, &in, 1);
        PL_TRY(finish(err, comm, &t, rc));
    }
    return 0;
}

/* ---- agreement ---- */

/* What everybody says is gathered; then the first that failed tells its error. `fresh`: for errors of the talk itself,
   so that it does not count as one of what is talked about. */
static int talk(pl_error *fresh, pl_error *err, pl_comm *comm, int rc, int *first, int *failed)
{
    int32_t mine = rc, *all;
    PL_TRY(pl_calloc(fresh, (size_t)comm->size, sizeof *all, &all));
    int talked = pl_comm_gather(fresh, comm, &mine, sizeof mine, all);
    *failed = 0;
    *first = comm->size;
    for (int r = comm->size - 1; r >= 0 && talked == 0; r--) {
        if (all[r] >= 0) continue;
        *first = r;
        ++*failed;
    }
    free(all);
    if (talked < 0 || *failed == 0) return talked;
    pl_error told = *err;
    PL_TRY(pl_comm_broadcast(fresh, comm, &told, sizeof told, *first));
    const char *file = err->code ? err->file : __FILE__; /* a pointer of another process means nothing here */
    *err = told;
    if (comm->rank != *first) err->file = file;
    return 0;
}

int pl_comm_agree(pl_error *err, pl_comm *comm, int rc)
{
    pl_error fresh = {0};
    int first, failed;
    if (comm->size == 1) return rc;
    comm->agreed = false;
    if (talk(&fresh, err, comm, rc, &first, &failed) < 0) {
        if (err->code == 0) *err = fresh;
        return err->code;
    }
    if (failed == 0) return 0;
    comm->agreed = true;
    return failed < comm->size && first > 0 ? pl_error_prefix(err, "process %d of %d", first, comm->size) : err->code;
}

/* ---- machines ---- */

#define MACHINE 64

typedef struct witness {
    uint64_t value;
    char machine[MACHINE];
} witness;

int pl_comm_same(pl_error *err, pl_comm *comm, uint64_t value, const char *what)
{
    witness mine = {.value = value}, *all;
    gethostname(mine.machine, sizeof mine.machine - 1);
    int rc = pl_calloc(err, (size_t)comm->size, sizeof *all, &all);
    PL_TRY(pl_comm_agree(err, comm, rc));
    rc = pl_comm_gather(err, comm, &mine, sizeof mine, all);
    for (int r = 1; r < comm->size && rc == 0; r++) {
        if (all[r].value == all[0].value) continue;
        rc = PL_FAIL(err, PL_EUSAGE,
            "%s of process %d (on %s) and of process 0 (on %s) differ; all processes must be given the same", what, r,
            all[r].machine, all[0].machine);
    }
    free(all);
    return pl_comm_agree(err, comm, rc);
}

/* The same for all processes of one running system, containers included, and hardly for others. */
static void name_machine(char name[MACHINE])
{
    pl_buf id = {0};
    pl_error ignored = {0};
    if (pl_file_read(&ignored, "/proc/sys/kernel/random/boot_id", &id) == 0) {
        snprintf(name, MACHINE, "%.*s", MACHINE - 1, pl_buf_text(&id));
    } else {
        gethostname(name, MACHINE - 1);
    }
    pl_buf_free(&id);
}

int pl_comm_share_cores(pl_error *err, pl_comm *comm, int cores, uint64_t mask, int *share)
{
    witness mine = {.value = mask}, *all;
    int sharers = 0, rc;
    name_machine(mine.machine);
    rc = pl_calloc(err, (size_t)comm->size, sizeof *all, &all);
    PL_TRY(pl_comm_agree(err, comm, rc));
    rc = pl_comm_gather(err, comm, &mine, sizeof mine, all);
    for (int r = 0; r < comm->size && rc == 0; r++) sharers += memcmp(&all[r], &mine, sizeof mine) == 0;
    free(all);
    *share = sharers > 0 && cores / sharers > 0 ? cores / sharers : 1;
    return rc;
}
