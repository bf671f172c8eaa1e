#include "api/together.h"

#include <stdio.h>
#include <string.h>

/* What the first process tells the others to do. */
typedef struct order {
    int32_t first, count; /* of the sources; count -1: nothing more */
    char path[4096];
} order;

typedef struct together {
    pl_comm *comm;
    const pl_st_source *sources;
} together;

static int write_file(pl_error *err, void *user, const char *path, const pl_st_source *sources, int count)
{
    const together *t = user;
    order o = {.first = (int32_t)(sources - t->sources), .count = count};
    int n = snprintf(o.path, sizeof o.path, "%s", path);
    if (n < 0 || (size_t)n >= sizeof o.path) return PL_FAIL(err, PL_EUSAGE, "%s: the path is too long", path);
    PL_TRY(pl_comm_broadcast(err, t->comm, &o, sizeof o, 0));
    return pl_comm_agree(err, t->comm, pl_st_write_share(err, path, sources, count));
}

/* A file that could not be written ends the leader's work; then all know why. */
static int follow(pl_error *err, const together *t)
{
    int failed = 0;
    for (;;) {
        order o;
        PL_TRY(pl_comm_broadcast(err, t->comm, &o, sizeof o, 0));
        if (o.count < 0) return failed;
        int rc = pl_st_write_share(err, o.path, t->sources + o.first, o.count);
        failed = pl_comm_agree(err, t->comm, rc);
    }
}

int pl_write_together(
    pl_error *err, pl_comm *comm, pl_st_source *sources, int count, int (*lead)(pl_error *err, void *user), void *user)
{
    if (!comm || comm->size == 1) return lead(err, user);
    together t = {.comm = comm, .sources = sources};
    const pl_st_team team = {.user = &t, .write = write_file};
    for (int i = 0; i < count; i++) sources[i].team = &team;
    int rc;
    if (comm->rank == 0) {
        order end = {.count = -1};
        pl_error own = {0};
        rc = lead(err, user);
        if (pl_comm_broadcast(&own, comm, &end, sizeof end, 0) < 0 && rc == 0) {
            *err = own;
            rc = own.code;
        }
    } else {
        rc = follow(err, &t);
    }
    for (int i = 0; i < count; i++) sources[i].team = NULL;
    return pl_comm_agree(err, comm, rc);
}
