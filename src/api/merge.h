/* plait merge: an adapter worked into its model's weights. */
#ifndef PL_API_MERGE_H
#define PL_API_MERGE_H

#include "api/config.h"
#include "base/log.h"

/* Writes config->model with config->adapter into config->output: a Hugging Face folder that needs no adapter. Tensors
   keep the dtype that the model's files have, unless config->precision was set. Holds one tensor at a time in memory.
   What tied embedding and head becomes two where the adapter tells them apart, and config.json then says so. The
   folder is written whole or not at all. */
int pl_merge(pl_error *err, const pl_log *log, const pl_config *config);

#endif
