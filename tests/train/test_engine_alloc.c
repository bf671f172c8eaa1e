/* Every allocation fails once, from the model's opening over a step, an evaluation and logits to the close: nothing may
   crash or leak, and the error is PL_ENOMEM. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/alloc_fail.h"
#include "support/golden.h"
#include "train/merging.h"

/* ---- one of several processes, whose others send small numbers ---- */

static int lonely_send(pl_comm *comm, pl_error *err, int to, const void *data, int64_t bytes, void *handle)
{
    (void)err;
    (void)data;
    (void)bytes;
    assert_true(to >= 0 && to < comm->size && to != comm->rank);
    *(char *)handle = 0;
    return 0;
}

static int lonely_receive(pl_comm *comm, pl_error *err, int from, void *data, int64_t bytes, void *handle)
{
    (void)err;
    assert_true(from >= 0 && from < comm->size && from != comm->rank);
    memset(data, 0x3c, (size_t)bytes); /* 0.0115 in f32 and bf16, next to nothing as a double, and no error code */
    *(char *)handle = 0;
    return 0;
}

static int lonely_test(pl_comm *comm, pl_error *err, void *handles, size_t count, bool *done)
{
    (void)comm;
    (void)err;
    (void)handles;
    (void)count;
    *done = true;
    return 0;
}

static int lonely_open(pl_error *err, int rank, int size, pl_comm **out);

static int lonely_split(pl_comm *comm, pl_error *err, int color, int rank, int size, pl_comm **out)
{
    (void)comm;
    (void)color;
    return lonely_open(err, rank, size, out);
}

static void lonely_abort(pl_comm *comm, int status)
{
    fail_msg("process %d ends all with %d", comm->rank, status);
}

static void lonely_destroy(pl_comm *comm)
{
    free(comm);
}

static int lonely_open(pl_error *err, int rank, int size, pl_comm **out)
{
    static const pl_comm_ops ops = {
        "lonely", 1, lonely_send, lonely_receive, lonely_test, lonely_split, lonely_abort, lonely_destroy};
    PL_TRY(pl_calloc(err, 1, sizeof **out, out));
    **out = (pl_comm){.ops = &ops, .rank = rank, .size = size};
    (*out)->traffic = &(*out)->own;
    return 0;
}

/* A case, its files open; the device is warm, so that it keeps no product that is made under watch. */
typedef struct given {
    golden g;
    golden_micros micros;
    const char *name;
    json_t *config; /* read before: jansson's lexer drops characters when memory runs out, and says nothing */
    bool dora;
    pl_lora_init init; /* with dora */
    pl_dtype dtype;
    bool disk;         /* states and parameters lie there */
    pl_device *device; /* NULL: opened in the call */
    int processes;     /* 0: one */
    pl_sharding sharding;
} given;

static int find(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found)
{
    given *t = user;
    const pl_st_tensor *s = pl_safetensors_find(t->g.weights, pl_param_source(param));
    *found = s != NULL;
    if (!s && param->role == PL_ROLE_BASE) return PL_FAIL(err, PL_EINPUT, "%s is not there", param->name);
    if (!s) return 0;
    *out = (pl_host_tensor){.data = s->data, .dtype = s->dtype, .ndim = s->ndim};
    for (int d = 0; d < s->ndim; d++) out->shape[d] = s->shape[d];
    return 0;
}

static int adapt(pl_error *err, pl_model *model, pl_lora_config *lora, pl_lora_init init)
{
    pl_lora_config_init(lora);
    lora->r = 2;
    lora->use_dora = true;
    lora->init_lora_weights = init;
    PL_TRY(pl_modules_parse(err, "lora.targets", "all-linear", &lora->target_modules));
    PL_TRY(pl_names_add(err, &lora->modules_to_save, "lm_head"));
    return pl_model_adapt(err, model, lora, true, true, 1, "lora.targets");
}

static int use(given *t, pl_engine *engine)
{
    pl_feed feed = {.user = &t->micros, .micro_batch = golden_feed};
    pl_step_result r;
    double sum;
    static float logits[2 * 512];
    PL_TRY(pl_engine_step(engine, &feed, 1, 1, golden_targets(&t->micros), 1e-3, &r));
    PL_TRY(pl_engine_evaluate(engine, &t->g.batch, &sum));
    assert_true(t->g.model->arch.vocab <= 512);
    return pl_engine_logits(engine, &t->g.batch, (int32_t[]){0, 1}, 2, logits);
}

/* The adapter is zero. */
static int find_all(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found)
{
    static const float zeros[1 << 14];
    if (param->role != PL_ROLE_ADAPTER) return find(err, user, param, out, found);
    assert_true(pl_param_numel(param) <= PL_COUNT(zeros));
    *found = true;
    *out = (pl_host_tensor){.data = zeros, .dtype = PL_F32, .ndim = param->ndim};
    for (int d = 0; d < param->ndim; d++) out->shape[d] = param->shape[d];
    return 0;
}

/* Reads all tensors of the merged model. */
static int merge(pl_error *err, const pl_model *model, given *t)
{
    pl_source source = {.user = t, .find = find_all};
    pl_merging merging;
    float *values = NULL;
    PL_TRY(pl_merging_open(err, model, &merging));
    int rc = pl_calloc(err, (size_t)(model->arch.vocab * model->arch.intermediate), sizeof *values, &values);
    for (int i = 0; i < merging.count && rc == 0; i++) rc = pl_merging_read(err, &merging.tensors[i], &source, values);
    free(values);
    pl_merging_close(&merging);
    return rc;
}

