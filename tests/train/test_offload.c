/* States and parameters on disk: the bits are those of a run in memory, whatever lies where; the dry run tells memory
   and the disk's bytes; states are read and written wherever they lie; and a disk that fails ends the run. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "support/golden.h"

#define STEPS 3

static char folder[] = "/var/tmp/plait-test-XXXXXX";
static pl_error err;

/* What lies on disk: nothing, moments and masters, parameters, both. */
enum { MEMORY, OPTIMIZER, PARAMS, BOTH };

static void open_disk(golden_options *o, int what, int64_t buffer)
{
    o->offload = (pl_offload){.optimizer = what & OPTIMIZER, .params = what & PARAMS, .buffer = buffer};
    if (what == MEMORY) return;
    int rc = o->dry ? pl_disk_dry(&err, &o->offload.disk) : pl_disk_open(&err, NULL, "path", folder, &o->offload.disk);
    if (rc < 0) fail_msg("%s", err.message);
}

/* Everything that a run leaves: losses, norms, and all states one after the other. */
typedef struct outcome {
    double numbers[2 * STEPS + 2];
    float *states;
    int64_t n;
    int64_t peak[PL_MEM_TAG_COUNT], read, written, on_disk;
} outcome;

static void note_states(golden *g, outcome *o)
{
    static const pl_state all[] = {PL_STATE_MASTER, PL_STATE_MOMENT1, PL_STATE_MOMENT2};
    const pl_store *store = pl_engine_store(g->engine);
    for (int pass = 0; pass < 2; pass++) {
        o->n = 0;
        for (int i = 0; i < PL_COUNT(all) * g->model->nparams; i++) {
            const pl_param *p = g->model->params[i / PL_COUNT(all)];
            pl_state state = all[i % PL_COUNT(all)];
            if (!pl_store_has(store, p, state)) continue;
            pl_extent kept = pl_store_kept(store, p, state);
            assert_int_equal(kept.count, pl_param_numel(p));
            if (pass == 1 && pl_store_read(&g->err, store, p, state, 0, kept.count, o->states + o->n) < 0) {
                fail_msg("%s", g->err.message);
            }
            o->n += kept.count;
        }
        if (pass == 0) o->states = malloc((size_t)o->n * sizeof *o->states);
    }
}

static void train(const char *model, golden_options options, int what, int64_t buffer, int accumulation, outcome *o)
{
    golden g;
    golden_micros micros;
    *o = (outcome){0};
    open_disk(&options, what, buffer);
    golden_open(&g, golden_path(model), golden_path(model), &options);
    golden_split(&g, &micros, accumulation);
    pl_feed feed = {.user = &micros, .micro_batch = golden_feed};
    pl_disk *disk = options.offload.disk;
    for (int step = 0; step < STEPS; step++) {
        pl_step_result r;
        int64_t read = disk ? disk->counts.read : 0, written = disk ? disk->counts.written : 0;
        int rc = pl_engine_step(g.engine, &feed, step + 1, accumulation, golden_targets(&micros), 1e-3, &r);
        if (rc < 0) fail_msg("%s", g.err.message);
        o->numbers[2 * step] = r.loss;
        o->numbers[2 * step + 1] = r.grad_norm;
        if (!disk) continue;
        o->read = disk->counts.read - read;
        o->written = disk->counts.written - written;
        o->on_disk = disk->bytes;
    }
    assert_int_equal(pl_engine_evaluate(g.engine, &g.batch, &o->numbers[2 * STEPS]), 0);
    if (!options.dry) note_states(&g, o);
    memcpy(o->peak, g.mem.peak, sizeof o->peak);
    golden_micros_close(&micros);
    golden_close(&g);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) assert_int_equal(g.mem.now[tag], 0);
    pl_disk_close(disk);
}

