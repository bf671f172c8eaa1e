#include "base/thread.h"

#include <sched.h>
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

int pl_cores(void)
{
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
    return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
}
