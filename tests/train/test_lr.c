/* Learning rates against transformers and DeepSpeed (tests/golden/schedules.json), through the run's own configuration.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "api/config.h"
#include "base/json.h"

static void set(pl_config *c, const char *section, const char *name, const char *value)
{
    pl_error err = {0};
    char field[128];
    snprintf(field, sizeof field, "%s.%s", section, name);
    if (pl_config_set(&err, c, field, value) < 0) fail_msg("%s", err.message);
}

static void set_json(pl_config *c, const char *name, const json_t *value)
{
    char text[64] = "";
    if (json_is_string(value)) snprintf(text, sizeof text, "%s", json_string_value(value));
    if (json_is_integer(value)) snprintf(text, sizeof text, "%lld", (long long)json_integer_value(value));
    if (json_is_real(value)) snprintf(text, sizeof text, "%.17g", json_real_value(value));
    if (json_is_boolean(value)) snprintf(text, sizeof text, "%s", json_is_true(value) ? "true" : "false");
    if (strcmp(name, "num_decay_steps") == 0) name = "decay_steps";
    if (strcmp(name, "warmup_num_steps") == 0) name = "warmup_steps";
    if (strcmp(name, "total_num_steps") != 0) set(c, "scheduler", name, text);
}

static void check(const json_t *entry)
{
    pl_error err = {0};
    pl_config c;
    const char *name = json_string_value(json_object_get(entry, "name")), *key;
    json_t *args = json_object_get(entry, "args"), *value, *lr = json_object_get(entry, "lr"),
           *beta1 = json_object_get(entry, "beta1"), *warmup = json_object_get(entry, "num_warmup_steps");
    assert_int_equal(pl_config_open(&err, &c), 0);
    set(&c, "scheduler", "name", name);
    json_t *base = json_object_get(entry, "base_lr");
    char text[64];
    snprintf(text, sizeof text, "%.17g", json_number_value(base));
    set(&c, "optimizer", "lr", text);
    if (pl_config_set(&err, &c, "output", "o") < 0 || pl_config_set(&err, &c, "model", "m") < 0 ||
        pl_config_set(&err, &c, "data.files", "d.txt") < 0) {
        fail_msg("%s", err.message);
    }
    if (strcmp(name, "constant") != 0 && warmup) set_json(&c, "warmup_steps", warmup);
    json_object_foreach(args, key, value) set_json(&c, key, value);
    set(&c, "train", "steps", "50");
    if (pl_config_check(&err, &c, PL_CMD_TRAIN) < 0) fail_msg("%s: %s", name, err.message);
    for (size_t i = 0; i < json_array_size(lr); i++) {
        double want = json_number_value(json_array_get(lr, i)),
               got = pl_lr_at(&c.scheduler, c.optimizer.lr, (int64_t)i, 50);
        /* Both are a handful of double operations; near a zero of the cosine what is left is their rounding. */
        if (fabs(got - want) > 1e-12 * fmax(fabs(want), 1e-4)) {
            char *shown = json_dumps(entry, JSON_COMPACT);
            shown[200] = 0;
            fail_msg("%s: step %zu is %.17g, not %.17g: %s", name, i, got, want, shown);
        }
        if (!beta1) continue;
        want = json_number_value(json_array_get(beta1, i));
        got = pl_lr_beta1(&c.scheduler, 0.9, (int64_t)i);
        if (fabs(got - want) > 1e-12) fail_msg("%s: beta1 of step %zu is %.17g, not %.17g", name, i, got, want);
    }
    pl_config_close(&c);
}

static void test_schedules(void **state)
{
    (void)state;
    pl_error err = {0};
    json_t *file, *entry;
    size_t i;
    if (pl_json_read(&err, PLAIT_TEST_DIR "/golden/schedules.json", &file) < 0) fail_msg("%s", err.message);
    json_t *list = json_object_get(file, "schedules");
    assert_true(json_array_size(list) > 40);
    json_array_foreach(list, i, entry) check(entry);
    json_decref(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_schedules)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
