/* A model opened for a purpose: its architecture and weights, an adapter on it, the device, and the engine that
   computes. Everything above (train, eval, generate, merge, plan, inspect) starts here. */
#ifndef PL_API_SESSION_H
#define PL_API_SESSION_H

#include "api/config.h"
#include "io/weights.h"
#include "model/adapt.h"
#include "train/engine.h"

typedef enum pl_purpose {
    PL_PURPOSE_TRAIN, /* what the configuration says trains; plan too */
    PL_PURPOSE_USE    /* everything is frozen; an adapter is applied */
} pl_purpose;

typedef struct pl_session {
    const pl_config *config;
    const pl_log *log;
    pl_purpose purpose;
    pl_model *model;
    pl_weights *weights;         /* of the model's folder; NULL from scratch */
    bool has_adapter;            /* the model carries one, read or fresh */
    pl_lora_config lora;         /* what it is, all-linear resolved */
    pl_weights *adapter_weights; /* NULL when it is fresh */
    pl_device *device;
    pl_device *dry_device;
    pl_comm *comm;          /* the processes that train together; NULL: this one alone, or only planned */
    int processes, process; /* how many there are, or are planned, and which is this */
    pl_disk *disk;          /* what is offloaded; NULL: nothing is */
    pl_mem mem, planned;    /* the real account, and the dry run's */
    pl_counters counted;    /* of the dry run, as is what this process sends in a step: */
    pl_traffic traffic;
    pl_disk_counts disk_counted;
    int64_t disk_bytes;
    pl_engine *engine; /* NULL until pl_session_start */
} pl_session;

/* Opens the model and declares everything; no weight is read yet but for checking that all of them are there. The
   configuration is checked, and outlives the session, as does the log. */
int pl_session_open(pl_error *err, const pl_log *log, const pl_config *config, pl_purpose purpose, pl_session **out);
void pl_session_close(pl_session *session); /* NULL is fine */

/* The files that the session opened, as a source of values; it serves as long as the session. */
pl_source pl_session_source(pl_session *session);

/* When a result is no number: PL_ENUMERIC naming a tensor of the files that holds NaN or infinity, 0 if none does. */
int pl_session_check_finite(pl_error *err, pl_session *session);

/* What the engine is to do, for which it is sized by a dry run. */
typedef struct pl_work {
    pl_capacity capacity; /* of the largest micro-batch; the stacks' sizes are found */
    int micro_batches;    /* of a step, each process's: 0 is 1 */
    /* Micro-batches to plan with: those that could set a high-water mark. */
    const pl_batch *batches;
    int nbatches;
    bool training, evaluates;
    int64_t cache_rows, logits; /* generation: rows of the cache; the most logits asked for at once */
} pl_work;

/* The dry run: fills in session->planned, counted and traffic (of the first batch, as often as a step has
   micro-batches) and the capacity's stacks. Allocates no memory for tensors. */
int pl_session_plan(pl_error *err, pl_session *session, pl_work *work);
/* The dry run, and then the real engine. Collective. */
int pl_session_start(pl_error *err, pl_session *session, pl_work *work);

/* Collective over the session's processes, see pl_comm_agree; alone it is rc. */
int pl_session_agree(pl_error *err, pl_session *session, int rc);
/* Whether this process does what one of them has to do for all. */
bool pl_session_leads(const pl_session *session);

/* Threads that the configuration asks for: its number, or one for each core that this process may use. */
int pl_session_threads(const pl_config *config);
pl_optimizer pl_session_optimizer(const pl_config *config);

#endif
