/* Writing on from prompts, one token after another, with keys and values kept. Several texts are written at once: each
   weight is read once a step for all of them. Every text has its own rows of the cache, so that nothing is padded, and
   makes room for the next prompt when it ends. */
#ifndef PL_INFER_GENERATE_H
#define PL_INFER_GENERATE_H

#include "infer/sampling.h"
#include "train/engine.h"

typedef struct pl_prompt {
    const int32_t *tokens;
    int64_t count;      /* >= 1 */
    int64_t max_tokens; /* at most so many new ones, >= 1 */
} pl_prompt;

typedef struct pl_generation {
    const pl_prompt *prompts;
    int64_t nprompts; /* >= 1 */
    int batch;        /* texts that are written at once, 1..nprompts: the engine's capacity in sequences */
    int64_t chunk;    /* tokens of a prompt that are read at once */
    int64_t together; /* of several prompts; 0: each is read alone. The engine's capacity has these and `batch` */
    const int64_t *stops;
    int nstops; /* tokens that end a text; they are not given to `token` */
    pl_sampling sampling;
    void *user;
    bool (*token)(void *user, int64_t text, int32_t token); /* each new one; false ends all texts */
    bool (*end)(void *user, int64_t text, bool stopped); /* by a stop, or by max_tokens; false ends all. May be NULL */
} pl_generation;

typedef struct pl_generation_time {
    double read_s, write_s; /* of the prompts, up to each text's first token; and of all other tokens */
} pl_generation_time;

/* Rows of the cache, [batch]: what each of the texts that are written at once may take at most, the largest first. */
int pl_generation_rows(pl_error *err, const pl_generation *g, int64_t *rows);

/* The engine was opened for inference, with as many cache_rows as those together. Tokens of several texts come in turn.
   Prompts of no more than a chunk are read together where that changes no bit (the device's gemm_alike_rows). A text
   is the same whatever others are written beside it, to the bit while `batch` is at most 8: products of more
   rows may round otherwise. */
int pl_generate(
    pl_error *err, pl_engine *engine, const pl_model *model, const pl_generation *g, pl_generation_time *time);

#endif
