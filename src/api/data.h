/* A run's data: the model's tokenizer and chat template, the dataset, and the order of its rows. */
#ifndef PL_API_DATA_H
#define PL_API_DATA_H

#include "api/session.h"
#include "data/chat.h"
#include "data/loader.h"
#include "data/tokenizer.h"

/* A model's texts: what turns them into tokens and back. Both are NULL where the folder has none. */
typedef struct pl_texts {
    pl_tokenizer *tokenizer;
    pl_chat *chat;
} pl_texts;

/* The folder that they are read from: the model's, else, from scratch, the one that the config.json lies in. The caller
   frees *out. */
int pl_texts_folder(pl_error *err, const pl_config *config, char **out);
/* Reads the tokenizer of that folder, and its chat template, or the one that data.template names. */
int pl_texts_open(pl_error *err, const pl_config *config, pl_texts *texts);
void pl_texts_close(pl_texts *texts); /* {0} is fine */

typedef struct pl_run_data {
    pl_dataset *dataset;
    pl_loader *train, *validation; /* validation is NULL without data for it */
    int64_t steps;                 /* of the whole run */
    pl_loader_largest largest;     /* micro-batch, of training and validation, of any process */
    int micro_batches;             /* of a full step, each process's */
} pl_run_data;

/* Which part of the data's micro-batches a process makes. */
typedef struct pl_portion {
    int processes, process;
    int64_t micro_batches; /* of a full step, all processes' together */
} pl_portion;
/* As the configuration says it, for one of so many processes. */
pl_portion pl_portion_of(const pl_config *config, int processes, int process);

/* Opens what config->data names. For training: train.steps or train.epochs decide `steps`. For evaluation alone
   (`portion` NULL) everything is one epoch, in order, and this process's. */
int pl_run_data_open(pl_error *err, const pl_log *log, const pl_config *config, const pl_arch *arch,
    const pl_portion *portion, pl_run_data *data);
void pl_run_data_close(pl_run_data *data); /* {0} is fine */

/* The work of the whole run, to plan or start a session with: `planned` comes from pl_run_data_plan. */
pl_work pl_run_data_work(const pl_run_data *data, const pl_batch *planned);
/* A batch such as the largest micro-batch may be, to plan with: token ids and targets are all 0. */
int pl_run_data_plan(pl_error *err, const pl_loader_largest *largest, pl_batch *batch);

#endif
