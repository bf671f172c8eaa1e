/* Scratch space on disk, by each kind: what was written is read, whatever parts a transfer falls into; what fails is
   told; and what the system refuses is gone round or named. */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "disk/disk.h"

static pl_error err;
static char folder[] = "/var/tmp/plait-test-XXXXXX";
static char told[4096]; /* what came to the log */

static void listen(void *user, enum pl_log_level level, const char *message)
{
    (void)user;
    size_t n = strlen(told);
    snprintf(told + n, sizeof told - n, "%s%s\n", level == PL_LOG_WARNING ? "warning: " : "", message);
}
static const pl_log heard = {.sink = listen};

#define OK(call)                                                                                                       \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, err.message);                                                        \
    } while (0)

static void refused(int rc, int code, const char *says)
{
    if (rc != code || !strstr(err.message, says)) fail_msg("%d: %s (expected ...%s...)", rc, err.message, says);
    pl_error_clear(&err);
}

/* ---- kinds whose transfers go wrong ---- */

/* What the next transfers do, one a number; 0 ends the list. More than 0: at most so many bytes; less: -errno; AT_END:
   nothing. */
#define AT_END 1000000000
static int64_t faults[400];
static int nfaults;

static int64_t next_fault(void)
{
    return faults[nfaults] ? faults[nfaults++] : 0;
}

static ssize_t faulty_read(int fd, void *data, size_t bytes, off_t offset)
{
    int64_t f = next_fault();
    if (f == AT_END) return 0;
    if (f < 0) return errno = (int)-f, -1;
    ssize_t n = pread(fd, data, bytes, offset);
    return f > 0 && f < n ? f : n;
}

static ssize_t faulty_write(int fd, const void *data, size_t bytes, off_t offset)
{
    int64_t f = next_fault();
    if (f == AT_END) return 0;
    if (f < 0) return errno = (int)-f, -1;
    ssize_t n = pwrite(fd, data, bytes, offset);
    return f > 0 && f < n ? f : n;
}

/* io_uring's results, made worse. */
static const pl_disk_ops *sound;
static int faulty_end(pl_disk *d, pl_error *e, pl_disk_request **request, int64_t *moved)
{
    PL_TRY(sound->end(d, e, request, moved));
    int64_t f = next_fault();
    if (f == AT_END)
        *moved = 0;
    else if (f < 0 || (f > 0 && f < *moved))
        *moved = f;
    if (f && (*moved <= 0) && !(*request)->write) memset((*request)->data, 0x5a, (size_t)(*request)->bytes);
    return 0;
}

typedef enum kind { URING, THREAD } kind;

static bool there(kind k)
{
    pl_disk *d;
    OK(pl_disk_open(&err, NULL, "path", folder, &d));
    bool uring = strcmp(d->ops->name, "uring") == 0;
    pl_disk_close(d);
    return k == THREAD || uring;
}

static pl_disk *open_kind(kind k, int64_t bytes)
{
    static pl_disk_ops faulty;
    pl_disk *d;
    faults[0] = nfaults = 0;
    OK(pl_disk_open(&err, &heard, "memory.offload.path", folder, &d));
    if (k == THREAD && strcmp(d->ops->name, "thread") != 0) {
        d->ops->destroy(d);
        d->ops = NULL;
        OK(pl_disk_by_thread(&err, d));
    }
    OK(pl_disk_reserve(&err, d, bytes));
    if (k == THREAD) d->calls = (pl_disk_calls){faulty_read, faulty_write};
    if (k == URING) {
        sound = d->ops;
        faulty = *d->ops;
        faulty.end = faulty_end;
        d->ops = &faulty;
    }
    return d;
}

static void expect(int n, const int64_t *list)
{
    nfaults = 0;
    memcpy(faults, list, (size_t)n * sizeof *list);
    faults[n] = 0;
}

static char *blocks(int64_t bytes, unsigned seed)
{
    unsigned char *p = aligned_alloc((size_t)PL_DISK_BLOCK, (size_t)bytes);
    for (int64_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = (unsigned char)(seed >> 24);
    }
    return (char *)p;
}

/* ---- what works ---- */

