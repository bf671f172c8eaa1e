/* A model: its architecture as a list of units, and the registry of its parameters and linear modules. No memory for
   values is held here: the store places them. */
#ifndef PL_MODEL_MODEL_H
#define PL_MODEL_MODEL_H

#include "model/arch.h"
#include "model/linear.h"
#include "model/norm.h"
#include "model/unit.h"

typedef struct pl_model {
    pl_arch arch;   /* owned */
    pl_dtype dtype; /* of weights and activations: f32 or bf16 */
    pl_unit **units;
    int nunits;
    pl_param **params; /* in the order of the units */
    int nparams;
    pl_linear **linears;
    int nlinears;
    size_t units_capacity, params_capacity, linears_capacity;
} pl_model;

/* Takes *arch over (it is zeroed), also on failure. Everything is frozen at first. */
int pl_model_open(pl_error *err, pl_arch *arch, pl_dtype dtype, pl_model **out);
void pl_model_close(pl_model *model); /* NULL is fine */

/* Full fine-tuning: every base parameter trains, but those that one of the `freeze` texts names: by PEFT's rules for
   target_modules, that is, the end of a name after a dot or a regular expression for all of it, of the parameter
   ("embed_tokens.weight") or of a module that it lies in ("embed_tokens", "layers.0"). `where` stands for the field in
   messages. PL_EUSAGE for a text that matches nothing, or when nothing is left to train. */
int pl_model_train_all(pl_error *err, pl_model *model, char *const *freeze, int nfreeze, const char *where);

pl_param *pl_model_find_param(const pl_model *model, const char *name);
pl_linear *pl_model_find_linear(const pl_model *model, const char *module);

typedef struct pl_model_counts {
    int64_t trainable, all; /* elements; a shared tensor counts once; derived ones do not count */
} pl_model_counts;
pl_model_counts pl_model_count(const pl_model *model);

/* The first unit (from below) that has something to train: no gradient goes further down. nunits: nothing trains. */
int pl_model_lowest_trained(const pl_model *model);

/* For the units' declarations. Names are formatted; the parameter belongs to `unit`. A base matrix decays, a vector
 * does not. */
int pl_model_add_param(
    pl_error *err, pl_model *model, pl_unit *unit, pl_param spec, const char *module, const char *leaf, pl_param **out);
/* A linear without adapter: weight (and bias) are declared in `unit`. */
int pl_model_add_linear(pl_error *err, pl_model *model, pl_unit *unit, const char *module, int64_t in, int64_t out,
    bool bias, pl_split split, float init_std, pl_linear **lin);
/* A linear [out, in] whose weight is another unit's parameter. */
int pl_model_add_borrowed(
    pl_error *err, pl_model *model, pl_unit *unit, const char *module, pl_param *weight, pl_linear **lin);
int pl_model_add_norm(
    pl_error *err, pl_model *model, pl_unit *unit, const char *module, int64_t size, pl_norm_module *norm);
/* Appends the unit; its ownership passes to the model, also on failure. */
int pl_model_add_unit(pl_error *err, pl_model *model, pl_unit *unit, const char *name);

/* Each kind of unit declares itself: embedding.c, block.c, head.c. */
int pl_embedding_declare(pl_error *err, pl_model *model, pl_param **table);
int pl_block_declare(pl_error *err, pl_model *model, int layer);
int pl_head_declare(pl_error *err, pl_model *model, pl_param *table /* of the embedding, for a tied head */);

#endif
