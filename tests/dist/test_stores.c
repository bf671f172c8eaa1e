/* Every way to share a model out, on any number of processes: losses and weights are one process's but for rounding,
   and the same to the bit whatever is kept where; the dry run tells memory and messages by the byte; what is sent is
   what theory says. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/buf.h"
#include "support/golden.h"

#define STEPS 3

static pl_comm *world;

/* The micro-batches of a step, all processes' together: number g is process g % ranks's. */
typedef struct share {
    const golden *from;
    int ranks, rank, count; /* of all micro-batches */
    bool gap;               /* the last one is empty */
} share;

/* Sequences of the case, of different lengths. */
static int fill_micro(pl_error *err, const share *s, int g, pl_batch *batch)
{
    const pl_batch *all = &s->from->batch;
    pl_sequence q = all->sequences[g % all->nsequences];
    int64_t n = q.q_len - g % 5;
    if (s->gap && g == s->count - 1) return 0;
    int32_t *labels = malloc((size_t)n * sizeof *labels);
    labels[0] = PL_NOT_TRAINED;
    for (int64_t t = 0; t + 1 < n; t++) labels[t + 1] = g % 3 && t < 5 ? PL_NOT_TRAINED : all->targets[q.q_begin + t];
    int rc = pl_batch_append(err, batch, all->ids + q.q_begin, labels, n);
    free(labels);
    return rc;
}

static int feed(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch)
{
    const share *s = user;
    (void)step;
    return fill_micro(err, s, micro * s->ranks + s->rank, batch);
}

static int64_t count_targets(const share *s)
{
    pl_error err = {0};
    pl_batch batch;
    int64_t targets = 0;
    assert_int_equal(pl_batch_open(&err, &batch, s->from->batch.tokens, s->from->batch.nsequences), 0);
    for (int g = 0; g < s->count; g++) {
        pl_batch_clear(&batch);
        assert_int_equal(fill_micro(&err, s, g, &batch), 0);
        targets += batch.ntargets;
    }
    pl_batch_close(&batch);
    return targets;
}

/* What a run ended with: losses, norms, and of every trainable parameter the elements that this process keeps. */
typedef struct outcome {
    double losses[STEPS], norms[STEPS];
    int64_t sent[PL_TRAFFIC_COUNT]; /* in the last step */
    int64_t peak[PL_MEM_TAG_COUNT];
    int64_t disk[3]; /* bytes on disk; read and written in the last step */
    float **values;  /* [nparams] whole tensors; only [first, first + n) are known */
    int64_t *first, *n;
    int nparams;
} outcome;

static void free_outcome(outcome *o)
{
    for (int i = 0; i < o->nparams; i++) free(o->values[i]);
    free(o->values);
    free(o->first);
    free(o->n);
    *o = (outcome){0};
}

static void note_weights(golden *g, outcome *o)
{
    int n = g->model->nparams;
    o->nparams = n;
    o->values = calloc((size_t)n, sizeof *o->values);
    o->first = calloc((size_t)n, sizeof *o->first);
    o->n = calloc((size_t)n, sizeof *o->n);
    for (int i = 0; i < n; i++) {
        const pl_param *p = g->model->params[i];
        const pl_store *store = pl_engine_store(g->engine);
        pl_extent kept = pl_store_kept(store, p, PL_STATE_MASTER);
        if (!pl_store_has(store, p, PL_STATE_MASTER)) kept.count = 0;
        o->values[i] = calloc((size_t)pl_param_numel(p), sizeof(float));
        o->first[i] = kept.first;
        o->n[i] = kept.count;
        if (o->n[i] == 0) continue;
        float *values = o->values[i] + kept.first;
        assert_int_equal(pl_store_read(&g->err, store, p, PL_STATE_MASTER, kept.first, kept.count, values), 0);
    }
}

/* Every process a file of its own, in the same folder. */
static pl_disk *open_disk(golden_options *o)
{
    pl_error err = {0};
    if (!o->offload.optimizer && !o->offload.params) return NULL;
    int rc =
        o->dry ? pl_disk_dry(&err, &o->offload.disk) : pl_disk_open(&err, NULL, "path", "/var/tmp", &o->offload.disk);
    if (rc < 0) fail_msg("%s", err.message);
    return o->offload.disk;
}