/* Many transfers at once, more than may be on their way, of many sizes. */
static void round_trip(kind k)
{
    if (!there(k)) skip();
    enum { PARTS = 100 };
    int64_t bytes = 0, size[PARTS], at[PARTS];
    for (int i = 0; i < PARTS; i++) {
        size[i] = PL_DISK_BLOCK * (i % 7);
        at[i] = bytes;
        bytes += size[i];
    }
    int64_t large = 20 << 20;
    pl_disk *d = open_kind(k, bytes + large);
    char *out = blocks(bytes + large, 1), *in = blocks(bytes + large, 2);
    pl_disk_batch some = {0}, rest = {0};
    for (int i = 0; i < PARTS; i++) OK(pl_disk_write(&err, d, i % 3 ? &some : &rest, at[i], out + at[i], size[i]));
    OK(pl_disk_write(&err, d, &rest, bytes, out + bytes, large));
    OK(pl_disk_wait(&err, d, &rest));
    OK(pl_disk_wait(&err, d, &some));
    OK(pl_disk_wait(&err, d, &some));
    for (int i = PARTS - 1; i >= 0; i--) OK(pl_disk_read(&err, d, &some, at[i], in + at[i], size[i]));
    OK(pl_disk_read(&err, d, &rest, bytes, in + bytes, large));
    OK(pl_disk_wait(&err, d, &some));
    OK(pl_disk_wait(&err, d, &rest));
    assert_memory_equal(out, in, (size_t)(bytes + large));
    assert_int_equal(d->counts.written, bytes + large);
    assert_int_equal(d->counts.read, bytes + large);
    assert_int_equal(d->running, 0);
    pl_disk_close(d);
    free(out);
    free(in);
}

/* A new file is all zeros; any place and size can be put and fetched. */
static void at_once(kind k)
{
    if (!there(k)) skip();
    int64_t bytes = 3 << 20;
    pl_disk *d = open_kind(k, bytes);
    char *model = calloc(1, (size_t)bytes), *got = malloc((size_t)bytes);
    OK(pl_disk_fetch(&err, d, 0, got, bytes));
    assert_memory_equal(got, model, (size_t)bytes);
    static const int64_t spots[][2] = {{0, 1}, {1, 4095}, {4095, 2}, {4096, 4096}, {5000, 0}, {12345, 2000001},
        {(3 << 20) - 1, 1}, {8192, 1 << 20}, {100, 3}};
    for (size_t i = 0; i < sizeof spots / sizeof *spots; i++) {
        char *piece = blocks(pl_disk_round(spots[i][1] + 1), (unsigned)i + 7);
        memcpy(model + spots[i][0], piece, (size_t)spots[i][1]);
        OK(pl_disk_put(&err, d, spots[i][0], piece, spots[i][1]));
        OK(pl_disk_fetch(&err, d, spots[i][0], got, spots[i][1]));
        assert_memory_equal(got, piece, (size_t)spots[i][1]);
        free(piece);
    }
    OK(pl_disk_fetch(&err, d, 0, got, bytes));
    assert_memory_equal(got, model, (size_t)bytes);
    pl_disk_close(d);
    free(model);
    free(got);
}

/* ---- what goes wrong ---- */

/* Interrupted, short, and short in the middle of a block: all bytes come all the same. */
static void short_transfers(kind k)
{
    if (!there(k)) skip();
    int64_t bytes = 64 * PL_DISK_BLOCK;
    pl_disk *d = open_kind(k, bytes);
    char *out = blocks(bytes, 3), *in = blocks(bytes, 4);
    pl_disk_batch b = {0};
    static const int64_t list[] = {-EINTR, 4096, -EAGAIN, 100, 4096 * 3 + 17, AT_END, 8192, -EINTR, 1, 1, 4095, 4096};
    expect(12, list);
    OK(pl_disk_write(&err, d, &b, 0, out, bytes));
    OK(pl_disk_wait(&err, d, &b));
    assert_int_equal(nfaults, 12);
    expect(12, list);
    OK(pl_disk_read(&err, d, &b, 0, in, bytes));
    OK(pl_disk_wait(&err, d, &b));
    assert_int_equal(nfaults, 12);
    assert_memory_equal(out, in, (size_t)bytes);
    if (k == THREAD) { /* those at once go by the same calls */
        expect(12, list);
        OK(pl_disk_put(&err, d, 0, out, bytes));
        expect(12, list);
        memset(in, 0, (size_t)bytes);
        OK(pl_disk_fetch(&err, d, 0, in, bytes));
        assert_int_equal(nfaults, 12);
        assert_memory_equal(out, in, (size_t)bytes);
    }
    pl_disk_close(d);
    free(out);
    free(in);
}

