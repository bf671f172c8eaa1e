/* How a step's rows go to processes and their micro-batches. */
#ifndef PL_DATA_DEAL_H
#define PL_DATA_DEAL_H

#include <stdint.h>

#include "base/error.h"

/* Process p's micro-batch m has the rows items[starts[b]], ..., items[starts[b + 1] - 1], where b = p * micros + m:
   rows of the step, counted from 0, in ascending order. Every process has as many micro-batches; some may be empty. */
typedef struct pl_deal {
    int processes, micros;
    int64_t rows;
    int64_t *items, *starts; /* [rows], [processes * micros + 1] */
    int64_t *scratch;
    size_t items_capacity, starts_capacity, scratch_capacity;
} pl_deal;
void pl_deal_close(pl_deal *deal); /* {0} is fine */

/* In turn: process p gets rows p, p + processes, ..., as torch's DistributedSampler does, and cuts them into
   micro-batches of micro_batch rows. */
int pl_deal_in_turn(pl_error *err, pl_deal *deal, int64_t rows, int processes, int64_t micro_batch);
/* As many rows to each process, but for one, and with them as equal a number of tokens as can be had in one pass: the
   longest rows first, each to the process that has the fewest tokens so far. */
int pl_deal_evenly(
    pl_error *err, pl_deal *deal, const int64_t *lengths, int64_t rows, int processes, int64_t micro_batch);
/* Micro-batches that are made already, of sizes[0], sizes[1], ... rows in a row, go round. */
int pl_deal_made(pl_error *err, pl_deal *deal, const int64_t *sizes, int64_t count, int processes);

#endif
