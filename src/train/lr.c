#include "train/lr.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

static double at_least_one(double x)
{
    return x > 1 ? x : 1;
}

/* ---- Hugging Face: transformers.optimization ---- */

static int64_t warmup_of(const pl_lr_config *c, int64_t steps)
{
    if (c->warmup_ratio > 0) return (int64_t)ceil(c->warmup_ratio * (double)steps);
    return c->warmup_steps > 0 ? c->warmup_steps : 0;
}

static double cosine(const pl_lr_config *c, double progress)
{
    return 0.5 * (1 + cos(pi * c->num_cycles * 2 * progress));
}

/* A factor that falls from 1 to 0, made to fall to `least`. */
static double lifted(double factor, double least)
{
    return fmax(0, factor * (1 - least) + least);
}

/* Where a cosine ends: a part of lr, given as that or as a rate. */
static double least_rate(const pl_lr_config *c, double lr)
{
    if (!isnan(c->min_lr)) return lr > 0 ? c->min_lr / lr : 0;
    return isnan(c->min_lr_rate) ? 0 : c->min_lr_rate;
}

static double ramp_up(int kind, double progress)
{
    if (kind == PL_RAMP_COSINE) return 0.5 * (1 - cos(pi * progress));
    return kind == PL_RAMP_1_SQRT ? 1 - sqrt(1 - progress) : progress;
}

static double ramp_down(const pl_lr_config *c, double progress)
{
    if (c->decay_type == PL_RAMP_COSINE) return cosine(c, progress);
    return c->decay_type == PL_RAMP_1_SQRT ? 1 - sqrt(progress) : 1 - progress;
}

static double warmup_stable_decay(const pl_lr_config *c, int64_t step, int64_t steps)
{
    int64_t warmup = warmup_of(c, steps), decay = steps - c->decay_steps;
    if (step < warmup) {
        return lifted(ramp_up(c->warmup_type, (double)step / at_least_one((double)warmup)), c->min_lr_ratio);
    }
    if (step < decay) return 1;
    if (step >= steps) return c->min_lr_ratio;
    return lifted(ramp_down(c, (double)(step - decay) / at_least_one((double)c->decay_steps)), c->min_lr_ratio);
}

static double cosine_warmup_with_min_lr(const pl_lr_config *c, double lr, double step, double warmup, double steps)
{
    if (step < warmup) {
        if (isnan(c->warmup_lr_rate)) return (step + 1) / at_least_one(warmup);
        return c->warmup_lr_rate + (1 - c->warmup_lr_rate) * step / at_least_one(warmup - 1);
    }
    return lifted(cosine(c, (step - warmup + 1) / at_least_one(steps - warmup)), least_rate(c, lr));
}

/* After the warmup; progress goes from 0 to 1. */
static double after_warmup(const pl_lr_config *c, double lr, double step, double warmup, double steps)
{
    double progress = (step - warmup) / at_least_one(steps - warmup);
    switch (c->name) {
    case PL_SCHEDULER_LINEAR: return fmax(0, (steps - step) / at_least_one(steps - warmup));
    case PL_SCHEDULER_COSINE: return fmax(0, cosine(c, progress));
    case PL_SCHEDULER_COSINE_WITH_RESTARTS:
        return progress >= 1 ? 0 : fmax(0, 0.5 * (1 + cos(pi * fmod(c->num_cycles * progress, 1))));
    case PL_SCHEDULER_POLYNOMIAL:
        if (step > steps) return c->lr_end / lr;
        return ((lr - c->lr_end) * pow(1 - (step - warmup) / (steps - warmup), c->power) + c->lr_end) / lr;
    case PL_SCHEDULER_INVERSE_SQRT: return 1 / sqrt((step + (double)c->timescale - warmup) / (double)c->timescale);
    case PL_SCHEDULER_COSINE_WITH_MIN_LR: return lifted(cosine(c, progress), least_rate(c, lr));
    default: return 1;
    }
}

/* ---- DeepSpeed: runtime/lr_schedules.py ---- */

/* Their step -1 is the first: both of the first two steps have the warmup's lowest rate. */
static double warmup_gamma(const pl_lr_config *c, double k)
{
    double warmup = fmax(2, (double)c->warmup_steps);
    if (k >= warmup) return 1;
    if (k <= 0) return 0;
    return c->warmup_type == PL_RAMP_LINEAR ? k / warmup : log(k + 1) / log(warmup);
}

