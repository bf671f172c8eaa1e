#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

void pl_logf(const pl_log *log, enum pl_log_level level, const char *format, ...)
{
    if (!log || !log->sink) return;
    char message[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(message, sizeof message, format, args);
    va_end(args);
    log->sink(log->user, level, message);
}
