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
    pl_device *device;
    pl_mem mem;
    pl_engine *engine;
    pl_batch batch;
    double slack; /* what tolerances are multiplied by; 1 after golden_open */
} golden;

typedef struct golden_options {
    bool ref;      /* the oracle device; else the CPU */
    int threads;   /* of the CPU; 0: 2 */
    bool training; /* else frozen, for logits alone */
    pl_dtype dtype;
    int recompute;
    double clip;
} golden_options;

/* Opens `model_dir` (tests/golden/models/llama), with the adapter and the expected values of `case_dir`: the same
   folder for a plain model, trained in full; one with adapter_config.json otherwise. Fails the test on any error. */
void golden_open(golden *g, const char *model_dir, const char *case_dir, const golden_options *options);
void golden_close(golden *g);

/* The name under which files have a parameter, behind `prefix`: with an adapter, PEFT's. */
const char *golden_key(const golden *g, const pl_param *param, const char *prefix, char key[512]);

/* A tensor of the expected values, as doubles that the caller frees; *n is their number. Fails the test when absent. */
double *golden_expected(const golden *g, const char *name, int64_t *n);
bool golden_has(const golden *g, const char *name);
/* A tensor of the device, as floats that the caller frees. */
float *golden_fetch(golden *g, pl_tensor t);

/* Fails unless |got - want| <= tolerance * max(largest |want|, floor) everywhere. */
void golden_close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance, double floor);

/* golden_check.c: against the case's expected values, failing the test where they differ. */
void golden_check_logits(golden *g);
void golden_check_gradients(golden *g); /* and the loss */
void golden_check_steps(golden *g);     /* five steps of AdamW: losses, norms, final weights */

#endif
