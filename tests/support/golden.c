#include "support/golden.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define MODELS PLAIT_TEST_DIR "/golden/models"

#define CHECK(g, call)                                                                                                 \
    do {                                                                                                               \
        if ((call) < 0) fail_msg("%s: %s", #call, (g)->err.message);                                                   \
    } while (0)

/* Each value times 1 to 1 + 2^-8 or 1 - 2^-8, evenly, by a generator that begins with the draw and the name. */
static void move_values(const golden *g, const pl_st_tensor *t, float *values)
{
    uint64_t state = (uint64_t)g->draw;
    for (const char *c = t->name; *c; c++) state = (state ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
    for (int64_t i = 0; i < t->numel; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        values[i] *= 1 + ((float)(state >> 40) * 0x1p-24f - 0.5f) * 0x1p-7f;
    }
}

/* A copy of f32 values, rounded to bf16, that lasts as long as the case. */
static const float *round_values(golden *g, const pl_st_tensor *t)
{
    float *values = malloc(t->bytes);
    assert_true(t->dtype == PL_F32 && g->nrounded < PL_COUNT(g->rounded));
    memcpy(values, t->data, t->bytes);
    if (g->draw) move_values(g, t, values);
    for (int64_t i = 0; i < t->numel; i++) values[i] = pl_bf16_to_f32(pl_f32_to_bf16(values[i]));
    return g->rounded[g->nrounded++] = values;
}

static int find(pl_error *err, void *user, const pl_param *param, pl_host_tensor *out, bool *found)
{
    golden *g = user;
    const char *name = param->source_name ? param->source_name : param->name;
    const pl_st_tensor *t = NULL;
    char key[512];
    if (g->adapter && param->in_adapter) {
        t = pl_safetensors_find(g->adapter, golden_key(g, param, "", key));
        *found = t != NULL;
        if (!t) return PL_FAIL(err, PL_EINPUT, "%s is not in the adapter", key);
    }
    if (!t) t = pl_safetensors_find(g->weights, name);
    *found = t != NULL;
    if (!t && param->role == PL_ROLE_BASE) return PL_FAIL(err, PL_EINPUT, "%s is not in the file", name);
    if (!t) return 0;
    *out = (pl_host_tensor){.data = t->data, .dtype = t->dtype, .ndim = t->ndim};
    for (int d = 0; d < t->ndim; d++) out->shape[d] = t->shape[d];
    if (g->rounds) out->data = round_values(g, t);
    return 0;
}

/* The case's rows; documents of a packed one are sequences of their own. */
static void read_batch(golden *g)
{
    const pl_st_tensor *ids = pl_safetensors_find(g->expected, "input_ids"),
                       *labels = pl_safetensors_find(g->expected, "labels"),
                       *document = pl_safetensors_find(g->expected, "document");
    assert_non_null(ids);
    int64_t rows = ids->shape[0], width = ids->shape[1];
    CHECK(g, pl_batch_open(&g->err, &g->batch, rows * width, (int)(rows * width)));
    int64_t *id = malloc((size_t)ids->bytes), *label = malloc((size_t)ids->bytes), *doc = calloc((size_t)ids->numel, 8);
    memcpy(id, ids->data, (size_t)ids->bytes);
    memcpy(label, labels->data, (size_t)labels->bytes);
    if (document) memcpy(doc, document->data, (size_t)document->bytes);
    int32_t *id32 = malloc((size_t)width * 4), *label32 = malloc((size_t)width * 4);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t from = 0, to; from < width; from = to) {
            for (to = from; to < width && doc[r * width + to] == doc[r * width + from]; to++) {
                id32[to - from] = (int32_t)id[r * width + to];
                label32[to - from] = (int32_t)label[r * width + to];
            }
            CHECK(g, pl_batch_append(&g->err, &g->batch, id32, label32, to - from));
        }
    }
    free(id);
    free(label);
    free(doc);
    free(id32);
    free(label32);
}

static void open_files(golden *g, const char *model_dir, const char *case_dir)
{
    char path[1024];
    const pl_log quiet = {0};
    CHECK(g, pl_arch_read(&g->err, &quiet, model_dir, &g->arch));
    snprintf(path, sizeof path, "%s/model.safetensors", model_dir);
    CHECK(g, pl_safetensors_open(&g->err, path, &g->weights));
    snprintf(path, sizeof path, "%s/expected.safetensors", model_dir);
    CHECK(g, pl_safetensors_open(&g->err, path, &g->expected));
    read_batch(g);
    snprintf(path, sizeof path, "%s/case.json", case_dir);
    CHECK(g, pl_json_read(&g->err, path, &g->info));
    if (strcmp(model_dir, case_dir) == 0) return;
    pl_safetensors_close(g->expected);
    snprintf(path, sizeof path, "%s/expected.safetensors", case_dir);
    CHECK(g, pl_safetensors_open(&g->err, path, &g->expected));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", case_dir);
    CHECK(g, pl_safetensors_open(&g->err, path, &g->adapter));
}