static void failures(kind k)
{
    if (!there(k)) skip();
    int64_t bytes = 64 * PL_DISK_BLOCK;
    pl_disk *d = open_kind(k, bytes);
    char *data = blocks(bytes, 3);
    pl_disk_batch b = {0}, other = {0};
    expect(2, (int64_t[]){4096, -EIO});
    OK(pl_disk_read(&err, d, &b, 0, data, bytes));
    refused(pl_disk_wait(&err, d, &b), PL_EIO, "cannot be read at byte 4096: Input/output error");
    expect(1, (int64_t[]){-ENOSPC});
    OK(pl_disk_write(&err, d, &b, 8192, data, 4096));
    refused(pl_disk_wait(&err, d, &b), PL_EIO, "cannot be written at byte 8192: No space left on device");
    /* The one that failed is told of by its own batch alone. */
    expect(1, (int64_t[]){-EIO});
    OK(pl_disk_write(&err, d, &b, 0, data, 4096));
    OK(pl_disk_wait(&err, d, &other));
    refused(pl_disk_wait(&err, d, &b), PL_EIO, "Input/output error");
    OK(pl_disk_read(&err, d, &other, 0, data, 4096));
    OK(pl_disk_wait(&err, d, &other));
    /* For ever at the end, or asked to wait for ever, is an error too. */
    for (int way = 0; way < 2; way++) {
        nfaults = 0;
        for (int i = 0; i < 399; i++) faults[i] = way ? -EAGAIN : AT_END;
        OK(pl_disk_read(&err, d, &b, 0, data, bytes));
        refused(pl_disk_wait(&err, d, &b), PL_EIO, way ? "unavailable" : "Input/output");
    }
    if (k == THREAD) {
        expect(1, (int64_t[]){-EIO});
        refused(pl_disk_fetch(&err, d, 5, data, 5), PL_EIO, "cannot be read at byte 0");
        expect(1, (int64_t[]){-EIO});
        refused(pl_disk_put(&err, d, 4096, data, 4096), PL_EIO, "cannot be written at byte 4096");
    }
    /* What nobody waited for is waited for by the close. */
    expect(1, (int64_t[]){-EIO});
    OK(pl_disk_write(&err, d, &b, 0, data, bytes));
    pl_disk_close(d);
    free(data);
}

static int lost(pl_disk *d, pl_error *e, pl_disk_request **request, int64_t *moved)
{
    PL_TRY(sound->end(d, e, request, moved));
    return PL_FAIL(e, PL_EIO, "lost");
}

/* A kind that breaks: every later call says so, and none hangs. */
static void broken(void **state)
{
    (void)state;
    pl_disk *d = open_kind(THREAD, 1 << 20);
    char *data = blocks(4096, 3);
    pl_disk_batch b = {0};
    sound = d->ops;
    pl_disk_ops ops = *sound;
    ops.end = lost;
    d->ops = &ops;
    OK(pl_disk_read(&err, d, &b, 0, data, 4096));
    refused(pl_disk_wait(&err, d, &b), PL_EIO, "lost");
    refused(pl_disk_read(&err, d, &b, 0, data, 4096), PL_EIO, "cannot be used any more");
    refused(pl_disk_wait(&err, d, &b), PL_EIO, "transfers were lost");
    d->ops = sound;
    pl_disk_close(d);
    free(data);
}

static void by_each(void **state)
{
    ((void (*)(kind)) * state)(URING);
}
static void by_thread(void **state)
{
    ((void (*)(kind)) * state)(THREAD);
}

static void wrong_arguments(void **state)
{
    (void)state;
    pl_disk *d;
    pl_disk_batch b = {0};
    char *data = blocks(8192, 1);
    OK(pl_disk_open(&err, &heard, "memory.offload.path", folder, &d));
    OK(pl_disk_reserve(&err, d, 5000));
    assert_int_equal(d->bytes, 8192);
    refused(pl_disk_reserve(&err, d, 5000), PL_EBUG, "already");
    refused(pl_disk_read(&err, d, &b, 1, data, 4096), PL_EBUG, "");
    refused(pl_disk_read(&err, d, &b, 0, data, 100), PL_EBUG, "");
    refused(pl_disk_read(&err, d, &b, 0, data + 64, 4096), PL_EBUG, "");
    refused(pl_disk_read(&err, d, &b, 4096, data, 8192), PL_EBUG, "");
    pl_disk_close(d);
    pl_disk_close(NULL);
    pl_disk_drain(NULL);
    free(data);
}

