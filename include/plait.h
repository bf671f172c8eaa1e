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

/* ---- What a run tells -------------------------------------------------------------------------------------------- */

enum pl_log_level { PL_LOG_INFO, PL_LOG_WARNING };

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

#ifdef __cplusplus
}
#endif

#endif
