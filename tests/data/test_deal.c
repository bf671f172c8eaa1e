/* Rows dealt out to processes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/json.h"
#include "data/deal.h"

static pl_error err;

/* Every row once, each micro-batch in order and no larger than it may be. */
static void check_complete(const pl_deal *d, int64_t rows, int64_t micro_batch)
{
    int64_t bins = (int64_t)d->processes * d->micros;
    char *seen = calloc((size_t)rows + 1, 1);
    assert_int_equal(d->rows, rows);
    assert_int_equal(d->starts[0], 0);
    assert_int_equal(d->starts[bins], rows);
    for (int64_t b = 0; b < bins; b++) {
        assert_in_range(d->starts[b + 1] - d->starts[b], 0, micro_batch);
        for (int64_t i = d->starts[b]; i < d->starts[b + 1]; i++) {
            assert_in_range(d->items[i], 0, rows - 1);
            if (i > d->starts[b]) assert_true(d->items[i] > d->items[i - 1]);
            assert_int_equal(seen[d->items[i]]++, 0);
        }
    }
    free(seen);
}

/* torch's DistributedSampler without shuffling: the same lists, but for what it repeats to make them equally long. */
static void like_distributed_sampler(void **state)
{
    (void)state;
    json_t *json;
    assert_int_equal(pl_json_read(&err, PLAIT_TEST_DIR "/golden/sampler.json", &json), 0);
    json_t *cases = json_object_get(json, "cases"), *c;
    size_t at;
    pl_deal d = {0};
    assert_true(json_array_size(cases) > 3);
    json_array_foreach(cases, at, c)
    {
        int64_t rows = json_integer_value(json_object_get(c, "n"));
        int world = (int)json_integer_value(json_object_get(c, "world"));
        assert_int_equal(pl_deal_in_turn(&err, &d, rows, world, rows + 1), 0);
        assert_int_equal(d.micros, 1);
        check_complete(&d, rows, rows + 1);
        for (int p = 0; p < world; p++) {
            const json_t *list = json_array_get(json_object_get(c, "shuffle_false"), (size_t)p);
            for (int64_t i = 0; i < (int64_t)json_array_size(list) && i * world + p < rows; i++) {
                assert_int_equal(d.items[d.starts[p] + i], json_integer_value(json_array_get(list, (size_t)i)));
            }
        }
    }
    pl_deal_close(&d);
    json_decref(json);
}

static void in_turn(void **state)
{
    (void)state;
    pl_deal d = {0};
    for (int64_t rows = 0; rows < 40; rows++) {
        for (int processes = 1; processes < 9; processes++) {
            for (int64_t micro = 1; micro < 5; micro++) {
                assert_int_equal(pl_deal_in_turn(&err, &d, rows, processes, micro), 0);
                check_complete(&d, rows, micro);
                int64_t most = (rows + processes - 1) / processes;
                assert_int_equal(d.micros, most == 0 ? 1 : (most + micro - 1) / micro);
            }
        }
    }
    pl_deal_close(&d);
}

static void evenly(void **state)
{
    (void)state;
    pl_deal d = {0};
    int64_t lengths[64];
    for (int64_t rows = 1; rows <= 64; rows += 7) {
        for (int processes = 1; processes < 9; processes++) {
            for (int64_t micro = 1; micro < 5; micro++) {
                int64_t longest = 0, tokens[8] = {0}, count[8] = {0}, least = INT64_MAX, most = 0;
                for (int64_t i = 0; i < rows; i++) {
                    lengths[i] = 1 + (i * i * 31 + 7 * i) % 101;
                    if (lengths[i] > longest) longest = lengths[i];
                }
                assert_int_equal(pl_deal_evenly(&err, &d, lengths, rows, processes, micro), 0);
                check_complete(&d, rows, micro);
                for (int p = 0; p < processes; p++) {
                    for (int64_t i = d.starts[p * d.micros]; i < d.starts[(p + 1) * d.micros]; i++) {
                        tokens[p] += lengths[d.items[i]];
                        count[p]++;
                    }
                    if (tokens[p] < least) least = tokens[p];
                    if (tokens[p] > most) most = tokens[p];
                    assert_true(count[p] <= (rows + processes - 1) / processes);
                }
                /* As the longest go first, a process is ahead by one row at most, where all have room. */
                if (rows % processes == 0) assert_true(most - least <= longest);
            }
        }
    }
    /* Rows of one length are dealt in turn. */
    for (int i = 0; i < 12; i++) lengths[i] = 5;
    assert_int_equal(pl_deal_evenly(&err, &d, lengths, 12, 3, 2), 0);
    static const int64_t want[] = {0, 6, 3, 9, 1, 7, 4, 10, 2, 8, 5, 11};
    assert_memory_equal(d.items, want, sizeof want);
    pl_deal_close(&d);
}

static void made(void **state)
{
    (void)state;
    pl_deal d = {0};
    const int64_t sizes[] = {3, 1, 4, 1, 5};
    assert_int_equal(pl_deal_made(&err, &d, sizes, 5, 2), 0);
    check_complete(&d, 14, 5);
    assert_int_equal(d.micros, 3);
    /* Process 0 has 3, 4 and 5 rows; process 1 has 1, 1 and none. */
    static const int64_t starts[] = {0, 3, 7, 12, 13, 14, 14};
    assert_memory_equal(d.starts, starts, sizeof starts);
    assert_int_equal(d.items[3], 4);
    assert_int_equal(d.items[12], 3);
    assert_int_equal(pl_deal_made(&err, &d, sizes, 1, 8), 0);
    check_complete(&d, 3, 5);
    assert_int_equal(d.micros, 1);
    pl_deal_close(&d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(like_distributed_sampler),
        cmocka_unit_test(in_turn),
        cmocka_unit_test(evenly),
        cmocka_unit_test(made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
