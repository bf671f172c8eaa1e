#include "api/session.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/thread.h"
#include "api/adapter.h"

int pl_session_threads(const pl_config *config)
{
    if (config->threads > 0) return (int)config->threads;
    if (config->cores > 0) return config->cores;
    return pl_cores();
}

pl_optimizer pl_session_optimizer(const pl_config *c)
{
    return (pl_optimizer){.kind = (pl_optimizer_kind)c->optimizer.name,
        .beta1 = c->optimizer.betas.items[0],
        .beta2 = c->optimizer.betas.items[1],
        .eps = c->optimizer.eps,
        .weight_decay = c->optimizer.weight_decay,
        .momentum = c->optimizer.momentum,
        .nesterov = c->optimizer.nesterov};
}

/* ---- opening ---- */

static int check_no_adapter(pl_error *err, const pl_config *c, const char *where)
{
    char *model, *adapter = NULL;
    PL_TRY(pl_path_join(err, c->model, "config.json", &model));
    int rc = pl_path_join(err, c->model, "adapter_config.json", &adapter);
    if (rc == 0 && !pl_file_exists(model) && pl_file_exists(adapter)) {
        rc =
            PL_FAIL(err, PL_EUSAGE, "%s is %s, which holds an adapter; give the model that it is for, and --adapter %s",
                where, c->model, c->model);
    }
    free(adapter);
    free(model);
    return rc;
}

/* Names of models on the Hub and files out of a folder are what people give in place of the folder. */
static int check_model_folder(pl_error *err, const pl_config *c)
{
    char where[PL_WHERE_SIZE];
    pl_config_where(c, &c->model, where);
    if (pl_dir_exists(c->model)) return check_no_adapter(err, c, where);
    if (pl_file_exists(c->model)) {
        return PL_FAIL(err, PL_EUSAGE, "%s is %s, a file; the folder that holds a model's config.json was expected",
            where, c->model);
    }
    return PL_FAIL(err, PL_ENOENT,
        "%s is %s, and there is no such folder; a model must be on this machine, as `hf download NAME --local-dir DIR` "
        "puts it there",
        where, c->model);
}

static int read_arch(pl_error *err, const pl_log *log, const pl_config *c, pl_arch *arch)
{
    if (c->model) PL_TRY(check_model_folder(err, c));
    if (!c->from_scratch) return pl_arch_read(err, log, c->model, arch);
    if (pl_dir_exists(c->from_scratch)) return pl_arch_read(err, log, c->from_scratch, arch);
    json_t *json;
    PL_TRY(pl_json_read(err, c->from_scratch, &json));
    int rc = pl_arch_parse(err, log, c->from_scratch, json, NULL, arch);
    json_decref(json);
    return rc;
}

static void pass_warnings(void *user, enum pl_log_level level, const char *message)
{
    if (level == PL_LOG_WARNING) pl_logf(user, level, "%s", message);
}

static int open_model(pl_error *err, pl_session *s)
{
    pl_arch arch = {0};
    /* What a configuration asks for in training, such as dropout, need not be told where a model is only used. */
    const pl_log warnings = {.sink = pass_warnings, .user = (void *)(uintptr_t)s->log};
    PL_TRY(read_arch(err, s->purpose == PL_PURPOSE_TRAIN ? s->log : &warnings, s->config, &arch));
    pl_dtype dtype = s->config->precision == PL_PRECISION_BF16 ? PL_BF16 : PL_F32;
    return pl_model_open(err, &arch, dtype, &s->model);
}

/* A randomised start cannot be had again from the adapter by others, who draw other numbers. */
static void warn_of_niter(const pl_session *s)
{
    char where[PL_WHERE_SIZE];
    if (s->lora.init_lora_weights != PL_LORA_INIT_PISSA || s->lora.init_niter < 0) return;
    pl_logf(s->log, PL_LOG_WARNING,
        "%s is %s: PEFT draws random numbers of its own when it loads such an adapter, and what it then computes "
        "differs "
        "by as much as its %lld iterations leave open; plait merge gives a model that does not, and pissa an adapter",
        pl_config_where(s->config, &s->config->lora.init, where), s->config->lora.init, (long long)s->lora.init_niter);
}

