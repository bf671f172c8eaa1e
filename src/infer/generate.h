/* Writing on from a prompt, one token after another, with keys and values kept. */
#ifndef PL_INFER_GENERATE_H
#define PL_INFER_GENERATE_H

#include "infer/sampling.h"
#include "train/engine.h"

typedef struct pl_generation {
    const int32_t *prompt;
    int64_t nprompt;    /* >= 1 */
    int64_t max_tokens; /* at most so many new ones; the cache has rows for all of them */
    int64_t chunk;      /* tokens of the prompt that are read at once: the engine's capacity */
    const int64_t *stops;
    int nstops; /* tokens that end it; they are not given to `token` */
    pl_sampling sampling;
    void *user;
    bool (*token)(void *user, int32_t token); /* each new one; false ends it */
} pl_generation;

/* The engine was opened for inference, with cache_rows >= nprompt + max_tokens. *written: how many new tokens came, the
   stop left out. */
int pl_generate(pl_error *err, pl_engine *engine, const pl_model *model, const pl_generation *g, int64_t *written);

#endif
