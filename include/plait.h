/* plait trains and fine-tunes large language models. This is its whole public API.

   Functions that can fail take a pl_error first and return 0 or a negative code; a record that holds an error keeps it,
   so a caller may check once at the end. The library never prints, exits, or reads the environment: what it has to tell
   goes through callbacks. */
#ifndef PLAIT_H
#define PLAIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PL_VERSION "0.1.0"
#define PL_API __attribute__((visibility("default")))

/* ---- Errors ------------------------------------------------------------------------------------------------------ */

/* name, value, what it means.  INPUT and USAGE are the user's to mend (exit status 2), the rest are failures (1). */
#define PL_ERROR_LIST(X)                                                                                               \
    X(PL_EUSAGE, -1, "wrong usage")           /* a wrong flag, field or combination of them */                         \
    X(PL_EINPUT, -2, "wrong input")           /* a file whose content is not what it must be */                        \
    X(PL_ENOENT, -3, "not found")             /* a file or folder that is not there */                                 \
    X(PL_EIO, -4, "input/output failed")      /* the operating system refused a read or write */                       \
    X(PL_ENOMEM, -5, "out of memory")         /* an allocation or a budget */                                          \
    X(PL_EUNSUPPORTED, -6, "not supported")   /* well formed, but beyond this version */                               \
    X(PL_ENUMERIC, -7, "numerical failure")   /* NaN or infinity where none may be */                                  \
    X(PL_EBUG, -8, "internal error")          /* shapes or states that a caller in plait got wrong */                  \
    X(PL_ESTOPPED, -9, "stopped by a signal") /* after everything was saved */

enum pl_error_code {
#define X(name, value, text) name = (value),
    PL_ERROR_LIST(X)
#undef X
};

/* Begin with {0}. The first error stays; pl_error_clear makes room for the next. */
typedef struct pl_error {
    int code;         /* 0 while nothing went wrong */
    const char *file; /* source position of the first failure */
    int line;
    char message[2048]; /* one sentence: what was wrong, where, what was expected, what to do */
} pl_error;

PL_API void pl_error_clear(pl_error *err);
PL_API const char *pl_error_text(int code); /* "wrong input"; never NULL */
PL_API const char *pl_error_name(int code); /* "PL_EINPUT"; never NULL */

PL_API const char *pl_version(void); /* of the library that runs; PL_VERSION is that of the header */

/* ---- The processes of a run -------------------------------------------------------------------------------------- */

/* What processes send each other: constant, name in reports. */
#define PL_TRAFFIC_LIST(X)                                                                                             \
    X(PL_TRAFFIC_GRADIENTS, "gradients")   /* to be summed over the data's parts */                                    \
    X(PL_TRAFFIC_PARAMETERS, "parameters") /* gathered from those who keep them */                                     \
    X(PL_TRAFFIC_CONTROL, "control")       /* norms, losses, agreements: little */

typedef enum pl_traffic_kind {
#define X(kind, name) kind,
    PL_TRAFFIC_LIST(X)
#undef X
        PL_TRAFFIC_COUNT
} pl_traffic_kind;

PL_API const char *pl_traffic_name(pl_traffic_kind kind);

/* The processes that mpiexec or srun started together, as this one of them sees them. */
typedef struct pl_comm pl_comm;

/* Begins MPI, unless the program has done so. Every process calls it. PL_EUNSUPPORTED in a build without MPI. */
PL_API int pl_world_open(pl_error *err, pl_comm **out);
PL_API void pl_world_close(pl_comm *world); /* NULL is fine */
PL_API int pl_world_rank(const pl_comm *world);
PL_API int pl_world_size(const pl_comm *world);
/* Ends all processes, when this one has met an error that the others do not know of and would wait for it in vain. */
PL_API void pl_world_abort(pl_comm *world, int status);
/* Whether all processes know of the error that a call has ended with, and end with it; else see pl_world_abort. */
PL_API bool pl_world_agreed(const pl_comm *world);

/* ---- A run's description ----------------------------------------------------------------------------------------- */

/* Every field of docs/configuration.md, at its default to begin with. */
typedef struct pl_config pl_config;