/* Declares the adapter, or frees what trains without one. */
static int open_method(pl_error *err, pl_session *s)
{
    const pl_config *c = s->config;
    bool train = s->purpose == PL_PURPOSE_TRAIN;
    if (c->adapter) {
        PL_TRY(pl_adapter_open(err, c->adapter, &s->lora, &s->adapter_weights));
        s->has_adapter = true;
        return pl_model_adapt(err, s->model, &s->lora, train, false, (float)c->lora.lr_ratio, c->adapter);
    }
    if (!train) return 0;
    char where[PL_WHERE_SIZE];
    if (c->method == PL_METHOD_FULL) {
        pl_config_where(c, &c->train.freeze, where);
        return pl_model_train_all(err, s->model, c->train.freeze.items, c->train.freeze.count, where);
    }
    PL_TRY(pl_config_lora(err, c, &s->lora));
    s->has_adapter = true;
    warn_of_niter(s);
    pl_config_where(c, &c->lora.targets, where);
    return pl_model_adapt(err, s->model, &s->lora, true, true, (float)c->lora.lr_ratio, where);
}

/* Tells whoever reads the adapter that is trained which model it is for, by a path that holds from every folder. Random
   weights have none: a folder that is given along with them is their tokenizer's. */
static int name_base(pl_error *err, pl_session *s)
{
    const pl_config *c = s->config;
    if (s->purpose != PL_PURPOSE_TRAIN || !s->has_adapter || c->from_scratch) return 0;
    if (s->lora.base_model_name_or_path) return 0;
    s->lora.base_model_name_or_path = realpath(c->model, NULL);
    if (s->lora.base_model_name_or_path) return 0;
    return errno == ENOMEM ? PL_FAIL_NOMEM(err) : PL_FAIL(err, PL_EIO, "%s: %s", c->model, strerror(errno));
}

/* Tensors that files have and models do not use: causal masks of old GPT-2 and GPT-NeoX files, rotary tables. */
#define MASKS_AND_TABLES                                                                                               \
    "*.attn.bias", "*.attn.masked_bias", "*.attention.bias", "*.attention.masked_bias", "*rotary_emb.inv_freq"
static const char *const harmless[] = {MASKS_AND_TABLES, NULL};
/* A tied head's own copy. */
static const char *const harmless_tied[] = {MASKS_AND_TABLES, "*lm_head.weight", "*embed_out.weight", NULL};

/* A bare base model's file leaves the prefix out. */
static const char *const no_prefix[] = {"", NULL};

/* Opens the model's files and sees that they have what the model needs, and nothing else. */
static int open_weights(pl_error *err, pl_session *s)
{
    const pl_config *c = s->config;
    const pl_arch *a = &s->model->arch;
    if (c->from_scratch) return 0;
    PL_TRY(pl_weights_open(err, c->model, &s->weights));
    if (a->base_prefix) pl_weights_prefix(s->weights, a->base_prefix, no_prefix);
    for (int i = 0; i < s->model->nparams; i++) {
        const pl_param *p = s->model->params[i];
        const pl_st_tensor *t;
        if (p->role == PL_ROLE_BASE) PL_TRY(pl_weights_find(err, s->weights, pl_param_source(p), &t));
    }
    return pl_weights_check(err, s->weights, "config.json", a->tied ? harmless_tied : harmless);
}

/* PEFT writes a second and a third copy of a bias that is trained with `bias` all inside of modules_to_save. */
static const char *const harmless_adapter[] = {"*.modules_to_save.bias", "*.original_module.bias", NULL};

/* The same for the adapter's. */
static int check_adapter(pl_error *err, pl_session *s)
{
    if (!s->adapter_weights) return 0;
    for (int i = 0; i < s->model->nparams; i++) {
        const pl_param *p = s->model->params[i];
        const pl_st_tensor *t;
        if (p->in_adapter) {
            PL_TRY(pl_adapter_find_param(err, s->adapter_weights, s->model, p, &t));
        } else {
            PL_TRY(pl_adapter_find_along(err, s->adapter_weights, s->model, p, &t));
        }
    }
    return pl_weights_check(err, s->adapter_weights, "adapter_config.json and the model", harmless_adapter);
}