static void same_bits(const char *way, const outcome *a, const outcome *b)
{
    if (memcmp(a->numbers, b->numbers, sizeof a->numbers) != 0) {
        fail_msg("%s: losses or norms differ: %.17g, %.17g", way, a->numbers[0], b->numbers[0]);
    }
    assert_int_equal(a->n, b->n);
    for (int64_t i = 0; i < a->n; i++) {
        if (memcmp(&a->states[i], &b->states[i], 4) == 0) continue;
        fail_msg("%s: state %lld of %lld is %.9g, not %.9g", way, (long long)i, (long long)a->n, (double)b->states[i],
            (double)a->states[i]);
    }
}

static void same_account(const char *way, const outcome *real, golden_options options, const char *model, int what,
    int64_t buffer, int accumulation)
{
    outcome dry;
    options.dry = true;
    options.saved_bytes = options.work_bytes = 0;
    train(model, options, what, buffer, accumulation, &dry);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) {
        if (tag == PL_MEM_ACTIVATIONS || tag == PL_MEM_WORK || real->peak[tag] == dry.peak[tag]) continue;
        fail_msg("%s: %s: %lld bytes planned, %lld taken", way, pl_mem_tag_name((pl_mem_tag)tag),
            (long long)dry.peak[tag], (long long)real->peak[tag]);
    }
    if (real->read != dry.read || real->written != dry.written || real->on_disk != dry.on_disk) {
        fail_msg("%s: on disk, read and written %lld %lld %lld, planned %lld %lld %lld", way, (long long)real->on_disk,
            (long long)real->read, (long long)real->written, (long long)dry.on_disk, (long long)dry.read,
            (long long)dry.written);
    }
}

static void check(const char *model, golden_options options, int accumulation)
{
    outcome memory;
    options.training = true;
    options.clip = 1;
    options.accumulates = accumulation > 1;
    train(model, options, MEMORY, 0, accumulation, &memory);
    for (int what = OPTIMIZER; what <= BOTH; what++) {
        /* Many pieces a unit, and one; units fetched ahead, or not. */
        for (int way = 0; way < 2; way++) {
            char name[200];
            int64_t buffer = way ? 1 << 24 : 1;
            options.sharding.prefetch = way * 2;
            snprintf(name, sizeof name, "%s, lora %d, dora %d, %s, recompute %d, accumulation %d, disk %d, way %d",
                model, options.lora, options.dora, pl_dtype_name(options.dtype), options.recompute, accumulation, what,
                way);
            outcome disk;
            train(model, options, what, buffer, accumulation, &disk);
            same_bits(name, &memory, &disk);
            same_account(name, &disk, options, model, what, buffer, accumulation);
            if (what & OPTIMIZER) {
                assert_int_equal(disk.peak[PL_MEM_OPTIMIZER], 0);
                assert_int_equal(disk.peak[PL_MEM_MASTERS], 0);
                assert_true(disk.peak[PL_MEM_OFFLOAD] > 0);
            }
            assert_true(disk.on_disk > 0 && disk.read > 0 && disk.written > 0);
            free(disk.states);
        }
    }
    free(memory.states);
}

static void matrix(void **state)
{
    int way = (int)(intptr_t)*state; /* of method and dtype */
    golden_options options = {.lora = way % 3 == 1, .dora = way % 3 == 2, .dtype = way / 3 ? PL_BF16 : PL_F32};
    for (int recompute = 0; recompute < 2; recompute++) {
        for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
            options.recompute = recompute;
            check("llama-tied", options, accumulation);
        }
    }
}

/* Untied, other sizes of tensors; optimizers with one state and with none. */
static void others(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "gemma2", "gpt2"};
    static const pl_optimizer sgd[] = {
        {.kind = PL_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 0.1, .nesterov = true},
        {.kind = PL_OPTIMIZER_SGD, .weight_decay = 0.1}};
    for (int i = 0; i < PL_COUNT(models); i++) {
        check(models[i], (golden_options){.dtype = PL_BF16}, 1);
        check(models[i], (golden_options){.dtype = PL_F32}, 1);
        check(models[i], (golden_options){.dtype = PL_BF16, .optimizer = &sgd[0]}, 1);
        check(models[i], (golden_options){.dtype = PL_BF16, .optimizer = &sgd[1]}, 1);
    }
}

