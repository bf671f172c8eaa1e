/* Which rows each step trains on, and how they go into micro-batches. Everything is a function of the step's number: a
   run goes on after a stop with nothing but that number.

   Rows are drawn one after another, each once an epoch, in an order that depends on (seed, epoch), or as they stand in
   the files; after the last one the next epoch begins, in the middle of a step if need be. With weights, files are
   drawn from in these proportions, each file going through epochs of its own.

   A step takes `accumulation` micro-batches of `micro_batch` rows, all processes' together. With micro_batch_tokens a
   micro-batch takes rows as long as their tokens stay within that bound instead. With `epochs` the rows end after so
   many, and the last step may be smaller; else they never end.

   Which rows a step has does not depend on how many processes make how many micro-batches of it. They are dealt out so
   that processes have as many rows and about as many tokens; without shuffling, in turn. All processes have as many
   steps, and in each as many micro-batches, of which some may be empty in a last step that does not divide. */
#ifndef PL_DATA_LOADER_H
#define PL_DATA_LOADER_H

#include "data/dataset.h"
#include "model/batch.h"

typedef struct pl_loader_config {
    pl_data_part part;
    int64_t micro_batch;        /* rows; >= 1 unless micro_batch_tokens */
    int64_t micro_batch_tokens; /* 0: no such bound */
    int64_t accumulation;       /* micro-batches of a step, >= 1 */
    int processes, process;     /* of how many this one is which; 0: one alone */
    double epochs;              /* 0: endless */
    bool shuffle;
    uint64_t seed;
    const double *weights; /* of the data set's first weight_count files; the others are not drawn from */
    size_t weight_count;   /* 0: each row once an epoch */
} pl_loader_config;

typedef struct pl_loader pl_loader; /* one thread at a time */

/* PL_EUSAGE for a bound that the longest row does not fit, and for a weighted file without rows. The data set stays
   open as long as the loader, and so does config->weights. */
int pl_loader_open(pl_error *err, pl_dataset *dataset, const pl_loader_config *config, pl_loader **out);
void pl_loader_close(pl_loader *loader); /* NULL is fine */

/* Steps until the rows end; INT64_MAX if they never do. */
int pl_loader_steps(pl_error *err, pl_loader *loader, int64_t *out);

/* What a step holds, all processes' parts together. Steps count from 0. PL_EBUG for a step after the end. */
typedef struct pl_loader_step {
    int64_t first_row; /* how many rows were drawn before */
    int64_t rows, tokens;
    int64_t targets;   /* over all its micro-batches: what the loss is divided by */
    int micro_batches; /* of each process */
} pl_loader_step;
int pl_loader_step_at(pl_error *err, pl_loader *loader, int64_t step, pl_loader_step *out);

/* Clears the batch and puts, with the numbers of their tokens in the step, the rows of this process's micro-batch
 * `micro` (from 0) of a step into it. */
int pl_loader_fill(pl_error *err, pl_loader *loader, int64_t step, int micro, pl_batch *batch);

/* The largest micro-batches of the steps [first, end), of any process: how many tokens and sequences one has at most,
   and the longest sequence; each may come from another one. What a batch must hold, and what a plan counts with. */
typedef struct pl_loader_largest {
    int64_t tokens, sequences, length;
} pl_loader_largest;
int pl_loader_find_largest(pl_error *err, pl_loader *loader, int64_t first, int64_t end, pl_loader_largest *out);

/* The row of the data set's part that is drawn as number `draw` (from 0). */
int64_t pl_loader_row(pl_loader *loader, int64_t draw);

#endif
