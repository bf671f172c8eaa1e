#ifndef PL_TRAIN_CAPACITY_H
#define PL_TRAIN_CAPACITY_H

#include <stdint.h>

/* How large a micro-batch may be, and what its stacks need: PL_STACK_UNLIMITED on a dry device, then what that tells.
 */
typedef struct pl_capacity {
    int64_t tokens, max_length;
    int sequences;
    int64_t saved_bytes, work_bytes;
} pl_capacity;

#endif
