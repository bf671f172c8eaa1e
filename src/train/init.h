/* Values that no file gives: random initialisation, and what an adapter derives from its base. */
#ifndef PL_TRAIN_INIT_H
#define PL_TRAIN_INIT_H

#include "train/store.h"

/* Fills `to` (f32 or bf16 [n], on the device) with the parameter's elements from number `first` (a multiple of 4) on,
   by the parameter's rule. An element's value depends on the seed, the parameter and the element's place alone. */
int pl_init_param(pl_run *run, const pl_param *param, uint64_t seed, pl_tensor to, int64_t first);

/* Collective over the store's processes. After everything is loaded: PiSSA, OLoRA and orthogonal starts (which change
   the base), DoRA's norms and magnitudes. found[param->id] tells what a file gave, which is left as it is: of PiSSA and
   OLoRA the base then changes alone. */
int pl_init_adapters(pl_run *run, pl_model *model, pl_store *store, uint64_t seed, const bool *found);

#endif
