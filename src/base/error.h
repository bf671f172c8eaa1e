/* Errors: a negative code from one list, and a record that keeps the first message with its file and line. Both are
   public and so lie in plait.h; what is here is for the library's own use.
   Every function that can fail returns int (0 or a code) and is given the record, either as its first argument or
   inside the run that it is given. The record is never NULL in the library. */
#ifndef PL_BASE_ERROR_H
#define PL_BASE_ERROR_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "plait.h"

/* Records the first error; later ones are ignored until pl_error_clear. */
void pl_error_set(pl_error *err, int code, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
/* Puts "prefix: " in front of the message that is recorded. Returns the recorded code. */
int pl_error_prefix(pl_error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

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
