/* The engine takes micro-batches through a model's units, forward and backward, and steps the optimizer. */
#ifndef PL_TRAIN_ENGINE_H
#define PL_TRAIN_ENGINE_H

#include "train/capacity.h"
#include "train/profile.h"
#include "train/schedule.h"
#include "train/store.h"

typedef struct pl_engine_config {
    bool training;
    int recompute; /* 0: every block keeps what its backward needs; n: every n-th block computes it again (1: all) */
    uint64_t seed;
    pl_optimizer optimizer;
    double clip; /* of the global gradient norm; 0: off */
    pl_capacity capacity;
    int64_t cache_rows;   /* rows of the KV cache a layer; 0: none */
    pl_sharding sharding; /* {0}: one process */
    pl_offload offload;   /* {0}: nothing is on disk */
    bool accumulates;     /* a step may have several micro-batches */
} pl_engine_config;

typedef struct pl_engine pl_engine;

/* Collective over sharding's processes. Opens the store too. Everything borrowed (device, model, source's data) must
 *outlive the engine; memory is accounted in mem, which the caller initialised for the device. */
int pl_engine_open(pl_error *err, const pl_log *log, pl_device *device, pl_mem *mem, pl_model *model,
    const pl_engine_config *config, const pl_source *source, pl_engine **out);
void pl_engine_close(pl_engine *engine); /* NULL is fine */

/* AdamW's first beta from the next step on (a schedule may move it). */
void pl_engine_set_beta1(pl_engine *engine, double beta1);

/* Seconds by phase, of all steps so far; the caller may set them to zero. */
pl_profile *pl_engine_profile(pl_engine *engine);

/* What a dry engine's stacks reached: the capacity of a real one. */
pl_capacity pl_engine_reached(const pl_engine *engine);
pl_store *pl_engine_store(pl_engine *engine);
pl_run *pl_engine_run(pl_engine *engine);

/* What a step asks for. */
typedef struct pl_feed {
    void *user;
    /* This process's micro-batch `micro` of a step: fills *batch. It may be empty where another process's is not. */
    int (*micro_batch)(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch);
    /* Collective. The gradients are there, and nothing was changed yet; NULL: nobody wants to know. */
    int (*before_update)(pl_error *err, void *user);
} pl_feed;

typedef struct pl_step_result {
    double loss;      /* sum over the step's targets / their number */
    double grad_norm; /* before clipping */
    int64_t tokens, targets;
} pl_step_result;

/* Collective over the processes that share the model out, as are evaluations. One optimizer step: step from 1;
   micro_batches are each process's, and `targets` is the number of trained tokens of all processes' together. What
   comes out is the same on each. Stops with PL_ENUMERIC, before the optimizer touched anything, when the loss or the
   norm is not finite: the message names step, unit and tensor where it first appeared. PL_EINPUT when ids are beyond
   the vocabulary or a sequence beyond the model's positions. After the first step mem is sealed until the engine is
   closed. */
int pl_engine_step(pl_engine *engine, const pl_feed *feed, int64_t step, int micro_batches, int64_t targets, double lr,
    pl_step_result *result);

/* Sum of the losses of a batch's targets, without any backward. The batch may be empty. The sum is this process's. */
int pl_engine_evaluate(pl_engine *engine, const pl_batch *batch, double *loss_sum);

/* Logits of the given rows of a batch: host f32 [n, vocab]. Keys and values go through the cache when the engine has
   one (the batch's sequences say where). n is at most the capacity's sequences with a cache, its tokens without. */
int pl_engine_logits(pl_engine *engine, const pl_batch *batch, const int32_t *rows, int64_t n, float *logits);

/* Forward and backward of one batch alone, gradients left in the store (zeroed first): for tests. */
int pl_engine_gradients(pl_engine *engine, const pl_batch *batch, double *loss);

#endif