static void dry(void **state)
{
    (void)state;
    pl_disk *d;
    pl_disk_batch b = {0};
    OK(pl_disk_dry(&err, &d));
    OK(pl_disk_reserve(&err, d, (int64_t)1 << 50)); /* larger than any disk */
    OK(pl_disk_read(&err, d, &b, 0, NULL, (int64_t)1 << 40));
    OK(pl_disk_write(&err, d, &b, 0, NULL, 8192));
    OK(pl_disk_wait(&err, d, &b));
    OK(pl_disk_fetch(&err, d, 5, NULL, 5));
    assert_int_equal(d->counts.read, (int64_t)1 << 40);
    assert_int_equal(d->counts.written, 8192);
    pl_disk_close(d);
}

/* ---- folders ---- */

static void bad_folders(void **state)
{
    (void)state;
    pl_disk *d;
    char path[256];
    snprintf(path, sizeof path, "%s/none", folder);
    refused(pl_disk_open(&err, NULL, "memory.offload.path", path, &d), PL_ENOENT, "memory.offload.path is ");
    refused(pl_disk_open(&err, NULL, "memory.offload.path", "/etc/passwd", &d), PL_ENOENT, "no such folder");
    refused(pl_disk_open(&err, NULL, "memory.offload.path", "/proc/self", &d), PL_EIO, "no file can be made");
    assert_null(d);
    OK(pl_disk_open(&err, NULL, "memory.offload.path", folder, &d));
    refused(pl_disk_reserve(&err, d, (int64_t)1 << 50), PL_EIO, "1073741824.0 MiB are needed and ");
    pl_disk_close(d);
    assert_int_equal(rmdir(folder), 0); /* nothing is left in it */
    assert_int_equal(mkdir(folder, 0777), 0);
}

static void in_memory(void **state)
{
    (void)state;
    struct stat st;
    pl_disk *d;
    if (stat("/dev/shm", &st) != 0 || access("/dev/shm", W_OK) != 0) skip();
    told[0] = 0;
    OK(pl_disk_open(&err, &heard, "memory.offload.path", "/dev/shm", &d));
    assert_non_null(strstr(told, "warning: memory.offload.path is /dev/shm, which lies in memory"));
    OK(pl_disk_reserve(&err, d, 8192));
    char data[5000], got[5000];
    memset(data, 7, sizeof data);
    OK(pl_disk_put(&err, d, 10, data, sizeof data));
    OK(pl_disk_fetch(&err, d, 10, got, sizeof got));
    assert_memory_equal(data, got, sizeof data);
    pl_disk_close(d);
}

/* Containers often forbid io_uring. */
static void forbidden(void **state)
{
    (void)state;
    pid_t child = fork();
    if (child == 0) {
        struct sock_filter code[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_io_uring_setup, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog filter = {sizeof code / sizeof *code, code};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0)
            _exit(77);
        pl_disk *d;
        told[0] = 0;
        if (pl_disk_open(&err, &heard, "path", folder, &d) < 0) _exit(1);
        if (strcmp(d->ops->name, "thread") != 0) _exit(2);
        if (!strstr(told, "a thread reads and writes what is offloaded: ")) _exit(3);
        pl_disk_close(d);
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) skip();
    assert_int_equal(status, 0);
}

#define BOTH(test)                                                                                                     \
    {#test " by uring", by_each, NULL, NULL, (void *)(test)},                                                          \
    {                                                                                                                  \
#        test " by thread", by_thread, NULL, NULL, (void *)(test)                                                      \
    }

int main(void)
{
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        BOTH(round_trip),
        BOTH(at_once),
        BOTH(short_transfers),
        BOTH(failures),
        cmocka_unit_test(broken),
        cmocka_unit_test(wrong_arguments),
        cmocka_unit_test(dry),
        cmocka_unit_test(bad_folders),
        cmocka_unit_test(in_memory),
        cmocka_unit_test(forbidden),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