/* The oracle's memory cannot be reached by a disk: everything goes by way of the host's. */
static void unreachable(void **state)
{
    (void)state;
    for (int way = 0; way < 6; way++) {
        golden_options options = {
            .ref = true, .lora = way % 3 == 1, .dora = way % 3 == 2, .dtype = way / 3 ? PL_BF16 : PL_F32};
        check("llama-tied", options, 1);
    }
}

/* Starts that change the base weights in place. */
static void starts(void **state)
{
    (void)state;
    static const pl_lora_init inits[] = {PL_LORA_INIT_PISSA, PL_LORA_INIT_OLORA, PL_LORA_INIT_ORTHOGONAL};
    for (int i = 0; i < 2 * PL_COUNT(inits); i++) {
        outcome memory, disk;
        golden_options options = {.training = true, .dtype = i % 2 ? PL_BF16 : PL_F32};
        for (int what = MEMORY; what <= BOTH; what += BOTH) {
            pl_lora_config lora;
            pl_lora_config_init(&lora);
            lora.r = 4;
            lora.init_lora_weights = inits[i / 2];
            lora.use_dora = true;
            if (pl_modules_parse(&err, "lora.targets", "all-linear", &lora.target_modules) < 0)
                fail_msg("%s", err.message);
            options.adapter = &lora;
            train("llama", options, what, 1, 1, what ? &disk : &memory);
        }
        same_bits("a start by matrices", &memory, &disk);
        free(memory.states);
        free(disk.states);
    }
}

/* ---- from outside ---- */

static float value_of(const pl_param *p, pl_state state, int64_t e)
{
    return (float)((p->id * 7919 + (int)state * 104729 + e * 31) % 10007) * 1e-4f;
}

/* As a checkpoint is loaded, in odd pieces, and saved. */
static void read_and_write(void **state)
{
    (void)state;
    static const pl_state all[] = {PL_STATE_MASTER, PL_STATE_MOMENT1, PL_STATE_MOMENT2};
    for (int way = 0; way < 8; way++) {
        golden g;
        golden_options options = {.training = true, .ref = way % 4 == 3, .dtype = way / 4 ? PL_BF16 : PL_F32};
        open_disk(&options, way % 4 == 3 ? BOTH : way % 4, 1);
        golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
        pl_store *store = pl_engine_store(g.engine);
        for (int i = 0; i < PL_COUNT(all) * g.model->nparams; i++) {
            const pl_param *p = g.model->params[i / PL_COUNT(all)];
            pl_state s = all[i % PL_COUNT(all)];
            int64_t n = pl_param_numel(p);
            float values[333];
            for (int64_t from = 0; from < n; from += PL_COUNT(values)) {
                int64_t count = n - from < PL_COUNT(values) ? n - from : PL_COUNT(values);
                for (int64_t e = 0; e < count; e++) values[e] = value_of(p, s, from + e);
                assert_int_equal(pl_store_write(&g.err, store, p, s, from, count, values), 0);
            }
        }
        assert_int_equal(pl_store_refresh(store), 0);
        for (int u = 0; u < g.model->nunits; u++) {
            pl_unit *unit = g.model->units[u];
            assert_int_equal(pl_store_acquire(store, unit, PL_WAY_ALONE), 0);
            for (int i = 0; i < unit->nparams; i++) {
                const pl_param *p = unit->params[i];
                float *values = golden_fetch(&g, p->value);
                bool rounded = p->value.dtype == PL_BF16;
                for (int64_t e = 0; e < pl_param_numel(p); e++) {
                    float want = value_of(p, PL_STATE_MASTER, e);
                    assert_true(values[e] == (rounded ? pl_bf16_to_f32(pl_f32_to_bf16(want)) : want));
                }
                free(values);
            }
            assert_int_equal(pl_store_release(store, unit, PL_WAY_ALONE), 0);
        }
        for (int i = 0; i < PL_COUNT(all) * g.model->nparams; i++) {
            const pl_param *p = g.model->params[i / PL_COUNT(all)];
            pl_state s = all[i % PL_COUNT(all)];
            float one;
            for (int64_t e = 0; e < pl_param_numel(p); e += 97) {
                assert_int_equal(pl_store_read(&g.err, store, p, s, e, 1, &one), 0);
                assert_true(one == value_of(p, s, e));
            }
            assert_int_equal(pl_store_read(&g.err, store, p, s, pl_param_numel(p), 1, &one), PL_EBUG);
            pl_error_clear(&g.err);
        }
        golden_close(&g);
        pl_disk_close(options.offload.disk);
    }
}