pl_source golden_source(golden *g)
{
    return (pl_source){.user = g, .find = find};
}

/* What trains: the case's adapter, a fresh one, or everything. */
static void choose_method(golden *g, const char *case_dir, const golden_options *options)
{
    float ratio = options->b_lr_ratio > 0 ? options->b_lr_ratio : 1;
    if (g->adapter) {
        char path[1024];
        snprintf(path, sizeof path, "%s/adapter_config.json", case_dir);
        CHECK(g, pl_lora_config_read(&g->err, path, &g->lora));
        CHECK(g, pl_model_adapt(&g->err, g->model, &g->lora, options->training, false, ratio, case_dir));
    } else if (options->adapter) {
        g->lora = *options->adapter;
        CHECK(g, pl_model_adapt(&g->err, g->model, &g->lora, options->training, false, ratio, "lora"));
    } else if (options->lora || options->dora) {
        pl_lora_config_init(&g->lora);
        g->lora.r = 4;
        g->lora.use_dora = options->dora;
        g->lora.lora_dropout = options->dropout;
        g->lora.init_lora_weights = PL_LORA_INIT_RANDOM;
        CHECK(g, pl_modules_parse(&g->err, "lora.targets", "all-linear", &g->lora.target_modules));
        CHECK(g, pl_model_adapt(&g->err, g->model, &g->lora, options->training, true, 1, "lora.targets"));
    } else if (options->training) {
        CHECK(g, pl_model_train_all(&g->err, g->model, NULL, 0, ""));
    }
}

static void open_device(golden *g, const golden_options *options)
{
    if (options->ref) {
        CHECK(g, pl_device_ref(&g->err, &g->device));
    } else {
        CHECK(g, pl_device_cpu(&g->err, options->threads ? options->threads : 2, &g->device));
    }
    if (options->dry) {
        g->twin = g->device;
        CHECK(g, pl_device_dry(&g->err, g->twin, &g->device));
    }
    pl_mem_init(&g->mem, g->device);
}

void golden_open(golden *g, const char *model_dir, const char *case_dir, const golden_options *options)
{
    *g = (golden){.slack = 1, .rounds = options->rounded, .draw = options->draw};
    open_files(g, model_dir, case_dir);
    CHECK(g, pl_model_open(&g->err, &g->arch, options->dtype, &g->model));
    choose_method(g, case_dir, options);
    open_device(g, options);
    const pl_optimizer adamw = {
        .kind = PL_OPTIMIZER_ADAMW, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    int64_t most = options->dry ? PL_STACK_UNLIMITED : 4 << 20;
    pl_engine_config config = {.training = options->training,
        .recompute = options->recompute,
        .seed = options->seed ? options->seed : 7,
        .clip = options->clip,
        .optimizer = options->optimizer ? *options->optimizer : adamw,
        .cache_rows = options->cache_rows,
        .sharding = options->sharding,
        .offload = options->offload,
        .accumulates = options->accumulates,
        .capacity = {.tokens = g->batch.tokens,
            .max_length = options->max_length ? options->max_length : g->batch.max_length,
            .sequences = g->batch.nsequences,
            .saved_bytes = options->saved_bytes ? options->saved_bytes : most,
            .work_bytes = options->work_bytes ? options->work_bytes : most}};
    pl_source source = golden_source(g);
    CHECK(g, pl_engine_open(&g->err, NULL, g->device, &g->mem, g->model, &config, &source, &g->engine));
}

void golden_close(golden *g)
{
    pl_engine_close(g->engine);
    pl_device_close(g->device);
    pl_device_close(g->twin);
    pl_model_close(g->model);
    pl_safetensors_close(g->weights);
    pl_safetensors_close(g->adapter);
    pl_safetensors_close(g->expected);
    pl_lora_config_free(&g->lora);
    json_decref(g->info);
    pl_batch_close(&g->batch);
    for (int i = 0; i < g->nrounded; i++) free(g->rounded[i]);
}

const char *golden_key(const golden *g, const pl_param *param, const char *prefix, char key[512])
{
    if (!g->adapter) {
        snprintf(key, 512, "%s%s", prefix, param->name);
        return key;
    }
    /* A bias of an adapted module lies one level deeper. */
    const char *leaf = strrchr(param->name, '.'), *deeper = "";
    for (int i = 0; i < g->model->nlinears; i++) {
        const pl_linear *lin = g->model->linears[i];
        if (lin->lora && lin->bias == param) deeper = ".base_layer";
    }
    snprintf(key, 512, "%sbase_model.model.%.*s%s%s", prefix, (int)(leaf - param->name), param->name, deeper, leaf);
    return key;
}

bool golden_has(const golden *g, const char *name)
{
    return pl_safetensors_find(g->expected, name) != NULL;
}

double *golden_expected(const golden *g, const char *name, int64_t *n)
{
    const pl_st_tensor *t = pl_safetensors_find(g->expected, name);
    if (!t) fail_msg("%s is not among the expected values", name);
    double *out = malloc((size_t)(t->numel ? t->numel : 1) * sizeof *out);
    *n = t->numel;
    for (int64_t i = 0; i < t->numel; i++) {
        float narrow;
        if (strcmp(t->dtype_name, "F64") == 0) {
            memcpy(&out[i], (const char *)t->data + 8 * i, 8);
        } else {
            memcpy(&narrow, (const char *)t->data + 4 * i, 4);
            out[i] = (double)narrow;
        }
    }
    return out;
}

float *golden_fetch(golden *g, pl_tensor t)
{
    int64_t n = pl_tensor_numel(t);
    float *out = malloc((size_t)n * sizeof *out);
    if (t.dtype == PL_F32) {
        g->device->ops->copy_out(g->device, out, t.data, n * 4);
        return out;
    }
    uint16_t *half = malloc((size_t)n * sizeof *half);
    g->device->ops->copy_out(g->device, half, t.data, n * 2);
    for (int64_t i = 0; i < n; i++) out[i] = pl_bf16_to_f32(half[i]);
    free(half);
    return out;
}

float *golden_state(golden *g, const pl_param *p, pl_state state)
{
    int64_t n = pl_param_numel(p);
    float *out = malloc((size_t)n * sizeof *out);
    if (pl_store_read(&g->err, pl_engine_store(g->engine), p, state, 0, n, out) < 0) fail_msg("%s", g->err.message);
    return out;
}

void golden_close_to(const char *what, const float *got, const double *want, int64_t n, double tolerance, double floor)
{
    double largest = floor, worst = 0;
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) largest = fmax(largest, fabs(want[i]));
    for (int64_t i = 0; i < n; i++) {
        double difference = fabs((double)got[i] - want[i]);
        if (!(difference <= worst)) {
            worst = difference;
            at = i;
        }
    }
    if (!(worst <= tolerance * largest)) {
        fail_msg("%s: element %lld is %.9g, not %.9g: %.2g of the largest (%g allowed)", what, (long long)at,
            (double)got[at], want[at], worst / largest, tolerance);
    }
}

