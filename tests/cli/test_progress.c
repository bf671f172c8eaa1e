/* The progress display, into a file that is no terminal and into one that is said to be. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/progress.h"

static pl_metrics metrics(int64_t step, double val_loss)
{
    return (pl_metrics){.step = step,
        .steps = 1000,
        .loss = 2.34567,
        .lr = 4.96e-5,
        .grad_norm = 1.25,
        .tokens = 512,
        .tokens_per_s = 1234.4,
        .step_s = step == 1 ? 60 : 0.5,
        .peak_bytes = 3ll << 29,
        .val_loss = val_loss};
}

static void test_plain(void **state)
{
    (void)state;
    char *text;
    size_t size;
    FILE *out = tmpfile();
    assert_non_null(out);
    cli_progress p;
    cli_progress_open(&p, out, 10);
    assert_false(p.live);
    assert_false(p.color);
    fclose(out);
    p.out = open_memstream(&text, &size);
    for (int step = 1; step <= 21; step++) {
        pl_metrics m = metrics(step, step == 15 ? 2.5 : step == 18 ? 2.25 : NAN);
        cli_progress_step(&p, &m);
        if (step == 12) cli_progress_message(&p, PL_LOG_WARNING, "three examples were dropped");
    }
    cli_progress_close(&p);
    cli_progress_close(&p);
    fclose(p.out);
    assert_string_equal(text, "step 1/1000  loss 2.3457  lr 4.96e-05  grad 1.25  1234 tok/s  16:39:00 left  1.50 GiB\n"
                              "step 10/1000  loss 2.3457  lr 4.96e-05  grad 1.25  1234 tok/s  8:15 left  1.50 GiB\n"
                              "warning: three examples were dropped\n"
                              "step 15: validation loss 2.5000\n"
                              "step 18: validation loss 2.2500, lower\n"
                              "step 20/1000  loss 2.3457  lr 4.96e-05  grad 1.25  1234 tok/s  8:10 left  1.50 GiB\n"
                              "step 21/1000  loss 2.3457  lr 4.96e-05  grad 1.25  1234 tok/s  8:10 left  1.50 GiB\n");
    free(text);
}

static void test_live(void **state)
{
    (void)state;
    char *text;
    size_t size;
    cli_progress p = {.live = true, .color = true, .width = 40, .every = 10, .val_loss = NAN};
    p.out = open_memstream(&text, &size);
    pl_metrics m = metrics(2, NAN);
    cli_progress_step(&p, &m);
    cli_progress_message(&p, PL_LOG_WARNING, "careful");
    m = metrics(3, 2.5);
    cli_progress_step(&p, &m);
    cli_progress_close(&p);
    fclose(p.out);
    const char *line2 = "\r\033[Kstep 2/1000  loss 2.3457  8:19 left";
    const char *line3 = "\r\033[Kstep 3/1000  loss 2.3457  8:19 left";
    char expected[512];
    snprintf(expected, sizeof expected,
        "%s\r\033[K\033[33mwarning:\033[0m careful\n%s\r\033[Kstep 3: validation loss 2.5000\n%s\n", line2, line2,
        line3);
    assert_string_equal(text, expected);
    free(text);
}

/* Whatever the width, the line fits and keeps what matters. */
static void test_narrow(void **state)
{
    (void)state;
    cli_progress p = {.step_s = 0.5, .val_loss = NAN};
    pl_metrics m = metrics(999, NAN);
    int last = 0;
    for (int width = 1; width < 120; width++) {
        char line[512];
        int n = cli_progress_line(&p, &m, width, line, sizeof line);
        assert_true(n <= width && n >= last && n == (int)strlen(line));
        if (width >= 27) assert_memory_equal(line, "step 999/1000  loss 2.3457", 26);
        last = n;
    }
    m.steps = 0;
    m.loss = NAN;
    char line[512];
    cli_progress_line(&p, &m, 0, line, sizeof line);
    assert_string_equal(line, "step 999  loss nan  lr 4.96e-05  grad 1.25  1234 tok/s  1.50 GiB");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain), cmocka_unit_test(test_live), cmocka_unit_test(test_narrow)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