static int find(pl_error *err, void *user, const pl_param *p, pl_host_tensor *out, bool *found)
{
    pl_session *s = user;
    const pl_st_tensor *t = NULL;
    if (p->in_adapter && s->adapter_weights) {
        PL_TRY(pl_adapter_find_param(err, s->adapter_weights, s->model, p, &t));
    } else if (p->role == PL_ROLE_BASE) {
        if (s->adapter_weights) PL_TRY(pl_adapter_find_along(err, s->adapter_weights, s->model, p, &t));
        if (!t && s->weights) t = pl_weights_peek(s->weights, pl_param_source(p));
    }
    *found = t != NULL;
    if (!t) return 0;
    if (!t->known || (t->dtype != PL_F32 && t->dtype != PL_BF16 && t->dtype != PL_F16)) {
        return PL_FAIL(err, PL_EUNSUPPORTED, "%s: tensor %s is %s; f32, bf16 or f16 was expected", t->file, t->name,
            t->dtype_name);
    }
    if (t->ndim > PL_MAX_DIMS) {
        return PL_FAIL(err, PL_EINPUT, "%s: tensor %s has %d dimensions", t->file, t->name, t->ndim);
    }
    *out = (pl_host_tensor){.file = t->file, .data = t->data, .map = t->map, .dtype = t->dtype, .ndim = t->ndim};
    for (int d = 0; d < t->ndim; d++) out->shape[d] = t->shape[d];
    return 0;
}

pl_source pl_session_source(pl_session *s)
{
    return (pl_source){.user = s, .find = find};
}

static int check_finite(pl_error *err, const pl_st_tensor *t)
{
    enum { PART = 4096 };
    float values[PART];
    for (int64_t first = 0; t->known && first < t->numel; first += PART) {
        int64_t n = t->numel - first < PART ? t->numel - first : PART;
        PL_TRY(pl_st_read(err, t, first, n, PL_F32, values));
        for (int64_t i = 0; i < n; i++) {
            if (isfinite(values[i])) continue;
            return PL_FAIL(err, PL_ENUMERIC, "%s: tensor %s: element %lld is %s", t->file, t->name,
                (long long)(first + i), isnan(values[i]) ? "NaN" : "infinite");
        }
    }
    return 0;
}

int pl_session_check_finite(pl_error *err, pl_session *s)
{
    pl_weights *files[] = {s->weights, s->adapter_weights};
    for (int f = 0; f < PL_COUNT(files); f++) {
        for (int i = 0; files[f] && i < pl_weights_count(files[f]); i++) {
            PL_TRY(check_finite(err, pl_weights_at(files[f], i)));
        }
    }
    return 0;
}

int pl_session_open(pl_error *err, const pl_log *log, const pl_config *config, pl_purpose purpose, pl_session **out)
{
    pl_session *s;
    PL_TRY(pl_calloc(err, 1, sizeof *s, &s));
    s->config = config;
    s->log = log;
    s->purpose = purpose;
    s->comm = config->world && config->world->size > 1 ? config->world : NULL;
    s->processes = s->comm ? s->comm->size : (int)config->ranks;
    s->process = s->comm ? s->comm->rank : 0;
    int rc;
    PL_GO(failed, open_model(err, s));
    PL_GO(failed, open_method(err, s));
    PL_GO(failed, name_base(err, s));
    PL_GO(failed, open_weights(err, s));
    PL_GO(failed, check_adapter(err, s));
    PL_GO(failed, pl_device_cpu(err, pl_session_threads(config), &s->device));
    PL_GO(failed, pl_device_dry(err, s->device, &s->dry_device));
    *out = s;
    return 0;
failed:
    pl_session_close(s);
    return rc;
}

void pl_session_close(pl_session *s)
{
    if (!s) return;
    pl_engine_close(s->engine);
    pl_disk_close(s->disk);
    pl_device_close(s->dry_device);
    pl_device_close(s->device);
    pl_model_close(s->model);
    pl_weights_close(s->weights);
    pl_weights_close(s->adapter_weights);
    pl_lora_config_free(&s->lora);
    free(s);
}

/* ---- planning and starting ---- */

