/* Puts a LoRA adapter on a model: adapters for the linears that match, biases and whole modules that train with them.
 */
#ifndef PL_MODEL_ADAPT_H
#define PL_MODEL_ADAPT_H

#include "model/lora_config.h"
#include "model/model.h"

/* Declares what `config` says in the model's units. all-linear and PEFT's default targets are replaced in *config by
   the list that they come to. With `train` the adapter's parameters and whatever goes with them are trainable.
   `strict`: a user typed it, in a run's lora section: each name and pattern must match something, and every layer be
   there (files may name modules of other families). `where` names the file, or the field of the targets, for messages.
   PL_EUSAGE when nothing matches, listing what there is; PL_EUNSUPPORTED for what plait cannot adapt. */
int pl_model_adapt(pl_error *err, pl_model *model, pl_lora_config *config, bool train, bool strict, float b_lr_ratio,
    const char *where);

#endif