const char *golden_path(const char *name)
{
    static char path[1024];
    snprintf(path, sizeof path, "%s/%s", MODELS, name);
    return path;
}

static int is_dense(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && !strstr(entry->d_name, "moe") && !strstr(entry->d_name, "mixtral");
}

int golden_each_model(const char *group, void (*test)(void **state))
{
    struct dirent **entries;
    int n = scandir(MODELS, &entries, is_dense, alphasort);
    if (n <= 0) return 1;
    struct CMUnitTest *tests = calloc((size_t)n, sizeof *tests);
    for (int i = 0; i < n; i++) {
        tests[i] =
            (struct CMUnitTest){.name = entries[i]->d_name, .test_func = test, .initial_state = entries[i]->d_name};
    }
    int failed = _cmocka_run_group_tests(group, tests, (size_t)n, NULL, NULL);
    for (int i = 0; i < n; i++) free(entries[i]);
    free(entries);
    free(tests);
    return failed;
}

int golden_feed(pl_error *err, void *micros, int64_t step, int micro, pl_batch *batch)
{
    (void)step;
    return pl_batch_copy(err, &((golden_micros *)micros)->items[micro], batch);
}

int64_t golden_targets(const golden_micros *micros)
{
    int64_t n = 0;
    for (int i = 0; i < micros->count; i++) n += micros->items[i].ntargets;
    return n;
}

void golden_split(golden *g, golden_micros *micros, int count)
{
    *micros = (golden_micros){.count = count};
    for (int i = 0; i < count; i++) {
        CHECK(g, pl_batch_open(&g->err, &micros->items[i], g->batch.tokens, g->batch.nsequences));
    }
    for (int s = 0; s < g->batch.nsequences; s++) {
        pl_sequence q = g->batch.sequences[s];
        int32_t *labels = malloc((size_t)q.q_len * sizeof *labels); /* targets shifted back */
        labels[0] = PL_NOT_TRAINED;
        for (int64_t t = 0; t + 1 < q.q_len; t++) labels[t + 1] = g->batch.targets[q.q_begin + t];
        pl_batch *to = &micros->items[s < count ? s : count - 1];
        CHECK(g, pl_batch_append(&g->err, to, g->batch.ids + q.q_begin, labels, q.q_len));
        free(labels);
    }
}

void golden_micros_close(golden_micros *micros)
{
    for (int i = 0; i < micros->count; i++) pl_batch_close(&micros->items[i]);
}