int pl_session_agree(pl_error *err, pl_session *s, int rc)
{
    return s->comm ? pl_comm_agree(err, s->comm, rc) : rc;
}

bool pl_session_leads(const pl_session *s)
{
    return s->process == 0;
}

static int micro_batches(const pl_work *w)
{
    return w->micro_batches > 0 ? w->micro_batches : 1;
}

static bool offloads(const pl_session *s, const pl_work *w)
{
    const pl_config *c = s->config;
    return w->training &&
           (c->memory.offload.optimizer == PL_OFFLOAD_DISK || c->memory.offload.params == PL_OFFLOAD_DISK);
}

static pl_engine_config engine_config(const pl_session *s, const pl_work *w, pl_comm *comm, pl_disk *disk)
{
    const pl_config *c = s->config;
    return (pl_engine_config){.training = w->training,
        .recompute = (int)s->config->memory.recompute,
        .seed = (uint64_t)s->config->train.seed,
        .optimizer = pl_session_optimizer(s->config),
        .clip = s->config->train.clip,
        .capacity = w->capacity,
        .cache_rows = w->cache_rows,
        .accumulates = micro_batches(w) > 1,
        .offload = {.disk = disk,
            .optimizer = c->memory.offload.optimizer == PL_OFFLOAD_DISK,
            .params = c->memory.offload.params == PL_OFFLOAD_DISK,
            .buffer = c->memory.offload.buffer},
        .sharding = {.comm = comm,
            .stage = (int)c->parallel.zero,
            .group = (int)c->parallel.shard_size,
            .prefetch = (int)c->parallel.prefetch,
            .bucket = c->parallel.bucket_mb << 20,
            .every_micro = c->parallel.sync_each_batch}};
}

/* One planned micro-batch, handed to the engine as a feed would. */
static int give(pl_error *err, void *user, int64_t step, int micro, pl_batch *batch)
{
    (void)step;
    (void)micro;
    return pl_batch_copy(err, user, batch);
}

static int dry_logits(pl_error *err, pl_session *s, pl_engine *dry, const pl_work *w, const pl_batch *batch)
{
    float *logits;
    int32_t *rows;
    PL_TRY(pl_calloc(err, (size_t)(w->logits * s->model->arch.vocab), sizeof *logits, &logits));
    int rc = pl_calloc(err, (size_t)w->logits, sizeof *rows, &rows);
    if (rc == 0) {
        rc = pl_engine_logits(dry, batch, rows, w->logits, logits);
        free(rows);
    }
    free(logits);
    return rc;
}

/* What a step does, of the first batch. */
static void note_step(pl_session *s, const pl_engine *dry_run, const pl_comm *comm, const pl_disk *disk)
{
    s->counted = pl_engine_run((pl_engine *)dry_run)->counters;
    if (comm) s->traffic = *comm->traffic;
    if (!disk) return;
    s->disk_bytes = disk->bytes;
    s->disk_counted = disk->counts;
}

static int dry_step(pl_session *s, pl_engine *dry, const pl_work *w, const pl_batch *batch)
{
    pl_step_result result;
    pl_feed feed = {.user = (void *)batch, .micro_batch = give};
    int64_t targets = batch->ntargets * micro_batches(w) * s->processes; /* as if all had the same */
    return pl_engine_step(dry, &feed, 1, micro_batches(w), targets, 0, &result);
}

/* Attention's scratch depends a little on where sequences end inside its blocks of up to 128 tokens, and the planned
   batch has but one of all the ways to reach its size. This is what another way can need more: one block of queries and
   gradients a sequence. */
static int64_t room_for_lengths(const pl_session *s, const pl_work *w)
{
    const pl_arch *a = &s->model->arch;
    return w->capacity.sequences * a->heads * a->head_dim * 128 * 2 * (int64_t)sizeof(float);
}

