/* The folder that a run writes into: one run at a time, and of one run only. */
#ifndef PL_API_OUTPUT_H
#define PL_API_OUTPUT_H

#include "api/config.h"
#include "comm/comm.h"

typedef struct pl_output {
    int lock;     /* of the folder, while this run has it; begin with -1 */
    bool claimed; /* it has this run's run.yaml */
} pl_output;

/* Makes the folder, locks it, and removes what a killed start has left. PL_EUSAGE where another run is at work, or
   where it holds anything else than an earlier start of this run. */
int pl_output_claim(pl_error *err, const pl_config *config, pl_output *output);
/* Collective, after the first process has claimed it: PL_EUSAGE unless all see the same folder. */
int pl_output_agree(pl_error *err, pl_comm *comm, const pl_config *config);
/* Writes run.yaml: from now on the folder is this run's. */
int pl_output_keep(pl_error *err, const pl_config *config, pl_output *output);
/* A run that could not begin leaves no folder behind: what is empty goes. */
void pl_output_release(const pl_config *config, pl_output *output);

#endif
