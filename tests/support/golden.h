/* A golden case: a model (and an adapter) with its inputs and expected values, opened on a device as the product would.
 */
#ifndef TEST_GOLDEN_H
#define TEST_GOLDEN_H

#include <stdbool.h>

#include "io/peft.h"
#include "io/safetensors.h"
#include "model/adapt.h"
#include "train/engine.h"

typedef struct golden {
    pl_error err;
    pl_arch arch;
    pl_model *model;
    pl_safetensors *weights, *adapter, *expected;
    json_t *info; /* case.json */
    pl_lora_config lora;
    pl_device *device, *twin; /* twin: what a dry device plans for, else NULL */
    pl_mem mem;
    pl_engine *engine;
    pl_batch batch;
    bool rounds;
    int draw;
    float *rounded[512];
    int nrounded;
    double slack; /* what tolerances are multiplied by; 1 after golden_open */
} golden;

typedef struct golden_options {
    bool ref;       /* the oracle device; else the CPU */
    bool dry;       /* a dry device that plans for that one */
    int threads;    /* of the CPU; 0: 2 */
    bool training;  /* else frozen, for logits alone */
    bool lora;      /* a fresh adapter of rank 4 on every linear of the blocks, both of its factors random */
    bool dora;      /* and that with magnitudes */
    double dropout; /* of the adapter */
    pl_dtype dtype;
    bool rounded; /* all values are rounded to bf16 first: what a bf16 model begins with, to be computed in f32 */
    int draw;     /* with `rounded`: not 0, and values are moved at random by up to one rounding before that */
    int recompute;
    uint64_t seed; /* 0: 7 */
    double clip;
    int64_t cache_rows;
    int64_t max_length;              /* of a sequence; 0: the case's own */
    int64_t saved_bytes, work_bytes; /* of the stacks; 0: 4 MiB each, or unlimited on a dry device */
    pl_lora_config *adapter;         /* with model_dir alone: a fresh adapter to train; taken over */
    float b_lr_ratio;                /* 0: 1 */
    const pl_optimizer *optimizer;   /* NULL: the golden values' AdamW */
    pl_sharding sharding;            /* {0}: one process */
    pl_offload offload;              /* {0}: nothing is on disk */
    bool accumulates;
} golden_options;

/* Opens `model_dir` (tests/golden/models/llama), with the adapter and the expected values of `case_dir`: the same
   folder for a plain model, trained in full; one with adapter_config.json otherwise. Fails the test on any error. */
void golden_open(golden *g, const char *model_dir, const char *case_dir, const golden_options *options);
void golden_close(golden *g);

/* What the case's files hold. */
pl_source golden_source(golden *g);
/* The name under which files have a parameter, behind `prefix`: with an adapter, PEFT's. */
const char *golden_key(const golden *g, const pl_param *param, const char *prefix, char key[512]);

/* Runs `test` once for each dense model of tests/golden/models, its folder's name as *state; a group of cmocka. */
int golden_each_model(const char *group, void (*test)(void **state));
/* The path of one of them, "llama", in a buffer that the next call uses again. */
const char *golden_path(const char *name);

/* Micro-batches of a step, as a feed: {.user = &micros, .micro_batch = golden_feed}. */
typedef struct golden_micros {
    pl_batch items[4];
    int count;
} golden_micros;
int golden_feed(pl_error *err, void *micros, int64_t step, int micro, pl_batch *batch);
int64_t golden_targets(const golden_micros *micros);
/* Each sequence of the case a micro-batch of its own, the rest in the last one. */
void golden_split(golden *g, golden_micros *micros, int count);
void golden_micros_close(golden_micros *micros);

/* A tensor of the expected values, as doubles that the caller frees; *n is their number. Fails the test when absent. */
double *golden_expected(const golden *g, const char *name, int64_t *n);
bool golden_has(const golden *g, const char *name);
/* A tensor of the device, as floats that the caller frees. */
float *golden_fetch(golden *g, pl_tensor t);
/* The same of a state, all of which this process keeps. */
float *golden_state(golden *g, const pl_param *p, pl_state state);

/* Fails unless |got - want| <= tolerance * max(largest |want|, floor) everywhere. */
void golden_close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance, double floor);

/* Gives the case's batch, again and again. */
pl_feed golden_same_feed(golden *g);

/* golden_check.c: against the case's expected values, failing the test where they differ. */
void golden_check_logits(golden *g);
void golden_check_gradients(golden *g); /* and the loss */
void golden_check_steps(golden *g);     /* five steps of AdamW: losses, norms, final weights */

#endif
