#include "data/loader.h"

#include "data_test.h"

static pl_error err;
static pl_dataset *rows;  /* one file, row i is [i, 0, 0, ...] of length 2 + i % 7, trained where i % 3 */
static pl_dataset *files; /* three files of 5, 40 and 400 rows; ids[0] tells the file, ids[1] the row */
enum { ROWS = 53 };

static pl_dataset *open_data(const pl_data_file *paths, size_t count)
{
    const pl_data_config config = {.files = paths, .file_count = count, .sequence_length = 100};
    const pl_data_model model = {.vocab = 1000, .eos = -1};
    const pl_log log = {0};
    pl_dataset *d = NULL;
    if (pl_dataset_open(&err, &log, &config, &model, 2, &d) < 0) fail_msg("%s", err.message);
    return d;
}

static int setup(void **state)
{
    pl_buf text = {0};
    if (make_folder(state) != 0) return -1;
    for (int i = 0; i < ROWS; i++) {
        pl_buf_printf(&err, &text, "{\"input_ids\": [%d", i);
        for (int k = 0; k <= i % 7; k++) pl_buf_puts(&err, &text, ", 0");
        pl_buf_printf(&err, &text, "], \"labels\": [%d, 7", i);
        for (int k = 1; k <= i % 7; k++) pl_buf_puts(&err, &text, i % 3 ? ", 8" : ", -100");
        pl_buf_puts(&err, &text, "]}\n");
    }
    const pl_data_file one = {.path = write_text("rows.jsonl", text.data)};
    rows = open_data(&one, 1);
    pl_data_file three[3] = {{0}};
    const int counts[] = {5, 40, 400};
    for (int f = 0; f < 3; f++) {
        char name[16];
        snprintf(name, sizeof name, "file%d.jsonl", f);
        pl_buf_clear(&text);
        for (int i = 0; i < counts[f]; i++) pl_buf_printf(&err, &text, "{\"input_ids\": [%d, %d]}\n", f, i);
        three[f].path = write_text(name, text.data);
    }
    files = open_data(three, 3);
    pl_buf_free(&text);
    return 0;
}

static int teardown(void **state)
{
    pl_dataset_close(rows);
    pl_dataset_close(files);
    return remove_folder(state);
}

static pl_loader *open_loader(pl_dataset *d, const pl_loader_config *config)
{
    pl_loader *l = NULL;
    if (pl_loader_open(&err, d, config, &l) < 0) fail_msg("%s", err.message);
    return l;
}

/* The first ids of a step's rows, micro-batch by micro-batch; checks the step's sums against the batches. */
static int64_t step_rows(pl_loader *l, int64_t step, int32_t *first_ids, int *micro_sizes)
{
    pl_batch batch;
    pl_loader_step info;
    pl_loader_largest largest;
    int64_t n = 0, tokens = 0, targets = 0;
    assert_int_equal(pl_loader_step_at(&err, l, step, &info), 0);
    assert_int_equal(pl_loader_find_largest(&err, l, step, step + 1, &largest), 0);
    assert_int_equal(pl_batch_open(&err, &batch, largest.tokens, (int)largest.sequences), 0);
    int64_t most_tokens = 0, longest = 0;
    for (int m = 0; m < info.micro_batches; m++) {
        assert_int_equal(pl_loader_fill(&err, l, step, m, &batch), 0);
        for (int i = 0; i < batch.nsequences; i++) first_ids[n++] = batch.ids[batch.sequences[i].q_begin];
        micro_sizes[m] = batch.nsequences;
        tokens += batch.tokens;
        targets += batch.ntargets;
        if (batch.tokens > most_tokens) most_tokens = batch.tokens;
        if (batch.max_length > longest) longest = batch.max_length;
    }
    assert_int_equal(info.rows, n);
    assert_int_equal(info.tokens, tokens);
    assert_int_equal(info.targets, targets);
    assert_int_equal(largest.tokens, most_tokens);
    assert_int_equal(largest.length, longest);
    assert_int_equal(pl_loader_fill(&err, l, step, info.micro_batches, &batch), PL_EBUG);
    pl_error_clear(&err);
    pl_batch_close(&batch);
    return n;
}

