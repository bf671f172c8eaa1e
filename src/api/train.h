/* A training run, from its configuration to the result on disk. */
#ifndef PL_API_TRAIN_H
#define PL_API_TRAIN_H

#include "api/config.h"
#include "base/log.h"
#include "plait.h"

/* What the caller sees and says while a run goes on. Every function may be NULL. */
typedef struct pl_train_observer {
    void *user;
    void (*step)(void *user, const pl_metrics *metrics); /* after each */
    bool (*stop)(void *user); /* asked after each step: true ends the run with a checkpoint, PL_ESTOPPED */
} pl_train_observer;

/* Trains as config (checked for PL_CMD_TRAIN) says. OUTPUT gets run.yaml, metrics.jsonl, checkpoints and the result.
   Where OUTPUT holds checkpoints of the same run it goes on from the latest, to the same bits as without the stop;
   where it holds another run, or anything else that would be overwritten, PL_EUSAGE. */
int pl_train(pl_error *err, const pl_log *log, pl_config *config, const pl_train_observer *observer);

#endif