/* Trains STEPS steps; `comm` NULL: this process alone makes all micro-batches. */
static void run(const char *model, golden_options options, pl_comm *comm, int accumulation, bool gap, outcome *o)
{
    golden g;
    *o = (outcome){0};
    int ranks = comm ? comm->size : 1;
    options.sharding.comm = comm;
    pl_disk *disk = open_disk(&options);
    golden_open(&g, golden_path(model), golden_path(model), &options);
    share s = {
        .from = &g, .ranks = ranks, .rank = comm ? comm->rank : 0, .count = accumulation * world->size, .gap = gap};
    int64_t targets = count_targets(&s);
    pl_feed source = {.user = &s, .micro_batch = feed};
    for (int step = 0; step < STEPS; step++) {
        pl_traffic before = comm ? *comm->traffic : (pl_traffic){0};
        pl_step_result r;
        if (disk) disk->counts = (pl_disk_counts){0};
        /* A dry communicator thinks that all have what this process has. */
        if (options.dry) {
            int64_t mine = 0;
            pl_batch batch;
            assert_int_equal(pl_batch_open(&g.err, &batch, g.batch.tokens, g.batch.nsequences), 0);
            for (int m = 0; m < accumulation; m++) {
                pl_batch_clear(&batch);
                assert_int_equal(feed(&g.err, &s, step, m, &batch), 0);
                mine += batch.ntargets;
            }
            pl_batch_close(&batch);
            targets = mine * ranks;
        }
        if (pl_engine_step(g.engine, &source, step + 1, s.count / ranks, targets, 1e-3, &r) < 0) {
            fail_msg("process %d: %s", world->rank, g.err.message);
        }
        o->losses[step] = r.loss;
        o->norms[step] = r.grad_norm;
        for (int k = 0; k < PL_TRAFFIC_COUNT && comm; k++) o->sent[k] = comm->traffic->sent[k] - before.sent[k];
    }
    memcpy(o->peak, g.mem.peak, sizeof o->peak);
    if (disk) memcpy(o->disk, (int64_t[]){disk->bytes, disk->counts.read, disk->counts.written}, sizeof o->disk);
    if (!options.dry) note_weights(&g, o);
    golden_close(&g);
    pl_disk_close(disk);
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) assert_int_equal(g.mem.now[tag], 0);
}

static void fail_if(bool wrong, const char *way, const char *what)
{
    if (wrong) fail_msg("process %d of %d: %s: %s", world->rank, world->size, way, what);
}

/* Against one process. Sums in another order differ by a few ulps, of which AdamW makes more where a gradient is small:
   5e-6 is half a percent of one step of it at this learning rate. In bf16 a weight that falls on another side of a
   rounding changes all that follows by 2^-8 of it. */
static void compare_near(const char *way, const outcome *o, const outcome *one, bool bf16)
{
    double tolerance = bf16 ? 4e-3 : 1e-5;
    for (int s = 0; s < STEPS; s++) {
        fail_if(!(fabs(o->losses[s] - one->losses[s]) <= tolerance * fabs(one->losses[s])), way, "another loss");
        fail_if(!(fabs(o->norms[s] - one->norms[s]) <= 10 * tolerance * one->norms[s]), way, "another norm");
    }
    for (int i = 0; i < o->nparams; i++) {
        float largest = 0;
        for (int64_t e = 0; e < one->n[i]; e++) largest = fmaxf(largest, fabsf(one->values[i][e]));
        for (int64_t e = o->first[i]; e < o->first[i] + o->n[i]; e++) {
            double difference = fabs((double)o->values[i][e] - (double)one->values[i][e]);
            if (!(difference <= tolerance * fmax((double)largest, 0.5))) {
                fail_msg("process %d: %s: element %lld of parameter %d is %.9g, not %.9g", world->rank, way,
                    (long long)e, i, (double)o->values[i][e], (double)one->values[i][e]);
            }
        }
    }
}

static void compare_bits(const char *way, const outcome *o, const outcome *first)
{
    fail_if(memcmp(o->losses, first->losses, sizeof o->losses) != 0, way, "other bits in the losses");
    fail_if(memcmp(o->norms, first->norms, sizeof o->norms) != 0, way, "other bits in the norms");
    for (int i = 0; i < o->nparams; i++) {
        size_t bytes = (size_t)o->n[i] * sizeof(float);
        fail_if(bytes && memcmp(o->values[i] + o->first[i], first->values[i] + o->first[i], bytes) != 0, way,
            "other bits in the weights");
    }
}

