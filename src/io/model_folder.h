/* Writing a model folder that transformers loads: weights, config.json, and the tokenizer's and other small files of
   the model that it came from. */
#ifndef PL_IO_MODEL_FOLDER_H
#define PL_IO_MODEL_FOLDER_H

#include "io/safetensors.h"

#define PL_SHARD_BYTES 5000000000u /* transformers' "5GB" */

typedef struct pl_model_folder {
    const char *source;   /* the folder whose config.json, tokenizer files and so on are copied; NULL: none */
    const char *config;   /* a config.json to use in place of the source's; one of the two must be there */
    const char *texts;    /* the folder whose tokenizer files alone are copied, where there is no source; NULL: none */
    const char *dtype;    /* "float32", "bfloat16", "float16": what config.json shall say; NULL: leave it */
    bool unties;          /* config.json shall say that embedding and head are two tensors, which it may leave open */
    uint64_t shard_bytes; /* a file takes tensors, in the order given, up to this many bytes; 0: PL_SHARD_BYTES */
} pl_model_folder;

/* Writes the tensors into `folder` (made if absent): model.safetensors, or, if they are more than shard_bytes,
   model-00001-of-0000N.safetensors and so on with model.safetensors.index.json. Names must all differ. The folder may
   hold an older model, also the source itself. Until all new data is on the disk nothing of that changes, and at each
   moment after that a reader finds the old weights or the new ones, never a mixture; where config.json changes it is
   away (as config.json.replaced) while the weights change, so that it never stands beside weights of another model.
   What is no longer part of the model is removed in the end. PL_EIO, PL_EINPUT (config.json), what a source's `read`
   gives. */
int pl_model_folder_write(
    pl_error *err, const char *folder, const pl_model_folder *options, const pl_st_source *sources, int count);

#endif
