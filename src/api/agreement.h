/* What the processes of a run compare before they begin. */
#ifndef PL_API_AGREEMENT_H
#define PL_API_AGREEMENT_H

#include "api/data.h"

/* Collective over config->world, as are the others. PL_EUSAGE on every process when they are of different builds of
   plait, or were told different runs. Also finds out this process's part of its machine's cores (config->cores). */
int pl_agree_on_run(pl_error *err, pl_config *config);
/* Whether all opened the same model: the tensors of its files, and a sample of each one's values. */
int pl_agree_on_model(pl_error *err, pl_session *session);
/* Whether all read the same data: its size and a sample of its rows. */
int pl_agree_on_data(pl_error *err, pl_session *session, pl_run_data *data);

#endif