PL_API int pl_config_new(pl_error *err, pl_config **out);
PL_API void pl_config_delete(pl_config *config); /* NULL is fine */
/* Reads a run file (YAML or JSON); what pl_config_set has set stays. */
PL_API int pl_config_read(pl_error *err, pl_config *config, const char *path);
/* Sets a field as its flag would, "lora.r" to "16". A list that is set again grows. */
PL_API int pl_config_set(pl_error *err, pl_config *config, const char *name, const char *value);
/* The processes that carry the run out together, each by the same calls; NULL, as at first: this one alone. The world
   outlives the configuration. */
PL_API void pl_config_set_world(pl_config *config, pl_comm *world);
/* Writes the run file, with every field that applies and a comment each. */
PL_API int pl_config_write(pl_error *err, const pl_config *config, const char *path);

/* ---- What a run tells, and is told ------------------------------------------------------------------------------- */

enum pl_log_level { PL_LOG_INFO, PL_LOG_WARNING };

/* Where the library's remarks go. A NULL pl_log, or a NULL sink: nobody listens. */
typedef struct pl_log {
    void (*sink)(void *user, enum pl_log_level level, const char *message);
    void *user;
} pl_log;

/* One optimizer step, as in a line of metrics.jsonl. */
typedef struct pl_metrics {
    int64_t step, steps; /* from 1; of how many */
    double loss;         /* mean over the step's targets */
    double lr;           /* in force at that step */
    double grad_norm;    /* before clipping */
    int64_t tokens;      /* targets of the step */
    double tokens_per_s, step_s;
    int64_t peak_bytes;
    double val_loss; /* NaN where none was taken at that step */
} pl_metrics;

/* What the caller sees and says while a run goes on. Every function may be NULL. */
typedef struct pl_train_observer {
    void *user;
    void (*step)(void *user, const pl_metrics *metrics); /* after each */
    bool (*stop)(void *user); /* asked after each step: true ends the run with a checkpoint, PL_ESTOPPED */
} pl_train_observer;

/* What memory is for. */
/* constant, name in reports, what it holds */
#define PL_MEM_TAG_LIST(X)                                                                                             \
    X(PL_MEM_WEIGHTS, "weights")         /* parameters in the dtype that the operators read, mapped files included */  \
    X(PL_MEM_MASTERS, "masters")         /* what trained weights of bf16 lack of f32: 16 bits each */                  \
    X(PL_MEM_GRADIENTS, "gradients")     /* f32 */                                                                     \
    X(PL_MEM_OPTIMIZER, "optimizer")     /* moments */                                                                 \
    X(PL_MEM_ACTIVATIONS, "activations") /* what a forward keeps for its backward */                                   \
    X(PL_MEM_WORK, "work")               /* scratch of the operators and what lives inside one unit */                 \
    X(PL_MEM_BATCH, "batch")             /* tokens, targets, positions, rotary tables */                               \
    X(PL_MEM_KV_CACHE, "kv_cache")       /* keys and values of generation */                                           \
    X(PL_MEM_MESSAGES, "messages")       /* other processes' gradients, until they are added */                        \
    X(PL_MEM_OFFLOAD, "offload")         /* optimizer states on their way between disk and memory */

typedef enum pl_mem_tag {
#define X(tag, name) tag,
    PL_MEM_TAG_LIST(X)
#undef X
        PL_MEM_TAG_COUNT
} pl_mem_tag;

PL_API const char *pl_mem_tag_name(pl_mem_tag tag);

/* ---- What can be done -------------------------------------------------------------------------------------------- */

/* Each of these first checks the configuration for its purpose and fills in the defaults that depend on other fields.
   `log` and `observer` may be NULL. */

/* Trains as config says. OUTPUT gets run.yaml, metrics.jsonl, checkpoints and the result. Where OUTPUT holds
   checkpoints of the same run it goes on from the latest, to the same bits as without the stop; where it holds another
   run, or anything else that would be overwritten, PL_EUSAGE.
   A program that handles signals while this runs must keep their handlers off the computing threads' stacks: block the
   signals before the call and take them in another thread (sigwait), or install the handlers with SA_ONSTACK. */
PL_API int pl_train(pl_error *err, const pl_log *log, pl_config *config, const pl_train_observer *observer);

