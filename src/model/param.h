/* A parameter: what a unit declares, under the name and global shape that Hugging Face's file has it. The store decides
   where its values live and fills in `value` and `grad`. */
#ifndef PL_MODEL_PARAM_H
#define PL_MODEL_PARAM_H

#include "op/run.h"

/* How tensor parallelism divides it. */
typedef enum pl_split { PL_SPLIT_NONE, PL_SPLIT_COLUMN, PL_SPLIT_ROW, PL_SPLIT_VOCAB } pl_split;

/* How a value comes to be when no file gives it. */
typedef enum pl_init {
    PL_INIT_ZERO,
    PL_INIT_ONE,
    PL_INIT_NORMAL, /* mean 0, deviation init_scale */
    PL_INIT_UNIFORM /* [-init_scale, init_scale) */
} pl_init;

typedef enum pl_role {
    PL_ROLE_BASE,    /* of the model's own files */
    PL_ROLE_ADAPTER, /* lora_A, lora_B, lora_magnitude_vector */
    PL_ROLE_DERIVED  /* computed from others at start (f32), in no file */
} pl_role;

typedef struct pl_param {
    char *name;        /* "model.layers.0.self_attn.q_proj.weight"; adapters: "....q_proj.lora_A.weight" */
    char *source_name; /* the tensor that it is read from, where that has another name; else NULL */
    int ndim;
    int64_t shape[2];
    pl_split split;
    pl_role role;
    bool trainable, decay; /* decay: weight decay applies */
    bool in_adapter;       /* it is kept in the adapter's file */
    bool saved_module;     /* of modules_to_save: PEFT keeps the original beside the copy that trains */
    bool keep_f32;         /* operators read it in f32 whatever the model's dtype (and never from a mapping) */
    bool is_private;       /* its values are changed at start (PiSSA, OLoRA): it must not be a file's mapping */
    float lr_scale;        /* LoRA+: B learns faster */
    pl_init init;
    float init_scale;
    int64_t zero_row; /* a row that starts at zero (padding), or -1 */
    uint32_t id;      /* its number in the model: keys its random numbers */

    pl_tensor value; /* what operators read; placed by the store */
    pl_tensor grad;  /* f32, added to by backward; none while frozen */
    /* Nothing of this step is in grad yet, and what is there is of no meaning: its first writer writes over it, or
       brings it to zero by pl_param_open_grad. */
    bool grad_stale;
} pl_param;

/* Before something is added to grad: zeros, where it is stale. */
int pl_param_open_grad(pl_run *run, pl_param *p);

/* The name of the tensor that its values are read from. */
static inline const char *pl_param_source(const pl_param *p)
{
    return p->source_name ? p->source_name : p->name;
}

static inline int64_t pl_param_numel(const pl_param *p)
{
    return p->ndim == 2 ? p->shape[0] * p->shape[1] : p->shape[0];
}

#endif