static int open_and_use(pl_error *err, void *user)
{
    given *t = user;
    const pl_log quiet = {0};
    pl_arch arch = {0};
    pl_model *model = NULL;
    pl_lora_config lora = {0};
    pl_device *device = NULL;
    pl_engine *engine = NULL;
    pl_comm *comm = NULL;
    pl_disk *disk = NULL;
    pl_mem mem = {0};
    pl_source source = {.user = t, .find = find};
    int rc;
    PL_GO(done, pl_arch_parse(err, &quiet, t->name, t->config, NULL, &arch));
    PL_GO(done, pl_model_open(err, &arch, t->dtype, &model));
    PL_GO(done, t->dora ? adapt(err, model, &lora, t->init) : pl_model_train_all(err, model, NULL, 0, ""));
    if (!t->device) PL_GO(done, pl_device_ref(err, &device));
    if (t->processes) PL_GO(done, lonely_open(err, 1, t->processes, &comm));
    pl_mem_init(&mem, device ? device : t->device);
    if (t->disk) PL_GO(done, pl_disk_open(err, NULL, "path", "/var/tmp", &disk));
    pl_engine_config config = {.training = true,
        .offload = {.disk = disk, .optimizer = true, .params = true, .buffer = 1},
        .recompute = 1,
        .seed = 7,
        .clip = 1,
        .optimizer = {.kind = PL_OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8},
        .cache_rows = 64,
        .accumulates = true,
        .sharding = t->sharding,
        .capacity = {.tokens = t->g.batch.tokens,
            .max_length = t->g.batch.max_length,
            .sequences = t->g.batch.nsequences,
            .saved_bytes = 1 << 20,
            .work_bytes = 1 << 20}};
    config.sharding.comm = comm;
    PL_GO(done, pl_engine_open(err, NULL, mem.device, &mem, model, &config, &source, &engine));
    PL_GO(done, use(t, engine));
    if (t->dora) PL_GO(done, merge(err, model, t));
done:
    pl_engine_close(engine);
    pl_comm_close(comm);
    pl_disk_close(disk);
    assert_int_equal(mem.total_now, 0); /* the account is even, however far it came */
    pl_device_close(device);
    pl_model_close(model);
    pl_lora_config_free(&lora);
    return rc;
}

static void check(given t, bool cpu)
{
    const char *name = t.name;
    pl_dtype dtype = t.dtype;
    golden_open(&t.g, golden_path(name), golden_path(name), &(golden_options){.dtype = dtype, .threads = 1});
    golden_split(&t.g, &t.micros, 1);
    t.device = cpu ? t.g.device : NULL;
    char path[1024];
    snprintf(path, sizeof path, "%s/config.json", golden_path(name));
    if (pl_json_read(&t.g.err, path, &t.config) < 0) fail_msg("%s", t.g.err.message);
    if (cpu && open_and_use(&t.g.err, &t) < 0) fail_msg("%s: %s", name, t.g.err.message);
    assert_true(alloc_fail_run(name, open_and_use, &t) > 50);
    json_decref(t.config);
    golden_micros_close(&t.micros);
    golden_close(&t.g);
}

static void training_in_full(void **state)
{
    (void)state;
    check((given){.name = "gpt_neox", .dtype = PL_F32}, true);
    check((given){.name = "gemma2", .dtype = PL_BF16}, true);
    check((given){.name = "phi3-longrope", .dtype = PL_F32}, false);
}

static void training_an_adapter(void **state)
{
    (void)state;
    check((given){.name = "llama-tied", .dora = true, .dtype = PL_BF16}, true);
    check((given){.name = "qwen2", .dora = true, .init = PL_LORA_INIT_PISSA, .dtype = PL_BF16}, true);
    check((given){.name = "qwen2", .dora = true, .init = PL_LORA_INIT_OLORA, .dtype = PL_F32}, true);
    check((given){.name = "gpt2", .dora = true, .init = PL_LORA_INIT_ORTHOGONAL, .dtype = PL_F32}, true);
}

static void as_one_of_several(void **state)
{
    (void)state;
    const pl_sharding zero = {.bucket = 1 << 12};
    check((given){.name = "llama", .dtype = PL_BF16, .processes = 3, .sharding = zero}, true);
    for (int stage = 1; stage <= 3; stage++) {
        pl_sharding how = {.stage = stage, .bucket = 1 << 12, .prefetch = 1, .every_micro = stage == 2};
        check((given){.name = "llama-tied", .dtype = PL_F32, .processes = 3, .sharding = how}, true);
        how.group = 2;
        check((given){.name = "qwen2", .dora = true, .dtype = PL_BF16, .processes = 4, .sharding = how}, true);
    }
}

static void training_from_disk(void **state)
{
    (void)state;
    check((given){.name = "llama-tied", .disk = true, .dtype = PL_BF16}, true);
    check((given){.name = "llama-tied", .disk = true, .dora = true, .dtype = PL_BF16}, false);
    check((given){.name = "qwen2", .disk = true, .dora = true, .init = PL_LORA_INIT_PISSA, .dtype = PL_F32}, true);
    const pl_sharding how = {.stage = 3, .bucket = 1 << 12, .prefetch = 1, .group = 2};
    check((given){.name = "llama-tied", .disk = true, .dtype = PL_BF16, .processes = 4, .sharding = how}, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_one_of_several),
        cmocka_unit_test(training_from_disk),
        cmocka_unit_test(training_in_full),
        cmocka_unit_test(training_an_adapter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
