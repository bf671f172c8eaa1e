/* Starts of LoRA that take the base weight apart, in host memory: PiSSA and OLoRA; and the orthogonal start.
   Followed: peft 0.21, tuners/lora/layer.py. */
#ifndef PL_MODEL_LORA_INIT_H
#define PL_MODEL_LORA_INIT_H

#include "base/rng.h"
#include "model/lora_config.h"

/* One linear layer's start. */
typedef struct pl_lora_start {
    const char *name;   /* of the module, for messages */
    pl_lora_init init;  /* PL_LORA_INIT_PISSA, _OLORA or _ORTHOGONAL */
    int64_t niter;      /* PiSSA: -1 exactly, else by that many power iterations from random vectors */
    int64_t in, out, r; /* r <= min(in, out), but for the orthogonal start, which asks for an even r */
    bool transposed;    /* the weight lies as [in, out]; not with OLoRA */
    float scaling;      /* > 0, but for the orthogonal start */
    uint64_t seed;      /* of what is random: equal ones give equal starts */
    uint32_t domain;    /* sets the modules apart that share the seed */
} pl_lora_start;

/* Writes a [r, in] and b [out, r]. PiSSA and OLoRA take scaling * b a away from the weight (as it lies), so that weight
   and adapter together are what the weight was:

   PiSSA (Meng et al. 2024): W = U S V' by singular values, the r largest;  b = U sqrt(S / scaling), a = sqrt(S /
   scaling) V'. Exactly: by the eigenvectors of W W' or W' W, the smaller one, in double precision: more exact than
   a decomposition of W in f32, and much cheaper. Approximately: Halko et al. 2011, as torch.svd_lowrank.
   OLoRA (Buyukakyuz 2024): W = Q R;  b = the first r columns of Q, a = the first r rows of R.
   Orthogonal: a and b random with b a = 0; `weight` is not used and may be NULL.

   PL_ENUMERIC when the weight is not finite or the decomposition does not converge. */
int pl_lora_start_make(pl_error *err, const pl_lora_start *start, float *weight, float *a, float *b);

/* Host memory that it takes beside its arguments, nearly. */
int64_t pl_lora_start_bytes(const pl_lora_start *start);

#endif
