/* From logits to a token: the filters of Hugging Face's generate, in its order: repetition penalty, temperature, top-k,
   top-p, min-p, softmax. */
#ifndef PL_INFER_SAMPLING_H
#define PL_INFER_SAMPLING_H

#include "base/error.h"
#include "base/rng.h"

typedef struct pl_sampling {
    bool greedy;               /* the likeliest token; temperature, top_k, top_p and min_p are not looked at */
    double temperature;        /* > 0; 1: as it is */
    int64_t top_k;             /* 0: off. Tokens as likely as the k-th stay */
    double top_p;              /* 1: off. The fewest tokens that reach this probability together */
    double min_p;              /* 0: off. Tokens at least this part as likely as the likeliest */
    double repetition_penalty; /* 1: off. Keskar et al. 2019 */
    uint64_t seed;
} pl_sampling;

typedef struct pl_sampler pl_sampler;

/* For a vocabulary of that size; nothing is allocated after this. One serves many texts. */
int pl_sampler_open(pl_error *err, const pl_sampling *settings, int64_t vocab, pl_sampler **out);
void pl_sampler_close(pl_sampler *sampler); /* NULL is fine */

/* A token to come. */
typedef struct pl_draw {
    const int32_t *before; /* the text so far, the prompt included: what the repetition penalty is for */
    int64_t nbefore;
    uint32_t text;  /* numbers the texts, */
    uint64_t index; /* and a text's draws: the same seed, text and index draw alike */
} pl_draw;

/* Probabilities [vocab] (0: filtered out), valid until the next call. */
const double *pl_sampler_probabilities(pl_sampler *sampler, const float *logits, const pl_draw *draw);
/* The next token. PL_ENUMERIC for logits that are NaN. */
int pl_sampler_next(pl_error *err, pl_sampler *sampler, const float *logits, const pl_draw *draw, int32_t *token);

#endif