static void compare_accounts(const char *way, const outcome *real, const outcome *dry)
{
    for (int tag = 0; tag < PL_MEM_TAG_COUNT; tag++) {
        if (real->peak[tag] == dry->peak[tag]) continue;
        fail_msg("process %d of %d: %s: %s: %lld bytes planned, %lld taken", world->rank, world->size, way,
            pl_mem_tag_name((pl_mem_tag)tag), (long long)dry->peak[tag], (long long)real->peak[tag]);
    }
    fail_if(memcmp(real->disk, dry->disk, sizeof real->disk) != 0, way, "the disk's bytes are not those planned");
    for (int k = 0; k < PL_TRAFFIC_COUNT; k++) {
        if (real->sent[k] == dry->sent[k]) continue;
        fail_msg("process %d of %d: %s: %s: %lld bytes planned, %lld sent", world->rank, world->size, way,
            pl_traffic_name((pl_traffic_kind)k), (long long)dry->sent[k], (long long)real->sent[k]);
    }
}

/* Runs one way of sharing, dry and real; every outcome is compared with `first` where that holds one. */
static void check_way(
    const char *model, golden_options options, int accumulation, bool gap, const outcome *one, outcome *first)
{
    char way[200];
    snprintf(way, sizeof way, "%s, %s, %s, ZeRO-%d in groups of %d, recompute %d, accumulation %d%s%s%s", model,
        options.dora   ? "dora"
        : options.lora ? "lora"
                       : "full",
        pl_dtype_name(options.dtype), options.sharding.stage, options.sharding.group, options.recompute, accumulation,
        options.sharding.every_micro ? ", every micro-batch" : "", options.offload.optimizer ? ", states on disk" : "",
        options.offload.params ? ", parameters on disk" : "");
    outcome dry, real;
    pl_comm *nobody;
    pl_error err = {0};
    assert_int_equal(pl_comm_dry(&err, world->rank, world->size, &nobody), 0);
    golden_options planned = options;
    planned.dry = true;
    planned.saved_bytes = planned.work_bytes = 0;
    run(model, planned, nobody, accumulation, gap, &dry);
    pl_comm_close(nobody);
    run(model, options, world, accumulation, gap, &real);
    for (int tag = PL_MEM_ACTIVATIONS; tag <= PL_MEM_WORK; tag++) dry.peak[tag] = real.peak[tag]; /* of a fixed size */
    compare_accounts(way, &real, &dry);
    compare_near(way, &real, one, options.dtype == PL_BF16);
    if (first->values) {
        compare_bits(way, &real, first);
        free_outcome(&real);
    } else {
        *first = real;
    }
    free_outcome(&dry);
}

static const struct {
    pl_sharding sharding;
    pl_offload offload;
} disks[] = {{{.stage = 0, .bucket = 1 << 24}, {.optimizer = true, .buffer = 1}},
    {{.stage = 1, .bucket = 4096}, {.optimizer = true, .buffer = 1 << 24}},
    {{.stage = 2, .bucket = 1 << 24}, {.optimizer = true, .buffer = 1}},
    {{.stage = 3, .bucket = 1 << 24, .prefetch = 1}, {.optimizer = true, .params = true, .buffer = 1}},
    {{.stage = 3, .bucket = 4096, .prefetch = 0}, {.params = true}},
    {{.stage = 3, .bucket = 4096, .prefetch = 2, .group = 2}, {.optimizer = true, .params = true, .buffer = 1 << 24}}};

