/* Every family against transformers in float64: logits, loss, every gradient, five AdamW steps (tests/golden). */
#include <dirent.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/golden.h"

#define MODELS PLAIT_TEST_DIR "/golden/models"

static void run_case(void **state)
{
    char dir[1024];
    snprintf(dir, sizeof dir, "%s/%s", MODELS, (const char *)*state);
    golden g;
    golden_open(&g, dir, dir, &(golden_options){.training = true, .clip = 1.0});
    golden_check_logits(&g);
    golden_check_gradients(&g);
    if (golden_has(&g, "train_losses")) golden_check_steps(&g);
    golden_close(&g);
}

static int is_case(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && !strstr(entry->d_name, "moe") && !strstr(entry->d_name, "mixtral");
}

int main(void)
{
    struct dirent **entries;
    int n = scandir(MODELS, &entries, is_case, alphasort);
    if (n <= 0) return 1;
    struct CMUnitTest *tests = calloc((size_t)n, sizeof *tests);
    for (int i = 0; i < n; i++) {
        tests[i] =
            (struct CMUnitTest){.name = entries[i]->d_name, .test_func = run_case, .initial_state = entries[i]->d_name};
    }
    int failed = _cmocka_run_group_tests("models", tests, (size_t)n, NULL, NULL);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    free(tests);
    return failed;
}
