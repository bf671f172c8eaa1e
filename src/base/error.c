#include "base/error.h"

#include <stdio.h>
#include <string.h>

void pl_error_set(pl_error *err, int code, const char *file, int line, const char *format, ...)
{
    if (err->code != 0) return;
    err->code = code;
    err->file = file;
    err->line = line;
    va_list args;
    va_start(args, format);
    vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
}

int pl_error_prefix(pl_error *err, const char *format, ...)
{
    char rest[sizeof err->message];
    memcpy(rest, err->message, sizeof rest);
    va_list args;
    va_start(args, format);
    int n = vsnprintf(err->message, sizeof err->message, format, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->message) {
        snprintf(err->message + n, sizeof err->message - (size_t)n, ": %.*s", (int)(sizeof rest - (size_t)n - 1), rest);
    }
    return err->code;
}

void pl_error_clear(pl_error *err)
{
    err->code = 0;
    err->file = NULL;
    err->line = 0;
    err->message[0] = 0;
}

const char *pl_error_text(int code)
{
    switch (code) {
#define X(name, value, text)                                                                                           \
    case name: return text;
        PL_ERROR_LIST(X)
#undef X
    default: return code == 0 ? "no error" : "unknown error";
    }
}

const char *pl_error_name(int code)
{
    switch (code) {
#define X(name, value, text)                                                                                           \
    case name: return #name;
        PL_ERROR_LIST(X)
#undef X
    default: return code == 0 ? "PL_OK" : "PL_UNKNOWN";
    }
}

const char *pl_version(void)
{
    return PL_VERSION;
}
