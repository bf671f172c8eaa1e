/* LoRA adapters as PEFT keeps them: a folder with adapter_config.json and adapter_model.safetensors.
   Followed: peft 0.21. */
#ifndef PL_IO_PEFT_H
#define PL_IO_PEFT_H

#include "io/weights.h"
#include "model/lora_config.h"

/* Reads an adapter_config.json. A field that changes the result, and that pl_lora_config has no place for, may hold its
   default only (else PL_EUNSUPPORTED, naming field and value); one that changes nothing once an adapter exists may hold
   anything; one that PEFT 0.21 does not know must be null, false or empty (else PL_EINPUT). *c is freed on failure. */
int pl_lora_config_read(pl_error *err, const char *path, pl_lora_config *c);
/* The same from a document; `where` is its name, for messages. */
int pl_lora_config_parse(pl_error *err, const char *where, const json_t *document, pl_lora_config *c);
/* Appends the text that PEFT would save: every field of PEFT 0.21, sorted; inference_mode is true in it. */
int pl_lora_config_text(pl_error *err, const pl_lora_config *c, pl_buf *out);

/* What a tensor of an adapter is to its module. */
typedef enum pl_peft_kind {
    PL_PEFT_LORA_A,      /* [r, in]; of gpt2's Conv1D too */
    PL_PEFT_LORA_B,      /* [out, r] */
    PL_PEFT_LORA_B_BIAS, /* [out], with lora_bias */
    PL_PEFT_MAGNITUDE,   /* [out], with use_dora; of an embedding [hidden] */
    PL_PEFT_EMBEDDING_A, /* [r, vocab] */
    PL_PEFT_EMBEDDING_B, /* [hidden, r] */
    PL_PEFT_TOKENS,      /* [ids, hidden]: the rows of trainable_token_indices, whole */
    PL_PEFT_BASE_WEIGHT, /* weight of an adapted module: an embedding saved along */
    PL_PEFT_BASE_BIAS,   /* bias of an adapted module, with `bias` all or lora_only */
    PL_PEFT_WEIGHT,      /* of a module of modules_to_save */
    PL_PEFT_BIAS         /* of one, or, with `bias` all, of any module without an adapter */
} pl_peft_kind;

/* "base_model.model." MODULE ".lora_A.weight" and so on; the caller frees. */
int pl_peft_key(pl_error *err, const char *module, pl_peft_kind kind, char **out);
/* The way back: the module is key[*begin, *begin + *size). False if PEFT's LoRA has no such key. */
bool pl_peft_key_parse(const char *key, size_t *begin, size_t *size, pl_peft_kind *kind);

/* The adapter_config.json of an adapter's folder alone; errors as pl_adapter_open. The caller frees *c, which is freed
   on failure. */
int pl_adapter_config(pl_error *err, const char *folder, pl_lora_config *c);
/* Opens an adapter's folder. Every key in it is one that pl_peft_key_parse knows. The caller frees both. PL_ENOENT,
   PL_EINPUT, PL_EUNSUPPORTED; an adapter_model.bin alone, or a model's folder, is told so. */
int pl_adapter_open(pl_error *err, const char *folder, pl_lora_config *c, pl_weights **out);
/* pl_weights_find of a module's tensor. */
int pl_adapter_find(pl_error *err, pl_weights *w, const char *module, pl_peft_kind kind, const pl_st_tensor **out);

/* Writes an adapter's folder; the sources' names are keys from pl_peft_key. Like pl_model_folder_write it leaves an
   older adapter as it is until the new one is on the disk, and never a mixture of both. */
int pl_adapter_write(
    pl_error *err, const char *folder, const pl_lora_config *c, const pl_st_source *sources, int count);

#endif
