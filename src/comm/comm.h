/* Communicators: the processes that work on one run, as one of them sees them. There are three kinds: `self` (this
   process alone), `mpi` (what mpiexec started), and `dry` (any number of processes of which this is one: messages go
   nowhere and only their bytes are counted, for planning).

   A kind only knows how to send, to receive and to ask what has come. Everything collective is built on that once, here
   and in collective.c, so what a plan counts is what a run sends. Messages between two processes arrive in the order in
   which they were sent; every process must therefore begin the collective calls on a communicator in the same order.

   Memory here is host memory; collective.h is for tensors of a device. One thread calls at a time. */
#ifndef PL_COMM_COMM_H
#define PL_COMM_COMM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

/* What goes on beside the program and needs its thread now and then: to take what has come and send what follows. */
typedef struct pl_aside {
    int (*move)(void *user, pl_error *err); /* does what can be done at once, and waits for nothing */
    void *user;
    struct pl_aside *next;
} pl_aside;

/* What communicators share that were split from one: bytes that this process sent, by pl_traffic_kind (plait.h),
   seconds that it waited for messages, and what goes on meanwhile. */
typedef struct pl_traffic {
    int64_t sent[PL_TRAFFIC_COUNT];
    double waited_s;
    pl_aside *asides;
} pl_traffic;

/* Messages on their way. Begin with {0}; what pl_comm_wait has emptied can be used again. */
typedef struct pl_transfer {
    char *handles; /* of the communicator's kind */
    size_t count, capacity;
} pl_transfer;
void pl_transfer_close(pl_transfer *transfer); /* nothing may be on its way; {0} is fine */

typedef struct pl_comm_ops {
    const char *name;
    size_t handle_size; /* of a message under way */
    /* Begin a message of at most PL_COMM_PIECE bytes and note it in *handle. */
    int (*send)(pl_comm *, pl_error *, int to, const void *data, int64_t bytes, void *handle);
    int (*receive)(pl_comm *, pl_error *, int from, void *data, int64_t bytes, void *handle);
    /* Asks whether all of them have come and gone; then, or after an error, they are no handles any more. */
    int (*test)(pl_comm *, pl_error *, void *handles, size_t count, bool *done);
    /* The processes of this color, `size` of them, of which this is number `rank`. */
    int (*split)(pl_comm *, pl_error *, int color, int rank, int size, pl_comm **out);
    void (*abort)(pl_comm *, int status); /* ends all processes; may return, and then the caller ends by itself */
    void (*destroy)(pl_comm *);
} pl_comm_ops;

#define PL_COMM_PIECE ((int64_t)1 << 30) /* MPI counts bytes in an int */

struct pl_comm {
    const pl_comm_ops *ops;
    int rank, size;
    pl_traffic *traffic; /* of the communicator that this one was split from, or its own */
    pl_traffic own;
    bool agreed; /* the last pl_comm_agree gave an error to all */
};

int pl_comm_self(pl_error *err, pl_comm **out);
int pl_comm_dry(pl_error *err, int rank, int size, pl_comm **out);
/* What mpiexec started; see pl_world_open in plait.h. */
int pl_comm_mpi(pl_error *err, pl_comm **out);
void pl_comm_close(pl_comm *comm); /* NULL is fine; parts before what they were split from */

/* Collective. The processes of one color (>= 0) become a communicator, in the order of their ranks here. colors[size]
   tells everybody's, the same on every process: so that a dry communicator can be split too. */
int pl_comm_split(pl_error *err, pl_comm *comm, const int *colors, pl_comm **out);

/* Begin to send or receive `bytes` (0 is fine), of which both sides know the number. The memory is the message's until
   pl_comm_wait. */
int pl_comm_send(
    pl_error *err, pl_comm *comm, pl_transfer *transfer, int to, const void *data, int64_t bytes, pl_traffic_kind kind);
int pl_comm_receive(pl_error *err, pl_comm *comm, pl_transfer *transfer, int from, void *data, int64_t bytes);
/* Whether all of them have come and gone. */
int pl_comm_test(pl_error *err, pl_comm *comm, pl_transfer *transfer, bool *done);
/* Waits, without keeping the core busy, until they have; what goes on aside goes on. */
int pl_comm_wait(pl_error *err, pl_comm *comm, pl_transfer *transfer);
/* Between two questions, of which this one has asked so many in vain: moves on what goes on aside, and leaves the core
   to others. */
int pl_comm_pause(pl_error *err, pl_comm *comm, int asked);

/* Whoever waits on comm, or on one that was split from the same, moves it on until it ends. So processes may wait for
   each other in different calls, as long as each call's messages are begun by some aside. */
void pl_comm_begin_aside(pl_comm *comm, pl_aside *aside);
void pl_comm_end_aside(pl_comm *comm, pl_aside *aside); /* which need not have begun */

/* Collective over all of comm, as are those that follow. all[size * bytes]: everybody's `mine`, by rank. On a dry
   communicator everybody's is this process's own. */
int pl_comm_gather(pl_error *err, pl_comm *comm, const void *mine, int64_t bytes, void *all);
/* data[bytes] of process `root` becomes everybody's. */
int pl_comm_broadcast(pl_error *err, pl_comm *comm, void *data, int64_t bytes, int root);
/* values[n] become their sums over all processes, added in the order of ranks: the same bits on each. */
int pl_comm_sum(pl_error *err, pl_comm *comm, double *values, int n);
int pl_comm_barrier(pl_error *err, pl_comm *comm);

/* Everybody tells how it went: rc and, if that is an error, *err. 0 when all went well; else every process gets the
   error of the first that failed, in the order of ranks; where others had none, with that rank in front unless it is
   the first process, which often works for all. */
int pl_comm_agree(pl_error *err, pl_comm *comm, int rc);

/* PL_EUSAGE on every process, naming the first that differs and its machine, unless all give the same value. `what` is
   what the value stands for: "the data". */
int pl_comm_same(pl_error *err, pl_comm *comm, uint64_t value, const char *what);

/* This process's part of its machine's cores, when `cores` may be used by every process that shares it: those of the
   same machine that are bound to the same cores (`mask` stands for which these are). At least 1. */
int pl_comm_share_cores(pl_error *err, pl_comm *comm, int cores, uint64_t mask, int *share);

/* Element `part` of parts: where a buffer of n elements is cut into slices of as equal sizes as multiples of `grain`
   allow; pl_comm_cut(n, grain, parts, parts) is n. n must be a multiple of grain. A slice may be empty. */
int64_t pl_comm_cut(int64_t n, int64_t grain, int parts, int part);

#endif
