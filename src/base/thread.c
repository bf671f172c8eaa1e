#include "base/thread.h"

#include <signal.h>
#include <string.h>

int pl_thread_start(pl_error *err, const char *what, void *(*run)(void *), void *user, pthread_t *thread)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(thread, NULL, run, user);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? PL_FAIL(err, PL_ENOMEM, "no thread can be started for %s: %s", what, strerror(failed)) : 0;
}
