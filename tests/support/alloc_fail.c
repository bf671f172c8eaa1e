#include "support/alloc_fail.h"

#include <errno.h>
#include <execinfo.h>
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
#define CALLS (1 << 16)
static struct {
    pthread_mutex_t lock;
    bool active;
    int count, fail_at; /* allocations so far in this call; which one fails, from 1 */
    size_t live, filled;
    uintptr_t slots[SLOTS];
    bool recording;
    uint64_t chains[CALLS]; /* of callers, of each allocation of the call that is recorded */
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

/* One number for all return addresses on the stack. */
static uint64_t chain_of_callers(void)
{
    void *addresses[64];
    int depth = backtrace(addresses, PL_COUNT(addresses));
    uint64_t hash = 0;
    for (int i = 0; i < depth; i++) hash = (hash ^ (uintptr_t)addresses[i]) * 0x9E3779B97F4A7C15u;
    return hash;
}

static bool refused(void)
{
    if (!watch.active) return false;
    uint64_t chain = watch.recording ? chain_of_callers() : 0;
    pthread_mutex_lock(&watch.lock);
    bool refuse = ++watch.count == watch.fail_at;
    if (watch.recording && watch.count <= CALLS) watch.chains[watch.count - 1] = chain;
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

/* Allocation `fail_at` fails, counted from 1; 0: none does. */
static int watched_call(const char *name, int fail_at, int (*call)(pl_error *err, void *user), void *user)
{
    static pl_error err;
    pl_error_clear(&err);
    if (watch.filled) memset(watch.slots, 0, sizeof watch.slots);
    watch.live = watch.filled = 0;
    watch.count = 0;
    watch.fail_at = fail_at;
    watch.active = true;
    int rc = call(&err, user);
    watch.active = false;
    if (rc == 0 && err.code != 0) {
        fail_msg("%s: allocation %d refused: success with an error: %s", name, fail_at, err.message);
    }
    if (rc < 0 && (!fail_at || watch.count < fail_at || rc != PL_ENOMEM || err.code != rc || !err.message[0])) {
        fail_msg("%s: allocation %d refused: returned %s: %s", name, fail_at, pl_error_name(rc), err.message);
    }
    return rc;
}

/* Whether allocation n of the recorded call, of `count`, is one of the first two or the last that its callers make. */
static bool is_chosen(int n, int count)
{
    int before = 0, after = 0;
    for (int i = 1; i < n; i++) before += watch.chains[i - 1] == watch.chains[n - 1];
    for (int i = n + 1; i <= count; i++) after += watch.chains[i - 1] == watch.chains[n - 1];
    return before < 2 || after == 0;
}

int alloc_fail_run(const char *name, int (*call)(pl_error *err, void *user), void *user)
{
    enum { FEW = 100 };
    json_set_alloc_funcs(__wrap_malloc, __wrap_free);
    watched_call(name, 0, call, user); /* makes what libraries keep for good */
    watch.recording = true;
    watched_call(name, 0, call, user);
    watch.recording = false;
    int count = watch.count, failures = 0;
    if (watch.live) fail_msg("%s: %zu allocations leak", name, watch.live);
    if (count > CALLS) fail_msg("%s: %d allocations are more than are recorded", name, count);
    for (int n = 1; n <= count; n++) {
        if (count > FEW && !is_chosen(n, count)) continue;
        failures += watched_call(name, n, call, user) < 0;
        if (watch.live) fail_msg("%s: allocation %d refused: %zu allocations leak", name, n, watch.live);
    }
    json_set_alloc_funcs(__real_malloc, __real_free);
    if (failures == 0) fail_msg("%s: allocates nothing, or hides every failure", name);
    return count;
}
