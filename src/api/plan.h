/* What a run will need, from a dry run of the program itself: nothing is estimated by formula. */
#ifndef PL_API_PLAN_H
#define PL_API_PLAN_H

#include "api/config.h"
#include "base/log.h"
#include "mem/mem.h"

typedef struct pl_plan {
    int64_t bytes[PL_MEM_TAG_COUNT], total; /* peaks, as metrics.jsonl has them */
    int64_t available;                      /* memory of this machine that a program can have now */
    bool fits;
    int64_t trainable, all;                                      /* parameters */
    int64_t steps, rows, tokens;                                 /* of the run; of the data, in one round */
    int64_t micro_tokens, micro_rows;                            /* of the largest micro-batch */
    int micro_batches;                                           /* of a step */
    double step_flops, gemm_flops, attention_flops, other_flops; /* of the first step */
} pl_plan;

/* Plans what config (checked for PL_CMD_PLAN) says. With data, the data's own largest micro-batch counts; without,
   train.micro_batch sequences of data.sequence_length. */
int pl_plan_run(pl_error *err, const pl_log *log, pl_config *config, pl_plan *plan);

#endif