static double warmup_lr(const pl_lr_config *c, int64_t step, int64_t steps)
{
    double k = (double)step - 1, warmup = fmax(2, (double)c->warmup_steps), gamma = warmup_gamma(c, k);
    if (c->name == PL_SCHEDULER_WARMUP_DECAY_LR && k >= warmup) {
        gamma = fmax(0, ((double)steps - k) / at_least_one((double)steps - warmup));
    }
    return c->warmup_min_lr + (c->warmup_max_lr - c->warmup_min_lr) * gamma;
}

static double warmup_cosine_ratio(const pl_lr_config *c, int64_t step, int64_t steps)
{
    double k = (double)step - 1, warmup = fmax(2, (double)c->warmup_steps);
    if (k < 0) return 0;
    if (k < warmup) return c->warmup_min_ratio + (1 - c->warmup_min_ratio) * warmup_gamma(c, k);
    double wave = (1 + cos(pi * fmin(1, (k - warmup + 1) / at_least_one((double)steps - warmup)))) / 2;
    return fmax(0, c->cos_min_ratio + (1 - c->cos_min_ratio) * wave);
}

static int64_t second_size(const pl_lr_config *c)
{
    return c->cycle_second_step_size > 0 ? c->cycle_second_step_size : c->cycle_first_step_size;
}

/* How far up the cycle is, 0 to 1; -1 after it. */
static double cycle_scale(const pl_lr_config *c, int64_t step)
{
    int64_t first = c->cycle_first_step_size, total = first + second_size(c);
    if (step >= total) return -1;
    bool rising = step <= first;
    double scale = rising ? (double)step / (double)first : (double)(total - step) / (double)second_size(c);
    int64_t stairs =
        rising || c->cycle_second_stair_count < 0 ? c->cycle_first_stair_count : c->cycle_second_stair_count;
    /* The cycle's position is computed in floating point there too; a stair must not be missed by rounding. */
    return stairs > 0 ? floor(scale * (double)stairs + 1e-9) / (double)stairs : scale;
}

static double intervals_after_cycle(const pl_lr_config *c, int64_t step)
{
    if (c->decay_step_size <= 0) return 0;
    int64_t total = c->cycle_first_step_size + second_size(c);
    return (double)(step - total) / (double)c->decay_step_size;
}

static double one_cycle(const pl_lr_config *c, int64_t step)
{
    double scale = cycle_scale(c, step);
    if (scale >= 0) return c->cycle_min_lr + (c->cycle_max_lr - c->cycle_min_lr) * scale;
    return c->cycle_min_lr / (1 + c->decay_lr_rate * intervals_after_cycle(c, step));
}

double pl_lr_beta1(const pl_lr_config *c, double beta1, int64_t step)
{
    if (c->name != PL_SCHEDULER_ONE_CYCLE || !c->cycle_momentum) return beta1;
    if (step == 0) return c->cycle_min_mom;
    double scale = cycle_scale(c, step);
    if (scale >= 0) return c->cycle_max_mom - (c->cycle_max_mom - c->cycle_min_mom) * scale;
    return c->cycle_max_mom * (1 + c->decay_mom_rate * intervals_after_cycle(c, step));
}

static double range_test(const pl_lr_config *c, int64_t step)
{
    double interval = (double)step / (double)c->lr_range_test_step_size;
    if (c->lr_range_test_staircase) interval = floor(interval);
    return c->lr_range_test_min_lr * (1 + c->lr_range_test_step_rate * interval);
}

/* ---- */

double pl_lr_at(const pl_lr_config *c, double lr, int64_t step, int64_t steps)
{
    double warmup = (double)warmup_of(c, steps), s = (double)step;
    switch (c->name) {
    case PL_SCHEDULER_CONSTANT: return lr;
    case PL_SCHEDULER_WARMUP_STABLE_DECAY: return lr * warmup_stable_decay(c, step, steps);
    case PL_SCHEDULER_COSINE_WARMUP_WITH_MIN_LR: return lr * cosine_warmup_with_min_lr(c, lr, s, warmup, (double)steps);
    case PL_SCHEDULER_WARMUP_LR:
    case PL_SCHEDULER_WARMUP_DECAY_LR: return warmup_lr(c, step, steps);
    case PL_SCHEDULER_WARMUP_COSINE_LR: return lr * warmup_cosine_ratio(c, step, steps);
    case PL_SCHEDULER_ONE_CYCLE: return one_cycle(c, step);
    case PL_SCHEDULER_LR_RANGE_TEST: return range_test(c, step);
    default: break;
    }
    if (s < warmup) return lr * s / at_least_one(warmup);
    return lr * after_warmup(c, lr, s, warmup, (double)steps);
}
