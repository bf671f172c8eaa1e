#ifndef PL_BASE_THREAD_H
#define PL_BASE_THREAD_H

#include <pthread.h>

#include "base/error.h"

/* Starts a thread that signals leave alone, so that they reach the thread that the program wants them on. `what` it is
   for, in messages: "messages between processes". PL_ENOMEM. */
int pl_thread_start(pl_error *err, const char *what, void *(*run)(void *), void *user, pthread_t *thread);

/* How many cores this process may run on; at least 1. */
int pl_cores(void);

#endif
