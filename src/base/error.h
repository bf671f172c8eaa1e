/* Errors: a negative code from one list, and a record that keeps the first message with its file and line.
   Every function that can fail returns int (0 or a code) and is given the record, either as its first argument or
   inside the run that it is given. The record is never NULL in the library. */
#ifndef PL_BASE_ERROR_H
#define PL_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

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

typedef struct pl_error {
    int code;         /* 0 while nothing went wrong */
    const char *file; /* source position of the first failure */
    int line;
    char message[2048];
} pl_error;

/* Records the first error; later ones are ignored until pl_error_clear. */
void pl_error_set(pl_error *err, int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Puts "prefix: " in front of the message that is recorded. Returns the recorded code. */
int pl_error_prefix(pl_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));
void pl_error_clear(pl_error *err);
const char *pl_error_text(int code); /* "wrong input"; never NULL */
const char *pl_error_name(int code); /* "PL_EINPUT"; never NULL */

/* Records and yields the code, so that `return PL_FAIL(err, PL_EINPUT, "...")` reads well and compilers see it is < 0.
 */
#define PL_FAIL(err, code, ...) (pl_error_set((err), (code), __FILE__, __LINE__, __VA_ARGS__), (int)(code))
#define PL_FAIL_NOMEM(err) PL_FAIL((err), PL_ENOMEM, "out of memory")

/* Return at once, or go to cleanup, with the code of what failed. PL_GO needs `int rc` and a label. */
#define PL_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        int pl_rc_ = (expr);                                                                                           \
        if (pl_rc_ < 0) return pl_rc_;                                                                                 \
    } while (0)
#define PL_GO(label, expr)                                                                                             \
    do {                                                                                                               \
        if ((rc = (expr)) < 0) goto label;                                                                             \
    } while (0)

#define PL_COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

#endif