static void test_in_order(void **state)
{
    (void)state;
    const pl_loader_config config = {.micro_batch = 3, .accumulation = 2};
    pl_loader *l = open_loader(rows, &config);
    int32_t ids[16];
    int sizes[8];
    int64_t steps;
    /* Six rows a step, on and on: the data begins again in the middle of a step. */
    for (int64_t step = 40; step >= 0; step -= 5) {
        assert_int_equal(step_rows(l, step, ids, sizes), 6);
        for (int i = 0; i < 6; i++) assert_int_equal(ids[i], (step * 6 + i) % ROWS);
        assert_int_equal(sizes[0], 3);
    }
    assert_int_equal(pl_loader_steps(&err, l, &steps), 0);
    assert_true(steps == INT64_MAX);
    pl_loader_close(l);
}

static void test_epochs(void **state)
{
    (void)state;
    pl_loader_config config = {.micro_batch = 4, .accumulation = 2, .epochs = 2};
    int32_t ids[16];
    int sizes[8];
    int64_t steps;
    /* 106 rows: 13 steps of 8, and the two that are left in one smaller. */
    pl_loader *l = open_loader(rows, &config);
    assert_int_equal(pl_loader_steps(&err, l, &steps), 0);
    assert_int_equal(steps, 14);
    assert_int_equal(step_rows(l, 12, ids, sizes), 8);
    assert_int_equal(step_rows(l, 13, ids, sizes), 2);
    assert_int_equal(ids[1], 52);
    pl_loader_step info;
    assert_int_equal(pl_loader_step_at(&err, l, 13, &info), 0);
    assert_int_equal(info.micro_batches, 1);
    assert_int_equal(pl_loader_step_at(&err, l, 14, &info), PL_EBUG);
    pl_error_clear(&err);
    assert_int_equal(pl_loader_step_at(&err, l, -1, &info), PL_EBUG);
    pl_error_clear(&err);
    pl_loader_close(l);
    const double epochs[] = {0.5, 0.0001, 16.0 / 53.0};
    const int64_t expected[] = {4, 1, 2};
    for (int i = 0; i < 3; i++) {
        config.epochs = epochs[i];
        l = open_loader(rows, &config);
        assert_int_equal(pl_loader_steps(&err, l, &steps), 0);
        assert_int_equal(steps, expected[i]);
        pl_loader_close(l);
    }
}

static void test_shuffle(void **state)
{
    (void)state;
    pl_loader_config config = {.micro_batch = 53, .accumulation = 1, .shuffle = true, .seed = 7};
    int32_t epochs[4][64];
    int sizes[1];
    pl_loader *l = open_loader(rows, &config);
    for (int e = 0; e < 3; e++) {
        bool seen[ROWS] = {false};
        assert_int_equal(step_rows(l, e, epochs[e], sizes), 53);
        for (int i = 0; i < ROWS; i++) {
            assert_false(seen[epochs[e][i]]); /* each row once */
            seen[epochs[e][i]] = true;
        }
    }
    assert_memory_not_equal(epochs[0], epochs[1], sizeof(int32_t) * ROWS);
    assert_memory_not_equal(epochs[1], epochs[2], sizeof(int32_t) * ROWS);
    /* A loader that starts at a later step sees the same, and another seed something else. */
    pl_loader *again = open_loader(rows, &config);
    assert_int_equal(step_rows(again, 2, epochs[3], sizes), 53);
    assert_memory_equal(epochs[2], epochs[3], sizeof(int32_t) * ROWS);
    pl_loader_close(again);
    config.seed = 8;
    again = open_loader(rows, &config);
    assert_int_equal(step_rows(again, 2, epochs[3], sizes), 53);
    assert_memory_not_equal(epochs[2], epochs[3], sizeof(int32_t) * ROWS);
    pl_loader_close(again);
    pl_loader_close(l);
}

