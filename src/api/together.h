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

#endif
