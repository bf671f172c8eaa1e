/* What the library has to tell while it works goes through a sink that the caller owns: it never prints by itself. */
#ifndef PL_BASE_LOG_H
#define PL_BASE_LOG_H

#include "plait.h"

void pl_logf(const pl_log *log, enum pl_log_level level, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
