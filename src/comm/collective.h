/* Collective calls on tensors. Each has a begin, after which the processes' messages travel while this one computes,
   and an end, which waits for them; pl_collective_test asks whether it still would. They begin in the same order on
   every process of the communicator.

   A buffer that is shared out is cut at bounds[size + 1]: slice r is [bounds[r], bounds[r + 1]). Slices may be empty.

   Sums are in f32 and in the order of ranks, so they do not depend on which message came first: slices travel straight
   to the process that sums them, which takes no more bytes than a ring does: (size - 1) / size of the buffer for each
   of reduce_scatter and all_gather, twice that for all_reduce. */
#ifndef PL_COMM_COLLECTIVE_H
#define PL_COMM_COLLECTIVE_H

#include "comm/comm.h"
#include "op/run.h"

/* A call between its begin and its end. Begin with {0}; it can be used again after the end. */
typedef struct pl_collective {
    pl_comm *comm; /* NULL: none is under way */
    pl_transfer transfer;
    pl_tensor own, staging; /* reduce_scatter; own is also what is sent to one process, or comes from one */
    char *data;             /* all_gather: */
    const int64_t *bounds;
    int64_t skip, most;
    char *bounce; /* host memory that stands in for a device's that messages cannot reach */
} pl_collective;
void pl_collective_close(pl_collective *c);                        /* waits for what is on its way; {0} is fine */
int pl_collective_test(pl_run *run, pl_collective *c, bool *done); /* true too where none is under way */

/* Sums elements [skip, skip + most) of every slice of buffer (f32 [bounds[size]]), each on the process whose slice it
   is. The buffer must not change before the end. staging: f32, (size - 1) * most elements suffice. `bounds` must stay
   until the end. */
int pl_reduce_scatter_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor buffer, const int64_t *bounds,
    int64_t skip, int64_t most, pl_tensor staging, pl_traffic_kind kind);
/* This process's elements of its own slice, in the buffer, become the sums. `before` (f32, as many elements; none: they
   are 0) comes first in them, and is scratch afterwards. */
int pl_reduce_scatter_end(pl_run *run, pl_collective *c, pl_tensor before);

/* Bytes [skip, skip + most) of every slice of data, bounds in bytes, become what the process has whose slice it is. */
int pl_all_gather_begin(pl_run *run, pl_comm *comm, pl_collective *c, void *data, const int64_t *bounds, int64_t skip,
    int64_t most, pl_traffic_kind kind);
int pl_all_gather_end(pl_run *run, pl_collective *c);

/* To one process, or from one. */
int pl_tensor_send_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor t, int to, pl_traffic_kind kind);
int pl_tensor_send_end(pl_run *run, pl_collective *c);
int pl_tensor_receive_begin(pl_run *run, pl_comm *comm, pl_collective *c, pl_tensor t, int from);
int pl_tensor_receive_end(pl_run *run, pl_collective *c);

/* Begun and ended at once. buffer (f32 [n]) becomes its sum over all processes; staging: f32, size - 1 elements at
   least, and the more there are the fewer messages it takes. */
int pl_all_reduce(pl_run *run, pl_comm *comm, pl_tensor buffer, pl_tensor staging, pl_traffic_kind kind);
/* data[bytes], on the device, of process `root` becomes everybody's. */
int pl_broadcast(pl_run *run, pl_comm *comm, void *data, int64_t bytes, int root);

#endif
