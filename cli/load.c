/* Waiting threads on a machine that does other work too.

   A thread of libgomp that waits for the others spins for some milliseconds before it sleeps. With a core of its own
   that is the fastest way; where another program wants the core it keeps the thread that it waits for from running, and
   everything takes several times as long. libgomp itself spins shortly where there are more threads than cores. So
   while the computing thread is seen to stand in line for a core, a team of idle threads is held, which makes it do
   that. */
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "cli/cli.h"

#define SAMPLE_NS 50000000 /* between two looks */
#define BUSY_SHARE 0.1     /* of the time, in line for a core: others want it */
#define CALM_SHARE 0.01    /* less than this, for CALM_S: they are gone */
#define CALM_S 2.0

/* Idle threads, more than there are cores, as long as `held`. */
typedef struct team {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool held;
    int size; /* is made of each thread, so that no compiler leaves the team out */
} team;

static void *hold(void *user)
{
    team *t = user;
    int size = 0;
#pragma omp parallel num_threads(omp_get_num_procs() + 1) reduction(+ : size)
    size++;
    pthread_mutex_lock(&t->lock);
    t->size = size;
    while (t->held) pthread_cond_wait(&t->change, &t->lock);
    pthread_mutex_unlock(&t->lock);
    return NULL;
}

static void take(team *t)
{
    t->held = true;
    if (pthread_create(&t->thread, NULL, hold, t) != 0) t->held = false;
}

static void release(team *t)
{
    pthread_mutex_lock(&t->lock);
    t->held = false;
    pthread_cond_signal(&t->change);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
}

/* Seconds that the program's first thread, which computes, has been ready to run without a core; -1: not told. */
static double stood_in_line(void)
{
    char path[64];
    unsigned long long ran, waited;
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", (long)getpid());
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    bool told = fscanf(file, "%llu %llu", &ran, &waited) == 2;
    fclose(file);
    return told ? (double)waited * 1e-9 : -1;
}

/* The thread that looks, from cli_give_way to cli_stop_giving_way. */
static struct watcher {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool at_work, ended;
} watcher = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

/* Until the next look; false: there is none. */
static bool wait_for_look(void)
{
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += SAMPLE_NS;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&watcher.lock);
    int rc = 0;
    while (!watcher.ended && rc == 0) {
        rc = pthread_cond_clockwait(&watcher.change, &watcher.lock, CLOCK_MONOTONIC, &until);
    }
    bool more = !watcher.ended;
    pthread_mutex_unlock(&watcher.lock);
    return more;
}

static void *watch(void *unused)
{
    team t = {.lock = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};
    double waited = stood_in_line(), looked = pl_clock(), calm_since = looked;
    while (waited >= 0 && wait_for_look()) {
        double waited_now = stood_in_line(), now = pl_clock(), share = (waited_now - waited) / (now - looked);
        if (share > CALM_SHARE) calm_since = now;
        if (!t.held && share > BUSY_SHARE) take(&t);
        if (t.held && now - calm_since > CALM_S) release(&t);
        waited = waited_now;
        looked = now;
    }
    if (t.held) release(&t);
    return unused;
}

/* OpenBLAS's own; absent where another library does its work. */
extern int blas_thread_shutdown_(void) __attribute__((weak));

void cli_quiet_blas(void)
{
    if (blas_thread_shutdown_) (void)blas_thread_shutdown_();
}

void cli_give_way(void)
{
    pl_error ignored = {0};
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    watcher.at_work = pl_thread_start(&ignored, "a busy machine", watch, NULL, &watcher.thread) == 0;
}

void cli_stop_giving_way(void)
{
    if (!watcher.at_work) return;
    pthread_mutex_lock(&watcher.lock);
    watcher.ended = true;
    pthread_cond_signal(&watcher.change);
    pthread_mutex_unlock(&watcher.lock);
    pthread_join(watcher.thread, NULL);
    watcher.at_work = false;
}
