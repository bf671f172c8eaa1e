/* Learning rate schedules: Hugging Face's get_scheduler and DeepSpeed's lr_schedules, as functions of the step. */
#ifndef PL_TRAIN_LR_H
#define PL_TRAIN_LR_H

#include <stdbool.h>
#include <stdint.h>

typedef enum pl_scheduler_name {
    PL_SCHEDULER_LINEAR,
    PL_SCHEDULER_COSINE,
    PL_SCHEDULER_COSINE_WITH_RESTARTS,
    PL_SCHEDULER_POLYNOMIAL,
    PL_SCHEDULER_CONSTANT,
    PL_SCHEDULER_CONSTANT_WITH_WARMUP,
    PL_SCHEDULER_INVERSE_SQRT,
    PL_SCHEDULER_COSINE_WITH_MIN_LR,
    PL_SCHEDULER_COSINE_WARMUP_WITH_MIN_LR,
    PL_SCHEDULER_WARMUP_STABLE_DECAY,
    PL_SCHEDULER_WARMUP_LR, /* these and the following are DeepSpeed's */
    PL_SCHEDULER_WARMUP_DECAY_LR,
    PL_SCHEDULER_WARMUP_COSINE_LR,
    PL_SCHEDULER_ONE_CYCLE,
    PL_SCHEDULER_LR_RANGE_TEST
} pl_scheduler_name;
typedef enum pl_ramp { PL_RAMP_LINEAR, PL_RAMP_COSINE, PL_RAMP_1_SQRT, PL_RAMP_LOG } pl_ramp;

/* The fields of a run's `scheduler` section. "Filled in by the check" is what api/config does before anybody reads it.
 */
typedef struct pl_lr_config {
    int name;             /* pl_scheduler_name */
    int64_t warmup_steps; /* filled in by the check, but for warmup_ratio */
    double warmup_ratio;
    int64_t decay_steps;
    double num_cycles; /* filled in by the check */
    double power, lr_end;
    double min_lr, min_lr_rate, warmup_lr_rate, min_lr_ratio;
    int warmup_type, decay_type; /* pl_ramp; filled in by the check */
    int64_t timescale;           /* filled in by the check, where it does not follow from the warmup */
    /* DeepSpeed's; the maxima are filled in by the check */
    double warmup_min_lr, warmup_max_lr, warmup_min_ratio, cos_min_ratio;
    double cycle_min_lr, cycle_max_lr;
    int64_t cycle_first_step_size, cycle_second_step_size, cycle_first_stair_count, cycle_second_stair_count;
    int64_t decay_step_size;
    double decay_lr_rate;
    bool cycle_momentum;
    double cycle_min_mom, cycle_max_mom, decay_mom_rate;
    double lr_range_test_min_lr, lr_range_test_step_rate;
    int64_t lr_range_test_step_size;
    bool lr_range_test_staircase;
} pl_lr_config;

/* The learning rate in force at optimizer step `step` (from 0) of `steps`; lr is optimizer.lr. */
double pl_lr_at(const pl_lr_config *schedule, double lr, int64_t step, int64_t steps);
/* AdamW's first beta at that step: `beta1`, unless OneCycle's momentum moves. */
double pl_lr_beta1(const pl_lr_config *schedule, double beta1, int64_t step);

#endif
