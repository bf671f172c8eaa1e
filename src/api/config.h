/* One description of a run: a YAML file (JSON is YAML too), every field also a flag. What fields there are, what they
   may be and what they mean is one table (config_fields.c). */
#ifndef PL_API_CONFIG_H
#define PL_API_CONFIG_H

#include "api/field.h"
#include "comm/comm.h"
#include "data/dataset.h"
#include "model/lora_config.h"
#include "train/lr.h"
#include "train/store.h"

/* Which commands take a field as a flag. */
enum pl_command_bit {
    PL_CMD_TRAIN = 1,
    PL_CMD_PLAN = 2,
    PL_CMD_GENERATE = 4,
    PL_CMD_EVAL = 8,
    PL_CMD_MERGE = 16,
    PL_CMD_INSPECT = 32,
    PL_CMD_INIT = 64
};

/* The words of the table, in its order. */
typedef enum pl_method { PL_METHOD_FULL, PL_METHOD_LORA } pl_method;
typedef enum pl_precision { PL_PRECISION_F32, PL_PRECISION_BF16 } pl_precision;

typedef enum pl_offload_place { PL_OFFLOAD_NONE, PL_OFFLOAD_DISK } pl_offload_place;

/* Numbers of fields that have no value are NaN or PL_INT_UNSET, texts NULL; pl_config_check leaves none of those that
   it says it fills in. */
struct pl_config {
    char *model, *from_scratch, *adapter, *output;
    int method, precision; /* pl_method, pl_precision */
    int64_t threads;       /* 0: all cores */
    struct {
        pl_strings files;
        pl_numbers weights; /* as many as files, or none: by their sizes */
        int format;         /* pl_data_format */
        pl_entries fields;
        char *template; /* "auto", "plain", "chat", or a file */
        int loss;       /* pl_data_loss */
        int64_t sequence_length;
        int overlong; /* pl_data_overlong */
        bool shuffle;
        char *validation;
        double validation_split; /* 0: none */
        char *cache;             /* NULL: beside the run */
    } data;
    struct {
        int64_t r;
        double alpha, dropout;
        pl_strings targets; /* none: PEFT's for the family */
        pl_strings exclude, modules_to_save;
        bool dora, rslora;
        char *init; /* as pl_lora_init_parse reads it */
        int bias;   /* pl_lora_bias */
        pl_entries rank_pattern, alpha_pattern;
        pl_numbers layers;
        pl_strings layers_pattern;
        double lr_ratio; /* LoRA+: the learning rate of B over that of A */
    } lora;
    struct {
        int name;  /* pl_optimizer_kind, train/store.h */
        double lr; /* filled in by the check: 5e-5 full, 2e-4 LoRA */
        pl_numbers betas;
        double eps, weight_decay, momentum;
        bool nesterov;
    } optimizer;
    pl_lr_config scheduler;
    struct {
        int64_t steps; /* PL_INT_UNSET: epochs decide */
        double epochs; /* NaN: steps decide */
        int64_t micro_batch, micro_batch_tokens /* 0: no such bound */, accumulation;
        double clip; /* 0: off */
        int64_t seed;
        pl_strings freeze;
        int64_t eval_every; /* 0: at the end only */
        int64_t early_stop; /* evaluations without improvement; 0: never */
    } train;
    struct {
        int64_t recompute; /* 0: none, n: every n-th block */
        int64_t budget;    /* bytes; 0: none */
        struct {
            int optimizer, params; /* pl_offload_place */
            char *path;            /* NULL: the output folder */
            int64_t buffer;        /* as pl_offload has it */
        } offload;
    } memory;
    struct {
        int64_t dp, tp, pp, cp;                        /* the grid of processes; dp 0: as many as there are */
        int64_t zero, shard_size, prefetch, bucket_mb; /* as pl_sharding has them */
        bool sync_each_batch;
    } parallel;
    struct {
        int64_t every; /* steps; 0: at the end and when stopped */
        int64_t keep;  /* 0: all */
        bool best;
        bool background; /* written while the next step goes on */
    } checkpoint;
    struct {
        int64_t every; /* steps a line, away from a terminal */
        bool profile;
    } log;
    struct {
        pl_strings prompt;
        char *prompts, *system;
        int64_t batch; /* texts at once */
        bool chat, greedy;
        int64_t max_tokens, top_k, seed; /* top_k 0: off */
        double temperature, top_p, min_p, repetition_penalty;
    } generate;
    bool json;
    int64_t ranks;  /* processes to start, or to plan for */
    pl_comm *world; /* those that carry the run out; NULL: this one alone */
    int cores;      /* this process's part of its machine's; 0: not shared with others of the run */

