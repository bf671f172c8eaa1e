#include "api/together.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"

/* What the first process tells the others of a file. */
typedef struct order {
    int32_t first, count; /* of the sources; count -1: nothing more */
    char path[4096];
} order;

typedef struct together {
    pl_comm *comm;
    const pl_st_source *sources;
    pl_begun *begun; /* where the files are noted when they are filled later */
} together;

static int order_for(pl_error *err, const char *path, int first, int count, order *o)
{
    *o = (order){.first = (int32_t)first, .count = (int32_t)count};
    int n = snprintf(o->path, sizeof o->path, "%s", path);
    return n >= 0 && (size_t)n < sizeof o->path ? 0 : PL_FAIL(err, PL_EUSAGE, "%s: the path is too long", path);
}

static void set_team(pl_st_source *sources, int count, const pl_st_team *team)
{
    for (int i = 0; i < count; i++) sources[i].team = team;
}

/* ---- at once ---- */

static int write_file(
    pl_error *err, void *user, const char *path, const char *becomes, const pl_st_source *sources, int count)
{
    const together *t = user;
    order o;
    (void)becomes;
    PL_TRY(order_for(err, path, (int)(sources - t->sources), count, &o));
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
    set_team(sources, count, &team);
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
    set_team(sources, count, NULL);
    return pl_comm_agree(err, comm, rc);
}

/* ---- in two parts ---- */

static int note(pl_error *err, pl_begun *begun, const char *path, int first, int count)
{
    struct pl_begun_file *grown = realloc(begun->files, (size_t)(begun->count + 1) * sizeof *grown);
    if (!grown) return PL_FAIL_NOMEM(err);
    begun->files = grown;
    grown[begun->count] = (struct pl_begun_file){.first = first, .count = count};
    PL_TRY(pl_strdup(err, path, &grown[begun->count].path));
    begun->count++;
    return 0;
}

static int note_file(
    pl_error *err, void *user, const char *path, const char *becomes, const pl_st_source *sources, int count)
{
    const together *t = user;
    (void)path;
    return note(err, t->begun, becomes, (int)(sources - t->sources), count);
}

/* What the first process has noted becomes everybody's. */
static int tell_files(pl_error *err, pl_comm *comm, pl_begun *begun)
{
    int32_t count = begun->count;
    PL_TRY(pl_comm_broadcast(err, comm, &count, sizeof count, 0));
    for (int i = 0; i < count; i++) {
        order o = {0};
        int rc = 0;
        if (comm->rank == 0)
            rc = order_for(err, begun->files[i].path, begun->files[i].first, begun->files[i].count, &o);
        PL_TRY(pl_comm_agree(err, comm, rc));
        PL_TRY(pl_comm_broadcast(err, comm, &o, sizeof o, 0));
        if (comm->rank > 0) rc = note(err, begun, o.path, o.first, o.count);
        PL_TRY(pl_comm_agree(err, comm, rc));
    }
    return 0;
}

int pl_begin_together(pl_error *err, pl_comm *comm, pl_st_source *sources, int count,
    int (*lead)(pl_error *err, void *user), void *user, pl_begun *out)
{
    together t = {.comm = comm, .sources = sources, .begun = out};
    const pl_st_team team = {.user = &t, .write = note_file};
    bool shared = comm && comm->size > 1;
    *out = (pl_begun){.sources = sources};
    set_team(sources, count, &team);
    int rc = !shared || comm->rank == 0 ? lead(err, user) : 0;
    set_team(sources, count, NULL);
    if (shared) rc = pl_comm_agree(err, comm, rc);
    if (shared && rc == 0) rc = tell_files(err, comm, out);
    if (rc < 0) pl_begun_close(out);
    return rc;
}

int pl_fill_begun(pl_error *err, const pl_begun *begun)
{
    for (int i = 0; i < begun->count; i++) {
        const struct pl_begun_file *f = &begun->files[i];
        PL_TRY(pl_st_write_share(err, f->path, begun->sources + f->first, f->count));
    }
    return 0;
}

void pl_begun_close(pl_begun *begun)
{
    for (int i = 0; i < begun->count; i++) free(begun->files[i].path);
    free(begun->files);
    *begun = (pl_begun){0};
}
