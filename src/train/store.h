/* Where a unit's parameters, gradients and optimizer states live, and how the processes that train replicas of a model
   share them out. A unit's trainable parameters lie in flat buffers, one for each kind of state, so that a shard is a
   slice and a step is one sweep; its frozen ones in one flat buffer, or in the file's own mapping where the dtype is
   right.

   What is sharded follows from one number, ZeRO's stage (Rajbhandari et al. 2020). Every process steps the optimizer on
   its slice of each buffer alone and keeps masters and moments for that slice only (1); of gradients it keeps that
   slice (2); and of parameters, which are gathered when a unit is used (3). With 0 every process has everything and
   makes the whole step. The numbers that come out are the same to the bit: gradients are summed in the order of ranks
   whatever is kept where.

   States and parameters may lie on disk (pl_offload).

   The engine brackets each use of a unit with acquire and release, and tells when its gradients are done. */
#ifndef PL_TRAIN_STORE_H
#define PL_TRAIN_STORE_H

#include "base/file.h"
#include "comm/comm.h"
#include "disk/disk.h"
#include "model/model.h"

/* A tensor in host memory, as a file has it. */
typedef struct pl_host_tensor {
    const char *file; /* for messages; NULL: none */
    const void *data;
    const pl_map *map; /* that data lies in, whose pages are given back after they were copied; NULL: other memory */
    pl_dtype dtype;
    int ndim;
    int64_t shape[PL_MAX_DIMS];
} pl_host_tensor;

/* PL_EINPUT unless it has the parameter's shape. */
int pl_host_tensor_check(pl_error *err, const pl_param *param, const pl_host_tensor *tensor);

/* values = its elements [first, first + count), whose pages in the mapping are given back. */
int pl_host_tensor_read(pl_error *err, const pl_host_tensor *tensor, int64_t first, int64_t count, float *values);

/* Where values come from. find sets *found to false where the parameter starts from its initialisation rule, and fails
   where it should have been there. The data must stay valid until the store is closed. */
typedef struct pl_source {
    void *user;
    int (*find)(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found);
} pl_source;

/* How the processes that have replicas of the model share it out. {0}: one process. */
typedef struct pl_sharding {
    pl_comm *comm;    /* those processes; NULL: this one alone */
    int stage;        /* 0 to 3 */
    int group;        /* so many neighbours share out, and other groups have the same; 0: all of them share out */
    int prefetch;     /* stage 3: units that are gathered ahead of their use */
    int64_t bucket;   /* bytes of gradients that may be on their way to be summed at a time; they travel in pieces */
    bool every_micro; /* stages 2 and 3: exchange gradients after each micro-batch, and never hold them whole */
} pl_sharding;

/* What lies on disk instead of in memory, as in ZeRO-Infinity (Rajbhandari et al. 2021): the bits of a run are the
   same. {0}: nothing. */
typedef struct pl_offload {
    pl_disk *disk;  /* new; NULL: nothing is offloaded */
    bool optimizer; /* moments, and what masters have beyond the values that operators read: a step takes them through a
                       few buffers */
    bool params;    /* what operators read, frozen or not: in slices as of stage 3, which several processes must have
                       asked for, and gathered before each use */
    int64_t buffer; /* bytes of each of those buffers */
} pl_offload;

typedef struct pl_store_options {
    bool training;    /* gradients, masters and states for what is trainable */
    int moments;      /* optimizer states of f32 an element: 2 for AdamW, 1 for SGD with momentum */
    uint64_t seed;    /* of initialisation */
    bool accumulates; /* a step may have several micro-batches */
    pl_sharding sharding;
    pl_offload offload;
} pl_store_options;

typedef struct pl_store pl_store;

/* Places every parameter of the model (fills in value and grad), loads or initialises it, and computes derived ones.
   The run, the model, the communicator and the disk must outlive the store. Collective, as is everything that says so
   below: every process of sharding.comm calls it, in the same order. */
int pl_store_open(
    pl_run *run, pl_model *model, const pl_store_options *options, const pl_source *source, pl_store **out);
void pl_store_close(pl_store *store); /* NULL is fine */

/* ---- use ---- */