static void test_token_bound(void **state)
{
    (void)state;
    pl_loader_config config = {.micro_batch_tokens = 20, .accumulation = 3, .epochs = 3};
    int32_t ids[128], all[3 * ROWS + 128];
    int sizes[8];
    int64_t steps, n = 0;
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        config.shuffle = shuffle;
        pl_loader *l = open_loader(rows, &config);
        n = 0;
        assert_int_equal(pl_loader_steps(&err, l, &steps), 0);
        for (int64_t step = 0; step < steps; step++) {
            pl_loader_step info;
            assert_int_equal(pl_loader_step_at(&err, l, step, &info), 0);
            assert_int_equal(info.first_row, n);
            int64_t count = step_rows(l, step, ids, sizes);
            memcpy(all + n, ids, (size_t)count * sizeof *ids);
            int64_t at = 0;
            for (int m = 0; m < info.micro_batches; m++) {
                int64_t tokens = 0;
                for (int i = 0; i < sizes[m]; i++) tokens += 2 + all[n + at++] % 7;
                assert_in_range(tokens, 1, 20);
                /* Filled up: the next row would not have fitted. */
                if (m + 1 < info.micro_batches) assert_true(tokens + 2 + all[n + at] % 7 > 20);
            }
            n += count;
        }
        assert_int_equal(n, 3 * ROWS);
        for (int64_t i = 0; i < n && !shuffle; i++) assert_int_equal(all[i], i % ROWS);
        pl_loader_close(l);
        /* Any step at once, without those before. */
        l = open_loader(rows, &config);
        int64_t count = step_rows(l, steps - 1, ids, sizes);
        assert_memory_equal(ids, all + n - count, (size_t)count * sizeof *ids);
        pl_loader_close(l);
    }
}

/* The first ids of one process's rows in a step. */
static int64_t process_rows(const pl_loader_config *config, int process, int64_t step, int32_t *ids, int *micros)
{
    pl_loader_config own = *config;
    pl_batch batch;
    pl_loader_step info;
    pl_loader_largest largest;
    int64_t n = 0;
    own.process = process;
    pl_loader *l = open_loader(rows, &own);
    assert_int_equal(pl_loader_step_at(&err, l, step, &info), 0);
    assert_int_equal(pl_loader_find_largest(&err, l, step, step + 1, &largest), 0);
    assert_int_equal(pl_batch_open(&err, &batch, largest.tokens, (int)largest.sequences), 0);
    for (int m = 0; m < info.micro_batches; m++) {
        assert_int_equal(pl_loader_fill(&err, l, step, m, &batch), 0);
        for (int i = 0; i < batch.nsequences; i++) ids[n++] = batch.ids[batch.sequences[i].q_begin];
    }
    *micros = info.micro_batches;
    pl_batch_close(&batch);
    pl_loader_close(l);
    return n;
}

/* A step has the same rows however many processes make it, and all of them make as many micro-batches; the rows that
   are left at the end are all used. */
static void test_processes(void **state)
{
    (void)state;
    for (int way = 0; way < 4; way++) {
        pl_loader_config alone = {.micro_batch = 2, .accumulation = 12, .epochs = 1, .shuffle = way % 2, .seed = 5};
        if (way >= 2) alone.micro_batch_tokens = 20;
        pl_loader *l = open_loader(rows, &alone);
        int64_t steps;
        assert_int_equal(pl_loader_steps(&err, l, &steps), 0);
        for (int processes = 2; processes <= 12; processes++) {
            pl_loader_config shared = alone;
            shared.processes = processes;
            for (int64_t step = 0; step < steps; step++) {
                int32_t whole[ROWS], part[ROWS];
                int sizes[16], micros, first_micros = 0;
                bool seen[ROWS] = {false};
                int64_t n = step_rows(l, step, whole, sizes), sum = 0;
                for (int p = 0; p < processes; p++) {
                    int64_t mine = process_rows(&shared, p, step, part, &micros);
                    if (p == 0) first_micros = micros;
                    assert_int_equal(micros, first_micros);
                    for (int64_t i = 0; i < mine; i++) {
                        assert_false(seen[part[i]]);
                        seen[part[i]] = true;
                        if (way == 0) assert_int_equal(part[i], whole[0] + i * processes + p);
                    }
                    sum += mine;
                }
                assert_int_equal(sum, n);
                for (int64_t i = 0; i < n; i++) assert_true(seen[whole[i]]);
            }
        }
        pl_loader_close(l);
    }
}

/* Draws so many rows; counts those of each file, and checks that each file goes through its rows epoch by epoch. */
static void draw(pl_loader *l, int64_t from, int64_t count, int64_t per_file[3], bool in_order)
{
    static const int64_t sizes[] = {5, 40, 400};
    int64_t seen[3][400] = {{0}};
    memset(per_file, 0, 3 * sizeof *per_file);
    for (int64_t i = from; i < from + count; i++) {
        pl_row row = pl_dataset_row(files, PL_DATA_TRAIN, pl_loader_row(l, i));
        int f = row.ids[0];
        if (from == 0) {
            int64_t epoch = per_file[f] / sizes[f];
            assert_int_equal(seen[f][row.ids[1]], epoch);
            if (in_order) assert_int_equal(row.ids[1], per_file[f] % sizes[f]);
        }
        seen[f][row.ids[1]]++;
        per_file[f]++;
    }
}

