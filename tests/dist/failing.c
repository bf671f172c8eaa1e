/* The program, in which one allocation of a process fails: PLAIT_FAIL="PROCESS:NUMBER ...", from 1, for each process
   that is to fail. Number 0 fails none, and tells how many there were. Only calls from plait's own object files are
   counted. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli/cli.h"

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);

static struct {
    pthread_mutex_t lock;
    int state; /* 0: not asked yet, 1: this process is the one, -1: it is not */
    int number, count;
} fail = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void tell(void)
{
    fprintf(stderr, "%d allocations\n", fail.count);
}

static void ask(void)
{
    int process, read;
    const char *text = getenv("PLAIT_FAIL");
    fail.state = -1;
    for (; text && fail.state < 0 && sscanf(text, " %d:%d%n", &process, &fail.number, &read) == 2; text += read) {
        if (cli_launched().rank == process) fail.state = 1;
    }
    if (fail.state > 0 && fail.number == 0) atexit(tell);
}

static bool refused(void)
{
    pthread_mutex_lock(&fail.lock);
    if (fail.state == 0) ask();
    bool refuse = fail.state > 0 && ++fail.count == fail.number;
    pthread_mutex_unlock(&fail.lock);
    if (refuse) errno = ENOMEM;
    return refuse;
}

void *__wrap_malloc(size_t size)
{
    return refused() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return refused() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return refused() ? NULL : __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    return refused() ? NULL : __real_aligned_alloc(alignment, size);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    return refused() ? ENOMEM : __real_posix_memalign(out, alignment, size);
}

char *__wrap_strdup(const char *text)
{
    return refused() ? NULL : __real_strdup(text);
}

char *__wrap_strndup(const char *text, size_t size)
{
    return refused() ? NULL : __real_strndup(text, size);
}