static void check_all(const char *model, int method, pl_dtype dtype, int recompute, int accumulation, bool gap,
    const pl_optimizer *optimizer)
{
    golden_options options = {.training = true,
        .optimizer = optimizer,
        .threads = 1,
        .lora = method == 1,
        .dora = method == 2,
        .dtype = dtype,
        .recompute = recompute,
        .clip = 1,
        .accumulates = accumulation > 1};
    outcome one, first = {0}, micro = {0};
    run(model, options, NULL, accumulation, gap, &one);
    /* Several pieces a unit, or one; units gathered ahead, or not. */
    const pl_sharding ways[] = {{.stage = 0, .bucket = 1 << 24}, {.stage = 0, .bucket = 4096},
        {.stage = 1, .bucket = 1 << 24}, {.stage = 2, .bucket = 4096}, {.stage = 3, .bucket = 1 << 24, .prefetch = 1},
        {.stage = 3, .bucket = 4096, .prefetch = 0}, {.stage = 3, .bucket = 4096, .prefetch = 2}};
    for (int i = 0; i < PL_COUNT(ways); i++) {
        options.sharding = ways[i];
        check_way(model, options, accumulation, gap, &one, &first);
    }
    /* On disk, through buffers of the smallest size, or larger ones than any unit. */
    for (int i = 0; i < PL_COUNT(disks); i++) {
        if (disks[i].sharding.group > 0 && world->size % disks[i].sharding.group != 0) continue;
        options.sharding = disks[i].sharding;
        options.offload = disks[i].offload;
        check_way(model, options, accumulation, gap, &one, &first);
    }
    options.offload = (pl_offload){0};
    /* Sums over processes before those over micro-batches: other bits, but the same ones in both stages. */
    for (int stage = 2; stage <= 3 && accumulation > 1; stage++) {
        options.sharding = (pl_sharding){.stage = stage, .bucket = 4096, .prefetch = 1, .every_micro = true};
        check_way(model, options, accumulation, gap, &one, &micro);
    }
    free_outcome(&one);
    free_outcome(&first);
    free_outcome(&micro);
}

static void check_methods(const char *model, pl_dtype dtype)
{
    for (int method = 0; method < 3; method++) {
        for (int recompute = 0; recompute < 2; recompute++) {
            for (int accumulation = 1; accumulation <= 3; accumulation += 2) {
                check_all(model, method, dtype, recompute, accumulation, accumulation == 3 && recompute == 0, NULL);
            }
        }
    }
}

static void f32(void **state)
{
    (void)state;
    check_methods("llama-tied", PL_F32);
}

static void bf16(void **state)
{
    (void)state;
    check_methods("llama-tied", PL_BF16);
}

static void other_families(void **state)
{
    (void)state;
    static const char *const models[] = {"llama", "gemma2"};
    for (int i = 0; i < PL_COUNT(models); i++) check_all(models[i], 0, PL_F32, 0, 1, false, NULL);
    /* The key's bias has a gradient of rounding noise, of which AdamW would make whole steps. */
    const pl_optimizer sgd = {.kind = PL_OPTIMIZER_SGD, .momentum = 0.9, .weight_decay = 0.1};
    check_all("gpt2", 0, PL_F32, 0, 1, false, &sgd);
}

/* What theory says that all processes send together in a step, in bytes: sums to those who keep them, and back to all
   (0); sums, and values back (1, 2); sums, and values twice (3). Trainable parameters only; frozen ones are mapped. */
static void theory(void **state)
{
    (void)state;
    for (int way = 0; way < 2 * 2 * 4; way++) {
        golden_options options = {.training = true,
            .threads = 1,
            .lora = way % 2,
            .dtype = way / 2 % 2 ? PL_BF16 : PL_F32,
            .sharding = {.stage = way / 4, .bucket = 1 << 20, .prefetch = 1}};
        /* Tensors of this model are multiples of 16 elements, so nothing is padded; of bf16 everything is copied. */
        golden g;
        golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
        double n = world->size, all = 0, size = options.dtype == PL_BF16 ? 2 : 4;
        for (int i = 0; i < g.model->nparams; i++) {
            int64_t numel = pl_param_numel(g.model->params[i]);
            if (!g.model->params[i]->trainable) continue;
            if (numel % 16 != 0) fail_msg("%s has %lld elements", g.model->params[i]->name, (long long)numel);
            all += (double)numel;
        }
        bool gathers_frozen = options.lora && options.dtype == PL_BF16; /* the file is f32, so nothing can be mapped */
        golden_close(&g);
        outcome o;
        run("llama", options, world, 1, false, &o);
        pl_error err = {0};
        double sent[2] = {(double)o.sent[PL_TRAFFIC_GRADIENTS], (double)o.sent[PL_TRAFFIC_PARAMETERS]};
        assert_int_equal(pl_comm_sum(&err, world, sent, 2), 0);
        int stage = options.sharding.stage;
        assert_true(sent[0] == (stage == 0 ? 2 : 1) * 4 * all * (n - 1));
        if (stage < 3 || !gathers_frozen) {
            assert_true(sent[1] == (stage == 0 ? 0 : (stage == 3 ? 2 : 1)) * size * all * (n - 1));
        }
        free_outcome(&o);
    }
}