    char *file; /* the file that was read, NULL if none */
#define PL_CONFIG_MAX_FIELDS 160
    struct pl_origin {
        enum { PL_FROM_DEFAULT, PL_FROM_FILE, PL_FROM_FLAG, PL_FROM_CODE } from;
        int line;
    } origin[PL_CONFIG_MAX_FIELDS]; /* of each field of the table */
};

extern const pl_field pl_config_fields[];
extern const int pl_config_field_count;

typedef struct pl_section {
    const char *name;  /* NULL: top level */
    const char *title; /* one line */
} pl_section;
extern const pl_section pl_config_sections[];
extern const int pl_config_section_count;
bool pl_section_has(const pl_section *section, const pl_field *field);

int pl_config_open(pl_error *err, pl_config *config); /* the defaults */
void pl_config_close(pl_config *config);              /* {0} is fine */

/* Reads a run file over what is there. Unknown names, values out of range, fields given twice: PL_EUSAGE with file and
   line. Paths are as they stand: relative to the current folder. */
int pl_config_parse(pl_error *err, pl_config *config, const char *where, const char *text, size_t size);

/* Reads argv[0..argc) as flags of a command: --name value, --name=value, and --name alone for a switch that is followed
   by nothing or another flag. Whatever else there is goes to positional[*npositional] (room for argc). A run file's
   fields must be read before. A field that another command takes is named as such. `--` ends the flags. */
int pl_config_flags(pl_error *err, pl_config *config, unsigned command, int argc, char *const *argv,
    const char **positional, int *npositional);

/* Fills in the defaults that depend on other fields, and refuses what does not go together: fields that do not apply
   (lora.r under method full), one of two that exclude each other, a model that is missing. Without a model, it is the
   one that the adapter names. Every message names the fields, and where they were set. */
int pl_config_check(pl_error *err, pl_config *config, unsigned command);

/* The field at that address of config, e.g. &config->lora.r; PL_EBUG's sake: the table must have it. */
const pl_field *pl_config_field(const pl_config *config, const void *member);
/* Whether the user set it, in the file or by a flag. */
bool pl_config_is_set(const pl_config *config, const void *member);
/* How a message names the field: "run.yaml:12: lora.r", "--lora.r", "lora.r". Returns out. */
#define PL_WHERE_SIZE 512
const char *pl_config_where(const pl_config *config, const void *member, char out[PL_WHERE_SIZE]);
/* The field of that name, or NULL. */
const pl_field *pl_config_find(const char *name);
/* PL_EUSAGE for a name that is not there, with the nearest that is. `command`: only what it takes; 0: all.
   where: file and line, or NULL. */
int pl_config_unknown(pl_error *err, const char *where, const char *name, unsigned command);

/* The run as YAML with one comment a field. PL_YAML_RESOLVED has every field that applies; PL_YAML_INIT has what was
   given, the rest commented out at their defaults. */
typedef enum pl_yaml_style { PL_YAML_RESOLVED, PL_YAML_INIT } pl_yaml_style;
int pl_config_print(pl_error *err, const pl_config *config, pl_yaml_style style, pl_buf *out);

/* Compares two checked configurations of one run: 0, or PL_EUSAGE naming the first field that differs and both values.
   Fields that may change when a run goes on (threads, log, checkpoint, train.steps...) are left out. */
int pl_config_compare(pl_error *err, const pl_config *config, const pl_config *before, const char *folder);

/* The lora fields as PEFT's configuration, checked; task_type is CAUSAL_LM. The caller frees *out, which must hold
   nothing yet. */
int pl_config_lora(pl_error *err, const pl_config *config, pl_lora_config *out);

/* Training that goes on from an adapter takes the lora fields from its adapter_config.json. */
bool pl_config_told_by_adapter(const pl_config *config, const pl_field *field);
/* Whether `field.when` holds, and no adapter tells it. */
bool pl_config_applies(const pl_config *config, const pl_field *field);

#endif
