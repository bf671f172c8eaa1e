/* What a LoRA adapter is: the settings of PEFT's LoraConfig, under PEFT's names, and PEFT's rules for what they apply
   to. A plain value; io/peft reads and writes it as adapter_config.json. Whatever a caller does not implement of it, it
   must refuse. Followed: peft 0.21, tuners/lora/config.py, tuners/tuners_utils.py, utils/other.py. */
#ifndef PL_MODEL_LORA_CONFIG_H
#define PL_MODEL_LORA_CONFIG_H

#include <stdint.h>

#include "base/names.h"

typedef enum pl_modules_rule {
    PL_MODULES_NONE,      /* null in the file: for target_modules the model family's default */
    PL_MODULES_LIST,      /* each name is a module's whole name, or its end after a dot */
    PL_MODULES_REGEX,     /* one regular expression for the whole name, as Python's re.fullmatch */
    PL_MODULES_ALL_LINEAR /* for target_modules; whoever knows the model puts the list in its place */
} pl_modules_rule;

typedef struct pl_modules {
    pl_modules_rule rule;
    pl_names names; /* REGEX: exactly one */
} pl_modules;

/* What a user types: "all-linear" (in any case), a list "q_proj,v_proj", or, if it holds any of ^$*+?()[]{}|\, a
   regular expression. Replaces what is there. `where` names the field, for messages. */
int pl_modules_parse(pl_error *err, const char *where, const char *text, pl_modules *modules);
void pl_modules_free(pl_modules *modules); /* {0} is fine */

typedef enum pl_lora_bias { PL_LORA_BIAS_NONE, PL_LORA_BIAS_ALL, PL_LORA_BIAS_LORA_ONLY } pl_lora_bias;

typedef enum pl_lora_init {
    PL_LORA_INIT_DEFAULT,  /* true: A Kaiming uniform, B zero */
    PL_LORA_INIT_RANDOM,   /* false: both random */
    PL_LORA_INIT_GAUSSIAN, /* A normal with deviation 1/r, B zero */
    PL_LORA_INIT_PISSA,    /* exact SVD; init_niter >= 0 asks for "pissa_niter_N" */
    PL_LORA_INIT_OLORA,
    PL_LORA_INIT_ORTHOGONAL,
    PL_LORA_INIT_LOFTQ,
    PL_LORA_INIT_EVA /* says nothing any more once an adapter exists; none can be begun with it */
} pl_lora_init;

/* An override for the modules that `key` matches, the first key that does. */
typedef struct pl_lora_pattern {
    char *key; /* a regular expression for the end of a name, after a dot or from its beginning */
    double value;
} pl_lora_pattern;

typedef struct pl_lora_patterns {
    int count;
    pl_lora_pattern *items;
} pl_lora_patterns;

int pl_lora_patterns_add(pl_error *err, pl_lora_patterns *patterns, const char *key, double value);

/* Rows of an embedding that are trained and saved by themselves. */
typedef struct pl_lora_tokens {
    char *module; /* NULL: the input embedding */
    int count;
    int64_t *ids;
} pl_lora_tokens;

typedef struct pl_lora_config {
    int64_t r;
    double lora_alpha, lora_dropout;
    pl_modules target_modules, exclude_modules;
    pl_names modules_to_save; /* trained whole and saved with the adapter */
    pl_lora_bias bias;
    bool use_rslora, use_dora;
    bool lora_bias; /* B has a bias */
    bool fan_in_fan_out;
    pl_lora_patterns rank_pattern, alpha_pattern;
    int nlayers; /* layers_to_transform; 0: all */
    int64_t *layers_to_transform;
    pl_names layers_pattern; /* regular expressions for the name of the list of layers ("layers", "h") */
    pl_lora_init init_lora_weights;
    int64_t init_niter;
    int64_t loftq_bits, loftq_iter;
    int ntokens; /* trainable_token_indices */
    pl_lora_tokens *tokens;
    bool inference_mode;
    char *task_type, *base_model_name_or_path, *revision; /* NULL: not said */
} pl_lora_config;

void pl_lora_config_init(pl_lora_config *c); /* PEFT's defaults: r 8, lora_alpha 8, no target_modules yet */
void pl_lora_config_free(pl_lora_config *c); /* {0} is fine */
int pl_lora_config_copy(pl_error *err, const pl_lora_config *from, pl_lora_config *to);
/* Ranges, and combinations that PEFT refuses; PL_EINPUT naming `where` and the fields. Also that every regular
   expression compiles. */
int pl_lora_config_check(pl_error *err, const char *where, const pl_lora_config *c);

typedef enum pl_lora_match {
    PL_LORA_NO,
    PL_LORA_YES,
    PL_LORA_EXCLUDED /* by exclude_modules or modules_to_save, whatever else it matches */
} pl_lora_match;

/* Whether a module, named in full ("model.layers.0.self_attn.q_proj"), gets an adapter. PL_EBUG while target_modules is
   all-linear or none. */
int pl_lora_matches(pl_error *err, const pl_lora_config *c, const char *module, pl_lora_match *out);
/* Whether it is one of modules_to_save or lies inside of one. PEFT takes every module whose name ends with one of those
   names, dot or no dot before it. */
bool pl_lora_saves(const pl_lora_config *c, const char *module);
/* A module's own rank, and what its B A x is multiplied by: alpha / r, with use_rslora alpha / sqrt(r). */
int pl_lora_rank(pl_error *err, const pl_lora_config *c, const char *module, int64_t *out);
int pl_lora_scaling(pl_error *err, const pl_lora_config *c, const char *module, double *out);

/* The target_modules that PEFT takes for a model_type when none are given, as pl_modules_parse reads them; NULL where
   it has none, and they must be named. */
const char *pl_lora_default_targets(const char *model_type);

/* "true", "pissa_niter_4": how init_lora_weights is spelled; text has room for 32. And the way back: PL_EUNSUPPORTED
   for PEFT's others (corda, mica...), PL_EINPUT for what is none. */
const char *pl_lora_init_name(const pl_lora_config *c, char text[32]);
int pl_lora_init_parse(pl_error *err, const char *where, const char *text, pl_lora_config *c);
const char *pl_lora_bias_name(pl_lora_bias bias);
int pl_lora_bias_parse(pl_error *err, const char *where, const char *text, pl_lora_bias *out);

#endif