/* Which way through the units a use belongs to: none; forward, without or with a backward that follows; backward. */
typedef enum pl_way { PL_WAY_ALONE, PL_WAY_INFERENCE, PL_WAY_FORWARD, PL_WAY_BACKWARD } pl_way;

/* Before the first unit of a way is used: what is still gathered is out of date. */
int pl_store_begin(pl_store *store);
/* Collective. A unit's parameters are readable, and in training its gradients can be added to, between acquire
   and release; those of a unit that it borrows from too. */
int pl_store_acquire(pl_store *store, pl_unit *unit, pl_way way);
int pl_store_release(pl_store *store, pl_unit *unit, pl_way way);
/* Collective. The gradients of a unit are complete for this micro-batch, which is the `last` of its step or not. What
   must be exchanged begins to travel. */
int pl_store_grad_done(pl_store *store, pl_unit *unit, bool last);
/* Between acquire and release: the unit's values were changed in place, and what is kept of them follows. */
int pl_store_keep(pl_store *store, pl_unit *unit);

/* ---- the step ---- */

/* Before the first backward of a step. Where whole gradients are kept none is written here: they become stale. */
int pl_store_zero_gradients(pl_store *store);
/* Collective. Waits for the gradients' exchange; then the L2 norm over all of them, each element counted once. */
int pl_store_gradient_norm(pl_store *store, double *norm);

typedef enum pl_optimizer_kind { PL_OPTIMIZER_ADAMW, PL_OPTIMIZER_SGD } pl_optimizer_kind;
typedef struct pl_optimizer {
    pl_optimizer_kind kind;
    double beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
} pl_optimizer;
int pl_optimizer_moments(const pl_optimizer *optimizer);
/* Collective. One optimizer step over everything trainable, on gradients multiplied by grad_scale. step from 1. */
int pl_store_step(pl_store *store, const pl_optimizer *optimizer, double lr, double grad_scale, int64_t step);

/* ---- what is where ---- */

/* State of a trainable parameter: f32. Masters of what operators read in bf16 are those bf16 numbers and, beside them,
   the 16 bits that they lack; both are what a step reads and writes. */
typedef enum pl_state {
    PL_STATE_MASTER,
    PL_STATE_GRADIENT,
    PL_STATE_MOMENT1,
    PL_STATE_MOMENT2,
    PL_STATE_COUNT
} pl_state;
/* Whether it exists at all, here or elsewhere: the parameter trains and the optimizer has such a state. */
bool pl_store_has(const pl_store *store, const pl_param *param, pl_state state);
/* As a tensor of the parameter's own shape, where this process has all of it in memory, in f32; else none. */
pl_tensor pl_store_state(const pl_store *store, const pl_param *param, pl_state state);

/* Elements [first, first + count) of a parameter or of one of its states, in a row. */
typedef struct pl_extent {
    int64_t first, count;
    pl_dtype dtype;
} pl_extent;
/* The elements of a state that this process keeps. PL_STATE_MASTER of a parameter that does not train is what operators
   read, in its dtype; all else is f32. */
pl_extent pl_store_kept(const pl_store *store, const pl_param *param, pl_state state);
/* This process's share in writing it, of what it keeps: of all processes each element is in exactly one's. It begins
   and ends at a multiple of 16 elements, or where the parameter ends. */
pl_extent pl_store_share(const pl_store *store, const pl_param *param, pl_state state);
/* Copies elements [first, first + count) of what this process keeps, in its dtype, into host memory, wherever it lies.
   Another thread may read while units are used, but not during a step; it brings its own error. */
int pl_store_read(pl_error *err, const pl_store *store, const pl_param *param, pl_state state, int64_t first,
    int64_t count, void *values);
/* The other way: of a state, from f32 at any alignment. What operators read of a master changes with it, here; when all
   are written, pl_store_refresh follows. */
int pl_store_write(pl_error *err, pl_store *store, const pl_param *param, pl_state state, int64_t first, int64_t count,
    const void *values);

/* Sets the master, or what this process keeps of it, and what operators read, from a whole f32 tensor on the device.
   Between acquire and release of its unit. */
int pl_store_set(pl_store *store, const pl_param *param, pl_tensor whole);

/* Collective. After masters were written from outside (a checkpoint): tells those that keep what operators read too. */
int pl_store_refresh(pl_store *store);

#endif
