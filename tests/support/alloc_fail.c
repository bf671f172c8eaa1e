#include "support/alloc_fail.h"

#include <errno.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <cmocka.h>

/* The linker gives these the meaning of the plain names. */
void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_posix_memalign(void **out, size_t alignment, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void __real_free(void *memory);
void *__real_mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *memory, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *old, size_t size);
void *__wrap_aligned_alloc(size_t alignment, size_t size);
int __wrap_posix_memalign(void **out, size_t alignment, size_t size);
char *__wrap_strdup(const char *text);
char *__wrap_strndup(const char *text, size_t size);
void __wrap_free(void *memory);
void *__wrap_mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *memory, size_t size);

/* What was allocated during the watched call and not yet released: open addressing, a removed entry leaves a tombstone.
 */
#define SLOTS ((size_t)1 << 18)
static struct {
    pthread_mutex_t lock;
    bool active;
    int count, fail_at; /* allocations so far in this call; which one fails, from 1 */
    size_t live, filled;
    uintptr_t slots[SLOTS];
} watch = {.lock = PTHREAD_MUTEX_INITIALIZER};

#define TOMBSTONE ((uintptr_t)1)

static size_t slot_of(uintptr_t key)
{
    return (size_t)((key >> 4) * 0x9E3779B97F4A7C15u >> 20) % SLOTS;
}

static void remember(void *memory)
{
    if (!memory || !watch.active) return;
    pthread_mutex_lock(&watch.lock);
    size_t i = slot_of((uintptr_t)memory);
    while (watch.slots[i] > TOMBSTONE) i = (i + 1) % SLOTS;
    watch.filled += watch.slots[i] == 0;
    watch.slots[i] = (uintptr_t)memory;
    watch.live++;
    if (watch.filled > SLOTS / 2) abort(); /* the test's input is too large for this table */
    pthread_mutex_unlock(&watch.lock);
}

static void forget(void *memory)
{
    if (!memory || !watch.active) return;
    pthread_mutex_lock(&watch.lock);
    for (size_t i = slot_of((uintptr_t)memory); watch.slots[i] != 0; i = (i + 1) % SLOTS) {
        if (watch.slots[i] != (uintptr_t)memory) continue;
        watch.slots[i] = TOMBSTONE;
        watch.live--;
        break;
    }
    pthread_mutex_unlock(&watch.lock);
}

static bool refused(void)
{
    if (!watch.active) return false;
    pthread_mutex_lock(&watch.lock);
    bool refuse = ++watch.count == watch.fail_at;
    pthread_mutex_unlock(&watch.lock);
    if (refuse) errno = ENOMEM;
    return refuse;
}

void *__wrap_malloc(size_t size)
{
    if (refused()) return NULL;
    void *memory = __real_malloc(size);
    remember(memory);
    return memory;
}

void *__wrap_calloc(size_t count, size_t size)
{
    if (refused()) return NULL;
    void *memory = __real_calloc(count, size);
    remember(memory);
    return memory;
}

void *__wrap_realloc(void *old, size_t size)
{
    if (refused()) return NULL;
    /* Forgotten first: once it is released its address may be given out again. */
    forget(old);
    void *memory = __real_realloc(old, size);
    remember(memory ? memory : old);
    return memory;
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    if (refused()) return NULL;
    void *memory = __real_aligned_alloc(alignment, size);
    remember(memory);
    return memory;
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t size)
{
    if (refused()) return ENOMEM;
    int rc = __real_posix_memalign(out, alignment, size);
    if (rc == 0) remember(*out);
    return rc;
}

char *__wrap_strdup(const char *text)
{
    if (refused()) return NULL;
    char *memory = __real_strdup(text);
    remember(memory);
    return memory;
}

char *__wrap_strndup(const char *text, size_t size)
{
    if (refused()) return NULL;
    char *memory = __real_strndup(text, size);
    remember(memory);
    return memory;
}

void __wrap_free(void *memory)
{
    forget(memory);
    __real_free(memory);
}

void *__wrap_mmap(void *where, size_t size, int protection, int flags, int fd, off_t offset)
{
    if (refused()) return MAP_FAILED;
    void *memory = __real_mmap(where, size, protection, flags, fd, offset);
    if (memory != MAP_FAILED) remember(memory);
    return memory;
}

int __wrap_munmap(void *memory, size_t size)
{
    forget(memory);
    return __real_munmap(memory, size);
}

static int watched_call(int fail_at, int (*call)(pl_error *err, void *user), void *user, pl_error *err)
{
    memset(watch.slots, 0, sizeof watch.slots);
    watch.live = watch.filled = 0;
    watch.count = 0;
    watch.fail_at = fail_at;
    watch.active = true;
    int rc = call(err, user);
    watch.active = false;
    return rc;
}

int alloc_fail_run(const char *name, int (*call)(pl_error *err, void *user), void *user)
{
    int failures = 0;
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    for (int n = 1;; n++) {
        static pl_error err;
        pl_error_clear(&err);
        int rc = watched_call(n, call, user, &err);
        bool reached = watch.count >= n;
        if (watch.live) fail_msg("%s: allocation %d refused: %zu allocations leak", name, n, watch.live);
        if (rc == 0 && err.code != 0)
            fail_msg("%s: allocation %d refused: success with an error: %s", name, n, err.message);
        if (rc < 0 && (!reached || rc != PL_ENOMEM || err.code != rc || !err.message[0])) {
            fail_msg("%s: allocation %d refused: returned %s: %s", name, n, pl_error_name(rc), err.message);
        }
        failures += rc < 0;
        if (!reached) {
            assert_int_equal(rc, 0);
            json_set_alloc_funcs(__real_malloc, __real_free);
            if (failures == 0) fail_msg("%s: allocates nothing, or hides every failure", name);
            return n - 1;
        }
    }
}
