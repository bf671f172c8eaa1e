/* Loss and perplexity of a model on data. */
#ifndef PL_API_EVAL_H
#define PL_API_EVAL_H

#include "api/config.h"
#include "base/log.h"

typedef struct pl_eval_result {
    double loss, perplexity; /* mean over all trained tokens, and its exponential */
    int64_t rows, tokens, targets;
    double seconds;
    int64_t peak_bytes;
} pl_eval_result;

/* Evaluates config->model, with config->adapter if there is one, on all of config->data, in order. */
int pl_eval(pl_error *err, const pl_log *log, pl_config *config, pl_eval_result *result);

#endif