/* Six micro-batches of one row with 16, 9, 2, 1, 0 and 12 targets: rows r, r + n, ... are process r's. */
typedef struct rows {
    const pl_safetensors *file;
    int ranks, rank;
} rows;

static int fill_row(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch)
{
    const rows *r = user;
    const pl_st_tensor *ids = pl_safetensors_find(r->file, "input_ids"),
                       *labels = pl_safetensors_find(r->file, "labels");
    int64_t row = micro * r->ranks + r->rank, width = ids->shape[1];
    int32_t narrow[2][64];
    (void)step;
    if (row >= ids->shape[0]) return 0;
    for (int64_t t = 0; t < width; t++) {
        int64_t wide[2];
        memcpy(&wide[0], (const char *)ids->data + 8 * (row * width + t), 8);
        memcpy(&wide[1], (const char *)labels->data + 8 * (row * width + t), 8);
        for (int i = 0; i < 2; i++) narrow[i][t] = (int32_t)wide[i];
    }
    return pl_batch_append(err, batch, narrow[0], narrow[1], width);
}

/* Loss, norm and gradients of a batch whose targets fall very unevenly, against transformers. */
static void uneven_targets(void **state)
{
    (void)state;
    pl_error err = {0};
    pl_safetensors *file;
    assert_int_equal(pl_safetensors_open(&err, PLAIT_TEST_DIR "/golden/ddp/expected.safetensors", &file), 0);
    for (int stage = 0; stage <= 3; stage++) {
        golden g;
        golden_options options = {.training = true,
            .threads = 1,
            .accumulates = true,
            .sharding = {.comm = world, .stage = stage, .bucket = 4096, .prefetch = 1, .every_micro = stage > 1}};
        golden_open(&g, golden_path("llama"), golden_path("llama"), &options);
        rows r = {file, world->size, world->rank};
        pl_feed source = {.user = &r, .micro_batch = fill_row};
        pl_step_result result;
        int micros = (6 + world->size - 1) / world->size;
        if (pl_engine_step(g.engine, &source, 1, micros, 40, 0, &result) < 0) fail_msg("%s", g.err.message);
        /* In f32 of values in float64; the golden values' own tolerance. */
        assert_true(fabs(result.loss - 5.406447289065741) < 1e-5 * 5.4);
        assert_true(fabs(result.grad_norm - 4.611797532804843) < 1e-5 * 4.6);
        for (int i = 0; i < g.model->nparams; i++) {
            const pl_param *p = g.model->params[i];
            char name[256];
            snprintf(name, sizeof name, "grad.%s", p->name);
            const pl_st_tensor *want = pl_safetensors_find(file, name);
            assert_non_null(want);
            float *all = malloc((size_t)want->bytes), *got = malloc((size_t)want->bytes), largest = 0;
            memcpy(all, want->data, (size_t)want->bytes);
            for (int64_t e = 0; e < want->numel; e++) largest = fmaxf(largest, fabsf(all[e]));
            /* Where a stage keeps whole buffers, only the own slice of them has the sums. */
            const pl_store *store = pl_engine_store(g.engine);
            pl_extent mine = pl_store_share(store, p, PL_STATE_GRADIENT);
            assert_int_equal(pl_store_read(&g.err, store, p, PL_STATE_GRADIENT, mine.first, mine.count, got), 0);
            for (int64_t e = 0; e < mine.count; e++) {
                assert_true(fabsf(got[e] - all[mine.first + e]) <= 2e-5f * largest);
            }
            free(all);
            free(got);
        }
        golden_close(&g);
    }
    pl_safetensors_close(file);
}

int main(void)
{
    pl_error err = {0};
    if (pl_world_open(&err, &world) < 0) {
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(theory),
        cmocka_unit_test(uneven_targets),
        cmocka_unit_test(f32),
        cmocka_unit_test(bf16),
        cmocka_unit_test(other_families),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    pl_world_close(world);
    return failed;
}
