#include "device/cpu.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#if defined __x86_64__
#    include <cpuid.h>
#    include <sys/syscall.h>
#endif

#include "device/onednn.h"

#define ALIGNMENT 64
#define HUGE_PAGE (INT64_C(2) << 20)

/* Under AddressSanitizer everything comes from malloc, whose bounds it watches. */
#if defined __SANITIZE_ADDRESS__
#    define SANITIZED 1
#elif defined __has_feature
#    if __has_feature(address_sanitizer)
#        define SANITIZED 1
#    endif
#endif
#ifndef SANITIZED
#    define SANITIZED 0
#endif

static bool is_large(int64_t bytes)
{
    return !SANITIZED && bytes >= 2 * HUGE_PAGE;
}

static int64_t round_up(int64_t n, int64_t unit)
{
    return (n + unit - 1) / unit * unit;
}

/* Maps more than is needed and gives back what lies outside the aligned part, so that huge pages can back all of it but
   the end: that is of small pages, since no page may be resident that was not asked for. */
static void *map_aligned(int64_t bytes)
{
    size_t size = (size_t)round_up(bytes, sysconf(_SC_PAGESIZE)), room = size + (size_t)HUGE_PAGE;
    char *start = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (start == MAP_FAILED) return NULL;
    size_t before = (size_t)(round_up((int64_t)(uintptr_t)start, HUGE_PAGE) - (int64_t)(uintptr_t)start);
    if (before > 0) munmap(start, before);
    if (room - before - size > 0) munmap(start + before + size, room - before - size);
    (void)madvise(start + before, size, MADV_HUGEPAGE); /* only a wish */
    return start + before;
}

int pl_cpu_alloc(pl_device *device, pl_error *err, int64_t bytes, void **out)
{
    (void)device;
    *out = NULL;
    if (bytes > INT64_MAX / 2) return PL_FAIL_NOMEM(err);
    *out = is_large(bytes) ? map_aligned(bytes)
                           : aligned_alloc(ALIGNMENT, (size_t)round_up(bytes > 0 ? bytes : 1, ALIGNMENT));
    return *out ? 0 : PL_FAIL_NOMEM(err);
}

void pl_cpu_release(pl_device *device, void *data, int64_t bytes)
{
    (void)device;
    if (!data) return;
    if (is_large(bytes)) {
        munmap(data, (size_t)round_up(bytes, sysconf(_SC_PAGESIZE)));
    } else {
        free(data);
    }
}

void pl_cpu_copy_in(pl_device *device, void *device_data, const void *host, int64_t bytes)
{
    (void)device;
    if (bytes > 0) memcpy(device_data, host, (size_t)bytes);
}

void pl_cpu_copy_out(pl_device *device, void *host, const void *device_data, int64_t bytes)
{
    (void)device;
    if (bytes > 0) memcpy(host, device_data, (size_t)bytes);
}

void *pl_cpu_wrap(pl_device *device, const void *host, int64_t bytes)
{
    (void)device;
    (void)bytes;
    return (void *)(uintptr_t)host; /* operators write to no operand that the caller wraps */
}

void pl_cpu_unwrap(pl_device *device, void *data, int64_t bytes)
{
    (void)device;
    (void)data;
    (void)bytes;
}

void pl_cpu_destroy(pl_device *device)
{
    pl_cpu *cpu = (pl_cpu *)device;
    pl_onednn_close(cpu->onednn);
    free(cpu);
}

#if defined __x86_64__
static bool has_avx512_bf16(void)
{
    enum { AVX512_BF16 = 1 << 5 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & AVX512_BF16);
}

/* Whether the processor has tiles with bf16, and the system saves tiles and lets this process use them (Linux
   5.16 and later, by leave that lasts for the process). */
static bool has_amx(void)
{
    enum { OSXSAVE = 1 << 27, AMX_BF16 = 1 << 22, BF16_TILE = 1 << 24, SAVES_TILES = 3 << 17 };
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d, low, high;
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & OSXSAVE)) return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (AMX_BF16 | BF16_TILE)) != (AMX_BF16 | BF16_TILE))
        return false;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & SAVES_TILES) == SAVES_TILES && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#endif

static const pl_device_ops *best_level(void)
{
#if defined __x86_64__
    __builtin_cpu_init();
    bool v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    bool v4_bf16 = v4 && has_avx512_bf16();
    bool amx = v4_bf16 && has_amx(); /* asks leave for it, before oneDNN looks */
    pl_isa isa = pl_onednn_isa();
    if (amx && isa >= PL_ISA_AMX) return &pl_cpu_ops_amx;
    if (v4_bf16 && isa >= PL_ISA_AVX512_BF16) return &pl_cpu_ops_v4_bf16;
    if (v4 && isa >= PL_ISA_AVX512) return &pl_cpu_ops_v4;
    if (v3 && isa >= PL_ISA_AVX2) return &pl_cpu_ops_v3;
#endif
    return &pl_cpu_ops_base;
}

int pl_device_cpu(pl_error *err, int threads, pl_device **out)
{
    *out = NULL;
    if (threads < 1) return PL_FAIL(err, PL_EBUG, "a device with %d threads", threads);
    pl_cpu *cpu = calloc(1, sizeof *cpu);
    if (!cpu) return PL_FAIL_NOMEM(err);
    cpu->base = (pl_device){.ops = best_level(), .threads = threads, .host_memory = true};
    int rc = pl_onednn_open(err, threads, &cpu->onednn);
    if (rc < 0) {
        free(cpu);
        return rc;
    }
    *out = &cpu->base;
    return 0;
}
