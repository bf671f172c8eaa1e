/* An adapter's parameters under PEFT's keys, and the results of a run in the forms that their users load. */
#ifndef PL_API_ADAPTER_H
#define PL_API_ADAPTER_H

#include "io/peft.h"
#include "model/model.h"

/* PEFT's key of a parameter that is kept in the adapter's file; the caller frees. */
int pl_adapter_param_key(pl_error *err, const pl_model *model, const pl_param *param, char **out);
/* Its tensor in an adapter's file, remembered as pl_weights_find does; NULL if it has none. */
int pl_adapter_find_param(
    pl_error *err, pl_weights *adapter, const pl_model *model, const pl_param *param, const pl_st_tensor **out);
/* PEFT saves embedding and head as they are, along with an adapter that has one of them among its target_modules, and
   reads them in the model's place: such a tensor of a parameter that is not the adapter's, or NULL. */
int pl_adapter_find_along(
    pl_error *err, pl_weights *adapter, const pl_model *model, const pl_param *param, const pl_st_tensor **out);

#endif
