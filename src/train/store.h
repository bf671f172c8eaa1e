/* Where a unit's parameters, gradients and optimizer states live. Here: replicated, in memory. A unit's trainable
   parameters lie in flat buffers, one for each kind of state, so that a shard is a slice and a step is one sweep; its
   frozen ones in one flat buffer, or in the file's own mapping where the dtype is right.

   Sharding and offload (later) are other ways to answer the same calls, so the engine brackets each use of a unit with
   acquire, release and grad_done already. */
#ifndef PL_TRAIN_STORE_H
#define PL_TRAIN_STORE_H

#include "base/file.h"
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

typedef struct pl_store_options {
    bool training; /* gradients, masters and states for what is trainable */
    int moments;   /* optimizer states of f32 an element: 2 for AdamW, 1 for SGD with momentum */
    uint64_t seed; /* of initialisation */
} pl_store_options;

typedef struct pl_store pl_store;

/* Places every parameter of the model (fills in value and grad), loads or initialises it, and computes derived ones.
   The run and the model must outlive the store. */
int pl_store_open(
    pl_run *run, pl_model *model, const pl_store_options *options, const pl_source *source, pl_store **out);
void pl_store_close(pl_store *store); /* NULL is fine */

/* A unit's parameters are readable, and its gradients writable, between acquire and release. */
int pl_store_acquire(pl_store *store, pl_unit *unit);
int pl_store_release(pl_store *store, pl_unit *unit);
/* The gradients of a unit are complete for this micro-batch. */
int pl_store_grad_done(pl_store *store, pl_unit *unit);

int pl_store_zero_gradients(pl_store *store);
/* L2 norm over all gradients; each element counts once. */
int pl_store_gradient_norm(pl_store *store, double *norm);

typedef enum pl_optimizer_kind { PL_OPTIMIZER_ADAMW, PL_OPTIMIZER_SGD } pl_optimizer_kind;
typedef struct pl_optimizer {
    pl_optimizer_kind kind;
    double beta1, beta2, eps, weight_decay, momentum;
    bool nesterov;
} pl_optimizer;
int pl_optimizer_moments(const pl_optimizer *optimizer);
/* One optimizer step over everything trainable, on gradients multiplied by grad_scale. step from 1. */
int pl_store_step(pl_store *store, const pl_optimizer *optimizer, double lr, double grad_scale, int64_t step);

/* State of a trainable parameter, as an f32 tensor of its own shape on the device. */
typedef enum pl_state {
    PL_STATE_MASTER,
    PL_STATE_GRADIENT,
    PL_STATE_MOMENT1,
    PL_STATE_MOMENT2,
    PL_STATE_COUNT
} pl_state;
/* None when the parameter is frozen or there is no such state. */
pl_tensor pl_store_state(const pl_store *store, const pl_param *param, pl_state state);
/* After masters were written from outside (a checkpoint): refreshes the copies that operators read. */
int pl_store_refresh(pl_store *store);

#endif