typedef struct pl_plan {
    int64_t bytes[PL_MEM_TAG_COUNT], total; /* peaks, as metrics.jsonl has them */
    int64_t available;                      /* memory of this machine that a program can have now */
    bool fits;
    int64_t trainable, all;                                      /* parameters */
    int64_t steps, rows, tokens;                                 /* of the run; of the data, in one round */
    int64_t micro_tokens, micro_rows;                            /* of the largest micro-batch */
    int processes;                                               /* planned for; all figures are each one's */
    int micro_batches;                                           /* of a step */
    double step_flops, gemm_flops, attention_flops, other_flops; /* of a step */
    int64_t sent[PL_TRAFFIC_COUNT];                              /* bytes in a step */
    int64_t disk_bytes, disk_read, disk_written;                 /* what is offloaded; read and written in a step */
} pl_plan;

/* Plans what pl_train would do, by a dry run of the program itself: nothing is estimated by formula. With data, the
   data's own largest micro-batch counts; without, train.micro_batch sequences of data.sequence_length. */
PL_API int pl_plan_run(pl_error *err, const pl_log *log, pl_config *config, pl_plan *plan);

typedef struct pl_eval_result {
    double loss, perplexity; /* mean over all trained tokens, and its exponential */
    int64_t rows, tokens, targets;
    double seconds;
    int64_t peak_bytes;
} pl_eval_result;

/* Loss and perplexity of the model, with the adapter if there is one, on all of the data, in order. */
PL_API int pl_eval(pl_error *err, const pl_log *log, pl_config *config, pl_eval_result *result);

/* A text that a model writes. */
typedef struct pl_written {
    int64_t number, count; /* from 1; of how many */
    const char *prompt;    /* as it was given; NULL: it was messages */
    size_t prompt_size;
    int64_t prompt_tokens, new_tokens;
    enum { PL_WRITTEN_STOP, PL_WRITTEN_LENGTH, PL_WRITTEN_INTERRUPTED } end; /* by the model, max_tokens, or the sink */
} pl_written;

/* Who reads what a model writes. Texts come one after another, in the order of their prompts: of several that are
   written at once, the later ones are held back. */
typedef struct pl_text_sink {
    void *user;
    /* Whole characters, as they come; false ends everything. new_tokens and end are not known yet. */
    bool (*text)(void *user, const pl_written *of, const char *bytes, size_t size);
    /* After all of a text, also one of which nothing came; false ends everything. May be NULL. */
    bool (*end)(void *user, const pl_written *of);
} pl_text_sink;

typedef struct pl_generate_result {
    int64_t texts, prompt_tokens, new_tokens; /* that were written to their ends; all tokens */
    double prompt_s, write_s;                 /* for the prompts, up to each text's first token; and for all others */
} pl_generate_result;

/* Writes on from config's prompts, as it says (max_tokens, temperature, ...; with chat: as an answer, by the model's
   template), `batch` texts at a time. A text depends on its prompt and its number alone, not on those that are written
   beside it, to the bit while batch is at most 8. PL_ESTOPPED when the sink ended it before the last text. */
PL_API int pl_generate_texts(
    pl_error *err, const pl_log *log, pl_config *config, const pl_text_sink *sink, pl_generate_result *result);

/* Writes the model with the adapter worked into its weights to OUTPUT: a Hugging Face folder that needs no adapter.
   Tensors keep the dtype that the model's files have, unless precision was set. Holds one tensor at a time in memory.
   What tied embedding and head becomes two where the adapter tells them apart, and config.json then says so. The folder
   is written whole or not at all. */
PL_API int pl_merge(pl_error *err, const pl_log *log, pl_config *config);

/* What a model, an adapter, a checkpoint, a run, a weights file or a dataset holds, as a JSON document whose "kind" is
   that word. Looks at `path`, or at config's data with the model of `path`. Where that is NULL, at what config names: a
   dataset where it has data and a model, else the model, else the adapter. *json is a text that the caller frees. */
PL_API int pl_inspect(pl_error *err, const pl_log *log, pl_config *config, const char *path, char **json);

#ifdef __cplusplus
}
#endif

#endif