static void test_weights(void **state)
{
    (void)state;
    const double weights[] = {1, 6, 3}, uneven[] = {0, 1, 0}, tiny[] = {0.0001, 1, 0};
    int64_t drawn[3], block[3];
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        pl_loader_config config = {
            .micro_batch = 1, .accumulation = 1, .shuffle = shuffle, .seed = 3, .weights = weights, .weight_count = 3};
        pl_loader *l = open_loader(files, &config);
        draw(l, 0, 20480, drawn, !shuffle);
        assert_in_range(drawn[0], 2048 - 20, 2048 + 20);
        assert_in_range(drawn[1], 12288 - 20, 12288 + 20);
        /* And in every stretch of it, from the start on. */
        for (int64_t at = 0; at < 4096; at += 200) {
            draw(l, at, 200, block, false);
            assert_in_range(block[1], 85, 155);
            assert_in_range(block[0], 3, 50);
        }
        pl_loader *late = open_loader(files, &config);
        for (int64_t i = 9000; i < 9100; i++) assert_int_equal(pl_loader_row(late, i), pl_loader_row(l, i));
        for (int64_t i = 3000; i > 1000; i -= 97) assert_int_equal(pl_loader_row(late, i), pl_loader_row(l, i));
        pl_loader_close(late);
        pl_loader_close(l);
        config.weights = uneven;
        l = open_loader(files, &config);
        draw(l, 0, 3000, drawn, !shuffle);
        assert_int_equal(drawn[1], 3000);
        pl_loader_close(l);
        config.weights = &uneven[1]; /* the other files have none */
        config.weight_count = 1;
        l = open_loader(files, &config);
        draw(l, 0, 3000, drawn, !shuffle);
        assert_int_equal(drawn[0], 3000);
        pl_loader_close(l);
        config.weights = tiny;
        config.weight_count = 3;
        l = open_loader(files, &config);
        draw(l, 0, 200000, drawn, false);
        assert_in_range(drawn[0], 5, 40);
        pl_loader_close(l);
    }
    /* Without weights they are one file after another. */
    const pl_loader_config config = {.micro_batch = 1, .accumulation = 1};
    pl_loader *l = open_loader(files, &config);
    draw(l, 0, 890, drawn, true);
    assert_int_equal(drawn[0], 10);
    assert_int_equal(drawn[2], 800);
    pl_loader_close(l);
}

static void check_refused(const pl_loader_config *config, int code, const char *message)
{
    pl_loader *l;
    assert_int_equal(pl_loader_open(&err, files, config, &l), code);
    if (!strstr(err.message, message)) fail_msg("\"%s\" was expected in \"%s\"", message, err.message);
    pl_error_clear(&err);
}

static void test_refused(void **state)
{
    (void)state;
    const double negative[] = {1, -1, 1}, none[] = {0, 0, 0};
    check_refused(&(pl_loader_config){.accumulation = 1}, PL_EUSAGE, "train.micro_batch is 0");
    check_refused(&(pl_loader_config){.micro_batch = 1}, PL_EUSAGE, "train.accumulation is 0");
    check_refused(
        &(pl_loader_config){.micro_batch_tokens = 1, .accumulation = 1}, PL_EUSAGE, "longest row has 2 tokens");
    check_refused(&(pl_loader_config){.micro_batch = 1, .accumulation = 1, .epochs = -1}, PL_EUSAGE, "train.epochs");
    check_refused(&(pl_loader_config){.micro_batch = 1, .accumulation = 1, .weights = negative, .weight_count = 3},
        PL_EUSAGE, "file 2 is -1");
    check_refused(&(pl_loader_config){.micro_batch = 1, .accumulation = 1, .weights = none, .weight_count = 3},
        PL_EUSAGE, "all 0");
    check_refused(&(pl_loader_config){.part = PL_DATA_VALIDATION, .micro_batch = 1, .accumulation = 1}, PL_EINPUT,
        "no row for validation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_in_order),
        cmocka_unit_test(test_epochs),
        cmocka_unit_test(test_shuffle),
        cmocka_unit_test(test_token_bound),
        cmocka_unit_test(test_processes),
        cmocka_unit_test(test_weights),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
