/* The tensors of a model folder by name, wherever they lie: in model.safetensors, or in the shards that
   model.safetensors.index.json names. Every look-up is remembered, so that in the end missing and surplus tensors can
   be told by name. */
#ifndef PL_IO_WEIGHTS_H
#define PL_IO_WEIGHTS_H

#include "base/names.h"
#include "io/safetensors.h"

typedef struct pl_weights pl_weights;

/* Opens a folder as transformers does: model.safetensors if it is there, else the index, which alone decides what is
   read: a tensor that it does not list is not there, and one that it lists must be in the shard that it says.
   PL_ENOENT, PL_EIO, PL_EINPUT; a folder that has its weights in another form only is told so. */
int pl_weights_open(pl_error *err, const char *folder, pl_weights **out);
int pl_weights_open_file(pl_error *err, const char *path, pl_weights **out); /* of one safetensors file */
void pl_weights_close(pl_weights *w);                                        /* NULL is fine; its tensors are gone */

int pl_weights_count(const pl_weights *w);
const pl_st_tensor *pl_weights_at(const pl_weights *w, int index); /* by name */

/* Some files leave out or change the beginning of names: those of a bare base model have "h.0.ln_1.weight" for
   "transformer.h.0.ln_1.weight". From now on a look-up of a name that begins with `prefix` uses the first of `prefix`
   and the alternatives (a list ended by NULL; "" leaves it out) that any name here begins with. All strings must
   outlive w. */
void pl_weights_prefix(pl_weights *w, const char *prefix, const char *const *alternatives);

/* The tensor of that name, NULL if there is none; not remembered. */
const pl_st_tensor *pl_weights_peek(const pl_weights *w, const char *name);
/* The same, remembered: a tensor as used, an absent one (*out is NULL) as missing. Not for several threads at once. */
int pl_weights_find(pl_error *err, pl_weights *w, const char *name, const pl_st_tensor **out);

/* PL_EINPUT, with the first names of each kind, if any tensor was missing, or is surplus: never looked up, and matched
   by none of the `harmless` patterns (ended by NULL; * is any text: "*.attn.bias"), which are matched with the names as
   the files have them. `where` names what the tensors were wanted for: "config.json", "this adapter's configuration".
 */
int pl_weights_check(pl_error *err, const pl_weights *w, const char *where, const char *const *harmless);

#endif