static int dry_passes(pl_error *err, pl_session *s, pl_engine *dry, const pl_work *w, pl_comm *comm, pl_disk *disk)
{
    double ignored;
    for (int i = 0; i < w->nbatches; i++) {
        const pl_batch *batch = &w->batches[i];
        if (i == 0) pl_engine_run(dry)->counters = (pl_counters){0};
        if (i == 0 && comm) *comm->traffic = (pl_traffic){0};
        if (i == 0 && disk) disk->counts = (pl_disk_counts){0};
        if (w->training) PL_TRY(dry_step(s, dry, w, batch));
        if (i == 0) note_step(s, dry, comm, disk);
        if (w->evaluates) PL_TRY(pl_engine_evaluate(dry, batch, &ignored));
        if (w->logits) PL_TRY(dry_logits(err, s, dry, w, batch));
    }
    return 0;
}

static int plan_with(pl_error *err, pl_session *s, pl_work *w, pl_comm *comm, pl_disk *disk)
{
    pl_engine *dry;
    pl_source source = pl_session_source(s);
    pl_mem_init(&s->planned, s->dry_device);
    w->capacity.saved_bytes = w->capacity.work_bytes = PL_STACK_UNLIMITED;
    pl_engine_config config = engine_config(s, w, comm, disk);
    PL_TRY(pl_engine_open(err, s->log, s->dry_device, &s->planned, s->model, &config, &source, &dry));
    int rc = dry_passes(err, s, dry, w, comm, disk);
    if (rc == 0) {
        w->capacity = pl_engine_reached(dry);
        w->capacity.work_bytes += room_for_lengths(s, w);
        pl_mem_count(&s->planned, PL_MEM_WORK, room_for_lengths(s, w));
    }
    pl_engine_close(dry);
    return rc;
}

static int plan_offload(pl_error *err, pl_session *s, pl_work *w, bool offload)
{
    pl_comm *comm = NULL;
    pl_disk *disk = NULL;
    int rc = 0;
    if (s->processes > 1) PL_GO(done, pl_comm_dry(err, s->process, s->processes, &comm));
    if (offload) PL_GO(done, pl_disk_dry(err, &disk));
    rc = plan_with(err, s, w, comm, disk);
done:
    pl_disk_close(disk);
    pl_comm_close(comm);
    return rc;
}

/* Buffers and slots may take as much memory as what passes through them. */
static void warn_of_vain_offload(const pl_session *s, int64_t without)
{
    const pl_config *c = s->config;
    char where[PL_WHERE_SIZE];
    bool optimizer = c->memory.offload.optimizer == PL_OFFLOAD_DISK;
    if (s->planned.total_peak < without) return;
    pl_logf(s->log, PL_LOG_WARNING,
        "%s is disk, and saves no memory: with it the run takes %.1f MiB, without %.1f MiB; leave it out%s",
        pl_config_where(c, optimizer ? &c->memory.offload.optimizer : &c->memory.offload.params, where),
        (double)s->planned.total_peak / 0x1p20, (double)without / 0x1p20,
        optimizer ? ", or make memory.offload.buffer smaller" : "");
}

int pl_session_plan(pl_error *err, pl_session *s, pl_work *w)
{
    if (!offloads(s, w)) return plan_offload(err, s, w, false);
    pl_work in_memory = *w;
    PL_TRY(plan_offload(err, s, &in_memory, false));
    int64_t without = s->planned.total_peak;
    PL_TRY(plan_offload(err, s, w, true));
    warn_of_vain_offload(s, without);
    return 0;
}

static int open_disk(pl_error *err, pl_session *s)
{
    const pl_config *c = s->config;
    bool given = c->memory.offload.path != NULL;
    char where[PL_WHERE_SIZE];
    pl_config_where(c, given ? &c->memory.offload.path : &c->output, where);
    return pl_disk_open(err, s->log, where, given ? c->memory.offload.path : c->output, &s->disk);
}

int pl_session_start(pl_error *err, pl_session *s, pl_work *w)
{
    PL_TRY(pl_session_agree(err, s, pl_session_plan(err, s, w)));
    if (offloads(s, w)) PL_TRY(pl_session_agree(err, s, open_disk(err, s)));
    pl_source source = pl_session_source(s);
    pl_mem_init(&s->mem, s->device);
    s->mem.budget = s->config->memory.budget;
    pl_engine_config config = engine_config(s, w, s->comm, s->disk);
    return pl_engine_open(err, s->log, s->device, &s->mem, s->model, &config, &source, &s->engine);
}