/* ---- a disk that fails ---- */

static int failing_in; /* transfers until one fails, or is short */
static bool shortens;
static const pl_disk_ops *sound;

static int worse_end(pl_disk *d, pl_error *e, pl_disk_request **request, int64_t *moved)
{
    PL_TRY(sound->end(d, e, request, moved));
    if (shortens && *moved > PL_DISK_BLOCK && failing_in-- % 3 == 0) *moved = PL_DISK_BLOCK + 5;
    if (!shortens && failing_in-- == 0) *moved = -EIO;
    return 0;
}

static void failing(void **state)
{
    (void)state;
    int ended = 0;
    for (int transfers = 0; ended == 0; transfers = transfers * 3 / 2 + 1) {
        golden g;
        golden_options options = {.training = true, .dtype = PL_BF16};
        open_disk(&options, BOTH, 1);
        golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
        pl_disk *disk = options.offload.disk;
        pl_disk_ops ops = *disk->ops;
        sound = disk->ops;
        ops.end = worse_end;
        disk->ops = &ops;
        failing_in = transfers;
        shortens = false;
        pl_feed feed = golden_same_feed(&g);
        pl_step_result r;
        int rc = pl_engine_step(g.engine, &feed, 1, 1, g.batch.ntargets, 1e-3, &r);
        if (failing_in < 0) {
            assert_int_equal(rc, PL_EIO);
            assert_non_null(strstr(g.err.message, "Input/output error"));
        }
        ended = rc == 0;
        disk->ops = sound;
        golden_close(&g);
        pl_disk_close(disk);
    }
}

static void shortened(void **state)
{
    (void)state;
    outcome memory;
    golden_options options = {.training = true, .dtype = PL_BF16};
    train("llama", options, MEMORY, 0, 1, &memory);
    golden g;
    open_disk(&options, BOTH, 1 << 20);
    golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
    pl_disk *disk = options.offload.disk;
    pl_disk_ops ops = *disk->ops;
    sound = disk->ops;
    ops.end = worse_end;
    disk->ops = &ops;
    shortens = true;
    failing_in = 1000000;
    pl_feed feed = golden_same_feed(&g);
    outcome o = {0};
    for (int step = 0; step < STEPS; step++) {
        pl_step_result r;
        assert_int_equal(pl_engine_step(g.engine, &feed, step + 1, 1, g.batch.ntargets, 1e-3, &r), 0);
        o.numbers[2 * step] = r.loss;
        o.numbers[2 * step + 1] = r.grad_norm;
    }
    assert_true(failing_in < 1000000);
    assert_int_equal(pl_engine_evaluate(g.engine, &g.batch, &o.numbers[2 * STEPS]), 0);
    note_states(&g, &o);
    same_bits("short transfers", &memory, &o);
    free(o.states);
    free(memory.states);
    disk->ops = sound;
    golden_close(&g);
    pl_disk_close(disk);
}

int main(void)
{
    if (!mkdtemp(folder)) return 1;
    const struct CMUnitTest tests[] = {
        {"full f32", matrix, NULL, NULL, (void *)0},
        {"lora f32", matrix, NULL, NULL, (void *)1},
        {"dora f32", matrix, NULL, NULL, (void *)2},
        {"full bf16", matrix, NULL, NULL, (void *)3},
        {"lora bf16", matrix, NULL, NULL, (void *)4},
        {"dora bf16", matrix, NULL, NULL, (void *)5},
        cmocka_unit_test(others),
        cmocka_unit_test(unreachable),
        cmocka_unit_test(starts),
        cmocka_unit_test(read_and_write),
        cmocka_unit_test(failing),
        cmocka_unit_test(shortened),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    rmdir(folder);
    return failed;
}
