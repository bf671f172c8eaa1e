/* Files that all processes of a run write together, each its share. */
#ifndef PL_API_TOGETHER_H
#define PL_API_TOGETHER_H

#include "comm/comm.h"
#include "io/safetensors.h"

/* Collective over comm (NULL: this process alone, and then `lead` is all there is to it). Every process has the same
   tensors in `sources`, of which it has the shares that they say. The first process runs `lead`, which writes files of
   them by pl_st_write; the others fill in their shares until it is done. 0 when all went well everywhere. */
int pl_write_together(
    pl_error *err, pl_comm *comm, pl_st_source *sources, int count, int (*lead)(pl_error *err, void *user), void *user);

/* Files that were begun, but for their tensors' data. */
typedef struct pl_begun {
    const pl_st_source *sources;
    struct pl_begun_file {
        char *path;
        int first, count; /* of the sources */
    } * files;
    int count;
} pl_begun;

/* The same in two parts, for a folder that nobody reads yet: here `lead` makes all that there is but the data of the
   sources. On success *out, which borrows the sources, is the caller's to close. */
int pl_begin_together(pl_error *err, pl_comm *comm, pl_st_source *sources, int count,
    int (*lead)(pl_error *err, void *user), void *user, pl_begun *out);
/* Writes and syncs this process's shares. Not collective, and of any thread; all have to be told how it went. */
int pl_fill_begun(pl_error *err, const pl_begun *begun);
void pl_begun_close(pl_begun *begun); /* {0} is fine */

#endif
