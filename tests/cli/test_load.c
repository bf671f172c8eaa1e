/* The program sees that another one wants its core, and holds idle threads for as long. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/cli.h"

static int count_threads(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir));) n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* Computes until there are more than `threads` threads (or, `more` false, no more than that), at most `seconds`. */
static bool compute_until(int threads, bool more, double seconds)
{
    double begin = pl_clock();
    while (pl_clock() - begin < seconds) {
        if ((count_threads() > threads) == more) return true;
        for (volatile int i = 0; i < 1000000; i++) continue;
    }
    return false;
}

static void pin_to_one_core(void)
{
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    int cpu = 0;
    while (!CPU_ISSET(cpu, &set)) cpu++;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    assert_int_equal(sched_setaffinity(0, sizeof set, &set), 0);
}

static void test_gives_way(void **state)
{
    (void)state;
    if (access("/proc/self/schedstat", R_OK) != 0) skip(); /* this kernel does not tell */
    unsetenv("OMP_WAIT_POLICY");
    unsetenv("GOMP_SPINCOUNT");
    pin_to_one_core();
    int before = count_threads();
    cli_give_way();
    pid_t others[3];
    for (int i = 0; i < 3; i++) {
        others[i] = fork();
        assert_true(others[i] >= 0);
        for (volatile int64_t n = 0; others[i] == 0; n++) continue;
    }
    bool held = compute_until(before + 1, true, 20);
    for (int i = 0; i < 3; i++) kill(others[i], SIGKILL);
    assert_true(held);
}

/* Who says how threads wait is left alone. */
static void test_told(void **state)
{
    (void)state;
    int before = count_threads();
    setenv("GOMP_SPINCOUNT", "1000", 1);
    cli_give_way();
    assert_int_equal(count_threads(), before);
    unsetenv("GOMP_SPINCOUNT");
    setenv("OMP_WAIT_POLICY", "active", 1);
    cli_give_way();
    assert_int_equal(count_threads(), before);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_told), cmocka_unit_test(test_gives_way)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
