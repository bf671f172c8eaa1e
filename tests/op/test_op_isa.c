/* ONEDNN_MAX_CPU_ISA holds back our own kernels with oneDNN's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/buf.h"
#include "device/cpu.h"

static const pl_device_ops *const levels[] = {
#define X(level) &pl_cpu_ops_##level,
    PL_CPU_LEVELS(X)
#undef X
};

/* The number of the level that a new process chooses, the best is 0: oneDNN reads the variable once. */
static int level_under(const char *isa)
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        pl_error err = {0};
        pl_device *device;
        if (isa ? setenv("ONEDNN_MAX_CPU_ISA", isa, 1) : unsetenv("ONEDNN_MAX_CPU_ISA")) _exit(100);
        if (pl_device_cpu(&err, 1, &device) < 0) _exit(101);
        int level = 0;
        while (level < PL_COUNT(levels) && device->ops != levels[level]) level++;
        pl_device_close(device);
        _exit(level);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_in_range(WEXITSTATUS(status), 0, PL_COUNT(levels) - 1);
    return WEXITSTATUS(status);
}

static void held_back(void **state)
{
    (void)state;
#if defined __x86_64__
    static const struct {
        const char *isa;
        int level;
    } held[] = {
        {"ALL", 0}, {"AVX512_CORE_AMX", 0}, {"AVX512_CORE_BF16", 1}, {"AVX512_CORE", 2}, {"AVX2", 3}, {"SSE41", 4}};
    int best = level_under(NULL);
    for (int i = 0; i < PL_COUNT(held); i++) {
        int most = held[i].level > best ? held[i].level : best;
        assert_int_equal(level_under(held[i].isa), most);
    }
#else
    skip();
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(held_back)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
