/* What the writing and the loading of checkpoints share: checkpoint.c, checkpoint_load.c. */
#ifndef PL_API_CHECKPOINT_INTERNAL_H
#define PL_API_CHECKPOINT_INTERNAL_H

#include "api/checkpoint.h"

#define PL_CHECKPOINT_FORMAT 2
#define PL_STATE_FILE "state.json"

/* OUTPUT/checkpoints/step-N, and `end`. */
int pl_checkpoint_folder(pl_error *err, const char *output, int64_t step, const char *end, char **out);
/* The largest step below `below`; -1: none. */
int pl_checkpoint_before(pl_error *err, const char *output, int64_t below, int64_t *step);
/* The checksum of state.json itself, which it has in "checksum": of all that is beside it. */
int pl_checkpoint_sum_state(pl_error *err, const json_t *state, char text[33]);

#endif
